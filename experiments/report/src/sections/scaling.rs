//! Scaling curves of training: measured where the ranks exist, simulated where they do not.

use super::names;
use super::part::{Part, commands, fact};
use super::{scaling_curves, single_runs};
use crate::format;
use crate::page::{Headline, Question, ReportTable, Section};
use crate::plots::DrawError;
use crate::records::{MeasuredScale, MeasuringMachine, RankMemory, Records, ScalePoint, SimulatedScale};

/// The number of ranks that the first line of the page is about, if there is a point of that many.
const ANSWERED: u32 = 64;

/// The part's anchor.
pub const ID: &str = "scaling";

pub fn part(records: &Records) -> Result<Option<Part>, DrawError> {
    let measured = records.stamped::<MeasuredScale>();
    let simulated = records.stamped::<SimulatedScale>();
    let single = single_runs::curves(records);
    if measured.is_empty() && simulated.is_empty() && single.is_empty() {
        return Ok(None);
    }
    let stamps = measured.iter().map(|m| &m.1).chain(simulated.iter().map(|s| &s.1));
    let commands = commands(stamps);
    let measured: Vec<&MeasuredScale> = measured.iter().map(|(record, _)| record).collect();
    let simulated: Vec<&SimulatedScale> = simulated.iter().map(|(record, _)| record).collect();

    let answered = answered(&simulated);
    let fits = |point: &&SimulatedScale| point.excess().is_none();
    let mut facts: Vec<(Question, Headline)> =
        answered.filter(fits).map(|point| scaled(point, &simulated)).into_iter().collect();
    let largest = largest(&simulated).filter(|largest| Some(*largest) != answered);
    facts.extend(largest.filter(fits).map(|point| scaled(point, &simulated)));
    facts.extend(answered.and_then(|answered| misfits(answered, &simulated)));
    facts.extend(slower(&measured, records.all::<MeasuringMachine>().first()));
    let off = scaling_curves::model_of_this_machine(&scaling_curves::pairs(&measured, &simulated));
    facts.extend(off.map(|off| {
        let text = "the data sheet's model of a CPU core, compared with training measured here; nothing is fitted to this machine";
        fact(Question::Trust, format!("up to x{} off", format::number(off)), text.into(), None)
    }));

    let tables = tables(&measured, &single, &simulated);
    let mut plots = scaling_curves::plots(&measured, &simulated)?;
    for curve in &single {
        plots.extend(scaling_curves::plots(&curve.iter().collect::<Vec<_>>(), &[])?);
    }
    let efficiencies = measured.iter().map(|m| m.efficiency).chain(simulated.iter().map(|s| s.efficiency));
    let above = format::above_whole(efficiencies);
    let section = Section {
        id: ID,
        title: "Scaling of training".into(),
        text: vec![
            "In weak scaling every rank has its own batch; in strong scaling the ranks divide the samples of a step. Every counted \
             step takes a whole batch, so that the points of measured, sim and modeled runs are of the same step. Efficiency is throughput over that of as many single ranks, or, \
             where one rank does not hold the network, relative to the fewest that do; a point that does not fit in memory has none. \
             Points are measured on as many ranks as this machine has cores; simulated points use the same bucket plan and \
             schedules on a virtual clock, with compute from a device model."
                .to_string(),
        ]
        .into_iter()
        .chain(above.map(|above| format!("An {above}.")))
        .collect(),
        plots,
        tables,
        commands,
        ..Section::default()
    };
    let limits = off.map(|off| {
        format!(
            "The model of a CPU core comes from a data sheet. On this machine its training rate is off by a factor of up to {}: \
             trust it for the shape of a curve, not for its height.",
            format::number(off)
        )
    });
    let answer = answered.map(|point| answer(point, &simulated));
    Ok(Some(Part { answer, facts, limits: limits.into_iter().collect(), section }))
}

/// The tables of all points: measured, of single runs, simulated.
fn tables(
    measured: &[&MeasuredScale],
    single: &[Vec<MeasuredScale>],
    simulated: &[&SimulatedScale],
) -> Vec<ReportTable> {
    let mut tables = Vec::new();
    if !measured.is_empty() {
        tables.push(table("Measured on this machine; steps that warm up are not counted", measured));
    }
    if !single.is_empty() {
        let points: Vec<&MeasuredScale> = single.iter().flatten().collect();
        tables.push(table(
            "Measured by single training runs of equal network, device, strategy and samples",
            &points,
        ));
    }
    if !simulated.is_empty() {
        tables.push(table(
            "Simulated: sim computes with real arithmetic on the virtual clock, modeled counts FLOPs and bytes",
            simulated,
        ));
    }
    tables
}

/// The point that the first line is about: a network that users know by name comes first, then a point that fits in memory, then 64
/// ranks, then the most ranks.
fn answered<'a>(simulated: &[&'a SimulatedScale]) -> Option<&'a SimulatedScale> {
    let many = simulated.iter().copied().filter(|point| point.setup.ranks > 1);
    // Of equal points the first one counts, whereas `max_by_key` takes the last one.
    many.rev().max_by_key(|point| {
        let ranks = point.setup.ranks;
        (names::is_known(&point.setup.model), point.excess().is_none(), ranks == ANSWERED, ranks)
    })
}

fn largest<'a>(simulated: &[&'a SimulatedScale]) -> Option<&'a SimulatedScale> {
    let many = simulated.iter().copied().filter(|point| point.setup.ranks > 1);
    many.rev().max_by_key(|point| {
        (names::is_known(&point.setup.model), point.excess().is_none(), point.setup.ranks)
    })
}

/// The points of the curve that `point` belongs to.
fn curve<'a>(
    point: &'a SimulatedScale,
    simulated: &'a [&'a SimulatedScale],
) -> impl Iterator<Item = &'a SimulatedScale> {
    let same = |other: &&SimulatedScale| {
        other.setup.kind() == point.setup.kind() && other.topology == point.topology
    };
    simulated.iter().copied().filter(same)
}

/// What the efficiency of a point is relative to, if that is not one rank: the fewest ranks that fit in memory.
fn base(point: &SimulatedScale, simulated: &[&SimulatedScale]) -> String {
    let fit = curve(point, simulated).filter(|other| other.excess().is_none());
    let fewest = fit.map(|other| other.setup.ranks).min().filter(|ranks| *ranks > 1);
    fewest.map_or_else(String::new, |ranks| format!(", relative to {ranks} ranks"))
}

/// The answer in a sentence.
fn answer(point: &SimulatedScale, simulated: &[&SimulatedScale]) -> String {
    let (device, topology) = names::device_and_topology(&point.topology);
    let model = &point.setup.model;
    let who = match device {
        "" => format!(
            "{} of {}",
            format::counted(point.setup.ranks as usize, "rank"),
            names::topology(topology)
        ),
        device => format!("{} {} ({})", point.setup.ranks, names::device(device), names::topology(topology)),
    };
    let what = format!("{} by {}", names::plain(model), point.setup.strategy);
    if let Some((needed, has)) = point.excess() {
        let [needed, has] = [needed, has].map(format::rounded_bytes);
        return format!("{who} would not hold {what}: a rank needs {needed} of memory and has {has}");
    }
    let above =
        format::above_whole([point.efficiency].into_iter()).map_or("", |_| " (why above 100 %: see below)");
    let gib = |bytes: u64| format::number(bytes as f64 / f64::from(1 << 30));
    let memory = point
        .memory
        .zip(point.device_memory)
        .map(|(memory, has)| format!(", and hold it ({} of {} GiB)", gib(memory.total()), gib(has)));
    format!(
        "{who} would train {what} at {} {}/s, {} efficient{}{above}{}",
        format::grouped(point.samples_per_s),
        names::samples(model),
        format::percent(point.efficiency),
        base(point, simulated),
        memory.unwrap_or_default()
    )
}

/// A measured network that several ranks train more slowly than one, and what the machine did meanwhile.
fn slower(measured: &[&MeasuredScale], machine: Option<&MeasuringMachine>) -> Option<(Question, Headline)> {
    let pairs = measured.iter().filter(|one| one.setup.ranks == 1).filter_map(|one| {
        let same = |many: &&&MeasuredScale| many.setup.kind() == one.setup.kind() && many.setup.ranks > 1;
        let many = measured.iter().filter(same).max_by_key(|many| many.setup.ranks)?;
        (many.samples_per_s < one.samples_per_s).then_some((*one, *many))
    });
    let ratio = |(one, many): &(&MeasuredScale, &MeasuredScale)| many.samples_per_s / one.samples_per_s;
    let (one, many) = pairs.min_by(|a, b| ratio(a).total_cmp(&ratio(b)))?;
    let busy = machine.and_then(|machine| Some((machine.cores, machine.load?)));
    let why = match busy.filter(|(cores, load)| *load > f64::from(*cores) / 2.0) {
        Some((cores, load)) => format!(
            "; the machine was busy (load {load:.1} on {}), so that this says nothing about the program",
            format::counted(cores as usize, "core")
        ),
        None => String::new(),
    };
    let text = format!(
        "training the {}: {} samples/s measured on {} and {} on one{why}",
        names::network(&one.setup.model),
        format::number(many.samples_per_s),
        format::counted(many.setup.ranks as usize, "rank"),
        format::number(one.samples_per_s)
    );
    Some(fact(Question::Here, format!("{} ranks slower than one", many.setup.ranks), text, Some(false)))
}

/// The points on the curve of `answered` that do not fit in memory.
fn misfits(answered: &SimulatedScale, simulated: &[&SimulatedScale]) -> Option<(Question, Headline)> {
    let unfit: Vec<_> =
        curve(answered, simulated).filter_map(|p| Some((p.setup.ranks, p.excess()?))).collect();
    let (needed, has) = unfit.iter().map(|(_, excess)| *excess).max()?;
    let text = format!(
        "the {} by {} on {} of {}: a rank needs up to {}, and its device has {}",
        names::network(&answered.setup.model),
        answered.setup.strategy,
        format::counted_list(unfit.iter().map(|(ranks, _)| *ranks)),
        names::machine(&answered.topology),
        format::rounded_bytes(needed),
        format::rounded_bytes(has)
    );
    Some(fact(Question::Scale, "does not fit in memory".into(), text, Some(false)))
}

fn scaled(point: &SimulatedScale, simulated: &[&SimulatedScale]) -> (Question, Headline) {
    let text = format!(
        "predicted efficiency{} of training the {} by {} on {} of {}, {} {}/s",
        base(point, simulated),
        names::network(&point.setup.model),
        point.setup.strategy,
        format::counted(point.setup.ranks as usize, "rank"),
        names::machine(&point.topology),
        format::grouped(point.samples_per_s),
        names::samples(&point.setup.model)
    );
    fact(Question::Scale, format::percent(point.efficiency), text, None)
}

/// Whether the rank that needs the most memory fits, with its bytes and those of its device where they are known.
fn fits(memory: Option<RankMemory>, device_memory: Option<u64>) -> String {
    let Some(memory) = memory else { return "-".into() };
    let needed = format::rounded_bytes(memory.total());
    match device_memory.map(format::rounded_bytes) {
        Some(has) if memory.exceeds(device_memory) => format!("NO: {needed} of {has}"),
        Some(has) => format!("yes: {needed} of {has}"),
        None => needed,
    }
}

fn table<const MEASURED: bool>(caption: &str, points: &[&ScalePoint<MEASURED>]) -> ReportTable {
    ReportTable::new(
        caption,
        points,
        &[
            ("network", |point| names::network(&point.setup.model)),
            ("ranks", |point| point.setup.ranks.to_string()),
            ("fits: memory of a rank", |point| fits(point.memory, point.device_memory)),
            ("samples/s", |point| format::rate(point.samples_per_s)),
            ("efficiency", |point| format::percent(point.efficiency)),
            ("machine", |point| names::machine(&point.topology)),
            ("strategy", |point| point.setup.strategy.clone()),
            ("backend", |point| point.setup.backend.clone()),
            ("device", |point| names::device(&point.setup.device)),
            ("batch per rank", |point| point.batch.to_string()),
            ("step", |point| format::time(point.time_us)),
            ("std error", |point| format::time(point.time_error_us)),
            ("exposed", |point| format::time(point.exposed_us)),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{Setup, Stamp};

    fn point(model: &str, topology: &str, ranks: u32) -> SimulatedScale {
        SimulatedScale {
            setup: Setup {
                backend: "modeled".into(),
                device: "A100 SXM".into(),
                model: model.into(),
                strategy: "ddp".into(),
                ranks,
                mesh: Setup::data_parallel(ranks),
            },
            batch: 256,
            topology: topology.into(),
            time_us: 1.0,
            samples_per_s: 151_234.0,
            efficiency: 0.981,
            ..ScalePoint::default()
        }
    }

    /// A curve of zero3 whose points need 274, 137, .. GiB of a device's 80 GB.
    fn divided(counts: &[u32]) -> Vec<SimulatedScale> {
        let of = |&ranks: &u32| {
            let mut point = point("gpt2-xl", "hgx-h100 of h100", ranks);
            point.setup.strategy = "zero3".into();
            point.memory =
                Some(RankMemory { params: (274 << 34) / u64::from(ranks), ..RankMemory::default() });
            point.device_memory = Some(80_000_000_000);
            point.samples_per_s = 10.0 * f64::from(ranks) * if ranks > 64 { 1.048 } else { 1.0 };
            point
        };
        let mut points: Vec<SimulatedScale> = counts.iter().map(of).collect();
        SimulatedScale::set_efficiency(&mut points);
        points
    }

    fn contents(points: &[SimulatedScale]) -> Part {
        let stamp =
            Stamp { commit: "c".into(), host: "h".into(), seed: None, command: "allfold scale".into() };
        let lines: Vec<String> =
            points.iter().map(|point| crate::records::line(point, &stamp).unwrap()).collect();
        part(&Records::parse(&lines.join("\n")).unwrap()).unwrap().unwrap()
    }

    #[test]
    fn a_run_that_does_not_fit_in_memory_is_never_said_to_be_efficient() {
        let part = contents(&divided(&[8, 16, 32]));
        let answer = part.answer.unwrap();
        assert!(
            answer.contains(
                "would not hold GPT-2 XL by zero3: a rank needs 137.000 GiB of memory and has 74.506 GiB"
            ),
            "{answer}"
        );
        let facts: Vec<String> =
            part.facts.iter().map(|(_, fact)| format!("{}: {}", fact.value, fact.text)).collect();
        assert!(facts.len() == 1 && facts[0].starts_with("does not fit in memory: "), "{facts:?}");
        assert!(
            facts[0].contains("by zero3 on 8,16,32 ranks") && !facts[0].contains("data-parallel"),
            "{facts:?}"
        );
        let captions: Vec<&str> = part.section.plots.iter().map(|plot| &*plot.caption).collect();
        assert!(captions.len() == 1 && captions[0].starts_with("Throughput"), "no efficiency: {captions:?}");
        let finding = part.section.plots[0].finding.as_deref().unwrap();
        assert!(finding.starts_with("does not fit in memory: 8,16,32 ranks"), "{finding}");
        for row in &part.section.tables[0].rows {
            assert!(row[2].starts_with("NO: ") && row[4] == "-", "{row:?}");
        }
    }

    #[test]
    fn efficiency_is_relative_to_a_point_that_fits_and_more_than_the_whole_is_explained() {
        let part = contents(&divided(&[16, 64, 128]));
        let answer = part.answer.unwrap();
        assert!(
            answer.contains("by zero3 at 640 sequences/s, 100.0 % efficient, relative to 64 ranks, and hold it (68.5 of 74.5 GiB)"),
            "{answer}"
        );
        let values: Vec<&str> = part.facts.iter().map(|(_, fact)| &*fact.value).collect();
        assert_eq!(values, ["100.0 %", "104.8 %", "does not fit in memory"]);
        assert!(part.section.text.iter().any(|text| text.starts_with("An efficiency above 100 %: ")));
        let cells: Vec<&str> = part.section.tables[0].rows.iter().map(|row| &*row[4]).collect();
        assert_eq!(cells, ["-", "100.0 %", "104.8 %"]);
        let finding = part.section.plots[0].finding.as_deref().unwrap();
        assert!(finding.starts_with("does not fit in memory: 16 ranks; zero3"), "{finding}");
    }

    #[test]
    fn two_ranks_that_are_slower_than_one_are_said_with_the_load_of_the_machine() {
        let points: Vec<SimulatedScale> = [1, 2].map(|ranks| point("cnn", "this machine", ranks)).to_vec();
        let measured = points.into_iter().zip([3411.0, 2405.0]).map(|(point, samples_per_s)| MeasuredScale {
            samples_per_s,
            setup: point.setup,
            batch: point.batch,
            topology: point.topology,
            time_us: 1.0,
            efficiency: 1.0,
            ..ScalePoint::default()
        });
        let measured: Vec<MeasuredScale> = measured.collect();
        let points: Vec<&MeasuredScale> = measured.iter().collect();
        let machine = MeasuringMachine {
            date: String::new(),
            processor: String::new(),
            cores: 2,
            memory_bytes: None,
            load: Some(4.15),
            gpus: Vec::new(),
        };
        let (_, fact) = slower(&points, Some(&machine)).unwrap();
        assert_eq!((fact.value.as_str(), fact.ok), ("2 ranks slower than one", Some(false)));
        assert!(
            fact.text.contains(
                "2405 samples/s measured on 2 ranks and 3411 on one; the machine was busy (load 4.2"
            ),
            "{}",
            fact.text
        );
        let idle = MeasuringMachine { load: Some(0.1), ..machine };
        assert!(!slower(&points, Some(&idle)).unwrap().1.text.contains("busy"));
        assert!(slower(&points[..1], None).is_none());
    }

    #[test]
    fn strong_scaling_is_not_called_weak() {
        let mut points = divided(&[64, 128]);
        points[1].batch /= 2;
        let part = contents(&points);
        assert!(part.section.plots.iter().all(|plot| plot.caption.contains("strong scaling")));
    }

    #[test]
    fn the_first_line_is_about_a_network_that_users_know_on_64_ranks() {
        let points = [
            point("resnet50 (amp)", "dgx-a100 of A100 SXM", 1024),
            point("resnet50 (amp)", "dgx-a100 of A100 SXM", 64),
            point("mlp of 34M", "nodes8 of a100_f32", 4096),
        ];
        let points: Vec<&SimulatedScale> = points.iter().collect();
        let said = answer(answered(&points).unwrap(), &points);
        assert_eq!(
            said,
            "64 A100 SXM (dgx-a100) would train ResNet-50 by ddp at 151,000 images/s, 98.1 % efficient, relative to 64 ranks"
        );
        assert_eq!(largest(&points).unwrap().setup.ranks, 1024);
        assert!(
            answer(answered(&points[2..]).unwrap(), &points)
                .starts_with("4096 A100 in f32 (nodes of 8 devices) would train MLP of 34M")
        );
    }
}
