//! The times of passes as a run measured them, for predictions of steps of the same machine.

use allfold_sim::Picos;
use allfold_trainer::timing::{LayerSpan, StepWork, work_of};
use allfold_trainer::{Phase, layer_of};
use std::collections::BTreeMap;

/// A pass of a layer, or the loss.
type Pass = (Option<usize>, &'static str);

fn pass(layer: Option<usize>, work: StepWork) -> Pass {
    (layer, work.name())
}

/// How long each pass over a micro-batch took, and the parts of a step that belong to no pass.
#[derive(Clone, Debug, Default)]
pub struct PhaseTimes {
    passes: BTreeMap<Pass, Picos>,
    /// The time to prepare the batch of a step.
    pub data: Picos,
    /// The time of the optimiser's step, over this many elements.
    pub update: (Picos, usize),
}

impl PhaseTimes {
    /// The mean time of each pass in `spans`, which are those of micro-batches of one size on the ranks that have the layer.
    pub fn of<'s>(spans: impl IntoIterator<Item = &'s LayerSpan>) -> PhaseTimes {
        let mut times: BTreeMap<Pass, (Picos, u64)> = BTreeMap::new();
        for span in spans {
            let (time, count) = times.entry(pass(span.layer, span.work)).or_default();
            (*time, *count) = (*time + (span.end - span.start), *count + 1);
        }
        let mean = |(pass, (time, count)): (Pass, (Picos, u64))| (pass, Picos(time.0 / count));
        PhaseTimes { passes: times.into_iter().map(mean).collect(), ..PhaseTimes::default() }
    }

    /// The time of a phase; of one that was not measured, none.
    pub(crate) fn takes(&self, phase: Phase) -> Picos {
        let time = self.passes.get(&pass(layer_of(phase), work_of(phase)));
        time.copied()
            .filter(|_| !matches!(phase, Phase::SyncForward(_) | Phase::SyncBackward(_)))
            .unwrap_or_default()
    }

    /// The time of the optimiser's step over `elements`.
    pub(crate) fn update(&self, elements: usize) -> Picos {
        let (time, over) = self.update;
        Picos((u128::from(time.0) * elements as u128 / over.max(1) as u128) as u64)
    }
}
