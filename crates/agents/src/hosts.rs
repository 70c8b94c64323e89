//! The hosts that each agent needs: its vendor's API, or the base URL that the operator configured.
//!
//! Added to every list of allowed hosts, so that the list contains only hosts of the task.

use std::collections::BTreeMap;

use crate::AgentProfile;

/// Returns the hosts that an agent can always reach.
pub(crate) fn required_hosts(profile: &AgentProfile, env: &BTreeMap<String, String>) -> Vec<String> {
    let configured =
        profile.base_urls.iter().filter_map(|name| env.get(name)).flat_map(|url| hosts_of_url(url));
    profile.hosts.iter().cloned().chain(configured).collect()
}

/// Returns the host and port of a URL. `localhost` also stands for its addresses.
fn hosts_of_url(url: &str) -> Vec<String> {
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
    use std::sync::Arc;

    use model::AgentKind;

    use super::*;
    use crate::AgentProfiles;

    fn with(name: &str, url: &str) -> Vec<String> {
        required_hosts(&claude(), &BTreeMap::from([(name.to_owned(), url.to_owned())]))
    }

    fn claude() -> Arc<AgentProfile> {
        Arc::clone(AgentProfiles::default().get(AgentKind::Claude).unwrap())
    }

    #[test]
    fn required_hosts_are_valid_rules() {
        for agent in AgentProfiles::default().iter() {
            for host in required_hosts(agent, &BTreeMap::new()) {
                host.parse::<model::HostRule>().unwrap();
            }
        }
    }

    #[test]
    fn base_url_of_own_vendor_is_allowlisted_others_are_not() {
        let has = |hosts: Vec<String>, host: &str| hosts.iter().any(|own| own == host);
        assert!(has(with("ANTHROPIC_BASE_URL", "https://proxy.corp:8443/v1"), "proxy.corp:8443"));
        assert!(has(with("ANTHROPIC_BASE_URL", "http://user:pw@10.0.0.1/"), "10.0.0.1"));
        assert!(has(with("ANTHROPIC_BASE_URL", "http://localhost:80"), "127.0.0.1:80"));
        assert!(!has(with("OPENAI_BASE_URL", "https://other.corp"), "other.corp"));
        assert_eq!(with("ANTHROPIC_BASE_URL", "nonsense"), required_hosts(&claude(), &BTreeMap::new()));
    }
}
