//! The options of a rank over TCP: its identity, the addresses of all ranks, and the timeouts.

use crate::Rank;
use crate::backends::Host;
use allfold_net::Security;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

/// The deadlines of a rank.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// The time for an operation, which then fails with [`crate::Error::DeadlineExceeded`].
    pub operation: Duration,
    /// The time for all other ranks to be connected at the start.
    pub start: Duration,
    /// The time for a handshake.
    pub handshake: Duration,
    /// The interval of heartbeats.
    pub beat: Duration,
    /// A peer that sends no frame for this long is lost. A slow peer sends heartbeats and is not lost.
    pub dead: Duration,
}

impl Default for Deadlines {
    /// The defaults: five minutes, thirty seconds, five seconds, one second, twenty seconds.
    fn default() -> Deadlines {
        let seconds = Duration::from_secs;
        Deadlines {
            operation: seconds(300),
            start: seconds(30),
            handshake: seconds(5),
            beat: seconds(1),
            dead: seconds(20),
        }
    }
}

/// The interval between heartbeats is `beat` times the number of ranks divided by this: at least `beat`, at most `dead / 4`.
const BEATING: u32 = 32;

impl Deadlines {
    /// The interval of heartbeats in a world of this many ranks. Each rank sends a heartbeat to every other, and the ranks of a process
    /// share a thread for them: with 128 ranks in one process, the heartbeats of one second would take longer than a second.
    pub(super) fn beat_among(&self, ranks: u32) -> Duration {
        let slowest = (self.dead / 4).max(self.beat);
        self.beat.saturating_mul((ranks / BEATING).max(1)).min(slowest)
    }

    /// Multiplies all deadlines except the operation's; below 1 for tests.
    pub fn scaled(self, factor: f64) -> Deadlines {
        let by = |duration: Duration| duration.mul_f64(factor.clamp(1e-4, 1e4));
        Deadlines {
            operation: self.operation,
            start: by(self.start),
            handshake: by(self.handshake),
            beat: by(self.beat),
            dead: by(self.dead),
        }
    }
}

/// The parameters with which a rank connects to its peers.
#[derive(Debug)]
pub struct PeerOptions {
    /// The number of this rank.
    pub rank: Rank,
    /// The job's identity, drawn at random when the job is started. Ranks of another job are refused.
    pub job: [u8; 16],
    /// The epoch of the job: ranks of another epoch are refused.
    pub epoch: u32,
    /// The socket at which peers will connect. The rank owns it from now on, so that no other program can take its port.
    pub listener: TcpListener,
    /// The address of every rank's listener, in order of ranks. The entry of this rank is not used.
    pub addresses: Vec<SocketAddr>,
    /// This rank's host: messages between ranks of one host are sent through shared memory. `None`: all messages are sent over sockets.
    pub host: Option<Host>,
    /// The security mode.
    pub security: Security,
    /// The deadlines of connecting, of operations and of silence.
    pub deadlines: Deadlines,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeats_are_fewer_in_large_worlds_and_never_too_few() {
        let usual = Deadlines::default();
        let beats = |ranks| usual.beat_among(ranks).as_secs();
        assert_eq!([2, 63, 64, 128, 100_000].map(beats), [1, 1, 2, 4, 5]);
        let hasty = Deadlines { dead: Duration::from_secs(2), ..usual };
        assert_eq!(hasty.beat_among(100_000), usual.beat, "no faster than in a small world");
    }
}
