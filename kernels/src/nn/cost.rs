//! The cost of an operation, computed from its shapes alone.

use std::iter::Sum;
use std::ops::Add;

/// The floating-point operations and bytes of one operation: the two axes of a roofline model (Williams, Waterman and Patterson,
/// "Roofline", CACM 52(4), 2009). Bytes count each operand once, as if caches were perfect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCost {
    /// Additions and multiplications, each one operation; a fused multiply-add is two.
    pub flops: u64,
    /// Bytes read plus bytes written.
    pub bytes: u64,
    /// The number of kernels that a GPU would launch for the operation.
    pub launches: u64,
}

impl OpCost {
    /// The cost of one launch that does `flops` operations and moves `elements` elements of `size` bytes.
    pub fn launch(flops: usize, elements: usize, size: usize) -> OpCost {
        OpCost { flops: flops as u64, bytes: (elements * size) as u64, launches: 1 }
    }
}

impl Add for OpCost {
    type Output = OpCost;
    fn add(self, other: OpCost) -> OpCost {
        OpCost {
            flops: self.flops.saturating_add(other.flops),
            bytes: self.bytes.saturating_add(other.bytes),
            launches: self.launches.saturating_add(other.launches),
        }
    }
}

impl Sum for OpCost {
    fn sum<I: Iterator<Item = OpCost>>(costs: I) -> OpCost {
        costs.fold(OpCost::default(), OpCost::add)
    }
}
