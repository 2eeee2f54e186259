//! Parts of memory as a kernel's arguments: each passes an address, and notes what is read or written there.

use super::{Arguments, MemoryAccess, Slice};

impl Arguments {
    /// The address of a part that the kernel reads and does not write.
    pub fn reads(self, part: Slice<'_>) -> Arguments {
        self.touches(part, false).with(part.address())
    }

    /// The address of a part that the kernel writes; it may read it too.
    pub fn writes(self, part: Slice<'_>) -> Arguments {
        self.touches(part, true).with(part.address())
    }

    /// Notes a part that the kernel reaches through a table, or that is passed in another form. Passes nothing.
    pub fn touches(self, part: Slice<'_>, write: bool) -> Arguments {
        self.notes([MemoryAccess { address: part.address(), bytes: part.len() as u64, write }])
    }
}
