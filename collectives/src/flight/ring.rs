//! The ring of a rank's last operations.

use super::record::{Entry, Header, Record, State, Writer};
use crate::backends::{Scale, Stamp};
use crate::{Call, Rank};
use allfold_base::lock;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Number of operations that are retained.
const LAST: usize = 512;

/// A rank's recorder. The rank's own thread and its communication threads write to it.
pub(crate) struct Recorder {
    rank: Rank,
    size: u32,
    folder: Option<PathBuf>,
    scale: Scales,
    /// The training step that the rank is in; [`NO_STEP`] if the program has noted none.
    step: AtomicU64,
    ring: Mutex<Ring>,
    /// Whether [`Recorder::write`] has run. Locked during the write, so that a second thread that ends the process waits for it.
    written: Mutex<bool>,
}

/// The value of `step` before the program has noted a training step.
const NO_STEP: u64 = u64::MAX;

/// Returns the scale of the stamps that were taken so far.
type Scales = Box<dyn Fn() -> Scale + Send + Sync>;

#[derive(Default)]
struct Ring {
    slots: Vec<Slot>,
    /// The number of operations recorded so far, which is the ticket of the next one.
    count: u64,
    /// How many operations were entered or ended so far.
    changes: u64,
}

struct Slot {
    ticket: u64,
    /// Name, rank and size of the group.
    group: (u64, Rank, u32),
    call: Call,
    peer: Option<Rank>,
    state: State,
    /// When the operation was issued, started and ended.
    times: [Option<Stamp>; 3],
    error: Option<String>,
    step: Option<u64>,
}

/// An operation that is being recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket(u64);

impl Recorder {
    pub fn new(rank: Rank, size: u32, folder: Option<PathBuf>, scale: Scales) -> Recorder {
        let step = AtomicU64::new(NO_STEP);
        Recorder { rank, size, folder, scale, step, ring: Mutex::default(), written: Mutex::default() }
    }

    /// Stores the training step that the rank is in: later operations of the rank are recorded with this step.
    pub fn note_step(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    fn step(&self) -> Option<u64> {
        Some(self.step.load(Ordering::Relaxed)).filter(|step| *step != NO_STEP)
    }

    /// Records that an operation is called.
    pub fn issue(&self, group: (u64, Rank, u32), call: Call, peer: Option<Rank>, now: Stamp) -> Ticket {
        self.add(group, call, peer, State::Issued, [Some(now), None, None])
    }

    /// Records that an operation is called and entered at the same time.
    pub fn begin(&self, group: (u64, Rank, u32), call: Call, now: Stamp) -> Ticket {
        self.add(group, call, None, State::Started, [Some(now), Some(now), None])
    }

    fn add(
        &self,
        group: (u64, Rank, u32),
        call: Call,
        peer: Option<Rank>,
        state: State,
        times: [Option<Stamp>; 3],
    ) -> Ticket {
        let mut ring = self.ring();
        let ticket = ring.count;
        ring.count += 1;
        let slot = Slot { ticket, group, call, peer, state, times, error: None, step: self.step() };
        match ring.slots.get_mut((ticket % LAST as u64) as usize) {
            Some(place) => *place = slot,
            None => ring.slots.push(slot),
        }
        Ticket(ticket)
    }

    /// Records that an operation is entered.
    pub fn start(&self, ticket: Ticket, now: Stamp) {
        self.change(ticket, |slot| (slot.state, slot.times[1]) = (State::Started, Some(now)));
    }

    /// Records how an operation ended.
    pub fn end<T>(&self, ticket: Ticket, now: Stamp, result: &crate::Result<T>) {
        self.change(ticket, |slot| {
            slot.times[2] = Some(now);
            slot.state = if result.is_ok() { State::Done } else { State::Failed };
            slot.error = result.as_ref().err().map(crate::Error::to_string);
            self.log(slot);
        });
    }

    /// Writes an operation that has ended to the log.
    fn log(&self, slot: &Slot) {
        let Slot { call, times: [_, Some(from), Some(to)], error, .. } = slot else { return };
        if !tracing::enabled!(tracing::Level::TRACE) {
            return;
        }
        let took = (self.scale)().time(Stamp(to.0.saturating_sub(from.0))).as_micros();
        let peer = slot.peer.map_or(String::new(), |peer| format!(" with rank {peer}"));
        let end = error.as_deref().unwrap_or("done");
        tracing::trace!(rank = self.rank.0, "{call}{peer}: {end} after {took:.1} us");
    }

    fn change(&self, Ticket(ticket): Ticket, change: impl FnOnce(&mut Slot)) {
        let mut ring = self.ring();
        ring.changes += 1;
        // An entry is overwritten after this many later operations.
        if let Some(slot) =
            ring.slots.get_mut((ticket % LAST as u64) as usize).filter(|slot| slot.ticket == ticket)
        {
            change(slot);
        }
    }

    /// A number that grows whenever an operation is called, entered or ended.
    pub fn changes(&self) -> u64 {
        let ring = self.ring();
        ring.count + ring.changes
    }

    /// The record of the operations that are still retained; with `step`, only those that were called in this step.
    pub fn record(&self, reason: &str, step: Option<u64>) -> Record {
        let ring = self.ring();
        // All stamps are converted by one scale: with several, an operation could seem to end before it began.
        let scale = (self.scale)();
        let mut slots: Vec<_> = ring.slots.iter().filter(|s| step.is_none() || s.step == step).collect();
        slots.sort_by_key(|slot| slot.ticket);
        let entries = slots.into_iter().map(|slot| {
            let times = slot.times.map(|stamp| stamp.map(|stamp| scale.time(stamp)));
            let entry = Entry::of(slot.group, &slot.call, slot.peer).timed(slot.state, times);
            Entry { error: slot.error.clone(), step: slot.step, ..entry }
        });
        let (rank, size, step) = (self.rank.0, self.size, self.step());
        let header = Header { flight: 1, rank, size, reason: reason.into(), step, writer: None };
        Record { header, entries: entries.collect() }
    }

    /// Writes the record into the folder for records, if one was given. Only the first reason is written. The file is complete on
    /// return, whichever thread wrote it.
    pub fn write(&self, reason: &str) {
        let Some(folder) = &self.folder else { return };
        let mut written = lock(&self.written);
        if !std::mem::replace(&mut *written, true) {
            self.put(folder, reason);
        }
    }

    /// Writes the record as it is now, while the rank continues. The record of a later failure replaces it; after a failure the failure's
    /// record stays.
    pub fn dump(&self, reason: &str) {
        let Some(folder) = &self.folder else { return };
        let written = lock(&self.written);
        if *written {
            return;
        }
        if let Some(path) = self.put(folder, reason) {
            // Without this line, the sender of the signal would not see that the record was written.
            tracing::warn!(
                rank = self.rank.0,
                "rank {} wrote its flight record, {}: {reason}",
                self.rank,
                path.display()
            );
        }
    }

    /// Writes the record. Returns its file; `None` if the file cannot be written, which is logged.
    fn put(&self, folder: &Path, reason: &str) -> Option<PathBuf> {
        let mut record = self.record(reason, None);
        record.header.writer = Some(Writer::here());
        // An error while writing must not hide the error that caused the record.
        let written = record.write(folder);
        if let Err(error) = &written {
            tracing::warn!(
                rank = self.rank.0,
                "the flight record of rank {} cannot be written: {error}",
                self.rank
            );
        }
        written.ok()
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        lock(&self.ring)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Collective, DType, Error, Operation};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    fn call(sequence: u64) -> Call {
        Call::plain(Operation::Collective(Collective::Barrier), sequence, 0, DType::U8)
    }

    fn same() -> Scales {
        Box::new(|| Scale::SAME)
    }

    #[test]
    fn the_last_operations_are_kept_in_order_with_how_they_ended() {
        let recorder = Recorder::new(Rank(1), 4, None, same());
        for sequence in 0..LAST as u64 + 10 {
            let ticket = recorder.issue((0, Rank(1), 4), call(sequence), None, Stamp(sequence * 1_000_000));
            recorder.start(ticket, Stamp(1));
            let failed = sequence % 2 == 1;
            let result = if failed { Err(Error::System("no".into())) } else { Ok(()) };
            recorder.end(ticket, Stamp(2), &result);
        }
        let late = recorder.issue((0, Rank(1), 4), call(9_999), None, Stamp(3));
        recorder.end(Ticket(0), Stamp(9), &Ok(()));
        let record = recorder.record("because", None);
        assert_eq!(record.entries.len(), LAST);
        assert_eq!(record.entries[0].sequence, 11);
        assert_eq!(record.entries[0].error.as_deref(), Some("no"));
        assert_eq!(record.entries[1].state, State::Done);
        let last = &record.entries[LAST - 1];
        assert_eq!((last.sequence, last.state, last.started_us), (9_999, State::Issued, None));
        recorder.start(late, Stamp(4));
        assert_eq!(recorder.record("", None).entries[LAST - 1].state, State::Started);
        recorder.begin((0, Rank(1), 4), call(10_000), Stamp(5_000_000));
        let last = recorder.record("", None).entries.pop().unwrap();
        assert_eq!((last.sequence, last.state, last.started_us), (10_000, State::Started, Some(5.0)));
    }

    #[test]
    fn a_record_is_a_file_that_reads_back() {
        let folder = std::env::temp_dir().join(format!("allfold-flight-{}", std::process::id()));
        let recorder = Recorder::new(Rank(2), 3, Some(folder.clone()), same());
        recorder.issue((7, Rank(0), 2), call(5), Some(Rank(1)), Stamp(1_500_000));
        let path = folder.join(Record::name(2));
        let read = || {
            let mut record = Record::read(&path).unwrap();
            let Writer { host, pid, time } = record.header.writer.take().unwrap();
            assert!(
                !host.is_empty() && pid == std::process::id() && time.ends_with('Z'),
                "{host} {pid} {time}"
            );
            record
        };
        recorder.dump("asked");
        assert_eq!(read(), recorder.record("asked", None));
        recorder.note_step(12);
        recorder.issue((7, Rank(0), 2), call(6), Some(Rank(1)), Stamp(1_700_000));
        recorder.write("first");
        recorder.write("second");
        recorder.dump("asked too late");
        assert_eq!(read(), recorder.record("first", None));
        let steps: Vec<_> = read().entries.iter().map(|entry| entry.step).collect();
        assert_eq!((read().header.step, steps), (Some(12), vec![None, Some(12)]));
        assert_eq!(recorder.record("", Some(12)).entries, read().entries[1..]);
        std::fs::write(&path, "{\"flight\":1,\"rank\":0,\"size\":1,\"reason\":\"\"}\nnonsense\n").unwrap();
        assert!(Record::read(&path).unwrap_err().to_string().contains("line 2"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "waits for what must not come")]
    fn a_second_writer_returns_after_the_first_has_written() {
        let folder = tempfile::tempdir().unwrap();
        let (inside, is_inside) = channel();
        let (go_on, may_go_on) = channel();
        // The first thread is stopped in the middle of its record.
        let may_go_on = Mutex::new(may_go_on);
        let scale = move || {
            inside.send(()).unwrap();
            may_go_on.lock().unwrap().recv().unwrap();
            Scale::SAME
        };
        let recorder = Recorder::new(Rank(0), 1, Some(folder.path().into()), Box::new(scale));
        let path = folder.path().join(Record::name(0));
        std::thread::scope(|scope| {
            scope.spawn(|| recorder.write("it lost a rank"));
            is_inside.recv().unwrap();
            let second = scope.spawn(|| {
                recorder.write("it was asked to end");
                path.exists()
            });
            // Time for the second thread to return too early, as it would if it did not wait.
            std::thread::sleep(Duration::from_millis(50));
            go_on.send(()).unwrap();
            assert!(second.join().unwrap());
        });
        assert_eq!(Record::read(&path).unwrap().header.reason, "it lost a rank");
    }
}
