//! Copies, past the caches where what is written will not be read soon.

use crate::Isa;
use std::hint::black_box;

/// Copies `from` to `into`, which has its length. `stream`: with stores that pass the caches, which spares reading
/// every line before it is written; worth it only where the buffer is larger than what the caches keep. [`fence`] must
/// follow before anyone else is told.
#[inline]
pub(crate) fn copy(isa: Isa, into: &mut [u8], from: &[u8], stream: bool) {
    assert!(isa <= Isa::best(), "this processor has no {isa}");
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa` names a class only where the processor was found to have it.
        Isa::Avx512 if stream => unsafe { stream_avx512(into, from) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 if stream => unsafe { stream_avx2(into, from) },
        _ => {
            let from = &from[..into.len()];
            // SAFETY: both have the length, and one is borrowed alone.
            unsafe { copy_apart(from.as_ptr(), into.as_mut_ptr(), from.len()) }
        }
    }
}

/// [`std::ptr::copy_nonoverlapping`], everywhere as fast.
///
/// From 2 KiB on the C library lets the processor copy (`rep movsb`). On Zen 3 that takes some twenty times as long, 7 us and
/// not 0.3 for 16 KiB, where the destination begins 1 to 31 bytes behind the source, by their places in pages of
/// 4 KiB: as it does for whatever is allocated by pages, behind its allocator's 16 bytes, and is copied to from whole pages.
///
/// # Safety
/// As of that function.
pub(crate) unsafe fn copy_apart(from: *const u8, into: *mut u8, len: usize) {
    /// Copied by vectors.
    const PIECE: usize = 1024;
    let behind = into.addr().wrapping_sub(from.addr()) % 4096;
    let piece = if (1..32).contains(&behind) { PIECE } else { len };
    let mut at = 0;
    while at < len {
        let some = piece.min(len - at);
        // SAFETY: within the two. The compiler must not make one copy of all pieces again.
        unsafe { std::ptr::copy_nonoverlapping(from.add(at), black_box(into.add(at)), some) };
        at += some;
    }
}

/// Copies `from` to `into`, which has its length: past the caches where it is so large that they would not keep it, which
/// spares reading every line before it is written.
///
/// # Panics
/// The lengths differ.
pub fn copy_large(into: &mut [u8], from: &[u8]) {
    copy_part(into, from, from.len());
}

/// Copies a part of a larger copy of `whole` bytes: `whole` decides whether stores bypass the caches.
///
/// # Panics
/// The lengths differ.
pub fn copy_part(into: &mut [u8], from: &[u8], whole: usize) {
    /// Some second-level caches are as large as this.
    const LARGE: usize = 4 << 20;
    assert_eq!(into.len(), from.len(), "a copy has the length of what is copied");
    let stream = whole >= LARGE;
    copy(Isa::best(), into, from, stream);
    if stream {
        fence();
    }
}

/// Orders streaming stores before later writes; no other instruction does. Call this once, before another thread is told of the
/// data: a fence per block would wait for every block.
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
                // SAFETY: both have the bytes; `line` is aligned to them, as its head was cut off; the load takes any
                // alignment.
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
