//! What a step costs a device besides its layers: operations on whole gradients and batches.

pub use crate::optim::clip::cost as clip_cost;
pub use crate::scaler::unscale_cost;

use allfold_kernels::nn::OpCost;

/// Cost of copying `elements` of a batch.
pub fn data_cost<F>(elements: usize) -> OpCost {
    OpCost::launch(0, 2 * elements, size_of::<F>())
}

/// Cost of adding `elements` to the accumulated gradients.
pub fn accumulate_cost<F>(elements: usize) -> OpCost {
    OpCost::launch(elements, 3 * elements, size_of::<F>())
}

/// Cost of dividing `elements` of a gradient by the number of ranks, in place or on the way into a bucket.
pub fn pack_cost<F>(elements: usize) -> OpCost {
    OpCost::launch(elements, 2 * elements, size_of::<F>())
}

/// Cost of copying a bucket of `elements` back.
pub fn unpack_cost<F>(elements: usize) -> OpCost {
    OpCost::launch(0, 2 * elements, size_of::<F>())
}
