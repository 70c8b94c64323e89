//! Verifies the certificate of a `wss://` server against the root certificates of Mozilla, or against a CA file.
//!
//! Offers no setting that disables verification.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{ClientConfig, RootCertStore};

use crate::error::{Cause, StoreError};

/// The start of every rustls message about a certificate. The client library returns no error code.
const BAD_CERTIFICATE: &str = "invalid peer certificate";

/// Returns a TLS configuration that trusts only the CAs in a file; without a file, the root certificates of Mozilla.
pub fn tls_config(ca_file: Option<&Path>) -> Result<ClientConfig, StoreError> {
    let roots = match ca_file {
        Some(path) => read_ca_file(path)
            .map_err(|source| StoreError::NoCaCertificates { path: path.to_owned(), source })?,
        None => webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect(),
    };
    // Explicit: with two providers built in, choosing the default one panics.
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Engine { location: "TLS".to_owned(), source: error.into() })?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// Reads the CA certificates of a PEM file. Ignores unusable certificates if at least one is usable.
fn read_ca_file(path: &Path) -> Result<RootCertStore, Cause> {
    let read: Result<Vec<_>, pem::Error> = CertificateDer::pem_file_iter(path)?.collect();
    let mut roots = RootCertStore::empty();
    let (usable, ignored) = roots.add_parsable_certificates(read?);
    match (usable, ignored) {
        (0, 0) => Err("it contains no PEM certificate".into()),
        (0, bad) => Err(format!("none of its {bad} certificates is valid").into()),
        _ => Ok(roots),
    }
}

pub fn is_untrusted(error: &surrealdb::Error) -> bool {
    error.message().contains(BAD_CERTIFICATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ca_file_error(text: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca.pem");
        std::fs::write(&path, text).unwrap();
        let error = tls_config(Some(&path)).unwrap_err();
        assert!(error.to_string().ends_with("ca.pem`"), "{error}");
        std::error::Error::source(&error).unwrap().to_string()
    }

    #[test]
    fn ca_file_without_certificates_is_rejected() {
        assert_eq!(ca_file_error("dear diary"), "it contains no PEM certificate");
        let nonsense = "-----BEGIN CERTIFICATE-----\nbm9uc2Vuc2U=\n-----END CERTIFICATE-----\n";
        assert_eq!(ca_file_error(nonsense), "none of its 1 certificates is valid");
        let missing = tls_config(Some(Path::new("/nonexistent/ca.pem"))).unwrap_err();
        assert!(matches!(missing, StoreError::NoCaCertificates { .. }), "{missing:?}");
        assert!(missing.hint().contains("PEM"));
    }

    #[test]
    fn mozilla_roots_are_the_default() {
        assert!(tls_config(None).is_ok());
    }
}
