//! Sparse files of data and weights: a good header, and behind it a hole of more bytes than memory has. Each reader refuses the file by
//! one line, within a limit on memory that reading the hole would exceed.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg(target_os = "linux")]

mod common;

use common::folder;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;

const MLP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-mlp.toml");
const HOLE: u64 = 64 << 30;

fn npy(dtype: &str, shape: &str) -> Vec<u8> {
    let header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({shape},), }}\n");
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes()].concat()
}

/// The header of a safetensors file of one row of zeros per entry of `sizes`: name and bytes.
fn safetensors(sizes: &[(&str, u64)], rows: u64) -> Vec<u8> {
    let mut at = 0;
    let entries = sizes.iter().map(|(name, bytes)| {
        let (begin, shape) =
            (at, if *bytes == rows { format!("[{rows}]") } else { format!("[{rows},{}]", bytes / rows) });
        at += bytes;
        format!(r#""{name}":{{"dtype":"U8","shape":{shape},"data_offsets":[{begin},{at}]}}"#)
    });
    let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()
}

fn idx(sizes: &[u32]) -> Vec<u8> {
    let bytes = sizes.iter().flat_map(|size| size.to_be_bytes());
    [0, 0, 8, sizes.len() as u8].into_iter().chain(bytes).collect()
}

/// Files of a data set, each with its first bytes and the length of the hole behind them.
type Files = Vec<(&'static str, Vec<u8>, u64)>;

/// Data sets, with what the refusal of each says.
fn sets() -> [(&'static str, Files, &'static str); 8] {
    let rows = HOLE / 64;
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\xff\xff\0\0\xff\xff\x08\x02\0\0\0";
    let too_large = "GiB are available; take fewer samples";
    [
        (
            "arrays",
            vec![
                ("train_x.npy", npy("|u1", &format!("{rows}, 64")), HOLE),
                ("train_y.npy", npy("|u1", &rows.to_string()), rows),
            ],
            too_large,
        ),
        (
            "arrays",
            vec![
                ("train_x.npy", npy("<f4", &format!("4, {}", HOLE / 16)), HOLE),
                ("train_y.npy", npy("|u1", "4"), 4),
            ],
            too_large,
        ),
        (
            "arrays",
            vec![("train.safetensors", safetensors(&[("x", HOLE), ("y", rows)], rows), HOLE + rows)],
            too_large,
        ),
        (
            "mnist",
            vec![
                ("mnist/train-images-idx3-ubyte", idx(&[1 << 30, 8, 8]), HOLE),
                ("mnist/train-labels-idx1-ubyte", idx(&[1 << 30]), 1 << 30),
            ],
            "a file of a dataset may have 256 MiB",
        ),
        (
            "mnist",
            vec![
                ("mnist/train-images-idx3-ubyte", idx(&[64, 32768, 32768]), HOLE),
                ("mnist/train-labels-idx1-ubyte", idx(&[64]), 64),
                ("mnist/t10k-images-idx3-ubyte", idx(&[1, 32768, 32768]), HOLE / 64),
                ("mnist/t10k-labels-idx1-ubyte", idx(&[1]), 1),
            ],
            "the models of 1 rank need",
        ),
        (
            "cifar10",
            vec![("cifar10/data_batch_1.bin", vec![], HOLE / 3073 * 3073)],
            "a file of a dataset may have 256 MiB",
        ),
        ("text", vec![("text.txt", b"a text".to_vec(), HOLE)], "a file of a dataset may have 256 MiB"),
        (
            "pictures",
            vec![("a/1.png", png.to_vec(), HOLE), ("b/1.png", png.to_vec(), HOLE)],
            "the most are 16384 on a side",
        ),
    ]
}

#[test]
fn holes_behind_good_headers_are_refused_by_every_reader() {
    let folder = folder();
    let place = folder.path().display().to_string();
    for (name, files, says) in sets() {
        let data = folder.path().join("data");
        for (file, begins, hole) in files {
            let path = data.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &begins).unwrap();
            let file = File::options().write(true).open(path).unwrap();
            file.set_len(begins.len() as u64 + hole).unwrap();
        }
        refused(&[&format!("data.name={name}"), &format!("data.dir={place}/data")], says);
        fs::remove_dir_all(data).unwrap();
    }
    let weights = folder.path().join("weights");
    for (parts, says) in weight_files() {
        write_around_a_hole(&weights, &parts);
        refused(&[&format!("model.weights={place}/weights")], says);
    }
}

/// Files of weights, each with its bytes before the hole and behind it, and with what its refusal says.
fn weight_files() -> [([Vec<u8>; 2], &'static str); 5] {
    let elements = HOLE / 4;
    let wide = (&[64, elements / 64][..], &[elements / 64, 1][..]);
    let shape = "`fc1.weight` has the shape [";
    [
        ([safetensors(&[("big", HOLE)], HOLE), Vec::new()], "has no tensor `fc1.weight`"),
        (pth("big", (&[elements], &[1])), "has a tensor `big` that the model does not have"),
        (pth("fc1.weight", wide), shape),
        // Transposed, and of four elements far from each other.
        (pth("fc1.weight", (&[elements / 64, 64], &[1, elements / 64])), shape),
        (pth("fc1.weight", (&[2, 2], &[elements / 2, elements / 4])), shape),
    ]
}

fn write_around_a_hole(path: &Path, [before, behind]: &[Vec<u8>; 2]) {
    let mut file = File::create(path).unwrap();
    file.write_all(before).unwrap();
    file.seek(SeekFrom::Current(HOLE as i64)).unwrap();
    file.write_all(behind).unwrap();
    file.set_len((before.len() + behind.len()) as u64 + HOLE).unwrap();
}

/// The bytes of a `.pth` of one tensor before its storage, which is the hole, and behind it: an archive as `torch.save` writes it, with
/// ZIP64's fields.
fn pth(name: &str, (shape, strides): (&[u64], &[u64])) -> [Vec<u8>; 2] {
    let text = |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let int = |value: &u64| [b"\x8a\x08", &value.to_le_bytes()[..]].concat();
    let tuple = |items: &[u64]| [b"(".to_vec(), items.iter().flat_map(int).collect(), b"t".to_vec()].concat();
    let storage = [text("storage"), b"ctorch\nFloatStorage\n".to_vec(), text("0"), text("cpu")].concat();
    let begin: [&[u8]; 4] = [b"\x80\x02}", &text(name), b"ctorch._utils\n_rebuild_tensor_v2\n((", &storage];
    let tensor: [&[u8]; 5] = [&int(&(HOLE / 4)), b"tQ", &int(&0), &tuple(shape), &tuple(strides)];
    let pickle =
        [begin.concat(), tensor.concat(), b"\x89ccollections\nOrderedDict\n)RtRs.".to_vec()].concat();
    let (mut before, mut directory) = (Vec::new(), Vec::new());
    for (member, data, length) in [("x/data.pkl", &pickle[..], pickle.len() as u64), ("x/data/0", &[], HOLE)]
    {
        let numbers = [length, length, before.len() as u64].map(u64::to_le_bytes).concat();
        let name_length = (member.len() as u16).to_le_bytes();
        let header: [&[u8]; 5] = [b"PK\x03\x04", &[0; 14], &[255; 8], &name_length, &[0; 2]];
        before.extend([&header.concat(), member.as_bytes(), data].concat());
        let entry: [&[u8]; 5] = [b"PK\x01\x02", &[0; 16], &[255; 8], &name_length, &[28, 0]];
        let rest: [&[u8]; 5] = [&[0; 10], &[255; 4], member.as_bytes(), &[1, 0, 24, 0], &numbers];
        directory.extend([entry.concat(), rest.concat()].concat());
    }
    let (place, size) = (before.len() as u64 + HOLE, directory.len() as u64);
    let end = [2, 2, size, place].map(u64::to_le_bytes).concat();
    let locator = [&[0; 4][..], &(place + size).to_le_bytes(), &[1, 0, 0, 0]].concat();
    let ends: [&[u8]; 8] =
        [b"PK\x06\x06", &[0; 20], &end, b"PK\x06\x07", &locator, b"PK\x05\x06\0\0\0\0", &[255; 12], &[0; 2]];
    directory.extend(ends.concat());
    [before, directory]
}

fn refused(keys: &[&str], says: &str) {
    let train = [
        "-c",
        "ulimit -v 2097152; exec \"$@\"",
        "sh",
        env!("CARGO_BIN_EXE_allfold"),
        "train",
        "--config",
        MLP,
    ];
    let mut command = Command::new("sh");
    command.args(train).args(keys.iter().flat_map(|key| ["--set", key]));
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{keys:?}: {said}");
    assert!(said.contains(says) && said.lines().count() == 1, "{keys:?}: {said}");
}
