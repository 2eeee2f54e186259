//! How ranks of unlike speed share the samples of a step.
//!
//! ```text
//! shares = [3, 1], batch = 4     samples of a step   0 1 2 3 4 5 | 6 7
//!                                                    rank 0        rank 1
//! ```
//!
//! Each step has the same samples as with equal shares. Gradients are divided by the number of ranks, so each rank's loss counts by
//! its samples relative to an equal share: 1.5 and 0.5 above. The sum is then the gradient of the mean over all samples.

use crate::engine::{Mesh, MeshAxis};
use crate::{Config, Error, Result};

/// How many of `samples` samples each rank is given: its share, rounded down. The remaining samples are given, one each, to the
/// ranks that rounding took most from.
pub fn dealt(samples: usize, shares: &[u32]) -> Vec<usize> {
    let all: u128 = shares.iter().map(|share| u128::from(*share)).sum::<u128>().max(1);
    let exact = |share: &u32| samples as u128 * u128::from(*share);
    let mut counts: Vec<usize> = shares.iter().map(|share| (exact(share) / all) as usize).collect();
    let mut by_rest: Vec<usize> = (0..shares.len()).collect();
    by_rest.sort_by_key(|rank| std::cmp::Reverse(exact(&shares[*rank]) % all));
    let left = samples.saturating_sub(counts.iter().sum());
    by_rest.into_iter().take(left).for_each(|rank| counts[rank] += 1);
    counts
}

/// How many samples of a step a rank of `mesh` is given, or the batch of `config` where shares are equal.
pub fn batch_of(config: &Config, mesh: &Mesh, rank: usize) -> usize {
    match &config.parallel.shares[..] {
        [] => config.training.batch,
        shares => {
            let all = config.training.batch.saturating_mul(shares.len());
            let place = mesh.position(rank, MeshAxis::Data).index / mesh.context;
            dealt(all, shares).get(place).copied().unwrap_or_default()
        }
    }
}

/// Checks that `config` can give the ranks of `mesh` unequal shares, if it sets shares.
pub(crate) fn fits(config: &Config, mesh: &Mesh) -> Result<()> {
    let shares = &config.parallel.shares;
    if shares.is_empty() {
        return Ok(());
    }
    let refused = |why: String| Err(Error::Config(format!("`parallel.shares` {why}")));
    let strategy = config.strategy.as_str();
    let others = [
        (
            ["data_parallel", "parameter_server"].contains(&strategy) || mesh.expert > 1,
            "strategy `data_parallel` or `parameter_server`, and for ranks that share experts",
        ),
        (config.data.uneven, "`data.uneven`, which shares samples by its own rule"),
        (config.ddp.hook == "local_sgd", "`ddp.hook` local_sgd, which averages weights and not gradients"),
    ];
    if let Some((_, what)) = others.iter().find(|(wrong, _)| *wrong) {
        return refused(format!("must be empty with {what}: ranks have equally many samples there"));
    }
    let ranks = mesh.data / mesh.context;
    if shares.len() != ranks {
        return refused(format!(
            "has {} numbers, and {ranks} ranks have samples of their own: give each of these ranks a number",
            shares.len()
        ));
    }
    let all = config.training.batch.saturating_mul(ranks);
    match dealt(all, shares).iter().position(|count| *count == 0) {
        None => Ok(()),
        Some(place) => refused(format!(
            "gives rank {place} of {ranks} none of the {all} samples of a step (its share is {}): use a larger share or a larger `training.batch`",
            shares[place]
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_are_rounded_by_their_largest_remainders() {
        assert_eq!(dealt(8, &[3, 1]), [6, 2]);
        assert_eq!(dealt(8, &[1, 1, 1]), [3, 3, 2]);
        assert_eq!(dealt(10, &[2, 3, 2]), [3, 4, 3]);
        assert_eq!(dealt(3, &[0, 5]), [0, 3]);
        assert_eq!(dealt(usize::MAX, &[u32::MAX, u32::MAX]), [usize::MAX / 2 + 1, usize::MAX / 2]);
        assert!(dealt(7, &[]).is_empty());
    }

    proptest! {
        #[test]
        fn every_sample_goes_to_one_rank_and_no_share_is_off_by_one(
            samples in 0usize..100_000,
            shares in prop::collection::vec(1u32..1000, 1..20),
        ) {
            let counts = dealt(samples, &shares);
            prop_assert_eq!(counts.iter().sum::<usize>(), samples);
            let all = f64::from(shares.iter().sum::<u32>());
            for (count, share) in counts.iter().zip(&shares) {
                prop_assert!((*count as f64 - samples as f64 * f64::from(*share) / all).abs() < 1.0);
            }
        }
    }
}
