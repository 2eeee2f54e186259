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
        let config = Config {
            model: "mlp".into(),
            hidden: vec![8],
            hook: hook.into(),
            loss_scale: 1024.0,
            scale_interval: 2,
            batch: 4,
            max_steps: 4,
            ..Config::default()
        };
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
    let config = Config {
        model: "mlp".into(),
        hidden: vec![1],
        strategy: "single".into(),
        uneven: true,
        accumulate: 65_536,
        batch: 2,
        max_steps: 1,
        ..Config::default()
    };
    let (train, test) = (train.first(2), test.first(2));
    let body = |comm: Communicator| train_on(&config, &train, &test, &comm, &mut ());
    let ends = World::threads(1).run(body).unwrap();
    assert!(ends[0].losses.len() == 1 && ends[0].losses[0].is_finite());
}
