//! The reduction operators.

use std::fmt;

/// A reduction operator: how two elements are combined into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// The sum a + b; integers wrap.
    Sum,
    /// The product a * b; integers wrap.
    Prod,
    /// IEEE 754-2019 minimum: NaN wins, and -0 is less than +0.
    Min,
    /// IEEE 754-2019 maximum: NaN wins, and -0 is less than +0.
    Max,
    /// The average: a sum that is divided once, at the end, by the number of ranks; integers divide towards zero.
    Avg,
}

impl ReduceOp {
    /// All operators, in the order of their numbers on the wire.
    pub const ALL: [ReduceOp; 5] =
        [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg];

    /// The lower-case name of the operator: `sum`, `prod`, `min`, `max`, `avg`.
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
