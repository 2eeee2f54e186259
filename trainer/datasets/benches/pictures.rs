//! Pictures in files decoded, cut and resized on one thread. `benches/peers/pictures.py` draws the pictures, runs this program and
//! does the same with Pillow.
//!
//! ```text
//! cargo bench -p allfold-datasets --bench pictures -- time FOLDER          a line of JSON: random rectangles of the training pictures
//! cargo bench -p allfold-datasets --bench pictures -- bytes FOLDER FILE    the centres of the test pictures as bytes
//! ```
//!
//! The time is that of the loader: reading the files and turning bytes into f32 are part of it.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::disallowed_methods, reason = "real time is what is measured")]

use allfold_datasets::pictures::{PictureOptions, load};
use allfold_datasets::{Augment, AugmentOptions, Batch, Dataset, RandomCrop};
use std::path::Path;
use std::time::Instant;

/// The side of a sample, and the shorter side that test pictures are resized to, in pixels.
const SIDES: (usize, usize) = (224, 256);
/// Pictures of a batch.
const BATCH: usize = 32;

/// The training set and the test set, as values from 0 to 1.
fn sets(folder: &str) -> (Dataset, Dataset) {
    let (side, resize) = SIDES;
    let options = PictureOptions { side, resize, mean: [0.0; 3], std: [1.0; 3], test_share: 0.0, seed: 0 };
    load(Path::new(folder), &options).unwrap()
}

/// Prints the rate at which random rectangles of all training pictures become samples, and the mean of their values.
fn time(folder: &str) {
    let (train, _) = sets(folder);
    let crop = RandomCrop { scale: [0.08, 1.0], ratio: [0.75, 4.0 / 3.0] };
    let options = AugmentOptions { crop: Some(crop), ..AugmentOptions::default() };
    let augment = Augment::new(options, train.shape, 0).unwrap();
    let indices: Vec<usize> = (0..train.len()).collect();
    let (mut batch, mut sum, mut seen) = (Batch::<f32>::default(), 0.0, 0.0);
    // The first batch is a warm-up.
    train.gather_changed(&augment, &indices[..BATCH.min(indices.len())], &mut batch).unwrap();
    let start = Instant::now();
    for chunk in indices.chunks(BATCH) {
        train.gather_changed(&augment, chunk, &mut batch).unwrap();
        for value in batch.x.iter().step_by(97) {
            sum += f64::from(*value);
            seen += 1.0;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        r#"{{"program":"allfold","pictures":{},"pictures_per_s":{:.1},"mean":{:.3}}}"#,
        train.len(),
        train.len() as f64 / seconds,
        sum / seen
    );
}

/// Writes the centres of all test pictures, each as `[colour][row][column]`.
fn bytes(folder: &str, file: &str) {
    let (_, test) = sets(folder);
    let indices: Vec<usize> = (0..test.len()).collect();
    let mut batch = Batch::<f32>::default();
    test.gather(&indices, &mut batch).unwrap();
    // A value is byte / 255.
    let bytes: Vec<u8> = batch.x.iter().map(|value| (value * 255.0).round() as u8).collect();
    std::fs::write(file, bytes).unwrap();
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["time", folder] => time(folder),
        ["bytes", folder, file] => bytes(folder, file),
        _ => println!("SKIP give `time FOLDER` or `bytes FOLDER FILE`, as benches/peers/pictures.py does"),
    }
}
