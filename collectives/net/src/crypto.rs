//! Random bytes, hashes and tags for the handshake.

use crate::{Error, Result};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

/// Random bytes from the operating system.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    fill(&mut bytes)?;
    Ok(bytes)
}

/// Fills `bytes` with random bytes from the operating system.
pub(crate) fn fill(bytes: &mut [u8]) -> Result<()> {
    let failed = |error| Error::System(format!("the operating system's random generator fails: {error}"));
    getrandom::fill(bytes).map_err(failed)
}

/// The SHA-256 hash of `bytes`.
#[cfg(feature = "tls")]
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    use sha2::Digest;
    Sha256::digest(bytes).into()
}

/// HMAC-SHA-256 (RFC 2104) of the concatenation of `pieces`.
pub fn tag(key: &[u8; 32], pieces: [&[u8]; 2]) -> [u8; 32] {
    hmac(key, pieces).finalize().into_bytes().into()
}

/// Whether `tag` is the tag of `pieces`. The comparison takes constant time.
pub fn holds(key: &[u8; 32], pieces: [&[u8]; 2], tag: &[u8]) -> bool {
    hmac(key, pieces).verify_slice(tag).is_ok()
}

fn hmac(key: &[u8; 32], pieces: [&[u8]; 2]) -> Hmac<Sha256> {
    // A key shorter than a block of SHA-256 is padded with zeros. The block is wiped, because it holds the key.
    let mut block = Zeroizing::new([0; 64]);
    block[..key.len()].copy_from_slice(key);
    let mut hmac = <Hmac<Sha256> as KeyInit>::new((&*block).into());
    pieces.into_iter().for_each(|piece| hmac.update(piece));
    hmac
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value that Python's `hmac` gives, for a key of the bytes 0 to 31.
    #[test]
    fn tags_are_those_of_the_standard_and_depend_on_every_bit() {
        let key: [u8; 32] = std::array::from_fn(|byte| byte as u8);
        let said = [&b"connector"[..], &b"said"[..]];
        let mut made = tag(&key, said);
        let hex: String = made.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "e11f2e095e1dd88a2d29772e3380a6d849fd9b954d8eb4de0e718fa2d8b416c8");
        assert!(holds(&key, said, &made));
        made[31] ^= 1;
        assert!(!holds(&key, said, &made) && !holds(&key, said, &made[..31]));
    }
}
