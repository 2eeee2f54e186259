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
