//! Optimisers on a device: one launch for all parameters, or two if some have narrow copies. LARS launches matrices and vectors
//! separately, and needs one more launch for the norms.

use super::weights::Weights;
use crate::optim::Optimiser;
use crate::{Config, Error, Network, Result};
use allfold_kernels::DType;
use allfold_kernels::cuda::launch::{self, AdamRule, LarsRule, Param, Params, SgdRule};
use allfold_kernels::cuda::{Memory, Queue, Slice};
use allfold_kernels::nn::Float;
use std::sync::Arc;

enum Kind {
    Sgd,
    Adam { decoupled: bool },
    Lars,
}

/// The memory and the tables of an optimiser.
pub(super) struct DeviceOptimiser {
    kind: Kind,
    /// The first and second moment of Adam; for other optimisers, none and the velocity, if they have one.
    states: [Option<Arc<Memory>>; 2],
    /// The table of each launch: f32 parameters or those with a narrow copy; and whether these parameters have adaptive rates.
    tables: Vec<(Params<'static>, bool)>,
    /// The number of steps taken.
    pub steps: u64,
}

impl DeviceOptimiser {
    pub fn new(
        config: &Config,
        network: &Network<f32>,
        weights: &Weights,
        queue: &Queue,
    ) -> Result<DeviceOptimiser> {
        let kind = match config.optimiser.as_str() {
            "sgd" => Kind::Sgd,
            "adam" => Kind::Adam { decoupled: false },
            "adamw" => Kind::Adam { decoupled: true },
            "lars" => Kind::Lars,
            other => {
                return Err(Error::Config(format!(
                    "optimiser `{other}` has no GPU kernel; set device = \"cpu\" or another `optimiser`"
                )));
            }
        };
        let state = |wanted: bool| -> Result<Option<Arc<Memory>>> {
            if !wanted {
                return Ok(None);
            }
            let memory = Memory::new(queue.machine(), queue.device(), weights.params.len())?;
            queue.fill(memory.all(), 0)?;
            Ok(Some(Arc::new(memory)))
        };
        let (adam, lars) = (matches!(kind, Kind::Adam { .. }), matches!(kind, Kind::Lars));
        let states = [state(adam)?, state(adam || lars || config.momentum != 0.0)?];
        let mut tables = Vec::new();
        let mut owners = vec![weights.params.clone(), weights.grads.clone()];
        owners.extend(states.iter().flatten().cloned());
        owners.extend(weights.narrow.iter().map(|(_, memory)| memory.clone()));
        // Whether a parameter has a rate of its own.
        let own = |param: usize| lars && network.params()[param].shape.len() > 1;
        let trained = |narrow: bool, apart: bool| {
            let all = (0..network.params().len()).filter(move |param| weights.narrowed[*param] == narrow);
            all.filter(move |param| weights.slot(*param).is_some() && own(*param) == apart)
        };
        for (narrow, apart) in [(false, false), (false, true), (true, false), (true, true)] {
            let list = trained(narrow, apart)
                .map(|param| row(weights, &states, param, narrow))
                .collect::<Result<Vec<_>>>()?;
            let dtype = weights.narrow.as_ref().filter(|_| narrow).map_or(DType::F32, |(dtype, _)| *dtype);
            if !list.is_empty() {
                tables.push((Params::new(queue, dtype, &list)?.owning(owners.clone())?, apart));
            }
        }
        Ok(DeviceOptimiser { kind, states, tables, steps: 0 })
    }

    /// Queues a step, which changes nothing if the flag `skip` is set on the device when it runs. `factor` scales gradients.
    pub fn step(
        &self,
        config: &Config,
        lr: f64,
        factor: f32,
        skip: Option<Slice<'_>>,
        queue: &Queue,
    ) -> Result<()> {
        for (table, own) in &self.tables {
            match self.kind {
                Kind::Sgd => {
                    let rule = SgdRule {
                        lr: lr as f32,
                        momentum: config.momentum as f32,
                        decay: config.weight_decay as f32,
                        factor,
                        first: u32::from(self.steps == 0),
                        nesterov: u32::from(config.nesterov),
                    };
                    launch::sgd(queue, table, rule, skip)?;
                }
                Kind::Adam { decoupled } => {
                    let (betas, decay) = ((config.beta1, config.beta2), config.weight_decay);
                    let rule = AdamRule::new(self.steps + 1, lr, betas, config.eps, decay, decoupled);
                    launch::adam(queue, table, AdamRule { factor, ..rule }, skip)?;
                }
                Kind::Lars => {
                    let (decay, trust, momentum) =
                        (config.weight_decay, config.trust, config.momentum as f32);
                    let own = u32::from(*own);
                    let rule = LarsRule { lr, decay, trust, momentum, factor, own, unused: 0 };
                    launch::lars(queue, table, rule, skip)?;
                }
            }
        }
        Ok(())
    }

    /// The bytes of the optimiser's state on the device.
    pub fn bytes(&self) -> u64 {
        self.states.iter().flatten().map(|state| state.len() as u64).sum()
    }

    /// Copies the optimiser's state into a CPU optimiser of the same kind, which a checkpoint stores.
    pub fn save<F: Float>(
        &self,
        network: &Network<f32>,
        weights: &Weights,
        queue: &Queue,
        into: &mut dyn Optimiser<F>,
    ) -> Result<()> {
        let state = into.state();
        *state.steps = self.steps;
        for ((_, values), memory) in state.vectors.into_iter().zip(self.states.iter().flatten()) {
            values.clear();
            if self.steps > 0 {
                values.resize(network.param_count(), F::ZERO);
                weights.read_like_params(network, queue, memory, values)?;
            }
        }
        Ok(())
    }

    /// Loads the optimiser's state from a CPU optimiser of the same kind, as read from a checkpoint.
    pub fn load<F: Float>(
        &mut self,
        network: &Network<f32>,
        weights: &Weights,
        queue: &Queue,
        from: &mut dyn Optimiser<F>,
    ) -> Result<()> {
        let state = from.state();
        self.steps = *state.steps;
        for ((_, values), memory) in state.vectors.into_iter().zip(self.states.iter().flatten()) {
            if !values.is_empty() {
                weights.write_like_params(network, queue, memory, values)?;
            }
        }
        Ok(())
    }
}

/// Builds the optimiser's table entry of a parameter: its weights, its gradient, its f32 master copy and its optimiser state.
fn row<'w>(
    weights: &'w Weights,
    states: &'w [Option<Arc<Memory>>; 2],
    param: usize,
    narrow: bool,
) -> Result<Param<'w>> {
    let place = weights.place(param);
    let of = |memory: &'w Option<Arc<Memory>>| {
        memory.as_ref().map(|memory| super::weights::part(memory.all(), place, 4)).transpose()
    };
    let grad = weights.grad(param)?;
    let grad = grad.ok_or_else(|| Error::Network(format!("parameter {param} has no gradient")))?;
    Ok(Param {
        param: weights.read(param, narrow)?,
        grad,
        master: if narrow { Some(weights.param(param)?) } else { None },
        m: of(&states[0])?,
        v: of(&states[1])?,
    })
}
