//! Learning rates over a run: the rate is a function of the step alone, and with `plateau` also of the scores of earlier epochs.
//!
//! ```text
//! constant ------    step --.       cosine -.       one_cycle   .-.         warm-up: a straight line up to
//!                           '--.             '.               .'   '.       any of them
//!                              '--             '-.           '       '--
//! ```
//!
//! Such a function needs no state: a run that resumes continues with the rate that it would have had. The values are those of
//! `torch.optim.lr_scheduler` (cosine: I. Loshchilov and F. Hutter, ICLR 2017; one cycle: L. N. Smith and N. Topin,
//! arXiv:1708.07120; warm-up and a rate that grows with the ranks: P. Goyal et al., arXiv:1706.02677).

mod plateau;

pub use plateau::Plateau;

use crate::Config;
use allfold_config::{LrScheduleConfig, LrScheduleName, LrUnit};
use std::f64::consts::PI;

/// The shape of a learning-rate schedule.
#[allow(missing_docs, reason = "each variant's line says what its fields are")]
#[derive(Clone, Debug, PartialEq)]
pub enum LrShape {
    /// The same rate in every step.
    Constant,
    /// The rate is multiplied by `factor` after every `every` steps.
    Step { every: u64, factor: f64 },
    /// The rate is multiplied by `factor` at each of these steps.
    Milestones { at: Vec<u64>, factor: f64 },
    /// The rate is multiplied by `factor` after every step.
    Exponential { factor: f64 },
    /// The rate is base (1 - step / steps)^power.
    Polynomial { steps: u64, power: f64 },
    /// Half a cosine from the base to `floor` over `steps`; after that, up again.
    Cosine { steps: u64, floor: f64 },
    /// Half a cosine that restarts: after `first` steps, and then each time after `growth` times as many.
    Restarts { first: u64, growth: f64, floor: f64 },
    /// The rate is lowered after epochs that bring no better score.
    Plateau(Plateau),
    /// From base / 25 to base over 30 % of the steps, then to base / 250,000, both by half a cosine.
    OneCycle { steps: u64 },
}

/// The learning rate of each step: a linear warm-up to a base rate, then a shape.
#[derive(Clone, Debug, PartialEq)]
pub struct LrSchedule {
    /// The rate that the shape starts from, or for one cycle, rises to.
    pub base: f64,
    /// Steps of linear warm-up before the shape begins.
    pub warmup: u64,
    /// The share of the base rate that the warm-up starts from.
    pub warmup_from: f64,
    /// The shape after the warm-up.
    pub shape: LrShape,
    /// Steps of an epoch, if the shape counts epochs. The shape then counts from the first epoch on, also with a warm-up.
    pub epoch_steps: Option<u64>,
}

impl LrSchedule {
    /// The schedule of `config` for a run of this many steps, with this many in an epoch, on so many ranks.
    pub fn new(config: &Config, (steps, per_epoch): (u64, u64), ranks: u32) -> LrSchedule {
        let LrScheduleConfig { every, factor, floor, power, warmup_steps: warmup, warmup_from, .. } =
            config.lr_schedule;
        let epoch_steps = (config.lr_schedule.unit == LrUnit::Epoch).then(|| per_epoch.max(1));
        let steps = match epoch_steps {
            Some(per_epoch) => steps.div_ceil(per_epoch),
            None => steps.saturating_sub(warmup),
        };
        let shape = match config.lr_schedule.name {
            LrScheduleName::Step => LrShape::Step { every, factor },
            LrScheduleName::Milestones => {
                LrShape::Milestones { at: config.lr_schedule.milestones.clone(), factor }
            }
            LrScheduleName::Exponential => LrShape::Exponential { factor },
            LrScheduleName::Polynomial => LrShape::Polynomial { steps, power },
            LrScheduleName::Cosine => LrShape::Cosine { steps, floor },
            LrScheduleName::Restarts => LrShape::Restarts { first: every, growth: factor, floor },
            LrScheduleName::OneCycle => LrShape::OneCycle { steps },
            LrScheduleName::Plateau => LrShape::Plateau(Plateau::of(config)),
            LrScheduleName::Constant => LrShape::Constant,
        };
        let base = if config.optimiser.scale_lr {
            config.optimiser.lr * f64::from(ranks)
        } else {
            config.optimiser.lr
        };
        LrSchedule { base, warmup, warmup_from, shape, epoch_steps }
    }

    /// The schedule of the steps that follow epochs with these scores. Only `plateau` depends on them.
    pub fn after(&self, scores: &[f64]) -> LrSchedule {
        let base = match &self.shape {
            LrShape::Plateau(rules) => rules.rate(self.base, scores),
            _ => self.base,
        };
        LrSchedule { base, ..self.clone() }
    }

    /// The rate of `step`, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        match (step.checked_sub(self.warmup), self.epoch_steps) {
            (Some(_), Some(per_epoch)) => self.shape.at(self.base, step / per_epoch),
            (Some(step), None) => self.shape.at(self.base, step),
            (None, _) => {
                let done = step as f64 / self.warmup as f64;
                self.base * (self.warmup_from + (1.0 - self.warmup_from) * done)
            }
        }
    }
}

impl LrShape {
    fn at(&self, base: f64, step: u64) -> f64 {
        match self {
            LrShape::Constant | LrShape::Plateau(_) => base,
            LrShape::Step { every, factor } => base * factor.powf((step / (*every).max(1)) as f64),
            LrShape::Milestones { at, factor } => {
                base * factor.powf(at.iter().filter(|&&at| step >= at).count() as f64)
            }
            LrShape::Exponential { factor } => base * factor.powf(step as f64),
            LrShape::Polynomial { steps, power } => base * (1.0 - share(step, *steps).min(1.0)).powf(*power),
            LrShape::Cosine { steps, floor } => half_cosine(base, *floor, share(step, *steps)),
            LrShape::Restarts { first, growth, floor } => {
                let (mut start, mut length) = (0.0, (*first).max(1) as f64);
                // Each period is longer by the growth; where it is 1, whole periods are skipped at once.
                if *growth > 1.0 {
                    while step as f64 >= start + length {
                        start += length;
                        length *= growth;
                    }
                } else {
                    start = (step as f64 / length).floor() * length;
                }
                half_cosine(base, *floor, (step as f64 - start) / length)
            }
            LrShape::OneCycle { steps } => {
                let last = steps.saturating_sub(1) as f64;
                let (peak, step) = (0.3 * *steps as f64 - 1.0, step as f64);
                let (low, end) = (base / 25.0, base / 25.0 / 1e4);
                if step <= peak {
                    half_cosine(low, base, step / peak)
                } else {
                    half_cosine(base, end, ((step - peak) / (last - peak)).min(1.0))
                }
            }
        }
    }
}

/// The value at `share` of the way from one value to another, along half a cosine.
fn half_cosine(from: f64, to: f64, share: f64) -> f64 {
    to + (from - to) * (1.0 + (PI * share).cos()) / 2.0
}

fn share(step: u64, steps: u64) -> f64 {
    step as f64 / steps.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[derive(serde::Deserialize)]
    struct Oracle {
        lr: BTreeMap<String, Vec<f64>>,
    }

    #[test]
    fn agrees_with_pytorch_in_eight_schedules() {
        let oracle: Oracle = crate::oracle::json("lr_schedules.json");
        let of = |name: &str| match name {
            "CosineAnnealingLR(T_max=30,eta_min=0.001)" => {
                (0.1, 0, LrShape::Cosine { steps: 30, floor: 0.001 })
            }
            "SequentialLR[LinearLR(0.1,1,5),Cosine(35)]@5" => {
                (0.1, 5, LrShape::Cosine { steps: 35, floor: 0.0 })
            }
            "StepLR(10,0.5)" => (0.1, 0, LrShape::Step { every: 10, factor: 0.5 }),
            "MultiStepLR([5,20],0.1)" => (0.1, 0, LrShape::Milestones { at: vec![5, 20], factor: 0.1 }),
            "ExponentialLR(0.9)" => (0.1, 0, LrShape::Exponential { factor: 0.9 }),
            "CosineAnnealingWarmRestarts(10,2)" => {
                (0.1, 0, LrShape::Restarts { first: 10, growth: 2.0, floor: 0.0 })
            }
            "OneCycleLR(max=0.5,total=40)" => (0.5, 0, LrShape::OneCycle { steps: 41 }),
            "PolynomialLR(30,2)" => (0.1, 0, LrShape::Polynomial { steps: 30, power: 2.0 }),
            other => panic!("no schedule is called {other}"),
        };
        crate::oracle::counted(oracle.lr.len(), 8);
        for (name, rates) in &oracle.lr {
            let (base, warmup, shape) = of(name);
            let schedule = LrSchedule { base, warmup, warmup_from: 0.1, shape, epoch_steps: None };
            for (step, &want) in rates.iter().enumerate() {
                let mine = schedule.at(step as u64);
                assert!((mine - want).abs() < 1e-12, "{name}, step {step}: {mine} {want}");
            }
        }
    }

    #[test]
    fn a_rate_can_grow_with_the_ranks_and_ends_with_the_run() {
        let config = Config::default().with(|c| {
            c.optimiser.lr = 0.1;
            c.lr_schedule.name = LrScheduleName::Cosine;
            c.lr_schedule.warmup_steps = 4;
            c.lr_schedule.warmup_from = 0.0;
            c.optimiser.scale_lr = true;
        });
        let schedule = LrSchedule::new(&config, (24, 6), 8);
        assert_eq!((schedule.at(0), schedule.at(1), schedule.at(4)), (0.0, 0.2, 0.8));
        assert!(schedule.at(14) < 0.41 && schedule.at(24).abs() < 1e-15);
        assert_eq!(LrSchedule::new(&config.with(|c| c.optimiser.scale_lr = false), (24, 6), 8).at(4), 0.1);
    }

    /// By epoch, the rates of an epoch's steps are those that PyTorch has for the step of the epoch's number.
    #[test]
    fn by_epoch_every_step_of_an_epoch_has_the_rate_of_the_epoch() {
        use LrScheduleName::{Cosine, Exponential, Milestones, Step};
        for (name, rate) in [(Step, 0.25), (Exponential, 0.0625), (Milestones, 0.25), (Cosine, 0.5)] {
            let config = Config::default().with(|c| {
                c.optimiser.lr = 1.0;
                c.lr_schedule.name = name;
                c.lr_schedule.unit = LrUnit::Epoch;
                c.lr_schedule.every = 2;
                c.lr_schedule.milestones = vec![1, 3];
                c.lr_schedule.warmup_steps = 5;
            });
            // 8 epochs of 10 steps, the last one cut short.
            let schedule = LrSchedule::new(&config, (75, 10), 1);
            assert_eq!(schedule.at(0), 0.1, "{name}: the warm-up goes by steps");
            assert!((5..10).all(|step| schedule.at(step) == 1.0), "{name}: epoch 0 has the base rate");
            assert!((40..50).all(|step| (schedule.at(step) - rate).abs() < 1e-15), "{name}: epoch 4");
            assert!(schedule.at(39) != schedule.at(40) || name == Milestones, "{name}");
        }
    }

    #[test]
    fn a_plateau_lowers_the_base_that_the_warm_up_rises_to() {
        let config = Config::default().with(|c| {
            c.optimiser.lr = 1.0;
            c.lr_schedule.name = LrScheduleName::Plateau;
            c.lr_schedule.patience = 0;
            c.lr_schedule.warmup_steps = 2;
            c.lr_schedule.warmup_from = 0.0;
        });
        let schedule = LrSchedule::new(&config, (100, 10), 1);
        assert_eq!([0, 1, 2, 99].map(|step| schedule.at(step)), [0.0, 0.5, 1.0, 1.0]);
        assert_eq!(schedule.after(&[0.9, 0.8]).at(20), 0.5);
        assert_eq!(schedule.after(&[0.8, 0.9]).at(20), 1.0);
    }

    #[test]
    fn short_runs_have_finite_rates() {
        let names = [
            LrScheduleName::Constant,
            LrScheduleName::Step,
            LrScheduleName::Milestones,
            LrScheduleName::Exponential,
            LrScheduleName::Polynomial,
            LrScheduleName::Cosine,
            LrScheduleName::Restarts,
            LrScheduleName::OneCycle,
            LrScheduleName::Plateau,
        ];
        for name in names {
            for steps in 0..6 {
                let config = Config::default().with(|c| {
                    c.lr_schedule.name = name;
                    c.lr_schedule.unit = if steps % 2 == 0 { LrUnit::Step } else { LrUnit::Epoch };
                    c.lr_schedule.every = 1;
                    c.lr_schedule.factor = 1.0;
                });
                let schedule = LrSchedule::new(&config, (steps, 2), 1);
                assert!((0..8).all(|step| (0.0..=1.0).contains(&schedule.at(step))), "{name}, {steps}");
            }
        }
    }
}
