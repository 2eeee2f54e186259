//! Layers: shapes, parameters and costs, with a forward and a backward pass that are written out.
//!
//! A layer is stateless. Its numbers (parameters, running statistics, what the backward pass needs again) live in
//! flat buffers of the trainer's `Model` and are lent to each call:
//!
//! ```text
//!            x[n, inputs]   params   buffers                dy[n, outputs]   saved
//! forward          '-----------+--------'       backward_params      '----------+----> grads  (announced at once)
//!                      y[n, outputs], saved     backward_input    dy, params, grads -> dx[n, inputs]
//! ```
//!
//! The backward pass is in two halves so that a parameter's gradient is known, and can be sent, before the
//! gradient of the input is computed.

mod add;
mod attention;
mod batch_norm;
mod cast;
mod context_parallel;
mod conv;
mod dropout;
mod embedding;
mod layer_norm;
mod linear;
mod operation;
mod peers;
mod pool;
mod tensor_parallel;
mod unit;

pub use add::Add;
pub use attention::Attention;
pub use batch_norm::BatchNorm;
pub use cast::Cast;
pub(crate) use context_parallel::own_positions;
pub use context_parallel::{PositionsPart, RingAttention};
pub use conv::Conv2d;
pub use dropout::Dropout;
pub use embedding::{Embedding, Positions};
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use operation::LayerOperation;
pub use peers::{MeshAxis, NoPeers, Peers};
pub use pool::{GlobalMeanPool, MaxPool, MeanPool};
pub use tensor_parallel::{ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding};
pub use unit::{Elementwise, Gelu, Relu, Unit};

use allfold_kernels::nn::{DropoutStream, Float, OpCost};

/// How a parameter's initial values are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All elements have this value.
    Constant(f64),
    /// Uniform in -bound..bound. With bound 1 / sqrt(fan-in) this is Kaiming's uniform rule with a = sqrt(5),
    /// PyTorch's default for linear and convolutional layers (K. He et al., ICCV 2015).
    Uniform(f64),
    /// Normal with mean 0 and this deviation.
    Normal(f64),
}

/// One parameter, or one buffer, of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// `weight`, `bias`, `running_mean`, ...
    pub name: &'static str,
    /// The tensor's dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The tensor's initial values.
    pub init: Init,
}

impl Tensor {
    /// A tensor of this name, shape and start.
    pub fn new(name: &'static str, shape: &[usize], init: Init) -> Tensor {
        Tensor { name, shape: shape.to_vec(), init }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a forward pass saves for the backward pass.
#[derive(Clone, Debug)]
pub struct SavedTensors<F> {
    /// Numbers.
    pub values: Vec<F>,
    /// Positions.
    pub places: Vec<u32>,
}

/// What a forward pass reads and writes.
pub struct Forward<'a, F> {
    /// Samples.
    pub n: usize,
    /// Whether this is training: batch norms then normalise by the batch and update running statistics. Otherwise it is
    /// evaluation.
    pub train: bool,
    /// The layer's parameters, one after another.
    pub params: &'a [F],
    /// The layer's buffers, one after another.
    pub buffers: &'a mut [F],
    /// Input, n x inputs.
    pub x: &'a [F],
    /// The second input, of a layer that has two.
    pub other: &'a [F],
    /// Output, n x outputs.
    pub y: &'a mut [F],
    /// For the backward pass; of the size that [`Layer::saved`] says.
    pub saved: &'a mut SavedTensors<F>,
    /// The totals over all ranks of [`Layer::forward_sums`]; in evaluation, nothing.
    pub totals: &'a [f64],
    /// The stream of random draws of this layer, step, micro-batch and rank.
    pub stream: DropoutStream,
    /// The ranks along the layer's [axis](Layer::axis).
    pub peers: &'a mut dyn Peers<F>,
}

/// What a backward pass reads.
pub struct Backward<'a, F> {
    /// Samples.
    pub n: usize,
    /// The layer's parameters.
    pub params: &'a [F],
    /// The input of the forward pass.
    pub x: &'a [F],
    /// The output of the forward pass.
    pub y: &'a [F],
    /// The loss's gradient by the output.
    pub dy: &'a [F],
    /// What the forward pass saved; the backward pass may overwrite it.
    pub saved: &'a mut SavedTensors<F>,
    /// The totals over all ranks of [`Layer::backward_sums`], for [`Layer::backward_input`].
    pub totals: &'a [f64],
    /// The ranks along the layer's [axis](Layer::axis).
    pub peers: &'a mut dyn Peers<F>,
}

/// The costs of one layer's passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerCost {
    /// [`Layer::forward_sums`].
    pub sums: OpCost,
    /// [`Layer::forward`] in training.
    pub forward: OpCost,
    /// [`Layer::forward`] in evaluation.
    pub evaluate: OpCost,
    /// [`Layer::backward_params`].
    pub params: OpCost,
    /// [`Layer::backward_input`].
    pub input: OpCost,
}

/// One layer over samples of a fixed size.
pub trait Layer<F: Float>: Send + Sync {
    /// Input numbers per sample.
    fn inputs(&self) -> usize;

    /// The number of outputs per sample.
    fn outputs(&self) -> usize;

    /// The layer's operation, as data. A device with arithmetic of its own runs the layer by it, and refuses
    /// [`LayerOperation::Own`].
    fn operation(&self) -> LayerOperation {
        LayerOperation::Own
    }

    /// The layer's parameters, in PyTorch's order of registration.
    fn params(&self) -> Vec<Tensor> {
        Vec::new()
    }

    /// The layer's buffers: state that is no parameter, such as running statistics.
    fn buffers(&self) -> Vec<Tensor> {
        Vec::new()
    }

    /// The axis of the mesh along which the layer's passes exchange values, if they do.
    fn axis(&self) -> Option<MeshAxis> {
        None
    }

    /// Whether its passes charge their own cost, between exchanges, to [`Peers::charge`].
    fn charges_itself(&self) -> bool {
        false
    }

    /// Which precision it runs in under autocast.
    fn cast(&self) -> Cast {
        Cast::Follow
    }

    /// Whether the layer can write its output over an input, which its backward pass does not read again, and likewise the
    /// input's gradient over the output's. Either one of two inputs will do.
    fn in_place(&self) -> bool {
        false
    }

    /// Whether the layer's backward pass reads its output. If not, a later layer may overwrite the output.
    fn needs_output(&self) -> bool {
        true
    }

    /// Whether the gradient of each of the layer's inputs equals the gradient of its output.
    fn passes_on(&self) -> bool {
        false
    }

    /// How many (values, places) a forward pass over `n` samples keeps.
    fn saved(&self, _n: usize) -> (usize, usize) {
        (0, 0)
    }

    /// Makes it work on the samples of all ranks together, where it can and does not yet; says whether it did.
    fn synchronise(&mut self) -> bool {
        false
    }

    /// The least samples that a batch in training may have, unless it has none.
    fn least(&self) -> usize {
        1
    }

    /// Whether the batch of all ranks, by the totals of [`Layer::forward_sums`], is as large as training needs.
    fn enough(&self, _totals: &[f64]) -> bool {
        true
    }

    /// How many numbers the ranks add up before a forward pass in training, and before [`Layer::backward_input`].
    fn sync_len(&self) -> (usize, usize) {
        (0, 0)
    }

    /// This rank's part of the sums that the forward pass needs, from the `n` samples of x.
    fn forward_sums(&self, _n: usize, _x: &[F], _sums: &mut [f64]) {}

    /// This rank's part of the sums that [`Layer::backward_input`] needs, from its weight gradients.
    fn backward_sums(&self, _grads: &[F], _sums: &mut [f64]) {}

    /// The forward pass, from x to y.
    fn forward(&self, pass: Forward<F>);

    /// [`Layer::forward`] of a layer that works [in place](Layer::in_place): `y` holds an input before and the output after; `other` is the
    /// second input.
    fn forward_in_place(&self, _other: &[F], _y: &mut [F]) {}

    /// The gradients of its parameters, replaced.
    fn backward_params(&self, _pass: &mut Backward<F>, _grads: &mut [F]) {}

    /// Whether [`Layer::backward_input`] reads the gradients of its parameters: they are final after it, not before.
    fn needs_gradients(&self) -> bool {
        false
    }

    /// Whether [`Layer::backward_input`] writes over what the forward pass saved: then its weight gradient must come before.
    fn uses_up_saved(&self) -> bool {
        false
    }

    /// The gradient of its input, replaced. Called after [`Layer::backward_params`], whose result `grads` is where the layer
    /// [needs](Layer::needs_gradients) it. Not called where the layer [passes on](Layer::passes_on) what it gets.
    fn backward_input(&self, _pass: &mut Backward<F>, _grads: &[F], _dx: &mut [F]) {}

    /// [`Layer::backward_input`] of a layer that works [in place](Layer::in_place): `dx` holds the gradient of the output `y` before, and of
    /// the input after.
    fn backward_in_place(&self, _y: &[F], _dx: &mut [F]) {}

    /// The costs of the layer's passes over `n` samples.
    fn cost(&self, n: usize) -> LayerCost;
}
