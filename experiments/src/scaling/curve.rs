//! The curves of one configuration: measured on this machine, run on virtual time with real arithmetic, and modeled.

use super::points::{Scaling, measured_efficiency, simulated_efficiency};
use super::table::table;
use super::workload::thinned;
use crate::cli::error::CommandResult;
use crate::cli::output::RunOutput;
use crate::cli::progress;
use allfold_report::records::{MeasuredScale, SimulatedScale};
use allfold_report::sizes::RankCounts;

/// The largest numbers of ranks of the measured curve and of the curve on virtual time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reach {
    /// The largest number of ranks on this machine.
    pub measured: u32,
    /// The largest number of ranks with real arithmetic on the virtual clock.
    pub on_virtual_clock: u32,
}

/// Makes every point of the curves as records, with a table of each kind. Efficiency is relative to the point of the fewest ranks: of
/// one rank, which is added, unless the strategy needs more.
///
/// # Errors
/// A failed run.
pub fn draw(
    scaling: &Scaling,
    ranks: &RankCounts,
    reach: Reach,
    command: Option<&str>,
    output: &mut RunOutput,
) -> CommandResult {
    let counts = thinned(&ranks.0);
    let adds_one = !counts.contains(&1) && scaling.takes(1);
    let counts = if adds_one { [vec![1], counts].concat() } else { counts };
    let up_to = |most: u32| counts.iter().copied().filter(move |&ranks| ranks <= most);

    let mut measured: Vec<MeasuredScale> =
        up_to(reach.measured).map(|ranks| scaling.measured(ranks)).collect::<CommandResult<_>>()?;
    measured_efficiency(&mut measured);
    if !measured.is_empty() {
        output.say("measured on this machine, a thread per rank:")?;
        output.say(table(&measured))?;
    }
    let mut on_virtual_clock: Vec<SimulatedScale> = up_to(reach.on_virtual_clock)
        .map(|ranks| scaling.on_virtual_clock(ranks))
        .collect::<CommandResult<_>>()?;
    simulated_efficiency(&mut on_virtual_clock);
    let bar = progress::bar(counts.len() as u64, "modeling");
    let one = |&ranks: &u32| scaling.modeled(ranks).inspect(|_| bar.inc(1));
    let mut modeled: Vec<SimulatedScale> = counts.iter().map(one).collect::<CommandResult<_>>()?;
    drop(bar);
    simulated_efficiency(&mut modeled);
    for (points, how) in [(&on_virtual_clock, "real arithmetic on the virtual clock"), (&modeled, "modeled")]
    {
        let Some(first) = points.first() else { continue };
        output.say(format!("simulated on {}, {how}:", first.topology))?;
        output.say(table(points))?;
    }
    if let Some(fewest) = counts.iter().min().filter(|fewest| **fewest > 1) {
        output.say(format!("efficiency is relative to {fewest} ranks, as the strategy needs more than 1"))?;
    }
    measured.iter().try_for_each(|point| output.record_as(point, command))?;
    on_virtual_clock.iter().chain(&modeled).try_for_each(|point| output.record_as(point, command))
}
