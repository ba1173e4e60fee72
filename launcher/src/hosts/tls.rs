//! Encryption between hosts: TLS 1.3 with certificates that each process makes for itself.
//!
//! Entry points: [`Tls::new`], and [`Channel`], a connection with or without TLS. Nobody checks a certificate. Instead
//! the proofs of the preface cover a value that only the two ends of a TLS connection can compute (RFC 9266), so
//! whoever does not know the slice's secret cannot sit in between.
//!
//! The rest of this folder uses blocking sockets, and shards inherit some of them. So the encrypted side of a
//! connection belongs to a task, which copies bytes from and to a local socket.

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use endpoint::Stream;
use rustix::net::sockopt;
use tokio::runtime::Runtime;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// The name in the certificates, which nobody checks.
const NAME: &str = "host.invalid";
/// The size of the buffer in each direction, in bytes.
const BUFFER_BYTES: usize = 64 << 10;
/// The time after which an idle connection sends a packet that the other side must acknowledge.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// The label and the length of the value that binds a proof to a TLS connection (RFC 9266).
const BINDING_LABEL: &[u8] = b"EXPORTER-Channel-Binding";
const BINDING_BYTES: usize = 32;

/// A connection to another host, and the bytes that bind a proof to it: none without TLS.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) stream: Stream,
    pub(super) binding: Vec<u8>,
}

/// The TLS configuration of this process, and the threads that encrypt.
#[derive(Clone)]
pub(crate) struct Tls {
    client: TlsConnector,
    server: TlsAcceptor,
    runtime: Arc<Runtime>,
}

impl Channel {
    /// Encrypts a connection that this host has made, if there is TLS.
    ///
    /// # Errors
    /// When the handshake fails or has not ended at `until`.
    pub(super) fn connected(stream: TcpStream, tls: Option<&Tls>, until: Instant) -> io::Result<Self> {
        set_options(&stream)?;
        let Some(tls) = tls else { return Self::plain(stream) };
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        tls.encrypt(stream, until, async |stream| tls.client.connect(name, stream).await.map(TlsStream::from))
    }

    /// Encrypts a connection that was made to this host, if there is TLS.
    ///
    /// # Errors
    /// When the handshake fails or has not ended at `until`.
    pub(super) fn accepted(stream: TcpStream, tls: Option<&Tls>, until: Instant) -> io::Result<Self> {
        set_options(&stream)?;
        let Some(tls) = tls else { return Self::plain(stream) };
        tls.encrypt(stream, until, async |stream| tls.server.accept(stream).await.map(TlsStream::from))
    }

    fn plain(stream: TcpStream) -> io::Result<Self> {
        Ok(Self { stream: Stream::Tcp(stream), binding: Vec::new() })
    }
}

impl Tls {
    /// Makes a certificate and starts the threads.
    ///
    /// # Errors
    /// When the certificate cannot be made or no thread can be started.
    pub(crate) fn new() -> io::Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let own = rcgen::generate_simple_self_signed([NAME.to_owned()]).map_err(io::Error::other)?;
        let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key.into())
            .map_err(io::Error::other)?;
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (client, server) = (TlsConnector::from(Arc::new(client)), TlsAcceptor::from(Arc::new(server)));
        Ok(Self { client, server, runtime: Arc::new(runtime) })
    }

    /// Performs a handshake, and copies between the encrypted connection and a local socket until both have ended.
    fn encrypt(
        &self,
        stream: TcpStream,
        until: Instant,
        handshake: impl AsyncFnOnce(tokio::net::TcpStream) -> io::Result<TlsStream<tokio::net::TcpStream>>,
    ) -> io::Result<Channel> {
        stream.set_nonblocking(true)?;
        let (ours, theirs) = UnixStream::pair()?;
        theirs.set_nonblocking(true)?;
        let (mut encrypted, mut local) = self.runtime.block_on(async {
            let stream = tokio::net::TcpStream::from_std(stream)?;
            let encrypted = tokio::time::timeout_at(until.into(), handshake(stream)).await??;
            Ok::<_, io::Error>((encrypted, tokio::net::UnixStream::from_std(theirs)?))
        })?;
        let mut binding = vec![0; BINDING_BYTES];
        let exported = match &encrypted {
            TlsStream::Client(stream) => stream.get_ref().1.export_keying_material(&mut binding, BINDING_LABEL, None),
            TlsStream::Server(stream) => stream.get_ref().1.export_keying_material(&mut binding, BINDING_LABEL, None),
        };
        exported.map_err(io::Error::other)?;
        self.runtime.spawn(async move {
            let (encrypted, local) = (&mut encrypted, &mut local);
            // An error ends both sockets, which the other side of each notices.
            let _ = tokio::io::copy_bidirectional_with_sizes(encrypted, local, BUFFER_BYTES, BUFFER_BYTES).await;
        });
        Ok(Channel { stream: Stream::Unix(ours), binding })
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

/// Sends small messages at once, and keeps an idle connection known to the network, such as a firewall's table.
fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    Ok(sockopt::set_tcp_keepintvl(stream, KEEPALIVE)?)
}

/// Accepts every certificate whose key signs the handshake. The preface authenticates the connection.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken between hosts".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
