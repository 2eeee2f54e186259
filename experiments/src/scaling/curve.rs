//! The curves of one configuration: what was measured here, what was carried and what was modeled.

use super::points::{Scaling, measured_efficiency, simulated_efficiency};
use super::table::table;
use crate::cli::error::CommandResult;
use crate::cli::output::RunOutput;
use allfold_report::records::{MeasuredScale, SimulatedScale};
use allfold_report::sizes::RankCounts;

/// The largest numbers of ranks of the curves that train.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reach {
    /// The largest number of ranks on this machine.
    pub measured: u32,
    /// The largest number of ranks with real arithmetic on the virtual clock.
    pub on_virtual_clock: u32,
}

/// Every point of the curves as records, with a table of each kind. A curve always has its point of one rank: efficiency
/// is relative to it.
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
    let counts: Vec<u32> = if ranks.0.contains(&1) { ranks.0.clone() } else { [&[1], &*ranks.0].concat() };
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
    let mut modeled: Vec<SimulatedScale> =
        counts.iter().map(|&ranks| scaling.modeled(ranks)).collect::<CommandResult<_>>()?;
    simulated_efficiency(&mut modeled);
    for (points, how) in [(&on_virtual_clock, "real arithmetic on the virtual clock"), (&modeled, "modeled")]
    {
        let Some(first) = points.first() else { continue };
        output.say(format!("simulated on {}, {how}:", first.topology))?;
        output.say(table(points))?;
    }
    measured.iter().try_for_each(|point| output.record_as(point, command))?;
    on_virtual_clock.iter().chain(&modeled).try_for_each(|point| output.record_as(point, command))
}
