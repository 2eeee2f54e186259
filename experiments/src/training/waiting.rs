//! For whom ranks wait: while a rank waits in an operation that another one has not entered yet, it waits for that one. The rest of its
//! waiting is for messages that are on their way.
//!
//! ```text
//! rank 0   | compute  | wait .................. |      for rank 1 until rank 1 has entered the all-reduce
//! rank 1   | compute ............ | all-reduce  |
//! ```

use super::trained::RankStep;
use allfold_collectives::Collective;
use allfold_collectives::flight::Entry;
use allfold_report::records::WaitingFor;
use allfold_trainer::timing::StepWork;
use std::collections::BTreeMap;

/// What identifies an operation: its communicator, its number, and of a message its two ends and its length.
type Key = (u64, u64, Option<(u32, u32, u64)>);

fn key(entry: &Entry) -> Key {
    let ends = entry.peer.map(|peer| (entry.rank.min(peer), entry.rank.max(peer), entry.count));
    (entry.group, entry.sequence, ends)
}

/// The rank for which an early rank of an operation waits, and when that one entered it: the last one, or the root if its values are
/// what all wait for.
fn awaited(entry: &Entry, entered: &[(u32, f64, &Entry)]) -> Option<(u32, f64)> {
    let named = |collective: Collective| entry.operation == collective.name();
    let from_root = named(Collective::Broadcast) || named(Collective::Scatter);
    let to_root = named(Collective::Reduce) || named(Collective::Gather);
    if to_root && entry.root != Some(entry.rank) {
        return None;
    }
    let counts = |other: &&(u32, f64, &Entry)| !from_root || entry.root == Some(other.2.rank);
    let last = entered.iter().filter(counts).max_by(|a, b| a.1.total_cmp(&b.1));
    last.map(|(rank, at, _)| (*rank, *at))
}

/// How long each rank waits for each other one in the last step of a run whose spans were recorded. Pairs that do not wait are left out.
pub fn waiting_for(of_ranks: &[Vec<RankStep>]) -> Vec<WaitingFor> {
    let steps: Vec<&RankStep> = of_ranks.iter().filter_map(|steps| steps.last()).collect();
    let mut entered: BTreeMap<Key, Vec<(u32, f64, &Entry)>> = BTreeMap::new();
    for (rank, step) in (0..).zip(&steps) {
        for entry in &step.operations {
            if let Some(at) = entry.started_us {
                entered.entry(key(entry)).or_default().push((rank, at, entry));
            }
        }
    }
    let mut sums: BTreeMap<(u32, u32), f64> = BTreeMap::new();
    for (rank, step) in (0..).zip(&steps) {
        // From when to when the rank is in an operation that the awaited rank has not entered.
        let mut early: Vec<(f64, f64, u32)> = Vec::new();
        for entry in &step.operations {
            if let (Some(own), Some(all)) = (entry.started_us, entered.get(&key(entry)))
                && let Some((of, at)) = awaited(entry, all).filter(|(of, at)| *of != rank && *at > own)
            {
                early.push((own, at, of));
            }
        }
        early.sort_by(|a, b| a.0.total_cmp(&b.0));
        for span in step.spans.iter().filter(|span| span.work == StepWork::Waiting) {
            let (mut from, end) = (span.start.as_micros(), span.end.as_micros());
            for &(start, until, of) in &early {
                let (begin, until) = (from.max(start), end.min(until));
                if until > begin {
                    *sums.entry((rank, of)).or_default() += until - begin;
                    from = until;
                }
            }
        }
    }
    sums.into_iter().map(|((rank, of), us)| WaitingFor { rank, of, us }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::launch_mode::{LaunchMode, SimulatedRanks};
    use crate::training::run::{self, RecordOptions};
    use allfold_sim::{Device, Faults, Topology};
    use allfold_trainer::Config;

    fn config(strategy: &str) -> Config {
        Config::default().with(|c| {
            c.strategy = strategy.into();
            c.training.batch = 8;
            c.training.max_steps = 3;
            c.training.accumulate = if strategy == "pipeline" { 4 } else { 1 };
            c.data.train_samples = 96;
        })
    }

    /// Who waits for whom in the last step of three ranks, one of which computes more slowly.
    fn waits(strategy: &str, slow: u32) -> (Vec<WaitingFor>, Vec<f64>) {
        let topology = Topology::named("switch", 3).unwrap();
        let faults = Faults::parse([&*format!("device={slow}:cpu_core")], &topology).unwrap();
        let devices = Device::A100_F32.into();
        let place = LaunchMode::Sim(Box::new(SimulatedRanks { topology, devices, faults }));
        let noted = RecordOptions { spans: true, ..RecordOptions::default() };
        let config = config(strategy);
        let data = run::load(&config).unwrap();
        let trained = run::run_on(&config, &data, &place, &indicatif::ProgressBar::hidden(), noted).unwrap();
        let exposed = trained.steps.iter().map(|steps| steps.last().unwrap().time.exposed.as_micros());
        (waiting_for(&trained.steps), exposed.collect())
    }

    #[test]
    fn a_slow_rank_is_who_the_others_wait_for() {
        for strategy in ["ddp", "zero3", "pipeline"] {
            for slow in [0, 2] {
                let (found, exposed) = waits(strategy, slow);
                // In a pipeline a stage waits for its neighbour, which may wait for the slow one.
                let counts = |pair: &&WaitingFor| strategy != "pipeline" || pair.rank == 1;
                let of = |of: u32| {
                    found.iter().filter(counts).filter(|pair| pair.of == of).map(|pair| pair.us).sum::<f64>()
                };
                let others = (0..3).filter(|rank| *rank != slow).map(of).sum::<f64>();
                assert!(of(slow) > 3.0 * others, "{strategy}, rank {slow}: {found:?}");
                // Nobody waits for longer than it waits.
                for (rank, exposed) in (0..).zip(exposed) {
                    let own: f64 = found.iter().filter(|pair| pair.rank == rank).map(|pair| pair.us).sum();
                    assert!(own <= exposed + 1e-3, "{strategy}: rank {rank} waits {exposed}, {found:?}");
                }
            }
        }
    }
}
