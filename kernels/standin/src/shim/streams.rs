//! Streams of the shim: queues whose tasks run in order, each as soon as its conditions are met.
//!
//! ```text
//! give(stream, work) -> race detector -> queue -> pump: runs every task at the head of a queue that can run
//! ```
//!
//! The shim's own work runs within the call that queues it. Only foreign work can wait for an event outside (another rank): then later
//! work of its stream, and work behind its events on other streams, also waits, as on a GPU.

use super::capture::{Capture, Entry, refused};
use super::foreign::{Poll, Progress};
use super::memory::Blocks;
use super::races::{Clock, Races};
use super::work::{Runner, Work};
use allfold_cuda::{Error, MemoryAccess, Result};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether one recording of an event has happened.
type Instance = Arc<AtomicBool>;

enum Op {
    Run {
        work: Work,
        replayed: bool,
    },
    /// Foreign work that has started.
    Under(Poll),
    Record(Instance),
    Wait(Instance),
}

struct CudaStream {
    device: usize,
    queue: VecDeque<Op>,
    capture: Option<u32>,
    failed: Option<Error>,
    /// Whether the stream is destroyed; it is removed once its queue is empty.
    retired: bool,
}

#[derive(Clone)]
enum Recorded {
    Eager(Instance, Clock),
    /// The event of this capture with this index.
    Captured(u32, usize),
}

/// A capture that has ended without an error.
struct Captured {
    origin: u32,
    /// The device of each stream.
    devices: BTreeMap<u32, usize>,
    entries: Vec<(u32, Entry)>,
}

/// All streams, events, captures and graphs of a shim, and the memory they work on.
pub(super) struct Streams {
    pub blocks: Blocks,
    pub races: Races,
    runner: Runner,
    streams: BTreeMap<u32, CudaStream>,
    events: BTreeMap<u32, Recorded>,
    captures: BTreeMap<u32, Capture>,
    graphs: BTreeMap<u32, Arc<Captured>>,
    /// The number of streams, events, captures and graphs made so far, from which new numbers are derived.
    numbers: u32,
}

fn unknown<T>(what: &str, number: u32) -> Result<T> {
    Err(Error::Argument(format!("{what} {number} is destroyed, or of another machine")))
}

impl Streams {
    pub fn new(runner: Runner, blocks: Blocks) -> Streams {
        Streams {
            blocks,
            races: Races::default(),
            runner,
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            captures: BTreeMap::new(),
            graphs: BTreeMap::new(),
            numbers: 0,
        }
    }

    fn number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers - 1
    }

    fn at(&mut self, stream: u32) -> Result<&mut CudaStream> {
        match self.streams.get_mut(&stream) {
            Some(found) if !found.retired => Ok(found),
            _ => unknown("stream", stream),
        }
    }

    /// The numbers of streams and of events that are not destroyed.
    pub fn live(&self) -> (usize, usize) {
        (self.streams.values().filter(|stream| !stream.retired).count(), self.events.len())
    }

    pub fn create(&mut self, device: usize) -> u32 {
        let number = self.number();
        let stream =
            CudaStream { device, queue: VecDeque::new(), capture: None, failed: None, retired: false };
        self.streams.insert(number, stream);
        number
    }

    pub fn retire(&mut self, stream: u32) {
        if let Some(found) = self.streams.get_mut(&stream) {
            found.retired = true;
            self.sweep();
        }
    }

    pub fn retire_event(&mut self, event: u32) {
        self.events.remove(&event);
    }

    /// Removes destroyed streams that have no work left.
    fn sweep(&mut self) {
        let gone =
            |stream: &CudaStream| stream.retired && stream.queue.is_empty() && stream.capture.is_none();
        let gone: Vec<u32> =
            self.streams.iter().filter(|(_, s)| gone(s)).map(|(number, _)| *number).collect();
        for stream in gone {
            self.streams.remove(&stream);
            self.races.retire(stream);
        }
    }

    /// Queues a task on a stream: a captured stream records the task; any other stream queues it, and tasks that can run are run.
    pub fn give(&mut self, stream: u32, work: Work) -> Result<()> {
        let found = self.at(stream)?;
        if let Some(error) = &found.failed {
            return Err(error.clone());
        }
        let (device, kernel) = (found.device, matches!(work, Work::Launch(_)));
        match found.capture {
            Some(capture) => {
                if matches!(work, Work::Upload { .. }) {
                    return self.lose(capture, "copy from pageable memory", "STREAM_CAPTURE_UNSUPPORTED");
                }
                self.blocks.reach(device, work.name(), &work.accesses(), kernel)?;
                self.note(capture, stream, Entry::Run(work));
                Ok(())
            }
            None => {
                self.enqueue(stream, work, false)?;
                self.pump()
            }
        }
    }

    fn enqueue(&mut self, stream: u32, mut work: Work, replayed: bool) -> Result<()> {
        let (accesses, kernel) = (work.accesses(), matches!(work, Work::Launch(_)));
        let device = self.streams.get(&stream).map_or(0, |stream| stream.device);
        self.blocks.reach(device, work.name(), &accesses, kernel)?;
        self.races.touch(stream, work.name(), &accesses).map_err(Error::Race)?;
        if let Work::Foreign(foreign) = &mut work {
            // A task outside of graphs holds no reference: `graphs` counts graphs only.
            foreign.graphs = Arc::new(());
        }
        self.push(stream, Op::Run { work, replayed });
        Ok(())
    }

    fn push(&mut self, stream: u32, op: Op) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.queue.push_back(op);
        }
    }

    fn note(&mut self, capture: u32, stream: u32, entry: Entry) {
        if let Some(capture) = self.captures.get_mut(&capture) {
            capture.entries.push((stream, entry));
        }
    }

    fn lose<T>(&mut self, capture: u32, call: &'static str, answer: &str) -> Result<T> {
        if let Some(capture) = self.captures.get_mut(&capture) {
            capture.lost = true;
        }
        refused(call, answer)
    }

    pub fn record(&mut self, stream: u32) -> Result<u32> {
        let event = self.number();
        let recorded = self.recorded(stream)?;
        self.events.insert(event, recorded);
        self.pump()?;
        Ok(event)
    }

    pub fn record_again(&mut self, event: u32, stream: u32) -> Result<()> {
        if !self.events.contains_key(&event) {
            return unknown("event", event);
        }
        let recorded = self.recorded(stream)?;
        self.events.insert(event, recorded);
        self.pump()
    }

    fn recorded(&mut self, stream: u32) -> Result<Recorded> {
        let capture = self.at(stream)?.capture;
        if let Some((number, capture)) = capture.and_then(|n| Some((n, self.captures.get_mut(&n)?))) {
            let nth = capture.events;
            capture.events += 1;
            capture.entries.push((stream, Entry::Record(nth)));
            return Ok(Recorded::Captured(number, nth));
        }
        let instance = Instance::default();
        self.push(stream, Op::Record(instance.clone()));
        Ok(Recorded::Eager(instance, self.races.snapshot(stream)))
    }

    pub fn wait(&mut self, stream: u32, event: u32) -> Result<()> {
        const CALL: &str = "wait for an event";
        let Some(recorded) = self.events.get(&event).cloned() else { return unknown("event", event) };
        match (recorded, self.at(stream)?.capture) {
            (Recorded::Eager(instance, clock), None) => {
                self.races.wait(stream, &clock);
                self.push(stream, Op::Wait(instance));
                self.pump()
            }
            (Recorded::Eager(..), Some(capture)) => self.lose(capture, CALL, "STREAM_CAPTURE_ISOLATION"),
            (Recorded::Captured(other, _), Some(capture)) if other != capture => {
                let _ = self.lose::<()>(other, CALL, "");
                self.lose(capture, CALL, "STREAM_CAPTURE_MERGE")
            }
            (Recorded::Captured(capture, nth), joined) => {
                let Some(under_way) = self.captures.get_mut(&capture) else {
                    return refused(CALL, "CAPTURED_EVENT");
                };
                under_way.entries.push((stream, Entry::Wait(nth)));
                if joined.is_none() {
                    under_way.streams.push(stream);
                    self.at(stream)?.capture = Some(capture);
                }
                Ok(())
            }
        }
    }

    /// Refuses a call of the host that is not allowed on a captured stream.
    fn unless_captured(&mut self, stream: u32, call: &'static str) -> Result<()> {
        match self.at(stream)?.capture {
            Some(capture) => self.lose(capture, call, "STREAM_CAPTURE_UNSUPPORTED"),
            None => Ok(()),
        }
    }

    /// Whether a stream has no work left; if so, its work is ordered before all later work.
    pub fn idle(&mut self, stream: u32, call: &'static str) -> Result<bool> {
        self.unless_captured(stream, call)?;
        self.pump()?;
        let found = self.at(stream)?;
        match &found.failed {
            Some(error) => Err(error.clone()),
            None if found.queue.is_empty() => {
                self.races.host_waits_for(stream);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Records that the host reads device memory, in order with a stream.
    pub fn read(&mut self, stream: u32, from: u64, bytes: usize) -> Result<()> {
        self.unless_captured(stream, "copy from the device")?;
        let accesses = [MemoryAccess { address: from, bytes: bytes as u64, write: false }];
        self.races.touch(stream, "a copy to the host", &accesses).map_err(Error::Race)
    }

    /// Whether an event has happened; if so, work before the event is ordered before all later work.
    pub fn synchronize(&mut self, event: u32) -> Result<bool> {
        self.pump()?;
        match self.events.get(&event).cloned() {
            None => unknown("event", event),
            Some(Recorded::Captured(..)) => refused("wait for an event", "CAPTURED_EVENT"),
            Some(Recorded::Eager(instance, clock)) => {
                let synchronize = instance.load(Ordering::Relaxed);
                if synchronize {
                    self.races.host_passed(&clock);
                }
                Ok(synchronize)
            }
        }
    }

    /// Whether all streams of a device have no work left.
    pub fn device_idle(&mut self, device: usize) -> Result<bool> {
        self.pump()?;
        let on_device: Vec<u32> = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.device == device)
            .map(|(number, _)| *number)
            .collect();
        let busy = |stream: &u32| self.streams.get(stream).is_some_and(|stream| !stream.queue.is_empty());
        if on_device.iter().any(busy) {
            return Ok(false);
        }
        on_device.into_iter().for_each(|stream| self.races.host_waits_for(stream));
        Ok(true)
    }

    pub fn begin_capture(&mut self, stream: u32) -> Result<()> {
        if self.at(stream)?.capture.is_some() {
            return refused("begin a capture", "ILLEGAL_STATE");
        }
        let number = self.number();
        self.captures.insert(number, Capture::new(stream));
        self.at(stream)?.capture = Some(number);
        Ok(())
    }

    pub fn captures(&mut self, stream: u32) -> Result<bool> {
        Ok(self.at(stream)?.capture.is_some())
    }

    pub fn end_capture(&mut self, stream: u32) -> Result<u32> {
        const CALL: &str = "end a capture";
        let Some(number) = self.at(stream)?.capture else { return refused(CALL, "ILLEGAL_STATE") };
        if self.captures.get(&number).is_some_and(|capture| capture.origin != stream) {
            return self.lose(number, CALL, "STREAM_CAPTURE_UNMATCHED");
        }
        let Some(capture) = self.captures.remove(&number) else { return refused(CALL, "ILLEGAL_STATE") };
        for joined in &capture.streams {
            if let Some(stream) = self.streams.get_mut(joined) {
                stream.capture = None;
            }
        }
        match capture.unjoined() {
            _ if capture.lost => refused(CALL, "STREAM_CAPTURE_INVALIDATED"),
            Some(_) => refused(CALL, "STREAM_CAPTURE_UNJOINED"),
            None => {
                let device = |stream: &u32| Some((*stream, self.streams.get(stream)?.device));
                let devices = capture.streams.iter().filter_map(device).collect();
                let graph = Captured { origin: capture.origin, devices, entries: capture.entries };
                self.graphs.insert(number, Arc::new(graph));
                Ok(number)
            }
        }
    }

    /// Queues all tasks of a graph: the tasks of its origin stream on `stream`, all others on new streams.
    pub fn replay(&mut self, stream: u32, graph: u32) -> Result<()> {
        if let Some(capture) = self.at(stream)?.capture {
            return self.lose(capture, "launch a graph", "STREAM_CAPTURE_UNSUPPORTED");
        }
        if let Some(error) = &self.at(stream)?.failed {
            return Err(error.clone());
        }
        let Some(graph) = self.graphs.get(&graph).cloned() else {
            return Err(Error::Argument(format!("graph {graph} was destroyed")));
        };
        let mut places = BTreeMap::from([(graph.origin, stream)]);
        let mut events: BTreeMap<usize, (Instance, Clock)> = BTreeMap::new();
        for (of, entry) in &graph.entries {
            let device = graph.devices.get(of).copied().unwrap_or(0);
            let on = *places.entry(*of).or_insert_with(|| self.create(device));
            match entry {
                Entry::Run(work) => self.enqueue(on, work.clone(), true)?,
                Entry::Record(nth) => {
                    let instance = Instance::default();
                    self.push(on, Op::Record(instance.clone()));
                    events.insert(*nth, (instance, self.races.snapshot(on)));
                }
                Entry::Wait(nth) => {
                    if let Some((instance, clock)) = events.get(nth).cloned() {
                        self.races.wait(on, &clock);
                        self.push(on, Op::Wait(instance));
                    }
                }
            }
        }
        places.remove(&graph.origin);
        places.into_values().for_each(|place| self.retire(place));
        self.pump()
    }

    pub fn forget(&mut self, graph: u32) {
        self.graphs.remove(&graph);
    }

    /// Runs every task that can run.
    fn pump(&mut self) -> Result<()> {
        loop {
            let mut moved = false;
            let all: Vec<u32> = self.streams.keys().copied().collect();
            for number in all {
                moved |= self.advance(number)?;
            }
            if !moved {
                self.sweep();
                return Ok(());
            }
        }
    }

    /// Runs tasks at the head of a stream as far as possible. Returns whether any task made progress.
    fn advance(&mut self, number: u32) -> Result<bool> {
        let mut moved = false;
        loop {
            let Some(stream) = self.streams.get_mut(&number) else { return Ok(moved) };
            match stream.queue.front_mut() {
                None => return Ok(moved),
                Some(Op::Wait(instance)) if !instance.load(Ordering::Relaxed) => return Ok(moved),
                Some(Op::Under(poll)) => match poll() {
                    Progress::Busy => return Ok(moved),
                    Progress::Done => {}
                    Progress::Failed(what) => {
                        stream.failed = Some(Error::Refused { call: "run a foreign kernel", answer: what });
                        stream.queue.clear();
                        return Ok(true);
                    }
                },
                Some(_) => {}
            }
            moved = true;
            match stream.queue.pop_front() {
                Some(Op::Record(instance)) => instance.store(true, Ordering::Relaxed),
                Some(Op::Run { work: Work::Foreign(foreign), replayed }) => {
                    stream.queue.push_front(Op::Under((foreign.start)(replayed)));
                }
                Some(Op::Run { work, .. }) => self.runner.run(&work, &self.blocks)?,
                _ => {}
            }
        }
    }
}
