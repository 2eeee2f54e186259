//! Copies, with non-temporal stores where the written data will not be read soon.

use crate::Isa;
use std::hint::black_box;

/// Copies `from` to `into`, which has the same length. `stream` selects non-temporal stores, which bypass the caches and do not read
/// every line first; faster only for buffers larger than the caches. [`fence`] must be called before other threads read `into`.
#[inline]
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "no such stores"))]
pub(crate) fn copy(isa: Isa, into: &mut [u8], from: &[u8], stream: bool) {
    assert!(isa <= Isa::best(), "this processor has no {isa}");
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa` names a class only where the processor was found to have it.
        Isa::Avx512 if stream => unsafe { stream_avx512(into, from) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa` names a class only where the processor was found to have it.
        Isa::Avx2 if stream => unsafe { stream_avx2(into, from) },
        _ => {
            let from = &from[..into.len()];
            // SAFETY: both slices have this length, and `into` is borrowed exclusively.
            unsafe { copy_apart(from.as_ptr(), into.as_mut_ptr(), from.len()) }
        }
    }
}

/// Like [`std::ptr::copy_nonoverlapping`], but fast at every alignment.
///
/// From 2 KiB on, the C library lets the processor copy (`rep movsb`). On Zen 3 this is about twenty times slower, 7 us instead of
/// 0.3 us for 16 KiB, if the destination begins 1 to 31 bytes behind the source, both counted from the start of their 4 KiB pages.
/// This happens for copies from whole pages to memory that an allocator places 16 bytes behind the start of its pages.
///
/// # Safety
/// The conditions of [`std::ptr::copy_nonoverlapping`].
pub(crate) unsafe fn copy_apart(from: *const u8, into: *mut u8, len: usize) {
    /// The number of bytes of a piece that is copied by vector instructions.
    const PIECE: usize = 1024;
    let behind = into.addr().wrapping_sub(from.addr()) % 4096;
    let piece = if (1..32).contains(&behind) { PIECE } else { len };
    let mut at = 0;
    while at < len {
        let some = piece.min(len - at);
        // SAFETY: both ranges are inside the two buffers. `black_box` keeps the compiler from merging the pieces into one copy.
        unsafe { std::ptr::copy_nonoverlapping(from.add(at), black_box(into.add(at)), some) };
        at += some;
    }
}

/// Copies `from` to `into`, with non-temporal stores if the buffers are so large that the caches would not retain them; these stores do
/// not read every line before it is written.
///
/// # Panics
/// If the lengths differ.
pub fn copy_large(into: &mut [u8], from: &[u8]) {
    copy_part(into, from, from.len());
}

/// Copies a part of a larger copy of `whole` bytes: `whole` decides whether stores bypass the caches.
///
/// # Panics
/// If the lengths differ.
pub fn copy_part(into: &mut [u8], from: &[u8], whole: usize) {
    /// The size in bytes of the largest common second-level caches.
    const LARGE: usize = 4 << 20;
    assert_eq!(into.len(), from.len(), "a copy has the length of what is copied");
    let stream = whole >= LARGE;
    copy(Isa::best(), into, from, stream);
    if stream {
        fence();
    }
}

/// Orders streaming stores before later writes; a store with release ordering alone does not. Call this once, before another
/// thread may read the data: a fence per block would wait for every block.
#[inline]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! streaming {
    ($($name:ident $feature:literal $bytes:literal $load:ident $store:ident;)*) => {$(
        #[target_feature(enable = $feature)]
        fn $name(into: &mut [u8], from: &[u8]) {
            use std::arch::x86_64::{$load, $store};
            let from = &from[..into.len()];
            let head = into.as_ptr().align_offset($bytes).min(into.len());
            into[..head].copy_from_slice(&from[..head]);
            let (into, from) = (&mut into[head..], &from[head..]);
            let (lines, tail) = into.as_chunks_mut::<$bytes>();
            let (whole, rest) = from.as_chunks::<$bytes>();
            for (line, whole) in lines.iter_mut().zip(whole) {
                // SAFETY: both arrays have the vector's size; `line` is aligned to it, since the unaligned head was cut off; the
                // load takes any alignment.
                unsafe { $store(line.as_mut_ptr().cast(), $load(whole.as_ptr().cast())) }
            }
            tail.copy_from_slice(rest);
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
streaming! {
    stream_avx512 "avx512f" 64 _mm512_loadu_si512 _mm512_stream_si512;
    stream_avx2 "avx2" 32 _mm256_loadu_si256 _mm256_stream_si256;
}
