//! A server behind TLS: trusted and untrusted certificates.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use model::StateName;
use rcgen::{BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use store::{Certainty, Opening, Redactor, Setting, Store, StoreError, WatchEvent};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::bed::{block_on, fresh_name};
use crate::calls::{claimed, order, success};
use crate::server::{Server, credentials};

crate::tests![
    a_server_behind_tls_is_used_like_any_other,
    a_certificate_that_nobody_known_has_signed_is_refused,
    a_certificate_for_another_host_is_refused,
    a_certificate_that_is_out_of_date_is_refused,
    a_certificate_that_calls_itself_an_authority_is_refused,
    tls_on_one_side_only_is_no_connection,
];

/// A CA that signs certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    file: PathBuf,
    _folder: TempDir,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Two CAs with the same name would only differ in their signatures.
        params.distinguished_name.push(DnType::CommonName, fresh_name());
        let key = KeyPair::generate().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        Self { issuer: Issuer::new(params, key), file, _folder: folder }
    }

    fn sign(&self, params: &CertificateParams) -> ServerConfig {
        let key = KeyPair::generate().unwrap();
        serving(&params.signed_by(&key, &self.issuer).unwrap(), &key)
    }
}

fn serving(certificate: &Certificate, key: &KeyPair) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap()
}

fn certificate_for(host: &str) -> CertificateParams {
    CertificateParams::new([host.to_owned()]).unwrap()
}

/// A proxy that terminates TLS.
struct Door {
    port: u16,
    open: Arc<Mutex<JoinSet<()>>>,
    _accepting: JoinSet<()>,
}

impl Door {
    async fn to(server: u16, config: ServerConfig) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let open: Arc<Mutex<JoinSet<()>>> = Arc::default();
        let (mut accepting, carrying) = (JoinSet::new(), open.clone());
        accepting.spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                carrying.lock().await.spawn(async move {
                    let Ok(mut near) = acceptor.accept(near).await else { return };
                    let Ok(mut far) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await else { return };
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
            }
        });
        Self { port, open, _accepting: accepting }
    }

    /// Closes all connections.
    async fn cut(&self) {
        self.open.lock().await.shutdown().await;
    }
}

async fn open(scheme: &str, port: u16, ca_file: Option<&Path>) -> Result<Store, StoreError> {
    let setting: Setting = format!("{scheme}://127.0.0.1:{port}/test/tls").parse().unwrap();
    Store::open(Opening {
        credentials: Some(credentials()),
        ca_file: ca_file.map(Path::to_owned),
        redactor: Redactor::none(),
        ..Opening::new(setting, "unused")
    })
    .await
}

fn a_server_behind_tls_is_used_like_any_other() {
    let (server, authority) = (Server::start("memory"), Authority::new());
    block_on(async {
        let door = Door::to(server.port, authority.sign(&certificate_for("127.0.0.1"))).await;
        let store = open("wss", door.port, Some(&authority.file)).await.unwrap();
        let mut watch = store.watch().await.unwrap();
        let placed = store.submit(order(&"through the door ".repeat(10_000))).await.unwrap().job;
        let told = tokio::time::timeout(std::time::Duration::from_secs(30), watch.next()).await;
        assert!(
            matches!(told, Ok(Some(WatchEvent::Changed(ref change))) if change.job == placed.id),
            "{told:?}"
        );
        let (job, claim) = claimed(&store, "a").await;
        assert_eq!(job.order, placed.order);
        // The client reconnects and trusts the same CA as before.
        door.cut().await;
        store.finish(&claim, success("x")).await.unwrap();
        let direct = open("ws", server.port, None).await.unwrap();
        let ended = direct.get(placed.id).await.unwrap().unwrap();
        assert_eq!(ended.progress.state.name(), StateName::Completed);
    });
}

/// Returns the error for an untrusted server.
fn refusal(params: &CertificateParams, believed: Option<&Authority>) -> StoreError {
    let (server, authority) = (Server::start("memory"), Authority::new());
    block_on(async {
        let door = Door::to(server.port, authority.sign(params)).await;
        let ca_file = believed.map_or(&authority.file, |other| &other.file);
        let error = open("wss", door.port, Some(ca_file)).await.unwrap_err();
        let place = format!("wss://127.0.0.1:{}/test/tls", door.port);
        assert!(matches!(error, StoreError::Untrusted { .. }), "{error:?}");
        assert_eq!(error.to_string(), format!("the certificate of the store `{place}` is not trusted"));
        assert!(error.hint().contains("`store_ca_file`"));
        assert_eq!(error.certainty(), Certainty::NotDone);
        error
    })
}

fn cause(error: &StoreError) -> String {
    std::error::Error::source(error).unwrap().to_string()
}

fn a_certificate_that_nobody_known_has_signed_is_refused() {
    let error = refusal(&certificate_for("127.0.0.1"), Some(&Authority::new()));
    assert!(cause(&error).contains("UnknownIssuer"), "{error:?}");
    // Without a file the Mozilla roots are trusted, which do not include ours.
    let (server, authority) = (Server::start("memory"), Authority::new());
    let error = block_on(async {
        let door = Door::to(server.port, authority.sign(&certificate_for("127.0.0.1"))).await;
        open("wss", door.port, None).await.unwrap_err()
    });
    assert!(matches!(error, StoreError::Untrusted { .. }), "{error:?}");
}

fn a_certificate_for_another_host_is_refused() {
    let error = refusal(&certificate_for("db.example"), None);
    assert!(cause(&error).contains("db.example"), "{error:?}");
}

fn a_certificate_that_is_out_of_date_is_refused() {
    let mut params = certificate_for("127.0.0.1");
    params.not_before = SystemTime::UNIX_EPOCH.into();
    params.not_after = (SystemTime::UNIX_EPOCH + std::time::Duration::from_hours(24)).into();
    let error = refusal(&params, None);
    assert!(cause(&error).contains("expired"), "{error:?}");
}

fn a_certificate_that_calls_itself_an_authority_is_refused() {
    let mut params = certificate_for("127.0.0.1");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let own = params.self_signed(&key).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, own.pem()).unwrap();
    let server = Server::start("memory");
    let error = block_on(async {
        let door = Door::to(server.port, serving(&own, &key)).await;
        open("wss", door.port, Some(&file)).await.unwrap_err()
    });
    assert!(matches!(error, StoreError::Untrusted { .. }), "{error:?}");
    assert!(cause(&error).contains("CaUsedAsEndEntity"), "{error:?}");
}

fn tls_on_one_side_only_is_no_connection() {
    let (server, authority) = (Server::start("memory"), Authority::new());
    block_on(async {
        let door = Door::to(server.port, authority.sign(&certificate_for("127.0.0.1"))).await;
        for (scheme, port) in [("ws", door.port), ("wss", server.port)] {
            let error = open(scheme, port, Some(&authority.file)).await.unwrap_err();
            assert!(matches!(error, StoreError::Unreachable { .. }), "{scheme}: {error:?}");
        }
    });
}
