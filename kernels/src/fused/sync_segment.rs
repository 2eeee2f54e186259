//! The memory that members synchronise through: words, and two slots for each member.
//!
//! ```text
//! 0      gate       128  done      256  waker, sleepers
//! 512    member 0:   its own counts | slot 0: flag label data.. | slot 1: flag label data..
//!  ..    member 1:   ..
//!  ..    shared memory only: registered buffers of member 0 | registered buffers of member 1 | ..
//! ```
//!
//! Slots alternate. A member writes a slot again two exchanges later, after it has seen the flags of all members for the exchange
//! between. A member raises that flag only after it has read all slots of the exchange before, so no member still reads the slot.

use super::memory::Memory;
use super::registered_buffers::RegisteredBuffers;
use super::registered_buffers::{LARGE, RESERVE};
use super::sync::Waker;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

/// How often a waiting member checks its condition before it yields, and before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The number of checks in the first, spinning phase; about 40 ns each.
    pub looks: u32,
    /// The number of checks in the second phase, each before a yield. Then the member sleeps.
    pub yields: u32,
}

impl Pace {
    /// The pace for `members` members, which depends on whether there is a core for each member.
    pub fn of(members: u32) -> Pace {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        match members as usize <= cores {
            // Without yields: if the program computes in addition to a collective, each yield would give the core to the computation for
            // milliseconds.
            true => Pace { looks: 1000, yields: 0 },
            false => Pace { looks: 4, yields: 200 },
        }
    }
}

const LINE: usize = 128;
/// The most address space that the mappings of all members may take together, if all members are threads of one process: half of
/// the address space.
const ADDRESSES: usize = 64 << 40;
const MEMBERS: usize = 4 * LINE;
/// The size in bytes of a slot's header, before its data.
const HEADER: usize = 16;

/// The synchronisation memory of a group: of one process, or mapped by several processes.
pub struct SyncSegment {
    pub(super) memory: Memory,
    pub(super) members: u32,
    /// The size of a slot's data in bytes.
    pub(super) slot_bytes: usize,
    pub(super) pace: Pace,
    /// Whether all members are in one address space.
    pub(super) one_address_space: bool,
    /// The registered buffers of this process's members; their memory is behind the slots.
    pub(super) registered_buffers: RegisteredBuffers,
}

/// The words and the data of a slot.
pub(super) struct Slot<'a> {
    /// The number of the last exchange that used the slot.
    pub flag: &'a AtomicU64,
    pub label: &'a AtomicU64,
    /// The slot's data: `slot_bytes` bytes, aligned to 16.
    pub data: NonNull<u8>,
}

impl Slot<'_> {
    /// The addresses of source and result that a slot holds instead of data. They are pointers, or, between processes, byte offsets
    /// from the start of the memory, plus one.
    pub fn ends(&self) -> (&AtomicPtr<u8>, &AtomicPtr<u8>) {
        let words = self.data.cast::<AtomicPtr<u8>>();
        // SAFETY: the data is aligned, has space for two pointers, and lives as long as the slot's sync segment; the protocol never
        // uses a slot as data and as pointers at once, and every bit pattern is a pointer.
        unsafe { (words.as_ref(), words.add(1).as_ref()) }
    }
}

impl SyncSegment {
    /// A sync segment within this process, for `members` members. Exchanges whose sources have at most `slot_bytes` bytes go through
    /// slots.
    ///
    /// # Panics
    /// If the memory cannot be allocated.
    pub fn new(members: u32, slot_bytes: usize, pace: Pace) -> SyncSegment {
        let slot_bytes = slot_bytes.max(64).next_multiple_of(LINE) + LINE - HEADER;
        let memory = Memory::own(SyncSegment::bytes(members, slot_bytes));
        SyncSegment {
            memory,
            members,
            slot_bytes,
            pace,
            one_address_space: true,
            registered_buffers: RegisteredBuffers::none(),
        }
    }

    /// A sync segment for members that are processes of this host, in memory without a file name: other processes map it by the
    /// descriptor. It is freed when the last of these processes ends, even by a crash. Addresses behind the slots are reserved for
    /// registered buffers, without memory yet.
    ///
    /// # Errors
    /// The system cannot provide the memory.
    pub fn shared(
        name: &str,
        members: u32,
        slot_bytes: usize,
        pace: Pace,
    ) -> std::io::Result<(SyncSegment, OwnedFd)> {
        let slot_bytes = slot_bytes.max(64).next_multiple_of(LINE) + LINE - HEADER;
        let [with, without] = SyncSegment::sizes(members, slot_bytes);
        // A limit on address space may leave no space for registered buffers.
        let (memory, fd) = Memory::shared(name, with).or_else(|_| Memory::shared(name, without))?;
        Ok((SyncSegment::mapped(memory, members, slot_bytes, pace), fd))
    }

    /// Maps the sync segment behind a descriptor of [`SyncSegment::shared`], which was called with the same arguments.
    ///
    /// # Errors
    /// The descriptor is not a sync segment, or is a sync segment of another size.
    pub fn attach(fd: OwnedFd, members: u32, slot_bytes: usize, pace: Pace) -> std::io::Result<SyncSegment> {
        let slot_bytes = slot_bytes.max(64).next_multiple_of(LINE) + LINE - HEADER;
        let memory = Memory::attach(fd, SyncSegment::sizes(members, slot_bytes))?;
        Ok(SyncSegment::mapped(memory, members, slot_bytes, pace))
    }

    fn mapped(memory: Memory, members: u32, slot_bytes: usize, pace: Pace) -> SyncSegment {
        let [with, without] = SyncSegment::sizes(members, slot_bytes);
        let registered_buffers = match memory.bytes() == with {
            true => RegisteredBuffers::behind(without, (with - without) / members as usize),
            false => RegisteredBuffers::none(),
        };
        memory.prefer_large_pages(without);
        SyncSegment { memory, members, slot_bytes, pace, one_address_space: false, registered_buffers }
    }

    /// The sizes of the shared memory in bytes: with space for registered buffers, and without.
    fn sizes(members: u32, slot_bytes: usize) -> [usize; 2] {
        let without = SyncSegment::bytes(members, slot_bytes).next_multiple_of(LARGE);
        let members = members as usize;
        let each = RESERVE.min(ADDRESSES / (members * members) / LARGE * LARGE);
        [without + each * members, without]
    }

    fn bytes(members: u32, slot_bytes: usize) -> usize {
        MEMBERS + members as usize * SyncSegment::stride(slot_bytes)
    }

    fn stride(slot_bytes: usize) -> usize {
        LINE + 2 * (HEADER + slot_bytes)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` is a multiple of eight inside the memory, which began as zeros and is accessed here by atomics only.
        unsafe { self.memory.base().add(at).cast::<AtomicU64>().as_ref() }
    }

    fn half(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `at` is a multiple of four inside the memory, which began as zeros and is accessed here by atomics only.
        unsafe { self.memory.base().add(at).cast::<AtomicU32>().as_ref() }
    }

    /// The count of arrivals at large exchanges.
    pub(super) fn gate(&self) -> &AtomicU64 {
        self.word(0)
    }

    /// The count of finished shares of large exchanges.
    pub(super) fn done(&self) -> &AtomicU64 {
        self.word(LINE)
    }

    pub(super) fn waker(&self) -> Waker<'_, AtomicU32, AtomicU32> {
        Waker { rung: self.half(2 * LINE), sleepers: self.half(2 * LINE + 8) }
    }

    /// The numbers of exchanges and of large exchanges that a member has begun.
    pub(super) fn begun(&self, member: u32) -> (&AtomicU64, &AtomicU64) {
        let at = MEMBERS + member as usize * SyncSegment::stride(self.slot_bytes);
        (self.word(at), self.word(at + 8))
    }

    /// The word that is set while a member is in an exchange.
    pub(super) fn busy(&self, member: u32) -> &AtomicU64 {
        self.word(MEMBERS + member as usize * SyncSegment::stride(self.slot_bytes) + 16)
    }

    /// The number of the last exchange of registered buffers whose share this member has completed.
    pub(super) fn finished(&self, member: u32) -> &AtomicU64 {
        self.word(MEMBERS + member as usize * SyncSegment::stride(self.slot_bytes) + 24)
    }

    /// The slot of a member for exchange `number`.
    pub(super) fn slot(&self, member: u32, number: u64) -> Slot<'_> {
        let own = MEMBERS + member as usize * SyncSegment::stride(self.slot_bytes) + LINE;
        let at = own + (number & 1) as usize * (HEADER + self.slot_bytes);
        // SAFETY: the slot is inside the memory, which has the size for all members' slots.
        let data = unsafe { self.memory.base().add(at + HEADER) };
        Slot { flag: self.word(at), label: self.word(at + 8), data }
    }

    /// Wakes every sleeping member, so that each consults its wait policy.
    pub fn wake(&self) {
        self.waker().wake();
    }
}
