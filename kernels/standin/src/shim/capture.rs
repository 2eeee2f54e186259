//! The driver's rules for captured streams, and its answer to each violation.
//!
//! | call | rule | answer |
//! |---|---|---|
//! | begin | the stream is not in a capture | `ILLEGAL_STATE` |
//! | work, record | is recorded and not run | |
//! | wait for a captured event | the stream joins that capture | |
//! | wait for an event of a stream that was not captured | refused, the capture is lost | `STREAM_CAPTURE_ISOLATION` |
//! | wait of one capture for an event of another | refused, both are lost | `STREAM_CAPTURE_MERGE` |
//! | query or wait of the host for a captured stream | refused, the capture is lost | `STREAM_CAPTURE_UNSUPPORTED` |
//! | copy from or to pageable memory | refused, the capture is lost | `STREAM_CAPTURE_UNSUPPORTED` |
//! | the host waits for a captured event, or an uncaptured stream for one whose capture has ended | refused | `CAPTURED_EVENT` |
//! | end on another stream than the one that began | refused, the capture is lost | `STREAM_CAPTURE_UNMATCHED` |
//! | end while work of a joined stream is not ordered before the end | refused | `STREAM_CAPTURE_UNJOINED` |
//! | end of a lost capture | refused | `STREAM_CAPTURE_INVALIDATED` |
//!
//! Source: "CUDA Graphs", prohibited and unhandled operations, in NVIDIA's CUDA C++ Programming Guide, and the error codes of
//! the driver's reference. The driver also loads modules and allocates memory during a relaxed capture; so does the shim.

use super::work::Work;
use allfold_cuda::{Error, Result};
use std::collections::BTreeMap;

/// One entry of a capture, on one of the capture's streams.
#[derive(Clone)]
pub(super) enum Entry {
    Run(Work),
    /// The nth event of this capture is recorded.
    Record(usize),
    /// The stream waits for the nth event of this capture.
    Wait(usize),
}

/// A capture in progress.
pub(super) struct Capture {
    pub origin: u32,
    pub streams: Vec<u32>,
    pub entries: Vec<(u32, Entry)>,
    pub events: usize,
    /// Whether the capture is lost.
    pub lost: bool,
}

impl Capture {
    pub fn new(origin: u32) -> Capture {
        Capture { origin, streams: vec![origin], entries: Vec::new(), events: 0, lost: false }
    }

    /// A joined stream with work that is not ordered before the end of the origin stream.
    pub fn unjoined(&self) -> Option<u32> {
        // For each stream A and stream B: 1 plus the index in `entries` of B's last work that comes before the end of A.
        let mut known: BTreeMap<u32, BTreeMap<u32, usize>> = BTreeMap::new();
        let mut events: BTreeMap<usize, BTreeMap<u32, usize>> = BTreeMap::new();
        let mut last: BTreeMap<u32, usize> = BTreeMap::new();
        for (at, (stream, entry)) in self.entries.iter().enumerate() {
            let clock = known.entry(*stream).or_default();
            match entry {
                Entry::Run(_) => {
                    clock.insert(*stream, at + 1);
                    last.insert(*stream, at + 1);
                }
                Entry::Record(event) => {
                    events.insert(*event, clock.clone());
                }
                Entry::Wait(event) => {
                    for (other, at) in events.get(event).into_iter().flatten() {
                        let known = clock.entry(*other).or_default();
                        *known = (*known).max(*at);
                    }
                }
            }
        }
        let end = known.remove(&self.origin).unwrap_or_default();
        last.into_iter().find(|(stream, at)| end.get(stream).is_none_or(|known| known < at)).map(|(s, _)| s)
    }
}

/// An error of the driver about captures.
pub(super) fn refused<T>(call: &'static str, answer: &str) -> Result<T> {
    Err(Error::Refused { call, answer: format!("CUDA_ERROR_{answer}") })
}
