//! Hash functions and a pseudorandom generator for names and numbers. Their results are equal on all ranks and in all builds. They
//! are not cryptographic: an adversary can construct collisions.

/// The 64-bit FNV-1a hash of `bytes` (G. Fowler, L. C. Noll and K.-P. Vo, 1991). Every bit of the input affects the hash, but the
/// hash is not cryptographic.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The increment of SplitMix64's counter: 2^64 divided by the golden ratio, made odd.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of SplitMix64 (G. Steele, D. Lea and C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): a
/// bijection in which every bit of the input affects every bit of the result. Zero maps to zero.
#[inline]
pub const fn finalize(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The first word that SplitMix64 generates from `seed`: a stateless function of the seed.
#[inline]
pub const fn splitmix(seed: u64) -> u64 {
    finalize(seed.wrapping_add(GOLDEN))
}

/// SplitMix64, a small pseudorandom generator. Any `u64` is a valid seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitMix(pub u64);

impl SplitMix {
    /// Advances the generator and returns its next word.
    #[inline]
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        finalize(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_is_the_published_generator() {
        let mut words = SplitMix(1_234_567);
        let first = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([(); 3].map(|()| words.word()), first);
        assert_eq!(splitmix(1_234_567), first[0]);
    }

    #[test]
    fn it_is_the_published_function() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
