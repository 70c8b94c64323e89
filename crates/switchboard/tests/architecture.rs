//! Compares the crates with ARCHITECTURE.md, and checks that the modules of a crate form no cycle.
#![expect(clippy::unwrap_used, reason = "a test may")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand};
use regex::Regex;

/// The workspace dependencies of each crate.
type Dependencies = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Parses the lines `name/ … → a, b` of the block under the heading "Crates". `nothing` stands for no crate.
fn documented(text: &str) -> Dependencies {
    let block = text.split("## Crates").nth(1).and_then(|rest| rest.split("```").nth(1)).unwrap();
    let lines = block.lines().filter_map(|line| line.split_once('→'));
    lines
        .map(|(left, right)| {
            let name = left.split('/').next().unwrap().trim().to_owned();
            let targets =
                right.split(',').map(|name| name.trim().to_owned()).filter(|name| name != "nothing");
            (name, targets.collect())
        })
        .collect()
}

/// Returns the actual dependencies, without dev-dependencies.
fn actual() -> Dependencies {
    let metadata = MetadataCommand::new()
        .current_dir(root())
        .no_deps()
        .other_options(["--offline".into()])
        .exec()
        .unwrap();
    let names: BTreeSet<String> = metadata.packages.iter().map(|package| package.name.to_string()).collect();
    let arrows = metadata.packages.iter().map(|package| {
        let uses =
            package.dependencies.iter().filter(|dependency| dependency.kind != DependencyKind::Development);
        let inside = uses.map(|dependency| dependency.name.clone()).filter(|name| names.contains(name));
        (package.name.to_string(), inside.collect())
    });
    arrows.collect()
}

/// Returns every dependency as a pair, and every crate paired with itself.
fn pairs(arrows: &Dependencies) -> BTreeSet<(&str, &str)> {
    let own = arrows.keys().map(|name| (name.as_str(), name.as_str()));
    let outward = arrows
        .iter()
        .flat_map(|(name, uses)| uses.iter().map(move |target| (name.as_str(), target.as_str())));
    own.chain(outward).collect()
}

/// Returns the differences between documented and actual dependencies.
fn differences(documented: &Dependencies, actual: &Dependencies) -> Vec<String> {
    let (documented, actual) = (pairs(documented), pairs(actual));
    let forbidden =
        actual.difference(&documented).map(|(from, to)| format!("`{from}` → `{to}` is not documented"));
    let missing = documented
        .difference(&actual)
        .map(|(from, to)| format!("`{from}` → `{to}` is documented and missing"));
    forbidden.chain(missing).collect()
}

#[test]
fn crate_dependencies_match_architecture() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    assert_eq!(differences(&documented(&text), &actual()), Vec::<String>::new());
}

#[test]
fn forbidden_dependency_is_found() {
    let text = "## Crates\n```\nmodel/  nouns  → nothing\nstore/  rows  → model\n```\n";
    let dependencies = |pairs: &[(&str, &[&str])]| -> Dependencies {
        pairs
            .iter()
            .map(|(name, uses)| ((*name).into(), uses.iter().map(|&name| name.into()).collect()))
            .collect()
    };
    let actual = dependencies(&[("model", &["store"]), ("store", &[]), ("web", &[])]);
    assert_eq!(
        differences(&documented(text), &actual),
        [
            "`model` → `store` is not documented",
            "`web` → `web` is not documented",
            "`store` → `model` is documented and missing"
        ]
    );
}

/// Crates whose modules still form cycles. Remove a crate once it has none.
const CYCLIC_CRATES: &[&str] = &[];

/// The top-level modules of a crate, each with the modules that it uses. Test modules are ignored.
fn module_dependencies(src: &Path) -> Dependencies {
    let crate_path = Regex::new(r"\b(?:crate|super)::(?:([a-z_]\w*)|\{([^;]*?)\};)").unwrap();
    let group_item = Regex::new(r"(?:^|,)\s*([a-z_]\w*)").unwrap();
    let mut dependencies = Dependencies::new();
    for entry in fs::read_dir(src).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_stem().unwrap().to_str().unwrap().to_owned();
        if ["lib", "main", "bin"].contains(&name.as_str()) {
            continue;
        }
        let uses: &mut BTreeSet<String> = dependencies.entry(name.clone()).or_default();
        for file in rust_files(&entry) {
            let is_top_level = file == entry || file == entry.join("mod.rs");
            let text = fs::read_to_string(&file).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
            let code: String =
                text.lines().map(|line| line.split("//").next().unwrap().to_owned() + "\n").collect();
            for found in crate_path.captures_iter(&code) {
                if found.get(0).unwrap().as_str().starts_with("super") && !is_top_level {
                    continue;
                }
                let single = found.get(1).map(|name| name.as_str().to_owned());
                let group = found.get(2).map_or("", |group| group.as_str());
                uses.extend(group_item.captures_iter(group).map(|item| item[1].to_owned()).chain(single));
            }
        }
        uses.remove(&name);
    }
    let names: BTreeSet<String> = dependencies.keys().cloned().collect();
    for uses in dependencies.values_mut() {
        uses.retain(|name| names.contains(name));
    }
    dependencies
}

fn rust_files(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() {
        return fs::read_dir(path).unwrap().flat_map(|entry| rust_files(&entry.unwrap().path())).collect();
    }
    let is_source =
        path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs");
    if is_source { vec![path.to_owned()] } else { Vec::new() }
}

/// Returns the modules that reach themselves.
fn cyclic_modules(dependencies: &Dependencies) -> Vec<&str> {
    let reaches_itself = |start: &str| {
        let (mut seen, mut pending) = (BTreeSet::new(), vec![start]);
        while let Some(name) = pending.pop() {
            for next in dependencies.get(name).into_iter().flatten() {
                if seen.insert(next.as_str()) {
                    pending.push(next);
                }
            }
        }
        seen.contains(start)
    };
    dependencies.keys().map(String::as_str).filter(|name| reaches_itself(name)).collect()
}

#[test]
fn modules_of_a_crate_form_no_cycle() {
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    for package in crates.chain([root().join("bench")]) {
        let name = package.file_name().unwrap().to_str().unwrap().to_owned();
        if CYCLIC_CRATES.contains(&name.as_str()) {
            continue;
        }
        let dependencies = module_dependencies(&package.join("src"));
        assert_eq!(cyclic_modules(&dependencies), Vec::<&str>::new(), "{name}: {dependencies:#?}");
    }
}

#[test]
fn module_cycle_is_found() {
    let source = tempfile::tempdir().unwrap();
    for (file, text) in [
        ("lib.rs", "mod one; mod two; mod three;"),
        ("one.rs", "use crate::two::A;"),
        ("two.rs", "use crate::{three, other};"),
        ("three.rs", "// use crate::none;\nuse super::one::B;"),
        ("four.rs", "use crate::one::B;"),
    ] {
        fs::write(source.path().join(file), text).unwrap();
    }
    assert_eq!(cyclic_modules(&module_dependencies(source.path())), ["one", "three", "two"]);
}
