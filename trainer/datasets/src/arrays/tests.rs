use super::*;
use crate::Batch;
use std::fmt::Write;

/// The bytes of a `.npy` file.
fn npy(descr: &str, shape: &[usize], values: &[u8]) -> Vec<u8> {
    let shape = shape.iter().fold(String::new(), |mut text, size| {
        write!(text, "{size}, ").unwrap();
        text
    });
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let length = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), values].concat()
}

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

fn labels(values: impl IntoIterator<Item = i64>) -> Vec<u8> {
    values.into_iter().flat_map(i64::to_le_bytes).collect()
}

const OPTIONS: ArrayOptions = ArrayOptions { tokens: Tokens::No, test_share: 0.2, seed: 3 };

struct Folder(tempfile::TempDir);

impl Folder {
    fn new(files: &[(&str, Vec<u8>)]) -> Folder {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, bytes)| std::fs::write(folder.path().join(name), bytes).unwrap());
        Folder(folder)
    }

    fn load(&self) -> Result<(Dataset, Dataset)> {
        load(self.0.path(), &OPTIONS)
    }

    /// The message, without the folder.
    fn refused(&self) -> String {
        let error = self.load().unwrap_err().to_string();
        error.replace(&format!("data: {}", self.0.path().display()), "")
    }
}

fn batch(set: &Dataset, indices: &[usize]) -> Batch<f64> {
    let mut batch = Batch::default();
    set.gather(indices, &mut batch).unwrap();
    batch
}

#[test]
fn numpy_arrays_are_samples_as_they_are() {
    let folder = Folder::new(&[
        ("train_x.npy", npy("<f4", &[3, 2], &floats([1.0, -2.5, 3.0, 4.0, 5.0, 6.0]))),
        ("train_y.npy", npy("<i8", &[3], &labels([0, 4, 1]))),
        ("test_x.npy", npy("|u1", &[1, 2], &[200, 7])),
        ("test_y.npy", npy("|u1", &[1, 1], &[2])),
    ]);
    let (train, test) = folder.load().unwrap();
    assert_eq!((train.len(), train.shape, train.rows(), train.classes), (3, (1, 1, 2), 1, 5));
    assert_eq!(batch(&train, &[2, 0]), Batch { x: vec![5.0, 6.0, 1.0, -2.5], labels: vec![1, 0] });
    assert_eq!((test.len(), test.classes), (1, 5));
    assert_eq!(batch(&test, &[0]), Batch { x: vec![200.0, 7.0], labels: vec![2] });
}

#[test]
fn the_usual_names_of_numpy_files_are_known() {
    let (x, y) = (|value| npy("<f4", &[1, 1], &floats([value])), npy("<i8", &[1], &labels([0])));
    for names in [
        ["X_train.npy", "y_train.npy", "X_test.npy", "y_test.npy"],
        ["x_train.npy", "y_train.npy", "x_val.npy", "y_val.npy"],
        ["train_images.npy", "train_labels.npy", "test_images.npy", "test_labels.npy"],
        ["train_data.npy", "train_targets.npy", "valid_data.npy", "valid_targets.npy"],
        ["TRAIN_X.npy", "train_Y.npy", "test_x.npy", "test_y.npy"],
    ] {
        let files = [(names[0], x(1.0)), (names[1], y.clone()), (names[2], x(2.0)), (names[3], y.clone())];
        let (train, test) = Folder::new(&files).load().unwrap();
        assert_eq!((batch(&train, &[0]).x, batch(&test, &[0]).x), (vec![1.0], vec![2.0]), "{names:?}");
    }
    // The name as the documentation spells it comes first.
    let all =
        ["train_x.npy", "Train_X.npy", "x_train.npy"].map(|name| (name, x(f32::from(name == "train_x.npy"))));
    let rest = [("train_y.npy", y.clone()), ("test_x.npy", x(2.0)), ("test_y.npy", y)];
    let (train, _) = Folder::new(&[&all[..], &rest].concat()).load().unwrap();
    assert_eq!(batch(&train, &[0]).x, [1.0]);
    let what = ": has neither `train_x.npy` and `train_y.npy` nor `train.safetensors`; it has `a.csv`, `b.npz`, `c.pkl`";
    let others = ["a.csv", "b.npz", "c.pkl"].map(|name| (name, Vec::new()));
    assert_eq!(Folder::new(&others).refused(), what);
    assert_eq!(Folder::new(&[&others[..], &[("d", Vec::new())]].concat()).refused(), format!("{what}, .."));
}

#[test]
fn without_a_test_set_a_share_is_drawn() {
    let x: Vec<u8> = (0..20).flat_map(|i| [i, i + 100, i, i]).collect();
    let folder = Folder::new(&[
        ("train_x.npy", npy("|u1", &[20, 1, 2, 2], &x)),
        ("train_y.npy", npy("<i8", &[20], &labels(0..20))),
    ]);
    let (train, test) = folder.load().unwrap();
    assert_eq!((train.len(), test.len(), train.classes, test.classes), (16, 4, 20, 20));
    assert!(test.labels.is_sorted() && train.labels.is_sorted());
    let mut all = [&train.labels[..], &test.labels].concat();
    all.sort_unstable();
    assert_eq!(all, (0..20).collect::<Vec<_>>());
    for (at, label) in test.labels.iter().enumerate() {
        let value = f64::from(*label);
        assert_eq!(batch(&test, &[at]).x, [value, value + 100.0, value, value]);
    }
    assert_eq!(folder.load().unwrap().1.labels, test.labels);
    let other = load(folder.0.path(), &ArrayOptions { seed: 4, ..OPTIONS }).unwrap().1.labels;
    assert_ne!(other, test.labels);
}

#[test]
fn tokens_count_as_classes() {
    let folder = Folder::new(&[
        ("train_x.npy", npy("<i8", &[2, 3], &labels([9, 1, 2, 3, 0, 1]))),
        ("train_y.npy", npy("<i8", &[2, 3], &labels([1, 2, 3, 0, 1, 1]))),
    ]);
    let options = ArrayOptions { tokens: Tokens::Classes, ..OPTIONS };
    let (train, test) = load(folder.0.path(), &options).unwrap();
    assert_eq!((train.len(), test.len(), train.rows(), train.classes), (1, 1, 3, 10));
    let known =
        |vocabulary| load(folder.0.path(), &ArrayOptions { tokens: Tokens::Below(vocabulary), ..OPTIONS });
    assert_eq!(known(10).unwrap().0.classes, 4);
    let error = known(9).unwrap_err().to_string();
    assert!(error.ends_with("has the token 9; the model knows 0 to 8: set `model.vocabulary` to 10 or more"));
    std::fs::write(folder.0.path().join("train_x.npy"), npy("<f4", &[2, 1], &floats([1.0, 0.5]))).unwrap();
    let error = load(folder.0.path(), &options).unwrap_err().to_string();
    assert!(error.ends_with("has the token 0.5 in sample 1; whole numbers from 0 to 1048575 are right"));
}

#[test]
fn safetensors_hold_both() {
    let header = r#"{"x":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"y":{"dtype":"I64","shape":[2],"data_offsets":[8,24]}}"#;
    let of = |header: &str| {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &floats([0.5, 1.5]), &labels([1, 0])]
            .concat()
    };
    for test in ["test.safetensors", "val.safetensors", "valid.safetensors", "dev.safetensors"] {
        let folder = Folder::new(&[("train.safetensors", of(header)), (test, of(header))]);
        let (train, test) = folder.load().unwrap();
        assert_eq!(batch(&train, &[0, 1]), Batch { x: vec![0.5, 1.5], labels: vec![1, 0] });
        assert_eq!((test.len(), test.classes), (2, 2));
    }
    let other = Folder::new(&[("train.safetensors", of(&header.replace("\"y\"", "\"z\"")))]);
    assert_eq!(other.refused(), "/train.safetensors: has no tensor `y`; it has: x, z");
    let whole = of(header);
    let end = whole.len() - 3;
    let cut = Folder::new(&[("train.safetensors", whole[..end].to_vec())]);
    assert_eq!(cut.refused(), format!("/train.safetensors: ends at byte {end} within the tensor `y`"));
}

#[test]
fn what_does_not_fit_is_named() {
    let good = || ("train_x.npy", npy("<f4", &[2, 2], &floats([0.0; 4])));
    let with = |y: Vec<u8>| Folder::new(&[good(), ("train_y.npy", y)]).refused();
    assert_eq!(
        Folder::new(&[]).refused(),
        ": has neither `train_x.npy` and `train_y.npy` nor `train.safetensors`"
    );
    let alone = Folder::new(&[good()]).refused();
    assert!(alone.starts_with("/train_y.npy: is missing, and "), "{alone}");
    assert_eq!(
        with(npy("<i8", &[3], &labels([0; 3]))),
        "/train_y.npy: has the shape [3]; [2], a label for each sample, or [2, positions] is right"
    );
    assert_eq!(
        with(npy("<i8", &[2], &labels([0, -1]))),
        "/train_y.npy: has the label -1 in sample 1; whole numbers from 0 to 1048575 are right"
    );
    assert_eq!(
        with(npy("<f4", &[2, 3], &floats([0.0, 1.0, 0.0, 0.0, 0.0, 1.0]))),
        "/train_y.npy: has one-hot labels, a row of 3 for each sample; one whole number is right, as by y.argmax(axis=1)"
    );
    let of =
        |x: Vec<u8>| Folder::new(&[("train_x.npy", x), ("train_y.npy", npy("|u1", &[2], &[0, 1]))]).refused();
    assert!(
        of(npy("<f4", &[2], &floats([0.0; 2]))).starts_with("/train_x.npy: has the shape [2]; [samples,")
    );
    assert_eq!(of(npy("<f4", &[2, 0], &[])), "/train_x.npy: has the shape [2, 0], which holds nothing");
    assert_eq!(
        of(npy("<f4", &[2, 1], &floats([1.0, f32::NAN]))),
        "/train_x.npy: has NaN in sample 1; all numbers must be finite in f32"
    );
    let other = Folder::new(&[
        good(),
        ("train_y.npy", npy("|u1", &[2], &[0, 1])),
        ("test_x.npy", npy("<f4", &[1, 3], &floats([0.0; 3]))),
        ("test_y.npy", npy("|u1", &[1], &[0])),
    ]);
    assert_eq!(
        other.refused(),
        "/test_x.npy: samples are (1, 1, 3) with 1 label, and those of the training set (1, 1, 2) with 1 label"
    );
}
#[test]
fn the_shapes_of_all_arrays_are_compared_before_one_is_read() {
    let header = npy("<f4", &[1 << 38, 3], &[]);
    let folder = Folder::new(&[
        ("train_x.npy", npy("<f4", &[2, 2], &floats([0.0; 4]))),
        ("train_y.npy", npy("|u1", &[2], &[0, 1])),
        ("test_x.npy", header.clone()),
        ("test_y.npy", npy("|u1", &[1 << 38], &[])),
    ]);
    // Sparse files, of more numbers than memory holds.
    for (file, bytes) in [("test_x.npy", 12u64 << 38), ("test_y.npy", 1 << 38)] {
        let file = File::options().write(true).open(folder.0.path().join(file)).unwrap();
        let header = file.metadata().unwrap().len();
        file.set_len(header + bytes).unwrap();
    }
    assert!(folder.refused().starts_with("/test_x.npy: samples are (1, 1, 3) "), "{}", folder.refused());
}

/// Regression: the numbers of a hole behind a good header filled the memory.
#[test]
fn arrays_larger_than_memory_are_refused_by_their_headers() {
    for (dtype, size) in [("|u1", 1u64), ("<f4", 4)] {
        let folder = Folder::new(&[
            ("train_x.npy", npy(dtype, &[2, 1 << 39], &[])),
            ("train_y.npy", npy("|u1", &[2], &[0, 1])),
        ]);
        let file = File::options().write(true).open(folder.0.path().join("train_x.npy")).unwrap();
        file.set_len(file.metadata().unwrap().len() + size * (2 << 39)).unwrap();
        let said = folder.refused();
        let needs =
            format!("/train_x.npy: has the shape [2, 549755813888]: its set needs {}.0 GiB", 2048 * size);
        assert!(said.starts_with(&needs) && said.ends_with("are available; take fewer samples"), "{said}");
    }
}

#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    for name in ["train_x.npy", "train.safetensors"] {
        let folder = Folder::new(&[("train_y.npy", npy("|u1", &[2], &[0, 1]))]);
        if name == "train.safetensors" {
            std::fs::remove_file(folder.0.path().join("train_y.npy")).unwrap();
        }
        let made = std::process::Command::new("mkfifo").arg(folder.0.path().join(name)).status().unwrap();
        assert!(made.success());
        assert_eq!(folder.refused(), format!("/{name}: is a named pipe; data has to be in a regular file"));
    }
}
