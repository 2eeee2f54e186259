//! What a strategy of the engine consists of: a driver owns the step, a sharing owns what becomes of units over the data axis.

use crate::engine::{Keep, ParamUnit, RankEngine, Slot};
use crate::{Outline, Phase, Result};
use std::ops::Range;

/// Owns the step: which phases of which micro-batches run on a rank, in which order, and what ranks send each other.
pub trait Driver {
    /// The units of the network, and what this rank keeps of each.
    ///
    /// # Errors
    /// A network that cannot be cut as the strategy needs it.
    fn units(&self, outline: &Outline) -> Result<Vec<ParamUnit>>;

    /// One step over this rank's batch, from loading it to the moved parameters.
    ///
    /// # Errors
    /// Failed communication.
    fn step(&mut self, on: &mut dyn RankEngine) -> Result<()>;
}

/// What becomes of parameters and gradients over the data axis. A driver calls it.
pub trait DataSharing {
    /// What a rank keeps of each unit.
    fn keep(&self) -> Keep;

    /// The pass is about to use a unit's parameters, and those of `ahead` next.
    ///
    /// # Errors
    /// Failed communication.
    fn need(&mut self, _on: &mut dyn RankEngine, _unit: usize, _ahead: Option<usize>) -> Result<()> {
        Ok(())
    }

    /// The pass, forward or backward, has used a unit's parameters and goes on with another's.
    fn done(&mut self, _on: &mut dyn RankEngine, _unit: usize, _forward: bool) {}

    /// A micro-batch's gradient of a unit is complete; `last` if no more micro-batches follow.
    ///
    /// # Errors
    /// Failed communication.
    fn ready(&mut self, on: &mut dyn RankEngine, unit: usize, last: bool) -> Result<()>;

    /// All gradients of the step are ready: finishes their exchanges, moves the parameters, and makes them whole again where
    /// ranks keep them whole.
    ///
    /// # Errors
    /// Failed communication.
    fn update(&mut self, on: &mut dyn RankEngine) -> Result<()>;
}

/// Which way a pass goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Forward,
    /// Backward; whether the gradients of this micro-batch are the last of the step.
    Backward {
        last: bool,
    },
}

/// Runs the first of these phases, and tells `sharing` which units the pass needs, leaves, and has gradients of. The gradients of
/// units of which a phase of the second list comes `later`, and of units that several stages hold, are not ready: the latter wait
/// for [`finish`].
pub(super) fn pass(
    on: &mut dyn RankEngine,
    sharing: &mut dyn DataSharing,
    (phases, later): (&[Phase], &[Phase]),
    slot: Slot,
    way: Way,
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
                sharing.done(on, left, way == Way::Forward);
            }
            let ahead = units[at..].iter().flatten().copied().find(|next| *next != unit);
            sharing.need(on, unit, ahead)?;
            inside = Some(unit);
        }
        on.run(phase, slot)?;
        if let (Some(unit), Way::Backward { last }) = (units[at], way)
            && grads(at)
            && !(at + 1..phases.len()).any(|later| units[later] == Some(unit) && grads(later))
            && !unready.contains(&Some(unit))
            && !on.is_copied(unit)
        {
            sharing.ready(on, unit, last)?;
        }
    }
    if let Some(left) = inside {
        sharing.done(on, left, way == Way::Forward);
    }
    Ok(())
}

/// The end of a step: gradients of units that several stages hold become the sums of theirs, then the parameters move.
pub(super) fn finish(on: &mut dyn RankEngine, sharing: &mut dyn DataSharing) -> Result<()> {
    for unit in 0..on.units().len() {
        if on.is_copied(unit) {
            on.sum_copies(unit)?;
            sharing.ready(on, unit, true)?;
        }
    }
    sharing.update(on)
}

/// The units of all of these layers, one for each block, kept alike.
pub(super) fn units_of(blocks: &[Range<usize>], keep: Keep) -> Vec<ParamUnit> {
    blocks.iter().map(|layers| ParamUnit { layers: layers.clone(), keep }).collect()
}
