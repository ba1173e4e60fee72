//! TLS for the listener: a certificate chain and its key, read once from PEM files.
//!
//! Entry point: [`Tls`]. It supports TLS 1.2 and 1.3 with HTTP/1.1. A private key is never printed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::{Accept, TlsAcceptor};

/// A certificate chain and its private key, ready for handshakes. Clones are cheap.
#[derive(Clone)]
pub(crate) struct Tls(TlsAcceptor);

/// The reason why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("`tls_{given}file` is set and `tls_{missing}file` is not; TLS needs both")]
    Half { given: &'static str, missing: &'static str },
    #[error("`tls_{what}file` {path} has no {wanted} in PEM: {source}")]
    File { what: &'static str, wanted: &'static str, path: PathBuf, source: pem::Error },
    #[error("`tls_certfile` {certfile} and `tls_keyfile` {keyfile} cannot be used together: {source}")]
    Pair { certfile: PathBuf, keyfile: PathBuf, source: rustls::Error },
}

impl Tls {
    /// Returns the certificate chain and key in these files, or `None` if no file is named.
    ///
    /// # Errors
    /// When only one file is named, a file cannot be read or lacks the certificate or the private key, or the two do
    /// not belong together.
    pub(crate) fn load(certfile: Option<&Path>, keyfile: Option<&Path>) -> Result<Option<Self>, TlsError> {
        let (certfile, keyfile) = match (certfile, keyfile) {
            (None, None) => return Ok(None),
            (Some(certfile), Some(keyfile)) => (certfile, keyfile),
            (Some(_), None) => return Err(TlsError::Half { given: "cert", missing: "key" }),
            (None, Some(_)) => return Err(TlsError::Half { given: "key", missing: "cert" }),
        };
        let chain = read_chain(certfile).map_err(|source| {
            let (what, wanted) = ("cert", "certificate");
            TlsError::File { what, wanted, path: certfile.into(), source }
        })?;
        let key = PrivateKeyDer::from_pem_file(keyfile).map_err(|source| {
            let (what, wanted) = ("key", "private key");
            TlsError::File { what, wanted, path: keyfile.into(), source }
        })?;
        let config = server_config(chain, key);
        let pair = |source| TlsError::Pair { certfile: certfile.into(), keyfile: keyfile.into(), source };
        Ok(Some(Self(TlsAcceptor::from(Arc::new(config.map_err(pair)?)))))
    }

    /// Performs the handshake with a client.
    pub(crate) fn accept<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(&self, stream: S) -> Accept<S> {
        self.0.accept(stream)
    }
}

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    let chain = CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>()?;
    if chain.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(chain) }
}

fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(…)")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn error(certfile: Option<&Path>, keyfile: Option<&Path>) -> String {
        Tls::load(certfile, keyfile).unwrap_err().to_string()
    }

    #[test]
    fn a_pair_is_an_identity_and_anything_else_says_what_is_wrong() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let [one, other] = ["one", "other"].map(|name| rcgen::generate_simple_self_signed([name.to_owned()]).unwrap());
        fs::write(path("cert"), one.cert.pem()).unwrap();
        fs::write(path("key"), one.signing_key.serialize_pem()).unwrap();
        fs::write(path("other"), other.signing_key.serialize_pem()).unwrap();
        fs::write(path("text"), "hello").unwrap();
        let [cert, key, other, text, nothing] = ["cert", "key", "other", "text", "nothing"].map(path);

        assert!(Tls::load(None, None).unwrap().is_none());
        assert_eq!(format!("{:?}", Tls::load(Some(&cert), Some(&key)).unwrap().unwrap()), "Tls(…)");

        insta::assert_snapshot!(
            error(Some(&cert), None),
            @"`tls_certfile` is set and `tls_keyfile` is not; TLS needs both"
        );
        insta::assert_snapshot!(
            error(None, Some(&key)),
            @"`tls_keyfile` is set and `tls_certfile` is not; TLS needs both"
        );
        let missing = error(Some(&nothing), Some(&key));
        assert!(missing.starts_with("`tls_certfile` ") && missing.contains("No such file"), "{missing}");
        let no_cert = error(Some(&text), Some(&key));
        assert!(no_cert.contains("/text has no certificate in PEM: "), "{no_cert}");
        let no_key = error(Some(&cert), Some(&cert));
        assert!(no_key.starts_with("`tls_keyfile` ") && no_key.contains("/cert has no private key in PEM"), "{no_key}");
        let stranger = error(Some(&cert), Some(&other));
        assert!(
            stranger.contains("/other cannot be used together: ") && stranger.to_lowercase().contains("mismatch"),
            "{stranger}"
        );
    }
}
