//! Every rank stepped over an event queue: links shared, windows, lanes.
//!
//! ```text
//! a step      issued --conflicts gone--> posted --both ends, channel free--> started ... halves done --> done
//! a message   start --overhead--> flow --last byte--> left --latency (and reduction)--> arrived
//!                                                      sender's half                    receiver's half
//! ```
//!
//! The loop takes the next instant, applies all that happens at it, and then lets the network solve its shares,
//! once. A step that is done lets those that waited for it be posted and moves its rank's window.
//!
//! Cost: memory for `ranks x window` steps and for the channels in use; nothing is allocated per message.
//! The event queue and the network are the only order there is, so the same job gives the same events.

mod ahead;
mod blame;
mod channels;
mod engine;
mod event_queue;
mod faults;
mod life_cycle;
mod message;
mod program;
mod sent;
mod skip;
#[cfg(test)]
mod tests;
mod window;

pub use sent::{Sent, Sink};

use super::run::Run;
use super::{Error, Job, Representatives};
use engine::Events;
use skip::Skip;

/// When every representative is done. Where nobody is told of messages, pipelines that repeat themselves are skipped ahead.
///
/// # Errors
/// Where halves of messages do not meet, nothing moves any more, or a number does not fit.
pub(crate) fn run<C: Representatives>(job: &Job<'_>, cast: &C, sink: Option<Sink<'_>>) -> Result<Run, Error> {
    let mut events = Events::new(job, cast, sink)?;
    let skip = if events.may_repeat() { Skip::new(&events) } else { None };
    run_to_end(&mut events, skip)?;
    events.finish()
}

/// Instant by instant, until nothing happens any more. Gives the search for a repetition back.
fn run_to_end<C: Representatives>(
    events: &mut Events<'_, '_, C>,
    mut skip: Option<Skip>,
) -> Result<Option<Skip>, Error> {
    while let Some(now) = events.next() {
        if events.is_late(now) {
            return Err(events.failure());
        }
        events.instant(now)?;
        if let Some(skip) = &mut skip {
            skip.look(now, events);
        }
    }
    Ok(skip)
}
