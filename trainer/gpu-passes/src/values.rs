//! The parameters of a rank, as its passes read them and store their gradients.

use crate::Result;
use allfold_cuda::Slice;

/// Parameters, gradients and buffers in a device's memory. Parameters are those of the network, by number.
pub trait Values {
    /// A parameter's values in f32.
    ///
    /// # Errors
    /// [`crate::Error::Absent`]: the rank has only its part of them.
    fn param(&self, param: usize) -> Result<Slice<'_>>;

    /// A parameter's values in autocast's narrow type if `narrow` is true and there is one, else in f32.
    ///
    /// # Errors
    /// Those of [`Values::param`].
    fn read(&self, param: usize, narrow: bool) -> Result<Slice<'_>>;

    /// Where a parameter's gradient is stored, in f32; `None` for a frozen parameter.
    ///
    /// # Errors
    /// Those of [`Values::param`].
    fn grad(&self, param: usize) -> Result<Option<Slice<'_>>>;

    /// Notes that a parameter gets a gradient. Returns whether it had one of this step before.
    fn begin_grad(&self, param: usize) -> bool;

    /// The network's buffers in f32, in the network's order.
    fn buffers(&self) -> Slice<'_>;
}
