//! Whom each agent must reach to work at all: its vendor, and where the operator's own variables send it instead.
//!
//! Owns the lists. They are added to every network of named hosts, so that such a list names what the task needs and nothing else.

use std::collections::BTreeMap;

use model::AgentKind;

/// The vendor's model API, and where a login is renewed. Neither telemetry nor updates: an agent works without them.
fn of_the_vendor(agent: AgentKind) -> &'static [&'static str] {
    match agent {
        AgentKind::Claude => {
            &["api.anthropic.com", "console.anthropic.com", "platform.claude.com", "claude.ai"]
        }
        AgentKind::Codex => &["api.openai.com", "chatgpt.com", "auth.openai.com"],
        AgentKind::Gemini => &[
            "generativelanguage.googleapis.com",
            "cloudcode-pa.googleapis.com",
            "aiplatform.googleapis.com",
            "oauth2.googleapis.com",
        ],
        AgentKind::Rehearsal => &[],
    }
}

/// The variables that send an agent to another address.
fn addresses(agent: AgentKind) -> &'static [&'static str] {
    match agent {
        AgentKind::Claude => &["ANTHROPIC_BASE_URL"],
        AgentKind::Codex => &["OPENAI_BASE_URL"],
        AgentKind::Gemini => &["GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL"],
        AgentKind::Rehearsal => &[],
    }
}

/// The hosts that an agent reaches whatever else is listed.
pub(crate) fn own_hosts(agent: AgentKind, env: &BTreeMap<String, String>) -> Vec<String> {
    let named = addresses(agent).iter().filter_map(|name| env.get(*name)).flat_map(|url| of_url(url));
    of_the_vendor(agent).iter().map(|host| (*host).to_owned()).chain(named).collect()
}

/// The host of an address, with its port. This machine by name is also meant by its numbers.
fn of_url(url: &str) -> Vec<String> {
    let Some((_, rest)) = url.split_once("://") else { return Vec::new() };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    match host.strip_prefix("localhost") {
        Some(port) => ["localhost", "127.0.0.1", "[::1]"].map(|name| format!("{name}{port}")).into(),
        None => vec![host.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, url: &str) -> Vec<String> {
        own_hosts(AgentKind::Claude, &BTreeMap::from([(name.to_owned(), url.to_owned())]))
    }

    #[test]
    fn every_host_of_the_lists_can_be_listed() {
        for agent in AgentKind::ALL {
            for host in own_hosts(agent, &BTreeMap::new()) {
                host.parse::<model::HostRule>().unwrap();
            }
        }
    }

    #[test]
    fn where_the_operator_sends_an_agent_is_listed_and_what_others_are_sent_by_is_not() {
        let has = |hosts: Vec<String>, host: &str| hosts.iter().any(|own| own == host);
        assert!(has(with("ANTHROPIC_BASE_URL", "https://proxy.corp:8443/v1"), "proxy.corp:8443"));
        assert!(has(with("ANTHROPIC_BASE_URL", "http://user:pw@10.0.0.1/"), "10.0.0.1"));
        assert!(has(with("ANTHROPIC_BASE_URL", "http://localhost:80"), "127.0.0.1:80"));
        assert!(!has(with("OPENAI_BASE_URL", "https://other.corp"), "other.corp"));
        assert_eq!(with("ANTHROPIC_BASE_URL", "nonsense"), own_hosts(AgentKind::Claude, &BTreeMap::new()));
    }
}
