//! A reader of the pickles of state dicts that executes nothing.
//!
//! ```text
//! OrderedDict { name: rebuild_tensor(storage "0", offset, shape, strides) ... }          its attribute _metadata is ignored
//! { "epoch": 3, "optimizer": { .. }, "state_dict": OrderedDict { .. } }                  a checkpoint of a training program
//! ```
//!
//! A pickle is a program for a machine with a stack. This machine has the opcodes that Python writes for a state dict, in protocols
//! 2 to 5, and the names in `globals.rs`. Its objects are indices into tables, so nothing is recursive, and the number of objects
//! is limited. Values that no tensor needs (floats, sets) become `Value::Other`. Source: Python's `pickletools`, and PyTorch's list of
//! what `torch.load(weights_only=True)` reads.

mod globals;
mod machine;
mod plain;
mod reader;
mod shown;

pub use plain::plain;

use machine::{Pickle, Value};
use safetensors::tensor::Dtype;
pub use shown::shown;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A tensor as a pickle describes it. The offset and, along each dimension, the last element are inside the storage.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PickledTensor<'a> {
    /// The name of the storage.
    pub(crate) storage: &'a str,
    /// The bytes that the storage has to have.
    pub(crate) bytes: u64,
    /// The type of the elements.
    pub(crate) dtype: Dtype,
    /// Where the first element is in the storage, in bytes; 0 if there is none.
    pub(crate) offset: u64,
    /// The dimensions, outermost first.
    pub(crate) shape: Vec<usize>,
    /// For each dimension: the distance from an element to the next, in elements; 0 where there is no next one.
    pub(crate) strides: Vec<u64>,
}

/// How many dicts and lists may be around a dict of tensors.
const DEPTH: usize = 5;
/// The longest name of a tensor in bytes.
const NAME: usize = 1024;

/// A dict with tensors: where it is in the pickle, as the keys that lead to it, joined by dots; and its tensors by name, or why one
/// cannot be weights.
pub(crate) struct PickledDict<'a> {
    pub(crate) path: String,
    pub(crate) tensors: BTreeMap<&'a str, Result<PickledTensor<'a>, &'static str>>,
}

/// All dicts of a pickle that have tensors, those with fewer keys before them first.
///
/// # Errors
/// Why the pickle has none.
pub(crate) fn dicts(bytes: &[u8]) -> Result<Vec<PickledDict<'_>>, String> {
    dicts_of(&Pickle::read(bytes)?)
}

fn dicts_of<'a>(pickle: &Pickle<'a>) -> Result<Vec<PickledDict<'a>>, String> {
    let (mut dicts, mut seen) = (Vec::new(), BTreeSet::new());
    let mut next = VecDeque::from([(String::new(), 0, pickle.top)]);
    while let Some((path, depth, value)) = next.pop_front() {
        let below = |key: &str| match path.is_empty() {
            true => shown(key),
            false => format!("{path}.{}", shown(key)),
        };
        let (number, is_dict) = match value {
            Value::Dict(number) => (number, true),
            Value::List(number) => (number, false),
            Value::Tuple(start, count) if depth == 0 => {
                let items = pickle.of((start, count)).iter().enumerate();
                next.extend(items.map(|(at, item)| (at.to_string(), 1, *item)));
                continue;
            }
            _ => continue,
        };
        if depth > DEPTH || !seen.insert(number) {
            continue;
        }
        let mut tensors = BTreeMap::new();
        for (at, (key, value)) in pickle.entries(number).enumerate() {
            match (key, value) {
                (Value::Text(name), Value::Tensor(_) | Value::Unread(_)) if is_dict => {
                    let before = tensors.insert(name, named_tensor(pickle, name, value)?);
                    if before.is_some() {
                        return Err(format!("has `{}` twice", shown(name)));
                    }
                }
                (Value::Text(name), inner) if is_dict => next.push_back((below(name), depth + 1, inner)),
                (_, inner) if !is_dict => next.push_back((below(&at.to_string()), depth + 1, inner)),
                _ => {}
            }
        }
        if !tensors.is_empty() {
            dicts.push(PickledDict { path, tensors });
        }
    }
    if dicts.is_empty() { Err(without_tensors(pickle)) } else { Ok(dicts) }
}

/// A tensor of a dict, or why it cannot be weights.
fn named_tensor<'a>(
    pickle: &Pickle<'a>,
    name: &str,
    value: Value<'a>,
) -> Result<Result<PickledTensor<'a>, &'static str>, String> {
    if name.len() > NAME {
        return Err(format!("has a tensor with a name of {} bytes; {NAME} are read at most", name.len()));
    }
    match value {
        Value::Tensor(number) => {
            pickle.tensor(number).map(Ok).map_err(|what| format!("has `{}` {what}", shown(name)))
        }
        Value::Unread(why) => Ok(Err(why)),
        _ => Ok(Err("is no tensor")),
    }
}

/// What a pickle without tensors has instead.
fn without_tensors(pickle: &Pickle) -> String {
    let keys = match pickle.top {
        Value::Dict(top) => pickle.entries(top).filter_map(|(key, _)| match key {
            Value::Text(key) => Some(format!("`{}`", shown(key))),
            _ => None,
        }),
        _ => return "holds no dict of tensors; save `model.state_dict()`".into(),
    };
    let keys: Vec<String> = keys.take(4).collect();
    match keys.is_empty() {
        true => "holds no tensors; save `model.state_dict()`".into(),
        false => format!("holds {} and no tensors; save `model.state_dict()`", keys.join(", ")),
    }
}

/// What a file of PyTorch before 1.6 has before its storages.
pub(crate) struct OldHead<'a> {
    pub(crate) dicts: Vec<PickledDict<'a>>,
    /// The storages in their order in the file: name, number of elements, and bytes of an element.
    pub(crate) storages: Vec<(&'a str, u64, u64)>,
    /// Bytes of the five pickles.
    pub(crate) length: usize,
}

/// The five pickles that a file of PyTorch before 1.6 begins with: a number, the version 1001, facts about the machine, the dicts, and
/// the names of the storages, which follow.
///
/// # Errors
/// Why they are no such pickles, or have no tensors.
pub(crate) fn old_head(bytes: &[u8]) -> Result<OldHead<'_>, String> {
    let mut length = 0;
    let mut next = || {
        let pickle = Pickle::read(&bytes[length..])?;
        length += pickle.length;
        Ok::<_, String>(pickle)
    };
    let (_number, version, _machine) = (next()?, next()?, next()?);
    if version.top != Value::Int(1001) {
        return Err("is of an unknown version of PyTorch's format before 1.6".into());
    }
    let (pickle, names) = (next()?, next()?);
    let sizes: BTreeMap<&str, (u64, u64)> =
        pickle.storages.iter().map(|of| (of.name, (of.count, of.element.size()))).collect();
    let Value::List(list) = names.top else { return Err("has no list of its storages".into()) };
    let described = |name| match name {
        Value::Text(name) => sizes.get(name).map(|(count, size)| (name, *count, *size)),
        _ => None,
    };
    let storages = names.entries(list).map(|(_, name)| described(name)).collect::<Option<Vec<_>>>();
    let storages = storages.ok_or("lists a storage that its pickle does not describe")?;
    Ok(OldHead { dicts: dicts_of(&pickle)?, storages, length })
}

/// Reads bytes as the pickle of a state dict, and drops the result: for fuzzers. The bytes may be refused; reading never panics,
/// or allocates by a number in the bytes.
pub fn read_any(bytes: &[u8]) {
    drop(dicts(bytes));
    drop(old_head(bytes));
}

#[cfg(test)]
mod tests;
