//! Confined agents, and the errors where confinement is unavailable.

use std::process::Command;

use provider::{
    Access, AgentSpec, Bounds, CallPolicy, Context, FileVerb, Preset, Provider, ProviderConfig,
    ProviderError, Requirement, SandboxReport,
};

use crate::harness::Harness;

crate::tests! {
    unenforceable_policy_runs_nothing,
    confined_request_reports_sandbox_and_writes_inside_only,
    default_provider_run_is_confined,
    link_in_an_earlier_workspace_redirects_no_request,
    session_keeps_its_policy,
    shell_access_is_rejected_if_file_tools_is_replaceable,
}

/// Returns a policy that a machine without a delegated memory cgroup cannot enforce.
fn too_much() -> CallPolicy {
    let bounds = Bounds { memory_bytes: Some(1 << 30), ..Bounds::default() };
    CallPolicy { bounds, ..Preset::Workspace.into() }
}

fn needs_sandbox(error: &ProviderError) {
    assert!(matches!(error, ProviderError::NeedsSandbox { .. }), "{error:?}");
    assert!(error.to_string().contains("a delegated cgroup (version 2) that counts memory"), "{error}");
    assert!(error.hint().contains("switchboard doctor"), "{}", error.hint());
}

fn unenforceable_policy_runs_nothing() {
    if std::fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").is_ok_and(|all| all.contains("memory")) {
        println!("SKIPPED: this machine may well count memory, so nothing is missing");
        return;
    }
    Harness::run(async |harness| {
        let ran = harness.path("ran");
        harness.agent(&format!("case $1 in --*) ;; *) touch {} ;; esac", ran.display()));
        let provider = harness.provider_with(|config| config.policy = too_much());
        needs_sandbox(&provider.complete(&Context::new("Hello.")).await.unwrap_err());
        harness.program("file-tools", "exit 0");
        // Reported when the session is created, not only with its first message. Best effort is no alternative: a shell with a
        // rule is only as good as its sandbox.
        let hopeful = CallPolicy { requirement: Requirement::BestEffort, ..too_much() };
        let agent = AgentSpec {
            access: Access::FilesByShell(FileVerb::ALL.to_vec()),
            policy: Some(hopeful),
            ..AgentSpec::default()
        };
        needs_sandbox(&provider.create_session(&agent, &harness.path("work")).await.unwrap_err());
        assert!(!ran.exists() && harness.spooled().is_empty());
    });
}

/// Returns whether this machine can confine agents, and prints the reason otherwise.
pub fn can_confine() -> bool {
    let arguments =
        ["--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "--", "/bin/true"];
    let made = Command::new("/usr/bin/bwrap").args(arguments).output();
    let can = made.is_ok_and(|made| made.status.success());
    if !can {
        println!("SKIPPED: bubblewrap cannot make namespaces here");
    }
    can
}

fn confined_request_reports_sandbox_and_writes_inside_only() {
    if !can_confine() {
        return;
    }
    Harness::run(async |harness| {
        let (inside, outside) = (harness.path("work/inside"), harness.path("outside"));
        harness.agent(&format!("touch {}\ntouch {} 2>/dev/null", inside.display(), outside.display()));
        let provider = harness.provider_with(|config| config.policy = Preset::Workspace.into());
        let message = provider.complete(&Context::new("@rehearse answer Four.")).await.unwrap();
        assert_eq!(message.text, "Four.");
        let Some(SandboxReport::Confined(confined)) = &message.metadata.sandbox else {
            panic!("{:?}", message.metadata)
        };
        assert_eq!(confined.policy.preset, Preset::Workspace);
        let proof = confined.proof.as_ref().unwrap();
        assert!(proof.escapes.iter().all(|escape| escape.stopped), "{proof:?}");
        assert!(inside.exists() && !outside.exists());
        let free = harness.provider().complete(&Context::new("@rehearse answer Four.")).await.unwrap();
        assert_eq!(free.metadata.sandbox, Some(SandboxReport::Off));
        assert!(outside.exists(), "without a policy it can be written");
    });
}

fn default_provider_run_is_confined() {
    if !can_confine() {
        return;
    }
    Harness::run(async |harness| {
        let outside = harness.path("outside");
        harness.agent(&format!("touch {} 2>/dev/null", outside.display()));
        let provider = harness.provider_with(|config| config.policy = ProviderConfig::default().policy);
        let message = provider.complete(&Context::new("@rehearse answer Four.")).await.unwrap();
        let Some(SandboxReport::Confined(confined)) = &message.metadata.sandbox else {
            panic!("{:?}", message.metadata)
        };
        assert_eq!(confined.policy.preset, Preset::Workspace);
        assert!(!outside.exists());
    });
}

/// An agent that worked in the directory may have planted the link.
fn link_in_an_earlier_workspace_redirects_no_request() {
    Harness::run(async |harness| {
        let first = harness.provider().complete(&Context::new("@rehearse answer Four.")).await.unwrap();
        assert_eq!(first.text, "Four.");
        let (private, sub) = (harness.path("private"), harness.path("work/sub"));
        std::fs::create_dir(&private).unwrap();
        std::os::unix::fs::symlink(&private, &sub).unwrap();
        let rejected = |error: ProviderError| {
            let link = format!("`{}` is a link to `{}`", sub.display(), private.display());
            assert!(error.to_string().contains(&link), "{error}");
            let hint = format!("pass the real path itself if you mean it: `{}`", private.display());
            assert!(error.hint().contains(&hint), "{}", error.hint());
        };
        let redirected = harness.provider_with(|config| config.working_dir = Some(sub.clone()));
        let write = Context::new("@rehearse write planted x\n@rehearse answer done");
        rejected(redirected.complete(&write).await.unwrap_err());
        rejected(harness.provider().create_session(&AgentSpec::default(), &sub).await.unwrap_err());
        assert!(!private.join("planted").exists());
        let direct = harness.provider_with(|config| config.working_dir = Some(private.clone()));
        direct.complete(&Context::new("@rehearse answer Four.")).await.unwrap();
    });
}

fn session_keeps_its_policy() {
    if !can_confine() {
        return;
    }
    Harness::run(async |harness| {
        let confining = harness.provider_with(|config| config.policy = Preset::Observe.into());
        let agent = AgentSpec { access: Access::Full, ..AgentSpec::default() };
        let session = confining.create_session(&agent, &harness.path("work")).await.unwrap();
        confining.send_message(&session, "@rehearse answer Hello.").await.unwrap();
        let id = session.id().unwrap();
        // A later process whose settings do not mention the policy.
        let later = harness.provider();
        let resumed = later.resume_session(id.as_str()).await.unwrap().unwrap();
        let response = later.send_message(&resumed, "@rehearse answer Again.").await.unwrap();
        let Some(SandboxReport::Confined(confined)) = &response.metadata.sandbox else {
            panic!("{:?}", response.metadata)
        };
        assert_eq!(confined.policy.preset, Preset::Observe);
    });
}

fn shell_access_is_rejected_if_file_tools_is_replaceable() {
    Harness::run(async |harness| {
        let work = harness.path("work");
        std::fs::copy(harness.program("file-tools", "exit 0"), work.join("file-tools")).unwrap();
        let agent = AgentSpec {
            access: Access::FilesByShell(FileVerb::ALL.to_vec()),
            file_tools: Some(work.join("file-tools")),
            ..AgentSpec::default()
        };
        let error = harness.provider().create_session(&agent, &work).await.unwrap_err();
        assert!(error.to_string().ends_with("lies in the workspace"), "{error}");
    });
}
