use super::*;
use crate::pictures::written::png;
use png::{BitDepth, ColorType};
use std::collections::BTreeSet;

/// Writes a picture of one pixel for each path.
fn folder(paths: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for path in paths {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Whatever the name says: the listing does not read the pixels.
        std::fs::write(path, png(&[1, 2, 3], 1, ColorType::Rgb, BitDepth::Eight)).unwrap();
    }
    folder
}

/// The files of a set in order, as `class:path`.
fn listed(folder: &Path, listing: &Listing) -> Vec<String> {
    let name = |(path, label): &(Box<Path>, u32)| {
        format!("{label}:{}", path.strip_prefix(folder).unwrap().display())
    };
    listing.samples.iter().map(name).collect()
}

fn refused(folder: &Path) -> String {
    let error = sets(folder, 0.2, 0).unwrap_err();
    assert!(!error.contains('\n'), "{error}");
    error.strip_prefix(&format!("{}/", folder.display())).unwrap_or(&error).to_string()
}

#[test]
fn classes_are_sorted_by_name_and_their_pictures_spread() {
    let folder = folder(&[
        "train/b/2.png",
        "train/b/1.JPG",
        "train/B/deep/x.jpeg",
        "train/B/z.png",
        "train/B/a.png",
        "train/B/b.png",
        "val/b/9.png",
        "val/B/8.png",
    ]);
    std::fs::write(folder.path().join("train/b/notes.txt"), "of another kind").unwrap();
    std::fs::write(folder.path().join("train/b/.hidden.png"), "not looked at").unwrap();
    std::fs::create_dir(folder.path().join("train/.cache")).unwrap();
    let Sets { classes, train, test } = sets(folder.path(), 0.2, 0).unwrap();
    assert_eq!(classes, 2);
    assert_eq!(
        listed(folder.path(), &train),
        [
            "0:train/B/a.png",
            "1:train/b/1.JPG",
            "0:train/B/b.png",
            "0:train/B/z.png",
            "1:train/b/2.png",
            "0:train/B/deep/x.jpeg",
        ]
    );
    assert_eq!(listed(folder.path(), &test), ["0:val/B/8.png", "1:val/b/9.png"]);
}

/// Beside other classes, a class may be called `train`.
#[test]
fn a_set_is_told_from_a_class() {
    let sets_of = |paths: &[&str]| sets(folder(paths).path(), 0.5, 0).unwrap();
    let vehicles = sets_of(&["train/1.png", "train/2.png", "bus/1.png", "val/2.png", "val/3.png"]);
    assert_eq!((vehicles.classes, vehicles.train.samples.len(), vehicles.test.samples.len()), (3, 3, 2));
}

#[test]
fn the_usual_names_of_a_test_set_are_known_in_any_case() {
    for (train, test) in [
        ("train", "valid"),
        ("train", "validation"),
        ("train", "val"),
        ("train", "eval"),
        ("train", "dev"),
        ("train", "test"),
        ("Train", "Test"),
        ("TRAIN", "VAL"),
        ("training", "testing"),
        ("Training", "Validation"),
    ] {
        let all = ["a/1.png", "b/1.png"].map(|file| [format!("{train}/{file}"), format!("{test}/{file}")]);
        let folder = folder(&all.as_flattened().iter().map(String::as_str).collect::<Vec<_>>());
        let found = sets(folder.path(), 0.5, 0).unwrap();
        let of = |listing| listed(folder.path(), listing);
        assert_eq!(of(&found.train), [format!("0:{train}/a/1.png"), format!("1:{train}/b/1.png")]);
        assert_eq!(of(&found.test), [format!("0:{test}/a/1.png"), format!("1:{test}/b/1.png")]);
        assert!(layout(folder.path()).unwrap().unread.is_empty());
    }
    let more =
        ["train/a/1.png", "train/b/1.png", "test/a/1.png", "val/a/1.png", "val/b/1.png", "extra/c/1.png"];
    let folder = folder(&more);
    assert!(sets(folder.path(), 0.5, 0).unwrap().test.samples[0].0.starts_with(folder.path().join("val")));
    assert_eq!(layout(folder.path()).unwrap().unread, ["extra", "test"]);
}

/// Kaggle's archives and COCO's call the sets so; some have the folder of the classes one further down.
#[test]
fn the_names_of_sets_may_have_other_words_and_a_folder_between_them_and_the_classes() {
    for (train, test) in [
        ("training_set", "test_set"),
        ("seg_train", "seg_test"),
        ("train2017", "val2017"),
        ("TrainSet", "ValSet"),
        ("images-train", "images-valid"),
        ("train", "val_set"),
        ("training_set/training_set", "test_set/test_set"),
        ("train/images", "val/images"),
    ] {
        let all = ["a/1.png", "b/1.png"].map(|file| [format!("{train}/{file}"), format!("{test}/{file}")]);
        let mut all: Vec<&str> = all.as_flattened().iter().map(String::as_str).collect();
        all.push("single_prediction/1.png");
        let folder = folder(&all);
        let found = sets(folder.path(), 0.5, 0).unwrap();
        let of = |listing| listed(folder.path(), listing);
        assert_eq!(of(&found.train), [format!("0:{train}/a/1.png"), format!("1:{train}/b/1.png")]);
        assert_eq!(of(&found.test), [format!("0:{test}/a/1.png"), format!("1:{test}/b/1.png")]);
        assert_eq!(layout(folder.path()).unwrap().unread, ["single_prediction"]);
    }
    // Classes whose names have such words.
    for paths in [
        ["train_station/1.png", "test_tube/1.png", "bridge/1.png"],
        ["train_station/day/1.png", "bridge/day/1.png", "harbour/1.png"],
    ] {
        assert_eq!(layout(folder(&paths).path()).unwrap().classes.len(), 3);
    }
}

#[test]
fn a_folder_too_high_or_without_classes_is_refused_with_what_would_be_right() {
    for (paths, says) in [
        (
            &["flowers/train/a/1.png", "flowers/train/b/1.png", "flowers/val/a/1.png"][..],
            "has the sets one folder further down: set data.dir to HERE/flowers",
        ),
        (
            &["images/train/1.png", "images/val/1.png", "labels/train/1.txt"],
            "has the sets one folder further down: set data.dir to HERE/images",
        ),
        (
            &["flowers/a/1.png", "flowers/b/1.png"],
            "has one folder, which has folders: set data.dir to HERE/flowers",
        ),
        (
            &["train/1.png", "test/1.png"],
            "has a training set without classes; each class of pictures needs a folder of its name in it, such as HERE/train/cat",
        ),
        (&["val/a/1.png", "val/b/1.png"], "has a test set and no folder `train`"),
        (
            &["cat/train/1.png", "cat/val/1.png", "dog/train/1.png", "dog/val/1.png"],
            "has both sets in each class's folder; the sets' folders hold the classes: HERE/train/cat, HERE/val/cat",
        ),
        (
            &["a/1.png", "a/2.png"],
            "has one class, a; every answer would be right: there have to be two classes, each with a folder of its own",
        ),
        (&["1.png"], "has no folder of pictures; each class of pictures needs a folder of its name"),
    ] {
        let folder = folder(paths);
        let place = folder.path().display().to_string();
        assert_eq!(refused(folder.path()).replace(&place, "HERE"), format!("HERE: {says}"), "{paths:?}");
    }
    let one = folder(&["train/a/1.png", "val/a/1.png"]);
    assert!(refused(one.path()).starts_with("train: has one class, a; "));
}

#[test]
fn a_share_of_each_class_is_held_out_by_the_seed() {
    let names = |class: &str, count: usize| -> Vec<String> {
        (0..count).map(|i| format!("{class}/{i:02}.png")).collect()
    };
    let all = [names("a", 30), names("b", 10), names("c", 1), names("d", 2)].concat();
    let paths: Vec<&str> = all.iter().map(String::as_str).collect();
    let folder = folder(&paths);
    let split = |share: f64, seed: u64| {
        let Sets { train, test, .. } = sets(folder.path(), share, seed).unwrap();
        [train, test].map(|set| listed(folder.path(), &set).into_iter().collect::<BTreeSet<_>>())
    };
    let count =
        |set: &BTreeSet<String>, class: char| set.iter().filter(|name| name.starts_with(class)).count();
    let [train, test] = split(0.2, 1);
    assert_eq!(['0', '1', '2', '3'].map(|class| count(&test, class)), [6, 2, 0, 1]);
    assert_eq!((train.len(), train.union(&test).count()), (34, 43));
    assert_eq!(split(0.2, 1), [train, test.clone()]);
    assert_ne!(split(0.2, 2)[1], test);
    // However large the share, each class keeps a picture to train on.
    assert_eq!(['0', '1', '2', '3'].map(|class| count(&split(0.99, 1)[0], class)), [1, 1, 1, 1]);

    // Pictures that are added to one class change the test set of no other.
    std::fs::copy(folder.path().join("a/00.png"), folder.path().join("a/30.png")).unwrap();
    let class =
        |set: &BTreeSet<String>| set.iter().filter(|name| name.starts_with('1')).cloned().collect::<Vec<_>>();
    assert_eq!(class(&split(0.2, 1)[1]), class(&test));
}

#[test]
fn a_folder_without_classes_or_pictures_is_refused_by_name() {
    let none = folder(&[]);
    let nothing = none.path().join("no");
    assert!(refused(&nothing).ends_with(
        "no: is no folder; `data.dir` is the folder of the pictures, with a folder for each class in it"
    ));
    assert!(
        refused(none.path())
            .ends_with("has no folder of pictures; each class of pictures needs a folder of its name")
    );
    let one = folder(&["a/1.png", "b/1.png"]);
    assert!(
        refused(one.path())
            .ends_with("every class has one picture, so none is left for the test set; add pictures")
    );
    std::fs::create_dir(one.path().join("c")).unwrap();
    assert_eq!(refused(one.path()), "c: has no picture; a class needs one .jpg, .jpeg or .png at least");
    let differ = folder(&["train/a/1.png", "train/b/1.png", "val/a/1.png"]);
    let error = refused(differ.path());
    assert!(
        error.starts_with("val: has no folder for class b, which ")
            && error.ends_with("both need the same classes")
    );
    let differ = folder(&["train/a/1.png", "train/b/1.png", "val/a/1.png", "val/b/1.png", "val/c/1.png"]);
    assert!(refused(differ.path()).starts_with("train: has no folder for class c, which "));
}

#[test]
fn a_file_that_is_no_picture_is_refused_by_name() {
    let folder = folder(&["a/1.png", "a/2.png", "b/1.png"]);
    let with = |name: &str, bytes: &[u8]| {
        let path = folder.path().join("a").join(name);
        std::fs::write(&path, bytes).unwrap();
        let error = refused(folder.path());
        std::fs::remove_file(path).unwrap();
        error
    };
    assert_eq!(
        with("3.jpg", b"<html>"),
        "a/3.jpg: is an HTML page, neither JPEG nor PNG: get the picture again"
    );
    assert_eq!(with("3.png", b""), "a/3.png: is empty, neither JPEG nor PNG: get the picture again");
    assert_eq!(with("3.jpg", &[0xff, 0xd8, 0xff]), "a/3.jpg: ends within its header");
    assert_eq!(
        with("3.WebP", b"RIFF"),
        "a/3.WebP: is a .webp file; pictures are .jpg, .jpeg or .png: convert it"
    );
    let mut large = std::fs::read(folder.path().join("a/1.png")).unwrap();
    large[16..24].copy_from_slice(&[0, 0, 0xea, 0x60, 0, 0, 0xea, 0x60]);
    assert_eq!(
        with("3.png", &large),
        "a/3.png: is 60000 x 60000 pixels; the most are 16384 on a side and 67108864 in all: make it smaller"
    );
    assert!(sets(folder.path(), 0.2, 0).is_ok());
}

/// Pictures that links lead to twice would be in the training set and in the test set.
#[test]
fn links_to_folders_above_or_listed_already_are_not_followed() {
    let folder = folder(&["a/1.png", "a/2.png", "a/deep/3.png", "b/1.png", "b/2.png"]);
    let place = folder.path();
    let link = |to: &str, at: &str| std::os::unix::fs::symlink(to, place.join(at)).unwrap();
    link(".", "a/again");
    link("..", "a/above");
    link(".", "all");
    link("..", "a/deep/up");
    link("deep", "a/other");
    let counts = || {
        let Sets { classes, train, test } = sets(place, 0.2, 0).unwrap();
        (classes, train.samples.len() + test.samples.len())
    };
    assert_eq!(counts(), (2, 5));
    // Links to other folders are followed, also where each contains one to the other.
    let elsewhere = self::folder(&["x/4.png", "y/5.png"]);
    for (to, at) in [("x", "y/x"), ("y", "x/y")] {
        std::os::unix::fs::symlink(elsewhere.path().join(to), elsewhere.path().join(at)).unwrap();
    }
    std::os::unix::fs::symlink(elsewhere.path().join("x"), place.join("a/elsewhere")).unwrap();
    assert_eq!(counts(), (2, 7));
}

#[test]
fn a_picture_that_is_no_regular_file_is_refused_by_name() {
    let folder = folder(&["a/1.png", "a/2.png", "b/1.png"]);
    std::os::unix::fs::symlink("/dev/null", folder.path().join("a/notes")).unwrap();
    assert!(sets(folder.path(), 0.2, 0).is_ok());
    std::os::unix::fs::symlink("/dev/null", folder.path().join("a/3.JPG")).unwrap();
    assert_eq!(refused(folder.path()), "a/3.JPG: is no regular file; a picture has to be one");
}
