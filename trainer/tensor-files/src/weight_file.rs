//! The dicts of tensors in a file of weights: a safetensors file, or one that `torch.save` wrote. Its first bytes decide.

use crate::error::wrong;
use crate::tensor_dict::TensorDict;
use crate::{state_dict, tensor_file};
use std::io::{Read, Result, Seek};

/// How many of a file's first bytes decide what it is.
const FIRST: u64 = 512;

/// The dicts of tensors of a file, the outermost first. Values are not read.
///
/// # Errors
/// The file cannot be read; or, as `InvalidData`, it has no tensors, and what it is instead.
pub fn dicts(from: &mut (impl Read + Seek)) -> Result<Vec<TensorDict>> {
    let mut first = Vec::new();
    from.rewind()?;
    from.by_ref().take(FIRST).read_to_end(&mut first)?;
    if state_dict::begins(&first) {
        return state_dict::dicts(from, &first);
    }
    // A file of fewer bytes than a safetensors file begins with may be one that was cut.
    let other = kind(&first).filter(|_| first.len() < 9 || !tensor_file::begins(&first));
    if other.is_some() || !tensor_file::begins(&first) {
        let other =
            other.unwrap_or("is neither a safetensors file nor a .pt of PyTorch, as torch.save writes it");
        return Err(wrong(other.into()));
    }
    let tensors = tensor_file::tensors(from)?;
    Ok(vec![TensorDict { tensors, ..TensorDict::default() }])
}

/// The first bytes of other files that are taken for weights.
const OTHERS: &[(&[u8], &str)] = &[
    (
        b"version https://git-lfs",
        "is a pointer of Git LFS in place of the file; `git lfs pull` fetches the file",
    ),
    (b"<", "is a web page or other XML, and no weights: a download that failed, or that needs a login"),
    (
        b"{",
        "is JSON text, and no weights: an index of several files, or the message of a download that failed",
    ),
    (b"\x1f\x8b", "is compressed by gzip; unpack it first"),
    (b"BZh", "is compressed by bzip2; unpack it first"),
    (b"\xfd7zXZ\0", "is compressed by xz; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "is compressed by zstd; unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "is an archive of 7-Zip; unpack it first"),
    (b"\x89HDF\r\n", "is an HDF5 file, as Keras writes; safetensors files and .pt files of PyTorch are read"),
    (b"GGUF", "is a GGUF file; safetensors files and .pt files of PyTorch are read"),
    (b"\x93NUMPY", "is an array of NumPy; safetensors files and .pt files of PyTorch are read"),
    (b"\x89PNG", "is a PNG picture, and no weights"),
    (b"\xff\xd8\xff", "is a JPEG picture, and no weights"),
    (b"\x80", "is a pickle that `torch.save` did not write; save `model.state_dict()` with `torch.save`"),
];

/// What a file is that begins with these bytes and is no file of weights; `None` if it is of no known kind.
fn kind(first: &[u8]) -> Option<&'static str> {
    if first.is_empty() {
        return Some("is empty: a download or a copy that failed");
    }
    if first.get(257..262) == Some(b"ustar") {
        let old = [&b"sys_info"[..], b"pickle", b"storages", b"tensors"];
        let old = old.iter().any(|name| first.starts_with(name));
        return Some(match old {
            true => {
                "is of the .tar format of PyTorch 0.1, which `torch.load(weights_only=True)` refuses too; load it with PyTorch, and \
                 save its state dict again"
            }
            false => "is a .tar archive; unpack it first",
        });
    }
    let text = first.strip_prefix(b"\xef\xbb\xbf").unwrap_or(first).trim_ascii_start();
    let other = OTHERS.iter().find(|(begins, _)| first.starts_with(begins) || text.starts_with(begins));
    other.map(|(_, what)| *what)
}
