//! One step of a run as bars of a timeline: each rank's computation, and its communication at the same time.

use super::rank_steps::RankSteps;
use super::trained::{RankStep, Trained};
use allfold_collectives::Activity;
use allfold_report::records::TimelineSpan;
use allfold_sim::Picos;

impl Trained {
    /// The bars of one step of the run: the parts of each rank's own work, and its communication meanwhile. Empty for a step
    /// that this process did not run.
    pub fn spans(&self, step: usize) -> Vec<TimelineSpan> {
        let here = step.checked_sub(self.result.losses.len() - self.made());
        here.map_or_else(Vec::new, |step| RankSteps::from(self).spans(step))
    }
}

impl RankSteps<'_> {
    /// The bars of a step, by its place among these steps: the parts of each rank's own work, and its communication meanwhile.
    pub fn spans(&self, step: usize) -> Vec<TimelineSpan> {
        let begin = |s: &RankStep| s.span().0;
        let start = self.of_ranks.iter().filter_map(|s| s.get(step)).map(begin).min().unwrap_or_default();
        let at = |time: Picos| time.0.saturating_sub(start.0) as f64 / 1e6;
        let mut spans = Vec::new();
        for (rank, of) in (0u32..).zip(self.of_ranks) {
            let Some(done) = of.get(step) else { continue };
            let (mut now, time) = (begin(done), done.time);
            spans.extend(done.spans.iter().map(|span| TimelineSpan {
                strategy: None,
                rank,
                stream: "compute".into(),
                name: span.micro.map_or_else(
                    || span.work.name().to_string(),
                    |micro| format!("{} {micro}", span.work.name()),
                ),
                start_us: at(span.start),
                end_us: at(span.end),
            }));
            let parts = [
                ("data", time.data),
                ("forward", time.forward),
                ("backward", time.backward),
                ("exposed", time.exposed),
                ("optimiser", time.optimiser),
            ];
            // If the spans of the step were not recorded, its parts are drawn one after another.
            let known = !done.spans.is_empty();
            for (name, length) in parts.into_iter().filter(|(_, length)| !known && length.0 > 0) {
                let (start_us, end_us) = (at(now), at(now + length));
                spans.push(TimelineSpan {
                    strategy: None,
                    rank,
                    stream: "compute".into(),
                    name: name.into(),
                    start_us,
                    end_us,
                });
                now += length;
            }
            // On virtual time the activities of the communicator are known. On real time only the times at which each bucket was
            // sent and was summed are known; buckets are exchanged one after another.
            let mut free = Picos::ZERO;
            for bucket in done.buckets.iter().filter(|_| self.timeline.is_empty()) {
                let start = bucket.sent.later(free);
                free = bucket.done.later(free);
                spans.push(TimelineSpan {
                    strategy: None,
                    rank,
                    stream: "communication".into(),
                    name: format!("bucket {}, {} bytes", bucket.bucket, bucket.bytes),
                    start_us: at(start),
                    end_us: at(free.later(start)),
                });
            }
            let (from, to) = done.span();
            let inside =
                |a: &&Activity| a.rank.0 == rank && a.what != "compute" && a.start >= from && a.end <= to;
            for activity in self.timeline.iter().filter(inside) {
                spans.push(TimelineSpan {
                    strategy: None,
                    rank,
                    stream: "communication".into(),
                    name: activity.what.clone(),
                    start_us: at(activity.start),
                    end_us: at(activity.end),
                });
            }
        }
        spans
    }
}
