//! The reduction operators.

use std::fmt;

/// How two elements become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// a + b; integers wrap.
    Sum,
    /// a * b; integers wrap.
    Prod,
    /// IEEE 754-2019 minimum: NaN wins, and -0 is less than +0.
    Min,
    /// IEEE 754-2019 maximum: NaN wins, and -0 is less than +0.
    Max,
    /// The sum, divided once by the number of ranks at the end; integers divide towards zero.
    Avg,
}

impl ReduceOp {
    /// Every operator, in the order of the wire's numbers.
    pub const ALL: [ReduceOp; 5] =
        [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg];

    /// The lower-case name: `sum`, `prod`, `min`, `max`, `avg`.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Avg => "avg",
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
