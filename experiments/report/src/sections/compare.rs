//! Which way to train: several strategies on the same samples, by time, bytes and memory, and a step of each on every rank.

use super::names;
use super::part::{Part, commands, distinct, head};
use crate::format;
use crate::page::{Plot, ReportTable, Section};
use crate::plots::{Bar, DrawError, Figure, Timeline};
use crate::records::{
    Breakdown, ComparedStrategy, LeftOutStrategy, MeasuredComparison, RankMemory, Records, Setup,
    SimulatedComparison, Stamp, TimelineSpan, awaited_most, hidden_us,
};
use crate::sizes::RankCounts;
use std::collections::BTreeMap;

/// The most rows of a plot of a step, each for all ranks that do the same.
const ROWS: usize = 64;
/// Below this many bytes of parameters a step's communication takes the latency of its messages.
const SMALL: u64 = 1 << 20;
/// The longest list of ranks that names a row.
const LIST: usize = 12;

pub fn part(records: &Records) -> Result<Option<Part>, DrawError> {
    let measured = records.stamped::<MeasuredComparison>();
    let simulated = records.stamped::<SimulatedComparison>();
    if measured.is_empty() && simulated.is_empty() {
        return Ok(None);
    }
    let mut plots = Vec::new();
    let mut tables = Vec::new();
    if !measured.is_empty() {
        let rows =
            measured.iter().map(|(record, _)| (record.setup.strategy.clone(), parts(&record.breakdown)));
        plots.push(stacked(
            "Time of a step by part, measured on this machine: mean over ranks",
            REAL_TIME,
            rows,
        )?);
        tables.push(table("Measured on this machine", measured.iter().map(|(record, _)| record)));
    }
    if !simulated.is_empty() {
        plots.extend(of_simulated(&simulated, records)?);
        for (caption, modeled) in [
            ("Simulated: real arithmetic on a virtual clock", false),
            ("Modeled: shapes, operations and bytes on a virtual clock, no arithmetic", true),
        ] {
            let of = simulated.iter().filter(|(record, _)| record.weights_hash.is_none() == modeled);
            let table = table(caption, of.map(|(record, _)| record));
            tables.extend((!table.rows.is_empty()).then_some(table));
        }
    }
    tables.extend(left_out(&records.all()));
    let stamps = measured.iter().map(|(_, stamp)| stamp).chain(simulated.iter().map(|(_, stamp)| stamp));
    let runs = measured.iter().map(|(record, _)| (&record.setup, record.batch));
    let runs: Vec<_> =
        runs.chain(simulated.iter().map(|(record, _)| (&record.setup, record.batch))).collect();
    let mut places = distinct(measured.iter().map(|(record, _)| format!("measured on {}", record.topology)));
    let machine = |record: &SimulatedComparison| format!("simulated on {}", names::machine(&record.topology));
    places.extend(distinct(simulated.iter().map(|(record, _)| machine(record))));
    let section = Section {
        id: "compare",
        title: "Which way to train".into(),
        text: vec![
            subject(&runs, &places),
            "Each strategy trains the same network on the same samples per step. Data parallelism holds the model on every rank; \
             zero1, zero2 and zero3 cut optimiser state, gradients and parameters into parts; a pipeline gives each rank some of \
             the layers. The exchanges of zero2 and zero3 need buffers of a whole bucket or layer, which outweigh what they save where the \
             network is not larger than a bucket. What a strategy saves in memory it pays for in bytes or in waiting. Waiting is the mean over the steps \
             after the first; the column \"most for\" names the rank that the others wait for longest, with its share of all waiting."
                .into(),
        ],
        plots,
        tables,
        commands: commands(stamps),
        ..Section::default()
    };
    let answer = finding(&simulated.iter().map(|(record, _)| record).collect::<Vec<_>>());
    // No tile: which way is the fastest depends on the network, and does not say how far it scales.
    Ok(Some(Part { answer, facts: Vec::new(), limits: Vec::new(), section }))
}

/// What is trained, with how many samples in a step, and where.
fn subject(runs: &[(&Setup, u64)], places: &[String]) -> String {
    let networks = distinct(runs.iter().map(|(setup, _)| names::network(&setup.model)));
    let batches = distinct(runs.iter().map(|(_, batch)| batch.to_string()));
    let ranks = runs.iter().map(|(setup, _)| setup.ranks).max().unwrap_or(1);
    format!(
        "The network is the {}, on {} with {} samples of all ranks together in a step; {}.",
        networks.join(" and the "),
        format::counted(ranks as usize, "rank"),
        batches.join(" or "),
        places.join(", ")
    )
}

/// Times, memory, bytes, and a step of every strategy on every rank.
fn of_simulated(
    simulated: &[(SimulatedComparison, Stamp)],
    records: &Records,
) -> Result<Vec<Plot>, DrawError> {
    let mut plots = Vec::new();
    let rows = simulated.iter().map(|(record, _)| (record.setup.strategy.clone(), parts(&record.breakdown)));
    plots.push(stacked("Time of a step by part, simulated: mean over ranks", VIRTUAL_TIME, rows)?);
    let rows = simulated.iter().map(|(record, _)| (record.setup.strategy.clone(), classes(&record.memory)));
    plots.push(stacked("Memory of the rank that holds the most, at its peak, simulated", BYTES, rows)?);
    let sends = |record: &SimulatedComparison| !record.bytes_by_operation.is_empty();
    let rows: Vec<_> = simulated
        .iter()
        .filter(|(record, _)| sends(record))
        .map(|(record, _)| {
            let sent = |(operation, bytes): (&String, &u64)| (operation.clone(), *bytes as f64);
            (record.setup.strategy.clone(), record.bytes_by_operation.iter().map(sent).collect())
        })
        .collect();
    if !rows.is_empty() {
        let caption = "Bytes that all ranks send in a step, by operation, simulated";
        plots.push(stacked(caption, BYTES, rows.into_iter())?);
    }
    let spans = records.all::<TimelineSpan>();
    for strategy in distinct(spans.iter().filter_map(|span| span.strategy.clone())) {
        let of: Vec<&TimelineSpan> =
            spans.iter().filter(|span| span.strategy.as_deref() == Some(&strategy)).collect();
        if of.iter().any(|span| span.rank > 0) {
            let plot =
                Plot::new(format!("One step of {strategy} on every rank, simulated"), waits(&of), step(&of)?);
            plots.push(plot.among(vec![("strategy", strategy)]));
        }
    }
    Ok(plots)
}

/// The fastest strategy that its devices hold and the one that needs the least memory on a rank, as predicted; `None` if all train on
/// one rank, or none fits.
fn finding(simulated: &[&SimulatedComparison]) -> Option<String> {
    let many = simulated.iter().filter(|record| record.setup.ranks > 1);
    let fits = many.clone().filter(|record| !record.memory.exceeds(record.device_memory));
    let fastest = fits.min_by(|a, b| a.step_us.total_cmp(&b.step_us));
    let peak = |record: &SimulatedComparison| record.peak_bytes.iter().max().copied().unwrap_or(0);
    let smallest = many.min_by_key(|record| peak(record));
    let (fastest, smallest) = (fastest?, smallest?);
    let bytes = fastest.memory.params;
    let small = if bytes < SMALL {
        format!(
            ": with {} of parameters the number of messages decides, not their size, and a larger network has another answer",
            format::rounded_bytes(bytes)
        )
    } else {
        String::new()
    };
    Some(format!(
        "{} is the fastest of {} to train the {} on {} of {} (simulated){small}; {} holds the least, {} on a rank",
        fastest.setup.strategy,
        format::counted(simulated.len(), "way"),
        fastest.setup.model,
        format::counted(fastest.setup.ranks as usize, "rank"),
        names::machine(&fastest.topology),
        if smallest.setup.strategy == fastest.setup.strategy { "it also" } else { &smallest.setup.strategy },
        format::rounded_bytes(peak(smallest))
    ))
}

/// The share of a step that all ranks spend waiting, or that of the rank that waits the longest.
fn waits(spans: &[&TimelineSpan]) -> Option<String> {
    let computing = || spans.iter().filter(|span| span.stream == "compute");
    let length = |of: u32, waiting: bool| -> f64 {
        let of = computing().filter(|span| span.rank == of && (!waiting || work(span) == "waiting"));
        of.map(|span| span.end_us - span.start_us).sum()
    };
    let share = |rank: u32| length(rank, true) / length(rank, false).max(1e-9);
    let ranks = distinct(computing().map(|span| span.rank));
    let longest = ranks.iter().copied().max_by(|a, b| share(*a).total_cmp(&share(*b)))?;
    longest_wait(longest, ranks.iter().map(|rank| share(*rank)))
}

/// That all ranks wait alike, or that rank `longest` waits the longest, from the share of its time that each rank waits. `None`
/// without a rank.
pub(super) fn longest_wait(longest: u32, shares: impl Iterator<Item = f64> + Clone) -> Option<String> {
    let most = shares.clone().max_by(f64::total_cmp)?;
    Some(match shares.into_iter().all(|share| most - share < 1e-3) {
        true => format!("each rank waits equally long: {} of its time", format::percent(most)),
        false => format!("rank {longest} waits the longest: {} of its time", format::percent(most)),
    })
}

/// What a rank does in a span: one of [`WORK`], or the span's name if it is none of them.
fn work(span: &TimelineSpan) -> String {
    match span.name.trim_end_matches(|c: char| c.is_ascii_digit()).trim() {
        "exposed" => "waiting".to_string(),
        "optimiser" => "update".to_string(),
        work => work.to_string(),
    }
}

/// The kinds of a rank's work. Their order gives each kind the same colour in every plot.
const WORK: [&str; 8] =
    ["forward", "backward", "waiting", "update", "input gradients", "weight gradients", "divide", "data"];

fn parts(breakdown: &Breakdown) -> Vec<(String, f64)> {
    let Breakdown { data_us, forward_us, backward_us, exposed_us, optimiser_us } = *breakdown;
    let named = [
        ("forward", forward_us),
        ("backward", backward_us),
        ("waiting", exposed_us),
        ("update", optimiser_us),
        ("data", data_us),
    ];
    named.into_iter().filter(|(_, us)| !us.is_nan()).map(|(name, us)| (name.to_string(), us)).collect()
}

fn classes(memory: &RankMemory) -> Vec<(String, f64)> {
    let RankMemory { params, gradients, optimiser, buckets, buffers, .. } = *memory;
    let RankMemory { activations, saved_for_backward, activation_gradients, .. } = *memory;
    let named = [
        ("parameters", params),
        ("gradients", gradients),
        ("optimiser state", optimiser),
        (
            "activations, their gradients and free buffers",
            activations + saved_for_backward + activation_gradients,
        ),
        ("buckets", buckets),
        ("statistics", buffers),
    ];
    named.map(|(name, bytes)| (name.to_string(), bytes as f64)).to_vec()
}

/// A unit of an axis: the axis's label, the unit in words, and its size.
type Unit = (&'static str, &'static str, f64);

const REAL_TIME: [Unit; 3] = [("us", "us", 1.0), ("ms", "ms", 1e3), ("s", "s", 1e6)];
const VIRTUAL_TIME: [Unit; 3] =
    [("virtual time (us)", "us", 1.0), ("virtual time (ms)", "ms", 1e3), ("virtual time (s)", "s", 1e6)];
const BYTES: [Unit; 3] =
    [("KiB", "KiB", 1024.0), ("MiB", "MiB", 1_048_576.0), ("GiB", "GiB", 1_073_741_824.0)];

/// The largest of the units in which the greatest value is ten or more; the first if there is none.
fn unit_for(greatest: f64, units: [Unit; 3]) -> Unit {
    let fits = units.into_iter().rev().find(|(.., size)| greatest >= 10.0 * size);
    fits.unwrap_or(units[0])
}

/// A row of parts, one after another, for each name.
fn stacked(
    caption: &str,
    units: [Unit; 3],
    rows: impl Iterator<Item = (String, Vec<(String, f64)>)>,
) -> Result<Plot, DrawError> {
    let mut rows: Vec<(String, Vec<(String, f64)>)> = rows.collect();
    let sum = |row: &(String, Vec<(String, f64)>)| row.1.iter().map(|part| part.1).sum::<f64>();
    let (unit, word, size) = unit_for(rows.iter().map(sum).fold(0.0, f64::max), units);
    rows.iter_mut().flat_map(|(_, parts)| parts).for_each(|part| part.1 /= size);
    let finding = extremes(&rows, word);
    let parts = rows.iter().flat_map(|(_, parts)| parts).filter(|(_, size)| *size > 0.0);
    let kinds = distinct(parts.map(|(part, _)| part.clone()));
    let kinds = if kinds.iter().all(|kind| WORK.contains(&kind.as_str())) { head(&WORK) } else { kinds };
    let mut bars = Vec::new();
    for (row, (_, parts)) in rows.iter().enumerate() {
        let mut start = 0.0;
        for (part, size) in parts.iter().filter(|part| part.1 > 0.0) {
            let kind = kinds.iter().position(|kind| kind == part).unwrap_or_default();
            let name = format!("{part} {}", format::number(*size));
            bars.push(Bar { row, kind, name, start, end: start + size });
            start += size;
        }
    }
    let short = |name: &String| match name.char_indices().nth(8) {
        Some(_) => name.chars().take(7).chain(['…']).collect(),
        None => name.clone(),
    };
    let rows = rows.iter().map(|(name, _)| (name.clone(), short(name))).collect();
    let figure = Timeline { label: "Strategies, part by part".into(), unit, rows, kinds, bars }.draw()?;
    Ok(Plot::new(caption, finding, figure))
}

/// The rows with the smallest and the largest sum, among those of several ranks.
fn extremes(rows: &[(String, Vec<(String, f64)>)], unit: &str) -> Option<String> {
    let rows: Vec<_> = rows.iter().filter(|(name, _)| name != "single").collect();
    let sums = || rows.iter().map(|(name, parts)| (name, parts.iter().map(|part| part.1).sum::<f64>()));
    let least = sums().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let most = sums().max_by(|a, b| a.1.total_cmp(&b.1))?;
    (rows.len() > 1).then(|| {
        let [low, high] = [least.1, most.1].map(format::number);
        format!("{} has the least, {low} {unit}; {} has the most, {high} {unit}", least.0, most.0)
    })
}

/// What ranks compute and when they wait: a row for all ranks that do the same at the same times.
fn step(spans: &[&TimelineSpan]) -> Result<Figure, DrawError> {
    let mut of_ranks: BTreeMap<u32, Vec<&TimelineSpan>> = BTreeMap::new();
    for span in spans.iter().filter(|span| span.stream == "compute") {
        of_ranks.entry(span.rank).or_default().push(span);
    }
    let same = |a: &[&TimelineSpan], b: &[&TimelineSpan]| {
        a.len() == b.len()
            && a.iter()
                .zip(b)
                .all(|(a, b)| (&a.name, a.start_us, a.end_us) == (&b.name, b.start_us, b.end_us))
    };
    let mut rows: Vec<(Vec<u32>, Vec<&TimelineSpan>)> = Vec::new();
    for (rank, spans) in of_ranks {
        match rows.iter().position(|(_, first)| same(first, &spans)) {
            Some(at) => rows[at].0.push(rank),
            None if rows.len() < ROWS => rows.push((vec![rank], spans)),
            None => {}
        }
    }
    let kinds = head(&WORK);
    let drawn = || rows.iter().flat_map(|(_, spans)| spans);
    let (unit, _, size) = unit_for(drawn().map(|span| span.end_us).fold(0.0, f64::max), VIRTUAL_TIME);
    let mut bars = Vec::new();
    for (row, (_, spans)) in rows.iter().enumerate() {
        bars.extend(spans.iter().filter_map(|span| {
            let kind = kinds.iter().position(|name| *name == work(span))?;
            let (start, end) = (span.start_us / size, span.end_us / size);
            Some(Bar { row, kind, name: span.name.clone(), start, end })
        }));
    }
    let name = |(ranks, _): &(Vec<u32>, _)| {
        let list = RankCounts(ranks.clone()).to_string();
        match ranks.len() {
            1 => (format!("rank {list}"), list),
            many if list.len() > LIST => (format!("{many} ranks as {}", ranks[0]), ranks[0].to_string()),
            _ => (format!("ranks {list}"), list),
        }
    };
    let rows = rows.iter().map(name).collect();
    Timeline { label: "One step on every rank".into(), unit, rows, kinds, bars }.draw()
}

/// The strategies that do not take the configuration.
fn left_out(strategies: &[LeftOutStrategy]) -> Option<ReportTable> {
    (!strategies.is_empty()).then(|| {
        ReportTable::new(
            "Left out",
            strategies,
            &[
                ("strategy", |left_out| left_out.strategy.clone()),
                ("ranks", |left_out| left_out.ranks.to_string()),
                ("reason", |left_out| left_out.why.clone()),
            ],
        )
    })
}

/// The texts of values, one for each rank or a few, separated by commas.
fn list<T: Copy>(values: &[T], text: impl Fn(T) -> String) -> String {
    values.iter().map(|value| text(*value)).collect::<Vec<_>>().join(", ")
}

fn table<'a, const MEASURED: bool>(
    caption: &str,
    records: impl Iterator<Item = &'a ComparedStrategy<MEASURED>>,
) -> ReportTable {
    ReportTable::new(
        caption,
        records,
        &[
            ("strategy", |r| r.setup.strategy.clone()),
            ("ranks", |r| r.setup.ranks.to_string()),
            ("samples", |r| r.batch.to_string()),
            ("micro-batches", |r| r.micro_batches.to_string()),
            ("step", |r| format::time(r.step_us)),
            ("waiting", |r| format::time(r.breakdown.exposed_us)),
            ("waiting by rank", |r| list(&r.waiting_us, format::time)),
            ("most for", |r| awaited_most(&r.waiting_for, &r.waiting_us)),
            ("hidden by rank", |r| list(&hidden_us(&r.communication_us, &r.waiting_us), format::time)),
            ("sent by rank", |r| list(&r.bytes_sent, format::rounded_bytes)),
            ("peak by rank", |r| {
                let excess = if r.memory.exceeds(r.device_memory) { ", does not fit" } else { "" };
                list(&r.peak_bytes, format::rounded_bytes) + excess
            }),
            ("loss", |r| r.loss.map_or("-".into(), |loss| format!("{loss:.6}"))),
            ("weights", |r| r.weights_hash.as_deref().map_or("-".into(), format::short)),
        ],
    )
    .folded(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_do_the_same_are_one_row() {
        let span = |rank: u32, name: &str, end_us: f64| TimelineSpan {
            strategy: Some("ddp".into()),
            rank,
            stream: "compute".into(),
            name: name.into(),
            start_us: 0.0,
            end_us,
        };
        // Ranks 0 to 5 and 9 alike, 6 longer, 7 another name; every second of 20 to 40.
        let mut spans: Vec<TimelineSpan> =
            (0..6).chain([9]).map(|rank| span(rank, "forward", 50.0)).collect();
        spans.extend([span(6, "forward", 60.0), span(7, "backward", 50.0)]);
        spans.extend((20..40).step_by(2).map(|rank| span(rank, "forward", 70.0)));
        let svg = step(&spans.iter().collect::<Vec<_>>()).unwrap().file("a step");
        for (row, shown) in [
            ("ranks 0..5,9", true),
            ("rank 6", true),
            ("rank 7", true),
            ("10 ranks as 20", true),
            ("rank 22", false),
        ] {
            assert_eq!(svg.contains(row), shown, "{row}");
        }
    }

    /// Regression: one rank alone sends nothing and holds least, and was compared with strategies of several ranks.
    #[test]
    fn the_least_and_the_most_are_those_of_several_ranks() {
        let row = |name: &str, size: f64| (name.to_string(), vec![("part".to_string(), size)]);
        let [single, ddp, zero3] = [row("single", 1.0), row("ddp", 20.0), row("zero3", 10.0)];
        let said = extremes(&[single.clone(), ddp.clone(), zero3], "KiB").unwrap();
        assert_eq!(said, "zero3 has the least, 10 KiB; ddp has the most, 20 KiB");
        assert_eq!(extremes(&[single, ddp], "KiB"), None);
    }

    #[test]
    fn ranks_that_wait_alike_are_told_from_one_that_waits_longest() {
        let said = |shares: &[f64]| longest_wait(3, shares.iter().copied()).unwrap();
        assert_eq!(
            said(&[0.132, 0.1325]),
            format!("each rank waits equally long: {} of its time", format::percent(0.1325))
        );
        assert_eq!(
            said(&[0.1, 0.2]),
            format!("rank 3 waits the longest: {} of its time", format::percent(0.2))
        );
        assert_eq!(longest_wait(0, [].into_iter()), None);
    }

    #[test]
    fn the_text_names_network_samples_and_machines() {
        let setup = |strategy: &str, ranks: u32| Setup {
            backend: "sim".into(),
            device: "a100_f32".into(),
            model: "mlp".into(),
            strategy: strategy.into(),
            ranks,
            mesh: Setup::data_parallel(ranks),
        };
        let (single, ddp) = (setup("single", 1), setup("ddp", 4));
        let places = ["measured on 2 cores".to_string(), "simulated on A100 in f32 on nodes8".to_string()];
        assert_eq!(
            subject(&[(&single, 128), (&ddp, 128)], &places),
            "The network is the MLP, on 4 ranks with 128 samples of all ranks together in a step; measured on 2 cores, simulated on A100 \
             in f32 on nodes8."
        );
    }
}
