//! Self-attention of several heads (A. Vaswani et al., NeurIPS 2017), a block of queries at a time.
//!
//! ```text
//! x [N, T, C + 2 G D]: queries of H heads of D = C / H numbers each, then keys and values of G heads        y [N, T, C]
//! H / G heads of queries, which are neighbours, share a head of keys and of values: grouped queries, if G is less than H
//! s = q k^T / sqrt(D) for keys up to the query's own position, or for all;   p = softmax(s);   y = p v
//! dv = p^T dy     ds = p (dy v^T - sum(dy y)) / sqrt(D)     dq = ds k     dk = ds^T q
//! ```
//!
//! The gradients of keys and values are summed over the heads of queries that share them (J. Ainslie et al., "GQA", EMNLP 2023).
//!
//! With dropout, y = r p v, where r is 0 for dropped probabilities and 1 / (1 - share) for the others; then dp = r (dy v^T) and dv = (r
//! p)^T dy. ds is unchanged: sum(dy y) is still the row's sum of p dp. The backward pass repeats the draws.
//!
//! Only a block's rows of s exist at a time. The backward pass recomputes them, and computes p from them and each row's log-sum-exp,
//! which the forward pass saves (T. Dao et al., "FlashAttention", NeurIPS 2022).

use super::matmul::{Matrix, Store, matmul, matmul_within};
use super::simd::vectorised;
use super::sum::{largest, sum, sum_pairs};
use super::thread_pool::{share_rows, share_rows_of};
use super::{DropoutKernel, DropoutStream, Float, OpCost};
use std::ops::Range;

/// The number of scores that are computed together.
const VECTOR: usize = 16;
/// The number of queries in a block.
const BLOCK: usize = 32;

/// The shape of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// The number of positions of a sequence, T.
    pub positions: usize,
    /// The number of elements per position, C.
    pub width: usize,
    /// The number of heads, H, a divisor of C.
    pub heads: usize,
    /// The number of heads of keys and values, G, a divisor of H.
    pub kv_heads: usize,
    /// Whether a query attends to its own and earlier positions only, instead of all.
    pub causal: bool,
}

vectorised! {
    /// Turns scores into probabilities, row by row; row r attends to `seen + more r` keys. `saved` receives each row's log-sum-exp.
    fn softmax<F>(s: &mut [F], keys: usize, seen: usize, more: usize, scale: F, saved: &mut [F]) {
        for ((r, s), saved) in s.chunks_exact_mut(keys).enumerate().zip(saved) {
            let s = seen_of(s, seen + more * r);
            let max = largest(s);
            s.iter_mut().for_each(|s| *s = ((*s - max) * scale).exp_fast());
            let total = sum(s, |s| s);
            let share = F::from_f64(1.0 / total);
            s.iter_mut().for_each(|s| *s = *s * share);
            *saved = max * scale + F::from_f64(total.ln());
        }
    }

    /// Recomputes the probabilities from the scores and each row's saved log-sum-exp.
    fn again<F>(s: &mut [F], keys: usize, seen: usize, more: usize, scale: F, saved: &[F]) {
        for ((r, s), &saved) in s.chunks_exact_mut(keys).enumerate().zip(saved) {
            seen_of(s, seen + more * r).iter_mut().for_each(|s| *s = (*s * scale - saved).exp_fast());
        }
    }

    /// Replaces `dp` by `ds = p (dp - d) scale`; `d` is each row's sum of dy y.
    fn scores<F>(p: &[F], dp: &mut [F], keys: usize, scale: F, d: &[F]) {
        for ((p, dp), &d) in p.chunks_exact(keys).zip(dp.chunks_exact_mut(keys)).zip(d) {
            dp.iter_mut().zip(p).for_each(|(dp, &p)| *dp = p * (*dp - d) * scale);
        }
    }

    fn row_dot<F>(a: &[F], b: &[F]) -> F {
        F::from_f64(sum_pairs(a, b, |a, b| a * b))
    }
}

/// Dropout of an attention's probabilities. Ranks that share the heads have the draws that one rank with all heads would have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionDropout {
    /// The dropout, with its share of zeros.
    pub kernel: DropoutKernel,
    /// The draws.
    pub stream: DropoutStream,
    /// The number of the first head among those of the whole attention, where ranks share heads.
    pub first_head: usize,
}

impl AttentionDropout {
    /// Applies dropout in place to `values`: the probabilities that the query at position `t` of a head has for the keys from
    /// position `first` on. A sequence has `positions` positions; `sample` is its index in the pass.
    pub fn row<F: Float>(
        &self,
        positions: usize,
        (sample, head, t): (usize, usize, usize),
        first: usize,
        values: &mut [F],
    ) {
        // The draws of a query begin with a group of four, as on GPUs.
        let row = ((self.first_head + head) * positions + t) * positions.next_multiple_of(4);
        self.kernel.row(self.stream.sample(sample), row + first, values);
    }
}

/// A row's scores for its first `seen` keys, rounded up to a whole vector: scores added by the rounding become minus infinity, so that
/// their exponentials are 0; scores beyond the vector are set to 0 directly.
#[inline(always)]
fn seen_of<F: Float>(s: &mut [F], seen: usize) -> &mut [F] {
    let (s, rest) = s.split_at_mut(seen.next_multiple_of(VECTOR).min(s.len()));
    s[seen..].fill(F::from_f64(f64::NEG_INFINITY));
    rest.fill(F::ZERO);
    s
}

impl AttentionShape {
    /// Computes `y` from `x`; `saved` (N H T) is stored for the backward pass.
    pub fn forward<F: Float>(&self, x: &[F], saved: &mut [F], y: &mut [F]) {
        self.forward_dropping(None, x, saved, y);
    }

    /// Like [`AttentionShape::forward`], with dropout of the probabilities, drawn from a stream.
    pub fn forward_dropping<F: Float>(
        &self,
        dropping: Option<AttentionDropout>,
        x: &[F],
        saved: &mut [F],
        y: &mut [F],
    ) {
        let AttentionShape { positions, width, heads, .. } = *self;
        self.lengths(x, saved, y);
        let step = self.step();
        let (rows, logs) = ((y, positions * width), (saved, heads * positions));
        share_rows_of(SHARE * x.len(), rows, logs, |samples, y, saved| {
            let mut s = vec![F::ZERO; BLOCK * positions];
            let each = samples
                .zip(y.chunks_exact_mut(positions * width))
                .zip(saved.chunks_exact_mut(heads * positions));
            for ((sample, y), saved) in each {
                let x = &x[sample * positions * step..][..positions * step];
                for head in 0..heads {
                    let [q, k, v] = self.parts(x, head);
                    for rows in self.blocks() {
                        let (keys, first, more) = self.seen(&rows);
                        let s = &mut s[..rows.len() * keys];
                        matmul(s, Store::Replace, self.rows(q, rows.clone()), self.rows(k, 0..keys).t());
                        let saved = &mut saved[head * positions..][rows.clone()];
                        softmax(s, keys, first, more, self.scale(), saved);
                        self.drop(dropping, (sample, head), &rows, s);
                        let p = Matrix::new(s, rows.len(), keys);
                        let y = &mut y[rows.start * width + head * self.depth()..];
                        matmul_within(y, width, Store::Replace, p, self.rows(v, 0..keys));
                    }
                }
            }
        });
    }

    /// Replaces `dx` by the gradient of `x`.
    pub fn backward<F: Float>(&self, x: &[F], saved: &[F], y: &[F], dy: &[F], dx: &mut [F]) {
        self.backward_dropping(None, x, saved, (y, dy), dx);
    }

    /// Like [`AttentionShape::backward`], after a forward pass with the same dropout and stream.
    pub fn backward_dropping<F: Float>(
        &self,
        dropping: Option<AttentionDropout>,
        x: &[F],
        saved: &[F],
        (y, dy): (&[F], &[F]),
        dx: &mut [F],
    ) {
        let AttentionShape { positions, width, heads, .. } = *self;
        self.lengths(x, saved, y);
        assert!(dy.len() == y.len() && dx.len() == x.len());
        let (depth, step) = (self.depth(), self.step());
        share_rows(dx, positions * step, |samples, dx| {
            let (mut p, mut dp) = (vec![F::ZERO; BLOCK * positions], vec![F::ZERO; BLOCK * positions]);
            for (sample, dx) in samples.zip(dx.chunks_exact_mut(positions * step)) {
                let x = &x[sample * positions * step..][..positions * step];
                let [y, dy] = [y, dy].map(|y| &y[sample * positions * width..][..positions * width]);
                for head in 0..heads {
                    let [q, k, v] = self.parts(x, head);
                    let saved = &saved[(sample * heads + head) * positions..][..positions];
                    let at = head * depth;
                    let [_, key, value] = self.starts(head);
                    let first_of_group = head % self.group() == 0;
                    // The last block is computed first: for the first head of a group it writes the gradients of every key, to which the
                    // other blocks and heads add.
                    for rows in self.blocks().rev() {
                        let (keys, first, more) = self.seen(&rows);
                        let writes = first_of_group && rows.end == positions;
                        let store = if writes { Store::Replace } else { Store::Add };
                        let (p, dp) = (&mut p[..rows.len() * keys], &mut dp[..rows.len() * keys]);
                        matmul(p, Store::Replace, self.rows(q, rows.clone()), self.rows(k, 0..keys).t());
                        again(p, keys, first, more, self.scale(), &saved[rows.clone()]);
                        let d: Vec<F> = rows
                            .clone()
                            .map(|t| row_dot(&dy[t * width + at..][..depth], &y[t * width + at..][..depth]))
                            .collect();
                        let dy = Matrix::within(&dy[rows.start * width + at..], rows.len(), depth, width);
                        matmul(dp, Store::Replace, dy, self.rows(v, 0..keys).t());
                        self.drop(dropping, (sample, head), &rows, dp);
                        scores(p, dp, keys, self.scale(), &d);
                        self.drop(dropping, (sample, head), &rows, p);
                        let (p, ds) = (Matrix::new(p, rows.len(), keys), Matrix::new(dp, rows.len(), keys));
                        matmul_within(&mut dx[value..], step, store, p.t(), dy);
                        matmul_within(&mut dx[key..], step, store, ds.t(), self.rows(q, rows.clone()));
                        let dq = &mut dx[rows.start * step + at..];
                        matmul_within(dq, step, Store::Replace, ds, self.rows(k, 0..keys));
                    }
                }
            }
        });
    }

    /// The costs of a forward and of a backward pass over `n` samples.
    pub fn cost<F: Float>(&self, n: usize) -> [OpCost; 2] {
        let AttentionShape { positions, width, heads, .. } = *self;
        let pairs = match self.causal {
            true => n * positions * (positions + 1) / 2,
            false => n * positions * positions,
        };
        let moved = n * positions * (width + self.step());
        [(4, 5), (10, 8)].map(|(products, others)| {
            let flops = pairs * (products * width + others * heads);
            OpCost::launch(flops, moved * products / 4, size_of::<F>())
        })
    }

    /// Drops a share of a block's probabilities, or of their gradients, in place, by the draws of this sample, head and query.
    fn drop<F: Float>(
        &self,
        dropping: Option<AttentionDropout>,
        (sample, head): (usize, usize),
        rows: &Range<usize>,
        values: &mut [F],
    ) {
        let Some(dropping) = dropping else { return };
        for (t, values) in rows.clone().zip(values.chunks_exact_mut(self.seen(rows).0)) {
            dropping.row(self.positions, (sample, head, t), 0, values);
        }
    }

    /// The keys of a block of queries: how many keys its first query attends to, and how many more each following query.
    fn seen(&self, rows: &Range<usize>) -> (usize, usize, usize) {
        match self.causal {
            true => (rows.end, rows.start + 1, 1),
            false => (self.positions, self.positions, 0),
        }
    }

    fn depth(&self) -> usize {
        self.width / self.heads
    }

    fn scale<F: Float>(&self) -> F {
        F::from_f64(1.0 / (self.depth() as f64).sqrt())
    }

    fn blocks(&self) -> impl DoubleEndedIterator<Item = Range<usize>> + use<> {
        let positions = self.positions;
        (0..positions).step_by(BLOCK).map(move |start| start..(start + BLOCK).min(positions))
    }

    /// The queries, keys and values of one head in a sample, each from its first element on.
    fn parts<'a, F>(&self, x: &'a [F], head: usize) -> [&'a [F]; 3] {
        self.starts(head).map(|start| &x[start..])
    }

    /// Where the queries, keys and values of a head begin in a position's numbers.
    fn starts(&self, head: usize) -> [usize; 3] {
        let (depth, shared) = (self.depth(), head / self.group());
        [head * depth, self.width + shared * depth, self.width + (self.kv_heads + shared) * depth]
    }

    /// The number of heads of queries that share keys and values.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The number of elements of a position: its queries, keys and values.
    pub fn step(&self) -> usize {
        self.width + 2 * self.kv_heads * self.depth()
    }

    fn rows<'a, F: Float>(&self, part: &'a [F], rows: Range<usize>) -> Matrix<'a, F> {
        let step = self.step();
        Matrix::within(&part[rows.start * step..], rows.len(), self.depth(), step)
    }

    fn lengths<F>(&self, x: &[F], saved: &[F], y: &[F]) {
        let AttentionShape { positions, width, heads, .. } = *self;
        assert!(heads > 0 && width.is_multiple_of(heads), "{heads} heads of {width} numbers");
        assert!(
            self.kv_heads > 0 && heads.is_multiple_of(self.kv_heads),
            "{heads} heads share {}",
            self.kv_heads
        );
        let n = y.len() / (positions * width);
        let want = (n * positions * self.step(), n * heads * positions, n * positions * width);
        assert_eq!((x.len(), saved.len(), y.len()), want, "an attention over {n} samples");
    }
}

/// The work of an attention's element relative to an element of a simple layer, for the choice of the number of threads.
const SHARE: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::gradcheck::{check, dot, numbers};

    fn run(shape: &AttentionShape, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let n = x.len() / (shape.positions * shape.step());
        let mut saved = vec![9.0; n * shape.heads * shape.positions];
        let mut y = vec![9.0; n * shape.positions * shape.width];
        shape.forward(x, &mut saved, &mut y);
        (y, saved)
    }

    #[test]
    fn gradients_within_a_block_and_over_several() {
        for (positions, heads, n, causal) in
            [(3, 2, 2, true), (3, 2, 2, false), (BLOCK + 2, 1, 1, true), (BLOCK + 2, 1, 1, false)]
        {
            gradients(AttentionShape { positions, width: 4, heads, kv_heads: heads, causal }, n);
        }
    }

    #[test]
    fn gradients_of_grouped_queries() {
        for (positions, heads, kv_heads, n) in [(3, 4, 2, 2), (BLOCK + 2, 2, 1, 1)] {
            gradients(AttentionShape { positions, width: 4, heads, kv_heads, causal: true }, n);
        }
    }

    fn gradients(shape: AttentionShape, n: usize) {
        let (x, r) =
            (numbers(n * shape.positions * shape.step(), 1), numbers(n * shape.positions * shape.width, 2));
        let (y, saved) = run(&shape, &x);
        let mut dx = vec![9.0; x.len()];
        shape.backward(&x, &saved, &y, &r, &mut dx);
        check("x", &x, &dx, |x| dot(&run(&shape, x).0, &r));
    }

    /// Keys and values that are shared give the outputs of copies of them.
    #[test]
    fn grouped_queries_attend_to_the_keys_of_their_group() {
        let grouped = AttentionShape { positions: 3, width: 8, heads: 4, kv_heads: 2, causal: true };
        let x = numbers(3 * grouped.step(), 1);
        let copied = x.chunks_exact(16).flat_map(|x| {
            let twice = |part: &[f64]| [&part[..2], &part[..2], &part[2..], &part[2..]].concat();
            [&x[..8], &twice(&x[8..12]), &twice(&x[12..])].concat()
        });
        let copied: Vec<f64> = copied.collect();
        assert_eq!(run(&grouped, &x).0, run(&AttentionShape { kv_heads: 4, ..grouped }, &copied).0);
    }
}
