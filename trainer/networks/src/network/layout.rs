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
        let mut rest = part;
        for run in self.runs_of(first..first + part.len()) {
            let (own, after) = rest.split_at(run.len());
            whole[run].copy_from_slice(own);
            rest = after;
        }
    }

    /// The places in the whole of the rank's elements `range`, in order.
    pub fn runs_of(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let (mut at, mut found) = (0, Vec::new());
        for run in &self.runs {
            let (from, to) = (at.max(range.start), (at + run.len()).min(range.end));
            if from < to {
                found.push(run.start + from - at..run.start + to - at);
            }
            at += run.len();
            if at >= range.end {
                break;
            }
        }
        found
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
