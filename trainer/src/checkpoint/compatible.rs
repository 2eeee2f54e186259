//! Which runs may resume from a checkpoint: those that continue as the run of the checkpoint would have.

use super::TrainingProgress;
use crate::unknown::counted;
use crate::{Config, strategies};
use allfold_config::TrainingConfig;

/// The state in a run's checkpoint that each rank has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PerRank {
    /// Nothing: all ranks have the same state.
    Nothing,
    /// Tensors of each rank, such as the errors that a hook remembers.
    State,
    /// No such tensors, but statistics of batch norms over each rank's samples.
    BatchNorms,
}

/// Refuses to resume if a step would take another number of samples. If ranks have state of their own or a key's effect depends on the
/// number of ranks, then ranks, batch, micro-batches must agree.
pub(super) fn same_ranks(
    progress: &TrainingProgress,
    (config, ranks): (&Config, u32),
    per_rank: PerRank,
) -> std::result::Result<(), String> {
    let shares = |config: &Config, ranks| {
        let mesh = strategies::mesh(config, ranks).map_err(|error| error.to_string())?;
        Ok::<_, String>((mesh.data / mesh.context, config.training.batch))
    };
    let ((were, had), (are, have)) = (shares(&progress.config, progress.ranks)?, shares(config, ranks)?);
    let accumulates = progress.config.training.accumulate != config.training.accumulate;
    let follows = per_rank != PerRank::Nothing
        || config.data.drop_last
        || config.data.uneven
        || config.optimiser.scale_lr;
    if were * had != are * have || follows && (were != are || had != have || accumulates) {
        return Err(format!(
            "was made by {} with batches of {had} in {}, and this run has {are} with {have} in {}; use {}, or \
             take its weights alone by `model.weights`",
            counted(were, "rank"),
            counted(progress.config.training.accumulate, "micro-batch"),
            config.training.accumulate,
            match (per_rank, follows) {
                (PerRank::State, _) =>
                    "the same, since the checkpoint holds state that each rank has of its own, such as that of a hook",
                (PerRank::BatchNorms, _) =>
                    "the same number of ranks and the same batches, since each rank has statistics of batch norms of its own (a run \
                     with `model.sync_batch_norm = true` from the start may go on with other numbers of ranks)",
                (PerRank::Nothing, true) => "the same",
                (PerRank::Nothing, false) => "as many samples in a step",
            }
        ));
    }
    Ok(())
}

/// Refuses to resume with another configuration, which would be a different run. Only keys of the run's length (if no learning rate
/// depends on it), of folders, and of how data is cut and exchanged may differ.
pub(super) fn same_run(progress: &TrainingProgress, config: &Config) -> std::result::Result<(), String> {
    let (was, schedule) = (&progress.config, config.lr_schedule.name);
    let ends = |config: &Config| {
        format!(
            "`training.epochs = {}` and `training.max_steps = {}`",
            config.training.epochs, config.training.max_steps
        )
    };
    let may_differ = &config.checkpoint.may_differ;
    let ends_differ = |key: &str| may_differ.iter().any(|named| named == key);
    if schedule.spans_the_run()
        && (was.training.epochs != config.training.epochs && !ends_differ("training.epochs")
            || was.training.max_steps != config.training.max_steps && !ends_differ("training.max_steps"))
    {
        let key = if was.training.epochs == config.training.epochs { "max_steps" } else { "epochs" };
        let (was, is) = (ends(was), ends(config));
        return Err(format!(
            "was made with {was} and this run has {is}: its rates, of `{schedule}`, depend on where a run ends; \
             to go on with the rates of the new end, {}",
            allow(&format!("training.{key}"), may_differ)
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
    let key = |line: &str| line.split_once(" = ").map_or(String::new(), |(key, _)| key.to_string());
    let other = |(was, is): &(&String, &String)| was != is && !may_differ.contains(&key(is));
    match was.iter().zip(&is).find(other) {
        Some((was, is)) => Err(format!(
            "was made with `{was}` and this run has `{is}`; {}",
            match allfold_config::may_differ(&key(is)) {
                true => format!("to go on with the new value, {}", allow(&key(is), may_differ)),
                false => "set the same, or take its weights alone by `model.weights`".into(),
            }
        )),
        None => Ok(()),
    }
}

/// What lets a run go on with another value of a key, besides others that may differ already.
pub(super) fn allow(key: &str, already: &[String]) -> String {
    let all: Vec<String> =
        already.iter().map(String::as_str).chain([key]).map(|key| format!("{key:?}")).collect();
    format!("add --set 'checkpoint.may_differ=[{}]'", all.join(", "))
}

/// Refuses the checkpoint of another model.
pub(super) fn same_model(progress: &TrainingProgress, config: &Config) -> std::result::Result<(), String> {
    let [was, is] = [&progress.config.model.name, &config.model.name];
    match was == is {
        true => Ok(()),
        false => Err(format!(
            "is of {was}, and this run trains {is}: name another folder by `checkpoint.dir`, or leave `checkpoint.resume` out"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::VERSION;
    use super::*;

    #[test]
    fn a_refusal_says_what_lets_a_run_go_on_with_other_ranks() {
        let config = Config::default().with(|c| c.training.batch = 8);
        let progress = TrainingProgress {
            version: VERSION,
            step: 4,
            ranks: 4,
            optimiser_steps: 4,
            loss_scale: 0.0,
            good: 0,
            checksum: String::new(),
            data: Default::default(),
            config: config.clone(),
        };
        let resumed = |ranks: u32, batch: usize, per_rank| {
            same_ranks(&progress, (&config.clone().with(|c| c.training.batch = batch), ranks), per_rank)
        };
        assert_eq!(resumed(2, 16, PerRank::Nothing), Ok(()));
        assert_eq!(resumed(4, 8, PerRank::BatchNorms), Ok(()));
        for (batch, per_rank, hints) in [
            (8, PerRank::Nothing, ["2 with 8 in 1", "as many samples in a step"]),
            (16, PerRank::State, ["use the same, ", "such as that of a hook"]),
            (
                16,
                PerRank::BatchNorms,
                ["the same number of ranks", "`model.sync_batch_norm = true` from the start"],
            ),
        ] {
            let said = resumed(2, batch, per_rank).unwrap_err();
            assert!(hints.iter().all(|hint| said.contains(hint)), "{said}");
        }
    }
}
