//! The inner loops of optimisers: every parameter is updated by its own gradient.
//!
//! ```text
//! sgd:   g = grad + decay p     v = momentum v + g     p = p - lr (v, or with Nesterov g + momentum v)
//! adam:  g = grad + decay p     m += (1 - beta1)(g - m)     v = beta2 v + (1 - beta2) g^2
//!        p = p kept - rate m / (sqrt(v) / root + eps)
//! ```

use super::Float;
use super::simd::vectorised;
use super::thread_pool::{share_rows, share_rows_of};

/// The coefficients of a step of gradient descent with momentum.
#[derive(Clone, Copy, Debug)]
pub struct Descent<F> {
    /// The learning rate.
    pub lr: F,
    /// The momentum; with 0 no velocity is stored.
    pub momentum: F,
    /// The weight decay, added to the gradient.
    pub decay: F,
    /// Whether the momentum is Nesterov's.
    pub nesterov: bool,
    /// Whether this is the first step: the velocity is then the gradient.
    pub first: bool,
}

/// The coefficients of a step of Adam; `1 - beta` is given separately, because it is rounded after the subtraction.
#[derive(Clone, Copy, Debug)]
pub struct Moments<F> {
    /// The weight decay that is added to the gradient.
    pub decay: F,
    /// The factor on the weights, for decoupled weight decay.
    pub kept: F,
    /// The learning rate divided by the first moment's bias correction.
    pub rate: F,
    /// The square root of the second moment's bias correction.
    pub root: F,
    /// The constant that is added to the denominator.
    pub eps: F,
    /// The new gradient's share of the first moment, 1 - beta1.
    pub from_gradient: F,
    /// The second moment's decay, beta2.
    pub beta2: F,
    /// The new square's share of the second moment, 1 - beta2.
    pub from_square: F,
}

vectorised! {
    fn plain<F>(d: Descent<F>, params: &mut [F], grads: &[F]) {
        for (p, &grad) in params.iter_mut().zip(grads) {
            *p = *p - d.lr * (grad + d.decay * *p);
        }
    }

    fn with_velocity<F>(d: Descent<F>, params: &mut [F], grads: &[F], velocity: &mut [F]) {
        for ((p, &grad), v) in params.iter_mut().zip(grads).zip(velocity) {
            let g = grad + d.decay * *p;
            *v = if d.first { g } else { d.momentum * *v + g };
            *p = *p - d.lr * if d.nesterov { g + d.momentum * *v } else { *v };
        }
    }

    fn moments<F>(a: Moments<F>, params: &mut [F], grads: &[F], m: &mut [F], v: &mut [F]) {
        for (((p, &grad), m), v) in params.iter_mut().zip(grads).zip(m).zip(v) {
            let g = grad + a.decay * *p;
            *m = *m + a.from_gradient * (g - *m);
            *v = a.beta2 * *v + a.from_square * g * g;
            *p = *p * a.kept - a.rate * (*m / (v.sqrt() / a.root + a.eps));
        }
    }
}

vectorised! {
    fn times<F>(x: &mut [F], factor: F) {
        x.iter_mut().for_each(|x| *x = *x * factor);
    }

    fn over<F>(x: &mut [F], divisor: F) {
        x.iter_mut().for_each(|x| *x = *x / divisor);
    }
}

/// Divides every element. For a power of two this multiplies by the inverse, which gives the same number faster.
pub fn divide<F: Float>(x: &mut [F], divisor: F) {
    let whole = divisor.to_f64().log2().fract() == 0.0;
    share_rows(x, 1, |_, x| if whole { times(x, F::ONE / divisor) } else { over(x, divisor) });
}

/// Takes a step of gradient descent; `velocity` is empty without momentum.
pub fn descend<F: Float>(d: Descent<F>, params: &mut [F], grads: &[F], velocity: &mut [F]) {
    assert_eq!(params.len(), grads.len());
    let work = params.len();
    if velocity.is_empty() {
        share_rows_of(work, (params, 1), (velocity, 0), |range, params, _| plain(d, params, &grads[range]));
    } else {
        share_rows_of(work, (params, 1), (velocity, 1), |range, params, velocity| {
            with_velocity(d, params, &grads[range], velocity);
        });
    }
}

/// The number of elements of a piece; Adam's buffers are divided among threads in whole pieces.
const PIECE: usize = 4096;

/// Takes a step of Adam; `m` and `v` are its two moments.
pub fn adam<F: Float>(a: Moments<F>, params: &mut [F], grads: &[F], m: &mut [F], v: &mut [F]) {
    assert!(params.len() == grads.len() && m.len() == v.len() && m.len() == params.len());
    let pieces =
        params.chunks_mut(PIECE).zip(grads.chunks(PIECE)).zip(m.chunks_mut(PIECE)).zip(v.chunks_mut(PIECE));
    let mut pieces: Vec<_> = pieces.collect();
    share_rows_of(grads.len(), (&mut pieces, 1), (&mut [(); 0], 0), |_, pieces, _| {
        for (((params, grads), m), v) in pieces {
            moments(a, params, grads, m, v);
        }
    });
}
