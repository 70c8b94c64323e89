//! What a client asks of a proxy, read from the head of its request. Pure.

/// How long a head may be.
pub(crate) const MAX_HEAD: usize = 64 * 1024;

/// What is asked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// A name, or an address without brackets.
    pub host: String,
    pub port: u16,
    pub asked: Asked,
    /// What followed the head already.
    pub rest: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A connection, whatever is said on it.
    Tunnel,
    /// One request of plain HTTP, whose head is this for the server.
    Forward { head: Vec<u8> },
}

impl Request {
    /// Reads a head. None: it is not for a proxy, or cannot be read in one way only.
    pub fn read(head: &[u8], rest: Vec<u8>) -> Option<Self> {
        let head = std::str::from_utf8(head).ok()?;
        // A line that ends in another way may be read as two by the server.
        let lines = head.strip_suffix("\r\n\r\n")?;
        if lines.replace("\r\n", "").contains(['\r', '\n', '\0']) {
            return None;
        }
        let mut lines = lines.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        if words.next().is_some() || !version.starts_with("HTTP/1.") {
            return None;
        }
        if method == "CONNECT" {
            let (host, port) = authority(target, None)?;
            return Some(Self { host, port, asked: Asked::Tunnel, rest });
        }
        let target = target.strip_prefix("http://")?;
        let cut = target.find(['/', '?', '#']).unwrap_or(target.len());
        let (named, path) = target.split_at(cut);
        let (host, port) = authority(named, Some(80))?;
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let mut head = format!("{method} {path} {version}\r\n");
        for line in lines.filter(|line| is_for_the_server(line)) {
            head = head + line + "\r\n";
        }
        // The host it was allowed for, whatever it said besides; and one request only, since the next may be for another.
        head = format!("{head}Host: {named}\r\nConnection: close\r\n\r\n");
        Some(Self { host, port, asked: Asked::Forward { head: head.into_bytes() }, rest })
    }
}

fn is_for_the_server(line: &str) -> bool {
    let name = line.split(':').next().unwrap_or_default().trim().to_ascii_lowercase();
    !matches!(name.as_str(), "host" | "connection" | "keep-alive" | "upgrade" | "te" | "trailer")
        && !name.starts_with("proxy-")
}

/// Host and port. A user before an `@` is no host.
fn authority(text: &str, usual_port: Option<u16>) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, rest.strip_prefix(':'))
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = match port {
        Some(port) => port.parse().ok()?,
        None => usual_port?,
    };
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    (!host.is_empty() && host.bytes().all(is_host)).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(head: &str) -> Option<(String, u16)> {
        Request::read(head.as_bytes(), Vec::new()).map(|request| (request.host, request.port))
    }

    #[test]
    fn host_and_port_are_read_in_both_forms() {
        assert_eq!(of("CONNECT a.com:443 HTTP/1.1\r\n\r\n"), Some(("a.com".into(), 443)));
        assert_eq!(of("CONNECT [::1]:443 HTTP/1.1\r\n\r\n"), Some(("::1".into(), 443)));
        assert_eq!(of("GET http://a.com HTTP/1.1\r\n\r\n"), Some(("a.com".into(), 80)));
        assert_eq!(of("GET http://a.com:81/x HTTP/1.1\r\n\r\n"), Some(("a.com".into(), 81)));
    }

    #[test]
    fn what_two_readers_would_read_differently_is_refused() {
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
            assert_eq!(of(head), None, "{head:?}");
        }
    }
}
