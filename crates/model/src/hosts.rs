//! Which hosts a network of named hosts is made of: what may be written in the list, and whom it lets through.
//!
//! Pure: names are looked up by whoever enforces it, and every address that comes out is asked about here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::BadName;

/// The ports of a host that is listed without one.
const USUAL_PORTS: [u16; 2] = [443, 80];

/// One entry of the list: `api.example.com`, `*.example.com`, `example.com:8443`, `10.0.0.5`, `127.0.0.1:8080`, `[::1]:8080`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRule {
    host: Host,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Name(String),
    /// Every name that ends with a dot and this.
    Below(String),
    Address(IpAddr),
}

impl HostRule {
    /// Whether a name may be asked for. Names are compared without regard to case; a dot at the end means nothing.
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

    /// Whether an address is listed itself.
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
                "write a name, `*.` and a name, or an address, and a port after a colon if it is not 443 or 80",
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

/// Whether an address is one of the internet: not of this machine, its networks, or of no use to anybody.
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
    // The global ones, but for those that only wrap an address of version 4.
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
    fn a_name_is_itself_and_a_star_is_what_is_below() {
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
    fn without_a_port_the_usual_two_are_meant_and_with_one_only_that() {
        assert!(!rule("example.com").allows_name("example.com", 22));
        let with = rule("example.com:8443");
        assert!(with.allows_name("example.com", 8443) && !with.allows_name("example.com", 443));
    }

    #[test]
    fn an_address_is_listed_by_itself_in_every_form() {
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
    fn what_is_no_host_is_refused() {
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
    fn addresses_of_machines_and_their_networks_are_not_public_however_they_are_written() {
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
