//! Tests of the reduction kernels against scalar definitions.

use super::*;
use crate::{Element, Isa, ReduceOp, bf16, f16};
use proptest::prelude::*;

/// The definition of the operators for one element type, as plain as possible and without the kernels' optimisations.
trait Rule: Element {
    fn rule(op: ReduceOp, a: Self, b: Self) -> Self;
    fn part(a: Self, parts: u32) -> Self;
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
}

macro_rules! float_rule {
    ($float:ty, $bits:ty, $wide:ty, $narrow:expr, $quiet:expr) => {
        impl Rule for $float {
            fn rule(op: ReduceOp, a: $float, b: $float) -> $float {
                let (x, y) = (<$wide>::from(a), <$wide>::from(b));
                let quiet = <$float>::from_bits($quiet);
                if x.is_nan() || y.is_nan() {
                    return quiet;
                }
                let (low, high) = if x.total_cmp(&y).is_le() { (a, b) } else { (b, a) };
                let exact = match op {
                    ReduceOp::Sum | ReduceOp::Avg => $narrow(x + y),
                    ReduceOp::Prod => $narrow(x * y),
                    ReduceOp::Min => low,
                    ReduceOp::Max => high,
                };
                if exact.is_nan() { quiet } else { exact }
            }
            fn part(a: $float, parts: u32) -> $float {
                let part = $narrow(<$wide>::from(a) / parts as $wide);
                if part.is_nan() { <$float>::from_bits($quiet) } else { part }
            }
            fn of(bits: u64) -> $float {
                <$float>::from_bits(bits as $bits)
            }
            fn bits(self) -> u64 {
                u64::from(self.to_bits())
            }
        }
    };
}

/// Rounds to odd, so that another rounding to a narrower type gives the same as rounding once. (`half` narrows an f64 by its upper
/// 32 bits alone, and takes a value just beside the midpoint for the midpoint.)
fn odd(x: f64) -> f32 {
    let near = x as f32;
    if f64::from(near) == x || x.is_nan() {
        return near;
    }
    let beyond = f64::from(near).abs() > x.abs();
    f32::from_bits((near.to_bits() - u32::from(beyond)) | 1)
}

// The 16-bit types are computed in f64 and rounded once: 53 bits make that exact enough to be the definition.
float_rule!(f64, u64, f64, |x| x, 0x7ff8_0000_0000_0000);
float_rule!(f32, u32, f32, |x| x, 0x7fc0_0000);
float_rule!(f16, u16, f64, |x| f16::from_f32(odd(x)), 0x7e00);
float_rule!(bf16, u16, f64, |x| bf16::from_f32(odd(x)), 0x7fc0);

macro_rules! int_rule {
    ($($int:ty),*) => {$(
        impl Rule for $int {
            fn rule(op: ReduceOp, a: $int, b: $int) -> $int {
                let (x, y) = (i128::from(a), i128::from(b));
                (match op {
                    ReduceOp::Sum | ReduceOp::Avg => x + y,
                    ReduceOp::Prod => x * y,
                    ReduceOp::Min => x.min(y),
                    ReduceOp::Max => x.max(y),
                }) as $int
            }
            fn part(a: $int, parts: u32) -> $int {
                (i128::from(a) / i128::from(parts)) as $int
            }
            fn of(bits: u64) -> $int {
                bits as $int
            }
            fn bits(self) -> u64 {
                self as u64
            }
        }
    )*};
}

int_rule!(i8, i16, i32, i64, u8);

/// Random bits, and the values that have special rules: zeros, infinities, NaNs with payloads, subnormals.
fn words() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let special = prop::sample::select(vec![
        0u64,
        1,
        0x8000,
        0x8000_0000,
        1 << 63,
        0x7c00,
        0x7c01,
        0xfe01,
        0x7f80,
        0xff80,
        0x7fc1,
        0x7f80_0000,
        0x7f80_0001,
        0xffc0_0001,
        0x7ff0_0000_0000_0000,
        0x7ff0_0000_0000_0001,
        0xfff8_0000_0000_0001,
        u64::MAX,
    ]);
    let word = prop_oneof![3 => any::<u64>(), 1 => special];
    prop::collection::vec((word.clone(), word), 0..2100)
}

fn check<T: Rule>(op: ReduceOp, words: &[(u64, u64)], parts: u32, skew: usize) -> Result<(), TestCaseError> {
    let a: Vec<T> = words.iter().map(|w| T::of(w.0)).collect();
    let b: Vec<T> = words.iter().map(|w| T::of(w.1)).collect();
    let bits = |of: &[T]| of.iter().map(|x| x.bits()).collect::<Vec<_>>();
    let want: Vec<T> = a.iter().zip(&b).map(|(&a, &b)| T::rule(op, a, b)).collect();

    let mut ab = a.clone();
    reduce(op, &mut ab, &b);
    prop_assert_eq!(bits(&ab), bits(&want), "{} {}", T::DTYPE, op);
    let mut ba = b.clone();
    reduce(op, &mut ba, &a);
    prop_assert_eq!(bits(&ba), bits(&want), "{} {} with its operands exchanged", T::DTYPE, op);

    for isa in Isa::available() {
        let mut out = vec![T::zeroed(); a.len()];
        combine_by(isa, op, &mut out, &a, &b);
        prop_assert_eq!(bits(&out), bits(&want), "{} {} by {}", T::DTYPE, op, isa);
        // Any start, so that vectors have any alignment and tails any length.
        let from = skew.min(a.len());
        let mut into = a[from..].to_vec();
        reduce_by(isa, op, &mut into, &b[from..]);
        prop_assert_eq!(bits(&into), bits(&want[from..]), "{} {} by {} from {}", T::DTYPE, op, isa, from);
    }

    // The reduction of bytes, at any alignment.
    let shifted = |of: &[T]| [&vec![0u8; skew][..], bytemuck::cast_slice(of)].concat();
    let (mut into, from) = (shifted(&a), shifted(&b));
    reduce_bytes(T::DTYPE, op, &mut into[skew..], &from[skew..]);
    prop_assert_eq!(&into[skew..], bytemuck::cast_slice::<T, u8>(&want));

    let thirds: Vec<T> = a.iter().map(|&a| T::part(a, parts)).collect();
    let (mut into, mut typed) = (shifted(&a), a);
    divide(&mut typed, parts);
    prop_assert_eq!(bits(&typed), bits(&thirds), "{} / {}", T::DTYPE, parts);
    divide_bytes(T::DTYPE, &mut into[skew..], parts);
    prop_assert_eq!(&into[skew..], bytemuck::cast_slice::<T, u8>(&thirds));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_type_and_operator_keeps_the_rule(
        words in words(),
        op in prop::sample::select(ReduceOp::ALL.to_vec()),
        parts in prop_oneof![1..9u32, 1..70_000u32],
        skew in 0..9usize,
    ) {
        check::<f64>(op, &words, parts, skew)?;
        check::<f32>(op, &words, parts, skew)?;
        check::<f16>(op, &words, parts, skew)?;
        check::<bf16>(op, &words, parts, skew)?;
        check::<i8>(op, &words, parts, skew)?;
        check::<i16>(op, &words, parts, skew)?;
        check::<i32>(op, &words, parts, skew)?;
        check::<i64>(op, &words, parts, skew)?;
        check::<u8>(op, &words, parts, skew)?;
    }
}

#[test]
fn zeros_and_nans_follow_ieee_754_2019() {
    let bits = |op, a: f32, b: f32| combine(op, a, b).to_bits();
    assert_eq!(bits(ReduceOp::Min, 0.0, -0.0), (-0.0f32).to_bits());
    assert_eq!(bits(ReduceOp::Max, -0.0, 0.0), 0.0f32.to_bits());
    let payload = f32::from_bits(0xffc0_1234);
    for op in ReduceOp::ALL {
        assert_eq!(bits(op, payload, 1.0), 0x7fc0_0000, "{op}: a NaN wins and is canonical");
    }
    assert_eq!(bits(ReduceOp::Sum, f32::INFINITY, f32::NEG_INFINITY), 0x7fc0_0000);
}

/// Tests every 16-bit pattern with each of a few others; all pairs would be 2^32.
#[test]
fn every_f16_and_bf16_keeps_the_rule_by_every_class() {
    fn all<T: Rule>() {
        let a: Vec<T> = (0..1u64 << 16).map(T::of).collect();
        for other in [0u64, 0x8000, 1, 0x3c00, 0x3f80, 0x7bff, 0x7c00, 0x7f7f, 0xff80, 0x7e01, 0x0401, 0xb123]
        {
            let b = vec![T::of(other); a.len()];
            for op in ReduceOp::ALL {
                for isa in Isa::available() {
                    let mut out = vec![T::zeroed(); a.len()];
                    combine_by(isa, op, &mut out, &a, &b);
                    let wrong = a
                        .iter()
                        .zip(&out)
                        .find(|(a, out)| T::rule(op, **a, T::of(other)).bits() != out.bits());
                    assert_eq!(wrong, None, "{} {op} {other:x} by {isa}", T::DTYPE);
                }
            }
        }
    }
    all::<f16>();
    all::<bf16>();
}

#[test]
fn copies_are_copies_at_any_place() {
    let from: Vec<u8> = (0..9000u32).map(|i| (i * 7) as u8).collect();
    for (isa, stream) in Isa::available().flat_map(|isa| [(isa, true), (isa, false)]) {
        for start in 0..70 {
            for len in [0, 1, 31, 63, 64, 65, 200, 700, 3000] {
                let mut into = vec![0u8; 4096];
                simd::copy(isa, &mut into[start..start + len], &from[3..3 + len], stream);
                assert!(into[start..start + len] == from[3..3 + len]);
                assert!(into[..start].iter().chain(&into[start + len..]).all(|b| *b == 0));
            }
        }
    }
}

#[test]
fn copies_in_pieces_are_copies() {
    #[repr(align(4096))]
    struct Pages([u8; 16384]);
    let from = Pages(std::array::from_fn(|i| (i * 7) as u8));
    for (start, behind) in [(0, 1), (0, 31), (5, 16), (4090, 20)] {
        for len in [1, 1023, 1024, 1025, 5000] {
            let mut into = Pages([0; 16384]);
            let at = start + behind;
            simd::copy(Isa::best(), &mut into.0[at..at + len], &from.0[start..start + len], false);
            assert!(into.0[at..at + len] == from.0[start..start + len]);
            assert!(into.0[..at].iter().chain(&into.0[at + len..]).all(|b| *b == 0));
        }
    }
}

#[test]
fn large_copies_are_copies() {
    for len in [1000, (4 << 20) - 1, (4 << 20) + 13] {
        let from: Vec<u8> = (0..len as u32 + 5).map(|i| (i * 7) as u8).collect();
        let mut into = vec![0u8; len + 2];
        copy_large(&mut into[1..=len], &from[5..]);
        assert!(into[1..=len] == from[5..] && into[0] == 0 && into[len + 1] == 0);
    }
}

#[test]
fn an_average_of_integers_truncates_towards_zero_and_takes_more_parts_than_the_type_holds() {
    let mut bytes = [-7i8, 7, -128, 127];
    divide(&mut bytes, 2);
    assert_eq!(bytes, [-3, 3, -64, 63]);
    divide(&mut bytes, 1000);
    assert_eq!(bytes, [0, 0, 0, 0]);
}

#[test]
fn an_average_of_32_bit_integers_is_exact_at_the_ends_of_both_ranges() {
    let ends = [i32::MIN, i32::MIN + 1, -1, 0, 1, i32::MAX - 1, i32::MAX];
    for parts in [1, 2, 3, 7, 65_537, i32::MAX as u32, 1 << 31, u32::MAX] {
        let mut divided = ends;
        divide(&mut divided, parts);
        assert_eq!(divided.map(i64::from), ends.map(|a| i64::from(a) / i64::from(parts)), "{parts} parts");
    }
}

#[test]
fn a_narrow_quotient_is_rounded_once() {
    let mut part = [f16::from_bits(4_646_983_193_880_815_017u64 as u16)];
    divide(&mut part, 60_659);
    assert_eq!(part[0].to_bits(), 0xa61d);
}

#[test]
#[should_panic(expected = "one length")]
fn buffers_of_unequal_length_are_the_callers_mistake() {
    reduce(ReduceOp::Sum, &mut [0f32; 3], &[0f32; 2]);
}
