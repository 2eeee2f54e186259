//! The classes and files of a folder of pictures, in the form of torchvision's `ImageFolder`.
//!
//! ```text
//! data_dir/cat/1.jpg          data_dir/train/cat/1.jpg          classes by name: cat is 0, dog is 1
//! data_dir/dog/2.png          data_dir/train/dog/2.png
//!                             data_dir/val/cat/3.jpg            or valid, validation, eval, dev, test, testing; in any
//!                             data_dir/test_set/cat/3.jpg       case, also beside other words
//! ```
//!
//! The classes of a set are interleaved: any run of its samples, such as the first or the last ones, has every class by its share.

use super::files::LONGEST;
use super::header;
use crate::held_out::drawn;
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Files of pictures that are read, by the ends of their names, and files of pictures that are not.
const READ: [&str; 3] = ["jpg", "jpeg", "png"];
const UNREAD: [&str; 7] = ["bmp", "gif", "pgm", "ppm", "tif", "tiff", "webp"];
/// Names of the folder of a training set, and of a test set: the first that is there is used.
const TRAIN: [&str; 2] = ["train", "training"];
const TEST: [&str; 8] = ["val", "valid", "validation", "eval", "evaluation", "dev", "test", "testing"];
const TWO: &str = "every answer would be right: there have to be two classes, each with a folder of its own";
/// Folders within a class's folder are searched up to this depth.
const DEPTH: usize = 8;

/// The pictures of one set.
#[derive(Debug, Default, PartialEq)]
pub struct Listing {
    /// The path of each picture, and its class.
    pub samples: Vec<(Box<Path>, u32)>,
}

/// The pictures that a folder holds.
#[derive(Debug)]
pub struct Sets {
    /// The number of classes.
    pub classes: usize,
    /// The training set.
    pub train: Listing,
    /// The test set.
    pub test: Listing,
}

/// A class: its name, and its pictures in the order of their names.
struct Class {
    name: OsString,
    files: Vec<PathBuf>,
}

/// Where the sets of a folder are.
pub struct Layout {
    /// The names of the folders of the training set's classes, sorted.
    pub classes: Vec<OsString>,
    /// The folder that holds them.
    train: PathBuf,
    /// The folder of the test set's classes, if there is one.
    test: Option<PathBuf>,
    /// The names of other folders beside these, which are not read.
    pub unread: Vec<OsString>,
}

/// The first of these folders whose name is one of `names` in any case: by the order of `names`, the name as it is first.
fn named<'a>(folders: &'a [OsString], names: &[&str]) -> Option<&'a OsString> {
    let spelt = |name: &&str| {
        let alike = |folder: &&OsString| folder.eq_ignore_ascii_case(name);
        folders.iter().find(|folder| **folder == **name).or_else(|| folders.iter().find(alike))
    };
    names.iter().find_map(spelt)
}

/// The first of these folders that has folders and whose name has one of `names` as a word, as `training_set`, `seg-train` and `train2017`.
fn worded<'a>(folder: &Path, folders_in: &'a [OsString], names: &[&str]) -> Option<&'a OsString> {
    let has = |name: &OsString| {
        let name = name.to_string_lossy().to_lowercase();
        let mut words = name.split(|c: char| !c.is_ascii_alphabetic());
        words.any(|word| names.contains(&word.strip_suffix("set").unwrap_or(word)))
    };
    folders_in.iter().find(|name| has(name) && has_folders(&folder.join(name)))
}

fn has_folders(folder: &Path) -> bool {
    folders(folder).is_ok_and(|within| !within.is_empty())
}

/// The folder of a set's classes: the folder itself, or the only folder in it that has folders, as in `train/images/cat`.
fn of_set(folder: PathBuf) -> PathBuf {
    match folders(&folder).as_deref() {
        Ok([only]) if has_folders(&folder.join(only)) => folder.join(only),
        _ => folder,
    }
}

/// Finds the sets in a folder.
///
/// # Errors
/// If the folder cannot be read or has less than two classes; the message says what would be right.
pub fn layout(folder: &Path) -> Result<Layout, String> {
    let wrong = |path: &Path, what: &str| Err(format!("{}: {what}", path.display()));
    if !folder.is_dir() {
        let what =
            "is no folder; `data.dir` is the folder of the pictures, with a folder for each class in it";
        return wrong(folder, what);
    }
    let all = folders(folder)?;
    let nested = named(&all, &TRAIN).filter(|name| has_folders(&folder.join(name)));
    let worded_test = worded(folder, &all, &TEST).filter(|test| Some(*test) != nested);
    let Some(set) = nested.or_else(|| {
        worded(folder, &all, &TRAIN).filter(|name| worded_test.is_some_and(|test| test != *name))
    }) else {
        return alone(folder, all);
    };
    let train = of_set(folder.join(set));
    let classes = folders(&train)?;
    if let [only] = &classes[..] {
        return wrong(&train, &format!("has one class, {}; {TWO}", only.display()));
    }
    let test = named(&all, &TEST).or(worded_test);
    let unread = all.iter().filter(|name| *name != set && test != Some(*name)).cloned().collect();
    Ok(Layout { classes, test: test.map(|name| of_set(folder.join(name))), train, unread })
}

/// The layout of a folder without a folder of a training set: the folders in it are the classes.
fn alone(folder: &Path, classes: Vec<OsString>) -> Result<Layout, String> {
    let wrong = |what: String| Err(format!("{}: {what}", folder.display()));
    let sets = |names: &[OsString]| (named(names, &TRAIN).is_some(), named(names, &TEST).is_some());
    let of_sets = |place: &PathBuf| folders(place).is_ok_and(|within| sets(&within) == (true, true));
    match &classes.iter().map(|name| folder.join(name)).filter(of_sets).collect::<Vec<_>>()[..] {
        [] => {}
        [only] => {
            return wrong(format!(
                "has the sets one folder further down: set data.dir to {}",
                only.display()
            ));
        }
        [first, ..] => {
            let name = first.file_name().unwrap_or_default().display();
            return wrong(format!(
                "has both sets in each class's folder; the sets' folders hold the classes: {}, {}",
                folder.join(format!("train/{name}")).display(),
                folder.join(format!("val/{name}")).display()
            ));
        }
    }
    let is_set = |name: &OsString| sets(std::slice::from_ref(name)) != (false, false);
    if !classes.is_empty() && classes.iter().all(is_set) {
        let example = folder.join("train").join("cat");
        return match sets(&classes).0 {
            true => wrong(format!(
                "has a training set without classes; {}, such as {}",
                "each class of pictures needs a folder of its name in it",
                example.display()
            )),
            false => wrong("has a test set and no folder `train`".into()),
        };
    }
    match &classes[..] {
        [] => wrong("has no folder of pictures; each class of pictures needs a folder of its name".into()),
        [only] if !folders(&folder.join(only))?.is_empty() => {
            let below = folder.join(only);
            wrong(format!("has one folder, which has folders: set data.dir to {}", below.display()))
        }
        [only] => wrong(format!("has one class, {}; {TWO}", only.display())),
        _ => Ok(Layout { classes, train: folder.to_path_buf(), test: None, unread: Vec::new() }),
    }
}

/// Lists the pictures below `folder` and checks their headers. Without a folder of a test set, the share `held_out` of each class's
/// pictures is the test set: by a draw from `seed`, one picture at least, and not the last one.
///
/// # Errors
/// If there are less than two classes, a class without pictures, a class that only one of the sets has, or a file that is no picture or
/// too large a picture; the message names the folder or file.
pub fn sets(folder: &Path, held_out: f64, seed: u64) -> Result<Sets, String> {
    let Layout { classes: names, train: of, test, .. } = layout(folder)?;
    let train = of_classes(&of, &names)?;
    let (train, test) = match test {
        Some(other) => {
            let others = folders(&other)?;
            alike((&of, &names), (&other, &others))?;
            (train, of_classes(&other, &others)?)
        }
        None => {
            let split = split(train, held_out, seed);
            if split.1.iter().all(|class| class.files.is_empty()) {
                let what = "every class has one picture, so none is left for the test set; add pictures";
                return Err(format!("{}: {what}", of.display()));
            }
            split
        }
    };
    Ok(Sets { classes: names.len(), train: Listing::spread(train), test: Listing::spread(test) })
}

fn alike(a: (&Path, &[OsString]), b: (&Path, &[OsString])) -> Result<(), String> {
    for ((path, names), (other, others)) in [(a, b), (b, a)] {
        if let Some(lacking) = names.iter().find(|name| !others.contains(name)) {
            return Err(format!(
                "{}: has no folder for class {}, which {} has; both need the same classes",
                other.display(),
                lacking.display(),
                path.display()
            ));
        }
    }
    Ok(())
}

/// The folders and files in a folder, sorted by name, without names that begin with a dot: whether each is a folder, and its name.
/// A link to a folder that contains `folder` is left out: pictures below it would be listed twice, once as another class's or set's.
fn entries(folder: &Path) -> Result<Vec<(bool, OsString)>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if !name.as_encoded_bytes().starts_with(b".") {
            let path = entry.path();
            let failed = |error: std::io::Error| format!("{}: {error}", path.display());
            let mut kind = entry.file_type().map_err(failed)?;
            if kind.is_symlink() {
                kind = std::fs::metadata(&path).map_err(failed)?.file_type();
                if kind.is_dir() && real(folder)?.starts_with(real(&path)?) {
                    continue;
                }
            }
            if kind.is_dir() || kind.is_file() {
                found.push((kind.is_dir(), name));
            } else if READ.contains(&ending(&path).as_str()) {
                return Err(format!("{}: is no regular file; a picture has to be one", path.display()));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// A path without links.
fn real(path: &Path) -> Result<PathBuf, String> {
    path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))
}

/// The ending of a file's name, in small letters.
fn ending(path: &Path) -> String {
    path.extension().map(|end| end.to_string_lossy().to_lowercase()).unwrap_or_default()
}

fn folders(folder: &Path) -> Result<Vec<OsString>, String> {
    Ok(entries(folder)?.into_iter().filter(|(is_folder, _)| *is_folder).map(|(_, name)| name).collect())
}

fn of_classes(folder: &Path, names: &[OsString]) -> Result<Vec<Class>, String> {
    let class = |name: &OsString| {
        let (path, mut files) = (folder.join(name), Vec::new());
        pictures(&path, DEPTH, &mut BTreeSet::new(), &mut files)?;
        if files.is_empty() {
            return Err(format!(
                "{}: has no picture; a class needs one .jpg, .jpeg or .png at least",
                path.display()
            ));
        }
        Ok(Class { name: name.clone(), files })
    };
    names.iter().map(class).collect()
}

/// Appends the pictures of a folder, then those of the folders in it. A folder that is in `seen`, because links lead to it twice, is
/// not listed again.
fn pictures(
    folder: &Path,
    depth: usize,
    seen: &mut BTreeSet<PathBuf>,
    files: &mut Vec<PathBuf>,
) -> Result<(), String> {
    if !seen.insert(real(folder)?) {
        return Ok(());
    }
    let entries = entries(folder)?;
    for (_, name) in entries.iter().filter(|(is_folder, _)| !is_folder) {
        let path = folder.join(name);
        let end = ending(&path);
        if UNREAD.contains(&end.as_str()) {
            return Err(format!(
                "{}: is a .{end} file; pictures are .jpg, .jpeg or .png: convert it",
                path.display()
            ));
        }
        if READ.contains(&end.as_str()) {
            let open = || {
                let file = File::open(&path).map_err(|error| error.to_string())?;
                let bytes = file.metadata().map_err(|error| error.to_string())?.len();
                header::read(file)?;
                match bytes {
                    ..=LONGEST => Ok(()),
                    _ => Err(format!("has {bytes} bytes; a picture's file has {LONGEST} at most")),
                }
            };
            open().map_err(|what| format!("{}: {what}", path.display()))?;
            files.push(path);
        }
    }
    for (_, name) in entries.iter().filter(|(is_folder, _)| *is_folder && depth > 0) {
        pictures(&folder.join(name), depth - 1, seen, files)?;
    }
    Ok(())
}

/// Splits each class into training and test pictures, which stay in order.
fn split(classes: Vec<Class>, held_out: f64, seed: u64) -> (Vec<Class>, Vec<Class>) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let halves = (0..).zip(classes).map(|(number, Class { name, files })| {
        // A stream for each class: pictures that are added to one class do not change the others. Only this draw uses the last
        // streams.
        random.set_stream(u64::MAX - 1 - number);
        random.set_word_pos(0);
        let held = drawn(files.len(), held_out, &mut random);
        let (test, train): (Vec<_>, Vec<_>) = files.into_iter().zip(held).partition(|(_, held)| *held);
        let class = |files: Vec<(PathBuf, bool)>| Class {
            name: name.clone(),
            files: files.into_iter().map(|(file, _)| file).collect(),
        };
        (class(train), class(test))
    });
    halves.unzip()
}

impl Listing {
    /// The pictures of all classes, spread: picture i of n of a class lies at (i + 1/2) / n of the way.
    fn spread(classes: Vec<Class>) -> Listing {
        let mut samples = Vec::new();
        for (label, class) in (0..).zip(classes) {
            let count = class.files.len() as u128;
            let placed = (0u128..).zip(class.files).map(|(at, file)| (2 * at + 1, count, label, file));
            samples.extend(placed);
        }
        samples.sort_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1)).then(a.2.cmp(&b.2)));
        let named = |(_, _, label, file): (u128, u128, u32, PathBuf)| (file.into_boxed_path(), label);
        Listing { samples: samples.into_iter().map(named).collect() }
    }
}

#[cfg(test)]
mod tests;
