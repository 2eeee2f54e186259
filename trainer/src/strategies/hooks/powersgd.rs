//! PowerSGD: each parameter's gradient as the product of two thin matrices (T. Vogels, S. P. Karimireddy and M. Jaggi,
//! NeurIPS 2019).
//!
//! ```text
//! M [n, m] = gradient + error, of a parameter seen as a matrix         Q [m, r], the last step's
//! P = M Q, summed over ranks, then made orthonormal
//! Q = M^T P, summed over ranks
//! the sum is P Q^T;  error = M - P Q^T / ranks
//! ```
//!
//! Parameters that two thin matrices would not make smaller, such as biases and norms, are summed uncompressed.

use super::feedback::Feedback;
use crate::ParamSpec;
use crate::Result;
use crate::buckets::Bucket;
use crate::timing::work;
use allfold_collectives::{Communicator, ReduceOp};
use allfold_kernels::nn::{Float, Matrix, OpCost, Store, matmul};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// The state of each bucket: errors, and the right matrices of its parameters.
pub struct PowerSgd<F> {
    rank: usize,
    seed: u64,
    errors: Feedback<F>,
    rights: Feedback<F>,
}

/// A parameter as a matrix in a bucket.
struct Part {
    param: usize,
    start: usize,
    rows: usize,
    cols: usize,
}

impl<F: Float> PowerSgd<F> {
    /// PowerSGD with matrices of this rank; `undoable` says whether a step may be undone.
    pub fn new(rank: usize, seed: u64, undoable: bool) -> PowerSgd<F> {
        PowerSgd { rank, seed, errors: Feedback::new(undoable), rights: Feedback::new(undoable) }
    }

    /// Drops the state of all buckets.
    pub fn reset(&mut self) {
        self.errors.clear();
        self.rights.clear();
    }

    /// Number of elements of the state.
    pub fn elements(&self) -> usize {
        self.errors.elements() + self.rights.elements()
    }

    /// Undoes the last step.
    pub fn undo(&mut self) {
        self.errors.undo();
        self.rights.undo();
    }

    /// Multiplies the errors by `by`, because gradients have another scale from now on.
    pub fn rescale(&mut self, by: F) {
        self.errors.rescale(by);
    }

    /// The state that a resumed run needs: errors bucket by bucket, and right matrices by parameter.
    pub fn hook_state(&mut self, buckets: &[Bucket], params: &[ParamSpec]) -> (Vec<Vec<F>>, Vec<F>) {
        let mut rights: Vec<Vec<F>> = vec![Vec::new(); params.len()];
        self.each_right(buckets, params, |param, right| rights[param] = right.to_vec());
        (self.errors.values().to_vec(), rights.concat())
    }

    /// Continues from the state that [`PowerSgd::hook_state`] returned.
    pub fn load_hook_state(
        &mut self,
        buckets: &[Bucket],
        params: &[ParamSpec],
        errors: Vec<Vec<F>>,
        rights: &[F],
    ) {
        let mut lengths = vec![0; params.len()];
        self.each_right(buckets, params, |param, right| lengths[param] = right.len());
        let start = |param: usize| lengths[..param].iter().sum::<usize>();
        self.each_right(buckets, params, |param, right| {
            right.copy_from_slice(&rights[start(param)..][..right.len()]);
        });
        self.errors.set(errors);
    }

    /// Calls `each` with every parameter that has a right matrix, and that matrix.
    fn each_right(
        &mut self,
        buckets: &[Bucket],
        params: &[ParamSpec],
        mut each: impl FnMut(usize, &mut [F]),
    ) {
        for (index, bucket) in buckets.iter().enumerate() {
            let (parts, _) = split(self.rank, bucket, params);
            self.prepare(index, &parts, bucket.elements);
            let mut rest = &mut self.rights.bucket(index)[..];
            for part in parts {
                let (right, after) = rest.split_at_mut(part.cols * self.rank);
                each(part.param, right);
                rest = after;
            }
        }
    }

    /// Replaces a bucket by the sum over ranks.
    ///
    /// # Errors
    /// If communication fails.
    pub fn exchange(
        &mut self,
        index: usize,
        bucket: &Bucket,
        params: &[ParamSpec],
        buffer: &mut [F],
        comm: &Communicator,
    ) -> Result<()> {
        let (parts, plain) = split(self.rank, bucket, params);
        self.prepare(index, &parts, buffer.len());
        let (r, error) = (self.rank, &self.errors.values()[index]);
        for part in &parts {
            let range = part.start..part.start + part.rows * part.cols;
            buffer[range.clone()].iter_mut().zip(&error[range]).for_each(|(g, &e)| *g += e);
        }

        let mut uncompressed: Vec<F> =
            plain.iter().flat_map(|range| buffer[range.clone()].to_vec()).collect();
        comm.all_reduce(&mut uncompressed, ReduceOp::Sum)?;
        let mut rest = &uncompressed[..];
        for range in plain {
            let (values, after) = rest.split_at(range.len());
            buffer[range].copy_from_slice(values);
            rest = after;
        }

        let matrix = |part: &Part| part.start..part.start + part.rows * part.cols;
        let mut lefts = vec![F::ZERO; parts.iter().map(|part| part.rows * r).sum()];
        let (mut p_at, mut q_at) = (0, 0);
        for part in &parts {
            let m = Matrix::new(&buffer[matrix(part)], part.rows, part.cols);
            let q = Matrix::new(&self.rights.values()[index][q_at..q_at + part.cols * r], part.cols, r);
            matmul(&mut lefts[p_at..p_at + part.rows * r], Store::Replace, m, q);
            (p_at, q_at) = (p_at + part.rows * r, q_at + part.cols * r);
        }
        comm.all_reduce(&mut lefts, ReduceOp::Sum)?;
        (p_at, q_at) = (0, 0);
        // From here on the step writes its new values. If no parameter is compressed, the errors stay 0.
        let ((error, _), (rights, _)) = (self.errors.begin_step(index), self.rights.begin_step(index));
        for part in &parts {
            let p = &mut lefts[p_at..p_at + part.rows * r];
            orthonormal(p, r);
            let m = Matrix::new(&buffer[matrix(part)], part.rows, part.cols);
            matmul(
                &mut rights[q_at..q_at + part.cols * r],
                Store::Replace,
                m.t(),
                Matrix::new(p, part.rows, r),
            );
            (p_at, q_at) = (p_at + part.rows * r, q_at + part.cols * r);
        }
        comm.all_reduce(rights, ReduceOp::Sum)?;
        (p_at, q_at) = (0, 0);
        for part in &parts {
            let range = matrix(part);
            error[range.clone()].copy_from_slice(&buffer[range.clone()]);
            let p = Matrix::new(&lefts[p_at..p_at + part.rows * r], part.rows, r);
            let q = Matrix::new(&rights[q_at..q_at + part.cols * r], part.cols, r);
            matmul(&mut buffer[range.clone()], Store::Replace, p, q.t());
            // This rank's share of the sum: with it, the errors of all ranks together are the difference between the true sum and
            // the sent one.
            let share = F::ONE / F::from_f64(f64::from(comm.size()));
            error[range.clone()].iter_mut().zip(&buffer[range]).for_each(|(e, &sum)| *e = *e - sum * share);
            (p_at, q_at) = (p_at + part.rows * r, q_at + part.cols * r);
        }
        comm.charge(&work(cost::<F>(r, buffer.len())));
        Ok(())
    }

    /// Prepares a bucket that is new: errors of zero, and random right matrices that are the same on all ranks.
    fn prepare(&mut self, index: usize, parts: &[Part], elements: usize) {
        self.rights.bucket(index);
        if self.errors.bucket(index).len() == elements {
            return;
        }
        *self.errors.bucket(index) = vec![F::ZERO; elements];
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(u64::MAX - index as u64);
        let count = parts.iter().map(|part| part.cols * self.rank).sum();
        let uniform = |_| F::from_f64((random.next_u64() >> 11) as f64 / (1u64 << 52) as f64 - 1.0);
        *self.rights.bucket(index) = (0..count).map(uniform).collect();
    }
}

/// The parameters that become matrices, and the elements that do not.
fn split(rank: usize, bucket: &Bucket, params: &[ParamSpec]) -> (Vec<Part>, Vec<std::ops::Range<usize>>) {
    let (mut parts, mut plain) = (Vec::new(), Vec::new());
    for (param, range) in bucket.places(params) {
        let rows = params[param].shape.first().copied().unwrap_or(1).max(1);
        let cols = range.len() / rows;
        if params[param].shape.len() > 1 && (rows + cols) * rank < rows * cols {
            parts.push(Part { param, start: range.start, rows, cols });
        } else {
            plain.push(range);
        }
    }
    (parts, plain)
}

/// The numbers of elements that are summed for a bucket, one after the other: uncompressed ones, left matrices, right matrices.
pub(super) fn sums(rank: usize, bucket: &Bucket, params: &[ParamSpec]) -> [usize; 3] {
    let (parts, plain) = split(rank, bucket, params);
    let of = |side: fn(&Part) -> usize| parts.iter().map(|part| side(part) * rank).sum();
    [plain.iter().map(ExactSizeIterator::len).sum(), of(|part| part.rows), of(|part| part.cols)]
}

/// The cost of a bucket's products.
pub(super) fn cost<F>(rank: usize, elements: usize) -> OpCost {
    OpCost::launch(6 * rank * elements, 6 * elements, size_of::<F>())
}

/// Makes the `r` columns of `p` orthonormal, in place (Gram and Schmidt's process, column after column); a column that
/// depends on those before it becomes 0.
fn orthonormal<F: Float>(p: &mut [F], r: usize) {
    for j in 0..r {
        for i in 0..j {
            let dot: f64 = p.chunks_exact(r).map(|row| row[i].to_f64() * row[j].to_f64()).sum();
            let dot = F::from_f64(dot);
            p.chunks_exact_mut(r).for_each(|row| row[j] = row[j] - dot * row[i]);
        }
        let norm = p.chunks_exact(r).map(|row| row[j].to_f64().powi(2)).sum::<f64>().sqrt();
        let scale = F::from_f64(if norm > 1e-30 { 1.0 / norm } else { 0.0 });
        p.chunks_exact_mut(r).for_each(|row| row[j] = row[j] * scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::Init;
    use allfold_collectives::World;

    /// After two steps, matrices of rank 2 give a gradient of rank 2 up to rounding.
    #[test]
    fn what_has_the_rank_passes_whole() {
        let place = |name: &str, shape: &[usize], start: usize| {
            let range = start..start + shape.iter().product::<usize>();
            ParamSpec { name: name.into(), shape: shape.to_vec(), range, init: Init::Constant(0.0) }
        };
        let params = [place("w", &[8, 12], 0), place("b", &[8], 96)];
        let bucket = Bucket { params: vec![1, 0], elements: 104 };
        let of = |rank: f64, i: usize| {
            let (row, col) = ((i / 12) as f64, (i % 12) as f64);
            (1.0 + rank) * row * col + (row - 3.0) * (col * col - 5.0) * (2.0 - rank)
        };
        let all = World::threads(2).run(|comm| {
            let mut hook = PowerSgd::<f64>::new(2, 7, true);
            let rank = f64::from(comm.rank().0);
            let mut last = Vec::new();
            for _ in 0..2 {
                last = (0..8).map(|i| rank + i as f64).chain((0..96).map(|i| of(rank, i))).collect();
                hook.exchange(0, &bucket, &params, &mut last, &comm)?;
            }
            Ok::<_, crate::Error>(last)
        });
        for sum in all.unwrap() {
            assert!((0..8).all(|i| sum[i] == 1.0 + 2.0 * i as f64));
            for i in 0..96 {
                let want = of(0.0, i) + of(1.0, i);
                assert!((sum[8 + i] - want).abs() < 1e-9 * (1.0 + want.abs()), "{i}: {} {want}", sum[8 + i]);
            }
        }
    }
}
