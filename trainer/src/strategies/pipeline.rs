//! Pipeline parallelism: every stage holds some of the layers, and the micro-batches of a step are in flight between them.
//!
//! ```text
//! stage 0   F0 F1 F2 .. B0 F3 B1 ..            sends activations to stage 1, receives their gradients
//! stage 1      F0 F1 B0 F2 B1 ..
//! stage 2         F0 B0 F1 B1 ..               has the loss
//! ```
//!
//! A [`PipelineSchedule`] gives the order. Layers are cut where a single activation crosses, by cost or at the layers that the
//! configuration names. A parameter that layers of two stages share, such as a tied embedding, is held by both: its gradient is the
//! sum of both, so that both copies stay equal.

use super::driver::{DataSharing, Driver, PassDirection, finish, pass};
use crate::engine::{AxisPosition, Boundary, Keep, Mesh, MeshAxis, ParamUnit, RankEngine, Route, Slot};
use crate::pipeline::{Action, BoundaryChannels, PipelineSchedule, channels};
use crate::{Config, Error, Outline, Result};
use allfold_config::ScheduleName;
use std::ops::Range;

/// A stage of a pipeline.
pub struct PipelineDriver {
    sharing: Box<dyn DataSharing>,
    schedule: PipelineSchedule,
    split: Vec<String>,
    place: AxisPosition,
    micros: usize,
    actions: Vec<Action>,
    /// For each chunk: the channels of the messages between it and the previous chunk, if that is on another stage.
    channels: Vec<Option<BoundaryChannels>>,
    /// For each micro-batch of the step: the number of this stage's chunks whose gradients are complete.
    done: Vec<usize>,
}

/// The schedule that `config` selects.
fn schedule(config: &Config) -> PipelineSchedule {
    match config.parallel.schedule {
        ScheduleName::Gpipe => PipelineSchedule::GPipe,
        ScheduleName::OneFOneB => PipelineSchedule::OneFOneB,
        ScheduleName::Interleaved => PipelineSchedule::Interleaved { chunks: config.parallel.chunks },
        ScheduleName::ZbH1 => PipelineSchedule::ZbH1,
        ScheduleName::ZbV => PipelineSchedule::ZbV,
    }
}

/// Checks that the schedule and the split of `config` can be used with the stages of `mesh`.
///
/// # Errors
/// The key that is wrong, and what would be right.
pub(super) fn fits(config: &Config, mesh: Mesh) -> Result<()> {
    let schedule = schedule(config);
    schedule.actions(0, mesh.pipeline, config.training.accumulate).map_err(|what| {
        Error::Config(format!(
            "{what} (`training.accumulate` is the number of micro-batches, `parallel.stages` that of stages)"
        ))
    })?;
    let (named, chunks) = (config.parallel.split.len(), schedule.chunks(mesh.pipeline));
    if named > 0 && named + 1 != chunks {
        return Err(Error::Config(format!(
            "`parallel.split` names {named} layers and the pipeline has {chunks} chunks; name {}",
            chunks - 1
        )));
    }
    Ok(())
}

impl PipelineDriver {
    /// The stage at `place` of the pipeline that `config` selects.
    ///
    /// # Errors
    /// A schedule that does not allow this number of stages or micro-batches.
    pub fn new(
        config: &Config,
        place: AxisPosition,
        sharing: Box<dyn DataSharing>,
    ) -> Result<PipelineDriver> {
        let (schedule, micros) = (schedule(config), config.training.accumulate);
        let actions = schedule.actions(place.index, place.size, micros).map_err(Error::Config)?;
        let (split, channels) = (config.parallel.split.clone(), channels(schedule, place.size));
        Ok(PipelineDriver { sharing, schedule, split, place, micros, actions, channels, done: Vec::new() })
    }

    /// The number of communicators that carry messages.
    pub fn channels(&self) -> usize {
        let numbers =
            self.channels.iter().flatten().map(|channels| channels.forward.max(channels.backward) + 1);
        numbers.max().unwrap_or(0)
    }

    fn is_own(&self, chunk: usize) -> bool {
        self.schedule.stage_of(chunk, self.place.size) == self.place.index
    }

    fn chunks(&self, outline: &Outline) -> Result<Vec<Range<usize>>> {
        Ok(match self.split.is_empty() {
            true => outline.chunks(self.schedule.chunks(self.place.size))?,
            false => outline.chunks_from(&self.split)?,
        })
    }

    /// The route across the boundary before `chunk`, to chunk `peer` on one side of it; `None` if both chunks are on one stage.
    fn route(&self, chunk: usize, peer: usize, backward: bool) -> Option<Route> {
        let channels = (*self.channels.get(chunk)?)?;
        let channel = if backward { channels.backward } else { channels.forward };
        let peer = self.schedule.stage_of(peer, self.place.size);
        Some(Route { axis: MeshAxis::Pipeline, peer, channel })
    }

    /// The message that an action waits for, and the message that it sends afterwards, each with its route.
    fn messages(
        &self,
        action: Action,
        outline: &Outline,
        chunks: &[Range<usize>],
    ) -> [Option<(Boundary, Route)>; 2] {
        let chunk = action.chunk();
        let (start, end) = (chunks[chunk].start, chunks[chunk].end);
        let below = |backward| chunk.checked_sub(1).and_then(|peer| self.route(chunk, peer, backward));
        let above = |backward| self.route(chunk + 1, chunk + 1, backward);
        match action {
            Action::Forward { .. } => [
                below(false).map(|route| (Boundary::Activation(start), route)),
                above(false).map(|route| (Boundary::Activation(end), route)),
            ],
            Action::Backward { .. } | Action::InputGrad { .. } => [
                above(true)
                    .filter(|_| outline.has_gradient(end))
                    .map(|route| (Boundary::Gradient(end), route)),
                below(true)
                    .filter(|_| outline.has_gradient(start))
                    .map(|route| (Boundary::Gradient(start), route)),
            ],
            Action::WeightGrad { .. } => [None, None],
        }
    }

    /// Runs an action of this stage.
    fn act(&mut self, on: &mut dyn RankEngine, action: Action, chunks: &[Range<usize>]) -> Result<()> {
        let outline = on.outline();
        let (chunk, micro) = (action.chunk(), action.micro());
        let (slot, layers) = (Slot(micro), chunks[chunk].clone());
        let [receive, send] = self.messages(action, &outline, chunks);
        // Only this stage's first chunk loads the micro-batch.
        if matches!(action, Action::Forward { .. }) && chunk < self.place.size {
            on.load(micro, self.micros, slot)?;
        }
        if let Some((what, from)) = receive {
            on.receive(what, slot, from)?;
        }
        let sharing = &mut *self.sharing;
        let direction = PassDirection::Backward { last: micro + 1 == self.micros };
        match action {
            Action::Forward { .. } => {
                pass(on, sharing, (&outline.forward(&layers), &[]), slot, PassDirection::Forward)?;
            }
            Action::Backward { .. } => {
                pass(on, sharing, (&outline.backward(&layers, true), &[]), slot, direction)?;
            }
            Action::InputGrad { .. } => {
                let (now, later) = (outline.backward(&layers, false), outline.deferred(&layers));
                pass(on, sharing, (&now, &later), slot, direction)?;
            }
            Action::WeightGrad { .. } => {
                pass(on, sharing, (&outline.deferred(&layers), &[]), slot, direction)?;
            }
        }
        if let Some((what, to)) = send {
            on.send(what, slot, to)?;
        }
        if matches!(action, Action::Backward { .. } | Action::WeightGrad { .. }) {
            self.done[micro] += 1;
            if self.done[micro] == chunks.len() / self.place.size {
                on.forget(slot);
            }
        }
        Ok(())
    }
}

impl Driver for PipelineDriver {
    fn units(&self, outline: &Outline) -> Result<Vec<ParamUnit>> {
        let chunks = self.chunks(outline)?;
        let own =
            || (0..chunks.len()).filter(|chunk| self.is_own(*chunk)).flat_map(|chunk| chunks[chunk].clone());
        let mut units = Vec::new();
        for (chunk, layers) in chunks.iter().enumerate() {
            for block in outline.blocks(layers) {
                let is_shared = own().any(|layer| block.contains(&outline.owner(layer)));
                let keep = if self.is_own(chunk) || is_shared { self.sharing.keep() } else { Keep::Nothing };
                units.push(ParamUnit { layers: block, keep });
            }
        }
        Ok(units)
    }

    fn step(&mut self, on: &mut dyn RankEngine) -> Result<()> {
        let chunks = self.chunks(&on.outline())?;
        self.done = vec![0; self.micros];
        for at in 0..self.actions.len() {
            let action = self.actions[at];
            self.act(on, action, &chunks)?;
        }
        finish(on, &mut *self.sharing)
    }
}
