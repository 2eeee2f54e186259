//! A text, byte by byte: each sample is a window, and the label of a position is the byte that follows it.
//!
//! ```text
//! text      T o   b e   o r ...        the bytes that occur, in order, are the tokens 0, 1, 2, ...
//! sample 0  T o   b     label  o   b e      sample 1 begins where sample 0 ended
//! ```

use super::{Dataset, Samples, read};
use crate::{Error, Result};
use std::path::Path;

/// Splits a text into windows of `positions` bytes: the first nine tenths for training, the others for testing.
pub fn load(path: &Path, positions: usize) -> Result<(Dataset, Dataset)> {
    let text = read(path)?;
    split(&text, positions).map_err(|what| Error::Data(format!("{}: {what}", path.display())))
}

fn split(text: &[u8], positions: usize) -> std::result::Result<(Dataset, Dataset), String> {
    let mut seen = [false; 256];
    text.iter().for_each(|&byte| seen[usize::from(byte)] = true);
    let mut tokens = [0u32; 256];
    let mut classes = 0;
    for byte in (0..256).filter(|&byte| seen[byte]) {
        tokens[byte] = classes;
        classes += 1;
    }
    let windows = |part: &[u8]| {
        let count = part.len().saturating_sub(1) / positions;
        let tokens: Vec<u32> = part.iter().map(|&byte| tokens[usize::from(byte)]).collect();
        let numbers = tokens.iter().take(count * positions).map(|&token| token as f32).collect();
        Dataset {
            shape: (1, 1, positions),
            classes: classes as usize,
            samples: Samples::Numbers(numbers),
            labels: tokens.iter().copied().skip(1).take(count * positions).collect(),
        }
    };
    let (train, test) = text.split_at(text.len() / 10 * 9);
    let (train, test) = (windows(train), windows(test));
    if train.is_empty() || test.is_empty() {
        let least = 10 * (positions + 1);
        return Err(format!("has {} bytes; windows of {positions} need {least} at least", text.len()));
    }
    Ok((train, test))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Batch;

    #[test]
    fn labels_are_the_bytes_that_follow() {
        let text: Vec<u8> = (0..100u8).map(|i| b'a' + i % 5).collect();
        let (train, test) = split(&text, 4).unwrap();
        assert_eq!((train.len(), test.len(), train.rows(), train.classes), (22, 2, 4, 5));
        let mut batch = Batch::<f32>::default();
        train.gather(&[1], &mut batch).unwrap();
        assert_eq!(batch, Batch { x: vec![4.0, 0.0, 1.0, 2.0], labels: vec![0, 1, 2, 3] });
        test.gather(&[0], &mut batch).unwrap();
        assert_eq!(batch.x[0], 0.0);
        assert_eq!(split(&text, 40).unwrap_err(), "has 100 bytes; windows of 40 need 410 at least");
    }
}
