//! A server behind TLS: trusted and untrusted certificates.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use model::StateName;
use rcgen::{BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use store::{Certainty, Redactor, Store, StoreError, StoreOptions, StoreSetting, WatchEvent};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::fixtures::{claimed, new_job, success};
use crate::harness::{block_on, fresh_name};
use crate::server::{SurrealServer, credentials};

testkit::tests![
    store_works_over_tls,
    certificate_of_unknown_ca_is_rejected,
    certificate_for_other_host_is_rejected,
    expired_certificate_is_rejected,
    ca_certificate_as_server_certificate_is_rejected,
    tls_mismatch_is_unreachable,
];

/// A CA that signs certificates.
struct TestCa {
    issuer: Issuer<'static, KeyPair>,
    file: PathBuf,
    _directory: TempDir,
}

impl TestCa {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Two CAs with the same name would only differ in their signatures.
        params.distinguished_name.push(DnType::CommonName, fresh_name());
        let key = KeyPair::generate().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ca.pem");
        std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        Self { issuer: Issuer::new(params, key), file, _directory: directory }
    }

    fn sign(&self, params: &CertificateParams) -> ServerConfig {
        let key = KeyPair::generate().unwrap();
        server_config(&params.signed_by(&key, &self.issuer).unwrap(), &key)
    }
}

fn server_config(certificate: &Certificate, key: &KeyPair) -> ServerConfig {
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
struct TlsProxy {
    port: u16,
    open: Arc<Mutex<JoinSet<()>>>,
    _acceptor: JoinSet<()>,
}

impl TlsProxy {
    async fn start(server: u16, config: ServerConfig) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let open: Arc<Mutex<JoinSet<()>>> = Arc::default();
        let (mut acceptor_task, open_connections) = (JoinSet::new(), open.clone());
        acceptor_task.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                open_connections.lock().await.spawn(async move {
                    let Ok(mut client) = acceptor.accept(client).await else { return };
                    let Ok(mut upstream) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await else {
                        return;
                    };
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
                });
            }
        });
        Self { port, open, _acceptor: acceptor_task }
    }

    /// Closes all connections.
    async fn disconnect(&self) {
        self.open.lock().await.shutdown().await;
    }
}

async fn open(scheme: &str, port: u16, ca_file: Option<&Path>) -> Result<Store, StoreError> {
    let setting: StoreSetting = format!("{scheme}://127.0.0.1:{port}/test/tls").parse().unwrap();
    Store::open(StoreOptions {
        credentials: Some(credentials()),
        ca_file: ca_file.map(Path::to_owned),
        redactor: Redactor::none(),
        ..StoreOptions::new(setting, "unused")
    })
    .await
}

fn store_works_over_tls() {
    let (server, ca) = (SurrealServer::start("memory"), TestCa::new());
    block_on(async {
        let proxy = TlsProxy::start(server.port, ca.sign(&certificate_for("127.0.0.1"))).await;
        let store = open("wss", proxy.port, Some(&ca.file)).await.unwrap();
        let mut watch = store.watch().await.unwrap();
        let submitted = store.submit(new_job(&"through the proxy ".repeat(10_000))).await.unwrap().job;
        let event = tokio::time::timeout(std::time::Duration::from_secs(30), watch.next()).await;
        assert!(
            matches!(event, Ok(Some(WatchEvent::Changed(ref change))) if change.job == submitted.id),
            "{event:?}"
        );
        let (job, claim) = claimed(&store, "a").await;
        assert_eq!(job.order, submitted.order);
        // The client reconnects and trusts the same CA as before.
        proxy.disconnect().await;
        store.finish(&claim, success("x")).await.unwrap();
        let direct = open("ws", server.port, None).await.unwrap();
        let ended = direct.get(submitted.id).await.unwrap().unwrap();
        assert_eq!(ended.progress.state.name(), StateName::Completed);
    });
}

/// Returns the error for an untrusted server.
fn untrusted_error(params: &CertificateParams, trusted: Option<&TestCa>) -> StoreError {
    let (server, ca) = (SurrealServer::start("memory"), TestCa::new());
    block_on(async {
        let proxy = TlsProxy::start(server.port, ca.sign(params)).await;
        let ca_file = trusted.map_or(&ca.file, |other| &other.file);
        let error = open("wss", proxy.port, Some(ca_file)).await.unwrap_err();
        let location = format!("wss://127.0.0.1:{}/test/tls", proxy.port);
        assert!(matches!(error, StoreError::Untrusted { .. }), "{error:?}");
        assert_eq!(error.to_string(), format!("the certificate of the store `{location}` is not trusted"));
        assert!(error.hint().contains("`store_ca_file`"));
        assert_eq!(error.certainty(), Certainty::NotDone);
        error
    })
}

fn cause(error: &StoreError) -> String {
    std::error::Error::source(error).unwrap().to_string()
}

fn certificate_of_unknown_ca_is_rejected() {
    let error = untrusted_error(&certificate_for("127.0.0.1"), Some(&TestCa::new()));
    assert!(cause(&error).contains("UnknownIssuer"), "{error:?}");
    // Without a file the Mozilla roots are trusted, which do not include ours.
    let (server, ca) = (SurrealServer::start("memory"), TestCa::new());
    let error = block_on(async {
        let proxy = TlsProxy::start(server.port, ca.sign(&certificate_for("127.0.0.1"))).await;
        open("wss", proxy.port, None).await.unwrap_err()
    });
    assert!(matches!(error, StoreError::Untrusted { .. }), "{error:?}");
}

fn certificate_for_other_host_is_rejected() {
    let error = untrusted_error(&certificate_for("db.example"), None);
    assert!(cause(&error).contains("db.example"), "{error:?}");
}

fn expired_certificate_is_rejected() {
    let mut params = certificate_for("127.0.0.1");
    params.not_before = SystemTime::UNIX_EPOCH.into();
    params.not_after = (SystemTime::UNIX_EPOCH + std::time::Duration::from_hours(24)).into();
    let error = untrusted_error(&params, None);
    assert!(cause(&error).contains("expired"), "{error:?}");
}

fn ca_certificate_as_server_certificate_is_rejected() {
    let mut params = certificate_for("127.0.0.1");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let own = params.self_signed(&key).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.pem");
    std::fs::write(&file, own.pem()).unwrap();
    let server = SurrealServer::start("memory");
    let error = block_on(async {
        let proxy = TlsProxy::start(server.port, server_config(&own, &key)).await;
        open("wss", proxy.port, Some(&file)).await.unwrap_err()
    });
    assert!(matches!(error, StoreError::Untrusted { .. }), "{error:?}");
    assert!(cause(&error).contains("CaUsedAsEndEntity"), "{error:?}");
}

fn tls_mismatch_is_unreachable() {
    let (server, ca) = (SurrealServer::start("memory"), TestCa::new());
    block_on(async {
        let proxy = TlsProxy::start(server.port, ca.sign(&certificate_for("127.0.0.1"))).await;
        for (scheme, port) in [("ws", proxy.port), ("wss", server.port)] {
            let error = open(scheme, port, Some(&ca.file)).await.unwrap_err();
            assert!(matches!(error, StoreError::Unreachable { .. }), "{scheme}: {error:?}");
        }
    });
}
