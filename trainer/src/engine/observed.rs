//! The records of a step for the run's observer: spans of work and waiting, and the peak of memory.

use crate::MemoryUse;
use crate::timing::{BucketTimes, LayerSpan, StepSpan, StepWork};
use allfold_sim::Picos;

/// The records of one step.
#[derive(Default)]
pub(crate) struct Observed {
    /// Whether anything is recorded.
    pub wanted: bool,
    pub spans: Vec<StepSpan>,
    /// Whether the passes of layers are recorded.
    pub layers_wanted: bool,
    pub layers: Vec<LayerSpan>,
    /// The memory of this rank at the time when it held the most.
    pub peak: MemoryUse,
    /// The exchanges of gradients.
    pub log: Vec<BucketTimes>,
    /// The time spent waiting.
    pub waited: Picos,
    /// When the current phase started, or when its last exchange ended.
    pub since: Picos,
}

impl Observed {
    /// Drops the records of the previous step.
    pub fn begin(&mut self) {
        self.spans.clear();
        self.layers.clear();
        self.log.clear();
        (self.peak, self.waited) = (MemoryUse::default(), Picos::ZERO);
    }

    /// Adds a span, if spans are recorded and it is not empty. A span that continues the work of the last one is merged into it;
    /// input and weight gradients of one micro-batch that follow each other become its backward pass.
    pub fn add(&mut self, next: StepSpan) {
        if !self.wanted || next.end <= next.start {
            return;
        }
        let backward = [StepWork::InputGrad, StepWork::WeightGrad, StepWork::Backward];
        if let Some(last) = self.spans.last_mut()
            && last.micro == next.micro
            && last.end == next.start
        {
            let both = backward.contains(&last.work) && backward.contains(&next.work);
            if last.work == next.work || both {
                last.work = if last.work == next.work { last.work } else { StepWork::Backward };
                last.end = next.end;
                return;
            }
        }
        self.spans.push(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_gradients_of_a_micro_batch_are_its_backward_pass() {
        let mut observed = Observed { wanted: true, ..Observed::default() };
        let mut add = |work, micro, start, end| {
            observed.add(StepSpan { work, micro: Some(micro), start: Picos(start), end: Picos(end) });
        };
        add(StepWork::Forward, 0, 0, 2);
        add(StepWork::Forward, 0, 2, 3);
        add(StepWork::InputGrad, 0, 3, 4);
        add(StepWork::WeightGrad, 0, 4, 5);
        add(StepWork::InputGrad, 0, 5, 6);
        add(StepWork::WeightGrad, 1, 6, 7);
        add(StepWork::WeightGrad, 1, 8, 9);
        let told: Vec<_> = observed.spans.iter().map(|span| (span.work, span.start.0, span.end.0)).collect();
        assert_eq!(
            told,
            [
                (StepWork::Forward, 0, 3),
                (StepWork::Backward, 3, 6),
                (StepWork::WeightGrad, 6, 7),
                (StepWork::WeightGrad, 8, 9)
            ]
        );
    }
}
