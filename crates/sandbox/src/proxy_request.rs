//! Parses the requests to the proxy. Pure.

/// The maximum size of a request head.
pub(crate) const MAX_HEAD_BYTES: usize = 64 * 1024;

/// A request to the proxy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProxyRequest {
    /// A name, or an IP address without brackets.
    pub host: String,
    pub port: u16,
    pub kind: ProxyRequestKind,
    /// Bytes of the body that were read with the head.
    pub rest: Vec<u8>,
}

/// The kind of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProxyRequestKind {
    /// `CONNECT`: a connection with any protocol.
    Tunnel,
    /// One plain HTTP request, with the rewritten head for the server.
    Forward { head: Vec<u8> },
}

impl ProxyRequest {
    /// Parses a request head. Returns `None` if it is not a request to a proxy, or is ambiguous.
    pub fn parse(head: &[u8], rest: Vec<u8>) -> Option<Self> {
        let head = std::str::from_utf8(head).ok()?;
        // The server may treat other line endings as a line break.
        let lines = head.strip_suffix("\r\n\r\n")?;
        if lines.replace("\r\n", "").contains(['\r', '\n', '\0']) {
            return None;
        }
        let mut lines = lines.split("\r\n");
        let mut parts = lines.next()?.split(' ');
        let (method, target, version) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() || !version.starts_with("HTTP/1.") {
            return None;
        }
        if method == "CONNECT" {
            let (host, port) = parse_authority(target, None)?;
            return Some(Self { host, port, kind: ProxyRequestKind::Tunnel, rest });
        }
        let target = target.strip_prefix("http://")?;
        let cut = target.find(['/', '?', '#']).unwrap_or(target.len());
        let (named, path) = target.split_at(cut);
        let (host, port) = parse_authority(named, Some(80))?;
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let mut head = format!("{method} {path} {version}\r\n");
        for line in lines.filter(|line| is_end_to_end_header(line)) {
            head = head + line + "\r\n";
        }
        // `Host` is the checked host, whatever the client sent. One request per connection: the next one may name another host.
        head = format!("{head}Host: {named}\r\nConnection: close\r\n\r\n");
        Some(Self { host, port, kind: ProxyRequestKind::Forward { head: head.into_bytes() }, rest })
    }
}

fn is_end_to_end_header(line: &str) -> bool {
    let name = line.split(':').next().unwrap_or_default().trim().to_ascii_lowercase();
    !matches!(name.as_str(), "host" | "connection" | "keep-alive" | "upgrade" | "te" | "trailer")
        && !name.starts_with("proxy-")
}

/// Parses host and port. User information before an `@` is rejected.
fn parse_authority(text: &str, default_port: Option<u16>) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, rest.strip_prefix(':'))
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = match port {
        Some(port) => port.parse().ok()?,
        None => default_port?,
    };
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    (!host.is_empty() && host.bytes().all(is_host)).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(head: &str) -> Option<(String, u16)> {
        ProxyRequest::parse(head.as_bytes(), Vec::new()).map(|request| (request.host, request.port))
    }

    #[test]
    fn host_and_port_are_parsed_in_both_forms() {
        assert_eq!(parse("CONNECT a.com:443 HTTP/1.1\r\n\r\n"), Some(("a.com".into(), 443)));
        assert_eq!(parse("CONNECT [::1]:443 HTTP/1.1\r\n\r\n"), Some(("::1".into(), 443)));
        assert_eq!(parse("GET http://a.com HTTP/1.1\r\n\r\n"), Some(("a.com".into(), 80)));
        assert_eq!(parse("GET http://a.com:81/x HTTP/1.1\r\n\r\n"), Some(("a.com".into(), 81)));
    }

    #[test]
    fn ambiguous_request_is_rejected() {
        for head in [
            "GET http://good.com@evil.com/ HTTP/1.1\r\n\r\n",
            "GET http://good.com\\@evil.com/ HTTP/1.1\r\n\r\n",
            "GET http://good.com/\nHost: x HTTP/1.1\r\n\r\n",
            "GET http://good.com/ HTTP/1.1\nX: y\r\n\r\n",
            "GET http://good.com/ HTTP/1.1\r\nX: a\rb\r\n\r\n",
            "CONNECT good.com:443 evil.com HTTP/1.1\r\n\r\n",
            "CONNECT good.com:443@evil.com HTTP/1.1\r\n\r\n",
            "CONNECT good.com HTTP/1.1\r\n\r\n",
            "GET https://good.com/ HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
        ] {
            assert_eq!(parse(head), None, "{head:?}");
        }
    }
}
