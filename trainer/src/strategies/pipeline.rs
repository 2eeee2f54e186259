//! Pipeline parallelism: every stage holds some of the layers, and the micro-batches of a step are in flight between them.
//!
//! ```text
//! stage 0   F0 F1 F2 .. B0 F3 B1 ..            sends activations to stage 1, receives gradients by them
//! stage 1      F0 F1 B0 F2 B1 ..
//! stage 2         F0 B0 F1 B1 ..               has the loss
//! ```
//!
//! The order is a [`StageSchedule`]'s. Layers are cut where a single activation crosses, by cost or at the layers that the
//! configuration names. A parameter that layers of two stages share, such as a tied embedding, is held by both: its gradient is the
//! sum of both, so that both copies stay equal.

use super::driver::{DataSharing, Driver, Way, finish, pass};
use crate::config::PipelineSchedule;
use crate::engine::{AxisPosition, Boundary, Keep, Mesh, MeshAxis, ParamUnit, RankEngine, Route, Slot};
use crate::pipeline::{Action, StageMessage, StageSchedule};
use crate::{Config, Error, Outline, Result};
use std::ops::Range;

/// A stage of a pipeline.
pub struct PipelineDriver {
    sharing: Box<dyn DataSharing>,
    schedule: StageSchedule,
    split: Vec<String>,
    place: AxisPosition,
    micros: usize,
    actions: Vec<Action>,
}

/// The schedule that `config` asks for.
fn schedule(config: &Config) -> StageSchedule {
    match config.parallel.schedule {
        PipelineSchedule::Gpipe => StageSchedule::GPipe,
        PipelineSchedule::OneFOneB => StageSchedule::OneFOneB,
        PipelineSchedule::Interleaved => StageSchedule::Interleaved { chunks: config.parallel.chunks },
        PipelineSchedule::ZbH1 => StageSchedule::ZbH1,
    }
}

/// Whether the schedule and the split of `config` go with the stages of `mesh`.
///
/// # Errors
/// If they do not, with what would.
pub(super) fn fits(config: &Config, mesh: Mesh) -> Result<()> {
    if config.strategy != "pipeline" {
        return Ok(());
    }
    let schedule = schedule(config);
    schedule.fits(mesh.pipeline, config.accumulate).map_err(|what| {
        Error::Config(format!(
            "{what} (micro-batches: `accumulate`; stages: `parallel.stages`; `parallel.chunks`)"
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
    /// The stage at `place` of the pipeline that `config` asks for.
    ///
    /// # Errors
    /// A schedule that does not take so many stages or micro-batches.
    pub fn new(
        config: &Config,
        place: AxisPosition,
        sharing: Box<dyn DataSharing>,
    ) -> Result<PipelineDriver> {
        let (schedule, micros) = (schedule(config), config.accumulate);
        let actions = schedule.actions(place.index, place.size, micros).map_err(Error::Config)?;
        Ok(PipelineDriver { sharing, schedule, split: config.parallel.split.clone(), place, micros, actions })
    }

    /// Communicators that carry messages.
    pub fn channels(&self) -> usize {
        if self.place.size > 1 { self.schedule.channels(self.place.size) } else { 0 }
    }

    fn chunks(&self, outline: &Outline) -> Result<Vec<Range<usize>>> {
        Ok(match self.split.is_empty() {
            true => outline.chunks(self.schedule.chunks(self.place.size))?,
            false => outline.chunks_from(&self.split)?,
        })
    }

    /// The other end of a message.
    fn route(&self, message: StageMessage, sends: bool) -> Route {
        let stages = self.place.size;
        let towards = if sends == message.backward { message.chunk - 1 } else { message.chunk };
        Route {
            axis: MeshAxis::Pipeline,
            peer: towards % stages,
            channel: self.schedule.channel(message, stages),
        }
    }

    /// Runs an action of this stage.
    fn act(&mut self, on: &mut dyn RankEngine, action: Action, chunks: &[Range<usize>]) -> Result<()> {
        let (outline, stages) = (on.outline(), self.place.size);
        let (chunk, micro) = action.place();
        let (slot, layers) = (Slot(micro), chunks[chunk].clone());
        let boundary = |message: StageMessage| match (message.backward, chunks[message.chunk].start) {
            (false, act) => Boundary::Activation(act),
            (true, act) => Boundary::Gradient(act),
        };
        let is_sent =
            |message: &StageMessage| !message.backward || outline.has_gradient(chunks[message.chunk].start);
        let [receive, send] = action.messages(chunks.len(), stages).map(|message| message.filter(is_sent));
        if matches!(action, Action::Forward { .. }) && chunk < stages {
            on.load(micro, self.micros, slot)?;
        }
        if let Some(message) = receive {
            on.receive(boundary(message), slot, self.route(message, false))?;
        }
        let last = micro + 1 == self.micros;
        let sharing = &mut *self.sharing;
        match action {
            Action::Forward { .. } => {
                pass(on, sharing, (&outline.forward(&layers), &[]), slot, Way::Forward)?
            }
            Action::Backward { .. } => {
                pass(on, sharing, (&outline.backward(&layers, true), &[]), slot, Way::Backward { last })?;
            }
            Action::InputGrad { .. } => {
                let (now, later) = (outline.backward(&layers, false), outline.deferred(&layers));
                pass(on, sharing, (&now, &later), slot, Way::Backward { last })?;
            }
            Action::WeightGrad { .. } => {
                pass(on, sharing, (&outline.deferred(&layers), &[]), slot, Way::Backward { last })?;
            }
        }
        if let Some(message) = send {
            on.send(boundary(message), slot, self.route(message, true))?;
        }
        if matches!(action, Action::Backward { .. } | Action::WeightGrad { .. }) && chunk < stages {
            on.forget(slot);
        }
        Ok(())
    }
}

impl Driver for PipelineDriver {
    fn units(&self, outline: &Outline) -> Result<Vec<ParamUnit>> {
        let chunks = self.chunks(outline)?;
        let is_own = |chunk: usize| chunk % self.place.size == self.place.index;
        let own = || (0..chunks.len()).filter(|chunk| is_own(*chunk)).flat_map(|chunk| chunks[chunk].clone());
        let mut units = Vec::new();
        for (chunk, layers) in chunks.iter().enumerate() {
            for block in outline.blocks(layers) {
                let is_shared = own().any(|layer| block.contains(&outline.owner(layer)));
                let keep = if is_own(chunk) || is_shared { self.sharing.keep() } else { Keep::Nothing };
                units.push(ParamUnit { layers: block, keep });
            }
        }
        Ok(units)
    }

    fn step(&mut self, on: &mut dyn RankEngine) -> Result<()> {
        let chunks = self.chunks(&on.outline())?;
        for at in 0..self.actions.len() {
            let action = self.actions[at];
            self.act(on, action, &chunks)?;
        }
        finish(on, &mut *self.sharing)
    }
}
