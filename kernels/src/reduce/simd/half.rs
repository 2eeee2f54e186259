//! Reductions of f16 by the processor's conversions: a block is widened to f32, reduced there, and narrowed back.

use super::{combine_lanes, reduce_lanes};
use crate::Isa;
use crate::{ReduceOp, f16};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// The number of elements that are widened at a time: two blocks of f32 stay in the first-level cache.
#[cfg(target_arch = "x86_64")]
const BLOCK: usize = 512;

pub fn combine(isa: Isa, op: ReduceOp, out: &mut [f16], a: &[f16], b: &[f16]) {
    assert!(isa <= Isa::best(), "this processor has no {isa}");
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa` names a class only where the processor was found to have it.
        Isa::Avx512 => unsafe { combine_avx512(op, out, a, b) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa` names a class only where the processor was found to have it.
        Isa::Avx2 => unsafe { combine_avx2(op, out, a, b) },
        _ => combine_lanes(op, out, a, b),
    }
}

pub fn reduce(isa: Isa, op: ReduceOp, into: &mut [f16], from: &[f16]) {
    assert!(isa <= Isa::best(), "this processor has no {isa}");
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa` names a class only where the processor was found to have it.
        Isa::Avx512 => unsafe { reduce_avx512(op, into, from) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa` names a class only where the processor was found to have it.
        Isa::Avx2 => unsafe { reduce_avx2(op, into, from) },
        _ => reduce_lanes(op, into, from),
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! blocks {
    ($features:literal, $combine:ident, $reduce:ident, $widen:ident, $narrow:ident) => {
        #[target_feature(enable = $features)]
        fn $combine(op: ReduceOp, out: &mut [f16], a: &[f16], b: &[f16]) {
            let (mut wide, mut other) = ([0f32; BLOCK], [0f32; BLOCK]);
            for ((out, a), b) in out.chunks_mut(BLOCK).zip(a.chunks(BLOCK)).zip(b.chunks(BLOCK)) {
                let (wide, other) = (&mut wide[..out.len()], &mut other[..out.len()]);
                $widen(a, wide);
                $widen(b, other);
                reduce_lanes(op, wide, other);
                $narrow(wide, out);
            }
        }

        #[target_feature(enable = $features)]
        fn $reduce(op: ReduceOp, into: &mut [f16], from: &[f16]) {
            let (mut wide, mut other) = ([0f32; BLOCK], [0f32; BLOCK]);
            for (into, from) in into.chunks_mut(BLOCK).zip(from.chunks(BLOCK)) {
                let (wide, other) = (&mut wide[..into.len()], &mut other[..into.len()]);
                $widen(into, wide);
                $widen(from, other);
                reduce_lanes(op, wide, other);
                $narrow(wide, into);
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
blocks!("avx2,f16c", combine_avx2, reduce_avx2, widen_avx2, narrow_avx2);
#[cfg(target_arch = "x86_64")]
blocks!(
    "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl",
    combine_avx512,
    reduce_avx512,
    widen_avx512,
    narrow_avx512
);

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn widen_avx2(from: &[f16], into: &mut [f32]) {
    let (from, rest) = from.as_chunks::<8>();
    let (into, tail) = into.as_chunks_mut::<8>();
    for (from, into) in from.iter().zip(into) {
        // SAFETY: both arrays have eight elements; the load and the store take any alignment.
        unsafe { _mm256_storeu_ps(into.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast()))) }
    }
    tail.iter_mut().zip(rest).for_each(|(wide, half)| *wide = half.to_f32_const());
}

/// Narrows with rounding to nearest, ties to even.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn narrow_avx2(from: &[f32], into: &mut [f16]) {
    let (from, rest) = from.as_chunks::<8>();
    let (into, tail) = into.as_chunks_mut::<8>();
    for (from, into) in from.iter().zip(into) {
        // SAFETY: both arrays have eight elements; the load and the store take any alignment.
        unsafe {
            let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(from.as_ptr()));
            _mm_storeu_si128(into.as_mut_ptr().cast(), half);
        }
    }
    tail.iter_mut().zip(rest).for_each(|(half, wide)| *half = f16::from_f32_const(*wide));
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn widen_avx512(from: &[f16], into: &mut [f32]) {
    let (from, rest) = from.as_chunks::<16>();
    let (into, tail) = into.as_chunks_mut::<16>();
    for (from, into) in from.iter().zip(into) {
        // SAFETY: both arrays have sixteen elements; the load and the store take any alignment.
        unsafe {
            _mm512_storeu_ps(into.as_mut_ptr(), _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())));
        }
    }
    widen_avx2(rest, tail);
}

/// Narrows with rounding to nearest, ties to even.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn narrow_avx512(from: &[f32], into: &mut [f16]) {
    let (from, rest) = from.as_chunks::<16>();
    let (into, tail) = into.as_chunks_mut::<16>();
    for (from, into) in from.iter().zip(into) {
        // SAFETY: both arrays have sixteen elements; the load and the store take any alignment.
        unsafe {
            let half = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_loadu_ps(from.as_ptr()));
            _mm256_storeu_si256(into.as_mut_ptr().cast(), half);
        }
    }
    narrow_avx2(rest, tail);
}
