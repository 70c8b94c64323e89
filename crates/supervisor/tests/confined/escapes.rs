//! What an agent that wants out comes to, under each policy and without namespaces, judged from outside.
//!
//! Every try has its expectation here. One that is open is named with its reason, so that a try that is suddenly stopped is
//! noticed as well as one that suddenly works.

use std::collections::BTreeMap;
use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::{Command, Stdio};

use model::{CallPolicy, Confined, Confinement, Network, Policy, PolicyRoot, Preset, Requirement, RunPlan};

use crate::scene::{Scene, confined};
use crate::tries::{Results, TRIES, TRY, Targets};

crate::tests![
    workspace_policy_blocks_escapes,
    observe_policy_blocks_writes,
    disabled_network_blocks_connections,
    gaps_without_namespaces_are_known,
    policy_requiring_namespaces_is_rejected_without_them,
    state_in_workspace_is_rejected_without_namespaces,
    hidden_path_is_hidden_by_every_name,
    workspace_without_repository_does_not_become_one,
];

/// What must work, or the sandbox is no use.
const WORKS: [&str; 4] =
    ["write the workspace", "write a temporary file", "write its own state", "read a program of the system"];

/// What the policy `workspace` leaves open, and why.
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

/// Judged after the run, by [`nothing_is_planted`].
const QUARANTINED: &str = "it does not exist, so nothing holds it; it is moved to quarantine";

/// What other runs in the same workspace take away or add, so that it says nothing about this one.
const SHARED: [&str; 7] = [
    "plant a hook",
    "change the configuration of git",
    "rename .git away",
    "replace .git by a link",
    "remove a protected file",
    "rename something over a protected file",
    "start more processes than allowed",
];

/// A try that may work without namespaces when another one has moved its directory and made a new one at the old path, which then lies in
/// the directory that was moved: the kernel's rules are about directories and not about paths.
const MOVED: &str = "rename the workspace away";

/// Whether a try may work in a workspace that other runs write to.
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
    Scene::play(async |scene: &Scene| {
        let results = let_loose(scene, scene.confinement(Preset::Workspace)).await;
        expect(&results, &open_under_workspace(), &[]);
    });
}

fn observe_policy_blocks_writes() {
    Scene::play(async |scene: &Scene| {
        let results = let_loose(scene, scene.confinement(Preset::Observe)).await;
        let mut open = open_under_workspace();
        open.remove("use a hardlink that was there before");
        open.retain(|_, why| *why != QUARANTINED);
        expect(&results, &open, &["write the workspace"]);
        assert!(!scene.workspace().join("works").exists());
    });
}

fn disabled_network_blocks_connections() {
    Scene::play(async |scene: &Scene| {
        let policy = CallPolicy { network: Network::None, ..Preset::Workspace.into() };
        let results = let_loose(scene, scene.confinement(policy)).await;
        let mut open = open_under_workspace();
        open.remove("connect to a port of this machine");
        // To its own loopback, where nobody listens.
        open.insert("send a datagram", "it reaches its own network namespace and nobody in it");
        expect(&results, &open, &[]);
    });
}

/// What the kernel's rules alone leave open besides, and why.
const OPEN_WITHOUT_NAMESPACES: &[(&str, &str)] = &[
    ("change the configuration of git", "Landlock cannot take away what is in a folder that can be written"),
    ("change the rights of a file outside", "Landlock does not handle it"),
    ("change the times of a file outside", "Landlock does not handle it"),
    ("connect to a socket in the file system", "Landlock handles it from version 9 on"),
    ("plant a hook", "Landlock cannot take away what is in a folder that can be written"),
    ("read the arguments of a process outside", "there is no pid namespace"),
    ("remove a protected file", "Landlock cannot take away what is in a folder that can be written"),
    ("rename .git away", "Landlock cannot take away what is in a folder that can be written"),
    (
        "rename something over a protected file",
        "Landlock cannot take away what is in a folder that can be written",
    ),
    ("see that a key is there", "Landlock does not handle it"),
    ("start more processes than allowed", "all processes of the user would be counted"),
];

/// As on a machine without bubblewrap: what is open then is known, and in the documentation.
fn gaps_without_namespaces_are_known() {
    Scene::play(async |scene: &Scene| {
        let policy = CallPolicy { requirement: Requirement::BestEffort, ..Preset::Workspace.into() };
        let confinement = Confinement { namespaces: false, ..scene.confinement(policy) };
        let results = let_loose(scene, confinement).await;
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

/// A policy that requires namespaces runs nothing without them, and says what is missing.
fn policy_requiring_namespaces_is_rejected_without_them() {
    Scene::play(async |scene: &Scene| {
        let confinement = Confinement { namespaces: false, ..scene.confinement(Preset::Workspace) };
        let report = scene.run(&scene.plan(confinement, &[TRY, "{}"])).await;
        let model::End::NotStarted(failure) = &report.end else { panic!("{report:?}") };
        assert_eq!(failure.reason, model::NotStartedReason::NotConfined);
        assert!(failure.message.contains("namespaces, which the policy itself leaves out"), "{failure}");
        assert_eq!(report.sandbox, None);
    });
}

fn state_in_workspace_is_rejected_without_namespaces() {
    Scene::play(async |scene: &Scene| {
        let mut confinement = Confinement { namespaces: false, ..scene.confinement(CallPolicy::default()) };
        confinement.roots.push(PolicyRoot::writable(scene.path("state").parent().unwrap()));
        let report = scene.run(&scene.plan(confinement, &[TRY, "{}"])).await;
        let model::End::NotStarted(failure) = &report.end else { panic!("{report:?}") };
        assert!(failure.message.contains("lies in the workspace"), "{failure}");
        assert!(failure.message.contains("install bubblewrap, work in another directory"), "{failure}");
    });
}

/// Set where this test has mounts of its own.
const MOUNTED: &str = "SWITCHBOARD_TEST_MOUNTED";

/// The home is mounted a second time, and so is one folder of keys alone: neither is another way to them.
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
        let said = String::from_utf8_lossy(&output.stdout);
        if String::from_utf8_lossy(&output.stderr).contains("unshare failed") {
            println!("SKIPPED: no mounts can be made here");
            return;
        }
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
        return;
    }
    Scene::play(async |scene: &Scene| {
        let (homes, keys) = (scene.path("home/outside/again here"), scene.path("home/outside/keys"));
        for (what, at) in [(scene.path("home"), &homes), (scene.path("home/.ssh"), &keys)] {
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
            scene.path("home/outside/file").display()
        );
        for namespaces in [true, false] {
            let policy = CallPolicy { requirement: Requirement::BestEffort, ..Preset::Workspace.into() };
            let mut confinement = Confinement { namespaces, ..scene.confinement(policy) };
            // The mounts lie in a part of the home directory that is exposed.
            confinement.home.as_mut().unwrap().exposed.push(scene.path("home/outside"));
            let plan = RunPlan { policy: Policy::Confined(Box::new(confinement)), ..scene.shell(&script) };
            let report = scene.run(&plan).await;
            confined(&report);
            assert_eq!(scene.output(), "as it was", "namespaces: {namespaces}; {}", scene.error());
            fs::remove_dir_all(scene.spool()).unwrap();
        }
    });
}

/// git takes a folder with the right names in it for a repository, and runs what the configuration beside them says.
fn workspace_without_repository_does_not_become_one() {
    Scene::play(async |scene: &Scene| {
        fs::remove_dir_all(scene.workspace().join(".git")).unwrap();
        let mark = scene.workspace().join("mark");
        let config = format!(
            "[core]\nrepositoryformatversion = 0\nbare = false\nworktree = .\nfsmonitor = touch {}; false",
            mark.display()
        );
        let script = format!(
            "mkdir -p objects refs; printf '{config}\\n' > config; rm -f HEAD; echo 'ref: refs/heads/main' > HEAD; true"
        );
        scene.run(&scene.shell(&script)).await;
        assert!(!scene.workspace().join("HEAD").exists(), "{}", scene.error());
        match Command::new("git").arg("status").current_dir(scene.workspace()).output() {
            Ok(_) => assert!(!mark.exists(), "a planted command ran"),
            Err(error) => println!("SKIPPED: there is no git ({error})"),
        }
        // One that is a repository itself keeps what makes git run commands.
        for name in ["HEAD", "config"] {
            fs::write(scene.workspace().join(name), "as it was").unwrap();
        }
        fs::remove_dir_all(scene.spool()).unwrap();
        scene
            .run(&scene.shell("echo x >> config; mkdir -p hooks; echo x > hooks/pre-commit; echo y > refs/y"))
            .await;
        assert_eq!(fs::read_to_string(scene.workspace().join("config")).unwrap(), "as it was");
        assert!(!scene.workspace().join("hooks").exists() && scene.workspace().join("refs/y").exists());
    });
}

/// Sets everything up that is to be broken, lets a program loose on it, and looks what has become of it.
async fn let_loose(scene: &Scene, mut confinement: Confinement) -> Results {
    confinement.bounds.file_bytes = Some(1 << 20);
    // The test itself is one process of the same user, and root is held to no number, so it cannot be required there.
    confinement.bounds.processes = (!is_root()).then_some(30);
    let outside = scene.path("home/outside");
    // Seen, so that a try fails by what holds and not because nothing is there.
    confinement.roots.push(PolicyRoot::read_only(&outside));
    fs::write(scene.path("home/.agent/login"), "token").unwrap();
    fs::write(outside.join("old"), "as it was").unwrap();
    fs::hard_link(outside.join("old"), scene.workspace().join("old-hardlink")).unwrap();
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
        workspace: scene.workspace(),
        key: scene.path("home/.ssh/id"),
        sealed: None,
        database: scene.path("state/database"),
        state: scene.path("state"),
        victim: i32::try_from(victim.id()).unwrap(),
        socket: outside.join("s"),
        abstract_socket: name,
        port,
        spool: scene.spool(),
        outside: outside.clone(),
    };
    let (network, namespaces) = (confinement.network.clone(), confinement.namespaces);
    let plan = scene.plan(confinement, &[TRY, &serde_json::to_string(&targets).unwrap()]);
    let report = scene.run(&plan).await;
    let results: Results = serde_json::from_str(&scene.output())
        .unwrap_or_else(|error| panic!("{error}: {report:?} {}", scene.error()));
    assert_eq!(results.len(), TRIES.len());
    confined(&report);

    // Whatever it says of itself.
    let as_it_was =
        |path: &Path| assert_eq!(fs::read_to_string(path).unwrap(), "as it was", "{}", path.display());
    as_it_was(&outside.join("file"));
    as_it_was(&scene.path("home/.ssh/id"));
    as_it_was(&scene.path("state/database"));
    let mut names: Vec<_> = fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["file", "old", "s"]);
    nothing_is_planted(scene, &results, confined(&report), namespaces);
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

fn nothing_is_planted(scene: &Scene, results: &Results, confined: &Confined, namespaces: bool) {
    if namespaces {
        let config = fs::read_to_string(scene.workspace().join(".git/config")).unwrap();
        assert_eq!(config, "as it was");
        assert_eq!(fs::read_dir(scene.workspace().join(".git/hooks")).unwrap().count(), 0);
    }
    let created = [
        (".mcp.json", "make a protected file that is missing"),
        (".claude", "make settings of an agent that are missing"),
        (".git/commondir", "lead git to another configuration"),
    ];
    for (name, attempt) in created {
        let path = scene.workspace().join(name);
        assert!(fs::symlink_metadata(&path).is_err(), "{name} was planted");
        // Without mounts, `.git` can be replaced as a whole.
        if results[attempt].is_none() && (namespaces || name != ".git/commondir") {
            let entry = confined.quarantined.iter().find(|entry| entry.path == path);
            let moved_to = entry.and_then(|entry| entry.moved_to.as_ref()).expect(name);
            assert!(moved_to.starts_with(scene.spool()) && moved_to.exists(), "{entry:?}");
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
