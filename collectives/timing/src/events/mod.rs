//! An engine with an event queue: links are shared, windows and lanes are modelled.
//!
//! ```text
//! a step      issued --conflicts gone--> posted --both ends, channel free--> started ... halves done --> done
//! a message   start --overhead--> flow --last byte--> left --latency (and reduction)--> arrived
//!                                                      sender's half                    receiver's half
//! ```
//!
//! The loop takes the next time at which an event is due, processes all events of that time, and then solves the links' shares
//! once. When a step is done, steps that waited for it are posted and its rank's window advances.
//!
//! Cost: memory for at most `ranks x window` steps and for the channels in use; nothing is allocated per message. The event queue
//! and the network alone determine the order of events, so equal jobs give equal events.

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

/// Times a job by its events. Without a sink, repeating patterns of a pipeline are skipped.
///
/// # Errors
/// Two halves of a message do not match, no message moves any more, a fault rule or the deadline ends the run, or a number does not
/// fit 64 bits.
pub(crate) fn run<C: Representatives>(job: &Job<'_>, cast: &C, sink: Option<Sink<'_>>) -> Result<Run, Error> {
    let mut events = Events::new(job, cast, sink)?;
    let skip = if events.may_repeat() { Skip::new(&events) } else { None };
    run_to_end(&mut events, skip)?;
    events.finish()
}

/// Processes events in the order of time until there are none. Returns the search for a repeating pattern.
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
