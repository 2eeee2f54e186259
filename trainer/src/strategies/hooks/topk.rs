//! The largest elements of a bucket, with error feedback (S. Stich, J. Cordonnier and M. Jaggi, "Sparsified SGD with
//! Memory", NeurIPS 2018).
//!
//! ```text
//! m = gradient + error         sent: the k elements of m with the largest absolute values, and their positions
//! error = m where nothing was sent, else 0
//! ```

use super::feedback::Feedback;
use allfold_collectives::Buffer;
use allfold_kernels::nn::Float;

/// For each bucket, the parts of its gradients that have not been sent yet.
pub struct TopK<F> {
    share: f64,
    errors: Feedback<F>,
}

impl<F: Float> TopK<F> {
    /// Sends this share of a bucket, at least one element; `undoable` says whether a step may be undone.
    pub fn new(share: f64, undoable: bool) -> TopK<F> {
        TopK { share, errors: Feedback::new(undoable) }
    }

    /// The errors: parts of gradients that have not been sent yet.
    pub fn errors(&self) -> &Feedback<F> {
        &self.errors
    }

    /// The errors, for changing them.
    pub fn errors_mut(&mut self) -> &mut Feedback<F> {
        &mut self.errors
    }

    /// The positions and the values of the elements to send, in order of positions.
    pub fn encode(&mut self, bucket: usize, gradient: &[F]) -> (Buffer<i32>, Buffer<F>) {
        self.errors.bucket(bucket).resize(gradient.len(), F::ZERO);
        let (m, errors) = self.errors.begin_step(bucket);
        match errors {
            None => m.iter_mut().zip(gradient).for_each(|(m, &g)| *m += g),
            Some(errors) => {
                m.iter_mut().zip(errors.iter().zip(gradient)).for_each(|(m, (&e, &g))| *m = e + g);
            }
        }
        let k = sent_of(gradient.len(), self.share);
        let mut order: Vec<i32> = (0..m.len() as i32).collect();
        // The largest elements first, equal ones in order; NaN counts as larger than all numbers.
        let size = |at: i32| m[at as usize].to_f64().abs();
        let largest = |a: &i32, b: &i32| size(*b).total_cmp(&size(*a)).then(a.cmp(b));
        if k < order.len() {
            order.select_nth_unstable_by(k, largest);
        }
        order.truncate(k);
        order.sort_unstable();
        let (mut places, mut values) = (Buffer::zeroed(k), Buffer::zeroed(k));
        places.copy_from_slice(&order);
        for (value, &at) in values.iter_mut().zip(&order) {
            *value = std::mem::take(&mut m[at as usize]);
        }
        (places, values)
    }
}

/// The number of elements that are sent of `n` elements with this share: at least one.
pub(super) fn sent_of(n: usize, share: f64) -> usize {
    ((n as f64 * share).ceil() as usize).clamp(1.min(n), n)
}

/// Writes to `sum` the sum of the elements that all ranks sent, rank after rank.
pub fn decode<F: Float>(places: &[i32], values: &[F], sum: &mut [F]) {
    sum.fill(F::ZERO);
    for (&at, &value) in places.iter().zip(values) {
        sum[at as usize] += value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_sent_is_kept_for_later() {
        let mut top = TopK::new(0.4, true);
        let (places, values) = top.encode(0, &[1.0, -5.0, 2.0, 0.5, 3.0]);
        assert_eq!((&places[..], &values[..]), (&[1, 4][..], &[-5.0, 3.0][..]));
        let (places, values) = top.encode(0, &[1.0, 0.0, 0.5, 0.0, 0.0]);
        assert_eq!((&places[..], &values[..]), (&[0, 2][..], &[2.0, 2.5][..]));
        let mut sum = [9.0; 5];
        decode(&[1, 4, 0, 4], &[1.0, 2.0, 3.0, 4.0], &mut sum);
        assert_eq!(sum, [3.0, 1.0, 0.0, 0.0, 6.0]);
    }
}
