//! Training on pictures in folders by the command.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{allfold, folder, records};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

#[path = "../../trainer/datasets/src/pictures/written.rs"]
mod written;

/// Writes pictures of 40 x 30 pixels, each a coloured square on a dark ground, as `CLASS/NUMBER.jpg` and `.png`.
fn draw(folder: &Path, each: usize) {
    for (class, name) in ["blue", "green", "red"].iter().enumerate() {
        let folder = folder.join(name);
        for number in 0..each {
            let (left, top, side) = (3 + number * 5 % 20, 2 + number * 3 % 14, 9 + number % 5);
            let pixel = |at: usize| {
                let (x, y) = (at % 40, at / 40);
                let inside = (left..left + side).contains(&x) && (top..top + side).contains(&y);
                let mut pixel = [20 + (x + 2 * y + number) as u8 % 32; 3];
                pixel[2 - class] = if inside { 240 } else { pixel[2 - class] };
                pixel
            };
            let pixels: Vec<u8> = (0..40 * 30).flat_map(pixel).collect();
            let path = folder.join(format!("{number}.{}", if number % 2 == 0 { "jpg" } else { "png" }));
            written::write(&path, &pixels, 40);
        }
    }
}

fn configuration(folder: &Path) -> String {
    let path = folder.join("run.toml");
    let pictures = folder.join("pictures");
    let text = format!(
        "[data]\nname = \"pictures\"\ndir = \"{}\"\npicture_size = 32\nresize = 36\nrandom_resized_crop = true\n\
         crop_scale = [0.5, 1.0]\nflip = true\nworkers = 1\n[model]\nname = \"resnet18\"\nimagenet_stem = true\n\
         sync_batch_norm = true\n[training]\nepochs = 4\n[optimiser]\nlr = 0.01\n",
        pictures.display()
    );
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// The losses of all steps; records of progress have some of them too.
fn losses(records: &[Value]) -> Vec<f64> {
    records
        .iter()
        .filter(|record| record["kind"] == "train")
        .filter_map(|record| record["loss"].as_f64())
        .collect()
}

#[test]
fn a_resnet_is_trained_on_pictures_by_one_rank_and_by_two() {
    let folder = folder();
    draw(&folder.path().join("pictures"), 10);
    let config = configuration(folder.path());
    for (ranks, batch) in [("1", "training.batch=8"), ("2", "training.batch=4")] {
        let run = records(&["train", "--config", &config, "--ranks", ranks, "--set", batch]);
        let losses = losses(&run);
        // 24 of 30 pictures are trained on, in 3 steps of each epoch.
        assert_eq!(losses.len(), 12, "{ranks} ranks");
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        assert!(mean(&losses[9..]) < 0.5 * mean(&losses[..3]), "{ranks} ranks: {losses:?}");
    }
}

#[test]
fn a_run_says_how_many_pictures_and_classes_it_has_and_refuses_one_class() {
    let folder = folder();
    let pictures = folder.path().join("pictures");
    draw(&pictures, 10);
    let config = configuration(folder.path());
    let train = || {
        let args = ["train", "--config", &config, "--steps", "1", "--set", "training.batch=4"];
        let output = allfold(&args);
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), said)
    };
    let (code, [said, warned]) = train();
    assert_eq!(code, Some(0), "{warned}");
    assert!(
        said.contains("\n30 pictures of 3 x 32 x 32 in 3 classes: 24 to train on, 6 in the test set\n"),
        "{said}"
    );
    assert!(!warned.contains("one class"), "{warned}");
    for class in ["blue", "green"] {
        fs::remove_dir_all(pictures.join(class)).unwrap();
    }
    let (code, [_, warned]) = train();
    assert_eq!(code, Some(2), "{warned}");
    assert!(warned.contains("has one class, red; every answer would be right"), "{warned}");
}

#[test]
fn a_folder_or_file_that_is_wrong_is_named_in_one_line() {
    let folder = folder();
    let config = configuration(folder.path());
    let refused = |ranks: &str, says: &str| {
        let output = allfold(&["train", "--config", &config, "--ranks", ranks]);
        let error = String::from_utf8(output.stderr).unwrap();
        let named = error.lines().filter(|line| line.contains(says)).count();
        assert!(output.status.code() == Some(2) && named == 1, "{:?}: {error}", output.status);
        error
    };
    let one_line = |says: &str| {
        let error = refused("1", says);
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    };
    one_line("pictures: is no folder; `data.dir` is the folder of the pictures");
    draw(&folder.path().join("pictures"), 6);
    let large = folder.path().join("pictures/red/large.png");
    let mut bytes = fs::read(folder.path().join("pictures/red/1.png")).unwrap();
    bytes[16..24].copy_from_slice(&[0, 0, 0xea, 0x60, 0, 0, 0xea, 0x60]);
    fs::write(&large, bytes).unwrap();
    one_line("red/large.png: is 60000 x 60000 pixels; the most are 16384 on a side");
    fs::remove_file(&large).unwrap();
    for number in [0, 2, 4] {
        let path = folder.path().join(format!("pictures/red/{number}.jpg"));
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 30]).unwrap();
    }
    // The headers are whole, so the cut file is found when a rank makes a batch of it.
    for ranks in ["1", "2"] {
        refused(ranks, ".jpg: is cut: its ");
    }
}

#[test]
fn what_is_no_picture_no_class_or_no_weights_is_named_in_one_line() {
    let folder = folder();
    let config = configuration(folder.path());
    let says = |set: &str, hints: [&str; 2]| {
        let output = allfold(&["train", "--quiet", "--config", &config, "--set", set]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{set}: {error}");
        assert_eq!(error.lines().count(), 1, "{set}: {error}");
        assert!(hints.iter().all(|hint| error.contains(hint)), "{set}: {error}");
    };
    let pictures = folder.path().join("pictures");
    draw(&pictures, 6);
    let notes = pictures.join("red/notes.png");
    fs::write(&notes, "of another kind").unwrap();
    says("seed=1", ["pictures/red/notes.png: is neither JPEG nor PNG", "error: "]);
    fs::remove_file(&notes).unwrap();

    let flat = folder.path().join("flat");
    fs::create_dir(&flat).unwrap();
    fs::copy(pictures.join("red/1.png"), flat.join("1.png")).unwrap();
    says(&format!("data.dir={}", flat.display()), ["flat: has no folder of pictures", "error: "]);

    // The file asks its reader to call `os.system`.
    let saved = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trainer/fixtures/state_dict/command.pt");
    let weights = folder.path().join("code.pth");
    fs::copy(saved, &weights).unwrap();
    says(
        &format!("model.weights={}", weights.display()),
        ["code.pth: names posix.system", "executes nothing"],
    );
}

/// The flowers of the example: a script draws them, and only the last layer is trained.
#[test]
fn the_example_of_flowers_trains_its_last_layer_on_one_rank_and_on_two() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/flowers");
    let folder = folder();
    let flowers = folder.path().join("flowers");
    let drawn =
        Command::new("python3").arg(example.join("draw.py")).arg(&flowers).args(["--each", "4"]).output();
    let Ok(drawn) = drawn else { return println!("SKIP flowers: no python3 is here to draw them") };
    assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
    let (config, from) = (example.join("flowers.toml"), format!("data.dir={}", flowers.display()));
    let call = |ranks: &str, batch: &str| {
        let best = format!("checkpoint.dir={}/{ranks}", folder.path().display());
        let small = [
            "data.picture_size=32",
            "data.resize=36",
            "training.epochs=2",
            "optimiser.lr=0.01",
            &from,
            &best,
            batch,
        ];
        let sets = small.iter().flat_map(|set| ["--set", set]);
        let fixed = ["train", "--config", config.to_str().unwrap(), "--ranks", ranks];
        let run = records(&fixed.into_iter().chain(sets).collect::<Vec<_>>());
        losses(&run)
    };
    let (one, two) = (call("1", "training.batch=8"), call("2", "training.batch=4"));
    // 15 of 20 pictures are trained on, in 2 steps of each epoch.
    assert_eq!((one.len(), two.len()), (4, 4));
    assert!(one.iter().chain(&two).all(|loss| loss.is_finite()), "{one:?} {two:?}");
}

/// The classes of pictures are told by the names that the checkpoint keeps; the folder of the training pictures is not needed.
#[test]
fn pictures_are_classified_by_the_names_that_a_checkpoint_keeps() {
    let folder = folder();
    let (pictures, checkpoints) = (folder.path().join("pictures"), folder.path().join("checkpoints"));
    draw(&pictures, 10);
    let dir = format!("checkpoint.dir={}", checkpoints.display());
    let mut args = vec!["train".to_string(), "--config".into(), configuration(folder.path())];
    for key in
        ["checkpoint.every_epochs=1", "training.batch=8", "model.name=cnn", "model.imagenet_stem=false", &dir]
    {
        args.extend(["--set".into(), key.to_string()]);
    }
    let trained = allfold(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(trained.status.success(), "{trained:?}");
    let [red, blue] = ["red", "blue"].map(|class| {
        let path = folder.path().join(format!("{class}.png"));
        fs::rename(pictures.join(class).join("1.png"), &path).unwrap();
        path.display().to_string()
    });
    fs::remove_dir_all(&pictures).unwrap();
    let checkpoints = checkpoints.display().to_string();
    let told = common::said(&["predict", &checkpoints, &red, &blue, "--top", "2"]);
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0].starts_with(&format!("{red}: red ")) && lines[0].matches('%').count() == 2, "{told}");
    assert!(lines[1].starts_with(&format!("{blue}: blue ")) && lines.len() == 2, "{told}");
    let config = configuration(folder.path());
    common::says(&["predict", &checkpoints, "no/such.jpg"], &["no/such.jpg: is no file"]);
    common::says(&["predict", &checkpoints, &config], &["run.toml: is neither JPEG nor PNG"]);
    common::says(&["predict", folder.path().to_str().unwrap(), &red], &["has no checkpoint"]);
    common::says(&["predict", &red, &red], &["red.png: is no safetensors file"]);
}

/// A model of grey pictures classifies files of any size, in grey or in colours.
#[test]
fn a_model_of_mnist_classifies_files_of_pictures() {
    let folder = folder();
    let raw = folder.path().join("data/mnist");
    fs::create_dir_all(&raw).unwrap();
    // The digit d is a bright bar in the rows from 2 d on.
    let pixel = |digit: usize, row: usize| if (2 * digit..2 * digit + 8).contains(&row) { 230 } else { 10 };
    let picture = |digit: usize| (0..28 * 28).map(move |at| pixel(digit, at / 28));
    for (name, count) in [("train", 200), ("t10k", 20)] {
        let head = |kind: u8, sizes: &[u32]| {
            let sizes = sizes.iter().flat_map(|size| size.to_be_bytes());
            [0, 0, 8, kind].into_iter().chain(sizes).collect::<Vec<u8>>()
        };
        let digits = (0..count as usize).map(|at| at % 10);
        let pixels = head(3, &[count, 28, 28]).into_iter().chain(digits.clone().flat_map(picture));
        let labels = head(1, &[count]).into_iter().chain(digits.map(|digit| digit as u8));
        fs::write(raw.join(format!("{name}-images-idx3-ubyte")), pixels.collect::<Vec<u8>>()).unwrap();
        fs::write(raw.join(format!("{name}-labels-idx1-ubyte")), labels.collect::<Vec<u8>>()).unwrap();
    }
    let config = folder.path().join("mnist.toml");
    let [data, checkpoints] =
        ["data", "checkpoints"].map(|name| folder.path().join(name).display().to_string());
    let text = format!(
        "[data]\nname = \"mnist\"\ndir = \"{data}\"\n[model]\nname = \"mlp\"\nhidden = [32]\n[training]\nbatch = 20\nepochs = 4\n\
         [optimiser]\nlr = 0.05\n[checkpoint]\ndir = \"{checkpoints}\"\nevery_epochs = 1\n"
    );
    fs::write(&config, text).unwrap();
    common::said(&["train", "--config", config.to_str().unwrap()]);
    for (digit, scale, name) in [(3, 1, "three.png"), (7, 3, "seven.jpg")] {
        let path = folder.path().join(name);
        let side = 28 * scale;
        let pixels: Vec<u8> = (0..side * side).flat_map(|at| [pixel(digit, at / side / scale); 3]).collect();
        written::write(&path, &pixels, side as u32);
        let told = common::said(&["predict", &checkpoints, path.to_str().unwrap(), "--top", "1"]);
        assert!(told.contains(&format!("{name}: {digit} ")), "{told}");
    }
    // Other data has no pictures: only its own program knows how its numbers were made.
    let text = "[data]\nname = \"synthetic\"\nsynthetic_shape = [1, 8, 8]\n[model]\nname = \"mlp\"\n[training]\nmax_steps = 1\n";
    fs::write(&config, format!("{text}[checkpoint]\nevery = 1\ndir = \"{data}\"\n")).unwrap();
    common::said(&["train", "--config", config.to_str().unwrap()]);
    let three = folder.path().join("three.png").display().to_string();
    common::says(&["predict", &data, &three], &["is of a run on `synthetic`; models of `pictures`"]);
}
