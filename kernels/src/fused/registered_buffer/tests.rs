#![allow(clippy::unwrap_used)]

use super::super::registered_buffers::{LARGE, RESERVE};
use super::super::sync_segment::Pace;
use super::*;

fn sync_segment() -> Arc<SyncSegment> {
    Arc::new(SyncSegment::shared("registered", 2, 256, Pace { looks: 1, yields: 1 }).unwrap().0)
}

#[test]
fn registered_buffers_do_not_overlap_and_return_as_zeros() {
    let sync_segment = sync_segment();
    let sizes = [1, UNIT, UNIT + 1, LARGE, 3 * LARGE + 5, 100];
    let mut registered_buffers: Vec<RegisteredBuffer> =
        sizes.iter().map(|bytes| sync_segment.register(1, *bytes).unwrap()).collect();
    for (mark, buffer) in (1u8..).zip(&mut registered_buffers) {
        assert!(buffer.iter().all(|byte| *byte == 0));
        buffer.fill(mark);
    }
    for (mark, buffer) in (1u8..).zip(&registered_buffers) {
        assert!(buffer.iter().all(|byte| *byte == mark));
    }
    let at = registered_buffers[2].at;
    drop(registered_buffers.remove(2));
    let again = sync_segment.register(1, UNIT + 1).unwrap();
    assert_eq!(again.at, at, "the place is used again");
    assert!(again.iter().all(|byte| *byte == 0));
    assert!(sync_segment.register(0, RESERVE + 1).is_none() && sync_segment.register(0, 0).is_none());
    assert!(Arc::new(SyncSegment::new(2, 256, Pace { looks: 1, yields: 1 })).register(0, 8).is_none());
}

#[test]
fn bytes_that_others_may_write_share_no_page() {
    let sync_segment = sync_segment();
    let buffer = sync_segment.register(0, 3 * UNIT + 9).unwrap();
    let part =
        |range: Range<usize>, write| sync_segment.registered(0, &raw const buffer[range], write).is_some();
    assert!(part(0..3 * UNIT + 9, true) && part(UNIT..2 * UNIT, true) && part(UNIT..3 * UNIT + 9, true));
    assert!(!part(8..UNIT, true) && !part(0..UNIT + 8, true));
    assert!(part(8..UNIT, false));
    assert!(sync_segment.registered(1, &raw const buffer[..], false).is_none(), "of another member's part");
    let other = [0u8; 9];
    assert!(sync_segment.registered(0, &raw const other[..], false).is_none(), "nobody registered that");
}

#[test]
fn a_detached_buffer_is_its_owners_alone_and_is_not_registered_again() {
    let pace = Pace { looks: 1, yields: 1 };
    let (mine, fd) = SyncSegment::shared("withdrawn", 2, 256, pace).unwrap();
    let (mine, theirs) = (Arc::new(mine), SyncSegment::attach(fd, 2, 256, pace).unwrap());
    let mut buffer = mine.register(0, 2 * UNIT).unwrap();
    buffer.fill(1);
    let other = theirs.memory.base().as_ptr().wrapping_add(buffer.at);
    // SAFETY: `other` points to the same bytes, mapped a second time, and no exchange runs.
    assert_eq!(unsafe { other.read() }, 1);
    // SAFETY: the range is the whole buffer, and its old content is not read afterwards.
    unsafe { mine.detach(0, buffer.at..buffer.at + buffer.len()) };
    // SAFETY: `other` points to the shared bytes, which the buffer no longer uses.
    unsafe { other.write(7) };
    assert!(buffer.iter().all(|byte| *byte == 0));
    buffer.fill(3);
    assert!(mine.registered(0, &raw const buffer[..], true).is_none());
    let at = buffer.at;
    drop(buffer);
    assert_ne!(mine.register(0, 2 * UNIT).unwrap().at, at);
}
