//! Inputs for measurements: a pure function of seed, rank and index, so that every element can be made again.
//!
//! Floats lie between 0.5 and 1.5 with all bits of the mantissa in use: a sum in another order is another number. Integers
//! take any value.

use allfold_collectives::Element;
use allfold_kernels::{bf16, f16};
use allfold_sim::hash::{GOLDEN, splitmix};
use std::ops::Range;

/// A type that samples can be made of.
pub trait Sample: Element {
    /// A value from 64 random bits.
    fn sample(bits: u64) -> Self;
}

macro_rules! floats {
    ($($type:ty: $from:expr),*) => {$(
        impl Sample for $type {
            fn sample(bits: u64) -> Self {
                let unit = (bits >> 11) as f64 / (1u64 << 53) as f64;
                $from(0.5 + unit)
            }
        }
    )*};
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Sample for $type {
            fn sample(bits: u64) -> Self {
                bits as $type
            }
        }
    )*};
}

floats!(f64: |x: f64| x, f32: |x: f64| x as f32, f16: f16::from_f64, bf16: bf16::from_f64);
integers!(i8, i16, i32, i64, u8);

/// `count` elements of rank `rank`.
pub fn make<T: Sample>(seed: u64, rank: u32, count: usize) -> Vec<T> {
    part(seed, rank, 0..count)
}

/// Those of rank `rank`'s elements that are at these places.
pub fn part<T: Sample>(seed: u64, rank: u32, places: Range<usize>) -> Vec<T> {
    let start = splitmix(seed ^ splitmix(u64::from(rank) + 1));
    let of = |place: usize| T::sample(splitmix(start.wrapping_add(place as u64)));
    places.map(of).collect()
}

/// A hash of elements, bit for bit and in order.
pub fn hash<T: Element>(elements: &[T]) -> u64 {
    hash_on(splitmix(size_of_val(elements) as u64), elements)
}

/// The hash of elements of which all but these last ones, in whole words of 8 bytes, have the hash `hash`. That of no elements is
/// `splitmix` of the bytes of all.
pub fn hash_on<T: Element>(hash: u64, elements: &[T]) -> u64 {
    let bytes: &[u8] = bytemuck::cast_slice(elements);
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(hash, |hash, word| (hash ^ word).wrapping_mul(GOLDEN).rotate_left(29))
}

/// One hash from the hashes of all ranks.
pub fn join(hashes: impl IntoIterator<Item = u64>) -> String {
    format!("{:016x}", hashes.into_iter().fold(0, |all, hash| splitmix(all ^ hash)))
}

/// The number of elements that differ in any bit, and the index of the first one.
pub fn differing<T: Element>(got: &[T], expected: &[T]) -> (u64, Option<usize>) {
    let (a, b): (&[u8], &[u8]) = (bytemuck::cast_slice(got), bytemuck::cast_slice(expected));
    if a == b {
        return (0, None);
    }
    let size = T::DTYPE.size();
    let mut places =
        a.chunks(size).zip(b.chunks(size)).enumerate().filter(|(_, (a, b))| a != b).map(|(at, _)| at);
    let first = places.next();
    let missing = got.len().abs_diff(expected.len()) as u64;
    (u64::from(first.is_some()) + places.count() as u64 + missing, first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_the_same_again_and_differ_by_rank_place_and_seed() {
        let one = make::<f32>(1, 0, 100);
        assert_eq!(one, make::<f32>(1, 0, 100));
        assert_eq!(one[..50], make::<f32>(1, 0, 50));
        assert_eq!(one[7..50], part::<f32>(1, 0, 7..50));
        let begun = hash_on(splitmix(400), &one[..50]);
        assert_eq!(hash_on(begun, &one[50..]), hash(&one));
        assert!(one != make::<f32>(1, 1, 100) && one != make::<f32>(2, 0, 100));
        assert!(one.iter().all(|x| (0.5..1.5).contains(x)));
        let order = |a: f32, b: f32, c: f32| ((a + b) + c, a + (b + c));
        assert!(one.windows(3).any(|w| order(w[0], w[1], w[2]).0 != order(w[0], w[1], w[2]).1));
    }

    #[test]
    fn one_bit_changes_the_hash_and_counts_as_one_wrong_element() {
        let one = make::<f32>(1, 0, 9);
        let mut other = one.clone();
        other[7] = f32::from_bits(other[7].to_bits() ^ 1);
        assert_ne!(hash(&one), hash(&other));
        assert_eq!(differing(&other, &one), (1, Some(7)));
        assert_eq!(differing(&one, &one), (0, None));
        assert_eq!(differing(&one[..8], &one), (1, None));
    }
}
