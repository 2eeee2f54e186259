//! A reader of the pickles of state dicts that executes nothing.
//!
//! ```text
//! OrderedDict { name: rebuild_tensor(storage "0", offset, shape, strides) ... }          its attribute _metadata is ignored
//! { "epoch": 3, "optimizer": { .. }, "state_dict": OrderedDict { .. } }                  a checkpoint of a training program
//! ```
//!
//! A pickle is a program for a machine with a stack. This machine has the opcodes that Python writes for a state dict, in protocols
//! 2 to 5, and the names in `globals.rs`. Its objects are indices into tables, so nothing is recursive, and the number of objects
//! is limited. Values that no tensor needs (lists, floats) become `Value::Other`. Source: Python's `pickletools`.

mod globals;
mod machine;
mod reader;

use machine::{Pickle, Value};
use safetensors::tensor::Dtype;
use std::collections::BTreeMap;

/// A tensor as a pickle describes it. The offset and, along each dimension, the last element are inside the storage.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PickledTensor<'a> {
    /// The name of the storage.
    pub(crate) storage: &'a str,
    /// The bytes that the storage has to have.
    pub(crate) bytes: u64,
    /// The type of the elements.
    pub(crate) dtype: Dtype,
    /// The first element in the storage, counted in elements; 0 if there is none.
    pub(crate) offset: u64,
    /// The dimensions, outermost first.
    pub(crate) shape: Vec<usize>,
    /// For each dimension: the distance from an element to the next, in elements; 0 where there is no next one.
    pub(crate) strides: Vec<u64>,
}

/// The entries of a checkpoint that hold a state dict, as training programs name them.
const HOLDERS: [&str; 3] = ["state_dict", "model_state_dict", "model"];

/// The tensors of a pickle that is a state dict, or a dict with a state dict as an entry.
///
/// # Errors
/// Why the pickle is no state dict.
pub(crate) fn state_dict(bytes: &[u8]) -> Result<BTreeMap<&str, PickledTensor<'_>>, String> {
    let pickle = Pickle::read(bytes)?;
    let Value::Dict(top) = pickle.top else {
        return Err("holds no dict of tensors; save `model.state_dict()`".into());
    };
    let held = |(key, value)| match (key, value) {
        (Value::Text(key), Value::Dict(dict)) if HOLDERS.contains(&key) => Some(dict),
        _ => None,
    };
    let dict = pickle.entries(top).find_map(held).unwrap_or(top);
    let mut tensors = BTreeMap::new();
    for (key, value) in pickle.entries(dict) {
        let Value::Text(name) = key else {
            return Err("holds a dict with a key that is no text; save `model.state_dict()`".into());
        };
        let Value::Tensor(number) = value else {
            return Err(format!(
                "holds `{}`, which is no tensor; save `model.state_dict()` alone, or as the entry `state_dict`",
                shown(name)
            ));
        };
        let tensor = pickle.tensor(number).map_err(|what| format!("has `{}` {what}", shown(name)))?;
        if tensors.insert(name, tensor).is_some() {
            return Err(format!("has `{}` twice", shown(name)));
        }
    }
    match tensors.is_empty() {
        true => Err("holds no tensors; save `model.state_dict()`".into()),
        false => Ok(tensors),
    }
}

/// Reads bytes as the pickle of a state dict, and drops the result: for fuzzers. The bytes may be refused; reading never panics,
/// or allocates by a number in the bytes.
pub fn read_any(bytes: &[u8]) {
    drop(state_dict(bytes));
}

/// A name from a file as one word of a message: without line breaks, and not longer than 80 characters.
pub fn shown(name: &str) -> String {
    let mut shown: String = name.chars().take(80).flat_map(char::escape_debug).collect();
    if name.chars().nth(80).is_some() {
        shown.push_str("..");
    }
    shown
}

#[cfg(test)]
mod tests;
