//! What a run may use up: counted, bounded and ended as one where a cgroup is delegated, and told where none is.

use std::fs;
use std::path::{Path, PathBuf};

use model::{
    Bounds, CallPolicy, End, Enforcement, Exit, Policy, Preset, Requirement, RunPlan, RunReport,
    SafeguardName,
};
use sandbox::DelegatedCgroup;

use crate::scene::{Scene, confined, processes_below};

crate::tests![
    a_run_has_a_cgroup_of_its_own_that_goes_with_it,
    what_a_killed_supervisor_has_left_is_taken_away_by_the_next,
    memory_beyond_its_bound_is_not_given,
    processes_beyond_their_bound_are_not_started_even_by_root,
    where_memory_cannot_be_bounded_that_is_told_and_who_requires_it_runs_nothing,
];

/// What is delegated here, if it is what a test needs; says so when it is not.
fn delegated(needs: fn(&DelegatedCgroup) -> bool, what: &str) -> Option<DelegatedCgroup> {
    let found = DelegatedCgroup::find().filter(needs);
    if found.is_none() {
        println!("SKIPPED: no cgroup (version 2) is delegated here {what}");
    }
    found
}

fn bounded(scene: &Scene, requirement: Requirement, bounds: Bounds, script: &str) -> RunPlan {
    let policy = CallPolicy { requirement, bounds, ..Preset::Workspace.into() };
    RunPlan { policy: Policy::Confined(Box::new(scene.confinement(policy))), ..scene.shell(script) }
}

/// With a bound that only a cgroup could hold.
fn in_a_cgroup(scene: &Scene, script: &str) -> RunPlan {
    let bounds = Bounds { memory_bytes: Some(1 << 30), ..Bounds::default() };
    bounded(scene, Requirement::BestEffort, bounds, script)
}

fn held(report: &RunReport, name: SafeguardName) -> (Enforcement, &str) {
    let found = confined(report).safeguards.iter().find(|safeguard| safeguard.name == name).unwrap();
    (found.enforcement, &found.why)
}

/// The folder of the cgroup that a process is in.
fn cgroup_of(pid: i32) -> PathBuf {
    let list = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let below = list.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
    let bases = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
    let base = bases.into_iter().find(|base| base.join("cgroup.controllers").exists()).unwrap();
    base.join(below)
}

fn a_run_has_a_cgroup_of_its_own_that_goes_with_it() {
    Scene::play(async |scene: &Scene| {
        if delegated(|_| true, "at all").is_none() {
            return;
        }
        let run = scene.start(&in_a_cgroup(scene, "(sleep 1000 &); echo up; sleep 1000")).await;
        scene.says("up").await;
        let supervisor = run.supervisor().unwrap().pid;
        let all = processes_below(supervisor);
        let own = cgroup_of(all[0]);
        assert!(own.file_name().unwrap().to_str().unwrap().starts_with("switchboard-"), "{}", own.display());
        assert!(all.len() > 3 && all.iter().all(|pid| cgroup_of(*pid) == own), "{all:?}");
        assert_ne!(cgroup_of(supervisor), own);
        run.stop().unwrap();
        let report = run.wait().await.unwrap();
        assert_eq!(report.end, End::Stopped);
        assert!(!own.exists(), "{} is left", own.display());
    });
}

fn what_a_killed_supervisor_has_left_is_taken_away_by_the_next() {
    Scene::play(async |scene: &Scene| {
        if delegated(|_| true, "at all").is_none() {
            return;
        }
        let run = scene.start(&in_a_cgroup(scene, "echo up; sleep 1000")).await;
        scene.says("up").await;
        let supervisor = run.supervisor().unwrap().pid;
        let left = cgroup_of(processes_below(supervisor)[0]);
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(supervisor).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
        run.wait().await.unwrap();
        fs::remove_dir_all(scene.spool()).unwrap();
        scene.run(&in_a_cgroup(scene, "true")).await;
        assert!(!left.exists(), "{} is left", left.display());
    });
}

fn memory_beyond_its_bound_is_not_given() {
    Scene::play(async |scene: &Scene| {
        if delegated(|found| found.memory, "that counts memory").is_none() {
            return;
        }
        let bounds = Bounds { memory_bytes: Some(64 << 20), ..Bounds::default() };
        // Keeps all of it: there is no end of a line.
        let plan =
            bounded(scene, Requirement::Require, bounds, "head -c 400000000 /dev/zero | tail -n 1 | wc -c");
        let report = scene.run(&plan).await;
        assert_eq!(held(&report, SafeguardName::Memory).0, Enforcement::Full);
        assert!(!scene.output().contains("400000000"), "{}", scene.output());
        assert_ne!(report.exit, Some(Exit::Code(0)), "{}", scene.error());
    });
}

fn processes_beyond_their_bound_are_not_started_even_by_root() {
    Scene::play(async |scene: &Scene| {
        if delegated(|found| found.processes, "that counts processes").is_none() {
            return;
        }
        let bounds = Bounds { processes: Some(20), ..Bounds::default() };
        let script = "i=0; while [ $i -lt 60 ]; do sleep 100 & i=$((i+1)); done; echo all";
        let report = scene.run(&bounded(scene, Requirement::Require, bounds, script)).await;
        assert_eq!(held(&report, SafeguardName::ProcessCount).0, Enforcement::Full);
        assert!(!scene.output().contains("all"), "{}", scene.output());
    });
}

fn where_memory_cannot_be_bounded_that_is_told_and_who_requires_it_runs_nothing() {
    Scene::play(async |scene: &Scene| {
        if DelegatedCgroup::find().is_some_and(|found| found.memory) {
            println!("SKIPPED: memory can be bounded here");
            return;
        }
        let bounds = Bounds { memory_bytes: Some(64 << 20), ..Bounds::default() };
        let report = scene.run(&bounded(scene, Requirement::BestEffort, bounds, "true")).await;
        let (hold, why) = held(&report, SafeguardName::Memory);
        assert!(hold == Enforcement::None && why.contains("cgroup"), "{why}");
        fs::remove_dir_all(scene.spool()).unwrap();
        let report = scene.run(&bounded(scene, Requirement::Require, bounds, "true")).await;
        let End::NotStarted(failure) = &report.end else { panic!("{report:?}") };
        assert!(failure.message.contains("cgroup (version 2) that counts memory"), "{failure}");
    });
}
