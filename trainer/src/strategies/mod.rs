//! The ways to train, side by side: what each adds to forward, backward and the optimiser's step.

/// The names by which a configuration asks for a strategy.
pub const STRATEGIES: &[(&str, &str)] = &[
    ("single", "one rank, nothing to exchange"),
    ("ddp", "every rank holds the model; gradients are averaged in buckets while backward goes on"),
];
