//! A real network as [`StepCosts`]: the costs of its kernels on a device.

use super::timeline::Timeline;
use super::{DdpOptions, ModeledMachine, SimulatedExchange, StepCosts, StepPrediction};
use allfold_kernels::nn::{Float, OpCost};
use allfold_sim::{Device, Picos};
use allfold_trainer::costs::{accumulate_cost, data_cost, pack_cost, unpack_cost, unscale_cost};
use allfold_trainer::timing::work;
use allfold_trainer::{Config, Network, Optimiser, ParamSpec, Phase, Result, models, optim};

struct Numeric<'a, F> {
    config: &'a Config,
    network: &'a Network<F>,
    optimiser: &'a dyn Optimiser<F>,
    device: Device,
}

pub(super) fn predict<F: Float>(
    config: &Config,
    shape: (usize, usize, usize),
    classes: usize,
    machine: &ModeledMachine,
) -> Result<StepPrediction> {
    let network: Network<F> = models::build(config, shape, classes)?;
    let optimiser = optim::build(config, network.params())?;
    let steps = Numeric { config, network: &network, optimiser: &*optimiser, device: machine.device };
    let rules = DdpOptions {
        batch: config.batch,
        micro_batch: config.micro_batch(config.batch),
        caps: if config.strategy == "single" { None } else { Some(config.caps()) },
        views: true,
        scaler: config.scaler().is_some(),
    };
    let mut exchange = SimulatedExchange::new(machine.topology, machine.costs, machine.sharing, machine.plan);
    Timeline { steps: &steps, rules, exchange: &mut exchange, ranks: machine.topology.ranks() }.step()
}

impl<F: Float> Numeric<'_, F> {
    fn time(&self, cost: OpCost) -> Picos {
        self.device.time(work(cost))
    }
}

impl<F: Float> StepCosts for Numeric<'_, F> {
    fn params(&self) -> &[ParamSpec] {
        self.network.params()
    }
    fn forward_phases(&self) -> Vec<Phase> {
        self.network.forward_phases()
    }
    fn backward_phases(&self) -> Vec<Phase> {
        self.network.backward_phases()
    }
    fn sync_len(&self, phase: Phase) -> usize {
        self.network.sync_len(phase)
    }
    fn takes(&self, phase: Phase, n: usize) -> Picos {
        self.time(self.network.cost(phase, n))
    }
    fn data(&self, n: usize) -> Picos {
        self.time(data_cost::<F>(n * self.network.inputs()))
    }
    fn optimiser(&self) -> Picos {
        let elements = self.network.param_count();
        let mut time = self.time(self.optimiser.cost(elements));
        if self.config.scaler().is_some() {
            time += self.time(unscale_cost::<F>(elements));
        }
        if self.config.clip_norm > 0.0 {
            time += self.time(optim::clip::cost::<F>(elements));
        }
        time
    }
    fn accumulate(&self, elements: usize) -> Picos {
        self.time(accumulate_cost::<F>(elements))
    }
    fn pack(&self, elements: usize) -> Picos {
        self.time(pack_cost::<F>(elements))
    }
    fn unpack(&self, elements: usize) -> Picos {
        self.time(unpack_cost::<F>(elements))
    }
    fn element(&self) -> usize {
        size_of::<F>()
    }
}
