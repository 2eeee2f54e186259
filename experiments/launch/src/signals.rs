//! The signals that a launcher handles.

use crate::caught::signals_in;
use rustix::process::Signal;
use std::task::Poll;
use tokio::signal::unix::{SignalKind, signal};

/// Signals that a user sends to end a job; the launcher sends the same signal to the ranks.
const REQUESTS: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// Other signals that would end a process. The launcher handles them to end its ranks, and processes that left their groups, first.
const FATAL: &[Signal] = &[
    Signal::ABORT,
    Signal::ALARM,
    Signal::VTALARM,
    Signal::PROF,
    Signal::XCPU,
    Signal::IO,
    Signal::SYS,
    Signal::TRAP,
    Signal::XFSZ,
    #[cfg(target_os = "linux")]
    Signal::POWER,
    #[cfg(target_os = "linux")]
    Signal::STKFLT,
];

/// The numbers of Linux's real-time signals, which end a process that does not handle them.
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;

/// A signal that arrived.
pub(crate) enum News {
    /// A signal that ends the launcher, and its ranks with it.
    End(i32),
    /// A process that the launcher has started or adopted has ended.
    ChildEnded,
    /// A signal that is passed to the processes of ranks that catch it.
    Passed(Signal),
}

/// The signals that a launcher handles.
pub(crate) struct Signals {
    end: Vec<Heard>,
    passed: Vec<Heard>,
    child: Heard,
}

/// The number of a signal, and the stream of its arrivals.
type Heard = (i32, tokio::signal::unix::Signal);

impl Signals {
    pub fn new() -> std::io::Result<Signals> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = signals_in(&status, "SigIgn:");
        let hear = |number| Ok((number, signal(SignalKind::from_raw(number))?));
        // If the caller ignores SIGHUP, as `nohup` arranges, or SIGXFSZ, so that writes to a full file fail, the launcher leaves them
        // ignored. It handles SIGINT in any case: shells let background processes ignore SIGINT, so that this says nothing about the
        // user's wish.
        let left = |which: Signal| ignored & 1 << (which.as_raw() - 1) != 0;
        let kept = |which: &&Signal| ![Signal::HUP, Signal::XFSZ].contains(*which) || !left(**which);
        let ends = REQUESTS.iter().chain(FATAL).filter(kept);
        let ends = ends.map(|which| which.as_raw()).chain(REAL_TIME.filter(|_| cfg!(target_os = "linux")));
        let passed = [Signal::USR1, Signal::USR2].map(Signal::as_raw);
        Ok(Signals {
            end: ends.map(hear).collect::<std::io::Result<_>>()?,
            passed: passed.into_iter().map(hear).collect::<std::io::Result<_>>()?,
            child: hear(Signal::CHILD.as_raw())?,
        })
    }

    pub async fn next(&mut self) -> News {
        tokio::select! {
            signal = first(&mut self.end) => News::End(signal),
            number = first(&mut self.passed) => {
                News::Passed(if number == Signal::USR1.as_raw() { Signal::USR1 } else { Signal::USR2 })
            }
            _ = self.child.1.recv() => News::ChildEnded,
        }
    }

    /// Waits for the next signal that ends the launcher.
    pub async fn end(&mut self) -> i32 {
        first(&mut self.end).await
    }

    /// The signal that ends the launcher, if one has arrived. Yields once, so that the runtime can notice it.
    pub async fn ended(&mut self) -> Option<i32> {
        tokio::select! {
            biased;
            signal = self.end() => Some(signal),
            () = tokio::task::yield_now() => None,
        }
    }
}

/// The signal that requests ranks to end after the launcher got the signal of this number.
pub(crate) fn asking(number: i32) -> Signal {
    REQUESTS.into_iter().find(|request| request.as_raw() == number).unwrap_or(Signal::TERM)
}

/// Waits for the first of these signals.
async fn first(signals: &mut [Heard]) -> i32 {
    std::future::poll_fn(|context| {
        let mut come = signals
            .iter_mut()
            .filter_map(|(which, signal)| signal.poll_recv(context).is_ready().then_some(*which));
        come.next().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_the_caller_ignores_are_known() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000002\n";
        assert_eq!(signals_in(status, "SigIgn:"), 0x1001);
        assert_eq!(signals_in("", "SigIgn:"), 0);
    }

    #[test]
    fn ranks_are_asked_by_the_user_s_signal_and_by_no_other() {
        assert_eq!(asking(Signal::INT.as_raw()), Signal::INT);
        assert_eq!(asking(Signal::XCPU.as_raw()), Signal::TERM);
    }
}
