//! The 1,797 handwritten digits of `trainer/data/`, whose README names source and licence. The digits are compiled into
//! the program, so nothing is fetched and no file is read.

use super::{Dataset, Samples};
use crate::{Error, Result};
use flate2::read::GzDecoder;
use std::sync::OnceLock;

/// The published file, compressed.
const FILE: &[u8] = include_bytes!("../../data/digits.csv.gz");
/// Pixels per picture.
const PIXELS: usize = 64;
/// The number of training samples: the first lines of the file. The other samples are the test set.
const TRAIN: usize = 1_437;
/// The largest value of a pixel in the file.
const WHITE: f32 = 16.0;

/// The digits, split into training (1,437) and test set (360); pixels are scaled to 0..=1. The file is read once.
///
/// # Errors
/// If the built-in file is damaged.
pub fn digits() -> Result<(Dataset, Dataset)> {
    static READ: OnceLock<Result<(Dataset, Dataset)>> = OnceLock::new();
    READ.get_or_init(read).clone()
}

fn read() -> Result<(Dataset, Dataset)> {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    let mut lines = csv::ReaderBuilder::new().has_headers(false).from_reader(GzDecoder::new(FILE));
    for line in lines.deserialize() {
        let line: Vec<u8> = line.map_err(|cause| Error::Data(format!("the digits: {cause}")))?;
        match line.split_last() {
            Some((&label @ 0..=9, picture)) if picture.len() == PIXELS => {
                labels.push(u32::from(label));
                pixels.extend(picture.iter().map(|&pixel| f32::from(pixel) / WHITE));
            }
            _ => {
                let at = labels.len() + 1;
                return Err(Error::Data(format!(
                    "the digits: line {at} does not hold 64 pixels and a digit"
                )));
            }
        }
    }
    let samples = Samples::Numbers(pixels);
    let mut train = Dataset { shape: (1, 8, 8), classes: 10, samples, labels };
    let test = train.split_off(TRAIN);
    Ok((train, test))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Batch;

    #[test]
    fn all_of_them_are_there() {
        let (train, test) = digits().unwrap();
        assert_eq!((train.len(), test.len()), (1_437, 360));
        let mut all = Batch::<f32>::default();
        train.gather(&(0..1_437).collect::<Vec<_>>(), &mut all).unwrap();
        assert_eq!(all.x.len(), 1_437 * 64);
        let mut counts = [0; 10];
        train.labels.iter().chain(&test.labels).for_each(|&label| counts[label as usize] += 1);
        // The class counts that the repository publishes for this set.
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        assert!(all.x.iter().all(|pixel| (0.0..=1.0).contains(pixel)));
    }
}
