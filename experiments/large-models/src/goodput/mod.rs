//! The share of a run's time that trains: failures, restarts, checkpoints and stragglers.
//!
//! ```text
//! |== interval ==|c|== interval ==|c|=== x lost | detect + restart | == interval ==|c| ...
//! useful: what a later checkpoint keeps.  x: failures of all GPUs, a Poisson process.  Without a spare node: wait for a repair.
//! ```
//! Sources: J. Young, "A first order approximation to the optimum checkpoint interval", 1974; J. Daly, "A higher order estimate of the
//! optimum checkpoint interval for restart dumps", 2006.

mod causes;

use allfold_base::hash::SplitMix;
pub use causes::{CAUSES, FailureCause, LLAMA3_GPU_HOURS, mean_gpu_hours};

/// What stops and slows a run. Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultyRun {
    /// The number of GPUs.
    pub gpus: u32,
    /// Time on the wall.
    pub seconds: f64,
    /// GPU hours between failures, all parts of a GPU's share of its node and network together.
    pub gpu_hours: f64,
    /// Planned interruptions for each day.
    pub planned_per_day: f64,
    /// Time for which a checkpoint stops training.
    pub checkpoint: f64,
    /// Time between checkpoints; `None`: the best one.
    pub interval: Option<f64>,
    /// Mean time from a failure to the first new step.
    pub restart: f64,
    /// Spare nodes.
    pub spares: u32,
    /// GPUs of a node.
    pub node: u32,
    /// Mean time of a node's repair.
    pub repair: f64,
    /// The share by which the slowest GPU slows every step.
    pub stragglers: f64,
}

impl FaultyRun {
    /// A run of so many GPUs with a state of `state` bytes in each checkpoint. Failures are those of Llama 3's training, whose storage
    /// wrote 2 TB/s for 16,384 GPUs (Grattafiori et al., 2024, section 3.3.1); 10 minutes pass from a failure to the next step (Jiang
    /// et al., "MegaScale", 2024: less than 10 minutes to detect and diagnose); repairs take a day, and there is a spare node for
    /// each 128, which are assumptions.
    pub fn usual(gpus: u32, node: u32, seconds: f64, state: f64) -> FaultyRun {
        FaultyRun {
            gpus,
            seconds,
            gpu_hours: mean_gpu_hours(),
            planned_per_day: 0.0,
            checkpoint: (state / (f64::from(gpus) * STORAGE)).max(1.0),
            interval: None,
            restart: 600.0,
            spares: (gpus / node.max(1)).div_ceil(128),
            node: node.max(1),
            repair: 86400.0,
            stragglers: 0.0,
        }
    }

    /// Mean time between interruptions.
    pub fn between(&self) -> f64 {
        let failures = f64::from(self.gpus) / (self.gpu_hours * 3600.0);
        1.0 / (failures + self.planned_per_day / 86400.0)
    }

    /// The interval by Young's formula.
    pub fn young(&self) -> f64 {
        (2.0 * self.checkpoint * self.between()).sqrt()
    }

    /// The interval by Daly's formula.
    pub fn daly(&self) -> f64 {
        let (write, mean) = (self.checkpoint, self.between());
        if write >= 2.0 * mean {
            return mean;
        }
        let part = (write / (2.0 * mean)).sqrt();
        (2.0 * write * mean).sqrt() * (1.0 + part / 3.0 + part * part / 9.0) - write
    }

    /// The expected useful share without waiting for repairs, in closed form: a segment of `t = interval + checkpoint` between
    /// failures that come every `mean` takes `(restart + mean) (exp(t / mean) - 1)` on average (Daly, 2006, equation 20).
    pub fn closed_form(&self, interval: f64) -> f64 {
        let mean = self.between();
        let takes = (self.restart + mean) * ((interval + self.checkpoint) / mean).exp_m1();
        interval / takes / (1.0 + self.stragglers)
    }

    /// The interval with the largest expected share.
    pub fn best_interval(&self) -> f64 {
        let (mut low, mut high) = (self.young() / 4.0, self.young() * 4.0);
        for _ in 0..60 {
            let (left, right) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
            if self.closed_form(left) < self.closed_form(right) { low = left } else { high = right }
        }
        (low + high) / 2.0
    }
}

/// The useful share of many simulated runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goodput {
    /// The mean.
    pub share: f64,
    /// A tenth of all runs is below this share.
    pub low: f64,
    /// A tenth of all runs is above this share.
    pub high: f64,
    /// Mean number of interruptions.
    pub interruptions: f64,
    /// Time between checkpoints.
    pub interval: f64,
}

/// Bytes a second that storage writes for each GPU.
const STORAGE: f64 = 2e12 / 16_384.0;

/// Runs that are simulated.
const RUNS: usize = 400;
/// The most interruptions of a simulated run; a longer run is like its part up to them.
const MOST: u32 = 2000;

/// Simulates a run many times; the same seed gives the same result.
pub fn goodput(run: &FaultyRun, seed: u64) -> Goodput {
    let interval = run.interval.unwrap_or_else(|| run.best_interval());
    let mut random = SplitMix(seed);
    let (mut shares, mut interruptions) = (Vec::with_capacity(RUNS), 0.0);
    for _ in 0..RUNS {
        let (share, count) = once(run, interval, &mut random);
        shares.push(share / (1.0 + run.stragglers));
        interruptions += f64::from(count) / RUNS as f64;
    }
    shares.sort_by(f64::total_cmp);
    let at = |share: f64| shares.get((share * (RUNS - 1) as f64) as usize).copied().unwrap_or(0.0);
    let share = shares.iter().sum::<f64>() / RUNS as f64;
    Goodput { share, low: at(0.1), high: at(0.9), interruptions, interval }
}

/// One run: its useful share and its interruptions.
fn once(run: &FaultyRun, interval: f64, random: &mut SplitMix) -> (f64, u32) {
    let failing = run.planned_per_day / 86400.0 * run.between();
    let segment = interval + run.checkpoint;
    let (mut now, mut useful, mut count) = (0.0, 0.0, 0);
    // When each spare is back; a failure takes the first.
    let mut spares = vec![0.0_f64; run.spares as usize + 1];
    while now < run.seconds && count < MOST {
        let failure = now + exponential(random, run.between());
        let end = failure.min(run.seconds);
        let kept = ((end - now) / segment).floor();
        let rest = (end - now) - kept * segment;
        useful += kept * interval;
        if failure >= run.seconds {
            // What runs at the end is not lost.
            useful += rest.min(interval);
            break;
        }
        count += 1;
        now = failure + run.restart * (0.5 + uniform(random));
        if uniform(random) >= failing && run.repair > 0.0 {
            // The last place is that of the node that failed: without a spare the run waits for its repair.
            let repaired = failure + exponential(random, run.repair);
            spares.sort_by(f64::total_cmp);
            if let Some(first) = spares.first_mut() {
                now = now.max(*first);
                *first = repaired;
            }
        }
    }
    let part = (now / run.seconds).clamp(1e-9, 1.0);
    let part = if count < MOST { 1.0 } else { part };
    ((useful / (run.seconds * part)).clamp(0.0, 1.0), (f64::from(count) / part) as u32)
}

/// A number of (0, 1].
fn uniform(random: &mut SplitMix) -> f64 {
    ((random.word() >> 11) + 1) as f64 / (1u64 << 53) as f64
}

fn exponential(random: &mut SplitMix, mean: f64) -> f64 {
    -uniform(random).ln() * mean
}

#[cfg(test)]
mod tests;
