use std::fs;

use model::{Bounds, Network, PolicyRoot, Preset, Requirement};

use super::*;
use crate::quarantine::QuarantineTime;

fn confinement(root: &Path) -> Confinement {
    let protected = |name: &str, on_create| Protected { path: root.join("ws").join(name), on_create };
    Confinement {
        preset: Preset::Workspace,
        requirement: Requirement::Require,
        must_hold: Vec::new(),
        roots: vec![PolicyRoot::writable(root.join("ws")), PolicyRoot::read_only(root.join("state/jobs/1"))],
        hidden: vec![root.join("state"), root.join("missing")],
        protected: vec![
            protected(".git/hooks", OnCreate::QuarantineAtOnce),
            protected(".git/config", OnCreate::QuarantineAtOnce),
            protected(".mcp.json", OnCreate::QuarantineAtEnd),
            protected(".git/modules", OnCreate::Keep),
        ],
        network: Network::Full,
        unix_sockets: false,
        namespaces: true,
        bounds: Bounds::default(),
        proofs: None,
        env_if_held: std::collections::BTreeMap::new(),
        caches: None,
        states: Vec::new(),
        home: None,
        checkout: None,
        hosted_program: None,
    }
}

fn build_resolved(confinement: &Confinement, inputs: LayoutInputs<'_>) -> io::Result<Layout> {
    build_layout(confinement, LayoutInputs { hidden: &resolve_hidden(&confinement.hidden)?, ..inputs })
}

const INPUTS: LayoutInputs<'static> = LayoutInputs {
    own_programs: &[],
    xdg_config: None,
    hidden: &[],
    needed: &[],
    home: None,
    states: &[],
    absent: None,
    others: &[],
    tier: Tier::Namespaces,
    repositories: &NestedRepositories::NONE,
    copies: None,
};

fn build(root: &Path) -> Layout {
    build_resolved(&confinement(root), INPUTS).unwrap()
}

fn create_workspace() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    for name in ["ws", "state/jobs/1"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    (directory, root)
}

#[test]
fn protected_path_and_its_parents_are_mounted() {
    let (_directory, root) = create_workspace();
    fs::create_dir_all(root.join("ws/.git/hooks")).unwrap();
    fs::write(root.join("ws/.git/config"), "").unwrap();
    let layout = build(&root);
    let has = |path: &str, mount| layout.mounts.contains(&(root.join(path), mount));
    assert!(has("ws", Mount::Write) && has("ws/.git", Mount::Write));
    assert!(has("ws/.git/hooks", Mount::Read) && has("ws/.git/config", Mount::Read));
}

#[test]
fn missing_protected_path_is_left_to_quarantine() {
    let (_directory, root) = create_workspace();
    let mut expected = Quarantine::default();
    expected.add(root.join("ws/HEAD"), QuarantineTime::AtEnd);
    expected.add(root.join("ws/.git"), QuarantineTime::AtEndUnlessInert);
    expected.add(root.join("ws/.mcp.json"), QuarantineTime::AtEnd);
    assert_eq!(build(&root).quarantine.below(&root), expected);
    fs::create_dir(root.join("ws/.git")).unwrap();
    let directories = build(&root).quarantine;
    assert_eq!(directories.watched_directories(), [root.join("ws/.git")]);
    let names: Vec<_> =
        fs::read_dir(root.join("ws")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [".git"]);
}

fn create_repository(root: &Path) {
    for name in [".git/objects", ".git/refs", ".git/hooks"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    fs::write(root.join(".git/HEAD"), "").unwrap();
}

#[test]
fn repository_above_is_writable_with_namespaces_only() {
    let (_directory, root) = create_workspace();
    create_repository(&root);
    let layout = build(&root);
    assert!(layout.writable.contains(&root.join(".git")) && layout.git_read_only.is_none());
    assert!(layout.mounts.contains(&(root.join(".git/hooks"), Mount::Read)));
    assert!(layout.quarantine.watched_directories().contains(&root.join(".git").as_path()));
    let rules = build_resolved(&confinement(&root), LayoutInputs { tier: Tier::Rules, ..INPUTS }).unwrap();
    assert!(!rules.writable.contains(&root.join(".git")));
    assert!(rules.git_read_only.unwrap().contains("bubblewrap"));
}

#[test]
fn repository_of_the_home_directory_is_read_only() {
    let (_directory, root) = create_workspace();
    create_repository(&root);
    let home = build_resolved(&confinement(&root), LayoutInputs { home: Some(&root), ..INPUTS }).unwrap();
    assert!(home.git_read_only.unwrap().contains("home"));
    assert!(!home.writable.contains(&root.join(".git")));
}

#[test]
fn visible_path_is_mounted_after_hidden_parent() {
    let (_directory, root) = create_workspace();
    let mut policy = confinement(&root);
    policy.roots.push(PolicyRoot::read_only(&root));
    let layout = build_resolved(&policy, INPUTS).unwrap();
    let position = |path: &str| layout.mounts.iter().position(|(at, _)| *at == root.join(path)).unwrap();
    assert!(position("state") < position("state/jobs/1"));
}

#[test]
fn root_that_is_a_link_is_rejected() {
    let (_directory, root) = create_workspace();
    fs::create_dir(root.join("state/secret")).unwrap();
    for (name, to) in [("root", Path::new("/")), ("hidden", &root.join("state/secret"))] {
        let link = root.join("ws").join(name);
        std::os::unix::fs::symlink(to, &link).unwrap();
        for add in [PolicyRoot::writable(&link), PolicyRoot::read_only(&link)] {
            let mut policy = confinement(&root);
            let is_read = add.access == RootAccess::Read;
            policy.roots.push(add);
            let is_rejected = build_resolved(&policy, INPUTS).is_err();
            // Everything but the hidden path is readable anyway.
            assert_eq!(is_rejected, !is_read || name == "hidden", "{name}");
        }
    }
}

#[test]
fn masks_sockets_outside_workspace() {
    let (_directory, root) = create_workspace();
    fs::create_dir(root.join("ws/read")).unwrap();
    let bound = |path: &str| std::os::unix::net::UnixListener::bind(root.join(path)).unwrap();
    let _listeners = (bound("ws/own"), bound("ws/read/other"));
    let mut policy = Confinement { unix_sockets: true, ..confinement(&root) };
    policy.roots.push(PolicyRoot::read_only(root.join("ws/read")));
    let layout = build_resolved(&policy, INPUTS).unwrap();
    let is_masked = |path: &str| layout.mounts.contains(&(root.join(path), Mount::HideSocket));
    assert!(is_masked("ws/read/other") && !is_masked("ws/own"), "{:?}", layout.mounts);
}

#[test]
fn socket_of_another_user_is_not_reachable() {
    let (_directory, root) = create_workspace();
    let theirs = root.join("theirs");
    fs::create_dir(&theirs).unwrap();
    assert!(is_reachable(&theirs.join("s")));
    // A directory that its owner cannot search stands for one of another user, which only root could create.
    fs::set_permissions(&theirs, std::os::unix::fs::PermissionsExt::from_mode(0o677)).unwrap();
    assert!(!is_reachable(&theirs.join("s")));
    fs::set_permissions(&theirs, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
}

#[test]
fn link_instead_of_protected_path_is_unprotected() {
    let (_directory, root) = create_workspace();
    fs::create_dir(root.join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(root.join("elsewhere"), root.join("ws/.git")).unwrap();
    let layout = build(&root);
    assert!(layout.unprotected.contains(&root.join("ws/.git")));
}
