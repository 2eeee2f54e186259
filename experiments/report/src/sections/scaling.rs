//! Scaling curves of training: measured where the ranks exist, simulated where they do not.

use super::names;
use super::part::{Part, commands, fact, head};
use super::scaling_curves;
use crate::format;
use crate::page::{Headline, Question, ReportTable, Section};
use crate::plots::DrawError;
use crate::records::{MeasuredScale, Records, SimulatedScale};

/// The number of ranks that the first line of the page is about, if there is a point of that many.
const ANSWERED: u32 = 64;

/// The part's anchor.
pub const ID: &str = "scaling";

pub fn part(records: &Records) -> Result<Option<Part>, DrawError> {
    let measured = records.stamped::<MeasuredScale>();
    let simulated = records.stamped::<SimulatedScale>();
    if measured.is_empty() && simulated.is_empty() {
        return Ok(None);
    }
    let stamps = measured.iter().map(|m| &m.1).chain(simulated.iter().map(|s| &s.1));
    let commands = commands(stamps);
    let measured: Vec<&MeasuredScale> = measured.iter().map(|(record, _)| record).collect();
    let simulated: Vec<&SimulatedScale> = simulated.iter().map(|(record, _)| record).collect();

    let answered = answered(&simulated);
    let mut facts: Vec<(Question, Headline)> = answered.map(scaled).into_iter().collect();
    facts.extend(largest(&simulated).filter(|largest| Some(*largest) != answered).map(scaled));
    let off = scaling_curves::model_of_this_machine(&measured, &simulated);
    facts.extend(off.map(|off| {
        let text = "the data sheet's model of a CPU core, compared with training measured here; nothing is fitted to this machine";
        fact(Question::Trust, format!("up to x{} off", format::number(off)), text.into(), None)
    }));

    let mut tables = Vec::new();
    if !measured.is_empty() {
        let rows = measured.iter().map(|m| row!(m)).collect();
        tables.push(table("Measured on this machine; steps that warm up are not counted", rows));
    }
    if !simulated.is_empty() {
        let rows = simulated.iter().map(|s| row!(s)).collect();
        tables.push(table(
            "Simulated: sim computes with real arithmetic on the virtual clock, modeled counts FLOPs and bytes",
            rows,
        ));
    }
    let section = Section {
        id: ID,
        title: "Scaling of training".into(),
        text: vec![
            "Weak scaling: every rank has its own batch, and every counted step takes a whole batch, so that the points \
             of measured, sim and modeled runs are of the same step. Efficiency is throughput over that of as many single ranks. \
             Points are measured on as many ranks as this machine has cores; simulated points use the same bucket plan and \
             schedules on a virtual clock, with compute from a device model."
                .into(),
        ],
        plots: scaling_curves::plots(&measured, &simulated)?,
        tables,
        commands,
        folded: false,
    };
    let limits = off.map(|off| {
        format!(
            "The model of a CPU core comes from a data sheet. On this machine its training rate is off by a factor of up to {}: \
             trust it for the shape of a curve, not for its height.",
            format::number(off)
        )
    });
    let answer = answered.map(answer);
    Ok(Some(Part { answer, facts, limits: limits.into_iter().collect(), section }))
}

/// The point that the first line is about: a network that users know by name comes first, then 64 ranks, then the most ranks.
fn answered<'a>(simulated: &[&'a SimulatedScale]) -> Option<&'a SimulatedScale> {
    let many = simulated.iter().copied().filter(|point| point.setup.ranks > 1);
    // Of equal points the first one counts, whereas `max_by_key` takes the last one.
    many.rev().max_by_key(|point| {
        let ranks = point.setup.ranks;
        (names::is_known(&point.setup.model), ranks == ANSWERED, ranks)
    })
}

fn largest<'a>(simulated: &[&'a SimulatedScale]) -> Option<&'a SimulatedScale> {
    let many = simulated.iter().copied().filter(|point| point.setup.ranks > 1);
    many.rev().max_by_key(|point| (names::is_known(&point.setup.model), point.setup.ranks))
}

/// The answer in a sentence.
fn answer(point: &SimulatedScale) -> String {
    let (device, topology) = names::device_and_topology(&point.topology);
    let model = &point.setup.model;
    let who = match device {
        "" => format!("{} of {topology}", format::counted(point.setup.ranks as usize, "rank")),
        device => format!("{} {} ({topology})", point.setup.ranks, names::device(device)),
    };
    format!(
        "{who} would train {} at {} {}/s, {} efficient",
        names::plain(model),
        format::grouped(point.samples_per_s),
        names::samples(model),
        format::percent(point.efficiency)
    )
}

fn scaled(point: &SimulatedScale) -> (Question, Headline) {
    let text = format!(
        "predicted efficiency of data-parallel training of the {} on {} of {}, {} {}/s",
        names::network(&point.setup.model),
        format::counted(point.setup.ranks as usize, "rank"),
        names::machine(&point.topology),
        format::grouped(point.samples_per_s),
        names::samples(&point.setup.model)
    );
    fact(Question::Scale, format::percent(point.efficiency), text, None)
}

/// The row of a scaling point. Measured and simulated points are different types, so this is a macro.
macro_rules! row {
    ($point:expr) => {{
        let point = $point;
        vec![
            names::network(&point.setup.model),
            point.setup.ranks.to_string(),
            format::number(point.samples_per_s),
            format::percent(point.efficiency),
            names::machine(&point.topology),
            point.setup.strategy.clone(),
            point.setup.backend.clone(),
            names::device(&point.setup.device),
            point.batch.to_string(),
            format!("{:.1}", point.time_us),
            format!("{:.1}", point.time_error_us),
            format!("{:.1}", point.exposed_us),
            point.memory.map_or("-".into(), |memory| {
                let mark = if memory.exceeds(point.device_memory) { ", does not fit" } else { "" };
                format::rounded_bytes(memory.total()) + mark
            }),
        ]
    }};
}
use row;

fn table(caption: &str, rows: Vec<Vec<String>>) -> ReportTable {
    let names = [
        "network",
        "ranks",
        "samples/s",
        "efficiency",
        "machine",
        "strategy",
        "backend",
        "device",
        "batch per rank",
        "step (us)",
        "std error (us)",
        "exposed (us)",
        "most memory",
    ];
    ReportTable { caption: caption.into(), head: head(&names), rows, collapsed: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::Setup;

    #[test]
    fn the_first_line_is_about_a_network_that_users_know_on_64_ranks() {
        let point = |model: &str, topology: &str, ranks: u32| SimulatedScale {
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
            time_error_us: 0.0,
            exposed_us: 0.0,
            samples_per_s: 151_234.0,
            efficiency: 0.981,
            engines: Vec::new(),
            memory: None,
            device_memory: None,
        };
        let points = [
            point("resnet50 (amp)", "dgx-a100 of A100 SXM", 1024),
            point("resnet50 (amp)", "dgx-a100 of A100 SXM", 64),
            point("mlp of 34M", "nodes8 of a100_f32", 4096),
        ];
        let points: Vec<&SimulatedScale> = points.iter().collect();
        let said = answer(answered(&points).unwrap());
        assert_eq!(
            said,
            "64 A100 SXM (dgx-a100) would train ResNet-50 at 151,000 images/s, 98.1 % efficient"
        );
        assert_eq!(largest(&points).unwrap().setup.ranks, 1024);
        assert!(
            answer(answered(&points[2..]).unwrap())
                .starts_with("4096 A100 in f32 (nodes8) would train MLP of 34M")
        );
    }
}
