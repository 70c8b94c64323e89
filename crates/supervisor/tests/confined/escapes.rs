//! Escape attempts under each policy and without namespaces, verified from outside.
//!
//! Every attempt has an expected result here. A known gap is listed with its reason, so that both an attempt that is
//! suddenly blocked and one that suddenly succeeds are noticed.

use std::collections::BTreeMap;
use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::{Command, Stdio};

use model::{CallPolicy, Confined, Confinement, Network, Policy, PolicyRoot, Preset, Requirement, RunPlan};

use crate::attempts::{Results, TRIES, TRY, Targets};
use crate::harness::{Harness, confined};

testkit::tests![
    workspace_policy_blocks_escapes,
    observe_policy_blocks_writes,
    disabled_network_blocks_connections,
    gaps_without_namespaces_are_known,
    policy_requiring_namespaces_is_rejected_without_them,
    state_in_workspace_is_rejected_without_namespaces,
    hidden_path_is_hidden_by_every_name,
    workspace_without_repository_does_not_become_one,
];

/// Actions that must work, or the sandbox is useless.
const WORKS: [&str; 4] =
    ["write the workspace", "write a temporary file", "write its own state", "read a program of the system"];

/// The known gaps of the policy `workspace`, with reasons.
const OPEN: &[(&str, &str)] = &[
    ("connect to a port of this machine", "the network is allowed"),
    ("send a datagram", "the network is allowed"),
    (
        "use a hardlink that was there before",
        "it is a file of the workspace; only a scan of link counts would tell",
    ),
    ("read the agent's own login", "the agent needs it; only a proxy that holds the login would change that"),
    ("lead git to another configuration", QUARANTINED),
    ("make a protected file that is missing", QUARANTINED),
    ("make settings of an agent that are missing", QUARANTINED),
];

/// Checked after the run by [`nothing_is_planted`].
const QUARANTINED: &str = "it does not exist, so nothing holds it; it is moved to quarantine";

/// Attempts whose result depends on other runs in the same workspace.
const SHARED: [&str; 7] = [
    "plant a hook",
    "change the configuration of git",
    "rename .git away",
    "replace .git by a link",
    "remove a protected file",
    "rename something over a protected file",
    "start more processes than allowed",
];

/// An attempt that may succeed without namespaces if another one has moved its directory and created a new one at the
/// old path, which then lies in the moved directory: Landlock rules apply to directories and not to paths.
const MOVED: &str = "rename the workspace away";

/// Returns whether an attempt may succeed in a workspace that other runs write to.
pub fn is_open_beside_others(name: &str, namespaces: bool) -> bool {
    let is_in = |list: &[(&str, &str)]| list.iter().any(|(open, _)| *open == name);
    WORKS.contains(&name)
        || SHARED.contains(&name)
        || is_in(OPEN)
        || (!namespaces && (name == MOVED || is_in(OPEN_WITHOUT_NAMESPACES)))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn open_under_workspace() -> BTreeMap<&'static str, &'static str> {
    let mut open: BTreeMap<_, _> = OPEN.iter().copied().collect();
    if is_root() {
        open.insert("start more processes than allowed", "the kernel does not hold root to it");
    }
    open
}

fn workspace_policy_blocks_escapes() {
    Harness::run_test(async |harness: &Harness| {
        let results = run_attacker(harness, harness.confinement(Preset::Workspace)).await;
        expect(&results, &open_under_workspace(), &[]);
    });
}

fn observe_policy_blocks_writes() {
    Harness::run_test(async |harness: &Harness| {
        let results = run_attacker(harness, harness.confinement(Preset::Observe)).await;
        let mut open = open_under_workspace();
        open.remove("use a hardlink that was there before");
        open.retain(|_, why| *why != QUARANTINED);
        expect(&results, &open, &["write the workspace"]);
        assert!(!harness.workspace().join("works").exists());
    });
}

fn disabled_network_blocks_connections() {
    Harness::run_test(async |harness: &Harness| {
        let policy = CallPolicy { network: Network::None, ..Preset::Workspace.into() };
        let results = run_attacker(harness, harness.confinement(policy)).await;
        let mut open = open_under_workspace();
        open.remove("connect to a port of this machine");
        // To its own loopback, where no process listens.
        open.insert("send a datagram", "it reaches its own network namespace and nobody in it");
        expect(&results, &open, &[]);
    });
}

/// The additional gaps without namespaces, with reasons.
const OPEN_WITHOUT_NAMESPACES: &[(&str, &str)] = &[
    ("change the configuration of git", "Landlock cannot protect a path inside a writable directory"),
    ("change the rights of a file outside", "Landlock does not handle it"),
    ("change the times of a file outside", "Landlock does not handle it"),
    ("connect to a socket in the file system", "Landlock handles it from version 9 on"),
    ("plant a hook", "Landlock cannot protect a path inside a writable directory"),
    ("read the arguments of a process outside", "there is no pid namespace"),
    ("remove a protected file", "Landlock cannot protect a path inside a writable directory"),
    ("rename .git away", "Landlock cannot protect a path inside a writable directory"),
    ("rename something over a protected file", "Landlock cannot protect a path inside a writable directory"),
    ("see that a key is there", "Landlock does not handle it"),
    ("start more processes than allowed", "all processes of the user would be counted"),
];

/// As on a machine without bubblewrap: the gaps are known and documented.
fn gaps_without_namespaces_are_known() {
    Harness::run_test(async |harness: &Harness| {
        let policy = CallPolicy { requirement: Requirement::BestEffort, ..Preset::Workspace.into() };
        let confinement = Confinement { namespaces: false, ..harness.confinement(policy) };
        let results = run_attacker(harness, confinement).await;
        for (name, stopped) in &results {
            println!(
                "{} {name}: {}",
                if stopped.is_some() { "held" } else { "open" },
                stopped.as_deref().unwrap_or_default()
            );
        }
        let known = |name: &str| OPEN.iter().chain(OPEN_WITHOUT_NAMESPACES).any(|(open, _)| *open == name);
        let wrong: Vec<_> = results
            .iter()
            .filter(|(name, stopped)| stopped.is_none() && !known(name) && !WORKS.contains(&name.as_str()))
            .collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        let must_be_held = [
            "write a file outside",
            "read a key",
            "kill a process outside",
            "connect to an abstract socket",
            "trace a process outside",
            "use io_uring",
            "make a user namespace",
        ];
        assert!(must_be_held.iter().all(|name| results[*name].is_some()), "{results:?}");
    });
}

/// A policy that requires namespaces runs nothing without them, and reports the missing part.
fn policy_requiring_namespaces_is_rejected_without_them() {
    Harness::run_test(async |harness: &Harness| {
        let confinement = Confinement { namespaces: false, ..harness.confinement(Preset::Workspace) };
        let report = harness.run(&harness.plan(confinement, &[TRY, "{}"])).await;
        let model::End::NotStarted(failure) = &report.end else { panic!("{report:?}") };
        assert_eq!(failure.reason, model::NotStartedReason::NotConfined);
        assert!(failure.message.contains("namespaces, which the policy itself leaves out"), "{failure}");
        assert_eq!(report.sandbox, None);
    });
}

fn state_in_workspace_is_rejected_without_namespaces() {
    Harness::run_test(async |harness: &Harness| {
        let mut confinement = Confinement { namespaces: false, ..harness.confinement(CallPolicy::default()) };
        confinement.roots.push(PolicyRoot::writable(harness.path("state").parent().unwrap()));
        let report = harness.run(&harness.plan(confinement, &[TRY, "{}"])).await;
        let model::End::NotStarted(failure) = &report.end else { panic!("{report:?}") };
        assert!(failure.message.contains("lies in the workspace"), "{failure}");
        assert!(failure.message.contains("install bubblewrap, work in another directory"), "{failure}");
    });
}

/// Set if this test has its own mounts.
const MOUNTED: &str = "SWITCHBOARD_TEST_MOUNTED";

/// The home directory is mounted a second time, and so is a directory of keys: neither makes them accessible.
fn hidden_path_is_hidden_by_every_name() {
    if !is_root() {
        println!("SKIPPED: only root can mount something");
        return;
    }
    if std::env::var_os(MOUNTED).is_none() {
        let name = "hidden_path_is_hidden_by_every_name";
        let this = std::env::current_exe().unwrap();
        let mut again = Command::new("unshare");
        again.args(["--mount", "--propagation=private", "--"]).arg(this).args([
            "--exact",
            name,
            "--nocapture",
        ]);
        let output = again.env(MOUNTED, "yes").output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        if String::from_utf8_lossy(&output.stderr).contains("unshare failed") {
            println!("SKIPPED: no mounts can be made here");
            return;
        }
        assert!(output.status.success() && stdout.contains("1 passed"), "{output:?}");
        return;
    }
    Harness::run_test(async |harness: &Harness| {
        let (homes, keys) = (harness.path("home/outside/again here"), harness.path("home/outside/keys"));
        for (what, at) in [(harness.path("home"), &homes), (harness.path("home/.ssh"), &keys)] {
            fs::create_dir(at).unwrap();
            assert!(Command::new("mount").arg("--bind").arg(what).arg(at).status().unwrap().success());
        }
        assert_eq!(fs::read_to_string(homes.join(".ssh/id")).unwrap(), "as it was");
        fs::write(homes.join("beside"), "secret").unwrap();
        let script = format!(
            "cat '{}/.ssh/id' '{}/id' '{}/beside' '{}'; true",
            homes.display(),
            keys.display(),
            homes.display(),
            harness.path("home/outside/file").display()
        );
        for namespaces in [true, false] {
            let policy = CallPolicy { requirement: Requirement::BestEffort, ..Preset::Workspace.into() };
            let mut confinement = Confinement { namespaces, ..harness.confinement(policy) };
            // The mounts lie in a part of the home directory that is exposed.
            confinement.home.as_mut().unwrap().exposed.push(harness.path("home/outside"));
            let plan = RunPlan { policy: Policy::Confined(Box::new(confinement)), ..harness.shell(&script) };
            let report = harness.run(&plan).await;
            confined(&report);
            assert_eq!(harness.output(), "as it was", "namespaces: {namespaces}; {}", harness.error());
            fs::remove_dir_all(harness.spool()).unwrap();
        }
    });
}

/// Git treats a directory with the right names in it as a repository, and runs commands from its configuration.
fn workspace_without_repository_does_not_become_one() {
    Harness::run_test(async |harness: &Harness| {
        fs::remove_dir_all(harness.workspace().join(".git")).unwrap();
        let mark = harness.workspace().join("mark");
        let config = format!(
            "[core]\nrepositoryformatversion = 0\nbare = false\nworktree = .\nfsmonitor = touch {}; false",
            mark.display()
        );
        let script = format!(
            "mkdir -p objects refs; printf '{config}\\n' > config; rm -f HEAD; echo 'ref: refs/heads/main' > HEAD; true"
        );
        harness.run(&harness.shell(&script)).await;
        assert!(!harness.workspace().join("HEAD").exists(), "{}", harness.error());
        match Command::new("git").arg("status").current_dir(harness.workspace()).output() {
            Ok(_) => assert!(!mark.exists(), "a planted command ran"),
            Err(error) => println!("SKIPPED: there is no git ({error})"),
        }
        // A repository keeps the files that make git run commands.
        for name in ["HEAD", "config"] {
            fs::write(harness.workspace().join(name), "as it was").unwrap();
        }
        fs::remove_dir_all(harness.spool()).unwrap();
        harness
            .run(
                &harness
                    .shell("echo x >> config; mkdir -p hooks; echo x > hooks/pre-commit; echo y > refs/y"),
            )
            .await;
        assert_eq!(fs::read_to_string(harness.workspace().join("config")).unwrap(), "as it was");
        assert!(!harness.workspace().join("hooks").exists() && harness.workspace().join("refs/y").exists());
    });
}

/// Creates everything that can be attacked, runs an attacker, and checks the result.
async fn run_attacker(harness: &Harness, mut confinement: Confinement) -> Results {
    confinement.bounds.file_bytes = Some(1 << 20);
    // The test itself is a process of the same user, and root has no process limit, so it cannot be required there.
    confinement.bounds.processes = (!is_root()).then_some(30);
    let outside = harness.path("home/outside");
    // Visible, so that an attempt fails because it is blocked and not because the target is missing.
    confinement.roots.push(PolicyRoot::read_only(&outside));
    fs::write(harness.path("home/.agent/login"), "token").unwrap();
    fs::write(outside.join("old"), "as it was").unwrap();
    fs::hard_link(outside.join("old"), harness.workspace().join("old-hardlink")).unwrap();
    let mut victim =
        Command::new("/bin/sleep").arg("600").stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let socket = UnixListener::bind(outside.join("s")).unwrap();
    let name = format!("switchboard-test-{}", std::process::id());
    let abstract_socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let datagrams = UdpSocket::bind(("127.0.0.1", port)).unwrap();
    for nonblocking in [
        socket.set_nonblocking(true),
        abstract_socket.set_nonblocking(true),
        listener.set_nonblocking(true),
        datagrams.set_nonblocking(true),
    ] {
        nonblocking.unwrap();
    }
    let targets = Targets {
        workspace: harness.workspace(),
        key: harness.path("home/.ssh/id"),
        sealed: None,
        database: harness.path("state/database"),
        state: harness.path("state"),
        victim: i32::try_from(victim.id()).unwrap(),
        socket: outside.join("s"),
        abstract_socket: name,
        port,
        spool: harness.spool(),
        outside: outside.clone(),
    };
    let (network, namespaces) = (confinement.network.clone(), confinement.namespaces);
    let plan = harness.plan(confinement, &[TRY, &serde_json::to_string(&targets).unwrap()]);
    let report = harness.run(&plan).await;
    let results: Results = serde_json::from_str(&harness.output())
        .unwrap_or_else(|error| panic!("{error}: {report:?} {}", harness.error()));
    assert_eq!(results.len(), TRIES.len());
    confined(&report);

    // Regardless of the attacker's own report.
    let as_it_was =
        |path: &Path| assert_eq!(fs::read_to_string(path).unwrap(), "as it was", "{}", path.display());
    as_it_was(&outside.join("file"));
    as_it_was(&harness.path("home/.ssh/id"));
    as_it_was(&harness.path("state/database"));
    let mut names: Vec<_> = fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["file", "old", "s"]);
    nothing_is_planted(harness, &results, confined(&report), namespaces);
    assert!(victim.try_wait().unwrap().is_none(), "the victim was killed");
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert!(!namespaces || socket.accept().is_err(), "a socket was reached");
    assert!(abstract_socket.accept().is_err(), "an abstract socket was reached");
    if network == Network::None {
        assert!(
            listener.accept().is_err() && datagrams.recv_from(&mut [0; 8]).is_err(),
            "the network was reached"
        );
    }
    results
}

fn nothing_is_planted(harness: &Harness, results: &Results, confined: &Confined, namespaces: bool) {
    if namespaces {
        let config = fs::read_to_string(harness.workspace().join(".git/config")).unwrap();
        assert_eq!(config, "as it was");
        assert_eq!(fs::read_dir(harness.workspace().join(".git/hooks")).unwrap().count(), 0);
    }
    let created = [
        (".mcp.json", "make a protected file that is missing"),
        (".claude", "make settings of an agent that are missing"),
        (".git/commondir", "lead git to another configuration"),
    ];
    for (name, attempt) in created {
        let path = harness.workspace().join(name);
        assert!(fs::symlink_metadata(&path).is_err(), "{name} was planted");
        // Without mounts, `.git` can be replaced as a whole.
        if results[attempt].is_none() && (namespaces || name != ".git/commondir") {
            let entry = confined.quarantined.iter().find(|entry| entry.path == path);
            let moved_to = entry.and_then(|entry| entry.moved_to.as_ref()).expect(name);
            assert!(moved_to.starts_with(harness.spool()) && moved_to.exists(), "{entry:?}");
        }
    }
}

fn expect(results: &Results, open: &BTreeMap<&str, &str>, broken: &[&str]) {
    let mut wrong = Vec::new();
    for (name, stopped) in results {
        let works = WORKS.contains(&name.as_str()) && !broken.contains(&name.as_str());
        let should_work = works || open.contains_key(name.as_str());
        println!(
            "{} {name}: {}",
            if stopped.is_some() { "held" } else { "open" },
            stopped.as_deref().or(open.get(name.as_str()).copied()).unwrap_or_default()
        );
        if stopped.is_none() != should_work {
            wrong.push(format!("{name}: {stopped:?}"));
        }
    }
    assert_eq!(wrong, [""; 0]);
}
