//! One network, trained on several numbers of ranks, on threads and on the simulator: the same bits.

use super::part::{Part, commands, distinct, head};
use crate::format;
use crate::loss_curve;
use crate::page::{Headline, ReportTable, Section};
use crate::plots::{DrawError, Figure};
use crate::records::{MeasuredStep, Parity, Records, SimulatedStep};

/// The row of an end of training, measured or simulated: the tables are two, their columns alike.
macro_rules! row {
    ($step:expr, $end:expr) => {{
        let (end, parts) = ($end, &$end.breakdown);
        let mut row = vec![
            $step.setup.backend.clone(),
            $step.setup.device.clone(),
            $step.setup.model.clone(),
            $step.setup.strategy.clone(),
            $step.setup.ranks.to_string(),
            ($step.step + 1).to_string(),
            format!("{:.6}", $step.loss),
            format::percent(end.accuracy),
            format!("{:.0}", end.samples_per_s),
        ];
        let times = [end.time_us, parts.forward_us, parts.backward_us, parts.exposed_us, parts.optimiser_us];
        row.extend(times.map(|us| format!("{us:.1}")));
        row
    }};
}

pub fn part(records: &Records) -> Result<Option<Part>, DrawError> {
    let parities = records.stamped::<Parity>();
    let measured = records.stamped::<MeasuredStep>();
    let simulated = records.stamped::<SimulatedStep>();
    if measured.is_empty() && simulated.is_empty() {
        return Ok(None);
    }
    let mut findings = Vec::new();
    if let Some((last, _)) = parities.last() {
        let ranks: Vec<String> = parities.iter().map(|(p, _)| p.ranks.to_string()).collect();
        let ok = parities.iter().all(|(p, _)| p.ok);
        findings.push(Headline {
            value: if ok { "Same bits".into() } else { "Bits differ".into() },
            text: format!(
                "losses and final weights of the {} on threads and on the simulator, on {} ranks",
                last.model,
                ranks.join(", ")
            ),
            ok: Some(ok),
        });
    }
    if let Some((end, accuracy)) =
        measured.iter().find_map(|(step, _)| Some((step, step.end.as_ref()?.accuracy)))
    {
        findings.push(Headline {
            value: format::percent(accuracy),
            text: format!(
                "of the test digits classified correctly by the {} after {} steps on {}",
                end.setup.model,
                end.step + 1,
                format::counted(end.setup.ranks as usize, "rank")
            ),
            ok: None,
        });
    }
    let stamps = measured.iter().map(|m| &m.1).chain(simulated.iter().map(|s| &s.1));
    let commands = commands(stamps);
    let mut tables = Vec::new();
    if !parities.is_empty() {
        tables.push(parity_table(parities.iter().map(|(parity, _)| parity)));
    }
    if !measured.is_empty() {
        let rows = measured.iter().filter_map(|(s, _)| Some(row!(s, s.end.as_ref()?))).collect();
        tables.push(end_table("Measured on this machine; per step, without those that warm up", rows));
    }
    if !simulated.is_empty() {
        let rows = simulated.iter().filter_map(|(s, _)| Some(row!(s, s.end.as_ref()?))).collect();
        tables.push(end_table("Simulated, real arithmetic on a virtual clock; per step", rows));
    }
    let section = Section {
        id: "training",
        title: "Training".into(),
        text: vec![
            "Data-parallel training: every rank computes gradients of its share of the batch, buckets of gradients are \
             all-reduced while the rest of the backward pass runs. With a canonical algorithm the losses and weights \
             depend on the configuration, the seed and the number of ranks, and on nothing else."
                .into(),
        ],
        figures: losses(records)?,
        tables,
        commands,
    };
    Ok(Some((findings, section)))
}

/// The losses of the measured runs: a figure for each model, a curve for each kind of run on each number of ranks.
fn losses(records: &Records) -> Result<Vec<(String, Figure)>, DrawError> {
    let mut steps = records.all::<MeasuredStep>();
    steps.retain(|step| step.loss.is_finite());
    let figure = |model: String| {
        let of: Vec<&MeasuredStep> = steps.iter().filter(|step| step.setup.model == model).collect();
        let one_kind = distinct(of.iter().map(|step| step.setup.kind())).len() == 1;
        let key = |step: &MeasuredStep| (step.setup.kind().map(String::from), step.setup.ranks);
        let courses = distinct(of.iter().map(|step| key(step))).into_iter().map(|kind| {
            let points = of.iter().filter(|step| key(step) == kind).map(|step| (step.step as f64, step.loss));
            let ([backend, device, _, strategy], ranks) = &kind;
            let ranks = format::counted(*ranks as usize, "rank");
            let name = if one_kind { ranks } else { format!("{ranks}, {strategy}, {backend} on {device}") };
            (name, points.collect())
        });
        let figure = loss_curve::figure(&model, courses.collect())?;
        Ok((format!("Training loss of the {model}, averaged over neighbouring steps"), figure))
    };
    distinct(steps.iter().map(|step| step.setup.model.clone())).into_iter().map(figure).collect()
}

fn parity_table<'a>(parities: impl Iterator<Item = &'a Parity>) -> ReportTable {
    let rows = parities.map(|p| {
        vec![
            p.ranks.to_string(),
            p.step.to_string(),
            format::short(&p.threads_losses),
            format::short(&p.sim_losses),
            format::short(&p.threads_weights),
            format::short(&p.sim_weights),
            if p.ok { "same bits".into() } else { "DIFFERENT".to_string() },
        ]
    });
    ReportTable {
        caption: "Hashes of all losses and of the final weights".into(),
        head: head(&[
            "ranks",
            "steps",
            "losses, threads",
            "losses, sim",
            "weights, threads",
            "weights, sim",
            "verdict",
        ]),
        rows: rows.collect(),
        collapsed: false,
    }
}

fn end_table(caption: &str, rows: Vec<Vec<String>>) -> ReportTable {
    let names = [
        "backend",
        "device",
        "model",
        "strategy",
        "ranks",
        "steps",
        "last loss",
        "accuracy",
        "samples/s",
        "step (us)",
        "forward (us)",
        "backward (us)",
        "exposed (us)",
        "optimiser (us)",
    ];
    ReportTable { caption: caption.into(), head: head(&names), rows, collapsed: false }
}
