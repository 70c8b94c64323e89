//! The home directory of a confined run: a run can read only its toolchains and the paths that the operator exposes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use model::{CallPolicy, Confinement, HomeView, Policy, Preset, Requirement, RunPlan};

use crate::harness::{Harness, confined};

testkit::tests! {
    home_credentials_are_unreadable,
    home_credentials_are_unreadable_without_namespaces,
    exposed_paths_can_be_read_and_are_reported,
    hidden_path_within_an_exposed_one_stays_hidden,
    toolchains_in_the_home_directory_run,
    login_shell_finds_toolchains_of_the_home_directory,
    secrets_of_the_system_are_hidden_from_root,
    home_directory_that_is_a_link_is_absent,
    home_directory_of_the_user_database_is_absent,
    repository_above_workspace_is_visible_in_home,
    writes_to_the_home_directory_are_refused,
}

/// Names below a home directory that hold credentials, tokens, histories or sessions of the user.
const CREDENTIALS: &[&str] = &[
    ".1password/agent",
    ".Xauthority",
    ".ICEauthority",
    ".android/adbkey",
    ".ansible/vault-pass",
    ".appstoreconnect/key.p8",
    ".aws/credentials",
    ".aws/sso/cache/token.json",
    ".azure/accessTokens.json",
    ".azure/msal_token_cache.json",
    ".bash_history",
    ".boto",
    ".bundle/config",
    ".bunfig.toml",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".cdsapirc",
    ".circleci/cli.yml",
    ".claude.json",
    ".claude/.credentials.json",
    ".codex/auth.json",
    ".cody/token",
    ".composer/auth.json",
    ".conda/token",
    ".condarc",
    ".config/BraveSoftware/Brave-Browser/Login Data",
    ".config/Bitwarden/data.json",
    ".config/Bitwarden CLI/data.json",
    ".config/Code/User/globalStorage/state.vscdb",
    ".config/Cursor/User/globalStorage/state.vscdb",
    ".config/Signal/config.json",
    ".config/Slack/Cookies",
    ".config/argocd/config",
    ".config/chromium/Default/Cookies",
    ".config/composer/auth.json",
    ".config/configstore/firebase-tools.json",
    ".config/containers/auth.json",
    ".config/dbt/profiles.yml",
    ".config/discord/Cookies",
    ".config/doctl/config.yaml",
    ".config/exercism/user.json",
    ".config/filezilla/sitemanager.xml",
    ".config/fly/config.yml",
    ".config/gcloud/credentials.db",
    ".config/gh/hosts.yml",
    ".config/git/credentials",
    ".config/github-copilot/apps.json",
    ".config/github-copilot/hosts.json",
    ".config/glab-cli/config.yml",
    ".config/google-chrome/Default/Login Data",
    ".config/hcloud/cli.toml",
    ".config/heroku/token",
    ".config/hub",
    ".config/keybase/config.json",
    ".config/linode-cli",
    ".config/mise/config.toml",
    ".config/ngrok/ngrok.yml",
    ".config/nix/nix.conf",
    ".config/npm/npmrc",
    ".config/op/config",
    ".config/pip/pip.conf",
    ".config/pnpm/rc",
    ".config/pypoetry/auth.toml",
    ".config/rclone/rclone.conf",
    ".config/sops/age/keys.txt",
    ".config/stripe/config.toml",
    ".config/tea/config.yml",
    ".config/wandb/settings",
    ".config/yarn/token",
    ".databrickscfg",
    ".dbt/profiles.yml",
    ".docker/config.json",
    ".dotnet/corefx/cryptography/key.pfx",
    ".electrum/wallets/default_wallet",
    ".ethereum/keystore/key",
    ".fly/config.yml",
    ".gem/credentials",
    ".gemini/oauth_creds.json",
    ".git-credentials",
    ".gitconfig",
    ".gnupg/secring.gpg",
    ".gradle/gradle.properties",
    ".hex/hex.config",
    ".huggingface/token",
    ".cache/huggingface/token",
    ".influxdbv2/configs",
    ".jira.d/token",
    ".jupyter/jupyter_server_config.json",
    ".kaggle/kaggle.json",
    ".kube/config",
    ".lastpass/key",
    ".lesshst",
    ".local/share/fish/fish_history",
    ".local/share/keyrings/login.keyring",
    ".local/share/kwalletd/kdewallet.kwl",
    ".local/share/opencode/auth.json",
    ".local/share/atuin/key",
    ".m2/settings.xml",
    ".mc/config.json",
    ".mozilla/firefox/logins.json",
    ".my.cnf",
    ".mylogin.cnf",
    ".mysql_history",
    ".netrc",
    ".node_repl_history",
    ".npmrc",
    ".nuget/NuGet/NuGet.Config",
    ".oci/config",
    ".openstack/clouds.yaml",
    ".password-store/a.gpg",
    ".pgpass",
    ".pki/nssdb/key4.db",
    ".psql_history",
    ".pulumi/credentials.json",
    ".pypirc",
    ".python_history",
    ".rediscli_history",
    ".s3cfg",
    ".sbt/credentials",
    ".scaleway/config",
    ".snowsql/config",
    ".sqlite_history",
    ".ssh/id_ed25519",
    ".subversion/auth/svn.simple/x",
    ".terraform.d/credentials.tfrc.json",
    ".terraformrc",
    ".thunderbird/profile/logins.json",
    ".vault-token",
    ".vercel/auth.json",
    ".viminfo",
    ".wakatime.cfg",
    ".wget-hsts",
    ".yarnrc.yml",
    ".zsh_history",
    ".zshenv",
    ".zshrc",
    ".bashrc",
    "Documents/passwords.kdbx",
    "Downloads/key.pem",
    "snap/firefox/common/logins.json",
    ".var/app/x/token",
    "other-project/.env",
];

fn plant_credentials(home: &Path) {
    for name in CREDENTIALS {
        let path = home.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "secret-of-the-user").unwrap();
    }
}

fn plan(harness: &Harness, script: &str, preset: Preset, namespaces: bool) -> RunPlan {
    let requirement = if namespaces { Requirement::Require } else { Requirement::BestEffort };
    let policy = CallPolicy { requirement, ..preset.into() };
    let confinement = Confinement { namespaces, ..harness.confinement(policy) };
    RunPlan { policy: Policy::Confined(Box::new(confinement)), ..harness.shell(script) }
}

fn change_home(plan: &mut RunPlan, change: impl FnOnce(&mut HomeView)) {
    let Policy::Confined(confinement) = &mut plan.policy else { panic!("not confined") };
    change(confinement.home.as_mut().unwrap());
}

fn try_credentials(namespaces: bool) {
    for preset in [Preset::Workspace, Preset::Observe] {
        Harness::run_test(async |harness: &Harness| {
            let home = harness.path("home");
            plant_credentials(&home);
            fs::write(harness.workspace().join("own"), "mine").unwrap();
            // Toolchains beside them are visible and must not expose them.
            for name in [
                ".cargo/bin",
                ".local/bin",
                ".local/share/uv/tools",
                ".rustup",
                ".bun/bin",
                ".dotnet/tools",
                "go/bin",
            ] {
                fs::create_dir_all(home.join(name)).unwrap();
            }
            let script = format!(
                "cat own; grep -rl secret-of-the-user {0} 2> /dev/null; ls -a {0} > /dev/null 2>&1; \
                 for f in $(find {0} -type f 2> /dev/null); do cat $f; done | grep secret; {1}",
                home.display(),
                CREDENTIALS
                    .iter()
                    .map(|name| format!("cat '{}' 2> /dev/null;", home.join(name).display()))
                    .collect::<Vec<_>>()
                    .join(" ")
            );
            let mut plan = plan(harness, &script, preset, namespaces);
            let path = [".cargo/bin", ".local/bin", "go/bin", ".dotnet/tools"]
                .map(|name| home.join(name).display().to_string());
            plan.env.insert("PATH".to_owned(), format!("{}:/usr/bin:/bin", path.join(":")));
            let report = harness.run(&plan).await;
            confined(&report);
            assert_eq!(harness.output(), "mine", "{preset}: {}", harness.error());
        });
    }
}

fn home_credentials_are_unreadable() {
    assert!(CREDENTIALS.len() >= 107);
    try_credentials(true);
}

fn home_credentials_are_unreadable_without_namespaces() {
    try_credentials(false);
}

fn exposed_paths_can_be_read_and_are_reported() {
    for namespaces in [true, false] {
        Harness::run_test(async |harness: &Harness| {
            let home = harness.path("home");
            for name in [".m2/repository", "notes"] {
                fs::create_dir_all(home.join(name)).unwrap();
                fs::write(home.join(name).join("file"), name).unwrap();
            }
            let script = format!(
                "cat {0}/.m2/repository/file; cat {0}/notes/file; echo x > {0}/.m2/new",
                home.display()
            );
            let mut plan = plan(harness, &script, Preset::Workspace, namespaces);
            change_home(&mut plan, |view| view.exposed = vec![home.join(".m2")]);
            let report = harness.run(&plan).await;
            assert_eq!(harness.output(), ".m2/repository", "{}", harness.error());
            // In addition to the toolchains of the user who runs the test.
            let exposed = confined(&report).exposed.iter().filter(|path| path.starts_with(&home));
            assert_eq!(exposed.collect::<Vec<_>>(), [&home.join(".m2")]);
            assert!(!home.join(".m2/new").exists());
        });
    }
}

fn hidden_path_within_an_exposed_one_stays_hidden() {
    for namespaces in [true, false] {
        Harness::run_test(async |harness: &Harness| {
            let config = harness.path("home/.config");
            for name in ["gh/hosts.yml", "tool/settings"] {
                fs::create_dir_all(config.join(name).parent().unwrap()).unwrap();
                fs::write(config.join(name), name).unwrap();
            }
            let script = format!("cat {0}/tool/settings; cat {0}/gh/hosts.yml", config.display());
            let mut plan = plan(harness, &script, Preset::Workspace, namespaces);
            change_home(&mut plan, |view| view.exposed = vec![config.clone()]);
            harness.run(&plan).await;
            assert_eq!(harness.output(), "tool/settings", "{}", harness.error());
        });
    }
}

fn write_program(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Layouts of nvm, pyenv, pipx, cargo, sdkman and a prefix of the user.
fn toolchains_in_the_home_directory_run() {
    for namespaces in [true, false] {
        Harness::run_test(async |harness: &Harness| {
            let home = harness.path("home");
            let at = |name: &str| home.join(name);
            write_program(
                &at(".nvm/versions/node/v22/bin/node-x"),
                "#!/bin/sh\n. $(dirname $0)/../lib/x.sh\n",
            );
            write_program(&at(".nvm/versions/node/v22/lib/x.sh"), "echo nvm\n");
            write_program(&at(".pyenv/versions/3.12/bin/python-x"), "#!/bin/sh\necho pyenv\n");
            write_program(
                &at(".pyenv/shims/python-x"),
                &format!("#!/bin/sh\nexec {}\n", at(".pyenv/versions/3.12/bin/python-x").display()),
            );
            write_program(&at(".local/share/pipx/venvs/black/bin/python"), "#!/bin/sh\necho pipx\n");
            write_program(
                &at(".local/share/pipx/venvs/black/bin/black"),
                &format!("#!{}\n", at(".local/share/pipx/venvs/black/bin/python").display()),
            );
            fs::create_dir_all(at(".local/bin")).unwrap();
            symlink("../share/pipx/venvs/black/bin/black", at(".local/bin/black")).unwrap();
            write_program(&at("odd/place/versions/2/tool"), "#!/bin/sh\necho linked\n");
            symlink(at("odd/place/versions/2/tool"), at(".local/bin/linked")).unwrap();
            write_program(&at(".cargo/bin/cargo-x"), "#!/bin/sh\necho cargo\n");
            write_program(&at("prefix/bin/own"), "#!/bin/sh\n. $(dirname $0)/../lib/own.sh\n");
            write_program(&at("prefix/lib/own.sh"), "echo own\n");
            fs::write(at("prefix/secret"), "secret").unwrap();
            let bins =
                [".nvm/versions/node/v22/bin", ".pyenv/shims", ".local/bin", ".cargo/bin", "prefix/bin"];
            let script = format!(
                "node-x; python-x; black; linked; cargo-x; own; cat {0}/prefix/secret {0}/.npmrc 2> /dev/null",
                home.display()
            );
            let mut plan = plan(harness, &script, Preset::Workspace, namespaces);
            let path: Vec<String> = bins.iter().map(|name| at(name).display().to_string()).collect();
            plan.env.insert("PATH".to_owned(), format!("{}:/usr/bin:/bin", path.join(":")));
            harness.run(&plan).await;
            assert_eq!(harness.output(), "nvm\npyenv\npipx\nlinked\ncargo\nown\n", "{}", harness.error());
        });
    }
}

/// Codex runs every command in a login shell, whose `/etc/profile` resets `PATH`.
fn login_shell_finds_toolchains_of_the_home_directory() {
    for namespaces in [true, false] {
        Harness::run_test(async |harness: &Harness| {
            let bin = harness.path("home/.cargo/bin");
            write_program(&bin.join("cargo-x"), "#!/bin/sh\necho cargo\n");
            fs::write(harness.path("home/.profile"), "echo the profile of the user\n").unwrap();
            let script = "sh -lc cargo-x; bash -lc cargo-x";
            let mut plan = plan(harness, script, Preset::Workspace, namespaces);
            plan.env.insert("PATH".to_owned(), format!("{}:/usr/bin:/bin", bin.display()));
            harness.run(&plan).await;
            assert_eq!(harness.output(), "cargo\ncargo\n", "{}", harness.error());
        });
    }
}

fn secrets_of_the_system_are_hidden_from_root() {
    for namespaces in [true, false] {
        Harness::run_test(async |harness: &Harness| {
            let script = "cat /etc/shadow /etc/gshadow /etc/ssl/private/* 2> /dev/null; wc -l < /etc/passwd";
            harness.run(&plan(harness, script, Preset::Workspace, namespaces)).await;
            let users = fs::read_to_string("/etc/passwd").unwrap().lines().count();
            assert_eq!(harness.output(), format!("{users}\n"), "{}", harness.error());
        });
    }
}

fn home_directory_that_is_a_link_is_absent() {
    if rustix::process::geteuid().is_root() {
        println!("SKIPPED: the link would lie in the home directory of root, which is absent, too");
        return;
    }
    for namespaces in [true, false] {
        Harness::run_test(async |harness: &Harness| {
            plant_credentials(&harness.path("home"));
            write_program(&harness.path("home/.local/bin/tool"), "#!/bin/sh\necho tool\n");
            let link = harness.path("link");
            symlink(harness.path("home"), &link).unwrap();
            let real = harness.path("home");
            let script = format!("tool; cat {}/.npmrc; cat {}/.npmrc", link.display(), real.display());
            let mut plan = plan(harness, &script, Preset::Workspace, namespaces);
            plan.env.insert("HOME".to_owned(), link.display().to_string());
            plan.env.insert("PATH".to_owned(), format!("{}/.local/bin:/usr/bin:/bin", link.display()));
            change_home(&mut plan, |view| view.directory.clone_from(&link));
            harness.run(&plan).await;
            assert_eq!(harness.output(), "tool\n", "{}", harness.error());
        });
    }
}

fn home_directory_of_the_user_database_is_absent() {
    let user = rustix::process::geteuid().as_raw().to_string();
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let home = users.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[2] == user);
    let Some(home) = home.map(|fields| PathBuf::from(fields[5])).filter(|home| home.is_dir()) else {
        println!("SKIPPED: this user has no home directory");
        return;
    };
    let Ok(secret) = tempfile::Builder::new().prefix(".token-").tempfile_in(&home) else {
        println!("SKIPPED: the home directory of this user cannot be written");
        return;
    };
    fs::write(secret.path(), "secret").unwrap();
    Harness::run_test(async |harness: &Harness| {
        for namespaces in [true, false] {
            let script = format!("cat {} 2> /dev/null; echo tried", secret.path().display());
            harness.run(&plan(harness, &script, Preset::Workspace, namespaces)).await;
            assert_eq!(harness.output(), "tried\n", "{}", harness.error());
            fs::remove_dir_all(harness.spool()).unwrap();
        }
    });
}

fn repository_above_workspace_is_visible_in_home() {
    for preset in [Preset::Workspace, Preset::Observe] {
        for namespaces in [true, false] {
            Harness::run_test(async |harness: &Harness| {
                let above = harness.path("home/mono");
                fs::create_dir_all(above.join("web")).unwrap();
                fs::write(above.join("README"), "as it was").unwrap();
                fs::write(harness.path("home/beside"), "secret").unwrap();
                for args in ["init -q", "add -A", "-c user.name=a -c user.email=a@b commit -q -m first"] {
                    let git =
                        Command::new("git").arg("-C").arg(&above).args(args.split(' ')).output().unwrap();
                    assert!(git.status.success(), "{git:?}");
                }
                let script = "git -c safe.directory=* log --format=%s; cat ../README; cat ../../beside";
                let mut plan = plan(harness, script, preset, namespaces);
                plan.cwd = above.join("web");
                let Policy::Confined(confinement) = &mut plan.policy else { panic!() };
                for root in confinement.roots.iter_mut().filter(|root| root.path == harness.workspace()) {
                    root.path = above.join("web");
                }
                harness.run(&plan).await;
                assert_eq!(
                    harness.output(),
                    "first\nas it was",
                    "{preset} {namespaces}: {}",
                    harness.error()
                );
            });
        }
    }
}

fn writes_to_the_home_directory_are_refused() {
    for namespaces in [true, false] {
        Harness::run_test(async |harness: &Harness| {
            let home = harness.path("home");
            let script = format!(
                "echo x > {0}/new || echo refused; mkdir {0}/directory || echo refused",
                home.display()
            );
            harness.run(&plan(harness, &script, Preset::Workspace, namespaces)).await;
            assert_eq!(harness.output(), "refused\nrefused\n", "{}", harness.error());
            assert!(!home.join("new").exists() && !home.join("directory").exists());
        });
    }
}
