//! Labelled samples in memory, and the set that ships with the project.

mod digits;

pub use digits::digits;

use allfold_kernels::nn::Float;

/// Samples with their labels: `pixels[sample][features]`, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// Channels, height and width of a sample; their product is its number of features.
    pub shape: (usize, usize, usize),
    /// Labels are below this.
    pub classes: usize,
    /// All samples, one after another.
    pub pixels: Vec<f32>,
    /// One label per sample.
    pub labels: Vec<u32>,
}

/// Samples side by side, ready for a forward pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch<F> {
    /// `x[sample][features]`.
    pub x: Vec<F>,
    /// One label per sample.
    pub labels: Vec<u32>,
}

impl Dataset {
    /// Number of samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Numbers per sample.
    pub fn features(&self) -> usize {
        self.shape.0 * self.shape.1 * self.shape.2
    }

    /// Fills `batch` with the samples `indices`, in that order.
    pub fn gather<F: Float>(&self, indices: &[usize], batch: &mut Batch<F>) {
        let features = self.features();
        batch.x.clear();
        batch.labels.clear();
        for &i in indices {
            let sample = &self.pixels[i * features..(i + 1) * features];
            batch.x.extend(sample.iter().map(|&pixel| F::from_f64(f64::from(pixel))));
            batch.labels.push(self.labels[i]);
        }
    }

    /// The first `count` samples, or all if there are fewer.
    pub fn first(mut self, count: usize) -> Dataset {
        let features = self.features();
        self.labels.truncate(count);
        self.pixels.truncate(count * features);
        self
    }
}
