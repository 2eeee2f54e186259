//! The memory of the shim's devices: guard strips of known bytes around every block, the block's device, and limits on size.

use allfold_cuda::{Error, MemoryAccess, Result};
use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;

/// The number of bytes of a guard strip before or after a block; the value of the bytes is `STRIP_BYTE`.
const STRIP: usize = 256;
const STRIP_BYTE: u8 = 0xa5;
/// The byte that fresh memory holds: such bytes form a NaN in every float type.
const FRESH: u8 = 0xff;

struct Block {
    bytes: usize,
    /// The block's device; `None` for pinned host memory, which every device can access.
    device: Option<usize>,
}

/// All acquired memory.
pub(super) struct Blocks {
    by_address: BTreeMap<u64, Block>,
    /// The memory of each device in bytes.
    limit: u64,
    /// Whether kernels can access the memory of other devices.
    peers: bool,
}

/// Inverts bits in every byte of these parts of acquired memory; a second call restores the bytes.
fn flip(parts: &[(u64, usize)]) {
    for &(at, n) in parts {
        // SAFETY: the parts are of acquired blocks and do not overlap; no other work runs meanwhile, and no Rust reference to them
        // exists elsewhere.
        unsafe { std::slice::from_raw_parts_mut(at as *mut u8, n) }
            .iter_mut()
            .for_each(|byte| *byte ^= STRIP_BYTE);
    }
}

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.checked_add(2 * STRIP)?, STRIP).ok()
}

impl Blocks {
    pub fn new(limit: u64, peers: bool) -> Blocks {
        Blocks { by_address: BTreeMap::new(), limit, peers }
    }

    pub fn acquire(&mut self, device: Option<usize>, bytes: usize) -> Result<u64> {
        if let Some(device) = device {
            let used: u64 = self.blocks(device).map(|block| block.bytes as u64).sum();
            let free = self.limit.saturating_sub(used);
            if bytes as u64 > free {
                let answer = format!("out of memory: {bytes} bytes wanted, {free} of {} free", self.limit);
                return Err(Error::Refused { call: "allocate memory", answer });
            }
        }
        let layout = layout(bytes).ok_or_else(|| Error::Argument(format!("{bytes} bytes are too many")))?;
        // SAFETY: the layout is not empty, and all of the memory is set before it is returned.
        let address = unsafe {
            let start = alloc(layout);
            if start.is_null() {
                return Err(Error::Refused { call: "allocate memory", answer: "out of memory".into() });
            }
            std::ptr::write_bytes(start, STRIP_BYTE, layout.size());
            std::ptr::write_bytes(start.add(STRIP), FRESH, bytes);
            start as u64 + STRIP as u64
        };
        self.by_address.insert(address, Block { bytes, device });
        Ok(address)
    }

    fn blocks(&self, device: usize) -> impl Iterator<Item = &Block> {
        self.by_address.values().filter(move |block| block.device == Some(device))
    }

    /// The size of a block in bytes, and its device.
    pub fn find(&self, address: u64) -> Option<(usize, Option<usize>)> {
        self.by_address.get(&address).map(|block| (block.bytes, block.device))
    }

    pub fn release(&mut self, address: u64) {
        if let Some(layout) = self.by_address.remove(&address).and_then(|block| layout(block.bytes)) {
            // SAFETY: the block was acquired with this layout and has been removed from the list.
            unsafe { dealloc((address as usize - STRIP) as *mut u8, layout) };
        }
    }

    /// Checks that work on a device may access this memory: it is acquired and, for a kernel, within the device's reach. A kernel
    /// must name some memory, since a kernel without accesses would not be ordered after any other work.
    pub fn reach(&self, device: usize, name: &str, accesses: &[MemoryAccess], kernel: bool) -> Result<()> {
        if kernel && accesses.is_empty() {
            return Err(Error::Kernel {
                kernel: name.into(),
                what: "names no memory that it touches".into(),
            });
        }
        for access in accesses.iter().filter(|access| access.bytes > 0) {
            let block = self.by_address.range(..=access.address).next_back();
            let inside =
                block.filter(|(at, block)| access.address + access.bytes <= *at + block.bytes as u64);
            let Some((_, block)) = inside else {
                let what = format!("touches {} bytes that are no part of acquired memory", access.bytes);
                return Err(Error::Kernel { kernel: name.into(), what });
            };
            if kernel && !self.peers && block.device.is_some_and(|owner| owner != device) {
                let what =
                    format!("CUDA_ERROR_ILLEGAL_ADDRESS: device {device} does not reach {:?}", block.device);
                return Err(Error::Kernel { kernel: name.into(), what });
            }
        }
        Ok(())
    }

    /// Checks that no guard strip has changed.
    pub fn strips(&self) -> std::result::Result<(), String> {
        for (&address, &Block { bytes, .. }) in &self.by_address {
            for (side, start) in [("before", address as usize - STRIP), ("after", address as usize + bytes)] {
                // SAFETY: both strips belong to the allocation of this buffer.
                let strip = unsafe { std::slice::from_raw_parts(start as *const u8, STRIP) };
                if *strip == [STRIP_BYTE; STRIP] {
                    continue;
                }
                if let Some(at) = strip.iter().position(|byte| *byte != STRIP_BYTE) {
                    return Err(format!("wrote to byte {at} of the strip {side} a buffer of {bytes} bytes"));
                }
            }
        }
        Ok(())
    }

    /// The parts of blocks that no access names.
    fn others<'a>(&self, accesses: impl Iterator<Item = &'a MemoryAccess> + Clone) -> Vec<(u64, usize)> {
        let mut others = Vec::new();
        for (&address, block) in &self.by_address {
            let end = address + block.bytes as u64;
            let mut named: Vec<_> = accesses.clone().map(|a| (a.address, a.address + a.bytes)).collect();
            named.retain(|(from, to)| *from < end && *to > address && from < to);
            named.sort_unstable();
            let mut at = address;
            for (from, to) in named {
                if from > at {
                    others.push((at, (from - at) as usize));
                }
                at = at.max(to);
            }
            if end > at {
                others.push((at, (end - at) as usize));
            }
        }
        others
    }

    /// Runs a body while all memory that `accesses` does not name has changed values, which are restored afterwards. Fails if the
    /// body changes memory that `accesses` does not name as written.
    pub fn audited(&self, accesses: &[MemoryAccess], body: impl FnOnce() -> Result<()>) -> Result<()> {
        let others = self.others(accesses.iter());
        let fixed = self.others(accesses.iter().filter(|access| access.write));
        flip(&others);
        // SAFETY: the ranges are parts of acquired blocks; no other work runs meanwhile.
        let bytes = |&(at, n): &(u64, usize)| unsafe { std::slice::from_raw_parts(at as *const u8, n) };
        let before: Vec<Vec<u8>> = fixed.iter().map(|part| bytes(part).to_vec()).collect();
        let ran = body();
        let mut wrote = None;
        for (part, before) in fixed.iter().zip(&before) {
            let changed = bytes(part).iter().zip(before).position(|(now, before)| now != before);
            wrote = wrote.or(changed.map(|at| (at, part.1)));
            // SAFETY: the range is a part of an acquired block, from which as many bytes were copied before.
            unsafe { std::ptr::copy_nonoverlapping(before.as_ptr(), part.0 as *mut u8, part.1) };
        }
        flip(&others);
        match (ran, wrote) {
            (Err(error), _) => Err(error),
            (Ok(()), Some((at, of))) => Err(Error::Argument(format!(
                "the launch wrote byte {at} of {of} bytes that it does not name as written; name them so, or do not write them"
            ))),
            (Ok(()), None) => Ok(()),
        }
    }
}
