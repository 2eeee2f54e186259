//! Slices as a kernel's arguments: each passes an address and records whether the kernel reads or writes the slice.

use super::{Arguments, MemoryAccess, Slice};

impl Arguments {
    /// Passes the address of a slice that the kernel only reads.
    pub fn reads(self, part: Slice<'_>) -> Arguments {
        self.touches(part, false).with(part.address())
    }

    /// Passes the address of a slice that the kernel writes, and perhaps reads too.
    pub fn writes(self, part: Slice<'_>) -> Arguments {
        self.touches(part, true).with(part.address())
    }

    /// Records a slice that the kernel accesses through a table or in another form; passes no argument.
    pub fn touches(self, part: Slice<'_>, write: bool) -> Arguments {
        self.notes([MemoryAccess { address: part.address(), bytes: part.len() as u64, write }])
    }
}
