//! A step copies the batch of the next one, also over the end of an epoch.

use super::*;
use allfold_standin::Counter;
use allfold_trainer::{Observer, StepReport};

/// How many copies from pinned memory there were after each step.
struct Copies<'a>(&'a Counter, Vec<u64>);

impl Observer for Copies<'_> {
    fn step(&mut self, _: &StepReport) {
        self.1.push(self.0.traffic().get("upload").map_or(0, |uploads| uploads.launches));
    }
}

/// Regression: the first batch of an epoch was copied after the step began, so that steps took longer where an epoch has few.
#[test]
fn every_step_has_the_next_ones_batch_copied_whatever_the_steps_of_an_epoch() {
    const STEPS: usize = 8;
    let (train, test) = digits().unwrap();
    let copied = [1, 2, 4, 8].map(|per_epoch| {
        let machine = Counter::open();
        let config = Config::default().with(|c| {
            c.model.name = "mlp".into();
            c.model.hidden = vec![8];
            c.strategy = "single".into();
            c.device = "cuda".into();
            c.training.batch = 4;
            (c.training.epochs, c.training.max_steps) = (STEPS as u64, STEPS as u64);
        });
        let data = (train.clone().first(4 * per_epoch), test.clone().first(4));
        let body = |comm| {
            let mut copies = Copies(Counter::of(&*machine).unwrap(), Vec::new());
            train_with(&config, &data.0, &data.1, &comm, Some(machine.clone()), &mut copies)?;
            Ok::<_, allfold_trainer::Error>(copies.1)
        };
        let after = World::threads(1).run(body).unwrap().remove(0);
        assert_eq!(after.len(), STEPS);
        after
    });
    println!("copies after each step, for 1, 2, 4 and 8 steps of an epoch: {copied:?}");
    let whole = &copied[3];
    // The copies of an evaluation.
    let evaluation = copied[2][4] - whole[4];
    assert!(evaluation > 0);
    for (per_epoch, after) in [1, 2, 4].into_iter().zip(&copied) {
        for (step, (copies, without)) in after.iter().zip(whole).enumerate() {
            let evaluations = (step / per_epoch) as u64;
            assert_eq!(*copies, without + evaluation * evaluations, "{per_epoch} steps: {step}: {after:?}");
        }
    }
}
