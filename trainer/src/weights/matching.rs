//! Which tensors of a file belong to which parameters and buffers of a model, by name and shape.

use super::names::Names;
use crate::{ParamSpec, checkpoint};
use allfold_tensor_files::pickle::shown;
use allfold_tensor_files::{StoredTensor, TensorDict};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

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
    /// Tensors that are not under the prefix of the file's names that leads to the model's tensors.
    pub beside: Vec<Named>,
    /// What the names of a file that are not the model's were taken for, as texts for the user.
    pub changes: Vec<String>,
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

    /// What a user should know of a run that begins with the weights of `path`; `None` if all tensors match by their names.
    pub fn note(&self, path: &Path) -> Option<String> {
        let kinds = self.kinds();
        (!kinds.is_empty()).then(|| format!("weights {}: {}", path.display(), kinds.join("; ")))
    }

    /// What was changed, a text for the missing tensors, and one for those that are not used, if there are some.
    pub(super) fn kinds(&self) -> Vec<String> {
        let count = |named: &[Named]| match named.len() {
            1 => "1 tensor".to_string(),
            more => format!("{more} tensors"),
        };
        let part = |named: &[Named], what: &str| {
            (!named.is_empty()).then(|| format!("{} {what}: {}", count(named), list(named)))
        };
        let missing = part(&self.missing, "of the model with random initial values");
        let unused: Vec<Named> = self.unexpected.iter().chain(&self.beside).cloned().collect();
        let unused = part(&unused, "of the file not used");
        self.changes.iter().cloned().chain(missing).chain(unused).collect()
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
pub(super) type Taken<'a> = (&'a str, StoredTensor, Range<usize>, bool);

/// The name of the head's weight of a gpt or llama, and those of their token tables: one tensor if the head is tied.
const HEAD: &str = "lm_head.weight";
const TABLES: [&str; 2] = ["transformer.wte.weight", "model.embed_tokens.weight"];
/// The weights that Hugging Face's GPT-2 has the other way round; the first one is not square.
const CONV1D: [&str; 4] =
    ["attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"];
/// The masks of attention that older programs save with a gpt, the frequencies that they save with a llama, and the counters of batch
/// norms, which converted files hold as floats.
const NO_WEIGHTS: [&str; 4] = ["attn.bias", "attn.masked_bias", "rotary_emb.inv_freq", "num_batches_tracked"];

/// What a file has for a model.
#[derive(Default)]
pub(super) struct Matched<'a> {
    pub(super) taken: Vec<Taken<'a>>,
    /// Tensors that have to have the values of these parameters: they are one tensor in the model.
    pub(super) equal: Vec<(&'a str, &'a StoredTensor, Range<usize>)>,
    pub(super) unmatched: UnmatchedTensors,
    /// Why a tensor of the model is not taken although the file has its name.
    pub(super) unread: Option<String>,
}

/// Looks for a tensor of the same name and shape for each parameter (`true`) and buffer (`false`) of a model.
///
/// Integers are no tensors of a model: PyTorch counts and numbers with them. Nor is the state of an optimiser in a checkpoint of Allfold.
/// A tensor of the file that the model does not have is not reported if it is a taken tensor under another name: tied weights are saved
/// twice.
pub(super) fn matched<'a>(
    dict: &'a TensorDict,
    names: &Names<'a>,
    places: &[(&ParamSpec, bool)],
) -> Matched<'a> {
    let mut all = Matched::default();
    let (mut used, mut at) = (BTreeSet::new(), BTreeMap::new());
    let turned = places.iter().any(|(place, _)| {
        let reversed = |tensor: &StoredTensor| tensor.shape.iter().rev().eq(&place.shape);
        place.name.ends_with(CONV1D[0]) && names.get(&place.name).is_some_and(|(_, tensor)| reversed(tensor))
    });
    let has = |name: &str| places.iter().any(|(place, _)| place.name == name);
    let mut changes = Vec::new();
    for &(place, is_param) in places {
        let conv1d = turned && CONV1D.iter().any(|end| place.name.ends_with(end));
        let mut found = names.get(&place.name);
        let is_table = TABLES.contains(&&*place.name);
        let table = TABLES.into_iter().find(|table| names.get(table).is_some());
        let other = if is_table { HEAD } else { table.unwrap_or(TABLES[0]) };
        if is_table || place.name == HEAD {
            match (found, names.get(other)) {
                (None, Some(tied)) => {
                    changes.push(format!("`{}` is its `{}`: they are tied", place.name, shown(tied.0)));
                    found = Some(tied);
                }
                (Some((_, own)), Some((name, tied)))
                    if !has(other) && own != tied && own.shape == tied.shape =>
                {
                    used.insert(name);
                    all.equal.push((name, tied, place.range.clone()));
                }
                _ => {}
            }
        }
        let fits =
            found.map(|(name, tensor)| (name, if conv1d { transposed(tensor) } else { tensor.clone() }));
        match fits.filter(|(_, tensor)| tensor.shape == place.shape) {
            Some((name, tensor)) => {
                used.insert(name);
                at.insert(tensor.start, found);
                all.taken.push((name, tensor, place.range.clone(), is_param));
            }
            None => {
                let why = dict.unread.iter().find(|(name, _)| name.ends_with(&place.name));
                all.unread = why.map(|(name, why)| format!("`{}` {why}", shown(name))).or(all.unread);
                let name = found.map_or_else(|| names.spelled(&place.name), |(name, _)| name.into());
                all.unmatched.missing.push((name, place.shape.clone()));
            }
        }
    }
    let ours = dict.tensors.contains_key("losses") && names.spelled("") == checkpoint::MODEL;
    let beside = names.beside();
    for (name, tensor) in &dict.tensors {
        let same = at.get(&tensor.start).is_some_and(|taken| taken.is_some_and(|(_, taken)| taken == tensor));
        let no_weight = !tensor.is_float() || NO_WEIGHTS.iter().any(|mask| name.ends_with(mask));
        if used.contains(&**name) || same || no_weight {
            continue;
        }
        let named = (name.clone(), tensor.shape.clone());
        match beside.contains(&**name) {
            true if ours => {}
            true => all.unmatched.beside.push(named),
            false => all.unmatched.unexpected.push(named),
        }
    }
    if !ours {
        all.unmatched.changes = names.changes(&used);
    }
    if turned {
        changes.push("its `Conv1D` weights are transposed".into());
    }
    all.unmatched.changes.extend(changes);
    all
}

/// A tensor with its dimensions in the other order.
fn transposed(tensor: &StoredTensor) -> StoredTensor {
    let mut tensor = tensor.clone();
    tensor.shape.reverse();
    tensor.strides.reverse();
    tensor
}
