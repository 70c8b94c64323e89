//! A network of named hosts: only the listed ones are reachable, through the proxy.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use model::{CallPolicy, Confinement, Enforcement, Network, Preset, Requirement, RunReport, SafeguardName};

use crate::harness::{Harness, confined};

testkit::tests![
    only_listed_host_is_reached_through_proxy,
    listed_name_of_this_machine_is_not_reached,
    hosts_are_blocked_and_reported_without_namespaces,
];

/// The first argument that makes this binary connect to hosts.
const ASK: &str = "--ask-for-hosts";

/// Each argument is a method and a host: `direct 127.0.0.1:80`, `proxy example.com:443`, `datagram 127.0.0.1:53`.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args().skip(1);
    if args.next()? != ASK {
        return None;
    }
    for line in args {
        let (way, host) = line.split_once(' ')?;
        let came = match way {
            "direct" => directly(host),
            "datagram" => UdpSocket::bind("0.0.0.0:0")
                .and_then(|socket| socket.send_to(b"x", host))
                .map(|_| "sent".into()),
            _ => through_the_proxy(host),
        };
        println!("{line}: {}", came.unwrap_or_else(|error| format!("error: {error}")).trim());
    }
    println!("exceptions: {:?}", std::env::var("NO_PROXY"));
    Some(ExitCode::SUCCESS)
}

fn directly(host: &str) -> std::io::Result<String> {
    let address: SocketAddr = host.parse().map_err(std::io::Error::other)?;
    talk(TcpStream::connect_timeout(&address, Duration::from_secs(5))?, "hello")
}

fn through_the_proxy(host: &str) -> std::io::Result<String> {
    let proxy = std::env::var("https_proxy").map_err(std::io::Error::other)?;
    let stream = TcpStream::connect(proxy.trim_start_matches("http://"))?;
    let said = talk(stream, &format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\nhello"))?;
    Ok(said.split_whitespace().skip(1).collect::<Vec<_>>().join(" "))
}

fn talk(mut stream: TcpStream, words: &str) -> std::io::Result<String> {
    stream.write_all(words.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}

/// Starts a server on loopback that replies to each connection and counts them.
fn listening() -> (SocketAddr, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let own = listener.try_clone().unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = own.accept() {
            let mut heard = [0; 100];
            let count = stream.read(&mut heard).unwrap_or_default();
            let _ = stream.write_all(b"heard ").and_then(|()| stream.write_all(&heard[..count]));
        }
    });
    (address, listener)
}

/// Lets an agent connect. Returns the result of each connection, and the report.
async fn asks(harness: &Harness, confinement: Confinement, asked: &[String]) -> (String, RunReport) {
    let args: Vec<&str> = std::iter::once(ASK).chain(asked.iter().map(String::as_str)).collect();
    let report = harness.run(&harness.plan(confinement, &args)).await;
    (harness.output() + &harness.error(), report)
}

fn to(hosts: &[String]) -> CallPolicy {
    CallPolicy { network: Network::Hosts(hosts.to_vec()), ..Preset::Workspace.into() }
}

fn only_listed_host_is_reached_through_proxy() {
    Harness::run_test(async |harness: &Harness| {
        let (listed, _one) = listening();
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = silent.local_addr().unwrap();
        let asked = [
            format!("proxy {listed}"),
            format!("proxy {other}"),
            format!("proxy localhost:{}", listed.port()),
            "proxy example.com:443".to_owned(),
            "proxy 169.254.169.254:80".to_owned(),
            format!("direct {listed}"),
            format!("direct {other}"),
            format!("datagram {other}"),
        ];
        let (said, report) = asks(harness, harness.confinement(to(&[listed.to_string()])), &asked).await;
        let of = |asked: &str| {
            let line = said.lines().find(|line| line.starts_with(asked));
            line.unwrap_or_else(|| panic!("{asked} in {said}")).to_owned()
        };
        assert!(of(&asked[0]).ends_with("200 Connection established heard hello"), "{said}");
        for refused in &asked[1..5] {
            assert!(of(refused).contains(": 403 Forbidden"), "{said}");
        }
        for direct in &asked[5..7] {
            assert!(of(direct).contains("error: "), "{said}");
        }
        assert!(said.contains("exceptions: Ok(\"\")"), "{said}");
        silent.set_nonblocking(true).unwrap();
        assert!(silent.accept().is_err(), "who is not listed was reached");
        let confined = confined(&report);
        let expected = [other.to_string(), "example.com:443".to_owned(), "169.254.169.254:80".to_owned()];
        assert!(expected.iter().all(|host| confined.refused_hosts.contains(host)), "{confined:?}");
        assert!(!confined.refused_hosts.contains(&listed.to_string()), "{confined:?}");
        let network = confined.safeguards.iter().find(|safeguard| safeguard.name == SafeguardName::Network);
        assert_eq!(network.unwrap().enforcement, Enforcement::Full);
        let tried = confined.proof.as_ref().unwrap().escapes.iter();
        assert!(tried.filter(|way| way.tried == "connect to a port outside").all(|way| way.stopped));
    });
}

fn listed_name_of_this_machine_is_not_reached() {
    Harness::run_test(async |harness: &Harness| {
        let (address, _listener) = listening();
        let name = format!("localhost:{}", address.port());
        let (said, report) =
            asks(harness, harness.confinement(to(std::slice::from_ref(&name))), &[format!("proxy {name}")])
                .await;
        assert!(said.contains("403 Forbidden"), "{said}");
        assert!(confined(&report).refused_hosts[0].starts_with(&name), "{report:?}");
    });
}

fn hosts_are_blocked_and_reported_without_namespaces() {
    Harness::run_test(async |harness: &Harness| {
        let (address, _listener) = listening();
        let policy = CallPolicy { requirement: Requirement::BestEffort, ..to(&[address.to_string()]) };
        let confinement = Confinement { namespaces: false, ..harness.confinement(policy) };
        let (said, report) = asks(harness, confinement, &[format!("direct {address}")]).await;
        assert!(said.contains("error: "), "{said}");
        let network =
            confined(&report).safeguards.iter().find(|safeguard| safeguard.name == SafeguardName::Network);
        assert!(network.unwrap().why.contains("named hosts need bubblewrap"), "{report:?}");
    });
}
