//! The driver's calls for captures, and the rules for streams that join and leave a capture.

use super::capture::Capture;
use super::task::{Task, Ticket};
use super::world::{Recorded, World};
use cudarc::driver::sys::CUresult as Code;
use std::sync::Arc;

impl World {
    /// Begins a capture on a stream.
    pub fn begin_capture(&mut self, stream: u64) -> Result<(), Code> {
        let found = self.own(stream, "cuStreamBeginCapture")?;
        if found.capture.is_some() {
            return Err(Code::CUDA_ERROR_ILLEGAL_STATE);
        }
        let id = self.handle();
        self.own(stream, "cuStreamBeginCapture")?.capture = Some(id);
        self.captures.insert(id, Capture::new(stream));
        Ok(())
    }

    /// Ends a capture, even an invalid one, and returns its tasks if it is valid. Only the stream that began it can end it.
    pub fn end_capture(&mut self, stream: u64) -> Result<Arc<Vec<Task>>, Code> {
        let id = self.own(stream, "cuStreamEndCapture")?.capture.ok_or(Code::CUDA_ERROR_ILLEGAL_STATE)?;
        let Some(capture) = self.captures.get(&id) else { return Err(Code::CUDA_ERROR_ILLEGAL_STATE) };
        if capture.origin != stream {
            self.spoil(id);
            return Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let Some(capture) = self.captures.remove(&id) else { return Err(Code::CUDA_ERROR_ILLEGAL_STATE) };
        for member in capture.members.keys() {
            if let Some(member) = self.streams.get_mut(member) {
                member.capture = None;
            }
        }
        match (capture.invalid, capture.is_joined()) {
            (true, _) => Err(Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
            (_, false) => Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNJOINED),
            _ => Ok(Arc::new(capture.tasks)),
        }
    }

    fn spoil(&mut self, capture: u64) {
        if let Some(capture) = self.captures.get_mut(&capture) {
            capture.invalid = true;
        }
    }

    /// Refuses a host call that is not allowed on a capturing stream, and makes the stream's capture invalid.
    pub fn unless_captured(&mut self, stream: u64) -> Result<(), Code> {
        match self.streams.get(&stream).and_then(|stream| stream.capture) {
            None => Ok(()),
            Some(capture) => {
                self.spoil(capture);
                Err(Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
            }
        }
    }

    /// Queues a task on a stream of the calling thread's context; a captured stream records the task.
    pub fn give(&mut self, stream: u64, call: &str, task: Task) -> Result<(), Code> {
        let found = self.own(stream, call)?;
        let Some(id) = found.capture else {
            found.queue.push_back(task);
            found.wake.notify_all();
            return Ok(());
        };
        let Some(capture) = self.captures.get_mut(&id) else { return Err(Code::CUDA_ERROR_ILLEGAL_STATE) };
        if capture.invalid {
            return Err(Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        capture.tasks.push(task);
        let count = capture.counts.entry(stream).or_default();
        *count += 1;
        let count = *count;
        capture.members.entry(stream).or_default().insert(stream, count);
        Ok(())
    }

    /// Records an event in a stream.
    pub fn record(&mut self, event: u64, stream: u64) -> Result<(), Code> {
        let context = self.own(stream, "cuEventRecord")?.context;
        if self.event(event, "cuEventRecord")?.context != context {
            return Err(Code::CUDA_ERROR_INVALID_HANDLE);
        }
        let capture = self.own(stream, "cuEventRecord")?.capture;
        let last = match capture {
            Some(id) => {
                let Some(capture) = self.captures.get(&id) else {
                    return Err(Code::CUDA_ERROR_ILLEGAL_STATE);
                };
                if capture.invalid {
                    return Err(Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
                }
                Recorded::Captured(id, capture.members.get(&stream).cloned().unwrap_or_default())
            }
            None => {
                let shared = self.event(event, "cuEventRecord")?.shared.clone();
                let ticket = Ticket::of(shared.map(|file| (file.clone(), file.record())));
                self.give(stream, "cuEventRecord", Task::Record(ticket.clone()))?;
                Recorded::At(ticket)
            }
        };
        self.event(event, "cuEventRecord")?.last = last;
        Ok(())
    }

    /// Makes a stream wait for an event; the stream joins a capture if the event is captured.
    pub fn wait(&mut self, stream: u64, event: u64) -> Result<(), Code> {
        let found = self.event(event, "cuStreamWaitEvent")?;
        let last = match (&found.last, &found.shared) {
            (Recorded::Captured(id, clock), _) => Recorded::Captured(*id, clock.clone()),
            // The last recording may be another process's.
            (_, Some(file)) => Recorded::At(Ticket::of(Some((file.clone(), file.recorded())))),
            (Recorded::At(ticket), None) => Recorded::At(ticket.clone()),
            (Recorded::Never, None) => Recorded::Never,
        };
        let capture = self.own(stream, "cuStreamWaitEvent")?.capture;
        match (last, capture) {
            (Recorded::Never, _) => Ok(()),
            (Recorded::At(ticket), None) => self.give(stream, "cuStreamWaitEvent", Task::Wait(ticket)),
            (Recorded::At(_), Some(id)) => {
                self.spoil(id);
                Err(Code::CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
            }
            (Recorded::Captured(of, clock), mine) => {
                if mine.is_some_and(|mine| mine != of) {
                    self.spoil(of);
                    return Err(Code::CUDA_ERROR_STREAM_CAPTURE_MERGE);
                }
                let Some(capture) = self.captures.get_mut(&of) else {
                    return Err(Code::CUDA_ERROR_CAPTURED_EVENT);
                };
                if capture.invalid {
                    return Err(Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
                }
                let known = capture.members.entry(stream).or_default();
                for (other, count) in clock {
                    let have = known.entry(other).or_default();
                    *have = (*have).max(count);
                }
                self.own(stream, "cuStreamWaitEvent")?.capture = Some(of);
                Ok(())
            }
        }
    }
}
