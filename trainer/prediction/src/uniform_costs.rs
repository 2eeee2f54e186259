//! A network of which only the number of parameters and the time of a step on one device are known.
//!
//! ```text
//! forward: a third of the step        backward: two thirds; gradients are ready at an even pace
//! ```

use super::StepCosts;
use allfold_sim::Picos;
use allfold_trainer::layers::Init;
use allfold_trainer::{Outline, ParamSpec, Phase};
use std::sync::Arc;

/// Parameters in tensors of equal size whose gradients become ready one by one, the last tensor's first.
pub struct UniformCosts {
    places: Vec<ParamSpec>,
    alone: Picos,
}

/// The number of tensors; any number much larger than that of the buckets gives about the same times.
const TENSORS: usize = 128;

impl UniformCosts {
    /// A network with this many parameters, of which a step takes `alone` on one device.
    pub fn new(parameters: usize, alone: Picos) -> UniformCosts {
        let edge = |tensor: usize| parameters * tensor / TENSORS;
        let place = |tensor: usize| {
            let range = edge(tensor)..edge(tensor + 1);
            ParamSpec {
                name: format!("part{tensor}"),
                shape: vec![range.len()],
                range,
                init: Init::Constant(0.0),
            }
        };
        UniformCosts { places: (0..TENSORS).map(place).collect(), alone }
    }
}

impl StepCosts for UniformCosts {
    fn outline(&self) -> Arc<Outline> {
        let names = self.places.iter().map(|place| place.name.clone()).collect();
        let backward =
            (0..TENSORS).rev().flat_map(|tensor| [Phase::WeightGrad(tensor), Phase::Ready(tensor)]);
        let values = self.places.iter().map(|place| place.range.clone()).collect();
        let phases = (vec![Phase::Forward(0)], backward.collect());
        Arc::new(Outline::in_a_row(names, phases, values, vec![1; TENSORS]))
    }
    fn params(&self) -> &[ParamSpec] {
        &self.places
    }
    /// The whole batch of a step is one micro-batch, to which `alone` applies.
    fn takes(&self, phase: Phase, _: usize) -> Picos {
        match phase {
            Phase::Forward(_) => Picos(self.alone.0 / 3),
            Phase::WeightGrad(_) => Picos((self.alone.0 - self.alone.0 / 3) / TENSORS as u64),
            _ => Picos::ZERO,
        }
    }
    fn element(&self) -> usize {
        4
    }
}
