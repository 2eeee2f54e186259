//! A pool of buffers for reuse.

use allfold_kernels::nn::Float;

/// Buffers of any size with any contents.
#[derive(Default)]
pub(crate) struct BufferPool<F>(pub(super) Vec<Vec<F>>);

impl<F: Float> BufferPool<F> {
    pub fn push(&mut self, buffer: Vec<F>) {
        self.0.push(buffer);
    }

    pub fn extend(&mut self, buffers: impl IntoIterator<Item = Vec<F>>) {
        self.0.extend(buffers);
    }

    /// A buffer of this many elements. Buffers of more than twice the capacity stay in the pool: shortened now, they would be
    /// filled with zeros when they grow again.
    pub fn take(&mut self, elements: usize) -> Vec<F> {
        let fits = |at: &usize| (elements..=2 * elements).contains(&self.0[*at].capacity());
        let best = (0..self.0.len()).filter(fits).min_by_key(|&at| self.0[at].capacity());
        let mut buffer = best.map(|at| self.0.swap_remove(at)).unwrap_or_default();
        buffer.resize(elements, F::ZERO);
        buffer
    }

    /// Gives `buffer` this length. A buffer without memory of its own takes one of the pool.
    pub fn size(&mut self, buffer: &mut Vec<F>, elements: usize) {
        if buffer.capacity() == 0 && !self.0.is_empty() {
            *buffer = self.take(elements);
        } else {
            buffer.resize(elements, F::ZERO);
        }
    }

    /// Bytes of the pooled buffers.
    pub fn bytes(&self) -> u64 {
        (self.0.iter().map(Vec::capacity).sum::<usize>() * size_of::<F>()) as u64
    }
}
