//! What the environment of a run changes: machine, library, and NCCL's choice. A variable without an effect is named.

use allfold_nccl_model::{BadOverride, Graph, Overrides, Platform};
use allfold_sim::machines::{Fabric, Generation, Machine};
use std::collections::BTreeMap;

/// The variables of a run, with their values.
type Env = BTreeMap<String, String>;

/// The variables that can make a run slower than its machine allows.
pub(crate) const SLOWING: [&str; 12] = [
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_TREE_THRESHOLD",
    "NCCL_NVLS_ENABLE",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MAX_CTAS",
    "NCCL_IB_DISABLE",
    "NCCL_NET",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_IB_HCA",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
];
/// The start of further variables that change a prediction.
const EFFECTIVE: [&str; 2] = ["NCCL_COLLNET_ENABLE", "FI_CXI_"];
/// The start of variables that change what is logged alone.
const LOGGED: &str = "NCCL_DEBUG";

/// Takes the links and NICs from a machine that the environment turns off, and says which variables have an effect and which none.
pub(crate) fn apply(env: &Env, machine: &mut Machine) {
    let is = |key: &str, values: &[&str]| {
        env.get(key).is_some_and(|given| values.iter().any(|value| value.eq_ignore_ascii_case(given)))
    };
    if let Some(nics) = &mut machine.nics {
        if is("NCCL_IB_DISABLE", &["1"]) || is("NCCL_NET", &["socket"]) {
            (nics.fabric, nics.gpudirect) = (Fabric::Sockets, false);
        }
        if is("NCCL_NET_GDR_LEVEL", &["LOC", "0"]) {
            nics.gpudirect = false;
        }
        if let Some(named) = env.get("NCCL_IB_HCA").and_then(|text| listed(text)) {
            nics.count = nics.count.min(named);
        }
    }
    if is("NCCL_P2P_DISABLE", &["1"]) || is("NCCL_P2P_LEVEL", &["LOC", "0"]) {
        // Data between GPUs are copied through the host's memory, over PCIe.
        (machine.nvlink, machine.switched, machine.peer) = (false, false, false);
    }
    if is("NCCL_P2P_LEVEL", &["NVL"]) && !machine.nvlink {
        machine.peer = false;
    }
    let has_effect = |key: &str| SLOWING.iter().chain(&EFFECTIVE).any(|known| key.starts_with(known));
    let (with, without): (Vec<_>, Vec<_>) =
        env.iter().filter(|(key, _)| !key.starts_with(LOGGED)).partition(|(key, _)| has_effect(key));
    machine.understood.extend(with.iter().map(|(key, value)| format!("{key}={value}")));
    if !without.is_empty() {
        let names: Vec<&str> = without.iter().map(|(key, _)| key.as_str()).collect();
        machine.assumed.push(format!("no effect on the prediction: {}", names.join(", ")));
    }
}

/// The algorithms and protocols that the environment allows.
///
/// # Errors
/// A value that NCCL does not know.
pub(crate) fn overrides(env: &Env, machine: &Machine) -> Result<Overrides, BadOverride> {
    let env = |key: &str| env.get(key).map(String::as_str);
    // Before NCCL 2.5 a threshold decided between rings and trees.
    let rings = env("NCCL_TREE_THRESHOLD") == Some("0");
    // aws-ofi-nccl sets NCCL_PROTO=simple on P4d, whose EFA does not keep the order of stores.
    let efa = machine.nics.is_some_and(|nics| nics.fabric == Fabric::Efa && nics.gpudirect);
    let simple = efa && machine.gpu.generation == Generation::Ampere;
    let algorithms = env("NCCL_ALGO").unwrap_or(if rings { "ring" } else { "" });
    Overrides::new(algorithms, env("NCCL_PROTO").unwrap_or(if simple { "simple" } else { "" }))
}

/// The platform with as many channels as the environment allows.
pub(crate) fn limited(platform: Platform, env: &Env) -> Platform {
    let most =
        ["NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"].iter().find_map(|key| env.get(*key)?.parse::<u32>().ok());
    let Some(most) = most.filter(|most| *most > 0) else { return platform };
    let doubled = if platform.ring.channels * platform.doubled > most { 1 } else { platform.doubled };
    let cut = |graph: Graph| Graph { channels: graph.channels.min(most), ..graph };
    Platform {
        doubled,
        ring: cut(platform.ring),
        tree: cut(platform.tree),
        nvls: platform.nvls.map(cut),
        collnet: platform.collnet.map(cut),
        ..platform
    }
}

/// The number of NICs that `NCCL_IB_HCA` lists by name; `None` for a prefix or an exclusion, which gives no number.
pub(crate) fn listed(text: &str) -> Option<u32> {
    let names: Vec<&str> = text.trim_start_matches('=').split(',').filter(|name| !name.is_empty()).collect();
    let one =
        |name: &str| name.split(':').next().is_some_and(|name| name.ends_with(|c: char| c.is_ascii_digit()));
    let each = !text.starts_with('^') && names.iter().all(|name| name.contains('_') && one(name));
    u32::try_from(names.len()).ok().filter(|count| each && *count > 0)
}
