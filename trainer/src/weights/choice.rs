//! Which of the dicts of tensors in a file has a model's weights.

use super::names::Names;
use crate::ParamSpec;
use allfold_tensor_files::TensorDict;
use allfold_tensor_files::pickle::shown;
use std::cmp::Reverse;

/// The entries that hold the weights in most programs: if several fit equally, the first of these is taken.
const HOLDERS: [&str; 9] = [
    "state_dict",
    "model_state_dict",
    "model",
    "module",
    "model_state",
    "net",
    "network",
    "params",
    "weights",
];

/// The dicts, or what of them is under `entry`, if it is not empty: the path of a dict, or of one and a prefix of its names.
pub(super) fn narrowed(dicts: Vec<TensorDict>, entry: &str) -> Result<Vec<TensorDict>, String> {
    if entry.is_empty() {
        return Ok(dicts);
    }
    let under = |dict: &TensorDict| {
        if dict.path == entry {
            return Some(dict.clone());
        }
        let within =
            if dict.path.is_empty() { "" } else { entry.strip_prefix(&*dict.path)?.strip_prefix('.')? };
        let prefix = format!("{}.", if dict.path.is_empty() { entry } else { within });
        let rest = |name: &String| name.strip_prefix(&prefix).map(str::to_string);
        let tensors = dict.tensors.iter().filter_map(|(name, tensor)| Some((rest(name)?, tensor.clone())));
        let unread = dict.unread.iter().filter_map(|(name, why)| Some((rest(name)?, *why)));
        let dict = TensorDict { path: entry.into(), tensors: tensors.collect(), unread: unread.collect() };
        (!dict.tensors.is_empty()).then_some(dict)
    };
    let found: Vec<TensorDict> = dicts.iter().filter_map(under).collect();
    match found.is_empty() {
        false => Ok(found),
        true => Err(format!(
            "has no tensors in `{}`, as model.weights_entry says; it has {}",
            shown(entry),
            list(&dicts)
        )),
    }
}

/// The dict of which most tensors fit, its names, and what a user should know of the choice.
///
/// # Errors
/// Several fit equally.
pub(super) fn best<'a>(
    dicts: &'a [TensorDict],
    places: &[(&ParamSpec, bool)],
) -> Result<(&'a TensorDict, Names<'a>, Option<String>), String> {
    let places: Vec<&ParamSpec> = places.iter().map(|(place, _)| *place).collect();
    let mut all: Vec<_> = dicts.iter().map(|dict| (dict, Names::of(dict, &places))).collect();
    let known = |dict: &TensorDict| {
        HOLDERS.iter().position(|holder| dict.path == *holder).map_or(HOLDERS.len(), |at| at)
    };
    let order = |(dict, names): &(&TensorDict, Names<'_>)| {
        (Reverse(names.fit), !dict.path.is_empty(), known(dict), Reverse(dict.tensors.len()))
    };
    all.sort_by_key(order);
    let mut all = all.into_iter();
    let (dict, names) = all.next().ok_or("holds no tensors")?;
    let others: Vec<&TensorDict> = (all.take_while(|(_, other)| other.fit == names.fit && names.fit.0 > 0))
        .map(|(other, _)| other)
        .filter(|other| other.tensors != dict.tensors)
        .collect();
    let path = shown(&dict.path);
    if let Some([one, other]) = &names.ambiguous {
        let whole = if path.is_empty() { one.clone() } else { format!("{path}.{one}") };
        return Err(format!(
            "holds tensors that fit the model under `{one}` and under `{other}`; name one, as model.weights_entry = \"{whole}\""
        ));
    }
    if let Some(other) = others.first() {
        let other = shown(&other.path);
        if !dict.path.is_empty() && known(dict) == HOLDERS.len() {
            return Err(format!(
                "holds weights that fit in `{path}` and in `{other}`; name one, as model.weights_entry = \"{path}\""
            ));
        }
        let own = if path.is_empty() { "outermost tensors are".into() } else { format!("entry `{path}` is") };
        return Ok((
            dict,
            names,
            Some(format!("its {own} read, not `{other}`, which model.weights_entry can name")),
        ));
    }
    let said = (!path.is_empty()).then(|| format!("its entry `{path}` is read"));
    Ok((dict, names, said))
}

/// Up to four of the paths of dicts.
fn list(dicts: &[TensorDict]) -> String {
    let paths = dicts.iter().map(|dict| &*dict.path).filter(|path| !path.is_empty()).take(4);
    let paths: Vec<String> = paths.map(|path| format!("`{}`", shown(path))).collect();
    if paths.is_empty() { "tensors alone".into() } else { paths.join(", ") }
}
