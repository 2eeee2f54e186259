//! One rank: forward, backward, step. What every other strategy is held against.

use super::{Strategy, Synced};
use crate::timing::work;
use crate::{Listener, Model, Objective, Result};
use allfold_collectives::{Buffer, Communicator};
use allfold_kernels::nn::{Float, OpCost};
use allfold_sim::Picos;
use std::ops::Range;

/// Training on one rank. The communicator is only its clock.
pub struct Single<'a> {
    clock: Charge<'a>,
}

/// Charges the cost of computation to the rank's clock.
struct Charge<'a>(&'a Communicator);

impl<F: Float> Listener<F> for Charge<'_> {
    fn on_cost(&mut self, cost: OpCost) {
        self.0.charge(&work(cost));
    }

    fn on_grad(&mut self, _param: usize, _elements: Range<usize>, _grads: &mut Buffer<F>) -> Result<()> {
        Ok(())
    }
}

impl<'a> Single<'a> {
    /// On the rank that `comm` is the handle of.
    pub fn new(comm: &'a Communicator) -> Single<'a> {
        Single { clock: Charge(comm) }
    }
}

impl<F: Float> Strategy<F> for Single<'_> {
    fn start(&mut self, _model: &mut Model<F>) -> Result<()> {
        Ok(())
    }

    fn forward(&mut self, model: &mut Model<F>, x: &[F]) -> Result<Picos> {
        model.forward(x, &mut self.clock)?;
        Ok(Picos::ZERO)
    }

    fn backward(&mut self, model: &mut Model<F>, objective: Objective<F>) -> Result<Synced<F>> {
        let loss = model.backward(objective, &mut self.clock)?;
        Ok(Synced { loss, exposed: Picos::ZERO })
    }

    fn before_evaluation(&mut self, _model: &mut Model<F>) -> Result<()> {
        Ok(())
    }
}
