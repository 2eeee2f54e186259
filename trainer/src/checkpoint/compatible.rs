//! Which runs may resume from a checkpoint: those that go on as the run of the checkpoint would have.

use super::TrainingProgress;
use crate::{Config, lr_schedule, strategies};

/// Refuses to resume if a step would take another number of samples. If state is `per_rank` (errors that hooks remember, batch
/// norms over each rank's samples) or a key's effect depends on the number of ranks, then ranks, batch, micro-batches must agree.
pub(super) fn same_ranks(
    progress: &TrainingProgress,
    (config, ranks): (&Config, u32),
    per_rank: bool,
) -> std::result::Result<(), String> {
    let shares = |config: &Config, ranks| {
        let mesh = strategies::mesh(config, ranks).map_err(|error| error.to_string())?;
        Ok::<_, String>((mesh.data / mesh.context, config.batch))
    };
    let ((were, had), (are, have)) = (shares(&progress.config, progress.ranks)?, shares(config, ranks)?);
    let accumulates = progress.config.accumulate != config.accumulate;
    let follows = per_rank || config.drop_last || config.uneven || config.scale_lr;
    if were * had != are * have || follows && (were != are || had != have || accumulates) {
        return Err(format!(
            "was made by {were} ranks with batches of {had} in {} micro-batches, and this run has {are} with {have} in {}; use {}, or \
             take its weights alone by `weights`",
            progress.config.accumulate,
            config.accumulate,
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
    let (was, schedule) = (&progress.config, &config.lr_schedule);
    let ends =
        |config: &Config| format!("`epochs = {}` and `max_steps = {}`", config.epochs, config.max_steps);
    if lr_schedule::spans_the_run(schedule) && ends(was) != ends(config) {
        let (was, is) = (ends(was), ends(config));
        return Err(format!(
            "was made with {was} and this run has {is}: its rates, of `{schedule}`, depend on where a run ends"
        ));
    }
    let was = Config {
        strategy: config.strategy.clone(),
        batch: config.batch,
        accumulate: config.accumulate,
        parallel: config.parallel.clone(),
        epochs: config.epochs,
        max_steps: config.max_steps,
        patience: config.patience,
        min_delta: config.min_delta,
        score_train: config.score_train,
        first_bucket_kib: config.first_bucket_kib,
        bucket_kib: config.bucket_kib,
        checkpoint_dir: config.checkpoint_dir.clone(),
        checkpoint_every: config.checkpoint_every,
        checkpoint_every_epochs: config.checkpoint_every_epochs,
        checkpoint_best: config.checkpoint_best,
        checkpoint_keep: config.checkpoint_keep,
        checkpoint_sharded: config.checkpoint_sharded,
        resume: config.resume,
        device: config.device.clone(),
        channels_last: config.channels_last,
        exchange: config.exchange.clone(),
        threads: config.threads,
        workers: config.workers,
        prefetch: config.prefetch,
        data_dir: config.data_dir.clone(),
        ..progress.config.clone()
    };
    let lines = |config: &Config| toml::to_string(config).map_err(|error| error.to_string());
    let (was, is) = (lines(&was)?, lines(config)?);
    match was.lines().zip(is.lines()).find(|(was, is)| was != is) {
        Some((was, is)) => Err(format!("was made with `{was}` and this run has `{is}`")),
        None => Ok(()),
    }
}
