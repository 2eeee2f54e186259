//! Slices as a kernel's arguments: each passes an address and records whether the kernel reads or writes the slice.

use super::{Arguments, MemoryAccess, Slice};

impl Slice<'_> {
    /// The slice as memory that a task reads, or writes.
    pub(crate) fn access(self, write: bool) -> MemoryAccess {
        MemoryAccess { address: self.address(), bytes: self.len() as u64, write }
    }
}

impl Arguments {
    /// Passes the address of a slice that the kernel only reads.
    pub fn reads(self, part: Slice<'_>) -> Arguments {
        self.touches(part, false).with(part.address())
    }

    /// Passes the address of a slice that the kernel writes.
    pub fn writes(self, part: Slice<'_>) -> Arguments {
        self.touches(part, true).with(part.address())
    }

    /// Passes the address of a slice that the kernel reads and writes.
    pub fn updates(self, part: Slice<'_>) -> Arguments {
        self.touches(part, false).writes(part)
    }

    /// Records a slice that the kernel accesses through a table or in another form; passes no argument.
    pub fn touches(self, part: Slice<'_>, write: bool) -> Arguments {
        self.notes([part.access(write)])
    }
}
