//! A network with its values: all parameters in one vector, all buffers in another; and its evaluation.

mod activations;
mod buffer_pool;
mod pass;

pub(crate) use activations::{Activations, Arithmetic, LayerPass};
pub(crate) use pass::Objective;
pub use pass::{DrawKey, MemoryUse};

use crate::amp::Autocast;
use crate::init::{initial, zeros};
use crate::layers::NoPeers;
use crate::{Batch, Network, ParamSpec, Result};
use allfold_kernels::nn::{Float, Narrow, OpCost};

/// A network with parameters and buffers. A [`RankTrainer`](crate::RankTrainer) trains them.
pub struct Model<F: Float> {
    network: Network<F>,
    /// All parameters, one after another, as [`Network::params`] lays them out.
    pub params: Vec<F>,
    /// All buffers, one after another, as [`Network::buffers`] lays them out.
    pub buffers: Vec<F>,
    pass: Activations<F>,
    on: Arithmetic<F>,
}

impl<F: Float> Model<F> {
    /// The network with initial values drawn from `seed`.
    ///
    /// # Errors
    /// If its parameters do not fit in memory.
    pub fn new(network: Network<F>, seed: u64) -> Result<Model<F>> {
        Model::with(network, |places| initial(places, seed))
    }

    /// A model of zeros, for a rank that is about to get the weights of another.
    pub(crate) fn zeros(network: Network<F>) -> Result<Model<F>> {
        Model::with(network, zeros)
    }

    fn with(network: Network<F>, values: impl Fn(&[ParamSpec]) -> Result<Vec<F>>) -> Result<Model<F>> {
        Ok(Model {
            params: values(network.params())?,
            buffers: values(network.buffers())?,
            pass: Activations::new(network.layers().len()),
            on: Arithmetic::new(),
            network,
        })
    }

    /// Runs autocast's operations in `narrow`; the parameters keep their type.
    pub fn autocast(&mut self, narrow: Narrow) {
        self.on.amp = Autocast::new(narrow, &self.network);
    }

    /// The model's network: layers and the layout of parameters.
    pub fn network(&self) -> &Network<F> {
        &self.network
    }

    /// One parameter's values.
    pub fn param(&self, param: usize) -> &[F] {
        &self.params[self.network.params()[param].range.clone()]
    }

    /// (Sum of losses, correct answers) over a batch. Batch norms use running statistics; nothing is saved for a backward pass.
    pub fn evaluate(&mut self, batch: &Batch<F>, mut on_cost: impl FnMut(OpCost)) -> (F, u64) {
        let (network, n) = (&self.network, batch.x.len() / self.network.inputs().max(1));
        self.pass.load(&mut self.on.pool, &batch.x);
        for l in 0..network.layers().len() {
            let params = &self.params[network.values_of(l)];
            let buffers = &mut self.buffers[network.buffers_of(l)];
            let draw_key = DrawKey::default();
            let pass = LayerPass { n, train: false, params, buffers, draw_key, peers: &mut NoPeers };
            self.pass.forward(&mut self.on, network, l, pass);
            on_cost(network.layers()[l].cost(n).evaluate);
        }
        let (loss, logits) = (network.loss(), self.logits());
        (loss.sum(logits, &batch.labels), loss.correct(logits, &batch.labels))
    }

    /// The logits of the last batch that was evaluated, one row per label.
    pub fn logits(&self) -> &[F] {
        self.pass.act(&self.network, self.network.layers().len())
    }

    /// Gives memory to parameters and buffers that [`Model::free`] has freed.
    #[cfg(feature = "cuda")]
    pub(crate) fn allocate(&mut self) {
        self.params.resize(self.network.param_count(), F::ZERO);
        self.buffers.resize(self.network.buffer_count(), F::ZERO);
    }

    /// Frees parameters, buffers and activations; only the network stays.
    pub(crate) fn free(&mut self) {
        (self.params, self.buffers) = (Vec::new(), Vec::new());
        self.pass = Activations::new(self.network.layers().len());
        self.on.pool = Default::default();
    }
}

#[cfg(test)]
mod tests;
