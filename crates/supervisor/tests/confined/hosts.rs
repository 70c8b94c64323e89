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
        let (method, host) = line.split_once(' ')?;
        let result = match method {
            "direct" => connect_directly(host),
            "datagram" => UdpSocket::bind("0.0.0.0:0")
                .and_then(|socket| socket.send_to(b"x", host))
                .map(|_| "sent".into()),
            _ => connect_through_proxy(host),
        };
        println!("{line}: {}", result.unwrap_or_else(|error| format!("error: {error}")).trim());
    }
    println!("exceptions: {:?}", std::env::var("NO_PROXY"));
    Some(ExitCode::SUCCESS)
}

fn connect_directly(host: &str) -> std::io::Result<String> {
    let address: SocketAddr = host.parse().map_err(std::io::Error::other)?;
    send_and_receive(TcpStream::connect_timeout(&address, Duration::from_secs(5))?, "hello")
}

fn connect_through_proxy(host: &str) -> std::io::Result<String> {
    let proxy = std::env::var("https_proxy").map_err(std::io::Error::other)?;
    let stream = TcpStream::connect(proxy.trim_start_matches("http://"))?;
    let output = send_and_receive(stream, &format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\nhello"))?;
    Ok(output.split_whitespace().skip(1).collect::<Vec<_>>().join(" "))
}

fn send_and_receive(mut stream: TcpStream, request: &str) -> std::io::Result<String> {
    stream.write_all(request.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply)
}

/// Starts a server on loopback that replies to each connection and counts them.
fn listening() -> (SocketAddr, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let own = listener.try_clone().unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = own.accept() {
            let mut received = [0; 100];
            let count = stream.read(&mut received).unwrap_or_default();
            let _ = stream.write_all(b"heard ").and_then(|()| stream.write_all(&received[..count]));
        }
    });
    (address, listener)
}

/// Lets an agent connect. Returns the result of each connection, and the report.
async fn connect_from_agent(
    harness: &Harness,
    confinement: Confinement,
    targets: &[String],
) -> (String, RunReport) {
    let args: Vec<&str> = std::iter::once(ASK).chain(targets.iter().map(String::as_str)).collect();
    let report = harness.run(&harness.plan(confinement, &args)).await;
    (harness.output() + &harness.error(), report)
}

fn policy_for(hosts: &[String]) -> CallPolicy {
    CallPolicy { network: Network::Hosts(hosts.to_vec()), ..Preset::Workspace.into() }
}

fn only_listed_host_is_reached_through_proxy() {
    Harness::run_test(async |harness: &Harness| {
        let (listed, _one) = listening();
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = silent.local_addr().unwrap();
        let targets = [
            format!("proxy {listed}"),
            format!("proxy {other}"),
            format!("proxy localhost:{}", listed.port()),
            "proxy example.com:443".to_owned(),
            "proxy 169.254.169.254:80".to_owned(),
            format!("direct {listed}"),
            format!("direct {other}"),
            format!("datagram {other}"),
        ];
        let (output, report) =
            connect_from_agent(harness, harness.confinement(policy_for(&[listed.to_string()])), &targets)
                .await;
        let result_of = |target: &str| {
            let line = output.lines().find(|line| line.starts_with(target));
            line.unwrap_or_else(|| panic!("{target} in {output}")).to_owned()
        };
        assert!(result_of(&targets[0]).ends_with("200 Connection established heard hello"), "{output}");
        for refused in &targets[1..5] {
            assert!(result_of(refused).contains(": 403 Forbidden"), "{output}");
        }
        for direct in &targets[5..7] {
            assert!(result_of(direct).contains("error: "), "{output}");
        }
        assert!(output.contains("exceptions: Ok(\"\")"), "{output}");
        silent.set_nonblocking(true).unwrap();
        assert!(silent.accept().is_err(), "who is not listed was reached");
        let confined = confined(&report);
        let expected = [other.to_string(), "example.com:443".to_owned(), "169.254.169.254:80".to_owned()];
        assert!(expected.iter().all(|host| confined.refused_hosts.contains(host)), "{confined:?}");
        assert!(!confined.refused_hosts.contains(&listed.to_string()), "{confined:?}");
        let network = confined.safeguards.iter().find(|safeguard| safeguard.name == SafeguardName::Network);
        assert_eq!(network.unwrap().enforcement, Enforcement::Full);
        let tried = confined.proof.as_ref().unwrap().escapes.iter();
        assert!(
            tried
                .filter(|attempt| attempt.tried == "connect to a port outside")
                .all(|attempt| attempt.stopped)
        );
    });
}

fn listed_name_of_this_machine_is_not_reached() {
    Harness::run_test(async |harness: &Harness| {
        let (address, _listener) = listening();
        let name = format!("localhost:{}", address.port());
        let (output, report) = connect_from_agent(
            harness,
            harness.confinement(policy_for(std::slice::from_ref(&name))),
            &[format!("proxy {name}")],
        )
        .await;
        assert!(output.contains("403 Forbidden"), "{output}");
        assert!(confined(&report).refused_hosts[0].starts_with(&name), "{report:?}");
    });
}

fn hosts_are_blocked_and_reported_without_namespaces() {
    Harness::run_test(async |harness: &Harness| {
        let (address, _listener) = listening();
        let policy =
            CallPolicy { requirement: Requirement::BestEffort, ..policy_for(&[address.to_string()]) };
        let confinement = Confinement { namespaces: false, ..harness.confinement(policy) };
        let (output, report) = connect_from_agent(harness, confinement, &[format!("direct {address}")]).await;
        assert!(output.contains("error: "), "{output}");
        let network =
            confined(&report).safeguards.iter().find(|safeguard| safeguard.name == SafeguardName::Network);
        assert!(network.unwrap().why.contains("named hosts need bubblewrap"), "{report:?}");
    });
}
