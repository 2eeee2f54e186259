//! The connection between two launchers: messages and heartbeats.
//!
//! A launcher that ends closes the connection. A launcher that is stopped, or whose host has vanished, does not: it counts as
//! lost when no message has arrived from it during `SILENT` heartbeats.

use crate::messages::{Message, read, write};
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf, split};
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// The time between two heartbeats.
const BEAT: Duration = if cfg!(test) { Duration::from_millis(5) } else { Duration::from_secs(1) };

/// The number of this side's heartbeats without a message from the other side, after which the other side is lost. Heartbeats are counted
/// instead of time, so that a launcher that was stopped for a while does not take the others for lost.
const SILENT: u32 = 20;

/// Why the other side sends no more messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    Gone,
    Silent,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lost::Gone => write!(f, "its launcher has ended"),
            Lost::Silent => write!(
                f,
                "its launcher has sent nothing for {:?}: it is stopped, or its host cannot be reached",
                BEAT * SILENT
            ),
        }
    }
}

/// This side of a connection. It sends heartbeats until it is dropped.
pub(super) struct Line<S> {
    to: Arc<Mutex<WriteHalf<S>>>,
    beats: AbortHandle,
}

impl<S: AsyncRead + AsyncWrite + Send + 'static> Line<S> {
    /// Calls `tell` with each message of the other side except heartbeats, and last with the reason why no more messages come. Stops as
    /// soon as `tell` returns false.
    pub fn open(stream: S, tell: impl FnMut(Result<Message, Lost>) -> bool + Send + 'static) -> Line<S> {
        let (from, to) = split(stream);
        let to = Arc::new(Mutex::new(to));
        tokio::spawn(listen(from, tell));
        Line { beats: tokio::spawn(beat(to.clone())).abort_handle(), to }
    }

    /// Sends a message. An error is ignored: the receiving side of this connection reports the loss.
    pub async fn say(&self, message: &Message) {
        let _ = write(&mut *self.to.lock().await, message).await;
    }
}

impl<S> Drop for Line<S> {
    fn drop(&mut self) {
        self.beats.abort();
    }
}

async fn beat<S: AsyncWrite>(to: Arc<Mutex<WriteHalf<S>>>) {
    let mut beats = beats();
    loop {
        beats.tick().await;
        if write(&mut *to.lock().await, &Message::Beat).await.is_err() {
            return;
        }
    }
}

async fn listen<S: AsyncRead>(
    mut from: ReadHalf<S>,
    mut tell: impl FnMut(Result<Message, Lost>) -> bool + Send,
) {
    let mut beats = beats();
    loop {
        let mut next = pin!(read(&mut from));
        let mut silent = 0;
        let said = loop {
            tokio::select! {
                biased;
                message = &mut next => break message.map_err(|_| Lost::Gone),
                _ = beats.tick() => silent += 1,
            }
            if silent > SILENT {
                break Err(Lost::Silent);
            }
        };
        let over = said.is_err();
        if said != Ok(Message::Beat) && !tell(said) || over {
            return;
        }
    }
}

fn beats() -> Interval {
    let mut beats = interval(BEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beats
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{DuplexStream, duplex};
    use tokio::runtime::Builder;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
    use tokio::time::sleep;

    fn line(stream: DuplexStream) -> (Line<DuplexStream>, UnboundedReceiver<Result<Message, Lost>>) {
        let (send, news) = unbounded_channel();
        (Line::open(stream, move |said| send.send(said).is_ok()), news)
    }

    #[test]
    fn who_is_silent_is_lost_and_who_has_nothing_to_say_is_not() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (one, _silent) = duplex(4096);
            assert_eq!(line(one).1.recv().await, Some(Err(Lost::Silent)));

            let (one, other) = duplex(4096);
            let ((one, mut heard), (other, mut answers)) = (line(one), line(other));
            sleep(3 * SILENT * BEAT).await;
            one.say(&Message::Stop { epoch: 1 }).await;
            assert_eq!(answers.recv().await, Some(Ok(Message::Stop { epoch: 1 })));
            drop((other, answers));
            one.say(&Message::Stop { epoch: 2 }).await;
            assert_eq!(heard.recv().await, Some(Err(Lost::Gone)));
        });
    }
}
