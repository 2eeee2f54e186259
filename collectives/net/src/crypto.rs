//! Random bytes and hashes, by the library that the handshake uses.

use crate::{Error, Result};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};

/// Random bytes from the operating system.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let failed = |_| Error::System("the operating system's random generator fails".into());
    SystemRandom::new().fill(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// SHA-256.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, bytes).as_ref());
    out
}
