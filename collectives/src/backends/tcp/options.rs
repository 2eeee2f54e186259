//! The options of a rank over TCP: its identity, the addresses of all ranks, and the timeouts.

use crate::Rank;
use crate::backends::Host;
use allfold_net::Security;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

/// The deadlines of a rank.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// For an operation: then it fails with [`crate::Error::DeadlineExceeded`].
    pub operation: Duration,
    /// For all other ranks to be connected at the start.
    pub start: Duration,
    /// For a handshake.
    pub handshake: Duration,
    /// The interval of heartbeats.
    pub beat: Duration,
    /// Without any frame from a peer for this long, the peer is lost. A slow peer sends heartbeats and is not lost.
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
pub struct Peers {
    /// This rank.
    pub rank: Rank,
    /// The job's identity, drawn at random when the job is started. Ranks of another job are refused.
    pub job: [u8; 16],
    /// The epoch of the job: ranks of another epoch are refused.
    pub epoch: u32,
    /// The socket at which peers will connect. The rank holds it from now on, so that no other program can take its port.
    pub listener: TcpListener,
    /// Every rank's listener, in order of ranks; this rank's own is not used.
    pub addresses: Vec<SocketAddr>,
    /// This rank's host: messages between ranks of one host go through shared memory. `None`: all go over sockets.
    pub host: Option<Host>,
    /// The security mode.
    pub security: Security,
    /// The deadlines.
    pub deadlines: Deadlines,
}
