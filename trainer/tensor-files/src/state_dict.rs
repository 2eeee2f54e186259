//! State dicts that `torch.save` wrote: an archive with a pickle, which describes the tensors, and a member for each storage.
//!
//! ```text
//! NAME/data.pkl     fc.weight: storage "0", offset 0, shape [10, 64], strides [64, 1] ...
//! NAME/byteorder    little
//! NAME/data/0       2560 bytes
//! ```
//!
//! Before PyTorch 1.6 a file was a sequence: five pickles, then for each storage its number of elements, as 8 bytes, and its elements.
//! The contents of storages are not read here. Source: the notes on serialisation of PyTorch's documentation, and `torch.load`.

use crate::archive::Archive;
use crate::error::wrong;
use crate::pickle::{self, PickledDict};
use crate::stored::StoredTensor;
use crate::tensor_dict::TensorDict;
use std::collections::BTreeMap;
use std::io::{Read, Result, Seek, SeekFrom};

/// The most bytes of a pickle.
const PICKLE: u64 = 16 << 20;
/// The first bytes of the format before 1.6, after those of the pickle's protocol: the opcode of a number, and the number.
const OLD: &[u8] = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

/// Whether a file that begins with these bytes is of the format before PyTorch 1.6.
fn is_old(bytes: &[u8]) -> bool {
    bytes.first() == Some(&0x80) && bytes.get(2..).is_some_and(|rest| rest.starts_with(OLD))
}

/// Whether a file that begins with these bytes is one of `torch.save`, in its present or its older format.
pub(crate) fn begins(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"PK\x05\x06") || is_old(bytes)
}

/// The dicts of tensors of a file that begins with `first`. Their storages are inside the file.
///
/// # Errors
/// The file cannot be read; or, as `InvalidData`, it has no tensors.
pub(crate) fn dicts(from: &mut (impl Read + Seek), first: &[u8]) -> Result<Vec<TensorDict>> {
    if is_old(first) { old_dicts(from) } else { archived_dicts(from) }
}

fn archived_dicts(from: &mut (impl Read + Seek)) -> Result<Vec<TensorDict>> {
    let archive = Archive::open(from)?;
    let member = |end: &str| archive.names().find_map(|name| name.strip_suffix(end)).map(str::to_string);
    let folder = member("data.pkl").filter(|folder| folder.ends_with('/'));
    let Some(folder) = folder else {
        let held: Vec<String> =
            archive.names().take(3).map(|name| format!("`{}`", pickle::shown(name))).collect();
        let has = if held.is_empty() { String::new() } else { format!("; it has {}", held.join(", ")) };
        return Err(wrong(format!("has no `data.pkl`, as an archive of `torch.save` has{has}")));
    };
    if member("/constants.pkl").is_some() {
        let what = "is a program of TorchScript, which Allfold does not execute; save `model.state_dict()` with `torch.save`";
        return Err(wrong(what.into()));
    }
    let order = format!("{folder}byteorder");
    if archive.names().any(|name| name == order) && archive.read(from, &order, 16)? != b"little" {
        let what = "is not little-endian; write it by `torch.save` on a little-endian machine";
        return Err(wrong(what.into()));
    }
    let bytes = archive.read(from, &format!("{folder}data.pkl"), PICKLE)?;
    let described = pickle::dicts(&bytes).map_err(wrong)?;
    placed(described, |storage| archive.place(from, &format!("{folder}data/{storage}")))
}

/// The dicts of a file before PyTorch 1.6.
fn old_dicts(from: &mut (impl Read + Seek)) -> Result<Vec<TensorDict>> {
    let end = from.seek(SeekFrom::End(0))?;
    from.rewind()?;
    let mut bytes = Vec::new();
    from.by_ref().take(PICKLE).read_to_end(&mut bytes)?;
    let head = pickle::old_head(&bytes).map_err(wrong)?;
    let (mut places, mut at) = (BTreeMap::new(), head.length as u64);
    for (name, count, size) in head.storages {
        let mut held = [0; 8];
        let length = count.checked_mul(size);
        let after = length.and_then(|length| at.checked_add(8)?.checked_add(length));
        let Some(after) = after.filter(|after| *after <= end) else {
            let storage = pickle::shown(name);
            return Err(wrong(format!("ends at byte {end} within the storage `{storage}`; it has been cut")));
        };
        from.seek(SeekFrom::Start(at))?;
        from.read_exact(&mut held)?;
        if u64::from_le_bytes(held) != count {
            let (storage, held) = (pickle::shown(name), u64::from_le_bytes(held));
            return Err(wrong(format!(
                "has {held} elements in the storage `{storage}`, which wants {count}"
            )));
        }
        places.insert(name, (at + 8, count * size));
        at = after;
    }
    placed(head.dicts, |storage| {
        let place = places.get(storage).copied();
        place.ok_or_else(|| wrong(format!("has no storage `{}`", pickle::shown(storage))))
    })
}

/// The tensors of dicts in the file, whose storages `place` finds: the first byte and the length in bytes.
fn placed(
    described: Vec<PickledDict<'_>>,
    mut place: impl FnMut(&str) -> Result<(u64, u64)>,
) -> Result<Vec<TensorDict>> {
    let mut places = BTreeMap::new();
    let mut dicts = Vec::new();
    for PickledDict { path, tensors } in described {
        let mut dict = TensorDict { path, ..TensorDict::default() };
        for (name, tensor) in tensors {
            let tensor = match tensor {
                Ok(tensor) => tensor,
                Err(why) => {
                    dict.unread.insert(name.to_string(), why);
                    continue;
                }
            };
            let (start, length) = match places.get(tensor.storage) {
                Some(place) => *place,
                None => place(tensor.storage)?,
            };
            places.insert(tensor.storage, (start, length));
            let (named, storage, wants) = (pickle::shown(name), pickle::shown(tensor.storage), tensor.bytes);
            if length < wants {
                return Err(wrong(format!(
                    "has {length} bytes in the storage `{storage}` of `{named}`, which wants {wants}"
                )));
            }
            // Offset and strides are inside the storage, and the storage is inside the file.
            let start = start + tensor.offset;
            let (dtype, shape, strides) = (tensor.dtype, tensor.shape, tensor.strides);
            dict.tensors.insert(name.to_string(), StoredTensor { dtype, shape, strides, start });
        }
        dicts.push(dict);
    }
    Ok(dicts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::archive;
    use std::io::Cursor;

    #[test]
    fn an_archive_without_a_pickle_is_refused_with_what_it_has() {
        for name in ["a", "data.pkl", "a/data.pkl/b"] {
            let error = archived_dicts(&mut Cursor::new(archive(&[(name, b"", 0)], false))).unwrap_err();
            let what = "has no `data.pkl`, as an archive of `torch.save` has; it has";
            assert_eq!(error.to_string(), format!("{what} `{name}`"));
        }
    }
}
