//! Data parallelism as PyTorch's `DataParallel` does it: the first rank has batch, loss and optimiser, and the other ranks
//! compute for it.
//!
//! ```text
//! rank 0    weights to all | samples to all | forward | outputs from all, loss, gradients by outputs to all | backward |
//! rank r    weights        | samples        | forward | output to rank 0, gradient by it from rank 0        | backward |
//!                                                           then the sum of gradients to rank 0, which updates the weights
//! ```
//!
//! Rank 0 holds every rank's samples, outputs and labels, and all of the optimiser's state. [`super::ddp`] avoids that imbalance.

use super::driver::{Driver, units_of};
use crate::engine::{Boundary, Keep, MeshAxis, ParamUnit, RankEngine, Route, Slot};
use crate::{Outline, Phase, Result};

/// The driver of `data_parallel`: the first rank trains, and the other ranks compute for it.
pub struct DataParallel;

/// The route to a peer on the data axis.
fn rank(peer: usize) -> Route {
    Route { axis: MeshAxis::Data, peer, channel: 0 }
}

impl Driver for DataParallel {
    fn units(&self, outline: &Outline) -> Result<Vec<ParamUnit>> {
        Ok(units_of(&outline.blocks(&(0..outline.layers())), Keep::First))
    }

    fn step(&mut self, on: &mut dyn RankEngine) -> Result<()> {
        let (outline, place) = (on.outline(), on.position(MeshAxis::Data));
        let layers = 0..outline.layers();
        let (input, output) = (Boundary::Activation(0), Boundary::Activation(outline.layers()));
        let grad = Boundary::Gradient(outline.layers());
        let units = on.units().len();
        (0..units).try_for_each(|unit| on.broadcast(unit))?;
        let first = place.index == 0;
        if first {
            for peer in 0..place.size {
                on.load(peer, place.size, Slot(peer))?;
            }
            (1..place.size).try_for_each(|peer| on.send(input, Slot(peer), rank(peer)))?;
        } else {
            on.load(0, 1, Slot(0))?;
            on.receive(input, Slot(0), rank(0))?;
        }
        for phase in outline.forward(&layers) {
            on.run(phase, Slot(0))?;
        }
        let backward = outline.backward(&layers, true);
        if first {
            on.run(Phase::Loss, Slot(0))?;
            for peer in 1..place.size {
                on.receive(output, Slot(peer), rank(peer))?;
                on.run(Phase::Loss, Slot(peer))?;
                on.send(grad, Slot(peer), rank(peer))?;
            }
        } else {
            on.send(output, Slot(0), rank(0))?;
            on.receive(grad, Slot(0), rank(0))?;
        }
        for phase in backward.into_iter().filter(|phase| *phase != Phase::Loss) {
            on.run(phase, Slot(0))?;
        }
        // Units of frozen layers have no gradients.
        let trains = |unit: &ParamUnit| outline.trains_some_of(&outline.values_in(&unit.layers));
        let trained: Vec<usize> = (0..units).filter(|unit| trains(&on.units()[*unit])).collect();
        trained.into_iter().try_for_each(|unit| on.reduce(unit))?;
        on.update()?;
        (0..place.size).for_each(|slot| on.forget(Slot(slot)));
        Ok(())
    }
}
