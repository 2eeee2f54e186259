//! Layers: shapes, parameters and costs, with a forward and a backward pass that are written out.
//!
//! A layer is stateless. Its values (parameters, running statistics, values saved for the backward pass) are in buffers of the trainer,
//! which each call borrows:
//!
//! ```text
//!            x[n, inputs]   params   buffers                dy[n, outputs]   saved
//! forward          '-----------+--------'       backward_params      '----------+----> grads  (may be sent at once)
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
mod experts;
mod first_position;
mod layer_norm;
mod linear;
mod operation;
mod peers;
mod pool;
mod rms_norm;
mod rope;
mod sequence_parallel;
mod swiglu;
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
pub use experts::{ExpertCombine, ExpertGelu, ExpertLinear, ExpertRouter, ExpertShape};
pub use first_position::FirstPosition;
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use operation::LayerOperation;
pub use peers::{MeshAxis, NoPeers, PassKind, PeerCall, Peers};
pub use pool::{GlobalMeanPool, Pool};
pub use rms_norm::RmsNorm;
pub use rope::Rope;
pub use swiglu::Swiglu;
pub use tensor_parallel::{ParallelLinear, VocabParallelEmbedding};
pub use unit::{Elementwise, Gelu, Relu, Tanh, Unit};

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
    /// The name: `weight`, `bias`, `running_mean`, ...
    pub name: &'static str,
    /// The tensor's dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The tensor's initial values.
    pub init: Init,
}

impl Tensor {
    /// A tensor with this name, this shape and these initial values.
    pub fn new(name: &'static str, shape: &[usize], init: Init) -> Tensor {
        Tensor { name, shape: shape.to_vec(), init }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the tensor has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a forward pass saves for the backward pass.
#[derive(Clone, Debug)]
pub struct SavedTensors<F> {
    /// Values of activations or statistics.
    pub values: Vec<F>,
    /// Whole numbers, such as the positions of maxima or the key of random draws.
    pub indices: Vec<u32>,
}

/// What a forward pass reads and writes.
pub struct Forward<'a, F> {
    /// The number of samples.
    pub n: usize,
    /// Whether this is training: batch norms then normalise by the batch and update running statistics. Otherwise it is
    /// evaluation.
    pub train: bool,
    /// The layer's parameters, one after another.
    pub params: &'a [F],
    /// The layer's buffers, one after another.
    pub buffers: &'a mut [F],
    /// The input, n x inputs.
    pub x: &'a [F],
    /// The second input, of a layer that has two.
    pub other: &'a [F],
    /// The output, n x outputs.
    pub y: &'a mut [F],
    /// The values for the backward pass, with the sizes that [`Layer::saved`] returns.
    pub saved: &'a mut SavedTensors<F>,
    /// The totals over all ranks of [`Layer::forward_sums`]; in evaluation, nothing.
    pub totals: &'a [f64],
    /// The stream of random draws of this layer, for the samples of the pass.
    pub stream: DropoutStream,
    /// The ranks along the layer's [axis](LayerTraits::axis).
    pub peers: &'a mut dyn Peers<F>,
}

/// What a backward pass reads.
pub struct Backward<'a, F> {
    /// The number of samples.
    pub n: usize,
    /// The factor on the mean loss of the samples: for a layer with an objective of its own.
    pub scale: F,
    /// The layer's parameters.
    pub params: &'a [F],
    /// The input of the forward pass.
    pub x: &'a [F],
    /// The output of the forward pass.
    pub y: &'a [F],
    /// The gradient of the loss with respect to the output, with [`Layer::gradient_len`] numbers per sample.
    pub dy: &'a [F],
    /// What the forward pass saved; the backward pass may overwrite it.
    pub saved: &'a mut SavedTensors<F>,
    /// The totals over all ranks of [`Layer::backward_sums`], for [`Layer::backward_input`].
    pub totals: &'a [f64],
    /// The ranks along the layer's [axis](LayerTraits::axis).
    pub peers: &'a mut dyn Peers<F>,
}

/// The costs of one layer's passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerCost {
    /// The cost of [`Layer::forward_sums`].
    pub sums: OpCost,
    /// The cost of [`Layer::forward`] in training.
    pub forward: OpCost,
    /// The cost of [`Layer::forward`] in evaluation.
    pub evaluate: OpCost,
    /// The cost of [`Layer::backward_params`].
    pub params: OpCost,
    /// The cost of [`Layer::backward_input`].
    pub input: OpCost,
}

/// What holds of all passes of a layer; by default, of one that runs alone in the precision of its inputs and keeps what it computes.
#[derive(Clone, Copy, Debug, Default)]
pub struct LayerTraits {
    /// The axis of the mesh along which the layer's passes exchange values, if there is one.
    pub axis: Option<MeshAxis>,
    /// Whether the layer's passes charge their own cost to [`Peers::charge`], between their exchanges.
    pub charges_itself: bool,
    /// Which precision the layer runs in under autocast.
    pub cast: Cast,
    /// Whether the layer can write its output over an input that its backward pass does not read again, and likewise the input's
    /// gradient over the output's. If there are two inputs, either may be overwritten.
    pub in_place: bool,
    /// Whether the layer's backward pass does not read its output, so that a later layer may overwrite the output.
    pub free_output: bool,
    /// Whether the gradient of each of the layer's inputs equals the gradient of its output.
    pub identity_backward: bool,
    /// Whether [`Layer::backward_input`] reads the gradients of the layer's parameters, which are final after
    /// [`Layer::backward_params`] and not before.
    pub needs_gradients: bool,
    /// Whether [`Layer::backward_input`] overwrites the saved values. The weight gradient must then be computed first.
    pub uses_up_saved: bool,
    /// The number of experts of the mixture that the layer belongs to; 0 for a layer outside of mixtures.
    pub experts: usize,
    /// Whether the layer has the parameters of some experts only, and other ranks of the expert axis have those of the rest.
    pub has_some_experts: bool,
}

impl LayerTraits {
    /// The traits of a layer of a mixture of `experts` experts that exchanges slots with the `ranks` ranks of the expert axis.
    fn of_exchanged(experts: usize, ranks: usize) -> LayerTraits {
        LayerTraits {
            axis: (ranks > 1).then_some(MeshAxis::Expert),
            charges_itself: ranks > 1,
            cast: Cast::Full,
            free_output: true,
            experts,
            ..LayerTraits::default()
        }
    }
}

/// One layer over samples of a fixed size.
pub trait Layer<F: Float>: Send + Sync {
    /// The number of input features of a sample.
    fn inputs(&self) -> usize;

    /// The number of outputs per sample: as many as inputs, unless the layer says otherwise.
    fn outputs(&self) -> usize {
        self.inputs()
    }

    /// What holds of all passes of the layer.
    fn traits(&self) -> LayerTraits {
        LayerTraits::default()
    }

    /// The layer's operation, as data. A device with kernels of its own runs the layer from this description, and refuses
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

    /// The calls of a pass over `n` samples to its [`Peers`], in order, if the axis has several ranks. All ranks make the same calls.
    fn peer_calls(&self, _pass: PassKind, _n: usize) -> Vec<PeerCall> {
        Vec::new()
    }

    /// The layer that replaces this one on each of `ranks` ranks that share the experts of its mixture evenly.
    fn sharing_experts(&self, _ranks: usize) -> Option<Box<dyn Layer<F>>> {
        None
    }

    /// The numbers per sample of the gradient of the output that the backward pass reads: [`Layer::outputs`], or more for a layer that
    /// first [gathers](Layer::gather_gradient) it.
    fn gradient_len(&self) -> usize {
        self.outputs()
    }

    /// Gathers the gradient of the output from the ranks along the layer's [axis](LayerTraits::axis): from `own`, n x outputs, to `all`,
    /// n x [`Layer::gradient_len`]. Called once for both halves of a backward pass, if the two lengths differ.
    fn gather_gradient(&self, _n: usize, _own: &[F], _all: &mut [F], _peers: &mut dyn Peers<F>) {}

    /// The numbers of (values, indices) that a forward pass over `n` samples saves.
    fn saved(&self, _n: usize) -> (usize, usize) {
        (0, 0)
    }

    /// Makes the layer normalise over the samples of all ranks, if the layer can and does not yet. Returns whether it changed.
    fn synchronise(&mut self) -> bool {
        false
    }

    /// The smallest number of samples of a training batch that is not empty.
    fn min_batch(&self) -> usize {
        1
    }

    /// Whether the batch of all ranks is large enough for training, from the totals of [`Layer::forward_sums`].
    fn batch_suffices(&self, _totals: &[f64]) -> bool {
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

    /// [`Layer::forward`] of a layer that works [in place](LayerTraits::in_place): `y` holds an input before the call and the output after it;
    /// `other` is the second input.
    fn forward_in_place(&self, _other: &[F], _y: &mut [F]) {}

    /// Computes the gradients of the layer's parameters into the last argument, overwriting it.
    fn backward_params(&self, _pass: &mut Backward<F>, _grads: &mut [F]) {}

    /// Computes the gradient of the layer's input into the last argument, overwriting it. If the layer
    /// [needs](LayerTraits::needs_gradients) the result of [`Layer::backward_params`], that call comes before, and its result is the
    /// second argument. Not called for a layer with [`LayerTraits::identity_backward`].
    fn backward_input(&self, _pass: &mut Backward<F>, _grads: &[F], _dx: &mut [F]) {}

    /// [`Layer::backward_input`] of a layer that works [in place](LayerTraits::in_place): before the call, `dx` holds the gradient of the output
    /// `y`, and after the call that of the input.
    fn backward_in_place(&self, _y: &[F], _dx: &mut [F]) {}

    /// The costs of the layer's passes over `n` samples.
    fn cost(&self, n: usize) -> LayerCost;
}
