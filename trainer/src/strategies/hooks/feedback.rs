//! The values that a hook keeps for each bucket from one step to the next, and restores if a loss scale skips the step.

use allfold_kernels::nn::Float;

/// Values that are kept for each bucket.
pub struct Feedback<F> {
    now: Vec<Vec<F>>,
    /// The values before the last step, if a step may be undone. A step writes to the other buffer, so that nothing is copied.
    before: Option<Vec<Vec<F>>>,
}

impl<F: Float> Feedback<F> {
    /// An empty state; `undoable` says whether a step may be undone.
    pub fn new(undoable: bool) -> Feedback<F> {
        Feedback { now: Vec::new(), before: undoable.then(Vec::new) }
    }

    /// Drops the values of all buckets.
    pub fn clear(&mut self) {
        self.now.clear();
        self.before.iter_mut().for_each(Vec::clear);
    }

    /// The number of kept elements.
    pub fn elements(&self) -> usize {
        self.now.iter().chain(self.before.iter().flatten()).map(Vec::capacity).sum()
    }

    /// The values of each bucket so far.
    pub fn values(&self) -> &[Vec<F>] {
        &self.now
    }

    /// The values of a bucket, which is added if it is new.
    pub fn bucket(&mut self, bucket: usize) -> &mut Vec<F> {
        if self.now.len() <= bucket {
            self.now.resize(bucket + 1, Vec::new());
        }
        &mut self.now[bucket]
    }

    /// Replaces all values, and drops those of the previous step.
    pub fn set(&mut self, values: Vec<Vec<F>>) {
        self.now = values;
        self.before.iter_mut().for_each(Vec::clear);
    }

    /// Begins a step of a bucket: returns the buffer for its new values, and its old values unless they are in that buffer.
    pub fn begin_step(&mut self, bucket: usize) -> (&mut [F], Option<&[F]>) {
        let Some(before) = &mut self.before else { return (&mut self.now[bucket], None) };
        if before.len() <= bucket {
            before.resize(bucket + 1, Vec::new());
        }
        std::mem::swap(&mut self.now[bucket], &mut before[bucket]);
        self.now[bucket].resize(before[bucket].len(), F::ZERO);
        (&mut self.now[bucket], Some(&before[bucket]))
    }

    /// Undoes the last step, in which [`Feedback::begin_step`] was called for every bucket.
    pub fn undo(&mut self) {
        if let Some(before) = &mut self.before {
            std::mem::swap(&mut self.now, before);
        }
    }

    /// Multiplies all values by `by`.
    pub fn rescale(&mut self, by: F) {
        self.now.iter_mut().flatten().for_each(|value| *value = *value * by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_taken_back_and_the_next_one_begins_where_it_did() {
        let mut kept = Feedback::<f32>::new(true);
        let add = |kept: &mut Feedback<f32>, by: f32| {
            let (now, old) = kept.begin_step(1);
            now.iter_mut().zip(old.unwrap()).for_each(|(now, old)| *now = old + by);
        };
        kept.bucket(1).resize(2, 0.0);
        add(&mut kept, 1.0);
        add(&mut kept, 2.0);
        kept.undo();
        assert_eq!(kept.values()[1], [1.0, 1.0]);
        kept.rescale(0.5);
        add(&mut kept, 4.0);
        assert_eq!(kept.values()[1], [4.5, 4.5]);
        kept.undo();
        assert_eq!(kept.values()[1], [0.5, 0.5]);
    }
}
