//! TLS: loads certificate and key files, for the server and for the commands that contact one.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        self, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme,
        client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature},
        pki_types::{
            CertificateDer, PrivateKeyDer, ServerName, UnixTime,
            pem::{self, PemObject},
        },
    },
};

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or is not PEM.
    #[error("`{flag}`: cannot read `{path}`: {reason}{hint}", path = path.display())]
    File {
        /// The flag with the file's path.
        flag: &'static str,
        /// Its path.
        path: PathBuf,
        /// The cause. Part of the message, so it is not a `source`, which would be printed twice.
        reason: pem::Error,
        /// What the file must contain.
        hint: &'static str,
    },
    /// The certificate file has no certificate.
    #[error("`--tls-cert`: `{path}` has no certificate\nhint: it must have `BEGIN CERTIFICATE` blocks, the server's own first", path = .0.display())]
    NoCertificate(PathBuf),
    /// Certificate and key do not match.
    #[error(
        "`--tls-key` is not the key of the certificate in `--tls-cert`\nhint: the server's own certificate must come first in its file"
    )]
    KeyMismatch,
    /// They cannot be used for another reason.
    #[error("`--tls-cert` and `--tls-key` cannot be used: {0}")]
    Config(rustls::Error),
}

/// Loads the certificate chain and its private key, both PEM.
///
/// # Errors
/// A file cannot be read or has other contents, or the key does not match the certificate.
pub fn acceptor(certificates: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let chain = chain(certificates)?;
    let hint = "\nhint: it must be a PEM file with one unencrypted private key";
    let key = PrivateKeyDer::from_pem_file(key).map_err(broken("--tls-key", key, hint))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth();
    let mut config = config.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> Self {
        match error {
            rustls::Error::InconsistentKeys(_) => Self::KeyMismatch,
            other => Self::Config(other),
        }
    }
}

/// A client that connects only to the server with this certificate chain, at any address.
///
/// # Errors
/// The file cannot be read or has no certificate.
pub(crate) fn connector(certificates: &Path) -> Result<TlsConnector, TlsError> {
    let chain = chain(certificates)?;
    let provider = ring::default_provider();
    let verifier = OwnCertificate { chain, algorithms: provider.signature_verification_algorithms };
    let config = ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions()?;
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// A client that connects to servers with a certificate of a public authority.
///
/// # Errors
/// The cryptography does not support TLS 1.2 and 1.3.
pub(crate) fn public_connector() -> Result<TlsConnector, TlsError> {
    let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions()?.with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    certificates_in(path).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError::NoCertificate(path.to_owned()),
        error => broken("--tls-cert", path, "\nhint: it must be a PEM file")(error),
    })
}

/// The certificates in a PEM file.
///
/// # Errors
/// The file cannot be read or is not PEM; [`pem::Error::NoItemsFound`] if it has no certificate.
pub(crate) fn certificates_in(path: &Path) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    let certificates = CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>()?;
    if certificates.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(certificates) }
}

fn broken(flag: &'static str, path: &Path, hint: &'static str) -> impl FnOnce(pem::Error) -> TlsError {
    let path = path.to_owned();
    move |reason| TlsError::File { flag, path, reason, hint }
}

/// Accepts one certificate: the server's own, byte for byte.
///
/// Names, dates and issuers are not verified: the server may be contacted at an address that its certificate does not
/// include, such as a loopback address, and a known certificate needs no issuer. The handshake's signature is verified
/// as usual, so the peer must have the private key.
#[derive(Debug)]
struct OwnCertificate {
    chain: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for OwnCertificate {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.chain.first() == Some(end_entity) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
