//! The restrictions of `NCCL_ALGO` and `NCCL_PROTO` on the algorithms and protocols that may be chosen.
//!
//! ```text
//! ring,tree            only these two, for every collective
//! ^tree                all but tree
//! ring;allreduce:tree  rings; for all-reduce trees
//! ```

use super::{NcclAlgorithm, Protocol};
use allfold_schedules::Collective;
use allfold_sim::suggest::unknown;
use std::collections::BTreeMap;

/// The collectives that NCCL tunes, with NCCL's names.
const TUNED: [(&str, Collective); 5] = [
    ("broadcast", Collective::Broadcast),
    ("reduce", Collective::Reduce),
    ("allgather", Collective::AllGather),
    ("reducescatter", Collective::ReduceScatter),
    ("allreduce", Collective::AllReduce),
];

/// The algorithms and protocols that the two variables allow; by default those that NCCL allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    algorithms: BTreeMap<Collective, Vec<NcclAlgorithm>>,
    protocols: BTreeMap<Collective, Vec<Protocol>>,
}

/// The error for a variable's value that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {what}")]
pub struct BadOverride {
    variable: &'static str,
    what: String,
}

impl Overrides {
    /// Parses the values of `NCCL_ALGO` and `NCCL_PROTO`; an empty text means that the variable is not set. Case is ignored.
    ///
    /// # Errors
    /// An unknown name, with the nearest one; an empty list; a list that names no collective and is not the first.
    pub fn new(algorithms: &str, protocols: &str) -> Result<Overrides, BadOverride> {
        let bad = |variable| move |what| BadOverride { variable, what };
        Ok(Overrides {
            algorithms: parse(algorithms, "algorithm", &NcclAlgorithm::ALL, NcclAlgorithm::name)
                .map_err(bad("NCCL_ALGO"))?,
            protocols: parse(protocols, "protocol", &Protocol::ALL, Protocol::name)
                .map_err(bad("NCCL_PROTO"))?,
        })
    }

    /// Whether the user allows an algorithm for a collective; `None` if the user sets no list for this collective.
    pub(super) fn algorithm(&self, collective: Collective, algorithm: NcclAlgorithm) -> Option<bool> {
        self.algorithms.get(&collective).map(|list| list.contains(&algorithm))
    }

    /// Whether the user allows a protocol for a collective; `None` if the user sets no list for this collective.
    pub(super) fn protocol(&self, collective: Collective, protocol: Protocol) -> Option<bool> {
        self.protocols.get(&collective).map(|list| list.contains(&protocol))
    }
}

fn parse<T: Copy + PartialEq>(
    text: &str,
    kind: &str,
    all: &[T],
    name: fn(T) -> &'static str,
) -> Result<BTreeMap<Collective, Vec<T>>, String> {
    let mut allowed = BTreeMap::new();
    if text.trim().is_empty() {
        return Ok(allowed);
    }
    for (at, part) in text.split(';').enumerate() {
        let (function, list) = match part.split_once(':') {
            Some((function, list)) => (Some(function.trim()), list),
            None => (None, part),
        };
        let list = items(list.trim(), kind, all, name)?;
        match function {
            None if at > 0 => {
                return Err(format!(
                    "`{part}` names no collective and so applies to all; write it before the entries that name one"
                ));
            }
            None => allowed.extend(TUNED.iter().map(|&(_, collective)| (collective, list.clone()))),
            Some(function) => {
                let found = TUNED.iter().find(|(name, _)| name.eq_ignore_ascii_case(function));
                let &(_, collective) =
                    found.ok_or_else(|| unknown("collective", function, &TUNED.map(|(name, _)| name)))?;
                allowed.insert(collective, list);
            }
        }
    }
    Ok(allowed)
}

fn items<T: Copy + PartialEq>(
    list: &str,
    kind: &str,
    all: &[T],
    name: fn(T) -> &'static str,
) -> Result<Vec<T>, String> {
    let (negated, list) = list.strip_prefix('^').map_or((false, list), |rest| (true, rest));
    let mut named = Vec::new();
    for word in list.split(',').map(str::trim) {
        let found = all.iter().copied().find(|&item| name(item).eq_ignore_ascii_case(word));
        let names: Vec<&str> = all.iter().map(|&item| name(item)).collect();
        named.push(found.ok_or_else(|| unknown(kind, word, &names))?);
    }
    Ok(all.iter().copied().filter(|item| named.contains(item) != negated).collect())
}
