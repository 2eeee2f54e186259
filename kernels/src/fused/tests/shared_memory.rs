//! Tests of memory that processes share: two mappings of it work together, and a member stops in the middle of an exchange.

use super::*;

#[test]
fn a_segment_in_shared_memory_is_the_same_for_all_that_attach_to_it() {
    let pace = Pace { looks: 20, yields: 3 };
    let (sync_segment, fd) = SyncSegment::shared("a test", 2, 256, pace).unwrap();
    let other = SyncSegment::attach(fd.try_clone().unwrap(), 2, 256, pace).unwrap();
    assert!(
        SyncSegment::attach(fd.try_clone().unwrap(), 3, 256, pace).is_err(),
        "a segment of this size has another number of members"
    );
    assert!(SyncSegment::attach(std::fs::File::open("/dev/null").unwrap().into(), 2, 256, pace).is_err());
    let one = |p: u32, sync_segment: SyncSegment| {
        move || {
            let mut member = Member::new(Arc::new(sync_segment), p);
            for count in [3, 1000, 77] {
                let mut data = vec![i64::from(p) + 5; count];
                member
                    .run(
                        0,
                        &sums(2, count),
                        CallBuffers::InPlace(bytemuck::cast_slice_mut(&mut data)),
                        &mut deadline(20_000),
                    )
                    .unwrap();
                assert!(data.iter().all(|sum| *sum == 11), "{data:?}");
            }
        }
    };
    let threads = [std::thread::spawn(one(0, sync_segment)), std::thread::spawn(one(1, other))];
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_share_that_is_never_done_leaves_nobody_waiting_and_no_buffer_in_reach() {
    let pace = Pace { looks: 20, yields: 3 };
    let (mine, fd) = SyncSegment::shared("a test", 2, 256, pace).unwrap();
    let (mine, theirs) = (Arc::new(mine), Arc::new(SyncSegment::attach(fd, 2, 256, pace).unwrap()));
    let exchange = sums(2, 100_000);
    std::thread::scope(|scope| {
        // The second member arrives, announces its buffers, confirms, and then does nothing, like a process that is stopped or killed.
        scope.spawn(|| {
            use crate::fused::sync::Word;
            let buffer = theirs.register(1, 800_000).unwrap();
            let slot = theirs.slot(1, 1);
            let at = buffer.as_ptr().addr() - theirs.memory.base().addr().get() + 1;
            let (from, to) = slot.ends();
            let word = std::ptr::without_provenance_mut(at);
            from.store(word, std::sync::atomic::Ordering::SeqCst);
            to.store(word, std::sync::atomic::Ordering::SeqCst);
            while theirs.slot(0, 1).flag.get() != 1 {
                std::thread::yield_now();
            }
            let label = theirs.slot(0, 1).label.get();
            slot.label.set(label);
            slot.flag.set(1);
            theirs.begun(1).1.set(1);
            theirs.gate().count();
            while theirs.finished(0).get() != 1 {
                std::thread::yield_now();
            }
            drop(buffer);
        });
        let mut buffer = mine.register(0, 800_000).unwrap();
        bytemuck::cast_slice_mut::<u8, i64>(&mut buffer).fill(5);
        let at = buffer.as_ptr().addr() - mine.memory.base().addr().get();
        let buffers = CallBuffers::InPlace(&mut buffer);
        let stopped = Member::new(mine.clone(), 0).run(3, &exchange, buffers, &mut deadline(50));
        assert_eq!(stopped, Err(Stopped::TimedOut("late")));
        // Bytes that the stopped process writes later are not visible in this buffer any more.
        buffer.fill(9);
        // SAFETY: the range is inside the mapping, and no other code accesses these bytes of the memory any more.
        unsafe { theirs.memory.base().as_ptr().add(at).write_bytes(1, 800_000) };
        assert!(buffer.iter().all(|byte| *byte == 9));
    });
    // When the stopped process continues, it finds that the exchange has failed.
    use crate::fused::sync::{Gate, gate};
    assert_eq!(gate(theirs.done(), 2), Gate::GivenUp);
}
