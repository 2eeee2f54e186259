//! Tests of whole runs.

use super::*;
use crate::engine::COPIES;
use allfold_collectives::World;

/// Regression: the state of a hook was copied before every step, in case the loss scale skipped the step.
#[test]
fn a_step_under_a_loss_scale_copies_nothing_that_a_hook_remembers() {
    let (train, test) = crate::data::digits().unwrap();
    let (train, test) = (train.first(32), test.first(8));
    for hook in ["topk", "powersgd"] {
        let config = Config::default().with(|c| {
            c.model.name = "mlp".into();
            c.model.hidden = vec![8];
            c.ddp.hook = hook.into();
            c.precision.loss_scale = 1024.0;
            c.precision.scale_interval = 2;
            c.training.batch = 4;
            c.training.max_steps = 4;
        });
        let body = |comm: Communicator| {
            train_on(&config, &train, &test, &comm, &mut ())?;
            Ok::<_, Error>(COPIES.with(|copies| copies.get()))
        };
        assert_eq!(World::threads(2).run(body).unwrap(), [0, 0], "{hook}");
    }
}

/// Regression: micro-batches were counted in 16 bits, which the last micro-batch of this step exceeds.
#[test]
fn a_step_of_65536_micro_batches_ends() {
    let (train, test) = crate::data::digits().unwrap();
    let config = Config::default().with(|c| {
        c.model.name = "mlp".into();
        c.model.hidden = vec![1];
        c.strategy = "single".into();
        c.data.uneven = true;
        c.training.accumulate = 65_536;
        c.training.batch = 2;
        c.training.max_steps = 1;
    });
    let (train, test) = (train.first(2), test.first(2));
    let body = |comm: Communicator| train_on(&config, &train, &test, &comm, &mut ());
    let ends = World::threads(1).run(body).unwrap();
    assert!(ends[0].losses.len() == 1 && ends[0].losses[0].is_finite());
}

/// Regression: the run stopped at the end of its first epoch.
#[test]
fn a_last_batch_of_one_sample_is_refused_before_the_first_step() {
    let (train, test) = crate::data::digits().unwrap();
    let (train, test) = (train.first(17), test.first(8));
    let ends = |with: &dyn Fn(&mut Config)| {
        let mut config = Config::default().with(|c| {
            c.model.name = "resnet18".into();
            c.strategy = "single".into();
            c.training.batch = 16;
            c.training.max_steps = 2;
        });
        with(&mut config);
        let body = |comm: Communicator| train_on(&config, &train, &test, &comm, &mut ());
        World::threads(1).run(body).map_err(|error| error.to_string())
    };
    let error = ends(&|_| {}).unwrap_err();
    assert!(error.contains("1 value per channel") && error.contains("`data.drop_last_batch`"), "{error}");
    // Three samples in two micro-batches are two and one.
    ends(&|c| (c.training.batch, c.training.accumulate) = (14, 2)).unwrap_err();
    ends(&|c| c.training.batch = 14).unwrap();
    ends(&|c| c.data.drop_last_batch = true).unwrap();
    ends(&|c| c.training.max_steps = 1).unwrap();
}

/// An observer that wants the losses between scores gets each loss once, as a mean over the ranks, and changes no bit of the run.
#[test]
fn losses_that_are_shared_between_scores_are_those_of_the_run() {
    struct Told(usize, Vec<f64>);
    impl Observer for Told {
        fn wants_losses(&self) -> bool {
            true
        }
        fn losses(&mut self, first: usize, so_far: &TrainResult) {
            assert_eq!(first, self.1.len());
            self.0 += 1;
            self.1.extend(&so_far.losses[first..]);
        }
    }
    let (train, test) = crate::data::digits().unwrap();
    let config = Config::default().with(|c| {
        c.model.name = "mlp".into();
        c.training.max_steps = 6;
    });
    let body = |comm: Communicator| {
        let mut told = Told(0, Vec::new());
        let quiet = train_on(&config, &train, &test, &comm, &mut ())?;
        let loud = train_on(&config, &train, &test, &comm, &mut told)?;
        Ok::<_, Error>((told, [quiet, loud].map(|result| (result.losses, result.weights_hash))))
    };
    for (Told(calls, losses), [quiet, loud]) in World::threads(3).run(body).unwrap() {
        assert_eq!(quiet, loud);
        assert_eq!(losses, loud.0);
        assert!(calls >= 2, "the first step and the end of the epoch");
    }
}

/// A digit-reading run of some steps over so many samples, with a checkpoint after the last one.
fn saved(folder: &std::path::Path, samples: usize, steps: u64, change: impl Fn(&mut Config)) -> Result<u64> {
    let (train, test) = crate::data::digits().unwrap();
    let (train, test) = (train.first(samples), test.first(8));
    let config = Config::default().with(|c| {
        c.model.name = "mlp".into();
        c.model.hidden = vec![8];
        c.training.batch = 8;
        c.training.max_steps = steps;
        c.checkpoint.dir = folder.display().to_string();
        c.checkpoint.every = 2;
        change(c);
    });
    let ends = World::threads(1).run(|comm: Communicator| train_on(&config, &train, &test, &comm, &mut ()));
    match ends {
        Ok(ends) => Ok(ends[0].losses.len() as u64),
        Err(error) => Err(Error::Checkpoint(error.to_string())),
    }
}

/// Regression: a run resumed over other data as if nothing had changed.
#[test]
fn a_run_resumes_over_other_samples_only_if_it_may() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(saved(folder.path(), 32, 2, |_| ()).unwrap(), 2);
    let resumed = |samples, may_differ: &[&str]| {
        saved(folder.path(), samples, 4, |c| {
            c.checkpoint.resume = true;
            c.checkpoint.may_differ = may_differ.iter().map(|key| key.to_string()).collect();
        })
    };
    let said = resumed(40, &[]).unwrap_err().to_string();
    let why = "was made with 32 training samples and this run has 40; to go on with these samples, add --set \
               'checkpoint.may_differ=[\"data.samples\"]'";
    assert!(said.contains(why), "{said}");
    assert_eq!(resumed(40, &["data.samples"]).unwrap(), 4);
}

/// Regression: a resume read the whole of a file before it compared shapes.
#[test]
fn a_checkpoint_of_other_shapes_is_refused_by_its_header() {
    let folder = tempfile::tempdir().unwrap();
    saved(folder.path(), 32, 2, |_| ()).unwrap();
    let resumed = |hidden: usize| {
        let end = saved(folder.path(), 32, 4, |c| {
            c.checkpoint.resume = true;
            c.model.hidden = vec![hidden];
        });
        end.unwrap_err().to_string()
    };
    let said = resumed(9);
    assert!(
        said.contains("`model.fc1.weight` has the shape [8, 64] where the model wants [9, 64]"),
        "{said}"
    );
}

/// Regression: ranks with unlike configurations trained on, or ended with an error of the exchange that named no key.
#[test]
fn ranks_with_unlike_configurations_are_refused_with_the_key_and_both_values() {
    let (train, test) = crate::data::digits().unwrap();
    let (train, test) = (train.first(32), test.first(8));
    let base = Config::default().with(|c| {
        c.model.name = "mlp".into();
        c.model.hidden = vec![4];
        c.training.batch = 4;
        c.training.max_steps = 1;
    });
    let error = |change: &(dyn Fn(&mut Config) + Sync)| {
        let other = base.clone().with(|c| change(c));
        let body = |comm: Communicator| {
            let config = if comm.rank().0 == 2 { &other } else { &base };
            match train_on(config, &train, &test, &comm, &mut ()) {
                Ok(_) => Ok::<_, Error>(String::new()),
                Err(error) => Ok(error.to_string()),
            }
        };
        World::threads(3).run(body).unwrap()
    };
    for (change, says) in [
        (
            &(|c: &mut Config| c.optimiser.lr = 0.5) as &(dyn Fn(&mut Config) + Sync),
            "rank 2 has `optimiser.lr = 0.5` and rank 0 has `optimiser.lr = 0.02`",
        ),
        (
            &|c| c.strategy = "zero3".into(),
            "rank 2 has `strategy = \"zero3\"` and rank 0 has `strategy = \"ddp\"`",
        ),
        (
            &|c| c.model.hidden = vec![4, 4],
            "rank 2 has `model.hidden = [4, 4]` and rank 0 has `model.hidden = [4]`",
        ),
    ] {
        for told in error(change) {
            assert_eq!(told, format!("{says}; every rank needs the same configuration"));
        }
    }
    // Where a rank finds its files and how it uses its host is its own.
    assert_eq!(error(&|c| c.data.workers = 2), ["", "", ""]);
}
