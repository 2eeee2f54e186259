//! How a process finds memory of another on its host, without a name in any file system.
//!
//! It opens the other's descriptor through `/proc/PID/fd/N`, after it has seen there that this is the memory it was
//! invited to: the name of the memory carries a random word.

use allfold_base::fnv1a;
use std::os::fd::{AsRawFd, OwnedFd};

/// Tells hosts apart: processes that name the same one see each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host(u64);

/// Where memory is: on which host, in which process, behind which descriptor. Or that there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentHandle {
    /// 0 where that is not known.
    host: u64,
    process: u32,
    descriptor: u32,
    /// 0 where there is no memory.
    nonce: u64,
}

impl Host {
    /// This one: FNV-1a of the kernel's boot and of this process's namespace of processes, which those have in common
    /// who see each other's `/proc`. `None` where that is not known.
    pub fn here() -> Option<Host> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let space = std::fs::read_link("/proc/self/ns/pid").ok()?;
        let text = format!("{boot}{}", space.display());
        Some(Host(fnv1a(text.as_bytes()) | 1))
    }

    /// One of several that this one stands in for, in tests and measurements.
    pub fn pretended(number: u32) -> Host {
        Host(u64::from(number) + 1)
    }
}

impl SegmentHandle {
    /// A segment handle's size as words.
    pub const WORDS: usize = 4;
    /// And as bytes.
    pub const BYTES: usize = 8 * SegmentHandle::WORDS;

    /// To no memory.
    pub fn none(host: Option<Host>) -> SegmentHandle {
        let host = host.map_or(0, |host| host.0);
        SegmentHandle { host, process: std::process::id(), descriptor: 0, nonce: 0 }
    }

    /// To the memory behind this descriptor, which was made with the name that this word gives.
    pub fn to(host: Option<Host>, descriptor: &OwnedFd, nonce: u64) -> SegmentHandle {
        SegmentHandle { descriptor: descriptor.as_raw_fd() as u32, nonce, ..SegmentHandle::none(host) }
    }

    /// A word that nobody else has, for a name; not 0.
    pub fn nonce() -> Option<u64> {
        let word = crate::random::<8>().ok()?;
        Some(u64::from_ne_bytes(word) | 1)
    }

    /// What the memory with this word is called.
    pub fn name(nonce: u64) -> String {
        format!("allfold-{nonce:016x}")
    }

    /// The segment handle as words, to be sent.
    pub fn words(self) -> [i64; SegmentHandle::WORDS] {
        [self.host as i64, self.process.into(), self.descriptor.into(), self.nonce as i64]
    }

    /// The segment handle that these words are. `None` for words that are none.
    pub fn read(words: &[i64]) -> Option<SegmentHandle> {
        let [host, process, descriptor, nonce] = *words.first_chunk()?;
        let (process, descriptor) = (u32::try_from(process).ok()?, u32::try_from(descriptor).ok()?);
        Some(SegmentHandle { host: host as u64, process, descriptor, nonce: nonce as u64 })
    }

    /// Whether both are of one host.
    pub fn is_same_host(&self, other: &SegmentHandle) -> bool {
        self.host != 0 && self.host == other.host
    }

    /// Opens the memory, if it is there and is what this invites to.
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
