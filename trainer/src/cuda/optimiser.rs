//! Optimisers on a device, over this rank's parts of its units: one launch for all parameters, or two launches if some have narrow
//! copies. LARS launches matrices and vectors separately, and needs one more launch for the norms.

use super::groups::GpuGroups;
use super::spans::{part, zeroed};
use super::unit::UnitMemory;
use super::weights::{Weights, here, whole_of};
use crate::engine::part_of;
use crate::optim::Optimiser;
use crate::{Config, Error, Network, ParamLayout, Result};
use allfold_collectives::ReduceOp;
use allfold_cuda::launch::{self, AdamRule, LarsNorms, LarsRule, Param, Params, SgdRule, StepReads};
use allfold_cuda::{Memory, Queue};
use allfold_gpu::device::DeviceGroup;
use allfold_kernels::DType;
use allfold_kernels::nn::Float;
use std::ops::Range;
use std::sync::Arc;

enum Kind {
    Sgd,
    Adam { decoupled: bool },
    Lars,
}

impl Kind {
    fn of(config: &Config) -> Result<Kind> {
        match config.optimiser.name.as_str() {
            "sgd" => Ok(Kind::Sgd),
            "adam" => Ok(Kind::Adam { decoupled: false }),
            "adamw" => Ok(Kind::Adam { decoupled: true }),
            "lars" => Ok(Kind::Lars),
            other => Err(Error::Config(format!(
                "optimiser `{other}` has no GPU kernel; set device = \"cpu\" or another `optimiser.name`"
            ))),
        }
    }
}

/// The parameters of a launch.
struct Table {
    params: Params<'static>,
    /// Whether the parameters have rates of their own.
    apart: bool,
    /// The number of each parameter, if ranks share parameters and the parameters have rates of their own.
    numbers: Option<Memory>,
}

impl Table {
    fn norms<'t>(&'t self, totals: Option<&'t Memory>) -> Option<LarsNorms<'t>> {
        Some(LarsNorms { numbers: self.numbers.as_ref()?.all(), totals: totals?.all() })
    }
}

/// The memory and the tables of an optimiser.
pub(super) struct DeviceOptimiser {
    kind: Kind,
    /// For each unit, over this rank's part: Adam's first and second moment; for other optimisers, `None` and the velocity, if there is
    /// one.
    states: Vec<[Option<Arc<Memory>>; 2]>,
    /// The table of each launch: f32 parameters or those with a narrow copy.
    tables: Vec<Table>,
    /// For LARS, if ranks share parameters: the norms of all parameters.
    totals: Option<Memory>,
    /// The number of steps taken.
    pub steps: u64,
}

impl DeviceOptimiser {
    /// The optimiser of `config` for this rank's parts of its units, whose memory is allocated. If ranks share parameters, `counts`
    /// says whether this rank's elements of a parameter count in its norm.
    pub fn new(
        config: &Config,
        network: &Network<f32>,
        weights: &Weights,
        counts: Option<&dyn Fn(usize) -> bool>,
        queue: &Queue,
    ) -> Result<DeviceOptimiser> {
        let kind = Kind::of(config)?;
        let state = |wanted: bool, elements: usize| -> Result<Option<Arc<Memory>>> {
            if !wanted {
                return Ok(None);
            }
            Ok(Some(Arc::new(zeroed(queue, 4 * elements)?)))
        };
        let (adam, lars) = (matches!(kind, Kind::Adam { .. }), matches!(kind, Kind::Lars));
        let second = adam || lars || config.optimiser.momentum != 0.0;
        let states = weights.units.iter().map(|unit| {
            let elements = unit.own.len();
            Ok([state(adam, elements)?, state(second, elements)?])
        });
        let states: Vec<_> = states.collect::<Result<_>>()?;
        let mut owners: Vec<Arc<Memory>> = states.iter().flatten().flatten().cloned().collect();
        for unit in &weights.units {
            owners.extend(unit.own_params().0.into_iter().chain(unit.own_grads().0).cloned());
            owners.extend(unit.narrow.clone());
        }
        let mut tables = Vec::new();
        // Whether a parameter has a rate of its own.
        let own = |param: usize| lars && network.params()[param].shape.len() > 1;
        // A rank with a part of the parameters writes no narrow copies: these are made when the whole is gathered.
        let narrows =
            |param: usize, unit: usize| weights.narrowed[param] && weights.units[unit].narrow.is_some();
        for (narrow, apart) in [(false, false), (false, true), (true, false), (true, true)] {
            let (mut list, mut numbers) = (Vec::new(), Vec::new());
            for param in (0..network.params().len()).filter(|param| own(*param) == apart) {
                if let Some((unit, span, grad)) = weights.own(param)
                    && narrows(param, unit) == narrow
                {
                    list.push(row(
                        (&weights.units[unit], &states[unit]),
                        (span, grad),
                        weights.narrow,
                        narrow,
                    )?);
                    let counted = counts.is_none_or(|counts| counts(param));
                    numbers.push(param as u32 | if counted { 0 } else { LarsNorms::UNCOUNTED });
                }
            }
            let dtype = weights.narrow.filter(|_| narrow).unwrap_or(DType::F32);
            if !list.is_empty() {
                let params = Params::new(queue, dtype, &list)?.owning(owners.clone())?;
                let numbers = if apart && counts.is_some() { Some(queue.upload(&numbers)?) } else { None };
                tables.push(Table { params, apart, numbers });
            }
        }
        let totals = match counts {
            Some(_) if lars => Some(zeroed(queue, 16 * network.params().len())?),
            _ => None,
        };
        Ok(DeviceOptimiser { kind, states, tables, totals, steps: 0 })
    }

    /// If ranks share parameters and the optimiser needs the norms of whole ones, queues their computation. `holders`: the ranks
    /// that update parameters, of which each must call it.
    pub fn share_norms(
        &self,
        factor: f32,
        reads: StepReads<'_>,
        queue: &Queue,
        holders: &mut DeviceGroup<'_>,
    ) -> Result<()> {
        let Some(totals) = &self.totals else { return Ok(()) };
        queue.fill(totals.all(), 0)?;
        for table in &self.tables {
            if let Some(norms) = table.norms(Some(totals)) {
                launch::lars_norms(queue, &table.params, factor, norms, reads)?;
            }
        }
        holders.all_reduce(queue, DType::F64, ReduceOp::Sum, totals.all())?;
        Ok(holders.join(queue)?)
    }

    /// Queues a step by what it `reads` on the device when it runs. `factor` scales gradients.
    pub fn step(
        &self,
        config: &Config,
        lr: f64,
        factor: f32,
        reads: StepReads<'_>,
        queue: &Queue,
    ) -> Result<()> {
        for table in &self.tables {
            let params = &table.params;
            match self.kind {
                Kind::Sgd => {
                    let rule = SgdRule {
                        lr: lr as f32,
                        momentum: config.optimiser.momentum as f32,
                        decay: config.optimiser.weight_decay as f32,
                        factor,
                        first: u32::from(self.steps == 0),
                        nesterov: u32::from(config.optimiser.nesterov),
                    };
                    launch::sgd(queue, params, rule, reads)?;
                }
                Kind::Adam { decoupled } => {
                    let (betas, decay) =
                        ((config.optimiser.beta1, config.optimiser.beta2), config.optimiser.weight_decay);
                    let rule =
                        AdamRule::new(self.steps + 1, lr, betas, config.optimiser.eps, decay, decoupled);
                    launch::adam(queue, params, AdamRule { factor, ..rule }, reads)?;
                }
                Kind::Lars => {
                    let (decay, trust, momentum) = (
                        config.optimiser.weight_decay,
                        config.optimiser.trust,
                        config.optimiser.momentum as f32,
                    );
                    let own = u32::from(table.apart);
                    let rule = LarsRule { lr, decay, trust, momentum, factor, own, unused: 0 };
                    launch::lars(queue, params, rule, table.norms(self.totals.as_ref()), reads)?;
                }
            }
        }
        Ok(())
    }

    /// The bytes of the optimiser's state on the device.
    pub fn bytes(&self) -> u64 {
        self.states.iter().flatten().flatten().map(|state| state.len() as u64).sum()
    }

    /// The vectors of state, in the layout of this rank's network, as a CPU optimiser of the same kind has them; empty before the first
    /// step. Where ranks have parts, every rank must call it.
    pub fn save<F: Float>(
        &self,
        (network, weights): (&Network<f32>, &Weights),
        (queue, groups): (&Queue, &mut GpuGroups<'_>),
    ) -> Result<Vec<Vec<F>>> {
        let mut vectors = Vec::new();
        for number in self.kept() {
            let mut values = Vec::new();
            if self.steps > 0 {
                values.resize(network.param_count(), F::ZERO);
                for (at, (unit, states)) in weights.units.iter().zip(&self.states).enumerate() {
                    let whole = whole_of((at, unit), states[number].as_ref(), queue, groups)?;
                    groups.world.wait(queue, "gather the optimiser's state")?;
                    weights.put_unit(network, at, &queue.download::<f32>(whole.all())?, &mut values);
                }
            }
            vectors.push(values);
        }
        Ok(vectors)
    }

    /// Loads the optimiser's state from a CPU optimiser of the same kind, as read from a checkpoint; `layout` is that of this rank's
    /// elements, if the rank does not have all elements.
    pub fn load<F: Float>(
        &mut self,
        (network, weights): (&Network<f32>, &Weights),
        queue: &Queue,
        from: &mut dyn Optimiser<F>,
        layout: Option<&ParamLayout>,
    ) -> Result<()> {
        let state = from.state();
        self.steps = *state.steps;
        for (number, (_, values)) in self.kept().into_iter().zip(state.vectors) {
            let values = part_of(values, layout);
            for (at, (unit, states)) in weights.units.iter().zip(&self.states).enumerate() {
                if !values.is_empty() {
                    let flat = weights.to_unit(network, at, &values);
                    queue.write(here(&states[number])?.all(), &flat[unit.own.clone()])?;
                }
            }
        }
        Ok(())
    }

    /// The vectors of state that this optimiser keeps, by number.
    fn kept(&self) -> Vec<usize> {
        let first = self.states.first();
        (0..2).filter(|number| first.is_some_and(|states| states[*number].is_some())).collect()
    }
}

/// Builds the optimiser's table entry of the elements `span` of a unit, with gradients `grad`: weights, gradient, f32 master copy and
/// optimiser state.
fn row<'w>(
    (unit, states): (&'w UnitMemory, &'w [Option<Arc<Memory>>; 2]),
    (span, grad): (Range<usize>, Range<usize>),
    narrow_type: Option<DType>,
    narrow: bool,
) -> Result<Param<'w>> {
    let cut = |(memory, from): (Option<&'w Arc<Memory>>, usize), span: &Range<usize>| {
        memory.map(|memory| part(memory.all(), &(span.start - from..span.end - from), 4)).transpose()
    };
    let missing = || Error::Strategy("an optimiser needs its unit's parameters and gradients".into());
    let params = cut(unit.own_params(), &span)?.ok_or_else(missing)?;
    let size = narrow_type.map_or(4, DType::size);
    Ok(Param {
        param: if narrow { part(here(&unit.narrow)?.all(), &span, size)? } else { params },
        grad: cut(unit.own_grads(), &grad)?.ok_or_else(missing)?,
        master: narrow.then_some(params),
        m: cut((states[0].as_ref(), unit.own.start), &span)?,
        v: cut((states[1].as_ref(), unit.own.start), &span)?,
    })
}
