//! Pictures in folders, read by the keys of a configuration.

use allfold_collectives::World;
use allfold_trainer::data::{Batch, form, load};
use allfold_trainer::{Config, Dataset, Error, SampleForm, TrainResult, train};
use std::path::Path;
use tempfile::TempDir;

#[path = "../../datasets/src/pictures/written.rs"]
mod written;

/// Writes an RGB picture, in the format of the file's name.
fn write(folder: &Path, name: &str, width: u32, pixels: &[u8]) {
    written::write(&folder.join(name), pixels, width);
}

/// A shape in a colour on a darker ground, at another place and of another size in each picture.
fn shape(class: usize, number: usize) -> (u32, Vec<u8>) {
    let (width, height) = (48 + 5 * (number % 4), 40 + 7 * (number % 3));
    let (x, y) = ((16 + number * 7 % 16) as f64, (16 + number * 5 % 12) as f64);
    let radius = (8 + number % 5) as f64;
    let inside = |column: usize, row: usize| {
        let (across, down) = ((column as f64 - x).abs(), (row as f64 - y).abs());
        match class {
            0 => across.hypot(down) < radius,
            1 => across.max(down) < radius,
            _ => across + down < radius,
        }
    };
    let pixel = |column: usize, row: usize| {
        let mut pixel = [30 + (column + row + number) as u8 % 40; 3];
        if inside(column, row) {
            pixel[class] = 230;
        }
        pixel
    };
    let pixels = (0..height).flat_map(|row| (0..width).flat_map(move |column| pixel(column, row))).collect();
    (width as u32, pixels)
}

/// Red circles, green squares and blue rhombuses, as JPEG and PNG files.
fn shapes(each: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (class, name) in ["circle", "rhombus", "square"].iter().enumerate() {
        for number in 0..each {
            let (width, pixels) = shape(class, number);
            let end = if number % 3 == 0 { "png" } else { "jpg" };
            write(folder.path(), &format!("{name}/{number:03}.{end}"), width, &pixels);
        }
    }
    folder
}

fn config(folder: &TempDir) -> Config {
    Config::default().with(|c| {
        c.data.name = "pictures".into();
        c.data.dir = folder.path().to_str().unwrap().into();
        c.data.picture_size = 32;
        c.data.resize = 36;
    })
}

/// The centre of 4 x 2 pixels by hand: colours become planes, and bytes (byte / 255 - mean) / deviation.
#[test]
fn the_numbers_of_a_picture_are_those_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let row = [255, 0, 1, 51, 102, 153, 204, 0, 2, 255, 0, 3];
    for name in ["a/1.png", "a/2.png", "b/1.png", "b/2.png"] {
        write(folder.path(), name, 4, &[row, row].concat());
    }
    let config = config(&folder).with(|c| {
        c.data.picture_size = 2;
        c.data.resize = 2;
        c.data.picture_mean = [0.2, 0.0, 0.0];
        c.data.picture_std = [0.5, 1.0, 1.0 / 255.0];
    });
    let (train, test) = load(&config).unwrap();
    assert_eq!((train.len(), test.len(), form(&config)), (2, 2, Some(SampleForm::new((3, 2, 2), 2))));
    let mut batch = Batch::<f32>::default();
    train.gather(&[0], &mut batch).unwrap();
    let want = [0.0, 1.2, 0.0, 1.2, 0.4, 0.0, 0.4, 0.0, 153.0, 2.0, 153.0, 2.0];
    assert!(batch.x.iter().zip(want).all(|(a, b): (&f32, f32)| (a - b).abs() < 1e-4), "{:?}", batch.x);
    assert_eq!((batch.x.len(), batch.labels), (12, vec![0]));
}

#[test]
fn a_damaged_picture_ends_the_run_by_its_name() {
    let folder = shapes(4);
    let (train, _) = load(&config(&folder)).unwrap();
    let first = |batch: &mut Batch<f32>| train.gather(&[0, 1, 2], batch).map_err(|error| error.to_string());
    first(&mut Batch::default()).unwrap();
    let path = folder.path().join("circle/001.jpg");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    // The header is whole, so the set is still loaded.
    let (train, test) = load(&config(&folder)).unwrap();
    let all = |set: &Dataset| set.gather::<f32>(&(0..set.len()).collect::<Vec<_>>(), &mut Batch::default());
    let error = all(&train).and_then(|()| all(&test)).unwrap_err().to_string();
    let half = bytes.len() / 2;
    assert_eq!(
        error,
        format!("data: {}: is cut: its {half} bytes end before the picture does", path.display())
    );
    std::fs::remove_file(&path).unwrap();
    let error = all(&train).and_then(|()| all(&test)).unwrap_err();
    assert!(
        matches!(&error.clone().into(), Error::Lost(what) if what.contains("circle/001.jpg: ")),
        "{error}"
    );
}

#[test]
fn samples_held_out_and_samples_left_have_every_class() {
    let folder = shapes(10);
    let config = config(&folder).with(|c| c.data.validation = 6);
    let (train, validation) = load(&config).unwrap();
    let count = |set: &Dataset, class: u32| set.labels.iter().filter(|label| **label == class).count();
    assert_eq!([0, 1, 2].map(|class| count(&train, class)), [6; 3]);
    assert_eq!([0, 1, 2].map(|class| count(&validation, class)), [2; 3]);
    let mut batch = Batch::<f32>::default();
    validation.gather(&[0, 5], &mut batch).unwrap();
    assert_eq!(batch.labels.len(), 2);
    assert_eq!(count(&train.first(3), 0), 1);
}

/// The loss falls, new pictures are recognised, and workers change nothing.
#[test]
fn shapes_are_learnt_by_one_rank_and_by_two() {
    let folder = shapes(30);
    let config = config(&folder).with(|c| {
        c.model.channels = vec![8, 16];
        c.data.random_resized_crop = true;
        c.data.crop_scale = [0.5, 1.0];
        c.data.flip = true;
        c.training.epochs = 8;
    });
    let on = |ranks: u32, workers: usize| -> TrainResult {
        let config = config.clone().with(|c| {
            c.training.batch = 12 / ranks as usize;
            c.data.workers = workers;
        });
        World::threads(ranks).run(|comm| train(&config, &comm, &mut ())).unwrap().swap_remove(0)
    };
    for ranks in [1, 2] {
        let result = on(ranks, 1);
        // 72 of 90 pictures are trained on, in 6 steps of each epoch.
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        let (first, last) = (mean(&result.losses[..6]), mean(&result.losses[42..]));
        println!("{ranks} ranks: loss {first:.3} to {last:.3}, accuracy {}", result.test.accuracy());
        assert!(last < 0.5 * first, "{ranks} ranks: {:?}", result.losses);
        assert!(result.test.labels == 18 && result.test.accuracy() > 0.8, "{ranks} ranks: {:?}", result.test);
        assert_eq!(on(ranks, 0).losses, result.losses);
    }
}
