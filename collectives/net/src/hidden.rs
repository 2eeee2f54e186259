//! Memory for a secret: separate pages, which are left out of core dumps and wiped when they are dropped.

#![allow(unsafe_code, reason = "excludes pages from core dumps, which no safe call does")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

/// The largest page size of the supported processors, in bytes: a multiple of every smaller page size.
const PAGE: usize = 64 << 10;

/// Bytes that are left out of core dumps where the system can do that (`MADV_DONTDUMP`; Linux 3.4).
pub(crate) struct HiddenBytes<const N: usize> {
    place: NonNull<[u8; N]>,
    layout: Layout,
}

// SAFETY: the value owns the memory behind the pointer, as a box does.
unsafe impl<const N: usize> Send for HiddenBytes<N> {}
// SAFETY: a shared reference gives shared references to the bytes alone.
unsafe impl<const N: usize> Sync for HiddenBytes<N> {}

impl<const N: usize> HiddenBytes<N> {
    /// Bytes that `fill` writes; they are zeros before.
    pub fn filled(fill: impl FnOnce(&mut [u8; N])) -> HiddenBytes<N> {
        const { assert!(N > 0) };
        let Ok(layout) = Layout::from_size_align(N.next_multiple_of(PAGE), PAGE) else {
            handle_alloc_error(Layout::new::<[u8; N]>());
        };
        // SAFETY: the layout's size is not 0.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(mut place) = NonNull::new(memory.cast::<[u8; N]>()) else { handle_alloc_error(layout) };
        advise(place.cast(), layout, true);
        // SAFETY: the memory is large enough, zeroed, and this function's alone.
        fill(unsafe { place.as_mut() });
        HiddenBytes { place, layout }
    }

    /// The bytes.
    pub fn get(&self) -> &[u8; N] {
        // SAFETY: the memory is this value's until it is dropped, and nobody writes to it.
        unsafe { self.place.as_ref() }
    }
}

impl<const N: usize> Drop for HiddenBytes<N> {
    fn drop(&mut self) {
        let bytes = self.place.cast::<u8>();
        for at in 0..N {
            // SAFETY: inside the memory, which is this value's alone. The compiler does not remove a volatile write.
            unsafe { bytes.add(at).write_volatile(0) };
        }
        compiler_fence(Ordering::SeqCst);
        advise(bytes, self.layout, false);
        // SAFETY: allocated with this layout, and not used after this.
        unsafe { dealloc(bytes.as_ptr(), self.layout) };
    }
}

/// Sets whether core dumps leave these pages out. An error is ignored: the memory is usable without this.
#[cfg_attr(not(target_os = "linux"), allow(unused_variables))]
fn advise(place: NonNull<u8>, layout: Layout, hidden: bool) {
    #[cfg(target_os = "linux")]
    {
        use rustix::mm::{Advice, madvise};
        let advice = if hidden { Advice::LinuxDontDump } else { Advice::LinuxDoDump };
        // SAFETY: whole pages of memory that is the caller's; the advice does not change their content.
        let _ = unsafe { madvise(place.as_ptr().cast(), layout.size(), advice) };
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the mapping that holds an address is left out of core dumps: `dd` among its flags.
    fn is_hidden(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let range = range.map(|(from, to)| [from, to].map(|hex| usize::from_str_radix(hex, 16)));
            if let Some([Ok(from), Ok(to)]) = range {
                inside = (from..to).contains(&address);
            }
            if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
                return flags.split_whitespace().any(|flag| flag == "dd");
            }
        }
        panic!("no mapping holds {address:x}");
    }

    #[test]
    fn the_bytes_are_in_no_core_dump_and_other_memory_is() {
        let hidden = HiddenBytes::<32>::filled(|bytes| bytes.fill(7));
        assert_eq!(hidden.get(), &[7; 32]);
        assert!(is_hidden(hidden.get().as_ptr().addr()));
        let usual = vec![7u8; 1 << 20];
        assert!(!is_hidden(usual.as_ptr().addr()));
    }
}
