//! Files that are larger than what they should be: every command that reads one refuses it, and holds little memory meanwhile.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg(target_os = "linux")]

mod common;

use common::folder;
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

const CNN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-cnn.toml");
const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/runs/all_reduce_h100.txt");

/// The most memory in KiB that a command may hold before it refuses a file.
const MOST: u64 = 64 << 10;

/// An idx file of one picture of one pixel.
const PIXEL: [u8; 17] = [0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 7];

/// The greatest memory that a process has held so far, in KiB; 0 once the process has ended.
fn peak(id: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    peak.map_or(0, |kib| kib.parse().unwrap())
}

/// Runs a command that is refused within 512 MiB of address space and [`MOST`] of memory; `says` is in its one line.
fn refused(args: &[String], variables: &[(&str, &str)], says: &str) {
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -v 524288; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_allfold")])
        .args(args)
        .envs(variables.iter().copied())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut most = 0;
    let ended = loop {
        most = most.max(peak(child.id()));
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
        thread::yield_now();
    };
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(ended.code(), Some(2), "{args:?}: {said}");
    assert!(said.contains(says) && said.lines().count() == 1, "{args:?}: {said}");
    assert!((1..MOST).contains(&most), "{args:?}: {most} KiB");
}

/// The commands that read a file below `folder`, where each file is a link to `large`, with what each command says.
fn readers(
    folder: &Path,
    large: &Path,
    [picture, archive]: [&'static str; 2],
) -> Vec<(Vec<String>, &'static str)> {
    let link = |name: &str| {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(large, &path).unwrap();
        path.display().to_string()
    };
    let words = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<Vec<_>>();
    let train = |set: &[String]| {
        let set = set.iter().flat_map(|set| ["--set", set]);
        words(&["train", "--config", CNN, "--steps", "1"].into_iter().chain(set).collect::<Vec<_>>())
    };
    let place = folder.display();
    let data = |name: &str, within: &str| {
        train(&[format!("data.name={name}"), format!("data.dir={place}/{within}")])
    };
    for name in [
        "sets/mnist/train-labels-idx1-ubyte",
        "sets/cifar10/data_batch_1.bin",
        "text/text.txt",
        "pictures/train/a/a.png",
        "pictures/train/b/b.png",
        "arrays/train_x.npy",
        "arrays/train_y.npy",
        "kept/step-00000002.safetensors",
    ] {
        link(name);
    }
    fs::write(folder.join("sets/mnist/train-images-idx3-ubyte"), PIXEL).unwrap();
    let simulate = ["simulate", "all_reduce", "--ranks", "8", "-b", "1K", "-e", "1K", "--topology"];
    let resumed = train(&["checkpoint.resume=true".into(), format!("checkpoint.dir={place}/kept")]);
    vec![
        (words(&["diff", &link("a.jsonl"), &link("b.jsonl")]), "a file of records may have"),
        (words(&["scale", "validate", &link("t.json")]), "a table of training throughput may have 16 MiB"),
        (words(&["validate", RUN, "--machine", &link("m.json")]), "a machine's description may have 1 MiB"),
        (words(&[&simulate[..], &[&link("net.yml")]].concat()), "a description of a machine may have 16 MiB"),
        (train(&[format!("model.weights={}", link("w.pt"))]), archive),
        (train(&[format!("model.weights={}", link("w.pth"))]), archive),
        (resumed, "its header describes"),
        (data("mnist", "sets"), "a file of a dataset may have"),
        (data("cifar10", "sets"), "a file of a dataset may have"),
        (data("text", "text"), "a file of a dataset may have"),
        (data("pictures", "pictures"), picture),
        (data("arrays", "arrays"), "is no `.npy` file"),
    ]
}

#[test]
fn files_larger_than_what_they_should_be_are_refused_in_little_memory() {
    let folder = folder();
    let sparse = folder.path().join("sparse");
    File::create(&sparse).unwrap().set_len(1 << 30).unwrap();
    // Others may not read the file, as must be so for a secret.
    fs::set_permissions(&sparse, Permissions::from_mode(0o600)).unwrap();
    let zeros = folder.path().join("zeros");
    symlink("/dev/zero", &zeros).unwrap();
    let endless = ["a.png: is no regular file", "is no regular file"];
    let long = ["is neither JPEG nor PNG", "is neither a safetensors file nor"];
    for (large, says) in [(&zeros, endless), (&sparse, long)] {
        let files = large.with_extension("files");
        for (args, says) in readers(&files, large, says) {
            refused(&args, &[], says);
        }
        let secret = large.display().to_string();
        let rank =
            [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29507")];
        let variables = [&rank[..], &[("ALLFOLD_SECRET_FILE", &*secret)]].concat();
        let train = ["train", "--config", CNN, "--steps", "1"].map(String::from);
        refused(&train, &variables, "expected 32 bytes or 64 hexadecimal digits");
    }
}
