//! The signals that a launcher hears.

use rustix::process::Signal;
use std::task::Poll;
use tokio::signal::unix::{SignalKind, signal};

/// A signal that came.
pub(crate) enum News {
    /// A signal that ends the launcher, and its ranks with it.
    End(Signal),
    /// A signal that is passed to the ranks.
    Passed(Signal),
}

/// The signals that a launcher hears.
pub(crate) struct Signals {
    end: [Heard; 4],
    passed: [Heard; 2],
}

/// Which signal, and the stream of its arrivals.
type Heard = (Signal, tokio::signal::unix::Signal);

impl Signals {
    pub fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            end: [
                (Signal::INT, signal(SignalKind::interrupt())?),
                (Signal::TERM, signal(SignalKind::terminate())?),
                (Signal::HUP, signal(SignalKind::hangup())?),
                (Signal::QUIT, signal(SignalKind::quit())?),
            ],
            passed: [
                (Signal::USR1, signal(SignalKind::user_defined1())?),
                (Signal::USR2, signal(SignalKind::user_defined2())?),
            ],
        })
    }

    pub async fn next(&mut self) -> News {
        tokio::select! {
            signal = first(&mut self.end) => News::End(signal),
            signal = first(&mut self.passed) => News::Passed(signal),
        }
    }

    /// The next one that ends the launcher.
    pub async fn end(&mut self) -> Signal {
        first(&mut self.end).await
    }
}

/// The first of these that comes.
async fn first(signals: &mut [Heard]) -> Signal {
    std::future::poll_fn(|context| {
        let mut come = signals
            .iter_mut()
            .filter_map(|(which, signal)| signal.poll_recv(context).is_ready().then_some(*which));
        come.next().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}
