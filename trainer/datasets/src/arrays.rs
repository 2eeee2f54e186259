//! The user's own arrays: of samples, `x`, and of their labels, `y`, as NumPy or safetensors files.
//!
//! ```text
//! train_x.npy        [60000, 1, 28, 28]    train_y.npy  [60000]      and test_x.npy, test_y.npy
//! train.safetensors  x [60000, 1, 28, 28], y [60000]                 and test.safetensors
//! ```
//!
//! Names of NumPy files may also be `X_train.npy` and `y_train.npy`, or have `images` or `data` and `labels` or `targets`, in any case.
//! The test set may also be called `val`, `valid`, `validation`, `eval` or `dev`; the first that is there is used.
//!
//! Samples are numbers of any type, rounded to f32; numbers of one byte are stored as bytes. Labels are integers from 0:
//! one for a sample or, for texts, one for each position.

use crate::held_out::drawn;
use crate::samples::{Pictures, Samples};
use crate::{Dataset, Error, Result};
use allfold_kernels::nn::Float;
use allfold_tensor_files::{Dtype, StoredTensor, npy, tensor_file};
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Names of the test set.
const TEST: [&str; 6] = ["test", "val", "valid", "validation", "eval", "dev"];
/// The greatest number of classes, or of tokens.
const MOST_CLASSES: f64 = 1_048_576.0;

/// Whether samples are tokens: whole numbers from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// Samples are any numbers.
    No,
    /// Samples are tokens, and so are the labels: there are as many classes as tokens.
    Classes,
    /// Samples are tokens below this number.
    Below(usize),
}

/// How arrays become a training set and a test set.
#[derive(Clone, Copy, Debug)]
pub struct ArrayOptions {
    /// Whether samples are tokens, which the model looks up.
    pub tokens: Tokens,
    /// The share of the samples that is the test set, if there is no file of a test set.
    pub test_share: f64,
    /// The seed from which the test set is drawn.
    pub seed: u64,
}

/// The training set and the test set in a folder.
///
/// # Errors
/// If there is no training set, or a file is damaged, or its array is not what it should be; the message names the file.
pub fn load(folder: &Path, options: &ArrayOptions) -> Result<(Dataset, Dataset)> {
    let wrong = |place: &Path, what: String| Err(Error::Data(format!("{}: {what}", place.display())));
    let Some(train) = set(folder, "train")? else {
        let what = "has neither `train_x.npy` and `train_y.npy` nor `train.safetensors`";
        let (has, more) = (files(folder), files(folder).len().saturating_sub(3));
        let has: Vec<String> = has.iter().take(3).map(|name| format!("`{}`", name.display())).collect();
        return wrong(
            folder,
            match more {
                _ if has.is_empty() => what.into(),
                0 => format!("{what}; it has {}", has.join(", ")),
                _ => format!("{what}; it has {}, ..", has.join(", ")),
            },
        );
    };
    let place = train.0.path.clone();
    let test = TEST.into_iter().find_map(|name| set(folder, name).transpose()).transpose()?;
    // All headers are read before the numbers of one set.
    let (shape, rows) = form((&train.0, &train.1))?;
    if let Some((x, y)) = &test
        && form((x, y))? != (shape, rows)
    {
        let (of_test, of_test_rows) = form((x, y))?;
        let said = |shape, rows| {
            format!("{shape:?} with {}", if rows == 1 { "1 label".into() } else { format!("{rows} labels") })
        };
        let (train, other) = (said(shape, rows), said(of_test, of_test_rows));
        return wrong(&x.path, format!("samples are {other}, and those of the training set {train}"));
    }
    fits(&train, test.as_ref(), options.tokens)?;
    let train = labelled(train, options.tokens)?;
    let (train, test) = match test.map(|test| labelled(test, options.tokens)).transpose()? {
        Some(test) => (train, test),
        None if train.len() < 2 => {
            let what = "has 1 sample, and none is left for the test set; 2 samples are the least";
            return wrong(&place, what.into());
        }
        None => held_out(&train, options),
    };
    let classes = train.classes.max(test.classes);
    Ok((train.dataset(classes), test.dataset(classes)))
}

/// Refuses arrays that memory does not hold: a file may be a hole of any length behind its header.
fn fits(train: &(Array, Array), test: Option<&(Array, Array)>, tokens: Tokens) -> Result<()> {
    let numbers = |array: &Array| array.tensor.shape.iter().map(|size| *size as u64).product::<u64>();
    // Whole numbers are read as f64, then kept in 4 bytes.
    let sample = match (train.0.tensor.dtype, tokens) {
        (Dtype::U8, Tokens::No) => 1,
        (_, Tokens::No) => 4,
        _ => 16,
    };
    let bytes = |(x, y): &(Array, Array)| {
        numbers(x).saturating_mul(sample).saturating_add(numbers(y).saturating_mul(12))
    };
    // A test set that is drawn is copied out of the training set, and so is what is left.
    let need = bytes(train).saturating_add(test.map_or(bytes(train), bytes));
    let have = allfold_base::memory::available().unwrap_or(u64::MAX);
    if need <= have {
        return Ok(());
    }
    let what = format!("has the shape {:?}", train.0.tensor.shape);
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    Err(train.0.wrong(format!(
        "{what}: its set needs {:.1} GiB of memory and {:.1} GiB are available; take fewer samples",
        gib(need),
        gib(have)
    )))
}

/// Divides a set into a training set and a test set, by a draw from the seed. Both keep the order of their samples.
fn held_out(all: &Set, options: &ArrayOptions) -> (Set, Set) {
    let held = drawn(all.len(), options.test_share, &mut ChaCha8Rng::seed_from_u64(options.seed));
    let (test, train): (Vec<usize>, Vec<usize>) = (0..all.len()).partition(|&at| held[at]);
    (all.only(&train), all.only(&test))
}

/// Samples and labels in memory.
struct Set {
    shape: (usize, usize, usize),
    values: Values,
    labels: Vec<u32>,
    /// One more than the greatest label.
    classes: usize,
}

enum Values {
    Numbers(Vec<f32>),
    Bytes(Vec<u8>),
}

impl Set {
    fn features(&self) -> usize {
        self.shape.0 * self.shape.1 * self.shape.2
    }

    fn len(&self) -> usize {
        let values = match &self.values {
            Values::Numbers(numbers) => numbers.len(),
            Values::Bytes(bytes) => bytes.len(),
        };
        values / self.features()
    }

    fn rows(&self) -> usize {
        self.labels.len() / self.len()
    }

    fn only(&self, indices: &[usize]) -> Set {
        fn taken<T: Copy>(all: &[T], each: usize, indices: &[usize]) -> Vec<T> {
            indices.iter().flat_map(|at| &all[at * each..(at + 1) * each]).copied().collect()
        }
        let values = match &self.values {
            Values::Numbers(numbers) => Values::Numbers(taken(numbers, self.features(), indices)),
            Values::Bytes(bytes) => Values::Bytes(taken(bytes, self.features(), indices)),
        };
        Set { values, labels: taken(&self.labels, self.rows(), indices), ..*self }
    }

    fn dataset(self, classes: usize) -> Dataset {
        let (count, shape, labels) = (self.len(), self.shape, self.labels);
        let samples = match self.values {
            Values::Numbers(numbers) => Samples::Numbers(numbers),
            Values::Bytes(bytes) => {
                let values = vec![std::array::from_fn(|byte| byte as f32); shape.0];
                Samples::Pictures(Pictures::held(bytes, count, values))
            }
        };
        Dataset { shape, classes, samples, labels }
    }
}

/// The names in a folder, sorted.
fn files(folder: &Path) -> Vec<OsString> {
    let mut names: Vec<_> =
        folder.read_dir().into_iter().flatten().flatten().map(|file| file.file_name()).collect();
    names.sort();
    names
}

/// The NumPy file of a set for one of these words: of `SET_WORD.npy` and `WORD_SET.npy` the first that is there in any case, or the first.
fn spelt(folder: &Path, set: &str, words: &[&str]) -> PathBuf {
    let all = || words.iter().flat_map(|word| [format!("{set}_{word}.npy"), format!("{word}_{set}.npy")]);
    let files = files(folder);
    let here = |name: String| {
        let alike = files.iter().filter(|file| file.eq_ignore_ascii_case(&name));
        alike.max_by_key(|file| ***file == *name)
    };
    all()
        .find_map(here)
        .map_or_else(|| folder.join(format!("{set}_{}.npy", words[0])), |name| folder.join(name))
}

/// The samples and the labels of the set of this name, not read yet; `None` if there are no files of it.
fn set(folder: &Path, name: &str) -> Result<Option<(Array, Array)>> {
    let [x, y] =
        [["x", "images", "data"], ["y", "labels", "targets"]].map(|words| spelt(folder, name, &words));
    let both = folder.join(format!("{name}.safetensors"));
    let found = [&x, &y, &both].map(|path| path.exists());
    let (x, y) = match found {
        [false, false, false] => return Ok(None),
        [true, true, false] => (Array::of_npy(x)?, Array::of_npy(y)?),
        [false, false, true] => {
            let [x, y] = ["x", "y"].map(|name| Array::of_safetensors(&both, name));
            (x?, y?)
        }
        [_, _, true] => {
            let npy = if found[0] { x } else { y };
            return Err(Error::Data(format!(
                "{}: is there, and {} too; leave one of them",
                both.display(),
                npy.display()
            )));
        }
        [here, ..] => {
            let (here, missing) = if here { (x, y) } else { (y, x) };
            return Err(Error::Data(format!(
                "{}: is missing, and {} is there",
                missing.display(),
                here.display()
            )));
        }
    };
    Ok(Some((x, y)))
}

/// The shape of a sample and the number of its labels.
fn form((x, y): (&Array, &Array)) -> Result<((usize, usize, usize), usize)> {
    let (count, shape) = match x.tensor.shape[..] {
        [count, features] => (count, (1, 1, features)),
        [count, height, width] => (count, (1, height, width)),
        [count, channels, height, width] => (count, (channels, height, width)),
        _ => {
            let right = "[samples, features], [samples, height, width] or [samples, channels, height, width]";
            return Err(x.wrong(format!("has the shape {:?}; {right} is right", x.tensor.shape)));
        }
    };
    if x.tensor.shape.contains(&0) {
        return Err(x.wrong(format!("has the shape {:?}, which holds nothing", x.tensor.shape)));
    }
    match y.tensor.shape[..] {
        [labelled] if labelled == count => Ok((shape, 1)),
        [labelled, positions] if labelled == count && positions > 0 => Ok((shape, positions)),
        _ => {
            let right = format!("[{count}], a label for each sample, or [{count}, positions]");
            Err(y.wrong(format!("has the shape {:?}; {right} is right", y.tensor.shape)))
        }
    }
}

/// Reads the samples and the labels of a set.
fn labelled((mut x, mut y): (Array, Array), tokens: Tokens) -> Result<Set> {
    let (shape, rows) = form((&x, &y))?;
    let (labels, mut classes) = y.whole_numbers("label")?;
    let one_hot = |row: &[u32]| {
        row.iter().filter(|label| **label == 1).count() == 1 && row.iter().all(|label| *label < 2)
    };
    if rows > 1 && tokens != Tokens::Classes && labels.chunks(rows).all(one_hot) {
        let what = "has one-hot labels, a row of {} for each sample; one whole number is right, as by y.argmax(axis=1)";
        return Err(y.wrong(what.replace("{}", &rows.to_string())));
    }
    let values = match x.tensor.dtype {
        Dtype::U8 if tokens == Tokens::No => {
            let mut bytes = x.zeros(0u8)?;
            let read = x.tensor.read_bytes(&mut x.file, &mut bytes);
            read.map_err(|error| x.wrong(error.to_string()))?;
            Values::Bytes(bytes)
        }
        _ => {
            let numbers: Vec<f32> = x.numbers()?;
            if let Some(at) = numbers.iter().position(|number| !number.is_finite()) {
                let (number, sample) = (numbers[at], at / (shape.0 * shape.1 * shape.2));
                return Err(
                    x.wrong(format!("has {number} in sample {sample}; all numbers must be finite in f32"))
                );
            }
            Values::Numbers(numbers)
        }
    };
    let most = if tokens == Tokens::No { 0 } else { x.whole_numbers("token")?.1 };
    match tokens {
        Tokens::Below(vocabulary) if most > vocabulary => {
            let (token, last) = (most - 1, vocabulary.saturating_sub(1));
            return Err(x.wrong(format!(
                "has the token {token}; the model knows 0 to {last}: set `model.vocabulary` to {most} or more"
            )));
        }
        Tokens::Classes => classes = classes.max(most),
        _ => {}
    }
    Ok(Set { shape, values, labels, classes })
}

/// An array in a file.
struct Array {
    path: PathBuf,
    /// The array's name in the file; `None`: the file is this array.
    name: Option<&'static str>,
    file: File,
    tensor: StoredTensor,
}

impl Array {
    fn of_npy(path: PathBuf) -> Result<Array> {
        let damaged = |error: std::io::Error| Error::Data(format!("{}: {error}", path.display()));
        let mut file = crate::open(&path).map_err(damaged)?;
        let tensor = npy::array(&mut file).map_err(damaged)?;
        Ok(Array { path, name: None, file, tensor })
    }

    fn of_safetensors(path: &Path, name: &'static str) -> Result<Array> {
        let damaged = |error: std::io::Error| Error::Data(format!("{}: {error}", path.display()));
        let mut file = crate::open(path).map_err(damaged)?;
        let mut tensors = tensor_file::tensors(&mut file).map_err(damaged)?;
        let tensor = tensors.remove(name).ok_or_else(|| {
            let all = tensors.keys().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
            Error::Data(format!("{}: has no tensor `{name}`; it has: {all}", path.display()))
        })?;
        Ok(Array { path: path.to_path_buf(), name: Some(name), file, tensor })
    }

    fn wrong(&self, what: String) -> Error {
        match self.name {
            Some(name) => Error::Data(format!("{}: `{name}` {what}", self.path.display())),
            None => Error::Data(format!("{}: {what}", self.path.display())),
        }
    }

    /// As many zeros as the array has numbers.
    fn zeros<T: Copy>(&self, zero: T) -> Result<Vec<T>> {
        let (mut zeros, count) = (Vec::new(), self.tensor.shape.iter().product());
        let lacking = |_| self.wrong(format!("has {count} numbers, for which there is not enough memory"));
        zeros.try_reserve_exact(count).map_err(lacking)?;
        zeros.resize(count, zero);
        Ok(zeros)
    }

    fn numbers<F: Float>(&mut self) -> Result<Vec<F>> {
        let mut numbers = self.zeros(F::from_f64(0.0))?;
        let read = self.tensor.read_number(&mut self.file, &mut numbers);
        read.map_err(|error| self.wrong(error.to_string()))?;
        Ok(numbers)
    }

    /// The array as whole numbers from 0, and one more than the greatest; `what` names such a number in errors.
    fn whole_numbers(&mut self, what: &str) -> Result<(Vec<u32>, usize)> {
        let numbers: Vec<f64> = self.numbers()?;
        let possible = |number: &f64| (0.0..MOST_CLASSES).contains(number) && number.fract() == 0.0;
        if let Some(at) = numbers.iter().position(|number| !possible(number)) {
            let (number, per) = (numbers[at], (numbers.len() / self.tensor.shape[0]).max(1));
            return Err(self.wrong(format!(
                "has the {what} {number} in sample {}; whole numbers from 0 to {} are right",
                at / per,
                MOST_CLASSES - 1.0
            )));
        }
        let numbers: Vec<u32> = numbers.into_iter().map(|number| number as u32).collect();
        let classes = numbers.iter().max().map_or(0, |most| *most as usize + 1);
        Ok((numbers, classes))
    }
}

#[cfg(test)]
mod tests;
