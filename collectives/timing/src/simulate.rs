//! The engine that a job asks for.

use super::{AllRanks, Engine, Error, Job, LinkSharing, Method, Outcome, Sink};
use super::{clocks, events, fold, orbit, serial_links};

/// When every rank is done, and what it took.
///
/// # Errors
/// Where the job's parts do not belong together, halves of messages do not meet, `Engine::Orbit` finds no
/// symmetry, the engine does not know the way to share links, or a number does not fit.
pub fn simulate(job: &Job<'_>, engine: Engine) -> Result<Outcome, Error> {
    job.check()?;
    if job.sharing == LinkSharing::Serial && matches!(engine, Engine::Auto | Engine::Full) {
        return serial_links::run(job);
    }
    job.flows()?;
    match engine {
        Engine::Full => match fold::run(job, false)? {
            Some(outcome) => Ok(outcome),
            None => full(job),
        },
        Engine::Events => queue(job, None),
        Engine::Orbit => orbit::run(job, false),
        Engine::OrbitRounded => orbit::run(job, true),
        Engine::Auto => match fold::run(job, true)? {
            Some(outcome) => Ok(outcome),
            None => match orbit::run(job, false) {
                Err(Error::NoSymmetry { .. }) => full(job),
                exact => exact,
            },
        },
    }
}

/// As [`Engine::Full`] over the event queue, with every message told to `sink` as it arrives.
///
/// # Errors
/// As [`simulate`].
pub fn traced(job: &Job<'_>, sink: Sink<'_>) -> Result<Outcome, Error> {
    job.check()?;
    queue(job, Some(sink))
}

/// Every rank stepped, without a queue where that is exact.
fn full(job: &Job<'_>) -> Result<Outcome, Error> {
    let everyone = AllRanks::of(job.topology, job.faults);
    match clocks::run(job, &everyone)? {
        Some(run) => run.outcome(job, &everyone, Method::Clocks),
        None => queue(job, None),
    }
}

fn queue(job: &Job<'_>, sink: Option<Sink<'_>>) -> Result<Outcome, Error> {
    let everyone = AllRanks::of(job.topology, job.faults);
    events::run(job, &everyone, sink)?.outcome(job, &everyone, Method::Events)
}
