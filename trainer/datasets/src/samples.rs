//! How samples are stored: as numbers, or as the bytes of their file, which become numbers when a batch is made.
//!
//! ```text
//! file    | header | picture 0 | picture 1 | ...        a byte per pixel and channel
//! batch   x[sample][channel][pixel] = values[channel][byte]
//! ```
//!
//! A published set of pictures is many times as large as a small model. Stored as bytes, the set takes a quarter of the memory
//! of f32. Left in its file, the set takes none: the operating system caches the file, once for all processes.

use crate::augment::Augment;
use crate::pictures::PictureFiles;
use crate::{Error, Result};
use allfold_kernels::nn::Float;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// The samples of a dataset, one after another.
#[derive(Clone, Debug)]
pub enum Samples {
    /// Numbers as `[sample][feature]`, row-major.
    Numbers(Vec<f32>),
    /// Pictures as bytes.
    Pictures(Pictures),
    /// Pictures in files of their own.
    Files(PictureFiles),
}

/// Pictures of a byte per pixel and channel. A clone shares them.
#[derive(Clone, Debug)]
pub struct Pictures {
    source: Source,
    /// The range of this set in the source's pictures.
    range: Range<usize>,
    /// For each channel, the value of each of the 256 bytes.
    values: Vec<[f32; 256]>,
}

/// The source of the bytes, picture after picture.
#[derive(Clone, Debug)]
enum Source {
    Memory(Arc<Vec<u8>>),
    File {
        file: Arc<File>,
        path: PathBuf,
        /// The offset of the first picture, in bytes.
        start: u64,
    },
}

/// The values of the bytes of a channel: (byte / 255 - mean) / deviation.
pub(crate) fn normalised((mean, deviation): (f32, f32)) -> [f32; 256] {
    std::array::from_fn(|byte| (byte as f32 / 255.0 - mean) / deviation)
}

impl Pictures {
    /// A set of `count` pictures in memory.
    pub(crate) fn held(bytes: Vec<u8>, count: usize, values: Vec<[f32; 256]>) -> Pictures {
        Pictures { source: Source::Memory(Arc::new(bytes)), range: 0..count, values }
    }

    /// Pictures that stay in a file: `count` of them, from byte `start` on.
    pub(crate) fn within(
        (file, path): (File, PathBuf),
        start: u64,
        count: usize,
        values: Vec<[f32; 256]>,
    ) -> Pictures {
        Pictures { source: Source::File { file: Arc::new(file), path, start }, range: 0..count, values }
    }

    /// Appends the pictures `indices`, of `features` numbers each, to `x`.
    fn gather<F: Float>(&self, indices: &[usize], features: usize, x: &mut Vec<F>) -> Result<()> {
        let values: Vec<[F; 256]> =
            self.values.iter().map(|values| values.map(|value| F::from_f64(f64::from(value)))).collect();
        let plane = (features / values.len().max(1)).max(1);
        let mut held = Vec::new();
        // Pictures that are neighbours in the source are read in one call.
        for run in indices.chunk_by(|a, b| a + 1 == *b) {
            let first = self.range.start + run[0];
            assert!(first + run.len() <= self.range.end, "picture {} of {}", run[0], self.range.len());
            let (at, length) = (first * features, run.len() * features);
            let bytes = match &self.source {
                Source::Memory(all) => &all[at..at + length],
                Source::File { file, path, start } => {
                    held.resize(length, 0);
                    file.read_exact_at(&mut held, start + at as u64).map_err(|error| {
                        let at = start + at as u64;
                        Error::Lost(format!("{}: {length} bytes from byte {at} on: {error}", path.display()))
                    })?;
                    &held[..]
                }
            };
            for (bytes, values) in bytes.chunks_exact(plane).zip(values.iter().cycle()) {
                x.extend(bytes.iter().map(|&byte| values[usize::from(byte)]));
            }
        }
        Ok(())
    }
}

impl Samples {
    /// The number of samples of `features` numbers each.
    pub(crate) fn count(&self, features: usize) -> usize {
        match self {
            Samples::Numbers(numbers) => numbers.len() / features.max(1),
            Samples::Pictures(pictures) => pictures.range.len(),
            Samples::Files(files) => files.count(),
        }
    }

    /// Appends the samples `indices`, of `features` numbers each, to `x`. `augment` may take random parts of pictures in files;
    /// [`Augment::apply`] makes its other changes.
    pub(crate) fn gather<F: Float>(
        &self,
        indices: &[usize],
        augment: &Augment,
        features: usize,
        x: &mut Vec<F>,
    ) -> Result<()> {
        match self {
            Samples::Files(files) => files.gather(indices, augment, x),
            Samples::Pictures(pictures) => pictures.gather(indices, features, x),
            Samples::Numbers(numbers) => {
                for &i in indices {
                    let sample = &numbers[i * features..(i + 1) * features];
                    x.extend(sample.iter().map(|&number| F::from_f64(f64::from(number))));
                }
                Ok(())
            }
        }
    }

    /// The value of black in a channel: byte 0 of pictures; 0 for numbers.
    pub(crate) fn black<F: Float>(&self, channel: usize) -> F {
        let value = match self {
            Samples::Pictures(pictures) => pictures.values.get(channel).map_or(0.0, |values| values[0]),
            Samples::Files(files) => files.black(channel),
            Samples::Numbers(_) => 0.0,
        };
        F::from_f64(f64::from(value))
    }

    /// Keeps the first `at` samples, and returns the others.
    pub(crate) fn split_off(&mut self, at: usize, features: usize) -> Samples {
        match self {
            Samples::Numbers(numbers) => Samples::Numbers(numbers.split_off(at * features)),
            Samples::Pictures(pictures) => {
                let middle = pictures.range.start + at;
                let others = Pictures { range: middle..pictures.range.end, ..pictures.clone() };
                pictures.range.end = middle;
                Samples::Pictures(others)
            }
            Samples::Files(files) => Samples::Files(files.split_off(at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn gathered(pictures: &Pictures, indices: &[usize]) -> Vec<f32> {
        let mut x = Vec::new();
        pictures.gather(indices, 6, &mut x).unwrap();
        x
    }

    #[test]
    fn pictures_in_a_file_and_in_memory_are_the_same_numbers() {
        let bytes: Vec<u8> = (0..5 * 6).map(|i| i as u8 * 8).collect();
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let mut file = File::create(&path).unwrap();
        file.write_all(b"head").unwrap();
        file.write_all(&bytes).unwrap();
        let values = || vec![normalised((0.5, 0.25)), normalised((0.0, 1.0))];
        let opened = (File::open(&path).unwrap(), path.to_path_buf());
        let (held, within) = (Pictures::held(bytes, 5, values()), Pictures::within(opened, 4, 5, values()));
        for indices in [&[3, 0, 1, 2, 4, 4][..], &[0, 1, 2, 3, 4], &[]] {
            assert_eq!(gathered(&within, indices), gathered(&held, indices));
        }
        let second = gathered(&held, &[1]);
        assert_eq!((second[0], second[3]), ((48.0 / 255.0 - 0.5) / 0.25, 72.0 / 255.0));

        let mut first = Samples::Pictures(held);
        let Samples::Pictures(rest) = first.split_off(3, 6) else { panic!() };
        assert_eq!((first.count(6), rest.range.len()), (3, 2));
        assert_eq!(gathered(&rest, &[0, 1]), gathered(&within, &[3, 4]));

        file.set_len(4 + 4 * 6).unwrap();
        let error = within.gather::<f32>(&[3, 4], 6, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("12 bytes from byte 22 on"), "{error}");
    }
}
