//! How processes of one host come to have one segment mapped, without a name in any file system.
//!
//! A process opens another's descriptor through `/proc/PID/fd/N`, after it has seen there that this is the segment it
//! was invited to: the name of the memory carries a random word.

use allfold_kernels::fused::{Board, Pace};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Bytes of a slot: a piece of a larger buffer, small enough that the slots of a few ranks stay in the caches.
const SLOT: usize = 128 << 10;

/// What a rank tells the others: which host it is on, and where its segment is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Invitation {
    /// A hash of what differs between hosts, and between a host's reboots; 0 where that is not known.
    host: u64,
    process: u32,
    descriptor: u32,
    /// 0 where there is no segment.
    nonce: u64,
}

/// A rank's own segment, kept until all others have it mapped.
pub(crate) struct Segment {
    pub board: Arc<Board>,
    descriptor: OwnedFd,
    nonce: u64,
}

impl Segment {
    /// A new segment for this many ranks; none where the system gives none.
    pub fn new(ranks: u32) -> Option<Segment> {
        let nonce = nonce()?;
        let (board, descriptor) = Board::shared(&name(nonce), ranks, SLOT, Pace::of(ranks)).ok()?;
        Some(Segment { board: Arc::new(board), descriptor, nonce })
    }
}

impl Invitation {
    /// Words of an invitation.
    pub const WORDS: usize = 4;

    /// To a segment, or to none.
    pub fn to(segment: Option<&Segment>) -> Invitation {
        Invitation {
            host: host().unwrap_or(0),
            process: std::process::id(),
            descriptor: segment.map_or(0, |segment| segment.descriptor.as_raw_fd() as u32),
            nonce: segment.map_or(0, |segment| segment.nonce),
        }
    }

    pub fn words(self) -> [i64; Invitation::WORDS] {
        [self.host as i64, self.process.into(), self.descriptor.into(), self.nonce as i64]
    }

    pub fn read(words: &[i64]) -> Option<Invitation> {
        let [host, process, descriptor, nonce] = *words.first_chunk()?;
        let (process, descriptor) = (u32::try_from(process).ok()?, u32::try_from(descriptor).ok()?);
        Some(Invitation { host: host as u64, process, descriptor, nonce: nonce as u64 })
    }

    /// Whether both are of one host.
    pub fn is_beside(&self, other: &Invitation) -> bool {
        self.host != 0 && self.host == other.host
    }

    /// The board of the segment that this invites to.
    pub fn accept(&self, ranks: u32) -> Option<Arc<Board>> {
        let path = format!("/proc/{}/fd/{}", self.process, self.descriptor);
        let target = std::fs::read_link(&path).ok()?;
        let expected = format!("/memfd:{} (deleted)", name(self.nonce));
        if self.nonce == 0 || target.to_str() != Some(&expected) {
            return None;
        }
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).ok()?;
        Board::attach(file.into(), ranks, SLOT, Pace::of(ranks)).ok().map(Arc::new)
    }
}

fn name(nonce: u64) -> String {
    format!("allfold-{nonce:016x}")
}

/// A word that nobody else has; not 0.
fn nonce() -> Option<u64> {
    use std::io::Read;
    let mut word = [0; 8];
    std::fs::File::open("/dev/urandom").ok()?.read_exact(&mut word).ok()?;
    Some(u64::from_ne_bytes(word) | 1)
}

/// FNV-1a of the kernel's boot and of this process's namespace of processes: equal for those who see each other's
/// `/proc`.
fn host() -> Option<u64> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let space = std::fs::read_link("/proc/self/ns/pid").ok()?;
    let text = format!("{boot}{}", space.display());
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    Some(hash | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_says_the_same_after_its_words() {
        let segment = Segment::new(2).unwrap();
        let invitation = Invitation::to(Some(&segment));
        assert_eq!(Invitation::read(&invitation.words()), Some(invitation));
        assert!(invitation.is_beside(&Invitation::to(None)));
        assert!(invitation.accept(2).is_some());
        assert!(invitation.accept(3).is_none(), "a board of other parties has another size");
    }

    #[test]
    fn what_is_no_segment_is_not_opened() {
        let segment = Segment::new(2).unwrap();
        let invitation = Invitation::to(Some(&segment));
        assert!(Invitation { nonce: invitation.nonce ^ 2, ..invitation }.accept(2).is_none());
        assert!(Invitation { descriptor: 0, ..invitation }.accept(2).is_none());
        assert!(Invitation { nonce: 0, ..invitation }.accept(2).is_none());
        assert!(Invitation::read(&[1, -1, 0, 0]).is_none());
    }
}
