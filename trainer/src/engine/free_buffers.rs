//! Buffers of whole units that are not in use.

/// Free buffers of whole units: values, or their number alone.
#[derive(Clone, Debug)]
pub struct FreeBuffers<B>(Vec<B>);

impl<B> Default for FreeBuffers<B> {
    fn default() -> Self {
        FreeBuffers(Vec::new())
    }
}

impl<B> FreeBuffers<B> {
    /// The number of free buffers that a rank keeps: for a unit that is gathered ahead, a unit in use and a unit that is reduced.
    const MOST: usize = 3;

    /// Takes the first buffer that fits.
    pub fn take(&mut self, fits: impl Fn(&B) -> bool) -> Option<B> {
        self.0.iter().position(fits).map(|at| self.0.swap_remove(at))
    }

    /// Keeps a buffer; of too many the oldest is dropped.
    pub fn put(&mut self, buffer: B) {
        if self.0.len() == Self::MOST {
            self.0.remove(0);
        }
        self.0.push(buffer);
    }

    /// The number of elements in all buffers.
    pub fn elements(&self, of: impl Fn(&B) -> usize) -> usize {
        self.0.iter().map(of).sum()
    }
}
