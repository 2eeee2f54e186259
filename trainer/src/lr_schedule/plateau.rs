//! The rate that is lowered when scores no longer get better.

use crate::Config;
use allfold_config::ScoreBy;

/// The rules of `plateau`, those of `torch.optim.lr_scheduler.ReduceLROnPlateau` with a relative threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plateau {
    /// What scores are compared by.
    pub by: ScoreBy,
    /// The factor by which the rate is lowered.
    pub factor: f64,
    /// Epochs without a better score that leave the rate as it is; one more lowers it.
    pub patience: u64,
    /// The share of the best score by which a better one must exceed it.
    pub threshold: f64,
    /// Epochs after a lower rate in which no epoch counts as without a better score.
    pub cooldown: u64,
    /// The lowest rate.
    pub floor: f64,
}

/// A smaller change of the rate is not made, as in PyTorch.
const LEAST_CHANGE: f64 = 1e-8;

impl Plateau {
    /// The rules that `config` gives.
    pub fn of(config: &Config) -> Plateau {
        Plateau {
            by: config.training.score,
            factor: config.lr_schedule.factor,
            patience: config.lr_schedule.patience,
            threshold: config.lr_schedule.threshold,
            cooldown: config.lr_schedule.cooldown,
            floor: config.lr_schedule.floor,
        }
    }

    /// The rate after epochs with these scores, from the rate `base` on.
    pub fn rate(&self, base: f64, scores: &[f64]) -> f64 {
        let (mut rate, mut best) = (base, self.by.worst());
        let (mut bad, mut cooling) = (0, 0);
        for &score in scores {
            if self.better(score, best) {
                (best, bad) = (score, 0);
            } else {
                bad += 1;
            }
            if cooling > 0 {
                (cooling, bad) = (cooling - 1, 0);
            }
            if bad > self.patience {
                let lower = (rate * self.factor).max(self.floor);
                rate = if rate - lower > LEAST_CHANGE { lower } else { rate };
                (cooling, bad) = (self.cooldown, 0);
            }
        }
        rate
    }

    fn better(&self, score: f64, best: f64) -> bool {
        match self.by {
            ScoreBy::Accuracy => score > best * (1.0 + self.threshold),
            ScoreBy::Loss => score < best * (1.0 - self.threshold),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(rules: &Plateau, scores: &[f64]) -> Vec<f64> {
        (1..=scores.len()).map(|end| rules.rate(0.1, &scores[..end])).collect()
    }

    fn close(rates: &[f64], want: &[f64]) {
        assert_eq!(rates.len(), want.len());
        assert!(rates.iter().zip(want).all(|(rate, want)| (rate - want).abs() < 1e-15), "{rates:?} {want:?}");
    }

    const RULES: Plateau =
        Plateau { by: ScoreBy::Loss, factor: 0.1, patience: 2, threshold: 1e-4, cooldown: 0, floor: 0.0 };

    /// Values by the formula in PyTorch's documentation and source: a loss is better below best (1 - threshold); more than
    /// `patience` epochs in a row without one lower the rate.
    #[test]
    fn losses_lower_the_rate_as_in_pytorch() {
        // 0.99995 is not below 1 - 1e-4, so the third epoch without a better loss is the fourth.
        close(&rates(&RULES, &[1.0, 0.99995, 1.0, 1.0, 1.0]), &[0.1, 0.1, 0.1, 0.01, 0.01]);
        // 0.9998 is better, and the count begins anew.
        close(&rates(&RULES, &[1.0, 1.0, 1.0, 0.9998, 1.0, 1.0, 1.0]), &[0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.01]);
        // Without patience every epoch without a better loss lowers it, down to the floor.
        let at_once = Plateau { patience: 0, floor: 0.002, ..RULES };
        close(&rates(&at_once, &[1.0, 1.0, 1.0, 1.0, 0.5]), &[0.1, 0.01, 0.002, 0.002, 0.002]);
    }

    #[test]
    fn epochs_after_a_lower_rate_do_not_count_while_it_cools_down() {
        let rules = Plateau { patience: 1, cooldown: 2, ..RULES };
        // Epochs 1 and 2 are bad: lower. Epochs 3 and 4 cool down. Epochs 5 and 6 are bad: lower.
        let want = [0.1, 0.1, 0.01, 0.01, 0.01, 0.01, 0.001];
        close(&rates(&rules, &[1.0; 7]), &want);
    }

    #[test]
    fn accuracies_are_better_when_they_are_higher() {
        let rules = Plateau { by: ScoreBy::Accuracy, factor: 0.5, patience: 1, threshold: 0.01, ..RULES };
        // Better is above 0.505, and then above 0.606.
        close(&rates(&rules, &[0.5, 0.504, 0.6, 0.605, 0.605, 0.7]), &[0.1, 0.1, 0.1, 0.1, 0.05, 0.05]);
    }

    #[test]
    fn a_change_of_no_size_is_not_made() {
        let rules = Plateau { patience: 0, factor: 0.5, ..RULES };
        assert_eq!(rules.rate(1e-8, &[1.0, 1.0]), 1e-8);
    }
}
