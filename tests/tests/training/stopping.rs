//! Scores by epoch, the best checkpoint, early ends of runs, and rates that follow the scores.

use allfold_collectives::World;
use allfold_tests::training::{bits, run, switch};
use allfold_trainer::config::{ElementType, LrScheduleName};
use allfold_trainer::{
    Config, EpochReport, Observer, StepReport, TrainResult, checkpoint, data, train, train_on,
};
use std::path::Path;

/// An MLP in f64 on 160 digits, in ten steps an epoch whatever the number of ranks.
fn config(ranks: usize) -> Config {
    Config::default().with(|c| {
        c.model.name = "mlp".into();
        c.model.hidden = vec![12];
        c.precision.dtype = ElementType::F64;
        c.data.train_samples = 160;
        c.training.batch = 16 / ranks;
        c.optimiser.lr = 0.1;
        c.training.epochs = 30;
    })
}

/// The first epoch with the highest accuracy.
fn best(epochs: &[EpochReport]) -> usize {
    let of = |at: &usize| epochs[*at].test.correct;
    (0..epochs.len()).rev().max_by_key(of).unwrap()
}

/// Whether a run with this patience and least gain, a share of accuracy, ends after these epochs.
fn ends(epochs: &[EpochReport], patience: usize, least: f64) -> bool {
    let mut better = 0;
    for (at, epoch) in epochs.iter().enumerate() {
        if epoch.test.accuracy() > epochs[better].test.accuracy() + least {
            better = at;
        }
    }
    epochs.len() - 1 - better >= patience
}

/// The names of the files in a folder, in order.
fn files(folder: &Path) -> Vec<String> {
    let names = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// The number of steps of a checkpoint, from its metadata.
fn step_of(path: &Path) -> u64 {
    let bytes = std::fs::read(path).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    let digits = text.split("\\nstep = ").nth(1).unwrap();
    digits.split('\\').next().unwrap().parse().unwrap()
}

fn within(folder: &Path, config: Config) -> Config {
    config.with(|c| c.checkpoint.dir = folder.display().to_string())
}

#[test]
fn all_ranks_end_after_the_same_epoch_whatever_their_number() {
    let (patience, min_delta) = (2, 0.02);
    let mut lengths = Vec::new();
    for ranks in [1, 2, 4] {
        let config = config(ranks as usize).with(|c| {
            c.training.patience = patience;
            c.training.min_delta = min_delta;
        });
        for world in [World::threads(ranks).any(), World::sim(&switch(ranks)).any()] {
            let each: Vec<TrainResult> = world.run(|comm| train(&config, &comm, &mut ())).unwrap();
            let first = &each[0];
            assert!(each.iter().all(|rank| rank.ended_early && rank.epochs == first.epochs), "{ranks} ranks");
            let epochs = &first.epochs;
            assert!((1..epochs.len()).all(|end| !ends(&epochs[..end], 2, min_delta)));
            assert!(ends(epochs, 2, min_delta) && (4..30).contains(&epochs.len()), "{}", epochs.len());
            assert_eq!(first.losses.len(), 10 * epochs.len());
            assert_eq!(first.test, epochs.last().unwrap().test);
            lengths.push(epochs.len());
        }
    }
    assert!(lengths.iter().all(|length| *length == lengths[0]), "{lengths:?}");
}

/// The rates of a resumed run depend on the scores of the epochs before, as its end does.
#[test]
fn a_resumed_run_ends_after_the_same_epoch_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let kept = within(
        folder.path(),
        config(2).with(|c| {
            c.training.patience = 3;
            c.training.min_delta = 0.01;
            c.lr_schedule.name = LrScheduleName::Plateau;
            c.lr_schedule.patience = 0;
            c.checkpoint.every = 7;
            c.checkpoint.every_epochs = 1;
            c.checkpoint.keep = 100;
        }),
    );
    let want = run(&World::threads(2), &kept);
    assert!(want.ended_early);
    let names = files(folder.path());
    assert_eq!(names.len(), want.epochs.len() + want.losses.len() / 7 - want.losses.len() / 70, "{names:?}");
    let resumed = kept.with(|c| {
        c.checkpoint.resume = true;
        c.checkpoint.every = 0;
        c.checkpoint.every_epochs = 0;
    });
    for name in names.iter().rev() {
        let got = run(&World::threads(2), &resumed);
        assert_eq!((bits(&got), got.ended_early), (bits(&want), true), "{name}");
        assert_eq!(got.epochs, want.epochs, "{name}");
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    // With more patience a run that ended early continues.
    run(
        &World::threads(2),
        &resumed.clone().with(|c| {
            c.checkpoint.resume = false;
            c.checkpoint.every_epochs = 1;
        }),
    );
    let longer = run(&World::threads(2), &resumed.with(|c| c.training.patience = 4));
    assert!(longer.epochs.len() > want.epochs.len() && longer.epochs[..want.epochs.len()] == want.epochs);
}

#[test]
fn the_best_checkpoint_is_that_of_the_best_epoch_whenever_it_comes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(checkpoint::BEST);
    let base = within(
        folder.path(),
        config(2).with(|c| {
            c.checkpoint.every_epochs = 1;
            c.checkpoint.keep = 1;
            c.checkpoint.best = true;
            c.checkpoint.resume = true;
        }),
    );
    let (mut places, mut earlier) = (Vec::new(), 0);
    for epochs in 1..=12 {
        let result = run(&World::threads(2), &base.clone().with(|c| c.training.epochs = epochs));
        let best = best(&result.epochs);
        assert_eq!(step_of(&path), result.epochs[best].steps, "after {epochs} epochs");
        assert_eq!(
            files(folder.path()),
            ["best.safetensors".to_string(), format!("step-{:08}.safetensors", epochs * 10)]
        );
        places.push(best);
        earlier += usize::from(best + 1 < result.epochs.len());
        let weights = path.display().to_string();
        let scored = config(2).with(|c| {
            c.model.weights = weights;
            c.optimiser.lr = 0.0;
            c.optimiser.weight_decay = 0.0;
            c.checkpoint.resume = false;
            c.training.max_steps = 1;
            c.checkpoint.dir = String::new();
        });
        assert_eq!(run(&World::threads(2), &scored).test, result.epochs[best].test);
    }
    places.dedup();
    assert!(places.len() > 2 && earlier > 2, "the best epoch must change, and not be the last: {places:?}");
}

/// The best checkpoint has all that a run needs to continue. A run resumes from it if it is the newest, so it is never replaced by a
/// worse one.
#[test]
fn a_run_resumes_from_the_best_checkpoint_if_no_other_is_newer() {
    let folder = tempfile::tempdir().unwrap();
    let kept = within(
        folder.path(),
        config(2).with(|c| {
            c.training.epochs = 4;
            c.checkpoint.best = true;
        }),
    );
    let want = run(&World::threads(2), &kept);
    assert_eq!(files(folder.path()), [checkpoint::BEST]);
    let latest =
        |what: &str| assert_eq!(checkpoint::latest(folder.path()).unwrap(), Some(folder.path().join(what)));
    latest(checkpoint::BEST);
    let refused = World::threads(2).run(|comm| train(&kept, &comm, &mut ())).unwrap_err().to_string();
    assert!(refused.contains("has checkpoints already: set `checkpoint.resume`"), "{refused}");
    let resumed = kept.with(|c| c.checkpoint.resume = true);
    let before = std::fs::metadata(folder.path().join(checkpoint::BEST)).unwrap().modified().unwrap();
    assert_eq!(bits(&run(&World::threads(2), &resumed)), bits(&want));
    let after = std::fs::metadata(folder.path().join(checkpoint::BEST)).unwrap().modified().unwrap();
    assert_eq!(before, after, "no epoch after the best one was better");
    // The last step's checkpoint is as new or newer.
    run(
        &World::threads(2),
        &resumed.with(|c| {
            c.checkpoint.every_epochs = 3;
            c.training.epochs = 5;
        }),
    );
    latest("step-00000050.safetensors");
    std::fs::write(folder.path().join(checkpoint::BEST), "half of one").unwrap();
    let says = checkpoint::latest(folder.path()).unwrap_err().to_string();
    assert!(says.contains("best.safetensors: ") && !says.contains('\n'), "{says}");
}

#[test]
fn checkpoints_by_epoch_are_those_asked_for_and_the_last() {
    for (every, epochs, steps, want) in
        [(2, 5, 0, vec![20, 40, 50]), (1, 3, 0, vec![10, 20, 30]), (2, 5, 33, vec![20, 33])]
    {
        let folder = tempfile::tempdir().unwrap();
        let config = config(2).with(|c| {
            c.training.epochs = epochs;
            c.training.max_steps = steps;
            c.checkpoint.every_epochs = every;
            c.checkpoint.keep = 9;
        });
        run(&World::threads(2), &within(folder.path(), config));
        let want: Vec<String> = want.iter().map(|step| format!("step-{step:08}.safetensors")).collect();
        assert_eq!(files(folder.path()), want);
    }
}

/// A run that `training.max_steps` cuts within an epoch has a score there, which a longer run would not have: it must not count.
#[test]
fn a_longer_run_decides_as_if_it_had_never_been_cut_short() {
    let folder = tempfile::tempdir().unwrap();
    let base = config(2).with(|c| {
        c.training.patience = 2;
        c.training.min_delta = 0.02;
        c.lr_schedule.name = LrScheduleName::Plateau;
        c.lr_schedule.patience = 0;
    });
    let want = run(&World::threads(2), &base);
    let kept = within(
        folder.path(),
        base.with(|c| {
            c.checkpoint.every_epochs = 1;
            c.checkpoint.best = true;
            c.checkpoint.resume = true;
        }),
    );
    for max_steps in [7, 15, 28] {
        let cut = run(&World::threads(2), &kept.clone().with(|c| c.training.max_steps = max_steps));
        assert_eq!(cut.epochs.last().unwrap().steps, max_steps);
        let best = folder.path().join(checkpoint::BEST);
        assert!(max_steps < 10 && !best.exists() || step_of(&best).is_multiple_of(10));
    }
    let got = run(&World::threads(2), &kept);
    assert_eq!((bits(&got), got.epochs), (bits(&want), want.epochs));
}

/// Ends the run after this many steps.
struct Stops(u64);

impl Observer for Stops {
    fn stop(&mut self, _done: u64) -> allfold_trainer::Result<Option<u64>> {
        Ok(Some(self.0))
    }
}

/// A run that is told to stop has a checkpoint of its last step: within an epoch, at the end of one, which is scored later, and at the end
/// of the run.
#[test]
fn a_run_that_is_told_to_stop_goes_on_to_the_same_bits() {
    for (strategy, keys, ranks) in [
        ("ddp", &[][..], 2),
        ("ddp", &["ddp.hook=local_sgd", "ddp.local_steps=4"], 2),
        ("zero1", &["checkpoint.sharded=true"], 2),
        ("zero3", &["checkpoint.sharded=true"], 2),
        ("pipeline", &["parallel.stages=2"], 2),
        ("tensor", &[], 2),
        ("parameter_server", &["parallel.servers=1"], 3),
        ("data_parallel", &[], 2),
    ] {
        let base = config(2).with(|c| {
            c.strategy = strategy.into();
            c.training.epochs = 2;
            for (key, value) in keys.iter().filter_map(|pair| pair.split_once('=')) {
                c.set(key, value).unwrap();
            }
        });
        let (world, case) = (World::threads(ranks), format!("{strategy} {keys:?}"));
        let want = run(&world, &base);
        let per_epoch = want.epochs[0].steps;
        for stop in [1, per_epoch - 1, per_epoch, 2 * per_epoch] {
            let folder = tempfile::tempdir().unwrap();
            let kept = within(folder.path(), base.clone().with(|c| c.checkpoint.every = 1000));
            let stopped = world.run(|comm| train(&kept, &comm, &mut Stops(stop)).map(|run| run.losses));
            assert_eq!(stopped.unwrap()[0], want.losses[..stop as usize], "{case}, {stop}");
            assert!(files(folder.path())[0].starts_with(&format!("step-{stop:08}.")), "{case}, {stop}");
            let got = run(&world, &kept.with(|c| c.checkpoint.resume = true));
            assert_eq!((bits(&got), got.epochs), (bits(&want), want.epochs.clone()), "{case}, {stop}");
        }
    }
}

/// A server that is ahead of its workers sends no parameters for steps after the last one.
#[test]
fn a_server_with_stale_workers_stops_with_them() {
    let folder = tempfile::tempdir().unwrap();
    let kept = within(
        folder.path(),
        config(2).with(|c| {
            c.strategy = "parameter_server".into();
            (c.parallel.servers, c.parallel.staleness) = (1, 3);
            c.checkpoint.every = 1000;
        }),
    );
    let stopped =
        World::threads(3).run(|comm| train(&kept, &comm, &mut Stops(6)).map(|run| run.losses.len()));
    assert_eq!(
        (stopped.unwrap(), files(folder.path())),
        (vec![6; 3], vec!["step-00000006.safetensors".into()])
    );
}

/// A run that `training.stop_after` cuts short has the rates of the whole run, which continues with them.
#[test]
fn a_run_that_stops_after_some_steps_keeps_its_schedule() {
    let folder = tempfile::tempdir().unwrap();
    let base = config(2).with(|c| {
        c.training.epochs = 3;
        c.lr_schedule.name = LrScheduleName::Cosine;
    });
    let want = run(&World::threads(2), &base);
    let kept = within(
        folder.path(),
        base.with(|c| {
            c.checkpoint.every = 100;
            c.checkpoint.resume = true;
        }),
    );
    for stop in [7, 19] {
        let cut = run(&World::threads(2), &kept.clone().with(|c| c.training.stop_after = stop));
        assert_eq!(cut.losses, want.losses[..stop as usize]);
    }
    let got = run(&World::threads(2), &kept);
    assert_eq!((bits(&got), got.epochs), (bits(&want), want.epochs));
}

/// Each refusal names what lets the run go on, and with it the run goes on.
#[test]
fn a_run_goes_on_with_another_rate_where_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let kept = within(
        folder.path(),
        config(1).with(|c| {
            c.training.epochs = 2;
            c.lr_schedule.name = LrScheduleName::Cosine;
            c.checkpoint.every = 100;
            c.checkpoint.resume = true;
            c.training.stop_after = 4;
        }),
    );
    run(&World::threads(1), &kept);
    let changed = |set: &[(&str, &str)]| {
        let config = set.iter().fold(kept.clone(), |mut config, (key, value)| {
            config.set(key, value).unwrap();
            config
        });
        World::threads(1).run(|comm| train(&config, &comm, &mut ())).map_err(|error| error.to_string())
    };
    for (key, value) in [
        ("optimiser.lr", "0.01"),
        ("optimiser.weight_decay", "0.1"),
        ("optimiser.clip_norm", "1.0"),
        ("model.frozen", "[\"fc1\"]"),
        ("training.epochs", "3"),
        ("lr_schedule.name", "\"constant\""),
    ] {
        let refused = changed(&[(key, value)]).unwrap_err();
        let remedy = format!("checkpoint.may_differ=[\"{key}\"]");
        assert!(refused.contains("this run has `") && refused.contains(&remedy), "{refused}");
        let gone_on = changed(&[(key, value), ("checkpoint.may_differ", &format!("[\"{key}\"]"))]);
        assert_eq!(gone_on.unwrap()[0].losses.len(), 4, "{key}");
    }
    let refused = changed(&[("seed", "5")]).unwrap_err();
    assert!(
        refused.contains("this run has `seed = 5`; set the same, or take its weights alone"),
        "{refused}"
    );
    let refused = changed(&[("checkpoint.may_differ", "[\"seed\"]")]).unwrap_err();
    assert!(
        refused.contains("`checkpoint.may_differ` names `seed`, with which a run is another one"),
        "{refused}"
    );
    let refused = changed(&[("model.name", "\"cnn\""), ("training.batch", "8")]).unwrap_err();
    assert!(refused.contains("is of mlp, and this run trains cnn: name another folder"), "{refused}");
}

/// The learning rate of each step.
struct Rates(Vec<f64>);

impl Observer for Rates {
    fn step(&mut self, report: &StepReport) {
        self.0.push(report.lr);
    }
}

#[test]
fn a_plateau_lowers_the_rate_after_epochs_without_a_better_score_on_every_rank() {
    for (ranks, score) in [(1, "loss"), (2, "accuracy"), (4, "loss")] {
        let config = config(ranks as usize).with(|c| {
            c.optimiser.lr = 0.15;
            c.set("training.score", score).unwrap();
            c.lr_schedule.name = LrScheduleName::Plateau;
            c.lr_schedule.patience = 0;
            c.lr_schedule.threshold = 0.0;
            c.training.epochs = 20;
        });
        let each = World::threads(ranks).run(|comm| {
            let mut rates = Rates(Vec::new());
            train(&config, &comm, &mut rates).map(|result| (result.epochs, rates.0))
        });
        let each = each.unwrap();
        let (mut rate, mut top, mut want) = (0.15, f64::NEG_INFINITY, Vec::new());
        for epoch in &each[0].0 {
            want.extend([rate; 10]);
            let value = if score == "loss" { -epoch.test.loss } else { epoch.test.accuracy() };
            rate = if value > top { rate } else { rate * 0.5 };
            top = top.max(value);
        }
        assert!(each.iter().all(|(_, rates)| *rates == want), "{ranks} ranks, {score}");
        assert!(want.last() < want.first(), "{ranks} ranks, {score}: no rate was lowered");
    }
}

#[test]
fn the_training_set_is_scored_too_where_it_is_asked_for() {
    let config = config(2).with(|c| {
        c.training.epochs = 2;
        c.training.score_train = true;
    });
    let scored = run(&World::threads(2), &config);
    assert!(scored.epochs.iter().all(|epoch| epoch.train.is_some_and(|train| train.labels == 160)));
    let plain = run(&World::threads(2), &config.with(|c| c.training.score_train = false));
    assert!(plain.epochs.iter().all(|epoch| epoch.train.is_none()));
    assert_eq!(bits(&scored), bits(&plain));
}

#[test]
fn keys_that_compare_scores_need_something_to_score_on() {
    let (train, test) = data::digits().unwrap();
    let (train, nothing) = (train.first(32), test.first(0));
    let ends = |config: &Config| {
        World::threads(2).run(|comm| train_on(config, &train, &nothing, &comm, &mut ())).map(|_| ())
    };
    for config in [
        config(2).with(|c| c.training.patience = 1),
        config(2).with(|c| c.lr_schedule.name = LrScheduleName::Plateau),
    ] {
        let says = ends(&config).unwrap_err().to_string();
        assert!(
            says.ends_with("the test set is empty: set `data.validation`") && !says.contains('\n'),
            "{says}"
        );
    }
    assert!(ends(&config(2).with(|c| c.training.epochs = 1)).is_ok());
}
