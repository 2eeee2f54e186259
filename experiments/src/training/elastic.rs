//! A rank that is a process of a launched world, which may outlive others: with `allfold launch --elastic` whoever fails
//! is started again, and joins those who are left at the next epoch of the world.
//!
//! ```text
//! epoch 0   ranks 0 1 2 3     train ... rank 2 dies          the launcher starts it again, for epoch 1
//!           ranks 0 1 - 3     shrink: who is left, and which epoch comes next
//! epoch 1   ranks 0 1 2' 3    meet again, go on from the newest checkpoint: to the weights of a run that nothing befell
//! ```
//!
//! On several nodes each launcher starts its own ranks again and counts its own restarts: a rank that comes back with an
//! epoch that is over is told, and comes with a later one.
//!
//! The world has its old size again before a step is made, so the arithmetic is that of the whole run. Frames of an
//! earlier epoch are refused, and so is a rank that comes back with one.

use crate::cli::error::{CommandError, CommandResult};
use crate::measure::inputs;
use allfold_collectives::environment::Environment;
use allfold_collectives::rendezvous;
use allfold_collectives::{Communicator, Error, Joining, ReduceOp};
use allfold_trainer::Config;
use std::io::Write;

/// How often a rank tries to join a later epoch while more ranks fail.
const TRIES: u32 = 100;

/// Trains as one rank, through as many epochs of the world as the launcher has restarts for.
///
/// # Errors
/// The run's failure, where ranks that were lost are not started again or it was no loss.
pub fn run<T>(
    config: &Config,
    environment: &Environment,
    train: impl Fn(&Config, &Communicator) -> Result<T, allfold_trainer::Error>,
) -> CommandResult<T> {
    // All ranks must have one configuration; only the number of restarts may differ.
    let configuration = inputs::hash(format!("{:?}", Config { resume: false, ..config.clone() }).as_bytes());
    let joining = Joining { configuration, ..Joining::from_env().map_err(CommandError::from)? };
    let elastic = std::env::var("ALLFOLD_ELASTIC").is_ok_and(|said| said == "1");
    if elastic && config.checkpoint_every == 0 {
        return Err(CommandError::usage(
            "--elastic resumes from checkpoints: set checkpoint_every in the configuration",
        ));
    }
    let (mut config, mut environment) = (config.clone(), environment.clone());
    loop {
        let comm = join(&mut environment, &joining, elastic)?;
        config.resume |= environment.epoch > 0 && config.checkpoint_every > 0;
        let error = match train(&config, &comm) {
            Ok(trained) => return Ok(trained),
            Err(error) => error,
        };
        let lost = match &error {
            allfold_trainer::Error::Collective(Error::PeerLost { .. }) => error.to_string(),
            // Told while it shrank, or before it looked.
            allfold_trainer::Error::Collective(Error::Poisoned { .. } | Error::Aborted { .. }) => {
                error.to_string()
            }
            _ => return Err(error.into()),
        };
        if !elastic {
            return Err(error.into());
        }
        environment.epoch = next(&comm, environment.epoch, &lost);
    }
}

/// The remaining ranks agree on the next epoch; a rank that fails meanwhile is found at that epoch's rendezvous.
fn next(comm: &Communicator, epoch: u32, lost: &str) -> u32 {
    let mut next = [i64::from(epoch) + 1];
    if let Ok((left, ranks)) = comm.shrink()
        && left.all_reduce(&mut next, ReduceOp::Max).is_ok()
        && left.rank().0 == 0
    {
        let ranks: Vec<String> = ranks.iter().map(|rank| rank.to_string()).collect();
        // The reader of standard error may be gone.
        let _ = writeln!(
            std::io::stderr(),
            "{lost}; ranks {} are left, and wait for the others in epoch {}",
            ranks.join(", "),
            next[0]
        );
    }
    u32::try_from(next[0]).unwrap_or(u32::MAX)
}

/// Joins the others in this rank's epoch, or in the later epoch that they are in.
fn join(environment: &mut Environment, joining: &Joining, elastic: bool) -> CommandResult<Communicator> {
    let mut tries = 0;
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
            // This life began in an epoch that had met already, as a node counts only its own restarts: the others have
            // missed this rank since, and wait for it in the next.
            Error::Rendezvous { cause: rendezvous::RendezvousFailure::DuplicateRank { .. }, .. }
                if elastic && tries < TRIES =>
            {
                environment.epoch += 1;
            }
            // Lost between the meeting and the first operation: the launcher starts it again.
            Error::PeerLost { .. } | Error::Missing { .. } | Error::Refused { .. }
                if elastic && tries < TRIES =>
            {
                environment.epoch += 1;
            }
            _ => return Err(error.into()),
        }
    }
}
