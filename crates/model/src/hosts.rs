//! Host rules: the syntax of the list of allowed hosts, and the matching of names and addresses.
//!
//! Pure. The proxy in `sandbox` resolves names and checks every resolved address here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::BadName;

/// The ports of a rule without a port.
const USUAL_PORTS: [u16; 2] = [443, 80];

/// A rule: `api.example.com`, `*.example.com`, `example.com:8443`, `10.0.0.5`, `127.0.0.1:8080` or `[::1]:8080`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRule {
    host: Host,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Name(String),
    /// A suffix: every name below this domain.
    Below(String),
    Address(IpAddr),
}

impl HostRule {
    /// Returns whether the rule allows a connection to a host name. Ignores case and a trailing dot.
    pub fn allows_name(&self, name: &str, port: u16) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let is_named = match &self.host {
            Host::Name(own) => *own == name,
            Host::Below(suffix) => {
                name.strip_suffix(suffix.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
            Host::Address(_) => false,
        };
        is_named && self.allows_port(port)
    }

    /// Returns whether the rule lists this address.
    pub fn allows_address(&self, address: IpAddr, port: u16) -> bool {
        self.host == Host::Address(address.to_canonical()) && self.allows_port(port)
    }

    fn allows_port(&self, port: u16) -> bool {
        self.port.map_or_else(|| USUAL_PORTS.contains(&port), |own| own == port)
    }
}

impl FromStr for HostRule {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || {
            BadName::new(
                "host",
                text,
                "use a host name, `*.` and a domain, or an address; append `:PORT` for ports other than 443 and 80",
            )
        };
        let whole = text.trim_matches(['[', ']']).parse::<IpAddr>();
        if let Ok(address) = whole {
            return Ok(Self { host: Host::Address(address.to_canonical()), port: None });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().map_err(|_| bad())?)),
            None => (text, None),
        };
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if let Ok(address) = address.parse::<IpAddr>() {
            return Ok(Self { host: Host::Address(address.to_canonical()), port });
        }
        let host = host.to_ascii_lowercase();
        let below = host.strip_prefix("*.");
        let name = below.unwrap_or(&host);
        if !is_name(name) || (below.is_some() && !name.contains('.')) {
            return Err(bad());
        }
        let name = name.to_owned();
        Ok(Self { host: if below.is_some() { Host::Below(name) } else { Host::Name(name) }, port })
    }
}

fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// Returns whether an address is publicly routable: not loopback, private, link-local, multicast or reserved.
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_shared = a == 100 && b & 0xc0 == 64;
    let is_for_tests = a == 198 && b & 0xfe == 18;
    let is_reserved = a == 0 || a >= 240 || (a, b, c) == (192, 0, 0);
    !(address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || is_shared
        || is_for_tests
        || is_reserved)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    // Global unicast, except for 6to4, Teredo and documentation prefixes, which can embed an IPv4 address.
    let [first, second, ..] = address.segments();
    first & 0xe000 == 0x2000
        && first != 0x2002
        && (first, second) != (0x2001, 0)
        && (first, second) != (0x2001, 0xdb8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> HostRule {
        text.parse().unwrap()
    }

    #[test]
    fn wildcard_matches_subdomains_only() {
        let exact = rule("api.Example.com");
        assert!(exact.allows_name("API.example.com", 443) && exact.allows_name("api.example.com.", 80));
        for other in ["example.com", "xapi.example.com", "x.api.example.com", "api.example.com.evil.org"] {
            assert!(!exact.allows_name(other, 443), "{other}");
        }
        let below = rule("*.example.com");
        assert!(below.allows_name("a.example.com", 443) && below.allows_name("a.b.example.com", 443));
        for other in ["example.com", ".example.com", "badexample.com", "example.com.evil.org"] {
            assert!(!below.allows_name(other, 443), "{other}");
        }
    }

    #[test]
    fn rule_without_port_allows_443_and_80() {
        assert!(!rule("example.com").allows_name("example.com", 22));
        let with = rule("example.com:8443");
        assert!(with.allows_name("example.com", 8443) && !with.allows_name("example.com", 443));
    }

    #[test]
    fn address_rule_matches_every_notation() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let listed = rule("127.0.0.1:8080");
        assert!(listed.allows_address(loopback, 8080) && !listed.allows_address(loopback, 8081));
        assert!(listed.allows_address("::ffff:127.0.0.1".parse().unwrap(), 8080));
        assert!(!listed.allows_name("localhost", 8080));
        for six in ["[::1]:443", "::1", "[::1]"] {
            assert!(rule(six).allows_address("::1".parse().unwrap(), 443), "{six}");
        }
    }

    #[test]
    fn malformed_host_rule_is_rejected() {
        for text in [
            "",
            "*",
            "*.com",
            "*.",
            "http://a.com",
            "a.com/x",
            "a b",
            "a..b",
            "a.com:",
            "a.com:x",
            "a.com:99999",
            "a*.com",
            "ä.de",
        ] {
            assert!(text.parse::<HostRule>().is_err(), "{text}");
        }
    }

    #[test]
    fn local_and_reserved_addresses_are_not_public() {
        for address in [
            "127.0.0.1",
            "127.9.9.9",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "198.18.0.1",
            "255.255.255.255",
            "224.0.0.1",
            "192.0.0.8",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
        for address in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:1.1.1.1"] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }
}
