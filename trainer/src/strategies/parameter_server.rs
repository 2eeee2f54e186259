//! A parameter server: servers hold the parameters and the optimiser, workers the samples (M. Li et al., OSDI 2014).
//!
//! ```text
//! server    parameters to every worker |                       gradients of all | step |
//! worker    receive unit 0, 1 ..       | forward | backward, sending gradients  |
//! ```
//!
//! The first ranks are the servers; each has a part of every unit, and the optimiser's state of that part. With `staleness` 0 all
//! workers compute with the same parameters, and a step is that of `ddp`.
//!
//! With `staleness` s a server applies each worker's gradient, divided by the number of workers, as soon as it has arrived, and a
//! worker waits only when it would be more than s steps ahead of the slowest (Q. Ho et al., NIPS 2013). The result depends on the
//! order in which gradients arrive; on virtual time that order is the same in every run.

use super::driver::{DataSharing, Driver, units_of};
use super::plain::Plain;
use crate::engine::{Keep, ParamUnit, RankEngine, ServingRole};
use crate::{Config, Error, Outline, Phase, Result};

/// A worker, which pulls parameters before a pass needs them, and pushes gradients as they become ready.
#[derive(Default)]
struct ServedWorker {
    /// For each unit, whether its parameters were received in this step; empty before the step's first unit.
    pulled: Vec<bool>,
}

impl DataSharing for ServedWorker {
    fn keep(&self) -> Keep {
        Keep::Copy
    }

    fn need(&mut self, on: &mut dyn RankEngine, unit: usize, _ahead: Option<usize>) -> Result<()> {
        if self.pulled.is_empty() {
            let units = on.units().len();
            (0..units).try_for_each(|unit| on.pull(unit))?;
            self.pulled = vec![false; units];
        }
        if !std::mem::replace(&mut self.pulled[unit], true) {
            on.pulled(unit)?;
        }
        Ok(())
    }

    fn ready(&mut self, on: &mut dyn RankEngine, unit: usize, last: bool) -> Result<()> {
        if last { on.push(unit) } else { Ok(()) }
    }

    fn update(&mut self, on: &mut dyn RankEngine) -> Result<()> {
        let pulled = std::mem::take(&mut self.pulled);
        for unit in (0..pulled.len()).filter(|unit| !pulled[*unit]) {
            on.pulled(unit)?;
        }
        on.update()
    }
}

/// The driver of a server.
struct Server {
    staleness: u64,
    /// The number of steps that are done.
    done: u64,
    /// For each worker: the number of gradients that were taken from it, and of times that parameters were sent to it.
    pushed: Vec<u64>,
    served: Vec<u64>,
}

/// The units in the order in which a worker's backward pass completes their gradients.
fn push_order(on: &dyn RankEngine) -> Vec<usize> {
    let outline = on.outline();
    let phases = outline.backward(&(0..outline.layers()), true);
    let weights = phases.into_iter().filter(|phase| matches!(phase, Phase::WeightGrad(_)));
    let units: Vec<usize> = weights.filter_map(|phase| on.unit_of(phase)).collect();
    let lasts = (0..units.len()).filter(|at| !units[at + 1..].contains(&units[*at]));
    lasts.map(|at| units[at]).collect()
}

impl Server {
    fn serve(&mut self, on: &mut dyn RankEngine, worker: usize, order: &[usize]) -> Result<()> {
        (0..on.units().len()).try_for_each(|unit| on.serve(unit, worker))?;
        on.expect(order, worker)?;
        self.served[worker] += 1;
        Ok(())
    }

    /// Does one step with the sum of all workers' gradients.
    fn together(&mut self, on: &mut dyn RankEngine, order: &[usize]) -> Result<()> {
        let workers = 0..self.pushed.len();
        workers.clone().try_for_each(|worker| self.serve(on, worker, order))?;
        workers.clone().try_for_each(|worker| on.take_push(worker))?;
        workers.for_each(|worker| self.pushed[worker] += 1);
        on.apply_pushes()
    }

    /// Updates the parameters with each worker's gradients as they arrive, until all workers have done this step.
    fn as_they_come(&mut self, on: &mut dyn RankEngine, order: &[usize]) -> Result<()> {
        let synchronised_at = self.done + on.steps_left();
        loop {
            let slowest = self.pushed.iter().copied().min().unwrap_or_default();
            for worker in 0..self.pushed.len() {
                let next = self.pushed[worker];
                if self.served[worker] == next && next < synchronised_at && next <= slowest + self.staleness {
                    self.serve(on, worker, order)?;
                }
            }
            if slowest > self.done {
                return Ok(());
            }
            let computing: Vec<usize> =
                (0..self.pushed.len()).filter(|worker| self.served[*worker] > self.pushed[*worker]).collect();
            let worker = on.first_pushed(&computing)?;
            on.take_push(worker)?;
            on.apply_pushes()?;
            self.pushed[worker] += 1;
        }
    }
}

impl Driver for Server {
    fn units(&self, outline: &Outline) -> Result<Vec<ParamUnit>> {
        Ok(units_of(&outline.blocks(&(0..outline.layers())), Keep::Sharded))
    }

    fn step(&mut self, on: &mut dyn RankEngine) -> Result<()> {
        let order = push_order(on);
        match self.staleness {
            0 => self.together(on, &order)?,
            _ => self.as_they_come(on, &order)?,
        }
        self.done += 1;
        Ok(())
    }
}

/// Checks that `config` can be used with `ranks` ranks.
///
/// # Errors
/// The key that is wrong, and what would be right.
pub(super) fn fits(config: &Config, ranks: u32) -> Result<()> {
    let (servers, ranks) = (config.parallel.servers, ranks as usize);
    if servers == 0 || servers >= ranks {
        let right = match ranks {
            1 => "use 2 ranks or more".into(),
            _ => format!("use 1 to {}", ranks - 1),
        };
        return Err(Error::Config(format!(
            "`parallel.servers` is {servers}, and the {ranks} ranks must be servers and at least one worker; {right}"
        )));
    }
    if config.parallel.staleness == 0 {
        return Ok(());
    }
    let refused = [
        (config.model.sync_batch_norm, "`model.sync_batch_norm` is true", "`model.sync_batch_norm` false"),
        (config.optimiser.clip_norm > 0.0, "`optimiser.clip_norm` is set", "no clipping"),
        (config.precision.loss_scale > 0.0, "`precision.loss_scale` is set", "no loss scale"),
    ];
    match refused.iter().find(|(wrong, ..)| *wrong) {
        Some((_, key, right)) => Err(Error::Config(format!(
            "{key}, which needs all workers at once, and `parallel.staleness` is {}; use staleness 0, or {right}",
            config.parallel.staleness
        ))),
        None => Ok(()),
    }
}

/// Checks that servers that have parts of each parameter can step the optimiser of `config`.
///
/// # Errors
/// An optimiser that cannot, and what would be right.
pub(super) fn fits_optimiser(config: &Config) -> Result<()> {
    let parallel = &config.parallel;
    match parallel.servers > 1 && parallel.staleness > 0 && config.optimiser.name == "lars" {
        true => Err(Error::Config(format!(
            "optimiser `lars` needs the norm of each whole parameter, and with `parallel.staleness` {} servers that have parts of it do \
             not step together; use staleness 0, `parallel.servers` 1, or another optimiser",
            parallel.staleness
        ))),
        false => Ok(()),
    }
}

/// The driver of a rank: a server's or a worker's.
pub(super) fn driver(config: &Config, role: ServingRole) -> Box<dyn Driver> {
    let none = vec![0; role.workers];
    let staleness = config.parallel.staleness;
    match role.server {
        Some(_) => Box::new(Server { staleness, done: 0, pushed: none.clone(), served: none }),
        None => Box::new(Plain {
            sharing: Box::new(ServedWorker::default()),
            micro_batches: config.training.accumulate,
        }),
    }
}
