//! The shape of a convolution: its sides and its cost.

use crate::nn::{Float, OpCost};

/// The shape of a convolution with a square kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dShape {
    /// Channels in, C.
    pub inputs: usize,
    /// Channels out, O.
    pub outputs: usize,
    /// (H, W).
    pub picture: (usize, usize),
    /// The kernel's side, K.
    pub kernel: usize,
    /// Pixels from one patch to the next; 1 or more.
    pub stride: usize,
    /// Zeros around the picture, on each side.
    pub padding: usize,
    /// Groups that the channels are cut into, G; it divides both C and O.
    pub groups: usize,
}

impl Conv2dShape {
    /// (P, Q).
    ///
    /// # Panics
    /// If the kernel is larger than the padded picture, or the groups do not divide the channels.
    pub fn output_picture(&self) -> (usize, usize) {
        assert!(
            self.groups > 0
                && self.inputs.is_multiple_of(self.groups)
                && self.outputs.is_multiple_of(self.groups),
            "{} groups of {} and {} channels",
            self.groups,
            self.inputs,
            self.outputs
        );
        let side = |side: usize| {
            let padded = side + 2 * self.padding;
            assert!(
                self.kernel <= padded && self.stride > 0,
                "a {} kernel over {padded} pixels",
                self.kernel
            );
            (padded - self.kernel) / self.stride + 1
        };
        (side(self.picture.0), side(self.picture.1))
    }

    /// Cost of [`Conv2dShape::forward`], as one kernel that reads pictures and never stores patches.
    pub fn forward_cost<F: Float>(&self, n: usize) -> OpCost {
        let (x, y) = (n * self.input(), n * self.outputs * self.pixels());
        OpCost::launch(2 * y * self.patch(), x + y + self.weights(), size_of::<F>())
    }

    /// Cost of [`Conv2dShape::backward_params`]: the same products.
    pub fn backward_params_cost<F: Float>(&self, n: usize) -> OpCost {
        self.forward_cost::<F>(n)
    }

    /// Cost of [`Conv2dShape::backward_input`]: the same products.
    pub fn backward_input_cost<F: Float>(&self, n: usize) -> OpCost {
        self.forward_cost::<F>(n)
    }

    /// The elements of a patch, C / G K K.
    pub(super) fn patch(&self) -> usize {
        self.inputs / self.groups * self.kernel * self.kernel
    }

    /// Elements of the weight.
    pub fn weights(&self) -> usize {
        self.outputs * self.patch()
    }

    /// P Q.
    pub(super) fn pixels(&self) -> usize {
        let (p, q) = self.output_picture();
        p * q
    }

    /// The elements of an input picture, C H W.
    pub(super) fn input(&self) -> usize {
        self.inputs * self.picture.0 * self.picture.1
    }

    pub(super) fn padded_picture(&self) -> (usize, usize) {
        (self.picture.0 + 2 * self.padding, self.picture.1 + 2 * self.padding)
    }

    /// Elements of a padded sample.
    pub(super) fn padded(&self) -> usize {
        let (height, width) = self.padded_picture();
        self.inputs * height * width
    }

    /// The padding and the padded picture of `dy` with which the backward pass is a convolution, if it is one.
    pub(super) fn transposed(&self) -> Option<(usize, (usize, usize))> {
        let padding = (self.kernel - 1).checked_sub(self.padding).filter(|_| self.stride == 1)?;
        let (rows, cols) = self.output_picture();
        Some((padding, (rows + 2 * padding, cols + 2 * padding)))
    }
}
