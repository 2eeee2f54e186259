//! TLS 1.3 without a certificate authority: every rank makes its own certificate, and a handshake under the job's secret
//! gives each side the fingerprint of the other side's certificate.

use crate::crypto::sha256;
use crate::{Error, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme, version::TLS13,
};
use std::sync::Arc;

/// The name in every certificate; it is not checked.
const NAME: &str = "allfold";

/// A rank's certificate, its key, and the certificate's SHA-256.
pub(crate) struct Credentials {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
    pub fingerprint: [u8; 32],
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::System(format!("TLS cannot be set up: {error}"))
}

impl Credentials {
    /// A fresh certificate for this process.
    pub fn new() -> Result<Credentials> {
        let made = rcgen::generate_simple_self_signed([NAME.to_string()]).map_err(failed)?;
        let certificate = made.cert.der().clone();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let fingerprint = sha256(&certificate);
        Ok(Credentials { certificate, key, fingerprint })
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.key.clone_key())
    }

    /// The configuration for connecting to the holder of the certificate with this SHA-256.
    pub fn client(&self, theirs: [u8; 32]) -> Result<Arc<ClientConfig>> {
        let pinned = Pinned::new(theirs);
        let mut config = ClientConfig::builder_with_provider(pinned.provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(failed)?
            .dangerous()
            .with_custom_certificate_verifier(pinned)
            .with_client_auth_cert(vec![self.certificate.clone()], self.key())
            .map_err(failed)?;
        config.resumption = rustls::client::Resumption::disabled();
        config.enable_secret_extraction = true;
        Ok(Arc::new(config))
    }

    /// The configuration for accepting the holder of the certificate with this SHA-256.
    pub fn server(&self, theirs: [u8; 32]) -> Result<Arc<ServerConfig>> {
        let pinned = Pinned::new(theirs);
        let mut config = ServerConfig::builder_with_provider(pinned.provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(failed)?
            .with_client_cert_verifier(pinned)
            .with_single_cert(vec![self.certificate.clone()], self.key())
            .map_err(failed)?;
        config.send_tls13_tickets = 0;
        config.enable_secret_extraction = true;
        Ok(Arc::new(config))
    }

    /// The server name that a client passes to rustls.
    pub fn name() -> Result<ServerName<'static>> {
        ServerName::try_from(NAME).map_err(failed)
    }
}

/// A verifier that accepts one certificate, signed by anyone, and demands the proof that the other side holds its key.
#[derive(Debug)]
struct Pinned {
    fingerprint: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl Pinned {
    fn new(fingerprint: [u8; 32]) -> Arc<Pinned> {
        // AES-128 is preferred: it is secure enough and the fastest.
        let cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256];
        let provider = CryptoProvider { cipher_suites, ..aws_lc_rs::default_provider() };
        Arc::new(Pinned { fingerprint, provider: Arc::new(provider) })
    }

    fn is(&self, certificate: &CertificateDer<'_>) -> std::result::Result<(), rustls::Error> {
        if sha256(certificate) == self.fingerprint {
            return Ok(());
        }
        Err(rustls::Error::General("the certificate is not the one that the handshake named".into()))
    }
}

/// The methods about signatures that the verifiers of servers and of clients share: the algorithms of the provider, in TLS 1.3 alone.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _certificate: &CertificateDer<'_>,
            _signature: &DigitallySignedStruct,
        ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
            Err(rustls::Error::General("only TLS 1.3 is supported".into()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            verify_tls13_signature(message, certificate, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.provider.signature_verification_algorithms.supported_schemes()
        }
    };
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _between: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        self.is(certificate).map(|()| ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _between: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> std::result::Result<ClientCertVerified, rustls::Error> {
        self.is(certificate).map(|()| ClientCertVerified::assertion())
    }

    signatures!();
}
