//! A race detector over streams: it finds accesses of device memory that no event orders.
//!
//! ```text
//! stream a   write x (a:1)   record E {a:1}
//! stream b                       wait E -> b has {a:1}      read x: b has a:1, in order
//! stream c                                                  read x: c does not have a:1, a race
//! ```
//!
//! Every stream has a vector clock, and every event has the clock of its stream where it was recorded. Work that any thread queues after
//! a wait of the host is ordered after the work that the host has waited for: threads may inform each other in ways that the detector
//! does not see. So a race between threads may be missed, but no false race is reported. Clocks advance when work is queued, not when it
//! runs, so the verdict does not depend on timing.
//!
//! The method is that of vector clocks (Mattern 1989; Flanagan and Freund, FastTrack, PLDI 2009).

use allfold_cuda::MemoryAccess;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A vector clock: for each stream, in order, the number of its latest task that happened before a point. Tests join millions of
/// clocks of some tens of streams, which a vector does several times as fast as a tree.
#[derive(Clone, Default)]
pub(super) struct Clock(Vec<(u32, u64)>);

impl Clock {
    fn position(&self, stream: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&stream, |(stream, _)| *stream)
    }

    /// The number of the stream's latest task; 0 if there is none.
    fn tick(&self, stream: u32) -> u64 {
        self.position(stream).map_or(0, |at| self.0[at].1)
    }

    /// Counts a task of the stream, and returns its number.
    fn advance(&mut self, stream: u32) -> u64 {
        let at = self.position(stream).unwrap_or_else(|at| {
            self.0.insert(at, (stream, 0));
            at
        });
        self.0[at].1 += 1;
        self.0[at].1
    }

    fn remove(&mut self, stream: u32) {
        if let Ok(at) = self.position(stream) {
            self.0.remove(at);
        }
    }

    /// Adds the tasks that happened before the point of the other clock.
    fn join(&mut self, other: &Clock) {
        let mut at = 0;
        for &(stream, tick) in &other.0 {
            while self.0.get(at).is_some_and(|(own, _)| *own < stream) {
                at += 1;
            }
            match self.0.get_mut(at) {
                Some((own, known)) if *own == stream => *known = tick.max(*known),
                _ => self.0.insert(at, (stream, tick)),
            }
        }
    }
}

/// A task's access to memory: its stream and its number in that stream.
#[derive(Clone)]
struct Touch {
    stream: u32,
    tick: u64,
    name: Arc<str>,
}

impl Touch {
    fn known(&self, clock: &Clock) -> bool {
        clock.tick(self.stream) >= self.tick
    }
}

/// A range of bytes with the same last accesses.
#[derive(Clone)]
struct Segment {
    end: u64,
    write: Option<Touch>,
    reads: Vec<Touch>,
}

/// The clocks of all streams, and the last accesses of all bytes.
#[derive(Default)]
pub(super) struct Races {
    clocks: BTreeMap<u32, Clock>,
    host: Clock,
    /// The number of the last task of each destroyed stream.
    retired: BTreeMap<u32, u64>,
    segments: BTreeMap<u64, Segment>,
}

impl Races {
    /// The clock of an event that is recorded now on `stream`.
    pub fn snapshot(&self, stream: u32) -> Clock {
        self.clocks.get(&stream).cloned().unwrap_or_default()
    }

    /// Orders later work of the stream after an event.
    pub fn wait(&mut self, stream: u32, snapshot: &Clock) {
        self.clocks.entry(stream).or_default().join(snapshot);
    }

    /// Records that the host has waited for all work of a stream.
    pub fn host_waits_for(&mut self, stream: u32) {
        let clock = self.snapshot(stream);
        self.host_passed(&clock);
    }

    /// Records that the host has waited for an event. Earlier accesses are ordered before all later work, and are removed.
    pub fn host_passed(&mut self, snapshot: &Clock) {
        self.host.join(snapshot);
        let host = &self.host;
        self.segments.retain(|_, segment| {
            segment.reads.retain(|read| !read.known(host));
            segment.write = segment.write.take().filter(|write| !write.known(host));
            segment.write.is_some() || !segment.reads.is_empty()
        });
        self.forget_retired();
    }

    /// Retires a destroyed stream. The number of its last task is stored until the host has waited for that task.
    pub fn retire(&mut self, stream: u32) {
        let last = self.clocks.remove(&stream).map_or(0, |clock| clock.tick(stream));
        self.retired.insert(stream, last);
        self.forget_retired();
    }

    /// Removes destroyed streams whose tasks the host has all waited for.
    fn forget_retired(&mut self) {
        let Races { clocks, host, retired, .. } = self;
        retired.retain(|stream, last| {
            let known = host.tick(*stream) >= *last;
            if known {
                host.remove(*stream);
                clocks.values_mut().for_each(|clock| clock.remove(*stream));
            }
            !known
        });
    }

    /// Records that a task of a stream accesses memory.
    ///
    /// # Errors
    /// The other task and the common bytes, if the two tasks are not ordered.
    pub fn touch(&mut self, stream: u32, name: &str, accesses: &[MemoryAccess]) -> Result<(), String> {
        let clock = self.clocks.entry(stream).or_default();
        clock.join(&self.host);
        let touch = Touch { stream, tick: clock.advance(stream), name: name.into() };
        let clock = clock.clone();
        for access in accesses.iter().filter(|access| access.bytes > 0) {
            let range = access.address..access.address + access.bytes;
            self.cut(range.start);
            self.cut(range.end);
            self.fill(range.clone());
            for (start, segment) in self.segments.range_mut(range) {
                let reads = segment.reads.iter().filter(|_| access.write);
                if let Some(other) = segment.write.iter().chain(reads).find(|other| !other.known(&clock)) {
                    return Err(describe(&touch, other, access.write, *start..segment.end));
                }
                match access.write {
                    true => (segment.write, segment.reads) = (Some(touch.clone()), Vec::new()),
                    false => {
                        segment.reads.retain(|read| read.stream != stream);
                        segment.reads.push(touch.clone());
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks that memory may be freed, after the host has waited for the memory's device.
    ///
    /// # Errors
    /// A task of another device that may still access the memory.
    pub fn release(&mut self, address: u64, bytes: u64) -> Result<(), String> {
        self.cut(address);
        self.cut(address + bytes);
        let keys: Vec<u64> = self.segments.range(address..address + bytes).map(|(start, _)| *start).collect();
        let segments: Vec<_> = keys.iter().filter_map(|start| self.segments.remove(start)).collect();
        let mut touches = segments.iter().flat_map(|segment| segment.write.iter().chain(&segment.reads));
        match touches.find(|touch| !touch.known(&self.host)) {
            Some(touch) => Err(format!(
                "{bytes} bytes are given back while {} of stream {} may use them",
                touch.name, touch.stream
            )),
            None => Ok(()),
        }
    }

    /// Splits the segment that spans this address, so that a segment begins there.
    fn cut(&mut self, at: u64) {
        if let Some((_, segment)) = self.segments.range_mut(..at).next_back()
            && segment.end > at
        {
            let upper = segment.clone();
            segment.end = at;
            self.segments.insert(at, upper);
        }
    }

    /// Makes segments of the gaps in a range whose ends are already segment boundaries.
    fn fill(&mut self, range: std::ops::Range<u64>) {
        let (mut at, mut gaps) = (range.start, Vec::new());
        for (start, segment) in self.segments.range(range.clone()) {
            if at < *start {
                gaps.push(at..*start);
            }
            at = segment.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        for gap in gaps {
            self.segments.insert(gap.start, Segment { end: gap.end, write: None, reads: Vec::new() });
        }
    }
}

fn describe(touch: &Touch, other: &Touch, writes: bool, bytes: std::ops::Range<u64>) -> String {
    let how = if writes { "writes" } else { "reads" };
    let n = bytes.end - bytes.start;
    let (name, stream, earlier, from) = (&touch.name, touch.stream, &other.name, other.stream);
    format!(
        "{name} on stream {stream} {how} {n} bytes that {earlier} on stream {from} touches; no event orders the two"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(write: bool, range: std::ops::Range<u64>) -> [MemoryAccess; 1] {
        [MemoryAccess { address: range.start, bytes: range.end - range.start, write }]
    }

    #[test]
    fn two_writes_without_an_event_are_a_race_and_with_one_are_not() {
        let mut races = Races::default();
        races.touch(0, "fill", &on(true, 0..100)).unwrap();
        let error = races.touch(1, "copy", &on(true, 90..120)).unwrap_err();
        assert!(error.contains("copy on stream 1 writes 10 bytes that fill on stream 0 touches"), "{error}");

        let mut races = Races::default();
        races.touch(0, "fill", &on(true, 0..100)).unwrap();
        races.wait(1, &races.snapshot(0));
        races.touch(1, "copy", &on(true, 90..120)).unwrap();
        // The next work of stream 0 is not ordered after stream 1.
        assert!(races.touch(0, "fill", &on(true, 95..96)).is_err());
    }

    #[test]
    fn readers_do_not_race_with_each_other_but_with_the_next_writer() {
        let mut races = Races::default();
        races.touch(0, "a", &on(false, 0..8)).unwrap();
        races.touch(1, "b", &on(false, 4..12)).unwrap();
        races.touch(2, "c", &on(true, 12..20)).unwrap();
        races.wait(2, &races.snapshot(0));
        races.touch(2, "c", &on(true, 0..4)).unwrap();
        assert!(races.touch(2, "c", &on(true, 0..8)).is_err());
    }

    #[test]
    fn work_that_the_host_has_waited_for_is_in_order() {
        let mut races = Races::default();
        for stream in 0..4 {
            let at = u64::from(stream) * 10;
            races.touch(stream, "fill", &on(true, at..at + 10)).unwrap();
        }
        (0..3).for_each(|stream| races.host_waits_for(stream));
        races.touch(9, "copy", &on(true, 0..30)).unwrap();
        assert!(races.touch(9, "copy", &on(false, 30..31)).is_err());
        assert!(races.release(30, 10).unwrap_err().contains("fill of stream 3"));
        (0..10).for_each(|stream| races.host_waits_for(stream));
        assert!(races.segments.is_empty());
        (0..10).for_each(|stream| races.retire(stream));
        assert!(races.clocks.is_empty() && races.host.0.is_empty());
    }
}
