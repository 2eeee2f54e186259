//! Whole runs, looked into.

use super::*;
use crate::Network;
use crate::strategies::Synced;
use crate::timing::BucketTimes;
use allfold_collectives::World;
use allfold_sim::Picos;
use std::cell::Cell;
use std::rc::Rc;

/// Another strategy, of which it counts how often a copy of all that a hook remembers is asked for.
struct Watched<'a> {
    inner: Box<dyn Strategy<f32> + 'a>,
    copies: Rc<Cell<usize>>,
}

impl Strategy<f32> for Watched<'_> {
    fn start(&mut self, model: &mut Model<f32>) -> Result<()> {
        self.inner.start(model)
    }
    fn forward(&mut self, model: &mut Model<f32>, x: &[f32]) -> Result<Picos> {
        self.inner.forward(model, x)
    }
    fn backward(&mut self, model: &mut Model<f32>, objective: Objective<f32>) -> Result<Synced<f32>> {
        self.inner.backward(model, objective)
    }
    fn before_evaluation(&mut self, model: &mut Model<f32>) -> Result<()> {
        self.inner.before_evaluation(model)
    }
    fn after_step(&mut self, model: &mut Model<f32>) -> Result<()> {
        self.inner.after_step(model)
    }
    fn hook_state(&mut self) -> Vec<(&'static str, Vec<f32>)> {
        self.copies.set(self.copies.get() + 1);
        self.inner.hook_state()
    }
    fn load_hook_state(&mut self, steps: u64, values: &[Vec<f32>]) {
        self.inner.load_hook_state(steps, values);
    }
    fn undo(&mut self) {
        self.inner.undo();
    }
    fn rescale(&mut self, by: f32) {
        self.inner.rescale(by);
    }
    fn unused(&self) -> &[usize] {
        self.inner.unused()
    }
    fn buckets(&self) -> &[BucketTimes] {
        self.inner.buckets()
    }
}

/// The state of a hook used to be copied before every step, in case the loss scale skipped the step.
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
            let mut run = Run::<f32>::new(&config, (&train, &test), &comm, None)?;
            let copies = Rc::new(Cell::new(0));
            let network: Network<f32> = models::build(&config, train.shape, train.classes)?;
            let inner = strategies::build(&config, &network, &comm)?;
            run.strategy = Box::new(Watched { inner, copies: copies.clone() });
            run.all(&mut ())?;
            Ok::<_, Error>(copies.get())
        };
        assert_eq!(World::threads(2).run(body).unwrap(), [0, 0], "{hook}");
    }
}

/// The count of micro-batches was 16 bits wide: the last of these passed it.
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
