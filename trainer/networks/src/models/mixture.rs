//! A mixture of experts in place of a transformer's fully connected layers.

use crate::layers::{ExpertCombine, ExpertGelu, ExpertLinear, ExpertRouter, ExpertShape, Init};
use crate::network::Builder;
use crate::{Error, Result};
use allfold_kernels::nn::Float;

/// The experts of every block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Experts of a block.
    pub experts: usize,
    /// Experts that each token is routed to.
    pub chosen: usize,
    /// The most tokens of a sample that an expert takes, as a multiple of the mean over experts; 0: no limit.
    pub capacity_factor: f64,
    /// The weight of the balance loss.
    pub balance: f64,
}

/// f32 holds every whole number up to this one.
const LARGEST_SLOT: usize = 1 << 24;

impl Experts {
    /// The shape of a mixture over `positions` tokens of `width` numbers.
    ///
    /// # Errors
    /// More chosen experts than there are, none at all, or more slots than f32 can number.
    pub fn shape(&self, positions: usize, width: usize) -> Result<ExpertShape> {
        let Experts { experts, chosen, capacity_factor, .. } = *self;
        if chosen == 0 || chosen > experts {
            return Err(Error::Network(format!(
                "a token goes to {chosen} of {experts} experts; use 1 to {}",
                experts.max(1)
            )));
        }
        let mean = capacity_factor * (positions * chosen) as f64 / experts as f64;
        let capacity =
            if capacity_factor > 0.0 { (mean.ceil() as usize).clamp(1, positions) } else { positions };
        if experts.saturating_mul(capacity) >= LARGEST_SLOT {
            return Err(Error::Network(format!(
                "{experts} experts with {capacity} slots for a sample each; their product must be less than \
                 {LARGEST_SLOT}"
            )));
        }
        Ok(ExpertShape { positions, width, experts, chosen, capacity })
    }
}

/// Adds a mixture over `positions` tokens of `width` numbers to a network, after activation `x`; returns the activation that it
/// writes.
pub(super) fn push<F: Float>(
    builder: &mut Builder<F>,
    name: &str,
    (experts, positions, width): (&Experts, usize, usize),
    (normal, before_sum): (Init, Init),
    x: usize,
) -> Result<usize> {
    let shape = experts.shape(positions, width)?;
    let (of, tail) = ((shape.experts, shape.capacity), 2 * shape.choices());
    let router = ExpertRouter::new(shape, experts.balance, normal);
    let mut y = builder.push(&format!("{name}.router"), router, &[x])?;
    let wider = ExpertLinear::new((width, 4 * width), of, tail, normal);
    y = builder.push(&format!("{name}.experts.c_fc"), wider, &[y])?;
    y = builder.push(
        &format!("{name}.experts.gelu"),
        ExpertGelu::new(4 * width * shape.slots(), tail),
        &[y],
    )?;
    let narrower = ExpertLinear::new((4 * width, width), of, tail, before_sum);
    y = builder.push(&format!("{name}.experts.c_proj"), narrower, &[y])?;
    builder.push(&format!("{name}.combine"), ExpertCombine::new(shape), &[y])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{Gpt, moe_gpt};

    #[test]
    fn an_expert_takes_a_multiple_of_its_mean_share_of_a_sample() {
        let of = |capacity_factor, chosen| {
            let experts = Experts { experts: 4, chosen, capacity_factor, balance: 0.0 };
            experts.shape(10, 8).map(|shape| shape.capacity)
        };
        // 10 tokens that go to 2 of 4 experts: 5 for each on average.
        let capacities = [of(0.0, 2), of(1.0, 2), of(1.25, 2), of(0.1, 2), of(9.0, 2)];
        assert_eq!(capacities.map(|capacity| capacity.unwrap()), [10, 5, 7, 1, 10]);
        assert!(of(0.0, 5).unwrap_err().to_string().contains("5 of 4 experts; use 1 to 4"));
    }

    #[test]
    fn a_mixture_multiplies_the_weights_of_the_fully_connected_layers() {
        let parts = Gpt {
            vocabulary: 13,
            positions: 4,
            layers: 2,
            width: 8,
            heads: 2,
            dropout: 0.0,
            attention_dropout: 0.0,
            tied: true,
        };
        let count = |experts| {
            let experts = Experts { experts, chosen: 1, capacity_factor: 1.25, balance: 0.0 };
            moe_gpt::<f32>(&parts, &experts).unwrap().param_count()
        };
        // Two linear layers with biases, and a row of the router, for each further expert of each of two blocks.
        assert_eq!(count(3) - count(2), 2 * (2 * 4 * 8 * 8 + 4 * 8 + 8 + 8));
    }
}
