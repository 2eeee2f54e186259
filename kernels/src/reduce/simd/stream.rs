//! Copies, past the caches where what is written will not be read soon.

use super::Isa;

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
        _ => into.copy_from_slice(from),
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

/// The same for a part of a copy of `whole` bytes.
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

/// Orders streaming stores before what is written afterwards, which nothing else does: to be called once, before anyone
/// is told. A fence for every block would wait for every block.
#[inline]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn stream_avx512(into: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::*;
    let from = &from[..into.len()];
    let head = into.as_ptr().align_offset(64).min(into.len());
    into[..head].copy_from_slice(&from[..head]);
    let (into, from) = (&mut into[head..], &from[head..]);
    let (lines, tail) = into.as_chunks_mut::<64>();
    let (whole, rest) = from.as_chunks::<64>();
    for (line, whole) in lines.iter_mut().zip(whole) {
        // SAFETY: both are 64 bytes; `line` is aligned to 64, as its head was cut off; the load takes any alignment.
        unsafe { _mm512_stream_si512(line.as_mut_ptr().cast(), _mm512_loadu_si512(whole.as_ptr().cast())) }
    }
    tail.copy_from_slice(rest);
}
