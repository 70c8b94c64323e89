//! A race of the real claude, codex and gemini in one repository.
//!
//! The model is a scripted API on loopback that does what the prompt says.

use std::process::Command;

use model_api::cli::Agent;
use model_api::{ModelApi, Script};
use serde_json::Value;

use crate::harness::{newest, stdout};
use crate::shop::{Shop, assert_only_branches_are_new, contents};

const AGENTS: [Agent; 3] = [Agent::Claude, Agent::Codex, Agent::Gemini];

/// Returns the variables with which the agents find their programs and use the model; `None` if one is not installed.
fn environment(shop: &Shop, api: &ModelApi) -> Option<Vec<(String, String)>> {
    let (person, bin) = (shop.harness.scratch().join("person"), shop.harness.scratch().join("bin"));
    std::fs::create_dir(&person).unwrap();
    std::fs::create_dir(&bin).unwrap();
    let mut environment = Vec::new();
    for agent in AGENTS {
        let cli = newest(agent)?;
        std::os::unix::fs::symlink(&cli.program, bin.join(agent.name())).unwrap();
        environment.extend(cli.environment(api, &person).unwrap());
    }
    environment.retain(|(name, _)| name != "PATH");
    environment.push(("PATH".to_owned(), format!("{}:/usr/bin:/bin", bin.display())));
    Some(environment)
}

#[test]
fn real_agents_race_in_one_dirty_repository() {
    let shop = Shop::new();
    shop.harness.configure("pass_env = [\"SCRIPTED_KEY\"]\n");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let api = runtime.block_on(ModelApi::start(Script::obey()));
    let Some(environment) = environment(&shop, &api) else { return };
    let before = contents(&shop.root);
    let prompt = "Work.\n$ echo work >> a.txt\n$ git add a.txt\n$ git commit -q -m work";
    let mut race: Command = shop.harness.command(&[
        "race",
        prompt,
        "--with",
        "claude,codex,gemini",
        "--verify",
        "git log -1 --format=%s | grep -qx work",
        "--json",
    ]);
    let output = race.current_dir(&shop.root).envs(environment).output().unwrap();
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{output:?}"));
    assert_only_branches_are_new(&before, &shop.root);
    shop.git(&["fsck", "--strict"]);
    for contender in report["contenders"].as_array().unwrap() {
        assert_eq!(contender["status"], "completed", "{contender}");
        assert_eq!(contender["verified"]["state"], "passed", "{contender}");
        let branch =
            contender["changes"]["checkout"]["branch"].as_str().unwrap_or_else(|| panic!("{contender}"));
        assert!(
            shop.git(&["log", "--format=%s", branch]).lines().any(|subject| subject == "work"),
            "{branch}"
        );
        assert!(shop.git(&["show", &format!("{branch}:a.txt")]).ends_with("9\nwork\n"), "{branch}");
        assert_eq!(shop.git(&["show", &format!("{branch}:untracked.txt")]), "untracked\n");
    }
    let codex = report["contenders"][1]["job_id"].as_str().unwrap();
    shop.succeed(&["keep", "--yes", codex]);
    assert_eq!(shop.status(), " M a.txt\n M src/b.txt\n?? untracked.txt\n");
    assert_eq!((shop.checkouts(), shop.git(&["branch", "--list", "switchboard/*"])), (0, String::new()));
}
