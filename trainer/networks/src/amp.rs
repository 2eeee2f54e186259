//! Mixed precision by PyTorch's autocast lists (P. Micikevicius et al., "Mixed Precision Training", ICLR 2018).
//!
//! ```text
//! in f16 or bf16         linear, convolution, attention: inputs, weights, outputs and their gradients
//! in f32                 layer norm, embedding, mixtures of experts, softmax, losses
//! as the inputs          the rest: in f16 or bf16 where all inputs are, else in f32
//! ```
//!
//! The lists are those of `torch.amp` (docs, "Autocast Op Reference"). Parameters, and what optimisers read, stay f32. An
//! activation in f16 or bf16 is stored as f32 values rounded to that type: sums inside an operation are in f32, as on GPUs.

use crate::Network;
pub use crate::layers::Cast;
use allfold_kernels::nn::{Float, Narrow};

/// What autocast computes in a narrow type (f16 or bf16), and scratch buffers for the rounded copies.
pub struct Autocast<F> {
    narrow: Option<Narrow>,
    casts: Vec<Cast>,
    /// For each activation, whether it is narrow.
    narrows: Vec<bool>,
    params: Vec<F>,
    x: Vec<F>,
}

impl<F: Float> Autocast<F> {
    /// Autocast that rounds nothing.
    pub fn off() -> Autocast<F> {
        Autocast { narrow: None, casts: Vec::new(), narrows: Vec::new(), params: Vec::new(), x: Vec::new() }
    }

    /// Autocast to `narrow` for the layers of a network whose [`Cast`] allows it.
    pub fn new(narrow: Narrow, network: &Network<F>) -> Autocast<F> {
        let casts: Vec<Cast> = network.layers().iter().map(|layer| layer.traits().cast).collect();
        let mut narrows = vec![false];
        for (l, cast) in casts.iter().enumerate() {
            let follows = network.from(l).iter().all(|&from| narrows[from]);
            narrows.push(match cast {
                Cast::Narrow => true,
                Cast::Full => false,
                Cast::Follow => follows,
            });
        }
        Autocast { narrow: Some(narrow), casts, narrows, ..Autocast::off() }
    }

    /// Whether layer `l` computes in the narrow type.
    pub fn is_narrow(&self, l: usize) -> bool {
        self.narrow.is_some() && self.narrows[l + 1]
    }

    /// The parameters and the input that layer `l` computes with, rounded where the layer is narrow.
    pub fn inputs<'a>(
        &'a mut self,
        network: &Network<F>,
        l: usize,
        params: &'a [F],
        x: &'a [F],
    ) -> (&'a [F], &'a [F]) {
        let Some(narrow) = self.narrow.filter(|_| self.casts[l] == Cast::Narrow) else {
            return (params, x);
        };
        self.params.clear();
        self.params.extend_from_slice(params);
        narrow.round(&mut self.params);
        if self.narrows[network.from(l)[0]] {
            return (&self.params, x);
        }
        self.x.clear();
        self.x.extend_from_slice(x);
        narrow.round(&mut self.x);
        (&self.params, &self.x)
    }

    /// Rounds an activation, or its gradient, if the activation is narrow.
    pub fn round(&self, act: usize, values: &mut [F]) {
        if let Some(narrow) = self.narrow.filter(|_| self.narrows[act]) {
            narrow.round(values);
        }
    }

    /// Rounds a gradient that layer `l` computed, if the layer is narrow.
    pub fn round_of(&self, l: usize, values: &mut [F]) {
        if let Some(narrow) = self.narrow.filter(|_| self.casts[l] == Cast::Narrow) {
            narrow.round(values);
        }
    }
}
