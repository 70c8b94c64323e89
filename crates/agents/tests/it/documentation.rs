//! Compares the table of the built-in agents in `docs/agents.md` with the profiles.
#![expect(clippy::disallowed_methods, reason = "a test may")]

use std::fmt::Write;
use std::fs;
use std::path::Path;

use agents::{AgentFeature, AgentProfile, AgentProfiles, ProfileSupport, TestedRange};

const HEADING: &str = "## Built-in agents\n\n";

#[test]
fn table_of_agents_matches_the_profiles() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/agents.md");
    let page = fs::read_to_string(&file).unwrap();
    let (before, rest) = page.split_once(HEADING).unwrap();
    let (current, after) = rest.split_once("\n\n").unwrap();
    let expected = table();
    if std::env::var_os("BLESS").is_some() {
        fs::write(&file, format!("{before}{HEADING}{expected}\n\n{after}")).unwrap();
        return;
    }
    assert!(
        current == expected,
        "docs/agents.md differs; `BLESS=1 cargo test -p agents --test it documentation` regenerates it. Expected:\n{expected}"
    );
}

fn table() -> String {
    let mut table =
        "| agent | name | installation | support | features |\n| --- | --- | --- | --- | --- |".to_owned();
    for profile in AgentProfiles::default().iter() {
        let AgentProfile { title, agent, install, .. } = &**profile;
        // `install it with` is redundant in this column.
        let install = install.strip_prefix("install it with ").unwrap_or(install);
        let features = AgentFeature::ALL.iter().filter(|feature| profile.has(**feature));
        let features: Vec<&str> = features.map(|feature| feature.name()).collect();
        let (support, features) = (support(profile.support), features.join(", "));
        write!(table, "\n| {title} | `{agent}` | {install} | {support} | {features} |").unwrap();
    }
    table
}

fn support(support: ProfileSupport) -> String {
    let versions = |TestedRange { oldest, newest }: TestedRange| {
        if oldest == newest { oldest.to_string() } else { format!("{oldest} to {newest}") }
    };
    match support {
        ProfileSupport::Tested(range) => format!("tested: {}", versions(range)),
        ProfileSupport::Measured(range) => format!("measured: {}", versions(range)),
        ProfileSupport::Untested => "untested".to_owned(),
        ProfileSupport::Custom => "your own".to_owned(),
        ProfileSupport::Own => "part of Switchboard".to_owned(),
    }
}
