//! Replaces `tls` in a build without TLS: no value of these types exists, and a request for one is an error that states the reason.

use crate::{Error, Result};
use std::io;
use tokio::net::TcpStream;

/// The key and certificate of a rank, which a build without TLS does not have.
pub(crate) struct Credentials {
    pub fingerprint: [u8; 32],
    none: None,
}

enum None {}

/// Both directions of a TLS connection, which a build without TLS does not have.
pub(crate) struct Records(None);

/// The result of [`Records::open`], for code that matches on it.
#[allow(dead_code)]
pub(crate) enum Opened {
    Bytes(usize),
    Wanting,
    Closed,
}

impl Credentials {
    pub fn new() -> Result<Credentials> {
        Err(Error::Argument(
            "this program was built without TLS: build it with the feature `tls`, or choose another mode by \
             ALLFOLD_SECURITY (trusted-fabric on a network that is yours alone)"
                .into(),
        ))
    }
}

pub(crate) async fn connect(own: &Credentials, _: [u8; 32], _: &mut TcpStream) -> io::Result<Records> {
    match own.none {}
}

pub(crate) async fn accept(own: &Credentials, _: [u8; 32], _: &mut TcpStream) -> io::Result<Records> {
    match own.none {}
}

impl Records {
    pub fn open(&mut self, _: &mut [u8]) -> io::Result<Opened> {
        match self.0 {}
    }

    pub fn read_buffer(&mut self) -> &mut [u8] {
        match self.0 {}
    }

    pub fn filled(&mut self, _: usize) -> io::Result<()> {
        match self.0 {}
    }

    pub fn seal(&mut self, _: &[u8], _: &[u8]) -> io::Result<usize> {
        match self.0 {}
    }

    pub fn held(&self) -> &[u8] {
        match self.0 {}
    }

    pub fn written(&mut self, _: usize) {
        match self.0 {}
    }

    pub fn close(&mut self) {
        match self.0 {}
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use crate::{Authenticator, Secret, Security};
    use std::time::Duration;

    #[test]
    fn a_build_without_tls_reports_a_remedy() {
        let refused = Authenticator::new(Security::Tls(Secret::new([1; 32])), Duration::from_secs(1));
        let error = refused.err().unwrap().to_string();
        assert!(error.contains("feature `tls`") && error.contains("trusted-fabric"), "{error}");
        Authenticator::new(Security::TrustedFabric(Secret::new([1; 32])), Duration::from_secs(1)).unwrap();
    }
}
