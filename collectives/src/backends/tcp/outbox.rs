//! The queue of a peer's control connection: frames to send, and connections to end.

use allfold_net::peer_stream::PeerStream;
use std::sync::mpsc as blocking;
use std::time::Duration;
use tokio::sync::mpsc;

/// The queue of control frames for a peer, sent in order.
pub(super) struct Outbox {
    pub frames: mpsc::UnboundedSender<Outgoing>,
    pub written: blocking::Receiver<()>,
}

/// An entry of the queue.
pub(super) enum Outgoing {
    Frame(Vec<u8>),
    /// The end of another connection to the peer.
    Part(PeerStream),
}

impl Outbox {
    pub fn send(&self, frame: Vec<u8>) {
        // Nothing is sent to a lost peer.
        let _ = self.frames.send(Outgoing::Frame(frame));
    }

    /// Ends a connection once the peer has been told of all that was sent here before: of why it ends.
    pub fn part(&self, stream: PeerStream) {
        let _ = self.frames.send(Outgoing::Part(stream));
    }

    /// Waits until all has been written, or for `timeout`.
    pub fn drain(self, timeout: Duration) {
        drop(self.frames);
        let _ = self.written.recv_timeout(timeout);
    }
}
