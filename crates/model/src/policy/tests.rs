//! Effective policies.

use std::path::Path;

use super::*;

fn context() -> PolicyContext {
    PolicyContext {
        workspaces: vec!["/home/ana/shop".into()],
        states: vec![AgentState {
            directory: "/home/ana/.claude".into(),
            variable: None,
            kept: Vec::new(),
            discarded: Vec::new(),
        }],
        foreign_state: vec!["/home/ana/.claude".into(), "/home/ana/.codex".into()],
        home: Some("/home/ana".into()),
        own: vec!["/home/ana/.local/state/switchboard".into()],
        ..PolicyContext::default()
    }
}

fn confined(preset: Preset) -> Confinement {
    match CallPolicy::from(preset).confine(&context()).unwrap() {
        Policy::Confined(confinement) => *confinement,
        Policy::Off => panic!("not confined"),
    }
}

#[test]
fn requested_policy_never_exceeds_ceiling() {
    for ceiling in Preset::ALL.map(CallPolicy::from) {
        for asked in Preset::ALL.map(CallPolicy::from) {
            let got = asked.within(&ceiling).preset;
            assert!(!got.writes() || ceiling.preset.writes(), "{asked:?} under {ceiling:?}: {got}");
            assert!(!got.has_shell() || ceiling.preset.has_shell(), "{asked:?} under {ceiling:?}: {got}");
            assert!(got != Preset::Off || ceiling.is_off(), "{asked:?} under {ceiling:?}: {got}");
            assert!(!got.writes() || asked.preset.writes(), "{asked:?} under {ceiling:?}: {got}");
        }
    }
}

#[test]
fn ceiling_takes_stricter_network_bounds_and_requirement() {
    let ceiling = CallPolicy {
        network: Network::Hosts(vec!["a".into(), "b".into()]),
        bounds: Bounds { processes: Some(10), memory_bytes: None, file_bytes: Some(5) },
        hide: vec!["/srv".into()],
        ..Preset::Workspace.into()
    };
    let asked = CallPolicy {
        requirement: Requirement::BestEffort,
        network: Network::Hosts(vec!["b".into(), "c".into()]),
        bounds: Bounds { processes: Some(100), memory_bytes: Some(7), file_bytes: None },
        ..Preset::Workspace.into()
    };
    let got = asked.within(&ceiling);
    assert_eq!(got.requirement, Requirement::Require);
    assert_eq!(got.network, Network::Hosts(vec!["b".into()]));
    assert_eq!(got.bounds, Bounds { processes: Some(10), memory_bytes: Some(7), file_bytes: Some(5) });
    assert_eq!(got.hide, [PathBuf::from("/srv")]);
    assert_eq!(CallPolicy::from(Preset::Off).within(&ceiling), ceiling);
}

#[test]
fn network_list_with_malformed_host_is_rejected() {
    assert_eq!("full".parse(), Ok(Network::Full));
    assert_eq!("none".parse(), Ok(Network::None));
    assert_eq!(
        "a.com, *.b.com:8443".parse(),
        Ok(Network::Hosts(vec!["a.com".into(), "*.b.com:8443".into()]))
    );
    for text in ["", "a.com,", "http://a.com"] {
        assert!(text.parse::<Network>().is_err(), "{text}");
    }
    let policy = CallPolicy { network: Network::Hosts(vec!["a.com/x".into()]), ..Preset::Workspace.into() };
    assert!(matches!(policy.confine(&context()), Err(PolicyError::Host(_))));
}

#[test]
fn workspace_is_writable_except_for_protected_paths() {
    let workspace = confined(Preset::Workspace);
    assert!(workspace.roots.contains(&PolicyRoot::writable("/home/ana/shop")));
    let hooks = Protected { path: "/home/ana/shop/.git/hooks".into(), on_create: OnCreate::QuarantineAtOnce };
    assert!(workspace.protected.contains(&hooks));
    let observe = confined(Preset::Observe);
    assert!(observe.roots.contains(&PolicyRoot::read_only("/home/ana/shop")));
    assert!(!observe.roots.iter().any(|root| root.access == RootAccess::Write));
}

#[test]
fn secrets_and_foreign_state_are_hidden() {
    let hidden = confined(Preset::Workspace).hidden;
    for path in [".ssh", ".codex", ".local/state/switchboard"] {
        assert!(hidden.contains(&Path::new("/home/ana").join(path)), "{path}");
    }
    assert!(!hidden.contains(&"/home/ana/.claude".into()));
}

#[test]
fn hidden_directory_or_home_as_workspace_is_rejected() {
    let with = |directory: &str| PolicyContext { workspaces: vec![directory.into()], ..context() };
    for directory in ["/home/ana/.ssh", "/home/ana/.ssh/keys", "/home/ana/.local/state/switchboard/jobs"] {
        let error = CallPolicy::from(Preset::Observe).confine(&with(directory)).unwrap_err();
        assert!(matches!(error, PolicyError::HiddenWorkspace { .. }), "{directory}");
    }
    let with = |directory: &str| PolicyContext {
        guarded: vec!["/home/ana/.local/state/switchboard".into()],
        ..with(directory)
    };
    for directory in ["/", "/home", "/home/ana"] {
        let error = CallPolicy::from(Preset::Workspace).confine(&with(directory)).unwrap_err();
        assert!(matches!(error, PolicyError::TooMuch { .. }), "{directory}");
        let error = CallPolicy::from(Preset::Observe).confine(&with(directory)).unwrap_err();
        assert!(matches!(error, PolicyError::TooMuch { .. }), "{directory}");
    }
    CallPolicy::from(Preset::Workspace).confine(&with("/home/ana/.sshd")).unwrap();
}

#[test]
fn checkout_is_the_only_workspace_among_own_files() {
    let state = Path::new("/home/ana/.local/state/switchboard");
    let confine = |directory: &str| {
        let context = PolicyContext {
            workspaces: vec![state.join(directory)],
            checkouts: Some(state.join("checkouts")),
            fixed: vec![state.join("checkouts/1/shop/.git/objects/info/alternates")],
            guarded: vec![state.to_owned()],
            ..context()
        };
        CallPolicy::from(Preset::Workspace).confine(&context)
    };
    for directory in ["", "jobs/1", "checkouts", "checkouts/1"] {
        assert!(confine(directory).is_err(), "{directory}");
    }
    let Policy::Confined(policy) = confine("checkouts/1/shop").unwrap() else { panic!("not confined") };
    assert!(policy.hidden.contains(&state.to_owned()));
    assert!(policy.protected.iter().any(|protected| protected.path.ends_with("info/alternates")));
    confine("checkouts/1/shop/src").unwrap();
}

#[test]
fn policy_with_unknown_field_is_rejected() {
    let policy = Policy::Confined(Box::new(confined(Preset::Workspace)));
    let json = serde_json::to_string(&policy).unwrap();
    assert_eq!(serde_json::from_str::<Policy>(&json).unwrap(), policy);
    let newer = json.replace(r#""unix_sockets""#, r#""walls":3,"unix_sockets""#);
    assert!(serde_json::from_str::<Policy>(&newer).unwrap_err().to_string().contains("walls"));
}

#[test]
fn workspace_around_own_state_is_rejected() {
    let own = ["/srv/switchboard/state", "/etc/opt/switchboard"].map(PathBuf::from).to_vec();
    for preset in [Preset::Workspace, Preset::Observe, Preset::Restricted, Preset::Sealed] {
        let confine = |directory: &str| {
            let context = PolicyContext {
                workspaces: vec![directory.into()],
                own: own.clone(),
                guarded: own.clone(),
                ..context()
            };
            CallPolicy::from(preset).confine(&context)
        };
        for directory in ["/srv", "/srv/switchboard", "/etc/opt"] {
            let error = confine(directory).unwrap_err();
            assert!(matches!(error, PolicyError::AboveOwnFiles { .. }), "{directory}: {error}");
        }
        for directory in ["/srv/switchboard/state", "/etc/opt/switchboard/sub"] {
            let error = confine(directory).unwrap_err();
            assert!(matches!(error, PolicyError::HiddenWorkspace { .. } | PolicyError::AboveOwnFiles { .. }));
        }
        confine("/srv/switchboard/other").unwrap();
    }
}

#[test]
fn record_with_one_state_is_read() {
    let Policy::Confined(confinement) = CallPolicy::default().confine(&context()).unwrap() else { panic!() };
    let mut json = serde_json::to_value(&confinement).unwrap();
    let states = json.as_object_mut().unwrap().remove("states").unwrap();
    json["state"] = states[0].clone();
    assert_eq!(serde_json::from_value::<Box<Confinement>>(json).unwrap(), confinement);
}
