//! Which elements of a network's parameters a rank has.

use std::ops::Range;

/// Where the elements of a rank's parameters lie in those of the whole network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamLayout {
    /// Runs of neighbours among the whole parameters, in order of the rank's elements.
    runs: Vec<Range<usize>>,
    /// The number of elements of the whole.
    whole: usize,
}

impl ParamLayout {
    /// The layout of a rank that has these runs of the `whole` elements, in order.
    pub(super) fn of(parts: impl Iterator<Item = Range<usize>>, whole: usize) -> ParamLayout {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for run in parts {
            match runs.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => runs.push(run),
            }
        }
        ParamLayout { runs, whole }
    }

    /// The rank's elements of `whole`.
    pub fn take<T: Copy>(&self, whole: &[T]) -> Vec<T> {
        self.runs.iter().flat_map(|run| whole[run.clone()].iter().copied()).collect()
    }

    /// Copies `part`, which begins at the rank's element `first`, to its places in `whole`.
    pub fn put<T: Copy>(&self, first: usize, part: &[T], whole: &mut [T]) {
        let (mut at, end) = (0, first + part.len());
        for run in &self.runs {
            let (from, to) = (at.max(first), (at + run.len()).min(end));
            if from < to {
                whole[run.start + from - at..run.start + to - at]
                    .copy_from_slice(&part[from - first..to - first]);
            }
            at += run.len();
            if at >= end {
                return;
            }
        }
    }

    /// The number of elements that the rank has.
    pub fn part(&self) -> usize {
        self.runs.iter().map(Range::len).sum()
    }

    /// The number of elements of the whole.
    pub fn whole(&self) -> usize {
        self.whole
    }
}
