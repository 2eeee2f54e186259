//! The memory of the shim's devices: strips of known bytes around every block, whose a block is, and how much there may be.

use allfold_kernels::cuda::{Error, MemoryAccess, Result};
use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;

/// Bytes of a strip, and what they are.
const STRIP: usize = 256;
const STRIP_BYTE: u8 = 0xa5;
/// What memory holds before it is written: a NaN in every float type.
const FRESH: u8 = 0xff;

struct Block {
    bytes: usize,
    /// `None` for pinned memory of the host, which every device reaches.
    device: Option<usize>,
}

/// All that is acquired.
pub(super) struct Blocks {
    by_address: BTreeMap<u64, Block>,
    /// Bytes that each device has.
    limit: u64,
    /// Whether a kernel reaches the memory of other devices than its own.
    peers: bool,
}

/// Changes every byte of these parts, which must be acquired; the second time changes them back.
fn flip(parts: &[(u64, usize)]) {
    for &(at, n) in parts {
        // SAFETY: the caller's parts of blocks, none of which overlap; nothing else runs meanwhile, and no Rust reference is
        // made to them elsewhere.
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
        let layout = layout(bytes).ok_or_else(|| Error::Argument(format!("{bytes} bytes of memory")))?;
        // SAFETY: the layout is not empty, and all of it is set before anyone sees it.
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

    /// The bytes of a block, and its device.
    pub fn find(&self, address: u64) -> Option<(usize, Option<usize>)> {
        self.by_address.get(&address).map(|block| (block.bytes, block.device))
    }

    pub fn release(&mut self, address: u64) {
        if let Some(layout) = self.by_address.remove(&address).and_then(|block| layout(block.bytes)) {
            // SAFETY: acquired with this layout, and taken off the list of what is.
            unsafe { dealloc((address as usize - STRIP) as *mut u8, layout) };
        }
    }

    /// Whether work on a device may touch this memory: it is acquired, and within the device's reach. A kernel that names
    /// none would be ordered after nothing.
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

    /// Whether every strip is as it was.
    pub fn strips(&self) -> std::result::Result<(), String> {
        for (&address, &Block { bytes, .. }) in &self.by_address {
            for (side, start) in [("before", address as usize - STRIP), ("after", address as usize + bytes)] {
                // SAFETY: both strips belong to the allocation of this buffer.
                let strip = unsafe { std::slice::from_raw_parts(start as *const u8, STRIP) };
                if let Some(at) = strip.iter().position(|byte| *byte != STRIP_BYTE) {
                    return Err(format!("wrote {at} bytes into the strip {side} a buffer of {bytes} bytes"));
                }
            }
        }
        Ok(())
    }

    /// Parts of blocks that none of the accesses names.
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

    /// Runs a body while all memory that `accesses` does not name holds other values; the values are restored afterwards.
    /// Memory that `accesses` does not name as written must be unchanged.
    pub fn audited(&self, accesses: &[MemoryAccess], body: impl FnOnce() -> Result<()>) -> Result<()> {
        let others = self.others(accesses.iter());
        let fixed = self.others(accesses.iter().filter(|access| access.write));
        flip(&others);
        // SAFETY: parts of blocks that are acquired; nothing else runs meanwhile.
        let bytes = |&(at, n): &(u64, usize)| unsafe { std::slice::from_raw_parts(at as *const u8, n) };
        let before: Vec<Vec<u8>> = fixed.iter().map(|part| bytes(part).to_vec()).collect();
        let ran = body();
        let mut wrote = None;
        for (part, before) in fixed.iter().zip(&before) {
            let changed = bytes(part).iter().zip(before).position(|(now, before)| now != before);
            wrote = wrote.or(changed.map(|at| (at, part.1)));
            // SAFETY: as above; as many bytes as were copied from here.
            unsafe { std::ptr::copy_nonoverlapping(before.as_ptr(), part.0 as *mut u8, part.1) };
        }
        flip(&others);
        match (ran, wrote) {
            (Err(error), _) => Err(error),
            (Ok(()), Some((at, of))) => Err(Error::Argument(format!(
                "byte {at} of {of} that the launch does not name as written was written"
            ))),
            (Ok(()), None) => Ok(()),
        }
    }
}
