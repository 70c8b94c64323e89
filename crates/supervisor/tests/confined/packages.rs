//! Package managers under the default policy: the real tools, packages of this machine, and registries on loopback.
//!
//! Each test runs with namespaces and with Landlock alone. A tool that is not installed is reported.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use model::{
    Caches, CallPolicy, Confinement, Exit, HomeView, Policy, PolicyRoot, Preset, Requirement, RunPlan,
};

use crate::harness::Harness;

testkit::tests![
    npm_cache_is_shared_by_later_calls,
    cargo_builds_git_dependency_with_user_config,
    pip_installs_from_an_index_into_an_environment,
    uv_installs_a_wheel_into_an_environment,
    go_cache_of_build_can_be_swept,
    caches_of_read_only_run_are_removed,
];

/// A tool that works for this user, in one tier.
struct Tool {
    program: PathBuf,
    namespaces: bool,
}

/// Runs a test in both tiers, if the tool works for this user.
#[expect(clippy::needless_pass_by_value, reason = "a closure reads better where it is given")]
fn play_with(name: &str, version: &str, test: impl AsyncFn(&Tool, &Harness)) {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut programs = std::env::split_paths(&path).map(|directory| directory.join(name));
    let works = |program: &PathBuf| {
        Command::new(program).arg(version).output().is_ok_and(|output| output.status.success())
    };
    let Some(program) = programs.find(works) else {
        println!("SKIPPED: {name} is not installed for this user");
        return;
    };
    // Links in a `PATH` directory below the home directory are dangling in a run, unless it is a known one. A proxy has
    // another name.
    let real = program.canonicalize().unwrap();
    let program = if real.file_name() == program.file_name() { real } else { program };
    for namespaces in [true, false] {
        Harness::run_test(async |harness: &Harness| {
            test(&Tool { program: program.clone(), namespaces }, harness).await;
        });
    }
}

impl Tool {
    /// Returns a plan for a script under the default policy, with the tool first in `PATH`.
    fn plan(&self, harness: &Harness, env: &[(&str, String)], script: &str) -> RunPlan {
        let confinement = harness.confinement(CallPolicy::default());
        let plan = harness.shell(&format!("set -e\n{script}"));
        let bin = self.program.parent().unwrap().display();
        let mut variables = plan.env.clone();
        variables.insert("PATH".to_owned(), format!("{bin}:/usr/bin:/bin"));
        // As set by a launch: the sandbox redirects it to the temporary directory of the run.
        variables.insert("TMPDIR".to_owned(), "/tmp".to_owned());
        variables.extend(env.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        let directory = harness.path("state/caches/workspace");
        let caches = Caches::new(Some(directory.clone()), Some(&harness.path("home/.cargo")), |_| false);
        let roots = confinement.roots.iter().cloned().chain([PolicyRoot::created(directory)]).collect();
        let namespaces = self.namespaces;
        // Packages of this machine, as an operator would expose them.
        let home = confinement.home.clone().map(|home| HomeView {
            exposed: ["local", "dep", "proxy"].map(|name| home.directory.join(name)).to_vec(),
            ..home
        });
        let confinement = Confinement { namespaces, home, caches: Some(caches), roots, ..confinement };
        RunPlan { env: variables, policy: Policy::Confined(Box::new(confinement)), ..plan }
    }

    /// Runs a script that must succeed, and returns its output.
    async fn run(&self, harness: &Harness, env: &[(&str, String)], script: &str) -> String {
        let report = harness.run(&self.plan(harness, env, script)).await;
        let (output, error) = (harness.output(), harness.error());
        assert_eq!(
            report.exit,
            Some(Exit::Code(0)),
            "namespaces {}: {output}\n{error}\n{report:?}",
            self.namespaces
        );
        fs::remove_dir_all(harness.spool()).unwrap();
        output
    }
}

/// Serves files on loopback for the duration of the test, and returns the address.
fn serve(files: impl Fn(&str) -> BTreeMap<String, Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let files = files(&address);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let first = lines.next().unwrap_or_default();
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let path = first.split(' ').nth(1).unwrap_or_default();
            let (status, body) = files.get(path).map_or(("404 Not Found", &[][..]), |body| ("200 OK", body));
            let kind = if path.ends_with('/') { "text/html" } else { "application/octet-stream" };
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nETag: \"1\"\r\nConnection: close\r\n\r\n",
                body.len()
            );
            let _ = (&stream).write_all(head.as_bytes()).and_then(|()| (&stream).write_all(body));
        }
    });
    address
}

/// Runs a program outside of any sandbox.
fn outside(directory: &Path, program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(args).current_dir(directory).env("HOME", directory).env("GIT_CONFIG_GLOBAL", "/dev/null");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn write(path: PathBuf, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Creates a zip archive with these files, with python.
fn zip(harness: &Harness, name: &str, files: &[(&str, &str)]) -> PathBuf {
    let archive = harness.path(name);
    fs::create_dir_all(archive.parent().unwrap()).unwrap();
    let code = "import sys, zipfile\nwith zipfile.ZipFile(sys.argv[1], 'w') as z:\n for i in range(2, len(sys.argv), 2): z.writestr(sys.argv[i], sys.argv[i + 1])";
    let files = files.iter().flat_map(|(name, text)| [*name, *text]);
    let args: Vec<&str> = ["-c", code, archive.to_str().unwrap()].into_iter().chain(files).collect();
    outside(&harness.path("home"), "python3", &args);
    archive
}

fn wheel(harness: &Harness) -> PathBuf {
    let files = [
        ("heron.py", "WORD = 'heron'\n"),
        ("heron-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: heron\nVersion: 1.0\n"),
        ("heron-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
        ("heron-1.0.dist-info/RECORD", ""),
    ];
    zip(harness, "wheels/heron-1.0-py3-none-any.whl", &files)
}

fn is_filled(cache: &Path) -> bool {
    fs::read_dir(cache).is_ok_and(|mut entries| entries.next().is_some())
}

fn npm_cache_is_shared_by_later_calls() {
    play_with("npm", "--version", async |tool, harness| {
        write(harness.path("home/local/package.json"), r#"{"name": "local", "version": "1.0.0"}"#);
        write(harness.path("package/package.json"), r#"{"name": "heron", "version": "1.0.0"}"#);
        write(harness.path("package/index.js"), "console.log('heron')");
        outside(&harness.path(""), "tar", &["-czf", "heron.tgz", "package"]);
        let tarball = fs::read(harness.path("heron.tgz")).unwrap();
        let registry = serve(|address| {
            let dist = format!("{{\"tarball\": \"{address}/heron.tgz\"}}");
            let version = format!("{{\"name\": \"heron\", \"version\": \"1.0.0\", \"dist\": {dist}}}");
            let about = format!(
                "{{\"name\": \"heron\", \"dist-tags\": {{\"latest\": \"1.0.0\"}}, \"versions\": {{\"1.0.0\": {version}}}}}"
            );
            BTreeMap::from([
                ("/heron".to_owned(), about.into_bytes()),
                ("/heron.tgz".to_owned(), tarball.clone()),
            ])
        });
        let install = format!("npm install --no-audit --no-fund --registry={registry} heron@1.0.0");
        let local = harness.path("home/local");
        let script =
            format!("{install} && npm install --no-audit {} && node node_modules/heron", local.display());
        let output = tool.run(harness, &[], &script).await;
        assert!(output.ends_with("heron\n"), "{output}");
        assert!(is_filled(&harness.path("state/caches/workspace/npm/_cacache")));
        // The next call has another workspace and no registry.
        fs::remove_dir_all(harness.workspace()).unwrap();
        fs::create_dir_all(harness.workspace()).unwrap();
        let output = tool.run(harness, &[], &format!("{install} --offline && node node_modules/heron")).await;
        assert!(output.ends_with("heron\n"), "{output}");
    });
}

fn cargo_builds_git_dependency_with_user_config() {
    let rustup = std::env::var("RUSTUP_HOME").map(PathBuf::from).ok();
    let rustup = rustup.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".rustup")));
    let rustup = rustup.unwrap_or_default().display().to_string();
    play_with("cargo", "--version", async |tool, harness| {
        write(
            harness.path("home/dep/Cargo.toml"),
            "[package]\nname = \"dep\"\nversion = \"1.0.0\"\nedition = \"2021\"\n[workspace]\n",
        );
        write(harness.path("home/dep/src/lib.rs"), "pub const WORD: &str = \"heron\";");
        for args in [&["init", "-q"][..], &["add", "."], &["commit", "-qm", "dep"]] {
            let all = ["-c", "user.name=a", "-c", "user.email=a@b"].into_iter().chain(args.iter().copied());
            outside(&harness.path("home/dep"), "git", &all.collect::<Vec<_>>());
        }
        write(harness.path("home/.cargo/config.toml"), "[env]\nFROM_USER = \"and the user's own\"\n");
        // In a separate workspace: the build directory may be inside a checkout of this project.
        let manifest = format!(
            "[workspace]\n[package]\nname = \"app\"\nversion = \"1.0.0\"\nedition = \"2021\"\n[dependencies]\ndep = {{ git = \"file://{}\" }}\n",
            harness.path("home/dep").display()
        );
        write(harness.workspace().join("Cargo.toml"), &manifest);
        let main = "fn main() { println!(\"{} {}\", dep::WORD, env!(\"FROM_USER\")); }";
        write(harness.workspace().join("src/main.rs"), main);
        let output = tool.run(harness, &[("RUSTUP_HOME", rustup.clone())], "cargo run -q").await;
        assert_eq!(output, "heron and the user's own\n");
        assert!(is_filled(&harness.path("state/caches/workspace/cargo/git/db")));
        let names: Vec<_> = fs::read_dir(harness.path("home/.cargo")).unwrap().flatten().collect();
        assert_eq!(names.len(), 1, "{names:?}");
    });
}

fn pip_installs_from_an_index_into_an_environment() {
    play_with("python3", "--version", async |tool, harness| {
        let wheel = fs::read(wheel(harness)).unwrap();
        let name = "heron-1.0-py3-none-any.whl";
        let index = serve(|_| {
            let page = format!("<a href=\"/{name}\">{name}</a>").into_bytes();
            BTreeMap::from([("/simple/heron/".to_owned(), page), (format!("/{name}"), wheel.clone())])
        });
        let script = format!(
            "python3 -m venv env\nenv/bin/pip install -q --disable-pip-version-check --index-url={index}/simple heron\ntouch $(env/bin/pip cache dir)/written\nenv/bin/pip cache dir\nenv/bin/python -c 'import heron; print(heron.WORD)'"
        );
        let output = tool.run(harness, &[], &script).await;
        assert!(output.ends_with("heron\n"), "{output}");
        // Pip does not cache downloads over plain HTTP, so its own message has to suffice.
        assert!(output.contains(harness.path("state/caches/workspace/pip").to_str().unwrap()), "{output}");
    });
}

fn uv_installs_a_wheel_into_an_environment() {
    play_with("uv", "--version", async |tool, harness| {
        let wheel = wheel(harness);
        // Visible in the run, wherever the build directory is.
        fs::copy(&wheel, harness.workspace().join(wheel.file_name().unwrap())).unwrap();
        let wheels = harness.workspace().display().to_string();
        let script = format!(
            "uv venv -q --offline .venv\nuv pip install -q --no-index --find-links={wheels} heron\n.venv/bin/python -c 'import heron; print(heron.WORD)'"
        );
        let output = tool.run(harness, &[], &script).await;
        assert_eq!(output, "heron\n");
        assert!(is_filled(&harness.path("state/caches/workspace/uv")));
    });
}

fn go_cache_of_build_can_be_swept() {
    play_with("go", "version", async |tool, harness| {
        let module = "module example.com/heron\n\ngo 1.18\n";
        let versions = "home/proxy/example.com/heron/@v";
        let source = "package heron\n\nconst Word = \"heron\"\n";
        let files =
            [("example.com/heron@v1.0.0/go.mod", module), ("example.com/heron@v1.0.0/heron.go", source)];
        zip(harness, &format!("{versions}/v1.0.0.zip"), &files);
        write(harness.path(&format!("{versions}/v1.0.0.mod")), module);
        write(harness.path(&format!("{versions}/v1.0.0.info")), r#"{"Version": "v1.0.0"}"#);
        write(harness.path(&format!("{versions}/list")), "v1.0.0\n");
        let own = "module example.com/app\n\ngo 1.18\n\nrequire example.com/heron v1.0.0\n";
        write(harness.workspace().join("go.mod"), own);
        // Go runs git in a repository, and this directory is none.
        fs::remove_dir_all(harness.workspace().join(".git")).unwrap();
        outside(&harness.workspace(), "git", &["init", "-q"]);
        let main = "package main\n\nimport (\n\t\"fmt\"\n\n\t\"example.com/heron\"\n)\n\nfunc main() { fmt.Println(heron.Word) }\n";
        write(harness.workspace().join("main.go"), main);
        let env = [
            ("GOPROXY", format!("file://{}", harness.path("home/proxy").display())),
            ("GONOSUMDB", "*".to_owned()),
            ("GOSUMDB", "off".to_owned()),
            ("GOFLAGS", "-mod=mod".to_owned()),
            ("GOTOOLCHAIN", "local".to_owned()),
            ("CGO_ENABLED", "0".to_owned()),
        ];
        let output = tool.run(harness, &env, "go build -o app . && ./app").await;
        assert_eq!(output, "heron\n");
        let cache = harness.path("state/caches/workspace/go/pkg/mod/example.com");
        assert!(is_filled(&cache));
        let swept = supervisor::sweep_caches(&harness.path("state/caches"), 0).unwrap();
        assert!(!cache.exists(), "{swept:?}");
    });
}

fn caches_of_read_only_run_are_removed() {
    for namespaces in [true, false] {
        Harness::run_test(async |harness: &Harness| {
            let policy = CallPolicy { requirement: Requirement::BestEffort, ..Preset::Observe.into() };
            let caches = Some(Caches::new(None, None, |_| false));
            let confinement = Confinement { namespaces, caches, ..harness.confinement(policy) };
            let script =
                "mkdir -p $CARGO_HOME/x && chmod 555 $CARGO_HOME && echo $npm_config_cache && echo made";
            let plan = RunPlan { policy: Policy::Confined(Box::new(confinement)), ..harness.shell(script) };
            let report = harness.run(&plan).await;
            assert!(harness.output().ends_with("made\n"), "{}{report:?}", harness.error());
            let left: Vec<_> =
                fs::read_dir(harness.spool()).unwrap().flatten().map(|entry| entry.path()).collect();
            assert!(!left.iter().any(|path| path.ends_with("tmp")), "{left:?}");
            let named = harness.output().lines().next().unwrap().to_owned();
            assert!(!Path::new(&named).exists(), "{named}");
        });
    }
}
