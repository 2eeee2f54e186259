//! A dict of tensors in a file.

use crate::stored::StoredTensor;
use std::collections::BTreeMap;

/// A dict of tensors in a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TensorDict {
    /// The keys of the dicts and lists around this one, joined by dots; empty for the outermost dict.
    pub path: String,
    /// The tensors by name.
    pub tensors: BTreeMap<String, StoredTensor>,
    /// Tensors that cannot be weights, by name, and why they cannot.
    pub unread: BTreeMap<String, &'static str>,
}
