//! A rank that is a process of a launched world and may outlive other ranks: with `allfold launch --elastic` a rank that
//! fails is started again, and joins the remaining ranks in the next epoch of the world.
//!
//! ```text
//! epoch 0   ranks 0 1 2 3     train ... rank 2 dies          the launcher starts it again, for epoch 1
//!           ranks 0 1 - 3     shrink: agree on the remaining ranks and on the next epoch
//! epoch 1   ranks 0 1 2' 3    connect again, resume from the newest checkpoint: the final weights are those without a failure
//! ```
//!
//! A process that is stopped or hangs does not end, so the launcher does not notice: the remaining ranks report the process
//! through the rendezvous, and the launcher kills it and starts another.
//!
//! On several nodes each launcher starts its own ranks again and counts its own restarts: a restarted rank whose epoch has
//! ended learns the current epoch at the rendezvous, and joins that epoch.
//!
//! No step is made before the world has its old size again, so the arithmetic is that of a run without a failure. Frames of
//! an earlier epoch are refused, and so is a rank that tries to join with an earlier epoch.

use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::interruption;
use allfold_collectives::environment::Environment;
use allfold_collectives::rendezvous;
use allfold_collectives::{Communicator, Error, Joining, Lost, Rank, ReduceOp};
use allfold_trainer::Config;

/// How many times a rank tries to join a later epoch while more ranks fail.
const TRIES: u32 = 100;

/// How many times ranks that miss a rendezvous are reported to the launcher, and waited for again.
const REPORTS: u32 = 2;

/// Trains as one rank, through as many epochs of the world as the launcher has restarts for.
///
/// # Errors
/// The run's failure, if it is not the loss of a rank, or if lost ranks are not started again.
pub fn run<T>(
    config: &Config,
    environment: &Environment,
    train: impl Fn(&Config, &Communicator) -> Result<T, allfold_trainer::Error>,
) -> CommandResult<T> {
    let joining = Joining::from_env().map_err(CommandError::from)?;
    let elastic = std::env::var("ALLFOLD_ELASTIC").is_ok_and(|said| said == "1");
    if elastic && !config.checkpoint.writes() {
        return Err(CommandError::usage(
            "--elastic resumes from checkpoints: set checkpoint.every or checkpoint.every_epochs in the configuration",
        ));
    }
    let restarts = std::env::var("TORCHELASTIC_MAX_RESTARTS").unwrap_or_default();
    if restarts.parse().is_ok_and(|count: u32| count > 0)
        && !config.checkpoint.writes()
        && (environment.rank, environment.epoch) == (Rank(0), 0)
    {
        tracing::warn!(
            "this run writes no checkpoints, so that each of its {restarts} restarts would begin at step 0; set \
             checkpoint.dir, and checkpoint.every or checkpoint.every_epochs"
        );
    }
    let (mut config, mut environment) = (config.clone(), environment.clone());
    loop {
        let comm = join(&mut environment, &joining, elastic)?;
        config.checkpoint.resume |= environment.epoch > 0 && config.checkpoint.writes();
        let error = match train(&config, &comm) {
            Ok(trained) => return Ok(trained),
            Err(error) => error,
        };
        if interruption::asked().is_some() {
            return Err(error.into());
        }
        let loss = match &error {
            allfold_trainer::Error::Collective(error) => loss(error),
            _ => None,
        };
        let Some(loss) = loss.filter(|_| elastic) else { return Err(error.into()) };
        match next(&comm, &environment, &joining, (loss, &error.to_string())) {
            Some(epoch) => environment.epoch = epoch,
            None => return Err(error.into()),
        }
    }
}

/// How a rank was lost, by the error that another rank got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// The lost rank's process has ended, or another rank reported the loss.
    Ended,
    /// The lost rank sends nothing any more, although its connections are open.
    Silent,
    /// The lost rank, or a rank that it waits for, exceeded the deadline of an operation.
    Late,
}

/// How a rank was lost, if that is what the error says; `None` for any other error.
fn loss(error: &Error) -> Option<Loss> {
    match error {
        Error::PeerLost { cause: Lost::Silent { .. }, .. } => Some(Loss::Silent),
        Error::DeadlineExceeded { .. } => Some(Loss::Late),
        // `Poisoned` and `Aborted`: another rank reported the failure before this rank noticed it.
        Error::PeerLost { .. } | Error::Poisoned { .. } | Error::Aborted { .. } => Some(Loss::Ended),
        _ => None,
    }
}

/// The remaining ranks agree on the next epoch; a rank that fails meanwhile is found at that epoch's rendezvous. Processes
/// that do not end by themselves are reported to the launcher. `None` if an operation took too long and no rank is lost.
fn next(
    comm: &Communicator,
    environment: &Environment,
    joining: &Joining,
    (loss, said): (Loss, &str),
) -> Option<u32> {
    let mut next = [i64::from(environment.epoch) + 1];
    if let Ok((left, ranks)) = comm.shrink() {
        let gone: Vec<Rank> = (0..comm.size()).map(Rank).filter(|rank| !ranks.contains(rank)).collect();
        if loss == Loss::Late && gone.is_empty() {
            return None;
        }
        if loss != Loss::Ended {
            report(joining, environment, &gone);
        }
        if left.all_reduce(&mut next, ReduceOp::Max).is_ok() && left.rank().0 == 0 {
            let ranks: Vec<String> = ranks.iter().map(|rank| rank.to_string()).collect();
            tracing::warn!(
                "{said}; ranks {} are left, and wait for the others in epoch {}",
                ranks.join(", "),
                next[0]
            );
        }
    }
    Some(u32::try_from(next[0]).unwrap_or(u32::MAX))
}

/// Reports ranks to the launcher, which replaces their processes.
fn report(joining: &Joining, environment: &Environment, lost: &[Rank]) {
    if let Err(error) = joining.report_loss(environment, lost) {
        tracing::warn!("the loss of {} could not be reported to the launcher: {error}", Rank::list(lost));
    }
}

/// Joins the other ranks in this rank's epoch, or in the later epoch that they are in.
fn join(environment: &mut Environment, joining: &Joining, elastic: bool) -> CommandResult<Communicator> {
    let (mut tries, mut reports) = (0, 0);
    loop {
        let error = match Communicator::join(environment, joining.clone()) {
            Ok(comm) => return Ok(comm),
            Err(error) => error,
        };
        tries += 1;
        match &error {
            Error::Rendezvous { cause: rendezvous::RendezvousFailure::Epoch { theirs, .. }, .. }
                if elastic && *theirs > environment.epoch && tries < TRIES =>
            {
                environment.epoch = *theirs;
            }
            // A node counts only its own restarts, so this process may have tried to join an epoch whose rendezvous was already
            // complete. The other ranks have lost this rank since, and wait for it in the next epoch.
            Error::Rendezvous { cause: rendezvous::RendezvousFailure::DuplicateRank { .. }, .. }
                if elastic && tries < TRIES =>
            {
                environment.epoch = environment.epoch.saturating_add(1);
            }
            // Ranks are missing because their processes hang: the launcher replaces them, and they join in the next epoch.
            Error::Rendezvous { cause: rendezvous::RendezvousFailure::Missing { ranks, .. }, .. }
                if elastic && reports < REPORTS =>
            {
                reports += 1;
                report(joining, environment, ranks);
                environment.epoch = environment.epoch.saturating_add(1);
            }
            // A rank was lost between the rendezvous and the first operation; the launcher starts it again.
            Error::PeerLost { .. } | Error::Missing { .. } | Error::Refused { .. }
                if elastic && tries < TRIES =>
            {
                environment.epoch = environment.epoch.saturating_add(1);
            }
            _ => return Err(error.into()),
        }
    }
}
