//! The idx format of MNIST (Y. LeCun, C. Cortes and C. Burges).
//!
//! ```text
//! 0 0 type dimensions | each dimension, u32, most significant byte first | the elements, row-major       type 8: u8
//! ```

use super::samples::{Pictures, Samples, normalised};
use super::{Dataset, missing, read, unpacked};
use crate::{Error, Result};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Mean and deviation of the pixels, of 0 to 1, of MNIST and Fashion-MNIST.
pub const MNIST_SCALE: (f32, f32) = (0.1307, 0.3081);
/// See [`MNIST_SCALE`].
pub const FASHION_MNIST_SCALE: (f32, f32) = (0.2860, 0.3530);

/// The number of classes of every set in this format.
const CLASSES: usize = 10;
/// The longest header that is read: 255 dimensions.
const HEADER: u64 = 4 + 4 * 255;

/// The four files of a directory, packed with gzip or not; pixels as (value / 255 - mean) / deviation. Pictures stay in files that are not
/// packed.
pub fn load(directory: &Path, scale: (f32, f32)) -> Result<(Dataset, Dataset)> {
    let set = |name: &str| -> Result<Dataset> {
        let path = |kind: &str| directory.join(format!("{name}-{kind}-ubyte"));
        let (images, labels) = (path("images-idx3"), path("labels-idx1"));
        let damaged = |path: &Path, what: String| Error::Data(format!("{}: {what}", path.display()));
        let opened = ImageFile::open(&images)?;
        let (shape, start) = opened.header().map_err(|what| damaged(&images, what))?;
        let bytes = read(&labels)?;
        let (counts, first) = header(&bytes, bytes.len() as u64).map_err(|what| damaged(&labels, what))?;
        let labelled = labelled(&shape, &counts, (first, &bytes[first as usize..]));
        let (shape, count, labels) = labelled.map_err(|what| damaged(&labels, what))?;
        let values = vec![normalised(scale)];
        let pictures = match opened {
            ImageFile::Plain { file, .. } => Pictures::within((file, images), start, count, values),
            ImageFile::Unpacked(mut bytes) => Pictures::held(bytes.split_off(start as usize), count, values),
        };
        Ok(Dataset { shape, classes: CLASSES, samples: Samples::Pictures(pictures), labels })
    };
    Ok((set("train")?, set("t10k")?))
}

/// Reads a file of pictures and one of labels, and drops the results: for fuzzers.
pub(crate) fn read_anything(images: &[u8], labels: &[u8]) {
    let heads = header(images, images.len() as u64).and_then(|(shape, _)| {
        let (counts, first) = header(labels, labels.len() as u64)?;
        labelled(&shape, &counts, (first, &labels[first as usize..]))
    });
    drop(heads);
}

/// A file of pictures: open, with its length in bytes and its first bytes; or unpacked, as a whole.
enum ImageFile {
    Plain { file: File, length: u64, head: Vec<u8> },
    Unpacked(Vec<u8>),
}

impl ImageFile {
    fn open(path: &Path) -> Result<ImageFile> {
        let plain = || {
            let (file, mut head) = (super::open(path)?, Vec::new());
            (&file).take(HEADER).read_to_end(&mut head)?;
            let length = file.metadata()?.len();
            Ok(ImageFile::Plain { file, length, head })
        };
        match unpacked(path)? {
            Some(bytes) => Ok(ImageFile::Unpacked(bytes)),
            None => plain().map_err(|error| missing(path, &error)),
        }
    }

    fn header(&self) -> std::result::Result<(Vec<usize>, u64), String> {
        match self {
            ImageFile::Plain { length, head, .. } => header(head, *length),
            ImageFile::Unpacked(bytes) => header(bytes, bytes.len() as u64),
        }
    }
}

/// The shape and number of the pictures, and their labels; the two files have been checked against each other.
type Labelled = ((usize, usize, usize), usize, Vec<u32>);

fn labelled(
    shape: &[usize],
    counts: &[usize],
    (first, labels): (u64, &[u8]),
) -> std::result::Result<Labelled, String> {
    let (&[samples, height, width], &[labelled]) = (shape, counts) else {
        return Err(format!(
            "pictures of {} and labels of {} dimensions; 3 and 1 are right",
            shape.len(),
            counts.len()
        ));
    };
    if samples != labelled {
        return Err(format!("{labelled} labels for {samples} pictures"));
    }
    if let Some(at) = labels.iter().position(|&label| usize::from(label) >= CLASSES) {
        let (label, byte) = (labels[at], first + at as u64);
        return Err(format!("label {label} of sample {at}, byte {byte}, is not below {CLASSES}"));
    }
    Ok(((1, height, width), samples, labels.iter().map(|&label| u32::from(label)).collect()))
}

/// The dimensions and the offset of the first element, for a file of `length` bytes that begins with `head`.
fn header(head: &[u8], length: u64) -> std::result::Result<(Vec<usize>, u64), String> {
    let (&[0, 0, kind, count], rest) =
        head.split_first_chunk::<4>().ok_or("ends within its first 4 bytes")?
    else {
        return Err("does not begin with two zero bytes: it is no idx file".into());
    };
    if kind != 8 {
        return Err(format!("byte 2 says type {kind}; only type 8, unsigned bytes, can be read"));
    }
    let Some(sizes) = rest.get(..4 * usize::from(count)) else {
        return Err(format!("ends at byte {length} within its {count} dimensions"));
    };
    let (start, (sizes, _)) = (4 + sizes.len() as u64, sizes.as_chunks::<4>());
    let sizes: Vec<usize> = sizes.iter().map(|size| u32::from_be_bytes(*size) as usize).collect();
    if sizes.contains(&0) {
        return Err(format!("dimensions {sizes:?} hold nothing"));
    }
    let wanted = sizes.iter().try_fold(1u64, |all, &size| all.checked_mul(size as u64));
    let elements = length - start;
    if wanted != Some(elements) {
        return Err(format!(
            "dimensions {sizes:?} need {} elements and byte {length} is the end, after {elements}",
            wanted.map_or("too many".into(), |wanted| wanted.to_string()),
        ));
    }
    Ok((sizes, start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Batch;

    fn file(kind: u8, sizes: &[u32], elements: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, kind, sizes.len() as u8];
        sizes.iter().for_each(|size| bytes.extend(size.to_be_bytes()));
        bytes.extend(elements);
        bytes
    }

    #[test]
    fn damage_is_named() {
        let parsed = |bytes: &[u8]| header(bytes, bytes.len() as u64);
        assert_eq!(parsed(&file(8, &[2, 3], &[1, 2, 3, 4, 5, 6])), Ok((vec![2, 3], 12)));
        let error = |bytes: &[u8]| parsed(bytes).unwrap_err();
        assert_eq!(
            error(&file(8, &[2, 3], &[1; 5])),
            "dimensions [2, 3] need 6 elements and byte 17 is the end, after 5"
        );
        assert_eq!(
            error(&file(9, &[1], &[1])),
            "byte 2 says type 9; only type 8, unsigned bytes, can be read"
        );
        assert_eq!(error(&file(8, &[1, 1], &[1])[..7]), "ends at byte 7 within its 2 dimensions");
        assert_eq!(error(b"PNG!"), "does not begin with two zero bytes: it is no idx file");
        assert_eq!(error(&[0, 0]), "ends within its first 4 bytes");
        assert_eq!(error(&file(8, &[2, 0], &[])), "dimensions [2, 0] hold nothing");
        assert!(error(&file(8, &[u32::MAX, u32::MAX, u32::MAX], &[])).contains("too many"));
        let labels = |labels: &[u8]| labelled(&[2, 1, 1], &[labels.len()], (8, labels)).unwrap_err();
        assert_eq!(labels(&[3, 10]), "label 10 of sample 1, byte 9, is not below 10");
        assert_eq!(labels(&[3]), "1 labels for 2 pictures");
    }

    #[test]
    fn the_four_files_of_a_directory_are_two_sets() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: Vec<u8>| std::fs::write(directory.path().join(name), bytes).unwrap();
        write("train-images-idx3-ubyte", file(8, &[2, 1, 3], &[0, 51, 255, 102, 153, 204]));
        write("train-labels-idx1-ubyte", file(8, &[2], &[7, 9]));
        write("t10k-images-idx3-ubyte", file(8, &[1, 1, 3], &[1, 2, 3]));
        let error = load(directory.path(), (0.0, 1.0)).unwrap_err().to_string();
        assert!(error.contains("t10k-labels-idx1-ubyte"), "{error}");
        write("t10k-labels-idx1-ubyte", file(8, &[1], &[0]));
        let (train, test) = load(directory.path(), (0.0, 1.0)).unwrap();
        assert_eq!((train.len(), test.len(), train.shape, train.features()), (2, 1, (1, 1, 3), 3));
        let mut batch = Batch::<f32>::default();
        train.gather(&[1, 0], &mut batch).unwrap();
        assert_eq!(batch, Batch { x: vec![0.4, 0.6, 0.8, 0.0, 0.2, 1.0], labels: vec![9, 7] });
    }

    /// Packs the files of a set in place of the plain ones, as they are published.
    #[test]
    fn packed_files_are_the_same_set() {
        let directory = tempfile::tempdir().unwrap();
        for (name, bytes) in [
            ("train-images-idx3-ubyte", file(8, &[2, 1, 2], &[0, 51, 102, 255])),
            ("train-labels-idx1-ubyte", file(8, &[2], &[7, 9])),
            ("t10k-images-idx3-ubyte", file(8, &[1, 1, 2], &[1, 2])),
            ("t10k-labels-idx1-ubyte", file(8, &[1], &[0])),
        ] {
            let packed = std::fs::File::create(directory.path().join(format!("{name}.gz"))).unwrap();
            let mut packed = flate2::write::GzEncoder::new(packed, flate2::Compression::fast());
            std::io::Write::write_all(&mut packed, &bytes).unwrap();
        }
        let (train, test) = load(directory.path(), (0.0, 1.0)).unwrap();
        let mut batch = Batch::<f32>::default();
        train.gather(&[1, 0], &mut batch).unwrap();
        assert_eq!((batch.x, batch.labels, test.len()), (vec![0.4, 1.0, 0.0, 0.2], vec![9, 7], 1));
        std::fs::write(directory.path().join("train-labels-idx1-ubyte.gz"), "no gzip").unwrap();
        let error = load(directory.path(), (0.0, 1.0)).unwrap_err().to_string();
        assert!(error.contains("train-labels-idx1-ubyte.gz: "), "{error}");
    }
}
