//! State dicts that `torch.save` wrote: an archive with a pickle, which describes the tensors, and a member for each storage.
//!
//! ```text
//! NAME/data.pkl     fc.weight: storage "0", offset 0, shape [10, 64], strides [64, 1] ...
//! NAME/byteorder    little
//! NAME/data/0       2560 bytes
//! ```
//!
//! The contents of storages are not read here. Source: the notes on serialisation of PyTorch's documentation.

use crate::archive::Archive;
use crate::error::wrong;
use crate::pickle;
use crate::stored::StoredTensor;
use std::collections::BTreeMap;
use std::io::{Read, Result, Seek};

/// The most bytes of a pickle.
const PICKLE: u64 = 16 << 20;
/// The first bytes of PyTorch's older format: a pickle of a number.
const OLD: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

/// Whether a file that begins with these bytes is one of `torch.save`, in its present or its older format.
pub fn begins(bytes: &[u8]) -> bool {
    [&b"PK\x03\x04"[..], b"PK\x05\x06", OLD].iter().any(|begin| bytes.starts_with(begin))
}

/// The tensors of a file by name. Their storages are inside the file.
///
/// # Errors
/// The file cannot be read; or, as `InvalidData`, it is no archive with a state dict.
pub fn tensors(from: &mut (impl Read + Seek)) -> Result<BTreeMap<String, StoredTensor>> {
    let mut first = Vec::new();
    from.rewind()?;
    from.by_ref().take(OLD.len() as u64).read_to_end(&mut first)?;
    if first == OLD || !begins(&first) {
        let what =
            if first == OLD { "is of PyTorch's format before 1.6" } else { "is no archive of PyTorch's" };
        let right = "write it by `torch.save(model.state_dict(), \"x.pt\")` of PyTorch 1.6 or newer";
        return Err(wrong(format!("{what}; {right}")));
    }
    let archive = Archive::open(from)?;
    let folder = archive.names().find_map(|name| name.strip_suffix("data.pkl")).map(str::to_string);
    let Some(folder) = folder.filter(|folder| folder.ends_with('/')) else {
        return Err(wrong("has no `data.pkl`, as an archive of `torch.save` has".into()));
    };
    let order = format!("{folder}byteorder");
    if archive.names().any(|name| name == order) && archive.read(from, &order, 16)? != b"little" {
        let what = "is not little-endian; write it by `torch.save` on a little-endian machine";
        return Err(wrong(what.into()));
    }
    let bytes = archive.read(from, &format!("{folder}data.pkl"), PICKLE)?;
    let described = pickle::state_dict(&bytes).map_err(wrong)?;
    let mut places = BTreeMap::new();
    let mut tensors = BTreeMap::new();
    for (name, tensor) in described {
        let (start, length) = match places.get(tensor.storage) {
            Some(place) => *place,
            None => archive.place(from, &format!("{folder}data/{}", tensor.storage))?,
        };
        places.insert(tensor.storage, (start, length));
        let (named, storage, wants) = (pickle::shown(name), pickle::shown(tensor.storage), tensor.bytes);
        if length < wants {
            return Err(wrong(format!(
                "has {length} bytes in the storage `{storage}` of `{named}`, which wants {wants}"
            )));
        }
        // Offset and strides are inside the storage, and the storage is inside the file.
        let start = start + tensor.offset * (tensor.dtype.bitsize() as u64 / 8);
        let (dtype, shape, strides) = (tensor.dtype, tensor.shape, tensor.strides);
        tensors.insert(name.to_string(), StoredTensor { dtype, shape, strides, start });
    }
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::archive;
    use std::io::Cursor;

    #[test]
    fn an_archive_without_a_pickle_is_refused() {
        for name in ["a", "data.pkl", "a/data.pkl/b"] {
            let error = tensors(&mut Cursor::new(archive(&[(name, b"", 0)], false))).unwrap_err();
            assert_eq!(error.to_string(), "has no `data.pkl`, as an archive of `torch.save` has");
        }
    }
}
