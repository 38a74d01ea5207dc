//! TLS: the certificate and key files, and what rustls makes of them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, ServerConfig,
        crypto::ring,
        pki_types::{
            CertificateDer, PrivateKeyDer,
            pem::{self, PemObject},
        },
    },
};

/// Why TLS cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("`{flag}`: cannot read `{path}`: {source}{hint}", path = path.display())]
    File {
        /// The flag that names it.
        flag: &'static str,
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        source: pem::Error,
        /// What would be right.
        hint: &'static str,
    },
    /// The certificate file holds no certificate.
    #[error("`--tls-cert`: `{path}` holds no certificate\nhint: it must hold `BEGIN CERTIFICATE` blocks, the server's own first", path = .0.display())]
    NoCertificate(PathBuf),
    /// Certificate and key do not make a server.
    #[error("`--tls-cert` and `--tls-key` cannot be used together: {0}")]
    Config(#[from] rustls::Error),
}

/// Opens the certificate chain and its private key, both PEM.
///
/// # Errors
/// A file cannot be read or does not hold what it should, or the key is another certificate's.
pub fn acceptor(certificates: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let broken = |flag, path: &Path, hint| {
        let path = path.to_owned();
        move |source| TlsError::File { flag, path, source, hint }
    };
    let chain = CertificateDer::pem_file_iter(certificates).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(broken("--tls-cert", certificates, "\nhint: it must be a PEM file"))?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate(certificates.to_owned()));
    }
    let hint = "\nhint: it must be a PEM file with one unencrypted private key";
    let key = PrivateKeyDer::from_pem_file(key).map_err(broken("--tls-key", key, hint))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth();
    let mut config = config.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
