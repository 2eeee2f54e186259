use super::*;

#[test]
fn only_sets_that_can_be_fetched_are_said_to_be() {
    for (data, fetched) in [("mnist", true), ("cifar10", true), ("text", true), ("fashion_mnist", false)] {
        let config = Config::default().with(|c| {
            c.data.name = data.into();
            c.data.dir = "no/such/folder".into();
        });
        let error = load(&config).unwrap_err().to_string();
        assert_eq!(error.contains("allfold.fetch"), fetched, "{error}");
    }
}

/// Torchvision's folders are found, with files that it leaves packed or in Python's form.
#[test]
fn the_folders_of_other_programs_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let said = |data: &str| {
        let config = Config::default().with(|c| {
            c.data.name = data.into();
            c.data.dir = folder.path().display().to_string();
        });
        load(&config).unwrap_err().to_string().replace(&format!("{}/", folder.path().display()), "")
    };
    for (at, data, says) in [
        (
            "MNIST/raw/train-images-idx3-ubyte.gz",
            "mnist",
            "data: MNIST/raw/train-images-idx3-ubyte.gz: unexpected end of file",
        ),
        (
            "FashionMNIST/raw/other",
            "fashion_mnist",
            "data: FashionMNIST/raw/train-images-idx3-ubyte: No such file or directory (os error 2); the set's four idx files belong there",
        ),
        (
            "cifar-10-batches-py/data_batch_1",
            "cifar10",
            "data: cifar-10-batches-py/data_batch_1: ends early: at byte 0 of its pickle",
        ),
    ] {
        let path = folder.path().join(at);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
        assert_eq!(said(data), says);
    }
    std::fs::create_dir(folder.path().join("cifar-10-batches-bin")).unwrap();
    assert!(
        said("cifar10").starts_with("data: cifar-10-batches-bin/data_batch_1.bin: "),
        "{}",
        said("cifar10")
    );
}

#[test]
fn what_is_no_picture_cannot_be_moved() {
    for text in ["[data]\nname = \"text\"\nflip = true", "[model]\nname = \"gpt\"\n[data]\ncrop_padding = 1"]
    {
        let error = crate::config::parse(text, "c.toml").unwrap_err().to_string();
        assert_eq!(
            error,
            "c.toml: `data.crop_padding` and `data.flip` change pictures, and the data is text: leave them out"
        );
    }
}

#[test]
fn a_set_is_of_the_form_that_is_told() {
    for (data, model) in [("digits", "cnn"), ("synthetic", "cnn"), ("synthetic", "gpt")] {
        let config = Config::default().with(|c| {
            c.data.name = data.into();
            c.model.name = model.into();
            c.data.synthetic_samples = 20;
            c.data.synthetic_shape = [3, 5, 4];
            c.data.synthetic_classes = 7;
            c.data.positions = 6;
        });
        let (train, test) = load(&config).unwrap();
        for set in [train, test] {
            assert_eq!(set.form(), form(&config).unwrap(), "{data}, {model}");
            assert!(set.labels.len() == set.len() * set.rows());
        }
    }
}
