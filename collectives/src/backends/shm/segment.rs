//! The shared segment of the processes of one host: one process makes it, and the others map it by its handle.

use crate::Rank;
use crate::backends::{Host, SegmentHandle};
use crate::transport::SharedMemory;
use allfold_kernels::fused::{Pace, SyncSegment};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a slot: a piece of a larger buffer, small enough that the slots of a few ranks stay in the caches.
const SLOT: usize = 128 << 10;

/// The longest sleep of a rank before it checks the backend for failures again. The death of a peer is noticed with at most this delay.
const NAP: Duration = Duration::from_millis(5);

/// A rank's own segment, retained until all others have mapped it.
pub(crate) struct Segment {
    pub sync_segment: Arc<SyncSegment>,
    descriptor: OwnedFd,
    nonce: u64,
}

impl Segment {
    /// A new segment for this many ranks; `None` if the system provides none.
    pub fn new(ranks: u32) -> Option<Segment> {
        let nonce = SegmentHandle::nonce()?;
        let (sync_segment, descriptor) =
            SyncSegment::shared(&SegmentHandle::name(nonce), ranks, SLOT, Pace::of(ranks)).ok()?;
        Some(Segment { sync_segment: Arc::new(sync_segment), descriptor, nonce })
    }

    /// The handle to a segment, or to none.
    pub fn segment_handle(segment: Option<&Segment>) -> SegmentHandle {
        let host = Host::here();
        segment.map_or(SegmentHandle::none(host), |own| SegmentHandle::to(host, &own.descriptor, own.nonce))
    }

    /// A rank's membership in the sync segment of a segment that all `ranks` ranks have mapped.
    pub fn share(sync_segment: &Arc<SyncSegment>, rank: Rank, ranks: u32) -> SharedMemory {
        SharedMemory::new(sync_segment.clone(), rank, ranks, NAP)
    }

    /// Opens the sync segment of the segment that the handle names; `None` if this process cannot map it.
    pub fn accept(segment_handle: &SegmentHandle, ranks: u32) -> Option<Arc<SyncSegment>> {
        SyncSegment::attach(segment_handle.open()?, ranks, SLOT, Pace::of(ranks)).ok().map(Arc::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_says_the_same_after_its_words() {
        let segment = Segment::new(2).unwrap();
        let segment_handle = Segment::segment_handle(Some(&segment));
        assert_eq!(SegmentHandle::read(&segment_handle.words()), Some(segment_handle));
        assert!(segment_handle.is_same_host(&Segment::segment_handle(None)));
        assert!(
            !SegmentHandle::default().is_same_host(&SegmentHandle::default()),
            "hosts that are not known"
        );
        assert!(Segment::accept(&segment_handle, 2).is_some());
        assert!(Segment::accept(&segment_handle, 3).is_none(), "a segment of other members has another size");
    }

    #[test]
    fn handles_to_no_segment_are_not_opened() {
        let segment = Segment::new(2).unwrap();
        let [host, process, descriptor, nonce] = Segment::segment_handle(Some(&segment)).words();
        let opens = |words: [i64; SegmentHandle::WORDS]| {
            SegmentHandle::read(&words).is_some_and(|it| it.open().is_some())
        };
        assert!(opens([host, process, descriptor, nonce]));
        assert!(!opens([host, process, descriptor, nonce ^ 2]));
        assert!(!opens([host, process, 0, nonce]));
        assert!(!opens([host, process, descriptor, 0]));
        assert!(!opens([1, -1, 0, 0]));
    }
}
