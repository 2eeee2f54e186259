//! The channel, separate from NCCL, by which ranks exchange a few bytes before they use NCCL.

use crate::{Communicator, Error, Rank, Result};
use std::collections::BTreeSet;
use std::ffi::c_int;

/// A channel by which the ranks of a communicator exchange a few bytes.
pub trait Control {
    /// Exchanges `mine` among all ranks and returns one message per rank, in order of ranks. Every rank must call this with a
    /// message of the same length.
    ///
    /// # Errors
    /// The error of the channel: a lost peer, a deadline.
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>>;
}

/// The channel of a communicator with one rank.
#[derive(Clone, Copy, Debug)]
pub struct Alone;

impl Control for Alone {
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(vec![mine.to_vec()])
    }
}

/// Any communicator of Allfold, whatever its backend.
impl Control for Communicator {
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        Control::all_gather(&mut &*self, mine)
    }
}

/// A borrowed communicator.
impl Control for &Communicator {
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        if mine.is_empty() {
            return Ok(vec![Vec::new(); self.size() as usize]);
        }
        let mut all = vec![0u8; mine.len() * self.size() as usize];
        Communicator::all_gather(self, mine, &mut all)?;
        Ok(all.chunks(mine.len()).map(<[u8]>::to_vec).collect())
    }
}

/// A communicator of the same ranks, for what they say beside a group's calls.
pub(crate) fn again(comm: &Communicator) -> Result<Communicator> {
    comm.split(Some(0), comm.rank().0)?.ok_or_else(|| {
        Error::System(
            "the communicator of the GPUs could not be split from the CPU's: this rank got none".into(),
        )
    })
}

/// The error that names the rank to blame, if `error` names none: NCCL reports that some rank is late or lost without naming the rank, and
/// the ranks' communicator knows it. Every rank that got such an error calls this.
pub fn culprit(comm: &Communicator, error: Error) -> Error {
    use Error::{Aborted, DeadlineExceeded, Nccl, NcclDeadline, PeerLost, Poisoned, QueueDeadline};
    if !matches!(error, NcclDeadline { .. } | QueueDeadline { .. } | Nccl { .. }) {
        return error;
    }
    // A rank that is stopped shows by a deadline of its own here, a third of the one that has passed.
    if let NcclDeadline { after, .. } | QueueDeadline { after, .. } = &error {
        let _ = comm.set_deadline(*after / 3);
    }
    match comm.barrier() {
        Err(known @ (PeerLost { .. } | DeadlineExceeded { .. } | Aborted { .. } | Poisoned { .. })) => known,
        _ => error,
    }
}

/// The kind of a call, which ranks compare the first time: the collective, its elements or bytes, the type, the operator and root.
pub(super) type Kind = (&'static str, usize, c_int, c_int);

/// The calls of a communicator, which ranks compare before they issue them.
#[derive(Default)]
pub(super) struct ComparedCalls {
    /// The channel by which ranks compare calls, if the ranks joined through one.
    control: Option<Box<dyn Control>>,
    /// Whether every call is compared, and not only the first of each kind.
    every: bool,
    /// The kinds of calls on which all ranks have agreed.
    agreed: BTreeSet<Kind>,
    sequence: u64,
}

impl ComparedCalls {
    pub fn through(control: Box<dyn Control>, every: bool) -> ComparedCalls {
        ComparedCalls { control: Some(control), every, ..ComparedCalls::default() }
    }

    /// Counts a call, and compares it unless all ranks have agreed on its kind.
    pub fn compare(&mut self, kind: Option<Kind>, call: impl FnOnce() -> String) -> Result<()> {
        self.sequence += 1;
        let new = self.every || kind.is_some_and(|kind| !self.agreed.contains(&kind));
        let Some(control) = self.control.as_deref_mut().filter(|_| new) else { return Ok(()) };
        agree(control, &format!("{} as operation {}", call(), self.sequence))?;
        self.agreed.extend(kind);
        Ok(())
    }
}

/// The length in bytes of the text that describes a call.
const SAID: usize = 160;

/// Compares the calls that all ranks are about to make; the error names rank 0 and the first rank that differs from rank 0.
fn agree(control: &mut dyn Control, call: &str) -> Result<()> {
    let mut mine = [b' '; SAID];
    let bytes = call.as_bytes();
    let len = bytes.len().min(SAID);
    mine[..len].copy_from_slice(&bytes[..len]);
    let all = control.all_gather(&mine)?;
    let words = |said: &[u8]| String::from_utf8_lossy(said).trim_end().to_string();
    match all.iter().enumerate().find(|(_, said)| **said != all[0]) {
        None => Ok(()),
        Some((peer, said)) => {
            let (first, other) = (words(&all[0]), words(said));
            let peer = Rank(peer as u32);
            Err(Error::System(format!(
                "ranks disagree: rank 0 called {first}, but rank {peer} called {other}"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::World;

    #[test]
    fn a_disagreement_reaches_every_rank() {
        let said = World::threads(3).run(|mut comm| {
            let call = if comm.rank() == Rank(2) { "broadcast(8 x f32)" } else { "all_reduce(8 x f32, sum)" };
            Ok::<_, Error>((agree(&mut comm, "barrier()"), agree(&mut comm, call)))
        });
        for (agreed, told) in said.unwrap() {
            assert_eq!(agreed, Ok(()));
            let told = told.unwrap_err().to_string();
            assert_eq!(
                told,
                "ranks disagree: rank 0 called all_reduce(8 x f32, sum), but rank 2 called broadcast(8 x f32)"
            );
        }
    }
}
