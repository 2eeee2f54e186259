//! The summary that a training run prints at its end.

use crate::training::epochs;
use crate::training::trained::Trained;
use allfold_cli::error::CommandResult;
use allfold_cli::output::RunOutput;
use allfold_report::format::{counted, rate, rounded_bytes, time};
use allfold_trainer::config::ElementType;
use allfold_trainer::data::pictures;
use allfold_trainer::models::build;
use allfold_trainer::scores::best;
use allfold_trainer::{Config, Dataset, ScoreBy};
use std::path::Path;

/// What is trained and how, for the line above a run; `clock` says by which clock its times are taken.
///
/// `parameters` are the elements of all parameters, and of those that are trained; `batch` are the samples of a rank in a step, which may be
/// fewer than `training.batch`.
pub fn heading(
    config: &Config,
    [all, trained]: [usize; 2],
    (ranks, batch): (u32, usize),
    clock: &str,
) -> String {
    let asked = config.training.batch;
    let too_few = format!(" ({asked} in the configuration, for which there are too few samples)");
    format!(
        "{} with {all} parameters{}, {}, {}, batch {batch} each{}{}; {clock}",
        config.model.name,
        if trained < all { format!(", {trained} of them trained") } else { String::new() },
        config.strategy,
        counted(ranks as usize, "rank"),
        if batch < asked { &too_few } else { "" },
        match batch.div_ceil(config.micro_batch(batch)) {
            1 => String::new(),
            more => format!(" in {more} micro-batches"),
        },
    )
}

/// Elements of all parameters of the network, and of those that are trained.
pub fn parameters(config: &Config, data: &Dataset) -> CommandResult<[usize; 2]> {
    macro_rules! counts {
        ($float:ty) => {{
            let network = build::<$float>(config, data.form())?;
            [network.param_count(), network.trained_count()]
        }};
    }
    Ok(match config.precision.dtype {
        ElementType::F64 => counts!(f64),
        ElementType::F32 => counts!(f32),
    })
}

/// The data: its samples, their shape and classes, and how many of them are in each set, for the line below the heading.
pub fn data(config: &Config, (train, scored): &(Dataset, Dataset)) -> String {
    let noun = if config.data.name == "pictures" { "picture" } else { "sample" };
    let (channels, height, width) = train.shape;
    format!(
        "{} of {channels} x {height} x {width} in {}: {} to train on, {} in the {} set",
        counted(train.len() + scored.len(), noun),
        if train.classes == 1 { "1 class".into() } else { format!("{} classes", train.classes) },
        train.len(),
        scored.len(),
        config.scored_on()
    )
}

/// What is odd about the data: folders that are not read, labels that no sample has, channels that come last.
pub fn notes(config: &Config, train: &Dataset) -> Vec<String> {
    let mut notes = Vec::new();
    let (folder, (channels, height, width)) = (&config.data.dir, train.shape);
    if config.data.name == "pictures" {
        let unread = pictures::unread(Path::new(folder));
        if !unread.is_empty() {
            notes.push(format!(
                "{folder}: not read beside the training and the test set: {}",
                unread.join(", ")
            ));
        }
    }
    if config.data.name != "arrays" || train.rows() != 1 {
        return notes;
    }
    let mut has = vec![false; train.classes];
    train.labels.iter().for_each(|label| has[*label as usize] = true);
    let lacking: Vec<String> =
        (0..train.classes).filter(|class| !has[*class]).map(|class| class.to_string()).collect();
    let named = lacking.iter().take(8).cloned().collect::<Vec<_>>().join(", ");
    if !lacking.is_empty() {
        let more = if lacking.len() > 8 { ", .." } else { "" };
        notes.push(format!(
            "{folder}: {} classes by the greatest label, and no training sample has the label {named}{more}; labels count from 0",
            train.classes
        ));
    }
    if train.classes == 1 {
        notes.push(format!("{folder}: all labels are 0: every answer is right"));
    }
    if matches!(width, 1 | 3 | 4) && height > 4 && channels > 4 {
        notes.push(format!(
            "{folder}: samples have {channels} channels of {height} x {width}: if the channels come last, move them first, as by x.transpose(0, 3, 1, 2)"
        ));
    }
    notes
}

/// Prints the losses of the steps that this process made, the scores of the epochs, and the results.
pub fn say(config: &Config, trained: &Trained, output: &mut RunOutput) -> CommandResult {
    let result = &trained.result;
    let losses = &result.losses;
    let first = losses.len() - trained.made();
    let every = trained.made().div_ceil(10).max(1);
    for (step, loss) in losses.iter().enumerate().skip(first) {
        if (step - first).is_multiple_of(every) || step + 1 == losses.len() {
            output.say(format!("  step {step:>6}  loss {loss:.6}"))?;
        }
    }
    if let Some(table) = epochs::table(config, trained) {
        output.say(table)?;
    }
    let (test, set) = (&result.test, config.scored_on());
    let labelled = if config.model.predicts_tokens() { "tokens" } else { "samples" };
    output.say(format!(
        "accuracy {:.2} % ({} of {} {set} {labelled}), {set} loss {:.6}",
        test.accuracy() * 100.0,
        test.correct,
        test.labels,
        test.loss
    ))?;
    if let Some(line) = best_epoch(config, trained) {
        output.say(line)?;
    }
    match trained.made() {
        0 => output.say("no step was left: the checkpoint is of the last step")?,
        _ => steps(trained, output)?,
    }
    output.say(format!("losses_hash {}\nweights_hash {}", trained.losses_hash(), trained.weights_hash()))
}

/// How long the steps of this process took, and the memory that rank 0 holds.
fn steps(trained: &Trained, output: &mut RunOutput) -> CommandResult {
    let (step_us, error_us) = trained.step_us();
    output.say(format!(
        "{} samples/s; a step takes {} +- {}:",
        rate(trained.throughput()),
        time(step_us),
        time(error_us)
    ))?;
    let parts = trained.breakdown();
    if trained.on_gpus {
        let (data, rest) = (time(parts.data_us), time(parts.backward_us));
        output.say(format!("  data {data}, forward, backward, exchange and optimiser on the GPU {rest}"))?;
    } else {
        spent(trained, output)?;
    }
    if let Some(exchange) = &trained.result.exchange {
        output.say(format!("gradients summed by {exchange}"))?;
    }
    if let Some(held) = trained.memory() {
        output.say(format!(
            "rank 0 holds: parameters {}, gradients {}, optimiser {}, buckets {}, statistics {}, activations {}",
            rounded_bytes(held.params),
            rounded_bytes(held.gradients),
            rounded_bytes(held.optimiser),
            rounded_bytes(held.buckets),
            rounded_bytes(held.buffers),
            rounded_bytes(held.activations + held.saved_for_backward + held.activation_gradients)
        ))?;
    }
    Ok(())
}

/// How the time of a step on the CPU is spent.
fn spent(trained: &Trained, output: &mut RunOutput) -> CommandResult {
    let parts = trained.breakdown();
    // One rank communicates with nobody: its exposed time is the time between two readings of the clock.
    let exposed = match trained.ranks {
        1 => String::new(),
        _ => format!("exposed communication {}, ", time(parts.exposed_us)),
    };
    output.say(format!(
        "  data {}, forward {}, backward {}, {exposed}optimiser {}",
        time(parts.data_us),
        time(parts.forward_us),
        time(parts.backward_us),
        time(parts.optimiser_us)
    ))
}

/// Why the run ended before all its epochs, and which epoch was the best; `None` if the run compares no scores.
fn best_epoch(config: &Config, trained: &Trained) -> Option<String> {
    let (by, mut epochs) = (config.training.score, &trained.result.epochs[..]);
    // The file of the best weights holds those of a whole epoch.
    if config.checkpoint.best {
        epochs = &epochs[..trained.result.whole_epochs];
    }
    let best = epochs.get(best(by, epochs).filter(|_| config.compares_scores())?)?;
    let score = match by {
        ScoreBy::Accuracy => format!("accuracy {:.2} %", best.test.accuracy() * 100.0),
        ScoreBy::Loss => format!("{} loss {:.6}", config.scored_on(), best.test.loss),
    };
    let best = format!("the best is epoch {} with {score}", best.epoch + 1);
    Some(match trained.ended_early_after() {
        Some(after) => {
            let without = counted(config.training.patience as usize, "epoch");
            format!(
                "ended early after epoch {after} of {}: {without} without a better score; {best}",
                config.training.epochs
            )
        }
        None => best,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heading_says_what_is_trained_and_into_how_many_parts_a_batch_is_cut() {
        let config = |accumulate| {
            Config::default().with(|c| {
                c.training.batch = 16;
                c.training.accumulate = accumulate;
            })
        };
        let said = |accumulate, parameters| heading(&config(accumulate), parameters, (1, 16), "measured");
        assert_eq!(said(1, [9, 9]), "cnn with 9 parameters, ddp, 1 rank, batch 16 each; measured");
        assert_eq!(
            said(4, [9, 3]),
            "cnn with 9 parameters, 3 of them trained, ddp, 1 rank, batch 16 each in 4 micro-batches; measured"
        );
        let few = heading(&config(1), [9, 9], (4, 10), "measured");
        assert_eq!(
            few,
            "cnn with 9 parameters, ddp, 4 ranks, batch 10 each (16 in the configuration, for which there are too few samples); measured"
        );
        // As many as have samples.
        assert!(said(7, [9, 9]).contains(" in 6 micro-batches; "));
        assert!(said(99, [9, 9]).contains(" in 16 micro-batches; "));
    }
}
