//! A posted receive of a connection: the fragments that must arrive, and the memory for their bytes.

use super::fault::Fault;
use super::frame::{FRAGMENT, FrameHeader};
use crate::schedule::{Combine, Span};
use crate::transport::{Memory, Payload, Pool};

/// The destination of a message's bytes.
pub(super) enum Target {
    Payload(Payload),
    Span(Span, Combine),
}

/// A posted receive and its progress.
pub(super) struct Expected {
    pub lane: u32,
    pub round: Option<u32>,
    pub bytes: usize,
    /// Bytes that have arrived in fragments.
    pub done: usize,
    pub target: Target,
}

impl Expected {
    /// Compares a fragment with the fragment that must arrive next.
    pub fn admits(&self, header: &FrameHeader) -> Result<(), Fault> {
        let rest = self.bytes - self.done;
        let bytes = rest.min(FRAGMENT);
        let want =
            (self.round.unwrap_or(header.round), (self.done / FRAGMENT) as u32, bytes as u32, bytes == rest);
        let got = (header.round, header.at, header.bytes, header.last);
        if want == got {
            return Ok(());
        }
        let tell = |(round, at, bytes, last): (u32, u32, u32, bool)| {
            let end = if last { ", the last" } else { "" };
            format!("{bytes} bytes as fragment {at}{end} of round {round}")
        };
        Err(Fault::Wrong(format!("expected {}, got {}", tell(want), tell(got))))
    }

    /// The memory that the fragment's bytes are read into, and whether they are first read into scratch.
    pub fn dest<'a>(
        &'a mut self,
        header: &FrameHeader,
        scratch: &'a mut Option<Payload>,
        memory: &'a mut dyn Memory,
        pool: &Pool,
    ) -> Result<(&'a mut [u8], bool), Fault> {
        let from = header.at as usize * FRAGMENT;
        let range = from..from + header.bytes as usize;
        let beyond = || Fault::Wrong("its bytes lie beyond the end of the posted receive".into());
        let place = match &mut self.target {
            Target::Payload(payload) => Some(payload.get_mut(range.clone()).ok_or_else(beyond)?),
            Target::Span(span, Combine::Copy) => memory.target(*span, range.clone()),
            Target::Span(_, Combine::Reduce) => None,
        };
        match place {
            Some(place) => Ok((place, false)),
            None => {
                let scratch = scratch.get_or_insert_with(|| pool.take(FRAGMENT));
                Ok((scratch.get_mut(..range.len()).ok_or_else(beyond)?, true))
            }
        }
    }

    /// Accounts for a complete fragment. `bytes` holds its bytes if they are not in their destination yet.
    pub fn take(&mut self, header: &FrameHeader, bytes: Option<&[u8]>, memory: &mut dyn Memory) {
        if let (Target::Span(span, how), Some(bytes)) = (&self.target, bytes) {
            memory.put(*span, header.at as usize * FRAGMENT, *how, bytes);
        }
        self.done += header.bytes as usize;
    }
}
