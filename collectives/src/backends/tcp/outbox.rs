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
        // Sending to a lost peer fails, and the frame is dropped.
        let _ = self.frames.send(Outgoing::Frame(frame));
    }

    /// Ends a connection after the frames queued before, so that the peer first receives the reason why the connection ends.
    pub fn part(&self, stream: PeerStream) {
        let _ = self.frames.send(Outgoing::Part(stream));
    }

    /// Waits until all frames are written, or for `timeout`.
    pub fn drain(self, timeout: Duration) {
        drop(self.frames);
        let _ = self.written.recv_timeout(timeout);
    }
}
