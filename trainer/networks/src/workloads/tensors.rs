//! The tensors of a layer table.

use super::Workload;
use crate::{LayerTensors, NetworkTensors, Phase};

/// A table's layers in a row. What a layer keeps for its backward pass is its input; a layer that keeps nothing works in place.
impl NetworkTensors for Workload {
    fn reads(&self, phase: Phase) -> [Option<usize>; 3] {
        match phase {
            Phase::Forward(l) | Phase::Recompute(l) | Phase::SyncForward(l) | Phase::WeightGrad(l) => {
                [Some(self.storage_of(l)), None, None]
            }
            Phase::InputGrad(l) => {
                [Some(self.storage_of(l + usize::from(self.layers()[l].kept == 0))), None, None]
            }
            Phase::Loss => [Some(self.storage_of(self.layers().len())), None, None],
            Phase::Ready(_) | Phase::SyncBackward(_) => [None; 3],
        }
    }

    fn storage_of(&self, act: usize) -> usize {
        self.layers()[..act].iter().rposition(|layer| layer.kept > 0).map_or(0, |layer| layer + 1)
    }

    fn inputs_of(&self, layer: usize) -> Vec<usize> {
        vec![layer]
    }

    fn layer(&self, layer: usize) -> LayerTensors {
        let numbers = |act: usize| {
            let kept = self.layers()[act..].iter().map(|layer| layer.kept).find(|kept| *kept > 0);
            kept.unwrap_or_default() as usize
        };
        let (inputs, outputs) = (numbers(layer), numbers(layer + 1));
        let in_place = self.layers()[layer].kept == 0;
        LayerTensors { inputs, outputs, gradient: outputs, in_place, ..LayerTensors::default() }
    }

    fn saved(&self, _layer: usize, _n: usize) -> (usize, usize) {
        (0, 0)
    }
}
