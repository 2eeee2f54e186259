//! Batch normalisation over the channels of pictures (S. Ioffe and C. Szegedy, ICML 2015).
//!
//! ```text
//! x, y [N, C, H, W]     w, b [C]     M = N H W values per channel
//! training:    mean, var of the channel over the batch (var biased: divided by M)
//!              running_mean += 0.1 (mean - running_mean)
//!              running_var  += 0.1 (var M / (M - 1) - running_var)         (unbiased)
//! evaluation:  mean = running_mean, var = running_var
//! y  = (x - mean) r w + b,    r = 1 / sqrt(var + 1e-5)
//! db = sum dy      dw = sum dy xhat      dx = (dy - db / M - xhat dw / M) r w,    xhat = (x - mean) r
//! ```
//!
//! A channel's running statistics stay unchanged where an update would make them infinite or NaN: a batch that overflowed would
//! spoil all later evaluations. Statistics are summed in f64. Where a batch is spread over ranks, each rank sums its own count,
//! values and squares ([`BatchNormShape::sums`]), and normalises by the totals ([`BatchNormShape::forward_by`]). The variance is
//! then a difference of sums, exact to about 1e-16 (mean / deviation)^2.

use super::simd::vectorised;
use super::sum::sums_of_pairs;
use super::thread_pool::{share_rows, share_rows_of};
use super::{Float, OpCost};
use std::ops::Range;

/// The constant that is added to the variance.
const EPS: f64 = 1e-5;
/// The weight of a batch's statistics in the update of the running statistics.
const MOMENTUM: f64 = 0.1;

/// The values of one channel that the backward pass needs.
#[derive(Clone, Copy)]
struct Line<F> {
    mean: F,
    r: F,
    scale: F,
    /// The means of dy (`b`) and of dy xhat (`w`) over the batch.
    b: F,
    w: F,
}

vectorised! {
    /// The sum of x - mean, and the sum of (x - mean)^2.
    fn moments<F>(x: &[F], mean: f64) -> (f64, f64) {
        sums_of_pairs(x, x, |x, _| (x - mean, (x - mean) * (x - mean)))
    }

    /// The sum of dy, and the sum of dy (x - mean).
    fn products<F>(dy: &[F], x: &[F], mean: f64) -> (f64, f64) {
        sums_of_pairs(dy, x, |dy, x| (dy, dy * (x - mean)))
    }

    fn normalise<F>(of: (F, F, F), x: &[F], y: &mut [F]) {
        let (mean, scale, b) = of;
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = (x - mean) * scale + b);
    }

    fn gradient<F>(of: Line<F>, dy: &[F], x: &[F], dx: &mut [F]) {
        for ((dx, &dy), &x) in dx.iter_mut().zip(dy).zip(x) {
            *dx = (dy - of.b - (x - of.mean) * of.r * of.w) * of.scale;
        }
    }
}

fn total(parts: impl Iterator<Item = (f64, f64)>) -> (f64, f64) {
    parts.fold((0.0, 0.0), |(a, b), (c, d)| (a + c, b + d))
}

/// The shape of a batch normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchNormShape {
    /// The number of channels, C.
    pub channels: usize,
    /// The number of values per channel and sample, H W.
    pub plane: usize,
}

impl BatchNormShape {
    /// Training: normalises by the batch's own statistics and updates the running statistics `running` (2 C: means, then
    /// variances). `saved` (2 C) receives mean and r of each channel for the backward pass.
    ///
    /// A batch with one value per channel has no unbiased variance; the running variance then stays unchanged.
    #[allow(clippy::too_many_arguments, reason = "one buffer each, named as in the formula")]
    pub fn forward<F: Float>(
        &self,
        n: usize,
        x: &[F],
        w: &[F],
        b: &[F],
        running: &mut [F],
        saved: &mut [F],
        y: &mut [F],
    ) {
        self.lengths(n, &[x, y]);
        assert!(running.len() == 2 * self.channels && saved.len() == 2 * self.channels);
        let m = (n * self.plane) as f64;
        let (running_means, running_vars) = running.split_at_mut(self.channels);
        let (means, rs) = saved.split_at_mut(self.channels);
        let mut statistics = vec![(0.0, 0.0); self.channels];
        self.each_channel(x.len(), &mut statistics, |c, (mean, var)| {
            let sums = total(self.channel(n, c).map(|plane| moments(&x[plane], 0.0)));
            *mean = sums.0 / m;
            *var = if size_of::<F>() < size_of::<f64>() {
                // Squares of a narrower type, summed in f64, lose no more precision than that type's own arithmetic.
                (sums.1 / m - *mean * *mean).max(0.0)
            } else {
                total(self.channel(n, c).map(|plane| moments(&x[plane], *mean))).1 / m
            };
            if sums.0.is_nan() {
                *var = f64::NAN;
            }
        });
        for (c, &(mean, var)) in statistics.iter().enumerate() {
            move_running(m, (mean, var), (&mut running_means[c], &mut running_vars[c]));
            means[c] = F::from_f64(mean);
            rs[c] = F::from_f64(1.0 / (var + EPS).sqrt());
        }
        self.apply(n, x, w, b, (means, rs), y);
    }

    /// Writes the sums that ranks add up before [`BatchNormShape::forward_by`] (1 + 2 C): values per channel, then sums, then sums
    /// of squares.
    pub fn sums<F: Float>(&self, n: usize, x: &[F], sums: &mut [f64]) {
        self.lengths(n, &[x]);
        assert_eq!(sums.len(), 1 + 2 * self.channels);
        sums[0] = (n * self.plane) as f64;
        let mut statistics = vec![(0.0, 0.0); self.channels];
        self.each_channel(x.len(), &mut statistics, |c, of| {
            *of = total(self.channel(n, c).map(|plane| moments(&x[plane], 0.0)));
        });
        for (c, &(first, second)) in statistics.iter().enumerate() {
            (sums[1 + c], sums[1 + self.channels + c]) = (first, second);
        }
    }

    /// [`BatchNormShape::forward`] of `x`, a part of a batch, by the whole batch's totals of [`BatchNormShape::sums`].
    #[allow(clippy::too_many_arguments, reason = "one buffer each, named as in the formula")]
    pub fn forward_by<F: Float>(
        &self,
        n: usize,
        x: &[F],
        w: &[F],
        b: &[F],
        totals: &[f64],
        running: &mut [F],
        saved: &mut [F],
        y: &mut [F],
    ) {
        self.lengths(n, &[x, y]);
        assert!(running.len() == 2 * self.channels && saved.len() == 2 * self.channels);
        assert_eq!(totals.len(), 1 + 2 * self.channels);
        let (m, (sums, squares)) = (totals[0], totals[1..].split_at(self.channels));
        let (running_means, running_vars) = running.split_at_mut(self.channels);
        let (means, rs) = saved.split_at_mut(self.channels);
        for c in 0..self.channels {
            let mean = sums[c] / m;
            // Rounding can make the variance slightly negative; a NaN stays NaN.
            let var = squares[c] / m - mean * mean;
            let var = if var < 0.0 { 0.0 } else { var };
            move_running(m, (mean, var), (&mut running_means[c], &mut running_vars[c]));
            means[c] = F::from_f64(mean);
            rs[c] = F::from_f64(1.0 / (var + EPS).sqrt());
        }
        self.apply(n, x, w, b, (means, rs), y);
    }

    /// Evaluation: normalises by the running statistics (2 C: means, then variances).
    pub fn evaluate<F: Float>(&self, n: usize, x: &[F], w: &[F], b: &[F], running: &[F], y: &mut [F]) {
        self.lengths(n, &[x, y]);
        let (means, vars) = running.split_at(self.channels);
        let rs: Vec<F> = vars.iter().map(|var| F::from_f64(1.0 / (var.to_f64() + EPS).sqrt())).collect();
        self.apply(n, x, w, b, (means, &rs), y);
    }

    /// Replaces `dw` and `db` by the gradients of weight and bias.
    pub fn backward_params<F: Float>(
        &self,
        n: usize,
        x: &[F],
        saved: &[F],
        dy: &[F],
        dw: &mut [F],
        db: &mut [F],
    ) {
        self.lengths(n, &[x, dy]);
        if n == 0 {
            // Without samples, saved statistics may be NaN, and 0 times NaN is NaN.
            dw.fill(F::ZERO);
            return db.fill(F::ZERO);
        }
        let (means, rs) = saved.split_at(self.channels);
        let mut sums = vec![(0.0, 0.0); self.channels];
        self.each_channel(x.len(), &mut sums, |c, sums| {
            let mean = means[c].to_f64();
            *sums = total(self.channel(n, c).map(|plane| products(&dy[plane.clone()], &x[plane], mean)));
        });
        for (c, (first, second)) in sums.into_iter().enumerate() {
            db[c] = F::from_f64(first);
            dw[c] = F::from_f64(second * rs[c].to_f64());
        }
    }

    /// Replaces `dx` by the gradient of the input; `dw` and `db` are from [`BatchNormShape::backward_params`], over the whole batch
    /// of `m` values per channel.
    #[allow(clippy::too_many_arguments, reason = "one buffer each, named as in the formula")]
    pub fn backward_input<F: Float>(
        &self,
        n: usize,
        x: &[F],
        w: &[F],
        saved: &[F],
        dy: &[F],
        (m, dw, db): (f64, &[F], &[F]),
        dx: &mut [F],
    ) {
        self.lengths(n, &[x, dy, dx]);
        let (means, rs) = saved.split_at(self.channels);
        let m = F::from_f64(m);
        share_rows(dx, self.plane, |planes, dx| {
            for (i, dx) in planes.zip(dx.chunks_exact_mut(self.plane)) {
                let (plane, c) = (i * self.plane..(i + 1) * self.plane, i % self.channels);
                let line = Line { mean: means[c], r: rs[c], scale: rs[c] * w[c], b: db[c] / m, w: dw[c] / m };
                gradient(line, &dy[plane.clone()], &x[plane], dx);
            }
        });
    }

    /// The cost of [`BatchNormShape::forward`]: two passes for the statistics, as f64 needs, and one pass to apply them.
    pub fn forward_cost<F: Float>(&self, n: usize) -> OpCost {
        let count = n * self.channels * self.plane;
        OpCost::launch(6 * count, 4 * count + 6 * self.channels, size_of::<F>())
    }

    /// The cost of [`BatchNormShape::sums`].
    pub fn sums_cost<F: Float>(&self, n: usize) -> OpCost {
        let count = n * self.channels * self.plane;
        OpCost::launch(3 * count, count + 4 * self.channels, size_of::<F>())
    }

    /// The cost of [`BatchNormShape::forward_by`].
    pub fn forward_by_cost<F: Float>(&self, n: usize) -> OpCost {
        let count = n * self.channels * self.plane;
        OpCost::launch(3 * count, 2 * count + 10 * self.channels, size_of::<F>())
    }

    /// The cost of [`BatchNormShape::evaluate`].
    pub fn evaluate_cost<F: Float>(&self, n: usize) -> OpCost {
        let count = n * self.channels * self.plane;
        OpCost::launch(3 * count, 2 * count + 4 * self.channels, size_of::<F>())
    }

    /// The cost of [`BatchNormShape::backward_params`].
    pub fn backward_params_cost<F: Float>(&self, n: usize) -> OpCost {
        let count = n * self.channels * self.plane;
        OpCost::launch(4 * count, 2 * count + 4 * self.channels, size_of::<F>())
    }

    /// The cost of [`BatchNormShape::backward_input`].
    pub fn backward_input_cost<F: Float>(&self, n: usize) -> OpCost {
        let count = n * self.channels * self.plane;
        OpCost::launch(6 * count, 3 * count + 5 * self.channels, size_of::<F>())
    }

    fn apply<F: Float>(&self, n: usize, x: &[F], w: &[F], b: &[F], (means, rs): (&[F], &[F]), y: &mut [F]) {
        self.lengths(n, &[x, y]);
        share_rows(y, self.plane, |planes, y| {
            for (i, y) in planes.zip(y.chunks_exact_mut(self.plane)) {
                let (plane, c) = (i * self.plane..(i + 1) * self.plane, i % self.channels);
                normalise((means[c], rs[c] * w[c], b[c]), &x[plane], y);
            }
        });
    }

    /// Calls `each(channel, entry of the channel)` for every channel, on any thread; `work` is the number of elements of all
    /// channels.
    fn each_channel<T: Send>(&self, work: usize, entries: &mut [T], each: impl Fn(usize, &mut T) + Sync) {
        share_rows_of(work, (entries, 1), (&mut [(); 0], 0), |channels, entries, _| {
            channels.zip(entries).for_each(|(c, entry)| each(c, entry));
        });
    }

    /// The ranges of one channel's planes, in order of samples.
    fn channel(&self, n: usize, c: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let BatchNormShape { channels, plane } = *self;
        (0..n).map(move |sample| (sample * channels + c) * plane..(sample * channels + c + 1) * plane)
    }

    fn lengths<F>(&self, n: usize, buffers: &[&[F]]) {
        let want = n * self.channels * self.plane;
        assert!(buffers.iter().all(|b| b.len() == want), "a batch norm of {n} samples has {want} values");
    }
}

/// Moves a channel's running statistics towards those of a batch of `m` values; `var` is the biased variance.
fn move_running<F: Float>(m: f64, (mean, var): (f64, f64), (running_mean, running_var): (&mut F, &mut F)) {
    let towards = |old: F, new: f64| F::from_f64((1.0 - MOMENTUM) * old.to_f64() + MOMENTUM * new);
    let mean = towards(*running_mean, mean);
    let var = if m > 1.0 { towards(*running_var, var * m / (m - 1.0)) } else { *running_var };
    // The mean of an empty batch is also NaN.
    if (mean.to_f64() + var.to_f64()).is_finite() {
        (*running_mean, *running_var) = (mean, var);
    }
}
