//! Scaling curves of collectives: one call on more and more ranks, by several algorithms.

use crate::call::plan::Choice;
use crate::call::proved;
use crate::call::sweep::algorithm;
use crate::predict::machine::SimulatedMachine;
use crate::scaling::left_out::LeftOut;
use crate::scaling::workload::thinned;
use allfold_cli::columns;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::names;
use allfold_cli::output::{self, RunOutput};
use allfold_cli::progress;
use allfold_collectives::Collective;
use allfold_collectives::registry::{Algorithm, Shape};
use allfold_collectives::time::LinkSharing;
use allfold_report::format;
use allfold_report::plots::{Axis, Curves, Origin, Point, Series};
use allfold_report::records::SimulatedCollective;
use allfold_report::sizes::{RankCounts, Size, some_bytes};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A collective call, the algorithms that are compared, and the numbers of ranks.
#[derive(clap::Args, Clone, Debug)]
pub struct CollectiveScaling {
    /// Which collective: all_reduce, broadcast, all_gather, ...
    #[arg(value_name = "COLLECTIVE", value_parser = names::collective)]
    pub collective: Collective,
    /// Algorithms, such as ring,double_binary_tree
    #[arg(long, value_name = "NAMES", value_delimiter = ',', required = true)]
    pub algo: Vec<String>,
    /// Rank counts of 1 to 1048576, such as 8,64,512; from a long range, its powers of two
    #[arg(long, value_name = "COUNTS")]
    pub ranks: RankCounts,
    /// The simulated machine: a name (`allfold machines` lists them) or a file
    #[arg(long, value_name = "T", default_value = "nodes8")]
    pub topology: String,
    /// Size of the call in bytes, 0 to 16383P
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub size: Size,
    /// Parallel channels, 1 to 1024, each on its share of the data
    #[arg(long, value_name = "LANES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub lanes: u32,
    /// Cut chunks into pieces of at most this many bytes, 1 to 16383P [default: the algorithm's own]
    #[arg(long, value_name = "SIZE", value_parser = some_bytes)]
    pub segment: Option<Size>,
    /// Draw time over ranks into an SVG file
    #[arg(long, value_name = "FILE", value_parser = allfold_cli::files::svg())]
    pub plot: Option<PathBuf>,
}

/// The predicted time of one algorithm on one number of ranks.
struct Timed {
    record: SimulatedCollective,
    wall_s: f64,
}

/// Times every algorithm at every number of ranks, records each time at once, prints a table and draws the plot. Numbers of ranks
/// that the machine does not have, or an algorithm does not take, are left out and named below the table.
///
/// # Errors
/// An algorithm that the collective does not have; a point that fails; no point at all.
pub fn run(args: &CollectiveScaling, output: &mut RunOutput) -> CommandResult {
    let CollectiveScaling { collective, topology, plot, .. } = args;
    let algorithms: Vec<&'static Algorithm> =
        args.algo.iter().map(|name| algorithm(*collective, name)).collect::<CommandResult<_>>()?;
    plot.iter().try_for_each(|path| output.will_write(path))?;
    output.check_text()?;
    let counts = thinned(&args.ranks.0);
    let (mut curves, mut left_out) = (Vec::new(), LeftOut::default());
    let bar = progress::bar((algorithms.len() * counts.len()) as u64, "simulating");
    for algorithm in algorithms {
        counts.iter().for_each(|&ranks| proved::warn_if_wrong(algorithm, ranks));
        let mut points = Vec::with_capacity(counts.len());
        for &ranks in &counts {
            let Some(timed) = left_out.kept(ranks, point(args, algorithm, ranks))? else { continue };
            output.record(&timed.record)?;
            points.push(timed);
            bar.inc(1);
        }
        curves.push(points);
    }
    drop(bar);
    let has_point =
        |ranks: u32| curves.iter().flatten().any(|timed: &Timed| timed.record.call.ranks == ranks);
    left_out.check(&counts, has_point)?;
    let rules = sharing_rules(&curves);
    let first = curves.iter().flatten().next();
    let bytes = first.map_or(0, |timed| timed.record.call.bytes);
    output.say(format!(
        "{collective} of {} on {topology}, {}; simulated, all times are virtual",
        format::bytes(bytes),
        format::counted(args.lanes as usize, "channel")
    ))?;
    if rules.len() > 1 {
        output.say(format!(
            "the algorithms differ in how links are shared ({}): times under two rules are not comparable to the last percent",
            rules.join(", ")
        ))?;
    }
    output.say(columns::table(
        curves.iter().flatten(),
        &[
            ("algorithm", |timed| timed.record.call.algorithm.clone()),
            ("ranks", |timed| timed.record.call.ranks.to_string()),
            ("time (us)", |timed| format!("{:.1}", timed.record.time_us)),
            ("busbw (GB/s)", |timed| format!("{:.2}", timed.record.busbw_gbps)),
            ("sharing", |timed| timed.record.sharing.clone()),
            ("engine", |timed| timed.record.stepped()),
            ("real (s)", |timed| format!("{:.2}", timed.wall_s)),
        ],
    ))?;
    left_out.say(&counts, (has_point, "not in every curve"), output)?;
    let wall: f64 = curves.iter().flatten().map(|timed| timed.wall_s).sum();
    output.say(format!("all of it in {wall:.1} s of real time"))?;
    match plot {
        Some(path) => draw(&curves, args, bytes, path),
        None => Ok(()),
    }
}

fn point(args: &CollectiveScaling, algorithm: &'static Algorithm, ranks: u32) -> CommandResult<Timed> {
    let shape = Shape::new(ranks).map_err(CommandError::usage)?;
    let choice = Choice {
        segment: args.segment.map(|size| size.0),
        lanes: args.lanes,
        ..Choice::new(algorithm.collective, Some(algorithm), shape)
    };
    let mut machine = SimulatedMachine::named(&args.topology, ranks)?;
    // The whole curve has one sharing rule: if messages shared a link, a large tree would be simulated message by message.
    if algorithm.pipelined {
        machine.sharing = LinkSharing::Serial;
    }
    #[allow(clippy::disallowed_methods, reason = "the simulator's own speed is measured")]
    let start = Instant::now();
    let (record, _) = machine.time(&choice, args.size.0)?;
    let wall_s = start.elapsed().as_secs_f64();
    tracing::debug!(
        "{} over {ranks} ranks takes {:.1} us, found in {wall_s:.2} s",
        algorithm.name,
        record.time_us
    );
    Ok(Timed { record, wall_s })
}

/// The rules by which links are shared, each once.
fn sharing_rules(curves: &[Vec<Timed>]) -> Vec<String> {
    let rules: BTreeSet<&str> = curves.iter().flatten().map(|timed| &*timed.record.sharing).collect();
    rules.into_iter().map(String::from).collect()
}

/// Time over ranks, a curve for each algorithm. Where the algorithms differ in how links are shared, each name says how.
fn draw(curves: &[Vec<Timed>], call: &CollectiveScaling, bytes: u64, path: &Path) -> CommandResult {
    let mixed = sharing_rules(curves).len() > 1;
    let series = curves.iter().filter_map(|curve| {
        let at = |timed: &Timed| Point {
            x: timed.record.call.ranks.into(),
            y: timed.record.time_us / 1e3,
            error: 0.0,
        };
        let first = &curve.first()?.record;
        let name = &first.call.algorithm;
        Some(Series {
            name: if mixed { format!("{name}, {} sharing", first.sharing) } else { name.clone() },
            origin: Origin::Simulated,
            // A single rank sends nothing: its time is only the launch.
            points: curve.iter().filter(|timed| timed.record.call.ranks > 1).map(at).collect(),
        })
    });
    let caption = format!("{} of {} on {}, simulated", call.collective, format::bytes(bytes), call.topology);
    let caption = if mixed { format!("{caption}; two rules of sharing links") } else { caption };
    let curves = Curves {
        label: caption.clone(),
        x: Axis { label: "ranks", log: Some(2), format: |ranks| format!("{ranks:.0}") },
        y: Axis { label: "time (ms)", log: Some(10), format: |ms| format!("{ms}") },
        series: series.collect(),
        ideal: None,
    };
    let figure = curves.draw().map_err(CommandError::run)?;
    output::replace(path, figure.file(&caption).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_collectives::registry;

    fn timed(name: &str, ranks: u32) -> SimulatedCollective {
        let args = CollectiveScaling {
            collective: Collective::AllReduce,
            algo: vec![name.into()],
            ranks: RankCounts(vec![ranks]),
            topology: "nodes8".into(),
            size: Size(64 << 20),
            lanes: 4,
            segment: None,
            plot: None,
        };
        let algorithm = registry::find(Collective::AllReduce, name).unwrap();
        point(&args, algorithm, ranks).unwrap().record
    }

    #[test]
    fn a_record_says_what_was_not_stepped() {
        let ring = timed("ring", 256);
        assert_eq!((ring.engine.as_str(), ring.sharing.as_str()), ("events_by_symmetry", "split"));
        assert_eq!(
            (ring.merged_lanes, ring.ranks_per_class, ring.skipped_messages),
            (Some(4), Some(32), None)
        );
        let tree = timed("double_binary_tree", 64);
        assert_eq!((tree.engine.as_str(), tree.sharing.as_str()), ("serial_links", "serial_links"));
        assert_eq!((tree.merged_lanes, tree.ranks_per_class), (Some(4), None));
        let (messages, skipped) = (tree.messages.unwrap(), tree.skipped_messages.unwrap());
        assert!(0 < skipped && skipped < messages, "{skipped} of {messages}");
        assert!(tree.time_us >= tree.bound_us.unwrap());
        assert!(tree.stepped().starts_with("serial_links, 4 lanes merged, "), "{}", tree.stepped());
        assert_eq!(timed("double_binary_tree", 1).messages, Some(0));
    }

    #[test]
    fn a_plot_of_two_sharing_rules_names_them() {
        let folder = tempfile::tempdir().unwrap();
        let drawn = |algorithms: &[&str]| {
            let path = folder.path().join("curve.svg");
            let call = CollectiveScaling {
                collective: Collective::AllReduce,
                algo: algorithms.iter().map(|name| name.to_string()).collect(),
                ranks: RankCounts(vec![8, 16, 32]),
                topology: "nodes8".into(),
                size: Size(1 << 20),
                lanes: 1,
                segment: None,
                plot: Some(path.clone()),
            };
            run(&call, &mut RunOutput::silent(None)).unwrap();
            std::fs::read_to_string(path).unwrap()
        };
        let mixed = drawn(&["ring", "double_binary_tree"]);
        assert!(mixed.contains("ring, split sharing") && mixed.contains("serial_links sharing"), "{mixed}");
        assert!(mixed.contains("two rules of sharing links"));
        assert!(!drawn(&["ring", "halving_doubling"]).contains("sharing"));
    }
}
