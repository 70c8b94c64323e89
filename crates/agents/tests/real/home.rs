//! The view of a sandboxed agent on the home directory.

use std::fs;
use std::process::Command;

use model::{CallPolicy, CallSpec, Policy};
use model_api::{ModelApi, ModelTurn, Script};

use crate::harness::Harness;
use crate::pinned::Pinned;

crate::scenarios! {
    commit_has_user_identity_without_credentials, not for Gemini: "it gives git no settings of the user";
}

/// With and without namespaces. The home directory also contains a token that is on no list of secrets.
fn commit_has_user_identity_without_credentials(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let home = harness.directory().join("home");
        fs::create_dir_all(&home).unwrap();
        let config =
            "[user]\n\tname = Ana\n\temail = ana@example.com\n[credential]\n\thelper = secret-helper\n";
        fs::write(home.join(".gitconfig"), config).unwrap();
        fs::write(home.join(".some-token"), "secret-token").unwrap();
        let git = Command::new("git").args(["init", "-q"]).current_dir(harness.workspace()).status();
        assert!(git.unwrap().success());
        for namespaces in [true, false] {
            let command = format!(
                "git commit -q --allow-empty -m own; git log -1 --format='%an <%ae>' > seen; \
                 cat {0}/.some-token {0}/.gitconfig ~/.some-token ~/.gitconfig >> seen; git config --list >> seen; true",
                home.display()
            );
            let api =
                ModelApi::start(Script::turns(vec![ModelTurn::shell(command), ModelTurn::text("Done.")]))
                    .await;
            let spec = CallSpec { policy: CallPolicy::default(), ..harness.spec("Commit.") };
            let started = harness.place_with(&api, &spec, |plan| {
                if let Policy::Confined(confinement) = &mut plan.policy {
                    confinement.namespaces = namespaces;
                }
            });
            let done = started.await.end(None).await;
            assert_eq!(done.succeeded().text, "Done.", "{done}");
            let seen = fs::read_to_string(harness.workspace().join("seen")).unwrap();
            assert!(seen.starts_with("Ana <ana@example.com>\n"), "namespaces {namespaces}: {seen}\n{done}");
            assert!(!seen.contains("secret"), "namespaces {namespaces}: {seen}");
        }
    });
}
