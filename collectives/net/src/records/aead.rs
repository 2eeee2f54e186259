//! What seals and opens records, by whichever of two libraries has the wider instructions for this processor.

use allfold_kernels::copy_large;
use aws_lc_rs::aead as lc;
use rustls::ConnectionTrafficSecrets;
use std::io;

/// Bytes that prove a record.
pub const TAG: usize = 16;
/// Bytes that make each record's cipher another.
pub const NONCE: usize = 12;

/// A key for one direction.
pub enum Aead {
    /// By the library that rustls uses: AES-GCM has AVX-512 there, or vectors of 128 bits.
    Aws(lc::LessSafeKey),
    /// AES-GCM in vectors of 256 bits: between a third and a half faster where there are no wider ones.
    #[cfg(target_arch = "x86_64")]
    Ring(Box<ring::aead::LessSafeKey>),
}

/// A record that is not what its sender sealed.
#[derive(Debug)]
pub struct Forged;

impl Aead {
    /// The key, and what nonces are made of.
    pub fn new(secrets: &ConnectionTrafficSecrets) -> io::Result<(Aead, [u8; NONCE])> {
        let (algorithm, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&lc::AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&lc::AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&lc::CHACHA20_POLY1305, key, iv),
            _ => return Err(super::invalid("TLS agreed on a cipher that is unknown here")),
        };
        let iv = iv.as_ref().try_into().map_err(super::invalid)?;
        #[cfg(target_arch = "x86_64")]
        if middle() && algorithm != &lc::CHACHA20_POLY1305 {
            return Ok((Aead::ring(key.as_ref())?, iv));
        }
        let key = lc::UnboundKey::new(algorithm, key.as_ref()).map_err(super::invalid)?;
        Ok((Aead::Aws(lc::LessSafeKey::new(key)), iv))
    }

    /// AES-GCM, with a key of 16 or 32 bytes.
    #[cfg(target_arch = "x86_64")]
    fn ring(key: &[u8]) -> io::Result<Aead> {
        use ring::aead::{AES_128_GCM, AES_256_GCM, LessSafeKey, UnboundKey};
        let algorithm = if key.len() == 16 { &AES_128_GCM } else { &AES_256_GCM };
        let key = UnboundKey::new(algorithm, key).map_err(super::invalid)?;
        Ok(Aead::Ring(Box::new(LessSafeKey::new(key))))
    }

    /// Seals `first`, `second` and a last byte into `out`, which has room for them and the tag.
    pub fn seal(
        &self,
        nonce: [u8; NONCE],
        front: &[u8],
        (first, second, last): (&[u8], &[u8], u8),
        out: &mut [u8],
    ) -> io::Result<()> {
        let (body, back) = out.split_at_mut(first.len() + second.len());
        match self {
            // Bytes that lie in one piece are read where they lie.
            Aead::Aws(key) if first.is_empty() => {
                let (nonce, front) = (lc::Nonce::assume_unique_for_key(nonce), lc::Aad::from(front));
                return key
                    .seal_out_of_place_scatter(nonce, front, second, body, &[last], back)
                    .map_err(super::invalid);
            }
            _ => {
                let (one, other) = body.split_at_mut(first.len());
                one.copy_from_slice(first);
                copy_large(other, second);
            }
        }
        match self {
            Aead::Aws(key) => {
                let (nonce, front) = (lc::Nonce::assume_unique_for_key(nonce), lc::Aad::from(front));
                key.seal_in_place_scatter(nonce, front, body, &[last], back).map_err(super::invalid)
            }
            #[cfg(target_arch = "x86_64")]
            Aead::Ring(key) => {
                use ring::aead::{Aad, Nonce};
                back[0] = last;
                let (plain, tag) = out.split_at_mut(first.len() + second.len() + 1);
                let (nonce, front) = (Nonce::assume_unique_for_key(nonce), Aad::from(front));
                let made = key.seal_in_place_separate_tag(nonce, front, plain).map_err(super::invalid)?;
                tag.copy_from_slice(made.as_ref());
                Ok(())
            }
        }
    }

    /// Opens what stands before its tag at the end of `sealed`: into `place`, which has its length, or where it is.
    pub fn open(
        &self,
        nonce: [u8; NONCE],
        front: &[u8],
        sealed: &mut [u8],
        place: Option<&mut [u8]>,
    ) -> Result<(), Forged> {
        match self {
            Aead::Aws(key) => {
                let (cipher, tag) = sealed.split_at_mut(sealed.len() - TAG);
                let (nonce, front) = (lc::Nonce::assume_unique_for_key(nonce), lc::Aad::from(front));
                let opened = match place {
                    Some(place) => key.open_separate_gather(nonce, front, cipher, tag, place),
                    None => key.open_in_place_separate_tag(nonce, front, tag, cipher).map(drop),
                };
                opened.map_err(|_| Forged)
            }
            #[cfg(target_arch = "x86_64")]
            Aead::Ring(key) => {
                use ring::aead::{Aad, Nonce};
                let (nonce, front) = (Nonce::assume_unique_for_key(nonce), Aad::from(front));
                let plain = key.open_in_place(nonce, front, sealed).map_err(|_| Forged)?;
                if let Some(place) = place {
                    copy_large(place, plain);
                }
                Ok(())
            }
        }
    }
}

/// Whether vectors of 256 bits are the widest in which this processor has AES.
#[cfg(target_arch = "x86_64")]
fn middle() -> bool {
    is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("avx2")
        && !is_x86_feature_detected!("avx512f")
}

#[cfg(all(test, target_arch = "x86_64"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Both libraries, with one key.
    fn both(bytes: usize) -> [Aead; 2] {
        let key: Vec<u8> = (0..bytes as u8).map(|i| i * 3 + 1).collect();
        let algorithm = if bytes == 16 { &lc::AES_128_GCM } else { &lc::AES_256_GCM };
        let aws = lc::LessSafeKey::new(lc::UnboundKey::new(algorithm, &key).unwrap());
        [Aead::Aws(aws), Aead::ring(&key).unwrap()]
    }

    #[test]
    fn one_library_opens_what_the_other_has_sealed_and_nothing_else() {
        let content: Vec<u8> = (0..20_000u32).map(|i| (i * 7) as u8).collect();
        for pair in [both(16), both(32)] {
            for (cut, len) in [(0, 0), (0, 1), (0, 16_384), (64, 64), (64, 1000), (7, 16_384)] {
                let (first, second) = content[..len].split_at(cut);
                let sealed = pair.iter().map(|key| {
                    let mut out = vec![0; len + 1 + TAG];
                    key.seal([9; NONCE], b"front", (first, second, 23), &mut out).unwrap();
                    out
                });
                let sealed: Vec<Vec<u8>> = sealed.collect();
                assert_eq!(sealed[0], sealed[1]);
                for key in &pair {
                    let mut place = vec![0; len + 1];
                    key.open([9; NONCE], b"front", &mut sealed[0].clone(), Some(&mut place)).unwrap();
                    assert!(place[..len] == content[..len] && place[len] == 23);
                    let mut here = sealed[0].clone();
                    key.open([9; NONCE], b"front", &mut here, None).unwrap();
                    assert_eq!(here[..=len], place);
                    let mut bent = sealed[0].clone();
                    bent[len] ^= 1;
                    assert!(key.open([9; NONCE], b"front", &mut bent.clone(), None).is_err());
                    assert!(key.open([9; NONCE], b"front", &mut bent, Some(&mut place)).is_err());
                    assert!(key.open([9; NONCE], b"other", &mut sealed[0].clone(), None).is_err());
                }
            }
        }
    }
}
