//! The two parts of a strategy of the engine: a driver runs the step, and a sharing decides what happens to units over the data
//! axis.

use crate::engine::{Keep, ParamUnit, RankEngine, Slot};
use crate::{Outline, Phase, Result};
use std::ops::Range;

/// Runs the step: which phases of which micro-batches run on a rank, in which order, and what ranks send each other.
pub trait Driver {
    /// The units of the network, and what this rank keeps of each.
    ///
    /// # Errors
    /// A network that cannot be cut as the strategy needs it.
    fn units(&self, outline: &Outline) -> Result<Vec<ParamUnit>>;

    /// Before the first step.
    ///
    /// # Errors
    /// Units that are not as the strategy needs them.
    fn start(&mut self, _on: &mut dyn RankEngine) -> Result<()> {
        Ok(())
    }

    /// One step over this rank's batch, from loading it to updating the parameters.
    ///
    /// # Errors
    /// Failed communication.
    fn step(&mut self, on: &mut dyn RankEngine) -> Result<()>;
}

/// Decides what happens to parameters and gradients over the data axis. The driver calls it.
pub trait DataSharing {
    /// What a rank keeps of each unit.
    fn keep(&self) -> Keep;

    /// Whether a rank that runs all layers has them in one unit, and not in a unit for each block.
    fn is_one_unit(&self) -> bool {
        false
    }

    /// Before the first step, on a rank that runs all layers.
    ///
    /// # Errors
    /// Units that are not as the sharing needs them.
    fn start(&mut self, _on: &mut dyn RankEngine) -> Result<()> {
        Ok(())
    }

    /// A step begins, on a rank that runs all layers.
    ///
    /// # Errors
    /// Failed communication.
    fn begin(&mut self, _on: &mut dyn RankEngine) -> Result<()> {
        Ok(())
    }

    /// The pass is about to use a unit's parameters, and those of `ahead` next.
    ///
    /// # Errors
    /// Failed communication.
    fn need(&mut self, _on: &mut dyn RankEngine, _unit: usize, _ahead: Option<usize>) -> Result<()> {
        Ok(())
    }

    /// The pass, forward or backward, has used a unit's parameters and continues with those of another unit.
    fn done(&mut self, _on: &mut dyn RankEngine, _unit: usize, _forward: bool) {}

    /// A micro-batch's gradient of a parameter is final; `last` if no more micro-batches follow. Called only on
    /// a rank that runs all layers.
    ///
    /// # Errors
    /// Failed communication.
    fn announced(&mut self, _on: &mut dyn RankEngine, _param: usize, _last: bool) -> Result<()> {
        Ok(())
    }

    /// A micro-batch's gradient of a unit is complete; `last` if no more micro-batches follow.
    ///
    /// # Errors
    /// Failed communication.
    fn ready(&mut self, _on: &mut dyn RankEngine, _unit: usize, _last: bool) -> Result<()> {
        Ok(())
    }

    /// All gradients of the step are ready: finishes their exchanges, updates the parameters, and gathers those kept whole.
    ///
    /// # Errors
    /// Failed communication.
    fn update(&mut self, on: &mut dyn RankEngine) -> Result<()>;
}

/// The direction of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassDirection {
    Forward,
    /// Backward; whether the gradients of this micro-batch are the last of the step.
    Backward {
        last: bool,
    },
}

/// Runs `phases`, and calls `sharing` for each unit when the pass needs its parameters, leaves it, or has completed its gradient.
/// A gradient is not complete if a phase in `later` adds to it. If several stages hold the unit, its gradient is complete only in
/// [`finish`].
pub(super) fn pass(
    on: &mut dyn RankEngine,
    sharing: &mut dyn DataSharing,
    (phases, later): (&[Phase], &[Phase]),
    slot: Slot,
    direction: PassDirection,
) -> Result<()> {
    let units: Vec<Option<usize>> = phases.iter().map(|phase| on.unit_of(*phase)).collect();
    let grads = |at: usize| matches!(phases[at], Phase::WeightGrad(_));
    let unready: Vec<Option<usize>> = later.iter().map(|phase| on.unit_of(*phase)).collect();
    let mut inside = None;
    for (at, &phase) in phases.iter().enumerate() {
        if let Some(unit) = units[at]
            && inside != Some(unit)
        {
            if let Some(left) = inside {
                sharing.done(on, left, direction == PassDirection::Forward);
            }
            let ahead = units[at..].iter().flatten().copied().find(|next| *next != unit);
            sharing.need(on, unit, ahead)?;
            inside = Some(unit);
        }
        on.run(phase, slot)?;
        if let (Phase::Ready(param), PassDirection::Backward { last }) = (phase, direction) {
            sharing.announced(on, param, last)?;
        }
        if let (Some(unit), PassDirection::Backward { last }) = (units[at], direction)
            && grads(at)
            && !(at + 1..phases.len()).any(|later| units[later] == Some(unit) && grads(later))
            && !unready.contains(&Some(unit))
            && !on.is_copied(unit)
        {
            sharing.ready(on, unit, last)?;
        }
    }
    if let Some(left) = inside {
        sharing.done(on, left, direction == PassDirection::Forward);
    }
    Ok(())
}

/// The end of a step: sums the gradients of units that several stages hold over these stages, then updates the parameters.
pub(super) fn finish(on: &mut dyn RankEngine, sharing: &mut dyn DataSharing) -> Result<()> {
    for unit in 0..on.units().len() {
        if on.is_copied(unit) {
            on.sum_copies(unit)?;
            sharing.ready(on, unit, true)?;
        }
    }
    sharing.update(on)
}

/// The units of these blocks of layers, one for each block, all with the same `keep`.
pub(super) fn units_of(blocks: &[Range<usize>], keep: Keep) -> Vec<ParamUnit> {
    blocks.iter().map(|layers| ParamUnit { layers: layers.clone(), keep }).collect()
}
