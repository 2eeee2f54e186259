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
