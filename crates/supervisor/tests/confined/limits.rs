//! Resource limits of a run: enforced if a cgroup is delegated, and reported if none is.

use std::fs;
use std::path::{Path, PathBuf};

use model::{
    Bounds, CallPolicy, End, Enforcement, Exit, Policy, Preset, Requirement, RunPlan, RunReport,
    SafeguardName,
};
use sandbox::DelegatedCgroup;
use testkit::descendants_of;

use crate::harness::{Harness, confined};

testkit::tests![
    cgroup_is_removed_with_run,
    cgroup_of_killed_supervisor_is_removed_by_next_run,
    memory_limit_is_enforced,
    process_limit_is_enforced_for_root,
    unenforceable_memory_limit_is_reported_or_rejected,
];

/// Returns the delegated cgroup if it meets the needs of a test, and prints the reason otherwise.
fn delegated(needs: fn(&DelegatedCgroup) -> bool, what: &str) -> Option<DelegatedCgroup> {
    let found = DelegatedCgroup::find().filter(needs);
    if found.is_none() {
        println!("SKIPPED: no cgroup (version 2) is delegated here {what}");
    }
    found
}

fn bounded(harness: &Harness, requirement: Requirement, bounds: Bounds, script: &str) -> RunPlan {
    let policy = CallPolicy { requirement, bounds, ..Preset::Workspace.into() };
    RunPlan { policy: Policy::Confined(Box::new(harness.confinement(policy))), ..harness.shell(script) }
}

/// Returns a plan with a limit that only a cgroup can enforce.
fn in_a_cgroup(harness: &Harness, script: &str) -> RunPlan {
    let bounds = Bounds { memory_bytes: Some(1 << 30), ..Bounds::default() };
    bounded(harness, Requirement::BestEffort, bounds, script)
}

fn safeguard(report: &RunReport, name: SafeguardName) -> (Enforcement, &str) {
    let found = confined(report).safeguards.iter().find(|safeguard| safeguard.name == name).unwrap();
    (found.enforcement, &found.why)
}

/// Returns the directory of a process's cgroup.
fn cgroup_of(pid: i32) -> PathBuf {
    let list = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let below = list.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
    let bases = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
    let base = bases.into_iter().find(|base| base.join("cgroup.controllers").exists()).unwrap();
    base.join(below)
}

fn cgroup_is_removed_with_run() {
    Harness::run_test(async |harness: &Harness| {
        if delegated(|_| true, "at all").is_none() {
            return;
        }
        let run = harness.start(&in_a_cgroup(harness, "(sleep 1000 &); echo up; sleep 1000")).await;
        harness.wait_for_output("up").await;
        let supervisor = run.supervisor().unwrap().pid;
        let all = descendants_of(supervisor);
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

fn cgroup_of_killed_supervisor_is_removed_by_next_run() {
    Harness::run_test(async |harness: &Harness| {
        if delegated(|_| true, "at all").is_none() {
            return;
        }
        let run = harness.start(&in_a_cgroup(harness, "echo up; sleep 1000")).await;
        harness.wait_for_output("up").await;
        let supervisor = run.supervisor().unwrap().pid;
        let left = cgroup_of(descendants_of(supervisor)[0]);
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(supervisor).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
        run.wait().await.unwrap();
        fs::remove_dir_all(harness.spool()).unwrap();
        harness.run(&in_a_cgroup(harness, "true")).await;
        assert!(!left.exists(), "{} is left", left.display());
    });
}

fn memory_limit_is_enforced() {
    Harness::run_test(async |harness: &Harness| {
        if delegated(|found| found.memory, "that counts memory").is_none() {
            return;
        }
        let bounds = Bounds { memory_bytes: Some(64 << 20), ..Bounds::default() };
        // Buffers everything: there is no line end.
        let plan =
            bounded(harness, Requirement::Require, bounds, "head -c 400000000 /dev/zero | tail -n 1 | wc -c");
        let report = harness.run(&plan).await;
        assert_eq!(safeguard(&report, SafeguardName::Memory).0, Enforcement::Full);
        assert!(!harness.output().contains("400000000"), "{}", harness.output());
        assert_ne!(report.exit, Some(Exit::Code(0)), "{}", harness.error());
    });
}

fn process_limit_is_enforced_for_root() {
    Harness::run_test(async |harness: &Harness| {
        if delegated(|found| found.processes, "that counts processes").is_none() {
            return;
        }
        let bounds = Bounds { processes: Some(20), ..Bounds::default() };
        let script = "i=0; while [ $i -lt 60 ]; do sleep 100 & i=$((i+1)); done; echo all";
        let report = harness.run(&bounded(harness, Requirement::Require, bounds, script)).await;
        assert_eq!(safeguard(&report, SafeguardName::ProcessCount).0, Enforcement::Full);
        assert!(!harness.output().contains("all"), "{}", harness.output());
    });
}

fn unenforceable_memory_limit_is_reported_or_rejected() {
    Harness::run_test(async |harness: &Harness| {
        if DelegatedCgroup::find().is_some_and(|found| found.memory) {
            println!("SKIPPED: memory can be bounded here");
            return;
        }
        let bounds = Bounds { memory_bytes: Some(64 << 20), ..Bounds::default() };
        let report = harness.run(&bounded(harness, Requirement::BestEffort, bounds, "true")).await;
        let (hold, why) = safeguard(&report, SafeguardName::Memory);
        assert!(hold == Enforcement::None && why.contains("cgroup"), "{why}");
        fs::remove_dir_all(harness.spool()).unwrap();
        let report = harness.run(&bounded(harness, Requirement::Require, bounds, "true")).await;
        let End::NotStarted(failure) = &report.end else { panic!("{report:?}") };
        assert!(failure.message.contains("cgroup (version 2) that counts memory"), "{failure}");
    });
}
