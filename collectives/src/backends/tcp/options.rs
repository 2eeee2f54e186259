//! What a rank is given to find the others: who it is, where they listen, and how long it waits for what.

use crate::Rank;
use crate::backends::Host;
use allfold_net::Security;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

/// How long a rank waits for what.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// For an operation: then it fails with [`crate::Error::DeadlineExceeded`].
    pub operation: Duration,
    /// For all other ranks to be connected at the start.
    pub start: Duration,
    /// For a handshake.
    pub handshake: Duration,
    /// Between two signs of life.
    pub beat: Duration,
    /// For any sign of life from a peer: then it is lost. A peer that is slow but alive never is.
    pub dead: Duration,
}

impl Default for Deadlines {
    /// Five minutes, thirty seconds, five seconds, one second, twenty seconds.
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

impl Deadlines {
    /// All but the operation's, times this: below 1 for tests.
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

/// A rank that has found the others: all that it needs to connect to them.
#[derive(Debug)]
pub struct Peers {
    /// This rank.
    pub rank: Rank,
    /// The job, drawn at random by whoever started it: ranks of another are refused.
    pub job: [u8; 16],
    /// Which life of the job: ranks of another are refused.
    pub epoch: u32,
    /// Where the peers will connect to. It stays with this rank, so that nobody else can take its port.
    pub listener: TcpListener,
    /// Every rank's listener, in order of ranks; this rank's own is not used.
    pub addresses: Vec<SocketAddr>,
    /// Where this rank is: messages to and from ranks of the same host go through memory. `None`: all over sockets.
    pub host: Option<Host>,
    /// Who may join.
    pub security: Security,
    /// How long to wait.
    pub deadlines: Deadlines,
}
