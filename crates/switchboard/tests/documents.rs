//! Checks that the documents and manifests agree with each other and with the program.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test may")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use model::{Deadline, FailureKind, NotStartedReason};
use serde::de::DeserializeOwned;
use serde_json::Value;

fn root() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap()
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn json(name: &str) -> Value {
    serde_json::from_str(&read(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns every Markdown file below a directory, except built and hidden ones.
fn pages(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap_or_default();
        if name.starts_with('.') || ["target", "artifacts", "node_modules"].contains(&name.as_str()) {
            continue;
        }
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(pages(&entry.path()));
        } else if kind.is_file() && entry.path().extension().is_some_and(|end| end == "md") {
            found.push(entry.path());
        }
    }
    found
}

/// Returns the lines of a page outside of code fences.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    })
}

/// Returns the targets of the links and pictures of a page.
fn links(text: &str) -> Vec<&str> {
    let targets = |line| str::split(line, "](").skip(1).filter_map(|rest: &str| rest.split(')').next());
    lines(text).flat_map(targets).collect()
}

/// Returns the anchors of the headings of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let heading = |line: &str| {
        let title = line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?.to_lowercase();
        let kept = title.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        Some(kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect())
    };
    lines(text).filter_map(heading).collect()
}

/// Returns the broken links of a page.
fn broken(page: &Path, text: &str) -> Vec<String> {
    let is_broken = |link: &&str| {
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        let target = if file.is_empty() { page.to_owned() } else { page.parent().unwrap().join(file) };
        let has_anchor = || fs::read_to_string(&target).is_ok_and(|text| anchors(&text).contains(anchor));
        !target.exists() || !anchor.is_empty() && !has_anchor()
    };
    let outside = |link: &&str| link.contains("://") || link.starts_with("mailto:");
    let broken = links(text).into_iter().filter(|link| !outside(link)).filter(is_broken);
    broken.map(|link| format!("{}: {link}", page.display())).collect()
}

#[test]
fn document_links_resolve() {
    let all = pages(&root());
    assert!(all.len() > 10, "the documents are not where they are looked for: {all:?}");
    let broken: Vec<String> =
        all.iter().flat_map(|page| broken(page, &fs::read_to_string(page).unwrap())).collect();
    assert_eq!(broken, Vec::<String>::new());
}

#[test]
fn broken_link_is_found() {
    let page = root().join("docs/README.md");
    let text = "# Two words, `and` more\n[here](#two-words-and-more) [there](nowhere.md) [no](#none)\n\
                ![no](gone.svg)\n[far](https://example.com/)\n```\n[no](link)\n# no heading\n```\n[no](#no-heading)\n";
    let found = broken(&page, text);
    // A page is looked at as it is on the disk, which has none of these headings.
    let names: Vec<&str> = found.iter().map(|line| line.rsplit(": ").next().unwrap()).collect();
    assert_eq!(names, ["#two-words-and-more", "nowhere.md", "#none", "gone.svg", "#no-heading"]);
    assert_eq!(anchors(text), BTreeSet::from(["two-words-and-more".to_owned()]));
}

#[test]
fn docs_index_lists_every_page() {
    let text = read("docs/README.md");
    let listed: BTreeSet<&str> = links(&text).into_iter().collect();
    for page in pages(&root().join("docs")) {
        let name = page.file_name().unwrap().to_str().unwrap();
        assert!(name == "README.md" || listed.contains(name), "docs/README.md does not list {name}");
    }
}

/// Returns the variant names of an enumeration, from serde's error for an unknown one.
fn variants<T: DeserializeOwned>(nonsense: &Value) -> Vec<String> {
    let error = serde_json::from_value::<T>(nonsense.clone()).err().unwrap().to_string();
    let names: Vec<String> = error.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    assert!(names.len() > 2 && names[0] == "?", "{error}");
    names[1..].to_vec()
}

#[test]
fn every_failure_kind_is_in_troubleshooting() {
    let page = read("docs/troubleshooting.md");
    let headings = anchors(&page);
    for kind in variants::<FailureKind>(&serde_json::json!({ "kind": "?" })) {
        assert!(headings.contains(&kind), "docs/troubleshooting.md has no heading `{kind}`");
    }
    let reasons = variants::<NotStartedReason>(&"?".into());
    for name in reasons.into_iter().chain(variants::<Deadline>(&"?".into())) {
        assert!(page.contains(&format!("| `{name}` |")), "docs/troubleshooting.md has no line for `{name}`");
    }
}

/// Returns all Rust source below a directory.
fn code(directory: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            text += &code(&path);
        } else if path.extension().is_some_and(|end| end == "rs") {
            text += &fs::read_to_string(&path).unwrap();
        }
    }
    text
}

#[test]
fn tests_named_in_documents_exist() {
    let code = code(&root().join("crates"));
    for document in ["docs/comparison.md", "docs/threat-model.md"] {
        let page = read(document);
        let named: Vec<&str> =
            page.split('`').filter(|word| !word.contains(' ') && word.matches('_').count() > 3).collect();
        assert!(named.len() > 10, "{document}: {named:?}");
        for name in named {
            // A name after an ellipsis is the end of a longer one.
            let found = match name.strip_prefix('…') {
                Some(end) => code.contains(&format!("{end}(")),
                None => code.contains(&format!("fn {name}(")),
            };
            assert!(found, "{document} names the test `{name}`, which does not exist");
        }
    }
}

#[test]
fn registry_manifest_matches_build() {
    let server = json("server.json");
    assert_eq!(
        server["$schema"], "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "look up what the other schema asks for before it is changed here"
    );
    let (namespace, name) = server["name"].as_str().unwrap().split_once('/').unwrap();
    assert_eq!(name, env!("CARGO_PKG_NAME"));
    let plain =
        |text: &str| text.chars().all(|letter| letter.is_ascii_alphanumeric() || ".-".contains(letter));
    assert!(namespace.contains('.') && plain(namespace), "{namespace} is no reversed name of a domain");
    assert_eq!(server["version"], env!("CARGO_PKG_VERSION"));
    let description = server["description"].as_str().unwrap();
    assert!((1..=100).contains(&description.chars().count()), "the schema takes 100 characters");
    assert!(description.starts_with(env!("CARGO_PKG_DESCRIPTION")), "{description}");
    let known = ["$schema", "name", "title", "description", "version"];
    assert!(server.as_object().unwrap().keys().all(|key| known.contains(&key.as_str())), "{server}");
}

#[test]
fn bundle_manifest_matches_version_and_tools() {
    let manifest = json("packaging/manifest.json");
    assert_eq!(manifest["manifest_version"], "0.3");
    assert_eq!(manifest["name"], env!("CARGO_PKG_NAME"));
    assert_eq!(manifest["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(manifest["description"], env!("CARGO_PKG_DESCRIPTION"));
    assert_eq!(manifest["license"], "MIT OR Apache-2.0");
    let config = &manifest["server"]["mcp_config"];
    let entry = manifest["server"]["entry_point"].as_str().unwrap();
    assert_eq!(config["command"], format!("${{__dirname}}/{entry}"));
    assert_eq!(config["args"], serde_json::json!(["mcp"]));
    let named: BTreeSet<String> = manifest["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap().to_owned())
        .collect();
    // The page is compared with what the server says; some of its tools have to be switched on first.
    let mut offered = anchors(&read("docs/tools.md"));
    for name in ["tools", "call_rehearsal", "call_apply", "call_discard"] {
        assert!(offered.remove(name), "{name} is not in {offered:?}");
    }
    assert_eq!(named, offered);
}

/// Returns the reading paths of docs/internals.md, by title, as files relative to `crates/`.
fn reading_paths() -> Vec<(String, BTreeSet<String>)> {
    let text = read("docs/internals.md");
    let section = text.split("## Reading paths\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let paths = section.split("\n**").skip(1).map(|path| {
        let (title, lists) = path.split_once("**").unwrap();
        let files = lists.split("\n- ").skip(1).flat_map(|list| {
            let mut names = list.split('`').skip(1).step_by(2);
            let directory = names.next().unwrap().to_owned();
            names.map(move |name| directory.clone() + name).collect::<Vec<_>>()
        });
        (title.to_owned(), files.collect())
    });
    paths.collect()
}

#[test]
fn reading_paths_exist_and_stay_short() {
    let limits = [("A call", 32), ("An MCP call", 45), ("Recovery", 20), ("A cancellation", 20)];
    let paths = reading_paths();
    assert_eq!(
        paths.iter().map(|(title, _)| title.as_str()).collect::<Vec<_>>(),
        limits.map(|(title, _)| title)
    );
    for ((title, files), (_, limit)) in paths.iter().zip(limits) {
        assert!(files.len() > 10 && files.len() <= limit, "{title} visits {} files", files.len());
        for file in files {
            assert!(root().join("crates").join(file).is_file(), "{title}: {file} does not exist");
        }
    }
}

#[test]
fn bundle_is_complete_and_reproducible() {
    let scratch = tempfile::tempdir().unwrap();
    let built = scratch.path().join("built");
    fs::create_dir(&built).unwrap();
    let executables = ["switchboard", "switchboard-supervisor", "file-tools", "terminal-host", "rehearsal"];
    for name in executables {
        fs::write(built.join(name), format!("{name} itself")).unwrap();
    }
    let pack = |out: &str| {
        let out = scratch.path().join(out);
        let mut script = Command::new("python3");
        script.arg(root().join("scripts/bundle")).args([&built, &out]);
        script.args(["--name", "io.github.ana/switchboard", "--url", "https://example.com/v1/"]);
        (script.output(), out)
    };
    let (Ok(first), out) = pack("first") else {
        println!("skipped: python3 is not here");
        return;
    };
    assert!(first.status.success(), "{first:?}");
    let printed = String::from_utf8(first.stdout).unwrap();
    let (digest, bundle) = printed.trim().split_once("  ").unwrap();
    let bytes = fs::read(bundle).unwrap();
    let (_, again) = pack("second");
    assert_eq!(bytes, fs::read(again.join(Path::new(bundle).file_name().unwrap())).unwrap());
    let names = String::from_utf8_lossy(&bytes);
    for name in executables.map(|name| format!("server/{name}")).iter().chain(&["manifest.json".to_owned()]) {
        assert!(names.contains(name), "{name} is not in the bundle");
    }
    let server: Value = serde_json::from_slice(&fs::read(out.join("server.json")).unwrap()).unwrap();
    assert_eq!(server["name"], "io.github.ana/switchboard");
    let package = &server["packages"][0];
    assert_eq!(package["fileSha256"], digest);
    let url = package["identifier"].as_str().unwrap();
    let file = Path::new(bundle).file_name().unwrap().to_str().unwrap();
    assert_eq!(url, format!("https://example.com/v1/{file}"));
    assert!(file.starts_with("switchboard-") && file.contains(".mcpb"), "{file}");
}

#[test]
fn project_example_starts_bridge() {
    let example = json("examples/mcp.json");
    let server = serde_json::json!({ "command": "switchboard", "args": ["mcp"] });
    assert_eq!(example, serde_json::json!({ "mcpServers": { "switchboard": server } }));
    assert!(!root().join(".mcp.json").exists(), "hosts that are started in this repository would obey it");
}
