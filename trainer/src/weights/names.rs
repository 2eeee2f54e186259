//! Which name of a file means which name of a model, although wrappers, other programs and older versions changed the names.
//!
//! ```text
//! module._orig_mod.fc.weight     model.fc.weight     features.module.0.weight     h.0.ln_1.weight               LayerNorm.gamma
//! fc.weight                      fc.weight           features.0.weight            transformer.h.0.ln_1.weight   LayerNorm.weight
//! ```

use crate::ParamSpec;
use allfold_tensor_files::pickle::shown;
use allfold_tensor_files::{StoredTensor, TensorDict};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Parts of names that are of a wrapper around a layer: DistributedDataParallel's and DeepSpeed's, torch.compile's, FSDP's, FairScale's
/// and those of activation checkpointing.
const WRAPPERS: [&str; 6] = [
    "module",
    "_orig_mod",
    "_forward_module",
    "_fsdp_wrapped_module",
    "_fpw_module",
    "_checkpoint_wrapped_module",
];
/// Old names of the weight and the bias of a layer norm.
const OLD: [(&str, &str); 2] = [("gamma", "weight"), ("beta", "bias")];

/// How the names of a file become those of a model: the prefix `strip` is left out, and the prefix `add` put before the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Rule<'a> {
    strip: &'a str,
    add: &'a str,
}

/// A file's names as a model spells them.
pub(super) struct Names<'a> {
    /// The tensors by their names without wrappers: the name in the file, and the tensor.
    forms: BTreeMap<String, (&'a str, &'a StoredTensor)>,
    strip: String,
    add: String,
    /// How many of the model's names have a tensor of the right shape, and how many have one.
    pub(super) fit: (usize, usize),
    /// Two prefixes that lead to as many names, and to other tensors.
    pub(super) ambiguous: Option<[String; 2]>,
}

impl<'a> Names<'a> {
    /// The names of `dict`, for a model with these places.
    pub(super) fn of(dict: &'a TensorDict, places: &[&ParamSpec]) -> Names<'a> {
        let known: BTreeMap<&str, &ParamSpec> = places.iter().map(|place| (&*place.name, *place)).collect();
        let forms = forms(dict, &known);
        let votes = votes(&forms, &known, common(&known));
        let rank =
            |(rule, fit): &(&Rule<'_>, &(usize, usize))| (**fit, Reverse(rule.strip.len() + rule.add.len()));
        let best = votes.iter().max_by_key(rank).map(|(rule, fit)| (*rule, *fit)).unwrap_or_default();
        // A few layers that happen to fit under some prefix are those of another model.
        let few = best.1.1 * 2 < known.len().min(forms.len());
        let plain = votes.get(&Rule::default()).copied().unwrap_or_default();
        let (rule, fit) = if few { (Rule::default(), plain) } else { best };
        let found = |rule: &Rule<'_>| {
            let tensor = |name: &&str| find(&forms, rule.strip, rule.add, name).map(|(_, tensor)| tensor);
            known.keys().map(tensor).collect::<Vec<_>>()
        };
        let same = |other: &&Rule<'_>| **other == rule || found(other) == found(&rule);
        let mut equal = votes.iter().filter(|(_, fits)| **fits == fit).map(|(other, _)| other);
        let other = if rule == Rule::default() { None } else { equal.find(|other| !same(other)) };
        let ambiguous =
            other.map(|other| [rule.strip, other.strip].map(|strip| shown(strip.trim_end_matches('.'))));
        let (strip, add) = (rule.strip.to_string(), rule.add.to_string());
        Names { forms, strip, add, fit, ambiguous }
    }

    /// The tensor of a name of the model, and its name in the file.
    pub(super) fn get(&self, name: &str) -> Option<(&'a str, &'a StoredTensor)> {
        find(&self.forms, &self.strip, &self.add, name)
    }

    /// A name of the model as the file would spell it.
    pub(super) fn spelled(&self, name: &str) -> String {
        format!("{}{}", self.strip, name.strip_prefix(&*self.add).unwrap_or(name))
    }

    /// The names of the file that are not under the prefix that leads to the model's tensors.
    pub(super) fn beside(&self) -> BTreeSet<&'a str> {
        let beside = self.forms.iter().filter(|(form, _)| !form.starts_with(&self.strip));
        beside.map(|(_, (name, _))| *name).collect()
    }

    /// What was changed of the names that were taken.
    pub(super) fn changes(&self, taken: &BTreeSet<&str>) -> Vec<String> {
        let forms = self.forms.iter().filter(|(_, (name, _))| taken.contains(name));
        let (mut dropped, mut old) = (BTreeSet::new(), false);
        for (form, (name, _)) in forms {
            let kept: BTreeSet<&str> = form.split('.').collect();
            dropped.extend(name.split('.').filter(|part| WRAPPERS.contains(part) && !kept.contains(part)));
            let last = |name: &str| name.rsplit('.').next().map(str::to_string);
            old |= last(form) != last(name);
        }
        let mut without: Vec<String> = dropped.iter().map(|part| format!("`{part}.`")).collect();
        if !self.strip.is_empty() && self.strip != self.add {
            without.push(format!("`{}`", shown(&self.strip)));
        }
        let mut changes = Vec::new();
        if !without.is_empty() {
            changes.push(format!("its names are read without {}", without.join(", ")));
        }
        if !self.add.is_empty() && self.strip != self.add {
            changes.push(format!("its names are read with `{}` before them", self.add));
        }
        if old {
            changes.push("its `gamma` and `beta` are read as weight and bias".into());
        }
        changes
    }
}

/// The tensor of a model's name by a rule; a name that is spelled as the model's is found too.
fn find<'a>(
    forms: &BTreeMap<String, (&'a str, &'a StoredTensor)>,
    strip: &str,
    add: &str,
    name: &str,
) -> Option<(&'a str, &'a StoredTensor)> {
    let by_rule = name.strip_prefix(add).and_then(|rest| forms.get(&format!("{strip}{rest}")));
    by_rule.or_else(|| forms.get(name)).copied()
}

/// The names of a file without wrappers, and layer norms under their present names; parts that the model has too are kept.
fn forms<'a>(
    dict: &'a TensorDict,
    known: &BTreeMap<&str, &ParamSpec>,
) -> BTreeMap<String, (&'a str, &'a StoredTensor)> {
    let parts: BTreeSet<&str> = known.keys().flat_map(|name| name.split('.')).collect();
    let wrapper = |part: &&str| !WRAPPERS.contains(part) || parts.contains(part);
    let mut forms = BTreeMap::new();
    let mut changed = Vec::new();
    for (name, tensor) in &dict.tensors {
        let mut kept: Vec<&str> = name.split('.').filter(wrapper).collect();
        if let Some(last) = kept.last_mut()
            && let Some((_, new)) = OLD.iter().find(|(old, _)| old == last && !parts.contains(old))
        {
            *last = new;
        }
        let form = kept.join(".");
        match form == *name {
            true => drop(forms.insert(form, (&**name, tensor))),
            false => changed.push((form, (&**name, tensor))),
        }
    }
    for (form, tensor) in changed {
        forms.entry(form).or_insert(tensor);
    }
    forms
}

/// The first part of most of a model's names, with its dot; empty if there is none.
fn common<'a>(known: &BTreeMap<&'a str, &ParamSpec>) -> &'a str {
    let first = |name: &&'a str| name.split_inclusive('.').next().filter(|part| part.ends_with('.'));
    let middle = known.keys().nth(known.len() / 2).and_then(first);
    let of = |prefix: &&str| known.keys().filter(|name| name.starts_with(prefix)).count() * 2 > known.len();
    middle.filter(of).unwrap_or_default()
}

/// How many of a model's names each rule leads to with the right shape, and with any.
fn votes<'a>(
    forms: &'a BTreeMap<String, (&str, &StoredTensor)>,
    known: &BTreeMap<&'a str, &ParamSpec>,
    common: &'a str,
) -> BTreeMap<Rule<'a>, (usize, usize)> {
    let longest = known.keys().map(|name| name.len()).max().unwrap_or(0);
    let mut votes: BTreeMap<Rule<'a>, (usize, usize)> = BTreeMap::new();
    let adds = if common.is_empty() { vec![""] } else { vec!["", common] };
    for (form, (_, tensor)) in forms {
        let starts = form.match_indices('.').map(|(at, _)| at + 1);
        for at in starts.chain([0]).filter(|at| form.len() - at <= longest) {
            for add in &adds {
                let (strip, rest) = form.split_at(at);
                let Some(place) = known.get(&*format!("{add}{rest}")) else { continue };
                let of = votes.entry(Rule { strip, add }).or_default();
                *of = (of.0 + usize::from(place.shape == tensor.shape), of.1 + 1);
            }
        }
    }
    votes
}
