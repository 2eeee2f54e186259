//! The curves of one configuration: measured on this machine, run on virtual time with real arithmetic, and modeled.

use super::left_out::LeftOut;
use super::points::Scaling;
use super::table::table;
use super::workload::thinned;
use allfold_cli::error::CommandResult;
use allfold_cli::output::RunOutput;
use allfold_cli::progress;
use allfold_report::format::counted;
use allfold_report::records::{MeasuredScale, RecordKind, Setup, SimulatedScale};
use allfold_report::sizes::RankCounts;
use allfold_trainer::config::AutocastType;
use std::collections::{BTreeMap, BTreeSet};

/// The largest numbers of ranks of the measured curve and of the curve on virtual time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reach {
    /// The largest number of ranks on this machine.
    pub measured: u32,
    /// The largest number of ranks with real arithmetic on the virtual clock.
    pub on_virtual_clock: u32,
}

/// Makes every point of the curves, each recorded as soon as it is made, and prints a table of each kind. Efficiency is relative to
/// the point of the fewest ranks: of one rank, which is added, unless the strategy or the machine needs more. Numbers of ranks that do
/// not fit the strategy, the network or the machine are left out and named below the tables.
///
/// # Errors
/// A failed run; no number of ranks fits.
pub fn draw(
    scaling: &Scaling,
    ranks: &RankCounts,
    reach: Reach,
    command: Option<&str>,
    output: &mut RunOutput,
) -> CommandResult {
    let asked = thinned(&ranks.0);
    let (mut left_out, mut counts) = (LeftOut::default(), Vec::new());
    for &ranks in &asked {
        let fits = scaling.fits(ranks).map(|()| ranks);
        counts.extend(left_out.kept(ranks, fits)?);
    }
    left_out.check(&asked, |ranks| counts.contains(&ranks))?;
    if !asked.contains(&1) && left_out.kept(1, scaling.fits(1))?.is_some() {
        counts.insert(0, 1);
    }
    let up_to = |most: u32| counts.iter().copied().filter(move |&ranks| ranks <= most);
    if up_to(reach.measured.max(reach.on_virtual_clock)).next().is_some() {
        scaling.load()?;
    }

    // The prediction is made before the run that it is compared with.
    let bar = progress::bar(counts.len() as u64, "modeling");
    let predict = |&ranks: &u32| (ranks, scaling.modeled(ranks).inspect(|_| bar.inc(1)));
    let mut predicted: BTreeMap<u32, CommandResult<SimulatedScale>> = counts.iter().map(predict).collect();
    drop(bar);
    let one = |ranks| scaling.measured(ranks);
    let curve = (up_to(reach.measured), &mut left_out);
    let measured: Vec<MeasuredScale> = recorded(curve, one, MeasuredScale::set_efficiency, command, output)?;
    if let Some(last) = measured.last() {
        let title = title(scaling, &last.setup);
        let by = if scaling.is_job() { "in this job, a process" } else { "on this machine, a thread" };
        output.say(format!("{title}: measured {by} per rank{}", exchanged(&measured)))?;
        output.say(table(&measured))?;
    }
    let one = |ranks| scaling.on_virtual_clock(ranks);
    let curve = (up_to(reach.on_virtual_clock), &mut left_out);
    let set = SimulatedScale::set_efficiency;
    let on_virtual_clock: Vec<SimulatedScale> = recorded(curve, one, set, command, output)?;
    let one = |ranks| predicted.remove(&ranks).unwrap_or_else(|| scaling.modeled(ranks));
    let curve = (counts.iter().copied(), &mut left_out);
    let modeled: Vec<SimulatedScale> = recorded(curve, one, set, command, output)?;
    let is_modeled = |ranks: u32| modeled.iter().any(|point| point.setup.ranks == ranks);
    left_out.check(&asked, is_modeled)?;
    for (points, how) in [(&on_virtual_clock, "real arithmetic on the virtual clock"), (&modeled, "modeled")]
    {
        let Some(last) = points.last() else { continue };
        let title = title(scaling, &last.setup);
        let devices = scaling.devices.described(scaling.config.precision.amp != AutocastType::None);
        output.say(format!("{title}: simulated on {} of {devices}, {how}", scaling.topology))?;
        output.say(table(points))?;
    }
    left_out.say(&asked, (is_modeled, "modeled alone"), output)?;
    if scaling.has_faults() {
        output.say(
            "--fault acts in the runs on the virtual clock alone: the modeled times are without faults",
        )?;
    }
    left_out.relative_to(&modeled).map_or(Ok(()), |line| output.say(line))
}

/// By which paths GPUs summed gradients, in the points of more than one rank.
fn exchanged(measured: &[MeasuredScale]) -> String {
    let several = measured.iter().filter(|point| point.setup.ranks > 1);
    let paths: BTreeSet<&str> = several.filter_map(|point| point.exchange.as_deref()).collect();
    match paths.len() {
        0 => String::new(),
        _ => format!(", gradients summed by {}", paths.into_iter().collect::<Vec<_>>().join(" or by ")),
    }
}

/// What the points of a curve train: network, strategy, precision, and the samples of a step. `setup` is that of the last point, which
/// has all axes of the mesh.
fn title(scaling: &Scaling, setup: &Setup) -> String {
    let config = &scaling.config;
    let precision = match config.precision.amp {
        AutocastType::None => config.precision.dtype.to_string(),
        narrow => format!("amp {narrow}"),
    };
    let shared = ["pipeline", "tensor", "context"].iter().any(|axis| setup.mesh.contains_key(*axis));
    let of = if shared { "the ranks that share samples" } else { "a rank" };
    format!(
        "{} ({precision}) by {}, {} of {of} in a step",
        setup.model,
        setup.strategy,
        counted(config.training.batch, "sample")
    )
}

/// Makes the points of one curve, and writes the record of each as soon as the point is made. `counts` rise, so that the base
/// of the efficiency precedes the points that are relative to it.
fn recorded<P: RecordKind>(
    (counts, left_out): (impl Iterator<Item = u32>, &mut LeftOut),
    mut make: impl FnMut(u32) -> CommandResult<P>,
    set_efficiency: fn(&mut [P]),
    command: Option<&str>,
    output: &mut RunOutput,
) -> CommandResult<Vec<P>> {
    let mut points = Vec::new();
    for ranks in counts {
        let Some(point) = left_out.kept(ranks, make(ranks))? else { continue };
        points.push(point);
        set_efficiency(&mut points);
        if let Some(point) = points.last() {
            output.record_as(point, command)?;
        }
    }
    Ok(points)
}
