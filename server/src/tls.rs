//! TLS: loads certificate and key files, for the server and for the commands that contact one.

use std::{
    error::Error,
    io, iter,
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
        /// The expected contents of the file.
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
    /// The key file has no private key that can be read without a passphrase.
    #[error("`--tls-key`: `{path}` has no unencrypted private key\nhint: it must have one `BEGIN PRIVATE KEY` block; `openssl pkey -in FILE -out NEW` removes a passphrase", path = .0.display())]
    NoKey(PathBuf),
    /// The key is not of a supported kind.
    #[error(
        "`--tls-key` must be an RSA, ECDSA (P-256, P-384 or P-521) or Ed25519 key, and it is another one or damaged"
    )]
    KeyKind,
    /// A certificate is damaged.
    #[error("`--tls-cert` has a certificate that is damaged, or no X.509 certificate")]
    DamagedCertificate,
    /// The certificate and the key cannot be used for another reason.
    #[error("`--tls-cert` and `--tls-key` cannot be used: {0}")]
    Config(rustls::Error),
}

/// Loads the certificate chain and its private key, both PEM.
///
/// # Errors
/// A file cannot be read or has other contents, or the key does not match the certificate.
pub fn acceptor(certificates: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let chain = chain(certificates)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError::NoKey(key.to_owned()),
        error => broken("--tls-key", key, "\nhint: it must be a PEM file with one unencrypted private key")(error),
    })?;
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
            rustls::Error::InvalidCertificate(CertificateError::BadEncoding) => Self::DamagedCertificate,
            // The cryptography library has no kind for this error.
            rustls::Error::General(message) if message.contains("private key") => Self::KeyKind,
            other => Self::Config(other),
        }
    }
}

/// A TLS connector that accepts only the server with this certificate chain, at any address.
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

/// Explains why a TLS connection failed, with a hint, if `error` or one of its causes is an error of TLS. `flag` is the
/// flag that takes a certificate to trust; `host` is how the server was addressed.
pub(crate) fn explained(error: &(dyn Error + 'static), host: &str, flag: &str) -> Option<String> {
    let mut causes = iter::successors(Some(error), |&error| error.source());
    let cause = causes.find_map(|cause| {
        // `io::Error` holds the cause, but its source is the cause's source.
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()).or_else(|| cause.downcast_ref())
    })?;
    let trust = format!("`{flag} FILE` accepts exactly the certificate in a PEM file, also a self-signed one");
    const RESTART: &str = "if the server's file was replaced, restart the server: it reads the file once";
    Some(match cause {
        rustls::Error::InvalidCertificate(why) => match why {
            CertificateError::ApplicationVerificationFailure => {
                format!("`{flag}` must be the certificate that the server uses, and it uses another one\nhint: {RESTART}")
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                format!("the server's certificate has expired\nhint: renew it; or {trust}")
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                format!("the server's certificate is not valid yet\nhint: check the clocks of both machines; or {trust}")
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                format!("the server's certificate is not for the name `{host}`\nhint: use a name that it lists; or {trust}")
            }
            // A certificate that is its own authority, as `openssl req -x509` makes: rustls knows it by its text only.
            CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
                format!("the server's certificate is self-signed, so no public authority vouches for it\nhint: {trust}")
            }
            CertificateError::UnknownIssuer => {
                format!("no public authority vouches for the server's certificate\nhint: {trust}")
            }
            other => format!("the server's certificate cannot be used: {other}\nhint: {trust}"),
        },
        rustls::Error::InvalidMessage(_) => {
            "the server does not speak TLS at this port\nhint: if it speaks plain HTTP, use `http://`, or no `--tls-cert`".to_owned()
        }
        rustls::Error::AlertReceived(alert) => {
            format!("the server refused the connection in TLS ({alert:?})\nhint: it must support TLS 1.2 or 1.3")
        }
        other => format!("TLS failed: {other}"),
    })
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

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::fs;

    use rustls::{AlertDescription, InvalidMessage, OtherError};

    use super::*;

    fn test_file(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/tls").join(name)
    }

    #[test]
    fn files_that_tls_cannot_use_are_errors_that_say_what_they_must_be() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let (certificate, key) = (test_file("cert.pem"), test_file("key.pem"));
        let junk = file("junk", "junk");
        let damaged = file("damaged", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        let locked =
            file("locked", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n");
        let unknown = file("unknown", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
        for (certificate, key, message) in [
            (&junk, &key, "has no certificate\nhint: it must have `BEGIN CERTIFICATE` blocks"),
            (&damaged, &key, "`--tls-cert` has a certificate that is damaged, or no X.509 certificate"),
            (&certificate, &junk, "has no unencrypted private key\nhint: "),
            (&certificate, &locked, "has no unencrypted private key\nhint: "),
            (&certificate, &unknown, "`--tls-key` must be an RSA, ECDSA (P-256, P-384 or P-521) or Ed25519 key"),
            (
                &certificate,
                &test_file("other-key.pem"),
                "`--tls-key` is not the key of the certificate in `--tls-cert`",
            ),
        ] {
            let error = acceptor(certificate, key).map(drop).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn failed_handshakes_are_explained_without_the_words_of_the_library() {
        #[derive(Debug, thiserror::Error)]
        #[error("CaUsedAsEndEntity")]
        struct CaUsedAsEndEntity;
        let other = CertificateError::Other(OtherError(Arc::new(CaUsedAsEndEntity)));
        for (error, message) in [
            (
                rustls::Error::from(other),
                "the server's certificate is self-signed, so no public authority vouches for it\nhint: `--tls-cert FILE` accepts",
            ),
            (
                CertificateError::UnknownIssuer.into(),
                "no public authority vouches for the server's certificate\nhint: ",
            ),
            (CertificateError::Expired.into(), "the server's certificate has expired\nhint: renew it"),
            (CertificateError::NotValidYet.into(), "is not valid yet\nhint: check the clocks"),
            (
                CertificateError::NotValidForName.into(),
                "the server's certificate is not for the name `example.org`\nhint: ",
            ),
            (
                CertificateError::ApplicationVerificationFailure.into(),
                "`--tls-cert` must be the certificate that the server uses",
            ),
            (
                rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType),
                "the server does not speak TLS at this port\nhint: ",
            ),
            (
                rustls::Error::AlertReceived(AlertDescription::ProtocolVersion),
                "the server refused the connection in TLS (ProtocolVersion)",
            ),
        ] {
            let error = io::Error::new(io::ErrorKind::InvalidData, error);
            let explained = explained(&error, "example.org", "--tls-cert").unwrap();
            assert!(explained.contains(message) && !explained.contains("CaUsedAsEndEntity"), "{explained}");
        }
        let reset = io::Error::from(io::ErrorKind::ConnectionReset);
        assert_eq!(explained(&reset, "example.org", "--tls-cert"), None);
    }
}
