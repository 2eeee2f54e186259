//! Handles to shared memory of another process on the same host, without a name in any file system.
//!
//! A process opens the other process's descriptor through `/proc/PID/fd/N`, after it has verified that this is the right memory: the name
//! of the memory contains a random word.

use allfold_base::fnv1a;
use std::os::fd::{AsRawFd, OwnedFd};

/// Identifies a host: processes with the same value can map each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host(u64);

/// A handle to shared memory: its host, process and descriptor; or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentHandle {
    /// The number of the host; 0 if it is unknown.
    host: u64,
    process: u32,
    descriptor: u32,
    /// The number of the segment; 0 if the handle names no segment.
    nonce: u64,
}

impl Host {
    /// This host: FNV-1a of the kernel's boot identifier and of this process's PID namespace, which are equal for processes that
    /// see each other's `/proc`. `None` if they are unknown.
    pub fn here() -> Option<Host> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let space = std::fs::read_link("/proc/self/ns/pid").ok()?;
        let text = format!("{boot}{}", space.display());
        Some(Host(fnv1a(text.as_bytes()) | 1))
    }

    /// A simulated host, for tests and measurements with several hosts on one.
    pub fn pretended(number: u32) -> Host {
        Host(u64::from(number) + 1)
    }
}

impl SegmentHandle {
    /// A segment handle's size as words.
    pub const WORDS: usize = 4;
    /// A segment handle's size in bytes.
    pub const BYTES: usize = 8 * SegmentHandle::WORDS;

    /// A handle to no memory.
    pub fn none(host: Option<Host>) -> SegmentHandle {
        let host = host.map_or(0, |host| host.0);
        SegmentHandle { host, process: std::process::id(), descriptor: 0, nonce: 0 }
    }

    /// A handle to the memory behind this descriptor; `nonce` is the number that its name was made from.
    pub fn to(host: Option<Host>, descriptor: &OwnedFd, nonce: u64) -> SegmentHandle {
        SegmentHandle { descriptor: descriptor.as_raw_fd() as u32, nonce, ..SegmentHandle::none(host) }
    }

    /// A random nonce for a name; not 0.
    pub fn nonce() -> Option<u64> {
        let word = crate::random::<8>().ok()?;
        Some(u64::from_ne_bytes(word) | 1)
    }

    /// The name of the memory with this nonce.
    pub fn name(nonce: u64) -> String {
        format!("allfold-{nonce:016x}")
    }

    /// The segment handle as words, to be sent.
    pub fn words(self) -> [i64; SegmentHandle::WORDS] {
        [self.host as i64, self.process.into(), self.descriptor.into(), self.nonce as i64]
    }

    /// Reads a segment handle from words. `None` if the words are not a handle.
    pub fn read(words: &[i64]) -> Option<SegmentHandle> {
        let [host, process, descriptor, nonce] = *words.first_chunk()?;
        let (process, descriptor) = (u32::try_from(process).ok()?, u32::try_from(descriptor).ok()?);
        Some(SegmentHandle { host: host as u64, process, descriptor, nonce: nonce as u64 })
    }

    /// Whether both handles are of one host.
    pub fn is_same_host(&self, other: &SegmentHandle) -> bool {
        self.host != 0 && self.host == other.host
    }

    /// Opens the memory, if it exists and has the handle's name.
    pub fn open(&self) -> Option<OwnedFd> {
        let path = format!("/proc/{}/fd/{}", self.process, self.descriptor);
        let target = std::fs::read_link(&path).ok()?;
        let expected = format!("/memfd:{} (deleted)", SegmentHandle::name(self.nonce));
        if self.nonce == 0 || target.to_str() != Some(&expected) {
            return None;
        }
        std::fs::OpenOptions::new().read(true).write(true).open(&path).ok().map(OwnedFd::from)
    }
}
