//! The encryption of records.

use allfold_kernels::copy_large;
use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rustls::ConnectionTrafficSecrets;
use std::io;

/// The size in bytes of the tag that authenticates a record.
pub const TAG: usize = 16;
/// The size of a nonce in bytes.
pub const NONCE: usize = 12;

/// A key for one direction.
pub struct Aead(LessSafeKey);

/// A record that is not what its sender sealed.
#[derive(Debug)]
pub struct Forged;

impl Aead {
    /// The key, and the IV from which nonces are made.
    pub fn new(secrets: &ConnectionTrafficSecrets) -> io::Result<(Aead, [u8; NONCE])> {
        let (algorithm, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(super::refusal::invalid("TLS agreed on a cipher that is unknown here")),
        };
        let iv = iv.as_ref().try_into().map_err(super::refusal::invalid)?;
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(super::refusal::invalid)?;
        Ok((Aead(LessSafeKey::new(key)), iv))
    }

    /// Seals `first`, `second` and a last byte into `out`, which has space for them and the tag.
    pub fn seal(
        &self,
        nonce: [u8; NONCE],
        front: &[u8],
        (first, second, last): (&[u8], &[u8], u8),
        out: &mut [u8],
    ) -> io::Result<()> {
        let (body, back) = out.split_at_mut(first.len() + second.len());
        let (nonce, front) = (Nonce::assume_unique_for_key(nonce), Aad::from(front));
        // Content in one piece is sealed without a copy.
        let sealed = if first.is_empty() {
            self.0.seal_out_of_place_scatter(nonce, front, second, body, &[last], back)
        } else {
            let (one, other) = body.split_at_mut(first.len());
            one.copy_from_slice(first);
            copy_large(other, second);
            self.0.seal_in_place_scatter(nonce, front, body, &[last], back)
        };
        sealed.map_err(super::refusal::invalid)
    }

    /// Decrypts the bytes before the tag at the end of `sealed`: into `place`, which has their length, or in place.
    pub fn open(
        &self,
        nonce: [u8; NONCE],
        front: &[u8],
        sealed: &mut [u8],
        place: Option<&mut [u8]>,
    ) -> Result<(), Forged> {
        let (cipher, tag) = sealed.split_at_mut(sealed.len() - TAG);
        let (nonce, front) = (Nonce::assume_unique_for_key(nonce), Aad::from(front));
        let opened = match place {
            Some(place) => self.0.open_separate_gather(nonce, front, cipher, tag, place),
            None => self.0.open_in_place_separate_tag(nonce, front, tag, cipher).map(drop),
        };
        opened.map_err(|_| Forged)
    }
}
