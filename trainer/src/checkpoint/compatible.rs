//! Which runs may resume from a checkpoint: those that go on as the run of the checkpoint would have.

use super::TrainingProgress;
use crate::{Config, strategies};
use allfold_config::TrainingConfig;

/// Refuses to resume if a step would take another number of samples. If state is `per_rank` (errors that hooks remember, batch
/// norms over each rank's samples) or a key's effect depends on the number of ranks, then ranks, batch, micro-batches must agree.
pub(super) fn same_ranks(
    progress: &TrainingProgress,
    (config, ranks): (&Config, u32),
    per_rank: bool,
) -> std::result::Result<(), String> {
    let shares = |config: &Config, ranks| {
        let mesh = strategies::mesh(config, ranks).map_err(|error| error.to_string())?;
        Ok::<_, String>((mesh.data / mesh.context, config.training.batch))
    };
    let ((were, had), (are, have)) = (shares(&progress.config, progress.ranks)?, shares(config, ranks)?);
    let accumulates = progress.config.training.accumulate != config.training.accumulate;
    let follows = per_rank || config.data.drop_last || config.data.uneven || config.optimiser.scale_lr;
    if were * had != are * have || follows && (were != are || had != have || accumulates) {
        return Err(format!(
            "was made by {were} ranks with batches of {had} in {} micro-batches, and this run has {are} with {have} in {}; use {}, or \
             take its weights alone by `model.weights`",
            progress.config.training.accumulate,
            config.training.accumulate,
            match (per_rank, follows) {
                (true, _) =>
                    "the same, since the checkpoint holds what each rank has of its own, such as statistics of batch norms",
                (false, true) => "the same",
                _ => "as many samples in a step",
            }
        ));
    }
    Ok(())
}

/// Refuses to resume with another configuration, which would be a different run. Keys may differ that only set the length of the
/// run (if no learning rate depends on it), folders, or how data is cut and exchanged.
pub(super) fn same_run(progress: &TrainingProgress, config: &Config) -> std::result::Result<(), String> {
    let (was, schedule) = (&progress.config, config.lr_schedule.name);
    let ends = |config: &Config| {
        format!(
            "`training.epochs = {}` and `training.max_steps = {}`",
            config.training.epochs, config.training.max_steps
        )
    };
    if schedule.spans_the_run() && ends(was) != ends(config) {
        let (was, is) = (ends(was), ends(config));
        return Err(format!(
            "was made with {was} and this run has {is}: its rates, of `{schedule}`, depend on where a run ends"
        ));
    }
    let is = config.clone();
    let was = progress.config.clone().with(|was| {
        (was.strategy, was.parallel, was.checkpoint) = (is.strategy, is.parallel, is.checkpoint);
        (was.device, was.exchange) = (is.device, is.exchange);
        (was.channels_last, was.threads) = (is.channels_last, is.threads);
        was.training = TrainingConfig { loss: was.training.loss, score: was.training.score, ..is.training };
        was.data.dir = is.data.dir;
        (was.data.workers, was.data.prefetch) = (is.data.workers, is.data.prefetch);
        (was.ddp.first_bucket_kib, was.ddp.bucket_kib) = (is.ddp.first_bucket_kib, is.ddp.bucket_kib);
    });
    let lines = |config: &Config| config.lines().map_err(|error| error.to_string());
    let (was, is) = (lines(&was)?, lines(config)?);
    match was.iter().zip(&is).find(|(was, is)| was != is) {
        Some((was, is)) => Err(format!("was made with `{was}` and this run has `{is}`")),
        None => Ok(()),
    }
}
