//! Repositories that attack the preparation of a checkout, and agents that rewrite the git directory of theirs.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use changes::{ChangesError, GitRepository, create_checkout, remove_checkout};

use crate::checkout::{Checkout, program};
use crate::file_tree::{assert_same_tree, read_exact};
use crate::fixture::{LIMIT, Project, git_in};
use crate::hostile::{hostile_config, plant_hooks, plant_program};

/// Asserts that no file below a directory contains a text.
#[track_caller]
fn assert_nowhere(directory: &Path, text: &str) {
    let tree = read_exact(directory, |_| false);
    let found: Vec<&PathBuf> = tree
        .iter()
        .filter(|(_, node)| node.content.windows(text.len()).any(|part| part == text.as_bytes()))
        .map(|(path, _)| path)
        .collect();
    assert!(found.is_empty(), "{found:?}");
}

/// A repository outside of the checkout, with a commit that the job must not reach.
fn create_victim(root: &Path) -> (PathBuf, String) {
    let victim = root.join("victim");
    fs::create_dir(&victim).unwrap();
    git_in(&victim, ["init", "-q"]);
    fs::write(victim.join("key"), "victim's secret\n").unwrap();
    git_in(&victim, ["add", "-A"]);
    git_in(&victim, ["commit", "-q", "-m", "secret"]);
    let head = git_in(&victim, ["rev-parse", "HEAD"]);
    (victim, head)
}

/// Asserts that publishing, applying and removing work or fail without a trace of the victim, which stays as it is.
#[track_caller]
fn assert_harmless(checkout: &Checkout, victim: &Path, secret: &str) {
    let before = read_exact(victim, |_| false);
    let published = checkout.publish();
    if let Ok(Some(commit)) = &published {
        let user = &checkout.user;
        assert_eq!(user.git(["show", &format!("{commit}:a.txt")]), "job", "{published:?}");
        assert_ne!(commit, secret);
    }
    let found = Command::new("git")
        .current_dir(&checkout.user.worktree)
        .args(["cat-file", "-e", secret])
        .status()
        .unwrap();
    assert!(!found.success(), "an object of the victim was copied: {published:?}");
    checkout.apply(false).unwrap();
    assert_eq!(checkout.user.read("a.txt"), "job\n");
    remove_checkout(&checkout.job.worktree).unwrap();
    assert_same_tree(&before, &read_exact(victim, |_| false), "a checkout");
    checkout.user.git(["fsck", "--strict"]);
    assert!(!checkout.user.root.join("marker").exists(), "a planted program ran");
}

/// Lets an agent rewrite its git directory after it has changed a file.
#[track_caller]
fn attack(rewrite: impl FnOnce(&Project, &Path, &str)) {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]));
    let (victim, secret) = create_victim(&checkout.user.root);
    checkout.record_job(|| {
        checkout.job.write("a.txt", "job\n");
        rewrite(&checkout.job, &victim, &secret);
    });
    assert_harmless(&checkout, &victim, &secret);
}

#[test]
fn alternates_to_another_repository_are_not_followed() {
    attack(|job, victim, secret| {
        let objects = victim.join(".git/objects");
        fs::write(job.path(".git/objects/info/alternates"), objects.as_os_str().as_encoded_bytes()).unwrap();
        job.write(".git/HEAD", format!("{secret}\n"));
    });
}

#[test]
fn linked_objects_of_another_repository_are_not_followed() {
    attack(|job, victim, secret| {
        job.write(".git/HEAD", format!("{secret}\n"));
        fs::remove_dir_all(job.path(".git/objects")).unwrap();
        symlink(victim.join(".git/objects"), job.path(".git/objects")).unwrap();
    });
    attack(|job, victim, secret| {
        job.write(".git/HEAD", format!("{secret}\n"));
        for entry in fs::read_dir(victim.join(".git/objects")).unwrap() {
            let path = entry.unwrap().path();
            let link = job.path(".git/objects").join(path.file_name().unwrap());
            if !link.exists() {
                symlink(&path, link).unwrap();
            }
        }
    });
    attack(|job, victim, secret| {
        git_in(victim, ["gc", "-q"]);
        job.write(".git/HEAD", format!("{secret}\n"));
        for entry in fs::read_dir(victim.join(".git/objects/pack")).unwrap() {
            let path = entry.unwrap().path();
            symlink(&path, job.path(".git/objects/pack").join(path.file_name().unwrap())).unwrap();
        }
    });
}

#[test]
fn linked_refs_of_another_repository_are_not_followed() {
    for name in ["refs/heads", "refs", "HEAD"] {
        attack(|job, victim, _| {
            let path = job.path(".git").join(name);
            let _ = fs::remove_dir_all(&path);
            let _ = fs::remove_file(&path);
            symlink(victim.join(".git").join(name), path).unwrap();
            let objects = victim.join(".git/objects");
            let alternates = job.path(".git/objects/info/alternates");
            fs::write(alternates, objects.as_os_str().as_encoded_bytes()).unwrap();
        });
    }
}

#[test]
fn git_file_to_another_repository_is_not_followed() {
    attack(|job, victim, _| {
        fs::remove_dir_all(job.path(".git")).unwrap();
        job.write(".git", format!("gitdir: {}\n", victim.join(".git").display()));
    });
    attack(|job, victim, _| {
        fs::remove_dir_all(job.path(".git")).unwrap();
        symlink(victim.join(".git"), job.path(".git")).unwrap();
    });
    attack(|job, victim, _| {
        job.write(".git/commondir", format!("{}\n", victim.join(".git").display()));
    });
    attack(|job, _, _| fs::remove_dir_all(job.path(".git")).unwrap());
}

#[test]
fn replaced_git_directory_is_no_checkout() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    let (victim, _) = create_victim(&checkout.user.root);
    assert!(GitRepository::find_checkout(&checkout.job.worktree).unwrap().is_some());
    fs::rename(checkout.job.path(".git"), checkout.job.root.join("old.git")).unwrap();
    checkout.job.write(".git", format!("gitdir: {}\n", victim.join(".git").display()));
    assert!(GitRepository::find_checkout(&checkout.job.worktree).unwrap().is_none());
    checkout.job.remove(".git");
    symlink(victim.join(".git"), checkout.job.path(".git")).unwrap();
    assert!(GitRepository::find_checkout(&checkout.job.worktree).unwrap().is_none());
}

#[test]
fn odd_refs_are_no_commits() {
    for (name, content) in [
        ("HEAD", "ref: refs/../../../victim/.git/HEAD\n"),
        ("HEAD", "ref: refs/heads/../../../../victim/.git/HEAD\n"),
        ("HEAD", "ref: refs/heads/loop\n"),
        ("HEAD", "--upload-pack=touch\n"),
        ("HEAD", "\0\n"),
    ] {
        attack(|job, _, _| {
            job.write(".git/refs/heads/loop", "ref: refs/heads/loop\n");
            job.write(Path::new(".git").join(name), content);
        });
    }
    attack(|job, _, secret| {
        job.write(".git/HEAD", "ref: refs/heads/odd\n");
        let packed = format!("# pack-refs\n^{secret}\n--exec refs/heads/odd\n{secret} refs/heads/odd\n\n \n");
        job.write(".git/packed-refs", packed);
    });
}

#[test]
fn commands_of_the_checkout_do_not_run() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]));
    let (victim, secret) = create_victim(&checkout.user.root);
    plant_program(&checkout.user);
    let program = checkout.user.root.join("program");
    checkout.record_job(|| {
        let job = &checkout.job;
        job.write("a.txt", "job\n");
        job.write(".gitattributes", "*.md diff=evil merge=evil\n");
        job.write("c.md", "c\n");
        job.commit("by the agent");
        let worktree = format!("[core]\n\tworktree = {}\n", victim.display());
        let config = hostile_config(&program, &victim.join("key")) + &worktree;
        let old = fs::read_to_string(job.path(".git/config")).unwrap();
        fs::write(job.path(".git/config"), old + &config).unwrap();
        plant_hooks(&checkout.user, &job.path(".git/hooks"));
        fs::create_dir(job.path(".git/reftable")).unwrap();
        fs::write(job.path(".git/info/grafts"), format!("{secret}\n")).unwrap();
    });
    assert_harmless(&checkout, &victim, &secret);
}

#[test]
fn commands_of_the_user_do_not_run_for_a_checkout() {
    let project = Project::new(&[
        (".gitattributes", "*.txt diff=evil merge=evil\n*.bin filter=evil\n"),
        ("a.txt", "a\n"),
        ("b.bin", "b\n"),
    ]);
    plant_program(&project);
    let (victim, secret) = create_victim(&project.root);
    let config = fs::read_to_string(project.path(".git/config")).unwrap();
    let hostile = hostile_config(&project.root.join("program"), Path::new("/nonexistent"));
    let worktree = format!("[core]\n\tworktree = {}\n", victim.display());
    // A setting of the repository format would make the user's own git fail.
    let hostile = hostile.replace("[extensions]\n\tpartialClone = origin\n", "");
    fs::write(project.path(".git/config"), config.clone() + &hostile + &worktree).unwrap();
    plant_hooks(&project, &project.path(".git/hooks"));
    let checkout = Checkout::new(project);
    checkout.record_job(|| checkout.job.write("a.txt", "job\n"));
    checkout.publish().unwrap().unwrap();
    let stored = fs::read_to_string(checkout.job.path(".git/config")).unwrap();
    assert!(!stored.contains("program") && !stored.contains("victim"), "{stored}");
    assert!(!checkout.user.root.join("marker").exists());
    fs::write(checkout.user.path(".git/config"), config).unwrap();
    assert_harmless(&checkout, &victim, &secret);
}

#[test]
fn worktreeinclude_reaches_nothing_outside() {
    let project = Project::new(&[("d/a.txt", "a\n")]);
    fs::write(project.root.join("key"), "the secret").unwrap();
    project.write(".gitignore", "linked\n*.key\n");
    project.link("../key", "linked");
    project.write(".worktreeinclude", "../key\n/../key\nlinked\n**/key\n../**\n.git/**\n");
    let checkout = Checkout::new(project);
    assert_nowhere(&checkout.job.worktree, "the secret");
    assert_eq!(fs::read_link(checkout.job.path("linked")).unwrap(), Path::new("../key"));
}

#[test]
fn linked_worktreeinclude_is_not_read() {
    let project = Project::new(&[("a.txt", "a\n")]);
    fs::write(project.root.join("key"), "the secret\n").unwrap();
    project.link("../key", ".worktreeinclude");
    project.write(".git/info/exclude", "");
    let checkout = Checkout::new(project);
    assert_nowhere(&checkout.job.worktree, "the secret");
}

#[test]
fn links_in_the_git_directory_of_the_user_leak_nothing() {
    for name in ["info/exclude", "info/attributes", "info/sparse-checkout", "packed-refs", "shallow", "HEAD"]
    {
        let project = Project::new(&[("a.txt", "a\n")]);
        fs::write(project.root.join("key"), "the secret\n").unwrap();
        let path = project.path(".git").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        symlink(project.root.join("key"), path).unwrap();
        let directory = project.root.join("checkout");
        let _ = create_checkout(&project.repository(), &directory, program(), LIMIT);
        assert_nowhere(&directory, "the secret");
    }
}

#[test]
fn directory_replaced_by_a_link_is_left_out() {
    let project = Project::new(&[("d/key", "public\n"), ("a.txt", "a\n")]);
    fs::create_dir(project.root.join("outside")).unwrap();
    fs::write(project.root.join("outside/key"), "the secret").unwrap();
    fs::remove_dir_all(project.path("d")).unwrap();
    project.link("../outside", "d");
    let checkout = Checkout::new(project);
    assert_nowhere(&checkout.job.worktree, "the secret");
}

#[test]
fn index_with_paths_out_of_the_worktree_is_harmless() {
    // Git refuses to create such entries, but reads them.
    for (mode, from, to) in [
        ("160000", "xx/yy", "../yy"),
        ("160000", "x/zzzz", "/tmp/y"),
        ("100644", "xxx/key", "../key1"),
        ("100644", "xxxx/hooks", ".git/hooks"),
        ("100644", "xxxx/hooks", ".GIT/hooks"),
        ("160000", "xxxx/hooks", ".git/hooks"),
    ] {
        let project = Project::new(&[("a.txt", "a\n")]);
        fs::write(project.root.join("key1"), "the secret").unwrap();
        let id = project.head();
        let blob = project.git(["rev-parse", "HEAD:a.txt"]);
        let id = if mode == "160000" { id } else { blob };
        project.git(["update-index", "--add", "--cacheinfo", &format!("{mode},{id},{from}")]);
        let mut index = fs::read(project.path(".git/index")).unwrap();
        let to: String = to.chars().chain("/".repeat(9).chars()).take(from.len()).collect();
        let at = index.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        index[at..at + from.len()].copy_from_slice(to.as_bytes());
        let end = index.len() - 20;
        index[end..].fill(0);
        fs::write(project.path(".git/index"), index).unwrap();
        let before = read_exact(&project.root, |path| path.starts_with("checkouts"));
        let directory = project.root.join("checkouts/a/work");
        let _ = create_checkout(&project.repository(), &directory, program(), LIMIT);
        let after = read_exact(&project.root, |path| path.starts_with("checkouts"));
        assert_same_tree(&before, &after, "the checkout");
        assert_nowhere(&project.root.join("checkouts"), "the secret");
        let made: Vec<_> = fs::read_dir(project.root.join("checkouts/a"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(made, [OsStr::new("work")], "{mode} {to}");
        assert!(!directory.join(".git/hooks").exists(), "{mode} {to}");
    }
}

#[test]
fn hostile_names_are_published_and_applied() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    let names =
        ["-rf", "--", ":(exclude)a.txt", "a\n100644 b\tc", "\"q\\", "~", "$(touch marker)", "refs heads"];
    checkout.record_job(|| {
        for name in names {
            checkout.job.write(Path::new(".").join(name), "job\n");
        }
    });
    let commit = checkout.publish().unwrap().unwrap();
    let listed = checkout.user.git(["ls-tree", "-z", "--name-only", &commit]);
    checkout.apply(false).unwrap();
    for name in names {
        assert!(listed.split('\0').any(|listed| listed == name), "{name}");
        assert_eq!(checkout.user.read(Path::new(".").join(name)), "job\n");
    }
}

#[test]
fn nested_repository_of_the_agent_is_not_read() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    let (victim, secret) = create_victim(&checkout.user.root);
    plant_program(&checkout.user);
    checkout.record_job(|| {
        let job = &checkout.job;
        job.write("a.txt", "job\n");
        job.write("nested/.git", format!("gitdir: {}\n", victim.join(".git").display()));
        job.write("other/.GIT/config", hostile_config(&checkout.user.root.join("program"), &victim));
        job.write(
            ".gitmodules",
            format!("[submodule \"m\"]\n\tpath = m\n\turl = ext::{}\n", victim.display()),
        );
    });
    assert_harmless(&checkout, &victim, &secret);
    assert!(!checkout.user.exists("nested/.git") && !checkout.user.exists("other/.GIT"));
}

#[test]
fn oversized_objects_of_the_agent_are_refused() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    checkout.record_job(|| {
        checkout.job.write("a.txt", "job\n");
        checkout.job.commit("by the agent");
        let name = format!("pack-{}.pack", "0".repeat(40));
        let file = fs::File::create(checkout.job.path(".git/objects/pack").join(name)).unwrap();
        file.set_len(1 << 41).unwrap();
    });
    let refused = checkout.publish();
    assert!(matches!(refused, Err(ChangesError::CommitsTooLarge { .. })), "{refused:?}");
}
