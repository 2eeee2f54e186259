//! Which tensors of a file belong to which parameters and buffers of a model, by name and shape.

use crate::{ParamSpec, checkpoint};
use allfold_tensor_files::StoredTensor;
use allfold_tensor_files::pickle::shown;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// The prefix of the names in a state dict of `DistributedDataParallel`.
const WRAPPED: &str = "module.";
/// How many tensors a message names of each kind.
const NAMED: usize = 4;

/// A tensor's name, as the file spells it, and its shape.
type Named = (String, Vec<usize>);

/// The tensors that a file and a model do not have in common. Their names are as the file spells them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnmatchedTensors {
    /// Parameters and buffers, with the model's shapes, for which the file has no tensor, or one of another shape.
    pub missing: Vec<Named>,
    /// Tensors, with the file's shapes, for which the model has no parameter or buffer, or one of another shape.
    pub unexpected: Vec<Named>,
}

impl UnmatchedTensors {
    /// The first difference, as a message about the file; `None` if there is no difference.
    pub(super) fn first(&self) -> Option<String> {
        let shape_in = |named: &[Named], name: &str| {
            named.iter().find(|(other, _)| other == name).map(|(_, shape)| shape.clone())
        };
        if let Some((name, _)) =
            self.unexpected.iter().find(|(name, _)| shape_in(&self.missing, name).is_none())
        {
            let name = shown(name);
            return Some(format!("has a tensor `{name}` that the model does not have"));
        }
        let (name, wants) = self.missing.first()?;
        Some(match shape_in(&self.unexpected, name) {
            Some(has) => format!("`{name}` has the shape {has:?} where the model wants {wants:?}"),
            None => format!("has no tensor `{name}`"),
        })
    }

    /// The message about a file of which no tensor fits.
    pub(super) fn of_another_model(&self) -> String {
        let (has, wants) = (list(&self.unexpected), list(&self.missing));
        format!(
            "has no tensor that fits the model by name and shape: it has {has}, and the model wants {wants}"
        )
    }

    /// What a user should know of a run that begins with the weights of `path`; `None` if all tensors match.
    pub fn note(&self, path: &Path) -> Option<String> {
        let kinds = self.kinds();
        (!kinds.is_empty()).then(|| format!("weights {}: {}", path.display(), kinds.join("; ")))
    }

    /// A text for the missing tensors and one for the unexpected ones, if there are some.
    pub(super) fn kinds(&self) -> Vec<String> {
        let count = |named: &[Named]| match named.len() {
            1 => "1 tensor".to_string(),
            more => format!("{more} tensors"),
        };
        let part = |named: &[Named], what: &str| {
            (!named.is_empty()).then(|| format!("{} {what}: {}", count(named), list(named)))
        };
        let missing = part(&self.missing, "of the model with random initial values");
        let unexpected = part(&self.unexpected, "of the file not used");
        missing.into_iter().chain(unexpected).collect()
    }
}

/// Up to four tensors by name and shape, and how many more there are.
fn list(named: &[Named]) -> String {
    let first = named.iter().take(NAMED).map(|(name, shape)| format!("`{}` {shape:?}", shown(name)));
    let mut list = first.collect::<Vec<_>>().join(", ");
    match named.len().saturating_sub(NAMED) {
        0 if named.is_empty() => list.push_str("no others"),
        0 => {}
        more => list.push_str(&format!(" and {more} more")),
    }
    list
}

/// A tensor to take: its name and place in the file; its elements among the model's parameters, or (`false`) buffers.
pub(super) type Taken<'a> = (String, &'a StoredTensor, Range<usize>, bool);

/// Looks for a tensor of the same name and shape for each parameter (`true`) and buffer (`false`) of a model.
///
/// PyTorch's counters are no tensors of a model, nor is the state of an optimiser in a checkpoint of Allfold. A tensor of the file
/// that the model does not have is not reported if it is a taken tensor under another name: tied weights are saved twice.
pub(super) fn matched<'a, 'b>(
    tensors: &'a BTreeMap<String, StoredTensor>,
    places: impl Iterator<Item = (&'b ParamSpec, bool)>,
) -> (Vec<Taken<'a>>, UnmatchedTensors) {
    let ours = tensors.keys().any(|name| name.starts_with(checkpoint::MODEL));
    let prefix = match ours {
        true => checkpoint::MODEL,
        false if tensors.keys().all(|name| name.starts_with(WRAPPED)) => WRAPPED,
        false => "",
    };
    let (mut taken, mut unmatched) = (Vec::new(), UnmatchedTensors::default());
    let mut at: BTreeMap<u64, &StoredTensor> = BTreeMap::new();
    let mut names = BTreeMap::new();
    for (place, is_param) in places {
        let name = format!("{prefix}{}", place.name);
        let found = tensors.get(&name).filter(|tensor| tensor.shape == place.shape);
        names.insert(name.clone(), found.is_some());
        match found {
            Some(tensor) => {
                at.insert(tensor.start, tensor);
                taken.push((name, tensor, place.range.clone(), is_param));
            }
            None => unmatched.missing.push((name, place.shape.clone())),
        }
    }
    for (name, tensor) in tensors {
        let beside = name.ends_with("num_batches_tracked") || ours && !name.starts_with(checkpoint::MODEL);
        let known = match names.get(name) {
            Some(taken) => *taken,
            None => at.get(&tensor.start) == Some(&tensor),
        };
        if !beside && !known {
            unmatched.unexpected.push((name.clone(), tensor.shape.clone()));
        }
    }
    (taken, unmatched)
}
