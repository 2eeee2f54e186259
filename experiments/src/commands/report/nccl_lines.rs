//! NCCL's line in a sweep over sizes: what NCCL's model predicts for the same calls, if the records have no such line.
//!
//! ```text
//! records of a sweep on a machine that the model covers ->  the same sizes by NCCL, as if `--algo nccl` had been named too
//! ```

use super::scale::choice;
use crate::predict::nccl::{NcclMachine, NcclOptions};
use allfold_cli::error::CommandResult;
use allfold_cli::names;
use allfold_report::records::{Records, SimulatedCollective};
use allfold_report::sizes::Size;
use allfold_sim::machines::presets::Preset;
use std::collections::{BTreeMap, BTreeSet};

/// A sweep has at least this many sizes; fewer are not drawn over sizes.
const FEWEST: usize = 3;

/// The greatest sum over sweeps of ranks times sizes; a sweep of 21 sizes on 64 ranks takes 0.7 s, and later ones get no line.
const MOST: u64 = 8192;

/// What the calls of a sweep have in common: collective, topology and number of ranks.
type SweptCall = (String, String, u32);

/// Records by NCCL's model, each with the command that makes it: for sweeps over sizes without faults, on machines that the model
/// covers, of collectives that it covers.
///
/// # Errors
/// The parameters that ship with Allfold cannot be read.
pub fn missing(records: &Records) -> CommandResult<Vec<(SimulatedCollective, String)>> {
    let mut sweeps: BTreeMap<SweptCall, BTreeSet<u64>> = BTreeMap::new();
    let mut known: BTreeSet<SweptCall> = BTreeSet::new();
    for row in records.all::<SimulatedCollective>() {
        let call = row.call;
        let swept = (call.collective, row.topology, call.ranks);
        if call.algorithm.starts_with("NCCL ") {
            known.insert(swept);
        } else if row.faults.is_empty() && call.root.unwrap_or(0) == 0 && call.bytes > 0 {
            sweeps.entry(swept).or_default().insert(call.bytes);
        }
    }
    let (mut made, mut done) = (Vec::new(), 0);
    for (swept, sizes) in sweeps {
        let cost = u64::from(swept.2) * sizes.len() as u64;
        if sizes.len() < FEWEST || known.contains(&swept) || done + cost > MOST {
            continue;
        }
        let sizes: Vec<u64> = sizes.into_iter().collect();
        let line = line(&swept, &sizes)?;
        done += if line.is_empty() { 0 } else { cost };
        made.extend(line);
    }
    Ok(made)
}

/// The records of one sweep; empty if NCCL's model does not have the machine or does not cover the collective.
fn line(
    (collective, topology, ranks): &SweptCall,
    sizes: &[u64],
) -> CommandResult<Vec<(SimulatedCollective, String)>> {
    let Ok(collective) = names::collective(collective) else { return Ok(Vec::new()) };
    if NcclMachine::covers(collective).is_err() || Preset::machine(topology, *ranks).is_err() {
        return Ok(Vec::new());
    }
    let machine = NcclMachine::new(topology, *ranks, NcclOptions::published()?)?;
    let call = choice(collective, None, *ranks)?;
    let range = |least: u64, greatest: u64| format!("-b {} -e {}", Size(least), Size(greatest));
    let command = |size: u64| {
        let over = match (sizes, factor(sizes)) {
            ([least, .., greatest], Some(factor)) => format!("{} -f {factor}", range(*least, *greatest)),
            _ => range(size, size),
        };
        format!("allfold simulate {collective} --topology {topology} --ranks {ranks} --algo nccl {over}")
    };
    // A call that NCCL cannot run on this machine gets no point.
    let timed =
        sizes.iter().filter_map(|&size| Some((machine.time(&call, size).ok()?.record, command(size))));
    Ok(timed.collect())
}

/// The factor from each size to the next, if it is the same for all.
fn factor(sizes: &[u64]) -> Option<u64> {
    let [first, second, ..] = sizes else { return None };
    let factor = second.checked_div(*first)?;
    sizes.windows(2).all(|pair| pair[0].checked_mul(factor) == Some(pair[1])).then_some(factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::machine::SimulatedMachine;
    use allfold_collectives::Collective;
    use allfold_report::records::{Stamp, line};

    const SIZES: [u64; 3] = [1 << 16, 1 << 20, 1 << 24];

    /// The records of a sweep by the ring, as lines.
    fn sweep(topology: &str, collective: Collective, sizes: &[u64]) -> String {
        let stamp = Stamp { commit: "c".into(), host: "h".into(), seed: None, command: "allfold".into() };
        let machine = SimulatedMachine::named(topology, 16).unwrap();
        let choice = choice(collective, Some("ring"), 16).unwrap();
        let lines = sizes.iter().map(|&size| line(&machine.time(&choice, size).unwrap().0, &stamp).unwrap());
        lines.map(|line| line + "\n").collect()
    }

    fn made(lines: &str) -> Vec<(SimulatedCollective, String)> {
        missing(&Records::parse(lines).unwrap()).unwrap()
    }

    #[test]
    fn a_sweep_on_a_known_machine_gets_nccls_line_once() {
        let lines = sweep("dgx-a100", Collective::AllReduce, &SIZES);
        let found = made(&lines);
        assert_eq!(found.iter().map(|(record, _)| record.call.bytes).collect::<Vec<_>>(), SIZES);
        for (record, command) in &found {
            assert!(record.call.algorithm.starts_with("NCCL ") && record.time_us > 0.0);
            let expected =
                "allfold simulate all_reduce --topology dgx-a100 --ranks 16 --algo nccl -b 64K -e 16M -f 16";
            assert_eq!(command, expected);
        }
        let stamp = Stamp { commit: "c".into(), host: "h".into(), seed: None, command: "allfold".into() };
        let own = line(&found[0].0, &stamp).unwrap();
        assert!(made(&format!("{lines}{own}\n")).is_empty(), "the sweep has NCCL's line already");
    }

    #[test]
    fn other_machines_few_sizes_and_collectives_without_a_model_get_no_line() {
        assert!(made(&sweep("nodes8", Collective::AllReduce, &SIZES)).is_empty());
        assert!(made(&sweep("dgx-a100", Collective::AllReduce, &SIZES[..2])).is_empty());
        let all_gather = sweep("dgx-a100", Collective::AllGather, &SIZES);
        assert_eq!(made(&all_gather).len(), SIZES.len());
        assert!(made(&all_gather.replace("\"all_gather\"", "\"gather\"")).is_empty());
    }

    #[test]
    fn sizes_with_one_factor_are_a_sweep() {
        assert_eq!(factor(&[1, 4, 16]), Some(4));
        assert_eq!((factor(&[1, 4, 8]), factor(&[4])), (None, None));
    }
}
