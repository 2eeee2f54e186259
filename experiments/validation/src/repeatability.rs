//! The differences between measurements of the same system. No prediction from the same description can be closer to both.

use crate::prepare::Prepared;
use crate::score::{BANDS, band, factor, median};

/// Two runs of one system: the same collective on equally many GPUs of equally many nodes.
#[derive(Clone, Debug)]
pub struct RunPair<'a> {
    /// The name of the system.
    pub system: &'a str,
    /// The names of the two runs.
    pub runs: (&'a str, &'a str),
    /// The factors by which the runs differ at the sizes that both have, by band.
    pub factors: [Vec<f64>; BANDS.len()],
}

impl RunPair<'_> {
    /// The median factor of a band; `None` where the runs share no size there.
    pub fn median(&self, band: usize) -> Option<f64> {
        median(self.factors.get(band)?.clone())
    }

    /// The greatest factor of a band.
    pub fn most(&self, band: usize) -> Option<f64> {
        self.factors.get(band)?.iter().copied().max_by(f64::total_cmp)
    }
}

/// All pairs of runs of the same system that share a size.
pub fn pairs(runs: &[Prepared]) -> Vec<RunPair<'_>> {
    let shape = |run: &Prepared| {
        let what = run.rows.first().map(|row| (row.case.collective, row.case.ranks as u32));
        (what, run.setting.machine.devices, run.setting.machine.nodes)
    };
    let mut pairs = Vec::new();
    for (at, one) in runs.iter().enumerate() {
        for other in runs[at + 1..].iter().filter(|other| other.system == one.system) {
            if shape(one) != shape(other) {
                continue;
            }
            let mut factors: [Vec<f64>; BANDS.len()] = Default::default();
            for row in &one.rows {
                if let Some(same) = other.rows.iter().find(|same| same.bytes == row.bytes) {
                    factors[band(row.bytes)].push(factor(row.measured_us, same.measured_us));
                }
            }
            if factors.iter().any(|band| !band.is_empty()) {
                pairs.push(RunPair { system: &one.system, runs: (&one.name, &other.name), factors });
            }
        }
    }
    pairs
}
