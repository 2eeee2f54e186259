//! The clock of a rank, and the records of its step.

use allfold_sim::Picos;
use allfold_trainer::timing::{BucketTimes, StepBreakdown, StepSpan, StepWork};

/// The time of a rank.
#[derive(Default)]
pub(crate) struct RankClock {
    pub now: Picos,
    /// The time of the forward passes, of waiting and of the optimiser in this step.
    pub time: StepBreakdown,
    /// The exchanges of gradients, and the work and waiting, of this step.
    pub log: Vec<BucketTimes>,
    pub spans: Vec<StepSpan>,
}

impl RankClock {
    /// The time of the step that began at `start` by parts, of which the batch took `data`.
    pub fn breakdown(&self, start: Picos, data: Picos) -> StepBreakdown {
        let before = StepBreakdown { data, ..self.time };
        let backward = Picos((self.now - start).0.saturating_sub(before.total().0));
        StepBreakdown { backward, ..before }
    }

    /// Does `work` for this long, for micro-batch `micro` if any.
    pub fn does(&mut self, work: StepWork, micro: Option<usize>, takes: Picos) {
        let start = self.now;
        self.now += takes;
        self.did(work, micro, start);
    }

    /// Records that the rank did `work` from `start` until now.
    pub fn did(&mut self, work: StepWork, micro: Option<usize>, start: Picos) {
        if self.now > start {
            self.spans.push(StepSpan { work, micro, start, end: self.now });
        }
    }

    /// Waits until this time.
    pub fn wait_until(&mut self, done: Picos) {
        let start = self.now;
        self.now = self.now.later(done);
        self.time.exposed += self.now - start;
        self.did(StepWork::Waiting, None, start);
    }
}
