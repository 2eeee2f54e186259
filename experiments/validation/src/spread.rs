//! How far predicted times are off on systems that a fit did not see: the 80 and 95 % intervals of predictions.
//!
//! ```text
//! every system from a fit to all others --> |ln measured - ln predicted| by kind of machine and band of sizes
//! interval = predicted / factor to predicted x factor      the factor holds 80 or 95 % of what was off (split-conformal)
//! ```
//!
//! The rows of a system weigh less the more there are, as in a fit. A kind of machine of which fewer than four systems were measured
//! takes the rows of all kinds, and wider intervals.

use crate::cross_validation::{Group, without};
use crate::prepare::Prepared;
use crate::score::{BANDS, band};
use allfold_nccl_model::physics::{Parameters, Terms, closed};
use allfold_report::records::TimeInterval;
use allfold_sim::machines::Machine;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The kinds of machines that errors are told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MachineKind {
    /// One node, or one rack, whose GPUs share NVLink or xGMI.
    NvLink,
    /// One node whose GPUs communicate over PCIe.
    Pcie,
    /// Several nodes over NICs.
    Nodes,
}

impl MachineKind {
    const ALL: [MachineKind; 3] = [MachineKind::NvLink, MachineKind::Pcie, MachineKind::Nodes];

    /// The kind of a machine.
    pub fn of(machine: &Machine) -> MachineKind {
        match (machine.nodes > 1, machine.nvlink) {
            (true, _) => MachineKind::Nodes,
            (false, true) => MachineKind::NvLink,
            (false, false) => MachineKind::Pcie,
        }
    }
}

/// The fewest systems whose rows alone give the intervals of a kind of machine.
const LEAST: usize = 4;
/// By how much the logarithms of a kind's factors are wider if none, one, two or three of its systems were measured.
const WIDER: [f64; LEAST] = [3.0, 2.5, 2.0, 1.5];
/// The power of a system's number of rows by which the weight of these rows is reduced.
const EVENNESS: f64 = 0.5;
/// The shares of rows that intervals are to hold.
pub const SHARES: [f64; 2] = [0.80, 0.95];

/// The error of a prediction for a system that took no part in the fit.
#[derive(Clone, Debug)]
pub struct UnseenRow {
    /// The name of the cluster.
    pub system: String,
    /// The kind of machine.
    pub kind: MachineKind,
    /// The size in bytes.
    pub bytes: u64,
    /// ln(measured / predicted), either way: 0 or more.
    pub off: f64,
}

impl UnseenRow {
    /// The errors of a run that `parameters`, fitted without its system, predict in closed form.
    pub fn of<'a>(
        run: &'a Prepared,
        parameters: &'a Parameters,
        terms: Terms,
    ) -> impl Iterator<Item = UnseenRow> + use<'a> {
        let kind = MachineKind::of(&run.setting.machine);
        run.rows.iter().map(move |row| UnseenRow {
            system: run.system.clone(),
            kind,
            bytes: row.bytes,
            off: (row.measured_us / closed(&row.case, parameters, terms)).ln().abs(),
        })
    }
}

/// The errors of all runs, every system predicted from a fit to all others. Empty where there is one system only.
pub fn unseen(runs: &[Prepared], terms: Terms) -> Vec<UnseenRow> {
    let systems: BTreeSet<&str> = runs.iter().map(|run| &*run.system).collect();
    if systems.len() < 2 {
        return Vec::new();
    }
    let of = |system: &str| {
        let parameters = without(runs, Group::System, system, terms);
        let rows = runs.iter().filter(|run| run.system == system);
        rows.flat_map(|run| UnseenRow::of(run, &parameters, terms).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    systems.into_iter().flat_map(of).collect()
}

/// The factors of the intervals of a kind of machine in a band of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// The kind of machine.
    pub kind: MachineKind,
    /// The number of the band in [`BANDS`].
    pub band: usize,
    /// The factor that 80 % of the rows of unseen systems are within, either way; 1 or more.
    pub within80: f64,
    /// The factor that 95 % of them are within.
    pub within95: f64,
}

impl Spread {
    /// The same with factors of four digits, as files have them.
    pub(crate) fn rounded(self) -> Spread {
        let round = |value: f64| (value * 1e4).round() / 1e4;
        Spread { within80: round(self.within80), within95: round(self.within95), ..self }
    }

    /// The interval around a predicted time.
    pub fn around(&self, predicted_us: f64) -> TimeInterval {
        TimeInterval {
            low_us: predicted_us / self.within80,
            high_us: predicted_us * self.within80,
            low95_us: predicted_us / self.within95,
            high95_us: predicted_us * self.within95,
        }
    }
}

/// The spreads of all kinds and bands from the errors of all systems but `left_out`; empty without errors.
pub fn spreads(rows: &[UnseenRow], left_out: Option<&str>) -> Vec<Spread> {
    let mut found = Vec::new();
    for at in 0..BANDS.len() {
        let others = rows.iter().filter(|row| band(row.bytes) == at && Some(&*row.system) != left_out);
        let others: Vec<&UnseenRow> = others.collect();
        for kind in MachineKind::ALL.into_iter().filter(|_| !others.is_empty()) {
            let alike: Vec<&UnseenRow> = others.iter().copied().filter(|row| row.kind == kind).collect();
            let systems = alike.iter().map(|row| &row.system).collect::<BTreeSet<_>>().len();
            let wider = WIDER.get(systems).copied();
            let from = if wider.is_none() { &alike } else { &others };
            let [within80, within95] =
                SHARES.map(|share| (wider.unwrap_or(1.0) * quantile(from, share)).exp());
            found.push(Spread { kind, band: at, within80, within95 });
        }
    }
    found
}

/// The least error that a share of the rows has at most, each row by its weight.
fn quantile(rows: &[&UnseenRow], share: f64) -> f64 {
    let mut counts: BTreeMap<(&str, MachineKind), f64> = BTreeMap::new();
    rows.iter().for_each(|row| *counts.entry((&row.system, row.kind)).or_default() += 1.0);
    let weight =
        |row: &UnseenRow| counts.get(&(&*row.system, row.kind)).copied().unwrap_or(1.0).powf(-EVENNESS);
    let mut sorted: Vec<(f64, f64)> = rows.iter().map(|row| (row.off, weight(row))).collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all: f64 = sorted.iter().map(|(_, weight)| weight).sum();
    let mut sum = 0.0;
    let found = sorted.iter().find(|(_, weight)| {
        sum += weight;
        sum >= share * all - 1e-9
    });
    found.or(sorted.last()).map_or(0.0, |(off, _)| *off)
}

/// The spread of a call on a machine; `None` where nothing was measured.
pub fn spread_of(spreads: &[Spread], machine: &Machine, bytes: u64) -> Option<Spread> {
    let (kind, at) = (MachineKind::of(machine), band(bytes));
    spreads.iter().find(|spread| spread.kind == kind && spread.band == at).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(system: &str, kind: MachineKind, off: f64) -> UnseenRow {
        UnseenRow { system: system.into(), kind, bytes: 8, off }
    }

    fn of(rows: &[UnseenRow], left_out: Option<&str>, kind: MachineKind) -> Spread {
        *spreads(rows, left_out).iter().find(|spread| spread.kind == kind && spread.band == 0).unwrap()
    }

    #[test]
    fn intervals_hold_the_share_of_rows_that_they_are_of() {
        let systems = ["a", "b", "c", "d", "e"];
        let rows: Vec<UnseenRow> = systems
            .iter()
            .flat_map(|system| (1..=20).map(move |at| row(system, MachineKind::Nodes, f64::from(at) / 100.0)))
            .collect();
        let found = of(&rows, None, MachineKind::Nodes);
        assert!((found.within80.ln() - 0.16).abs() < 1e-9 && (found.within95.ln() - 0.19).abs() < 1e-9);
        let around = found.around(100.0);
        assert!(around.low95_us < around.low_us && around.low_us < 100.0 && 100.0 < around.high_us);
        assert!((around.low_us * around.high_us - 1e4).abs() < 1e-6 && around.high_us < around.high95_us);
    }

    #[test]
    fn a_kind_that_was_seldom_measured_has_wider_intervals() {
        let mut rows: Vec<UnseenRow> =
            ["a", "b", "c", "d"].iter().map(|system| row(system, MachineKind::Nodes, 0.1)).collect();
        let log = |rows: &[UnseenRow], left_out, kind| of(rows, left_out, kind).within80.ln();
        assert!((log(&rows, None, MachineKind::Nodes) - 0.1).abs() < 1e-9);
        assert!((log(&rows, None, MachineKind::Pcie) - 0.3).abs() < 1e-9);
        rows.push(row("p", MachineKind::Pcie, 0.1));
        assert!((log(&rows, None, MachineKind::Pcie) - 0.25).abs() < 1e-9);
        // A system's own rows do not count for itself.
        rows.push(row("far", MachineKind::Nodes, 2.0));
        assert!((log(&rows, Some("far"), MachineKind::Nodes) - 0.1).abs() < 1e-9);
        assert!(log(&rows, None, MachineKind::Nodes) >= 0.1);
        assert!(spreads(&[], None).is_empty());
    }
}
