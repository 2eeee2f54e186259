//! The choice of the engine that a job needs.

use super::{AllRanks, Engine, Error, Job, LinkSharing, Method, Outcome, Sink};
use super::{by_symmetry, clocks, events, merge_lanes, serial_links};

/// Times a job: when every rank is done, with the messages, bytes and bounds of the run.
///
/// # Errors
/// The job's parts do not fit together, the halves of a message do not match, a fault rule or the deadline ends the run,
/// `Engine::BySymmetry` finds no symmetry, the engine does not support the job's link sharing, or a number does not fit 64 bits.
pub fn simulate(job: &Job<'_>, engine: Engine) -> Result<Outcome, Error> {
    job.check()?;
    if job.sharing == LinkSharing::Serial && matches!(engine, Engine::Auto | Engine::Full) {
        return serial_links::run(job);
    }
    job.flows()?;
    match engine {
        Engine::Full => match merge_lanes::run(job, false)? {
            Some(outcome) => Ok(outcome),
            None => full(job),
        },
        Engine::Events => queue(job, None),
        Engine::BySymmetry => by_symmetry::run(job, false),
        Engine::BySymmetryRounded => by_symmetry::run(job, true),
        Engine::Auto => match merge_lanes::run(job, true)? {
            Some(outcome) => Ok(outcome),
            None => match by_symmetry::run(job, false) {
                Err(Error::NoSymmetry { .. }) => full(job),
                exact => exact,
            },
        },
    }
}

/// Simulates as [`Engine::Events`] does, without skipping, and passes every message to `sink` as it arrives.
///
/// # Errors
/// The errors of [`simulate`].
pub fn traced(job: &Job<'_>, sink: Sink<'_>) -> Result<Outcome, Error> {
    job.check()?;
    queue(job, Some(sink))
}

/// Times a job with every rank stepped, without an event queue if that is exact.
fn full(job: &Job<'_>) -> Result<Outcome, Error> {
    let all_ranks = AllRanks::of(job.topology, job.faults);
    match clocks::run(job, &all_ranks)? {
        Some(run) => run.outcome(job, &all_ranks, Method::Clocks),
        None => queue(job, None),
    }
}

fn queue(job: &Job<'_>, sink: Option<Sink<'_>>) -> Result<Outcome, Error> {
    let all_ranks = AllRanks::of(job.topology, job.faults);
    events::run(job, &all_ranks, sink)?.outcome(job, &all_ranks, Method::Events)
}
