//! Encodes and decodes what ranks tell each other beside their data: calls, losses and errors, over TCP and MPI.
//!
//! Every length is checked against the available bytes, texts are cut at [`TEXT`] bytes, and nothing is allocated beyond the frame's own
//! size.

use crate::contract::Fingerprint;
use crate::{Call, Error, Lost, Rank};
use std::time::Duration;

/// The longest payload of a control message, in bytes.
pub(in crate::backends) const CONTROL: usize = 4 << 10;
/// The longest text in a frame, in bytes.
const TEXT: usize = 512;
/// The longest list of ranks in a frame.
const RANKS: usize = 256;

/// The bytes of a payload while it is written.
#[derive(Default)]
pub(in crate::backends) struct Writer(pub Vec<u8>);

impl Writer {
    pub fn byte(&mut self, value: u8) -> &mut Writer {
        self.0.push(value);
        self
    }

    pub fn word(&mut self, value: u64) -> &mut Writer {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn text(&mut self, text: &str) -> &mut Writer {
        let mut end = text.len().min(TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.word(end as u64).0.extend(&text.as_bytes()[..end]);
        self
    }

    pub fn call(&mut self, call: &Call) -> &mut Writer {
        self.word(call.sequence).0.extend(Fingerprint::of(call).0);
        self
    }

    pub fn lost(&mut self, lost: &Lost) -> &mut Writer {
        match lost {
            Lost::Panicked(message) => self.byte(0).text(message),
            Lost::ReturnedEarly { operations } => self.byte(1).word(*operations),
            Lost::Disconnected(how) => self.byte(2).text(how),
            Lost::Silent { by, after } => self.byte(3).word(by.0.into()).word(nanos(*after)),
        }
    }

    pub fn error(&mut self, error: &Error) -> &mut Writer {
        match error {
            Error::PeerLost { rank, cause, call, .. } => {
                self.byte(0).word(rank.0.into()).lost(cause).byte(call.is_some().into());
                call.iter().for_each(|call| {
                    self.call(call);
                });
                self
            }
            Error::Mismatch { rank, mine, peer, theirs } => {
                self.byte(1).word(rank.0.into()).call(mine).word(peer.0.into()).call(theirs)
            }
            Error::DeadlineExceeded { rank, waiting_on, entered, call, round, after } => {
                let some = &waiting_on[..waiting_on.len().min(RANKS)];
                self.byte(2).word(rank.0.into()).word(some.len() as u64);
                some.iter().for_each(|rank| {
                    self.word(rank.0.into());
                });
                self.byte((*entered).into()).call(call).word(*round).word(nanos(*after))
            }
            Error::Aborted { by, why } => self.byte(3).word(by.0.into()).text(why),
            Error::Protocol { rank, peer, call, round, what } => {
                self.byte(4).word(rank.0.into()).word(peer.0.into()).call(call).word(*round).text(what)
            }
            Error::Schedule { rank, call, round, what } => {
                self.byte(5).word(rank.0.into()).call(call).word(*round).text(what)
            }
            other => self.byte(6).text(&other.to_string()),
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Bytes being read; methods return `None` if they end too early or are invalid.
pub(in crate::backends) struct Reader<'a> {
    pub rest: &'a [u8],
    /// The algorithm of this rank's last call that had one, or empty. Algorithms are sent as hashes, and a program's own algorithm is not
    /// in the registry, so this name is tried as well.
    pub known: &'static str,
}

impl Reader<'_> {
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    pub fn word(&mut self) -> Option<u64> {
        let (first, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u64::from_le_bytes(*first))
    }

    pub fn rank(&mut self) -> Option<Rank> {
        u32::try_from(self.word()?).ok().map(Rank)
    }

    pub fn text(&mut self) -> Option<String> {
        let len = usize::try_from(self.word()?).ok().filter(|len| *len <= TEXT)?;
        let (text, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        // Control characters of a peer's text are replaced, because the text may be printed on a terminal.
        let shown = |c: char| if c.is_control() && c != '\n' { '\u{fffd}' } else { c };
        Some(String::from_utf8_lossy(text).chars().map(shown).collect())
    }

    pub fn call(&mut self) -> Option<Box<Call>> {
        let sequence = self.word()?;
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Fingerprint(*bytes).call(sequence, self.known).map(Box::new)
    }

    pub fn lost(&mut self) -> Option<Lost> {
        Some(match self.byte()? {
            0 => Lost::Panicked(self.text()?),
            1 => Lost::ReturnedEarly { operations: self.word()? },
            2 => Lost::Disconnected(self.text()?),
            3 => Lost::Silent { by: self.rank()?, after: Duration::from_nanos(self.word()?) },
            _ => return None,
        })
    }

    pub fn error(&mut self) -> Option<Error> {
        Some(match self.byte()? {
            0 => {
                let (rank, cause) = (self.rank()?, self.lost()?);
                let call = if self.byte()? == 0 { None } else { Some(self.call()?) };
                Error::lost(rank, cause, call)
            }
            1 => {
                let (rank, mine) = (self.rank()?, self.call()?);
                Error::Mismatch { rank, mine, peer: self.rank()?, theirs: self.call()? }
            }
            2 => {
                let rank = self.rank()?;
                let len = usize::try_from(self.word()?).ok().filter(|len| *len <= RANKS)?;
                let waiting_on = (0..len).map(|_| self.rank()).collect::<Option<_>>()?;
                let entered = self.byte()? != 0;
                let (call, round) = (self.call()?, self.word()?);
                let after = Duration::from_nanos(self.word()?);
                Error::DeadlineExceeded { rank, waiting_on, entered, call, round, after }
            }
            3 => Error::Aborted { by: self.rank()?, why: self.text()? },
            4 => {
                let (rank, peer, call) = (self.rank()?, self.rank()?, self.call()?);
                Error::Protocol { rank, peer, call, round: self.word()?, what: self.text()? }
            }
            5 => {
                let (rank, call) = (self.rank()?, self.call()?);
                Error::Schedule { rank, call, round: self.word()?, what: self.text()? }
            }
            6 => Error::System(self.text()?),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Collective, DType, Operation};
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> Option<Error> {
        Reader { rest: bytes, known: "" }.error()
    }

    fn samples() -> Vec<Error> {
        let call = Box::new(Call::plain(Operation::Collective(Collective::Barrier), 8, 0, DType::U8));
        let lost = [
            Lost::Panicked("out of paper".into()),
            Lost::ReturnedEarly { operations: 4 },
            Lost::Disconnected("reset".into()),
            Lost::Silent { by: Rank(2), after: Duration::from_millis(20) },
        ];
        let mut errors: Vec<Error> =
            lost.into_iter().map(|cause| Error::lost(Rank(3), cause, Some(call.clone()))).collect();
        errors.push(Error::Mismatch {
            rank: Rank(0),
            mine: call.clone(),
            peer: Rank(1),
            theirs: call.clone(),
        });
        errors.push(Error::DeadlineExceeded {
            rank: Rank(1),
            waiting_on: vec![Rank(0), Rank(2)],
            entered: true,
            call: call.clone(),
            round: 5,
            after: Duration::from_secs(1),
        });
        errors.push(Error::Aborted { by: Rank(2), why: "the disk is full".into() });
        let what = "its checksum".to_string();
        errors.push(Error::Protocol { rank: Rank(0), peer: Rank(1), call: call.clone(), round: 1, what });
        errors.push(Error::Schedule { rank: Rank(0), call, round: 1, what: "empty".into() });
        errors
    }

    #[test]
    fn every_error_comes_back_as_it_went() {
        for error in samples() {
            let mut writer = Writer::default();
            writer.error(&error);
            assert!(writer.0.len() <= CONTROL);
            assert_eq!(read(&writer.0), Some(error));
            for cut in 0..writer.0.len() {
                assert_eq!(read(&writer.0[..cut]), None, "cut at {cut}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = read(&bytes);
        }
    }
}
