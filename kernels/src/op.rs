//! The reduction operators.

allfold_base::named! {
    /// A reduction operator: how two elements are combined into one. The order is that of the numbers on the wire.
    #[derive(Hash)]
    #[repr(u8)]
    pub enum ReduceOp {
        /// The sum a + b; integers wrap.
        Sum = "sum",
        /// The product a * b; integers wrap.
        Prod = "prod",
        /// IEEE 754-2019 minimum: NaN wins, and -0 is less than +0.
        Min = "min",
        /// IEEE 754-2019 maximum: NaN wins, and -0 is less than +0.
        Max = "max",
        /// The average: a sum that is divided once, at the end, by the number of ranks; integers divide towards zero.
        Avg = "avg",
    }
}
