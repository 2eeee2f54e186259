//! The shape of a convolution, its sizes and its cost.

use crate::nn::{Float, OpCost};

/// The shape of a convolution with a square kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dShape {
    /// The number of input channels, C.
    pub inputs: usize,
    /// The number of output channels, O.
    pub outputs: usize,
    /// Height and width of the input picture, H and W.
    pub picture: (usize, usize),
    /// The side of the kernel in pixels, K.
    pub kernel: usize,
    /// The pixels from one patch to the next; at least 1.
    pub stride: usize,
    /// The width of the zero padding on each side of the picture, in pixels.
    pub padding: usize,
    /// The number of groups of channels, G, a divisor of C and O.
    pub groups: usize,
}

impl Conv2dShape {
    /// Height and width of the output picture, P and Q.
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

    /// The cost of [`Conv2dShape::forward`], as one kernel that reads pictures and never stores patches.
    pub fn forward_cost<F: Float>(&self, n: usize) -> OpCost {
        let (x, y) = (n * self.input(), n * self.outputs * self.pixels());
        OpCost::launch(2 * y * self.patch(), x + y + self.weights(), size_of::<F>())
    }

    /// The cost of [`Conv2dShape::backward_params`]: equal to the forward pass's.
    pub fn backward_params_cost<F: Float>(&self, n: usize) -> OpCost {
        self.forward_cost::<F>(n)
    }

    /// The cost of [`Conv2dShape::backward_input`]: equal to the forward pass's.
    pub fn backward_input_cost<F: Float>(&self, n: usize) -> OpCost {
        self.forward_cost::<F>(n)
    }

    /// The number of elements of a patch, C / G K K.
    pub(super) fn patch(&self) -> usize {
        self.inputs / self.groups * self.kernel * self.kernel
    }

    /// The number of elements of the weight.
    pub fn weights(&self) -> usize {
        self.outputs * self.patch()
    }

    /// The number of output pixels, P Q.
    pub(super) fn pixels(&self) -> usize {
        let (p, q) = self.output_picture();
        p * q
    }

    /// The number of elements of an input picture, C H W.
    pub(super) fn input(&self) -> usize {
        self.inputs * self.picture.0 * self.picture.1
    }

    pub(super) fn padded_picture(&self) -> (usize, usize) {
        (self.picture.0 + 2 * self.padding, self.picture.1 + 2 * self.padding)
    }

    /// The number of elements of a padded sample.
    pub(super) fn padded(&self) -> usize {
        let (height, width) = self.padded_picture();
        self.inputs * height * width
    }

    /// The padding and the padded picture of `dy` if the gradient of the input is a convolution of `dy`: stride 1, padding below
    /// the kernel's side.
    pub(super) fn transposed(&self) -> Option<(usize, (usize, usize))> {
        let padding = (self.kernel - 1).checked_sub(self.padding).filter(|_| self.stride == 1)?;
        let (rows, cols) = self.output_picture();
        Some((padding, (rows + 2 * padding, cols + 2 * padding)))
    }
}
