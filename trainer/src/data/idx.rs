//! The idx format of MNIST (Y. LeCun, C. Cortes and C. Burges).
//!
//! ```text
//! 0 0 type dimensions | each dimension, u32, most significant byte first | the elements, row-major       type 8: u8
//! ```

use super::{Dataset, read};
use crate::{Error, Result};
use std::path::Path;

/// Labels of both sets.
const CLASSES: usize = 10;

/// The four files of a directory, pixels as (value / 255 - mean) / deviation.
pub fn load(directory: &Path, scale: (f32, f32)) -> Result<(Dataset, Dataset)> {
    let set = |name: &str| -> Result<Dataset> {
        let file = |kind: &str| {
            let path = directory.join(format!("{name}-{kind}-ubyte"));
            parse(&read(&path)?).map_err(|what| Error::Data(format!("{}: {what}", path.display())))
        };
        let (shape, pixels) = file("images-idx3")?;
        let (counts, labels) = file("labels-idx1")?;
        dataset(&shape, &pixels, &counts, &labels, scale)
            .map_err(|what| Error::Data(format!("{}: {what}", directory.join(name).display())))
    };
    Ok((set("train")?, set("t10k")?))
}

fn dataset(
    shape: &[usize],
    pixels: &[u8],
    counts: &[usize],
    labels: &[u8],
    (mean, deviation): (f32, f32),
) -> std::result::Result<Dataset, String> {
    let (&[samples, height, width], &[labelled]) = (shape, counts) else {
        return Err(format!(
            "pictures of {} and labels of {} dimensions; 3 and 1 are right",
            shape.len(),
            counts.len()
        ));
    };
    if samples != labelled {
        return Err(format!("{samples} pictures and {labelled} labels"));
    }
    if let Some(at) = labels.iter().position(|&label| usize::from(label) >= CLASSES) {
        return Err(format!("label {} of sample {at} is not below {CLASSES}", labels[at]));
    }
    Ok(Dataset {
        shape: (1, height, width),
        classes: CLASSES,
        pixels: pixels.iter().map(|&pixel| (f32::from(pixel) / 255.0 - mean) / deviation).collect(),
        labels: labels.iter().map(|&label| u32::from(label)).collect(),
    })
}

/// (Dimensions, elements) of a file of bytes.
fn parse(bytes: &[u8]) -> std::result::Result<(Vec<usize>, Vec<u8>), String> {
    let (&[0, 0, kind, count], rest) =
        bytes.split_first_chunk::<4>().ok_or("ends within its first 4 bytes")?
    else {
        return Err("does not begin with two zero bytes: it is no idx file".into());
    };
    if kind != 8 {
        return Err(format!("byte 2 says type {kind}; only 8, unsigned bytes, is read"));
    }
    let head = 4 * usize::from(count);
    if rest.len() < head {
        return Err(format!("ends at byte {} within its {count} dimensions", bytes.len()));
    }
    let (sizes, elements) = rest.split_at(head);
    let (sizes, _) = sizes.as_chunks::<4>();
    let sizes: Vec<usize> = sizes.iter().map(|size| u32::from_be_bytes(*size) as usize).collect();
    let wanted = sizes.iter().try_fold(1usize, |all, &size| all.checked_mul(size));
    if wanted != Some(elements.len()) {
        return Err(format!(
            "dimensions {sizes:?} need {} elements and byte {} is the end, after {}",
            wanted.map_or("too many".into(), |wanted| wanted.to_string()),
            bytes.len(),
            elements.len()
        ));
    }
    Ok((sizes, elements.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(kind: u8, sizes: &[u32], elements: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, kind, sizes.len() as u8];
        sizes.iter().for_each(|size| bytes.extend(size.to_be_bytes()));
        bytes.extend(elements);
        bytes
    }

    #[test]
    fn a_file_is_read_and_damage_is_named() {
        assert_eq!(parse(&file(8, &[2, 3], &[1, 2, 3, 4, 5, 6])), Ok((vec![2, 3], vec![1, 2, 3, 4, 5, 6])));
        let error = |bytes: &[u8]| parse(bytes).unwrap_err();
        assert_eq!(
            error(&file(8, &[2, 3], &[1; 5])),
            "dimensions [2, 3] need 6 elements and byte 17 is the end, after 5"
        );
        assert_eq!(error(&file(9, &[1], &[1])), "byte 2 says type 9; only 8, unsigned bytes, is read");
        assert_eq!(error(&file(8, &[1, 1], &[1])[..7]), "ends at byte 7 within its 2 dimensions");
        assert_eq!(error(b"PNG!"), "does not begin with two zero bytes: it is no idx file");
        assert_eq!(error(&[0, 0]), "ends within its first 4 bytes");
        assert!(error(&file(8, &[u32::MAX, u32::MAX, u32::MAX], &[])).contains("too many"));
        let scale = (0.0, 1.0);
        assert_eq!(
            dataset(&[2, 1, 1], &[0, 255], &[2], &[3, 10], scale).unwrap_err(),
            "label 10 of sample 1 is not below 10"
        );
        assert_eq!(dataset(&[2, 1, 1], &[0, 255], &[1], &[3], scale).unwrap_err(), "2 pictures and 1 labels");
    }
}
