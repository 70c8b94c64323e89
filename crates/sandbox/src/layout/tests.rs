use super::*;
use model::{Bounds, Network, PolicyRoot, Preset, Requirement};

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
        state: None,
        home: None,
    }
}

const AROUND: Around<'static> = Around {
    own_programs: &[],
    xdg_config: None,
    needed: &[],
    home: None,
    state: None,
    absent: None,
    others: &[],
    tier: Tier::Namespaces,
    repositories: &NestedRepositories::NONE,
    copies: None,
};

fn laid_out(root: &Path) -> Layout {
    Layout::of(&confinement(root), AROUND).unwrap()
}

fn stage() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    for name in ["ws", "state/jobs/1"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    (folder, root)
}

#[test]
fn a_protected_path_and_every_folder_above_it_is_held_in_its_place() {
    let (_folder, root) = stage();
    fs::create_dir_all(root.join("ws/.git/hooks")).unwrap();
    fs::write(root.join("ws/.git/config"), "").unwrap();
    let layout = laid_out(&root);
    let has = |path: &str, mount| layout.mounts.contains(&(root.join(path), mount));
    assert!(has("ws", Mount::Write) && has("ws/.git", Mount::Write));
    assert!(has("ws/.git/hooks", Mount::Read) && has("ws/.git/config", Mount::Read));
}

#[test]
fn missing_protected_path_is_left_to_quarantine() {
    let (_folder, root) = stage();
    let mut expected = Quarantine::default();
    expected.add(root.join("ws/HEAD"), QuarantineTime::AtEnd);
    expected.add(root.join("ws/.git"), QuarantineTime::AtEndUnlessInert);
    expected.add(root.join("ws/.mcp.json"), QuarantineTime::AtEnd);
    assert_eq!(laid_out(&root).quarantine.below(&root), expected);
    fs::create_dir(root.join("ws/.git")).unwrap();
    let directories = laid_out(&root).quarantine;
    assert_eq!(directories.watched_directories(), [root.join("ws/.git")]);
    let names: Vec<_> =
        fs::read_dir(root.join("ws")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [".git"]);
}

#[test]
fn repository_above_is_writable_with_namespaces_only() {
    let (_folder, root) = stage();
    for name in [".git/objects", ".git/refs", ".git/hooks"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    fs::write(root.join(".git/HEAD"), "").unwrap();
    let layout = laid_out(&root);
    assert!(layout.write.contains(&root.join(".git")) && layout.git_read_only.is_none());
    assert!(layout.mounts.contains(&(root.join(".git/hooks"), Mount::Read)));
    assert!(layout.quarantine.watched_directories().contains(&root.join(".git").as_path()));
    let rules = Layout::of(&confinement(&root), Around { tier: Tier::Rules, ..AROUND }).unwrap();
    assert!(!rules.write.contains(&root.join(".git")));
    assert!(rules.git_read_only.unwrap().contains("bubblewrap"));
    let home = Layout::of(&confinement(&root), Around { home: Some(&root), ..AROUND }).unwrap();
    assert!(home.git_read_only.unwrap().contains("home"));
    assert!(!home.write.contains(&root.join(".git")));
}

#[test]
fn what_must_be_seen_in_something_hidden_comes_after_it() {
    let (_folder, root) = stage();
    let mut policy = confinement(&root);
    policy.roots.push(PolicyRoot::read_only(&root));
    let layout = Layout::of(&policy, AROUND).unwrap();
    let place = |path: &str| layout.mounts.iter().position(|(at, _)| *at == root.join(path)).unwrap();
    assert!(place("state") < place("state/jobs/1"));
}

#[test]
fn a_workspace_that_leads_elsewhere_is_refused() {
    let (_folder, root) = stage();
    fs::create_dir(root.join("state/secret")).unwrap();
    for (name, to) in [("root", Path::new("/")), ("hidden", &root.join("state/secret"))] {
        let link = root.join("ws").join(name);
        std::os::unix::fs::symlink(to, &link).unwrap();
        for add in [PolicyRoot::writable(&link), PolicyRoot::read_only(&link)] {
            let mut policy = confinement(&root);
            let is_read = add.access == RootAccess::Read;
            policy.roots.push(add);
            let refused = Layout::of(&policy, AROUND).is_err();
            // To read everything is no more than it can anyhow; to read what is hidden is.
            assert_eq!(refused, !is_read || name == "hidden", "{name}");
        }
    }
}

#[test]
fn a_socket_in_what_is_read_is_covered_also_within_a_workspace_and_one_of_the_workspace_is_not() {
    let (_folder, root) = stage();
    fs::create_dir(root.join("ws/read")).unwrap();
    let bound = |path: &str| std::os::unix::net::UnixListener::bind(root.join(path)).unwrap();
    let _listeners = (bound("ws/own"), bound("ws/read/other"));
    let mut policy = Confinement { unix_sockets: true, ..confinement(&root) };
    policy.roots.push(PolicyRoot::read_only(root.join("ws/read")));
    let layout = Layout::of(&policy, AROUND).unwrap();
    let is_covered = |path: &str| layout.mounts.contains(&(root.join(path), Mount::HideFile));
    assert!(is_covered("ws/read/other") && !is_covered("ws/own"), "{:?}", layout.mounts);
}

#[test]
fn socket_in_a_directory_of_another_user_is_not_covered() {
    let (_folder, root) = stage();
    let theirs = root.join("theirs");
    fs::create_dir(&theirs).unwrap();
    assert!(is_reachable(&theirs.join("s")));
    // Its owner without the right to search it stands for another user, which only root could make it belong to.
    fs::set_permissions(&theirs, std::os::unix::fs::PermissionsExt::from_mode(0o677)).unwrap();
    assert!(!is_reachable(&theirs.join("s")));
    fs::set_permissions(&theirs, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
}

#[test]
fn a_link_where_something_is_protected_is_told_and_not_trusted() {
    let (_folder, root) = stage();
    fs::create_dir(root.join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(root.join("elsewhere"), root.join("ws/.git")).unwrap();
    let layout = laid_out(&root);
    assert!(layout.unprotected.contains(&root.join("ws/.git")));
}
