//! A plan as records and as text.

use allfold_cli::columns;
use allfold_large_models::memory::JobMemory;
use allfold_large_models::plan::{Narrowing, PlanTask, RankedLayout, RankedPlan, WhatIf, name};
use allfold_large_models::step::StepTime;
use allfold_report::format::grouped;
use allfold_report::records::{PlannedLayout, PlannedRun};

/// The memory by class in GB.
fn classes(used: &JobMemory) -> Vec<(String, f64)> {
    let classes = [
        ("parameters", used.parameters),
        ("gradients", used.gradients),
        ("optimizer", used.optimizer),
        ("activations", used.activations),
        ("exchange", used.exchange),
        ("workspace", used.workspace),
        ("context", used.context),
    ];
    classes.into_iter().map(|(class, bytes)| (class.to_string(), bytes / 1e9)).collect()
}

/// The record of the layout in this place, from 0.
pub fn layout(at: usize, ranked: &RankedLayout) -> PlannedLayout {
    let [low_s, high_s] = ranked.step.within80;
    let (job, sizes) = (&ranked.job, &ranked.job.layout);
    PlannedLayout {
        model: job.model.name.clone(),
        gpu: job.cluster.gpu.clone(),
        gpus: sizes.gpus,
        place: at as u32 + 1,
        layout: name(sizes),
        global_batch: sizes.global_batch,
        sequence: sizes.sequence,
        step_s: ranked.step.seconds,
        low_s,
        high_s,
        tokens_per_s: ranked.tokens_per_s(),
        mfu: ranked.mfu(),
        memory_gb: ranked.memory.needed() / 1e9,
        fit_probability: ranked.fits,
        before_next: ranked.before_next,
        parts: StepTime::PARTS
            .iter()
            .map(|part| (*part).to_string())
            .zip(ranked.step.parts.parts())
            .collect(),
        memory: classes(&ranked.memory),
    }
}

/// The record of the run, without the figures that tokens or days give.
pub fn run(task: &PlanTask, plan: &RankedPlan, changes: &[WhatIf], narrow: Option<&Narrowing>) -> PlannedRun {
    PlannedRun {
        model: task.model.name.clone(),
        gpu: task.cluster.gpu.clone(),
        gpus: task.gpus,
        tried: plan.tried,
        fitting: plan.fitting,
        left_out: plan.left_out.iter().map(|(why, count)| ((*why).to_string(), *count)).collect(),
        changes: changes
            .iter()
            .map(|what| (what.change.clone(), what.speedup, name(&what.layout.job.layout)))
            .collect(),
        measurement: narrow
            .map(|narrow| (name(&narrow.job.layout), narrow.job.layout.gpus, narrow.before, narrow.after)),
        ..PlannedRun::default()
    }
}

/// The task, and the table of layouts.
pub fn table(task: &PlanTask, layouts: &[PlannedLayout]) -> String {
    let table = columns::table(
        layouts,
        &[
            ("", |layout| layout.place.to_string()),
            ("layout", |layout| layout.layout.clone()),
            ("step (s)", |layout| format!("{:.3}", layout.step_s)),
            ("80 % (s)", |layout| format!("{:.3} to {:.3}", layout.low_s, layout.high_s)),
            ("tokens/s", |layout| grouped(layout.tokens_per_s.round())),
            ("a GPU", |layout| grouped((layout.tokens_per_s / f64::from(layout.gpus)).round())),
            ("MFU %", |layout| format!("{:.1}", 100.0 * layout.mfu)),
            ("GB", |layout| format!("{:.1}", layout.memory_gb)),
            ("fits %", |layout| format!("{:.0}", 100.0 * layout.fit_probability)),
            ("before next %", |layout| {
                layout.before_next.map_or(String::new(), |share| format!("{:.0}", 100.0 * share))
            }),
        ],
    );
    format!(
        "{} ({:.4e} parameters) on {} {}: {} sequences of {} tokens a step, {}, {}\n\n{table}",
        task.model.name,
        task.model.parameters().total(),
        task.gpus,
        task.cluster.gpu,
        task.global_batch,
        task.sequence,
        task.precision.name(),
        task.framework.name()
    )
}

/// The parts of the first layout's step and memory.
pub fn first(layout: &PlannedLayout) -> String {
    let mut parts: Vec<&(String, f64)> =
        layout.parts.iter().filter(|(_, seconds)| seconds / layout.step_s >= 5e-4).collect();
    parts.sort_by(|one, other| other.1.total_cmp(&one.1));
    let parts: Vec<String> = parts
        .iter()
        .map(|(part, seconds)| format!("{part} {:.1} %", 100.0 * seconds / layout.step_s))
        .collect();
    let memory: Vec<String> = layout
        .memory
        .iter()
        .filter(|(_, gb)| *gb >= 0.05)
        .map(|(class, gb)| format!("{class} {gb:.1}"))
        .collect();
    format!(
        "\nfirst layout: {}\n  step: {}\n  memory (GB): {}",
        layout.layout,
        parts.join(", "),
        memory.join(", ")
    )
}

/// What was left out, what changes bring, and the measurement to make.
pub fn around(run: &PlannedRun) -> String {
    let left_out: Vec<String> = run.left_out.iter().map(|(why, count)| format!("{count} {why}")).collect();
    let mut text =
        format!("\n{} of {} layouts fit; left out: {}", run.fitting, run.tried, left_out.join(", "));
    for (change, speedup, layout) in &run.changes {
        text += &format!("\n{change}: {:+.1} % tokens/s by {layout}", 100.0 * (speedup - 1.0));
    }
    if let Some((layout, gpus, before, after)) = &run.measurement {
        text += &format!(
            "\nmeasure {layout} on {gpus} GPUs: the first layout's 80 % interval narrows from +-{:.0} % to +-{:.0} %",
            100.0 * before,
            100.0 * after
        );
    }
    text
}

/// The run's time, goodput and cost.
pub fn whole(run: &PlannedRun) -> String {
    let [days, low, high] = run.days;
    let [share, least, most] = run.goodput;
    let [best, young, daly] = run.checkpoints_s;
    let mut text = format!(
        "\n{:.3e} tokens: {days:.1} days (80 %: {low:.1} to {high:.1}), {:.1} % of the time useful ({:.1} to {:.1}), {:.0} interruptions\n  checkpoints every {best:.0} s (Young {young:.0}, Daly {daly:.0})",
        run.tokens,
        100.0 * share,
        100.0 * least,
        100.0 * most,
        run.interruptions
    );
    if let Some((amount, currency)) = &run.cost {
        text += &format!(
            "\n  cost: {} {currency} ({} to {})",
            grouped(amount.round()),
            grouped((amount * low / days).round()),
            grouped((amount * high / days).round())
        );
    }
    if let Some(energy) = run.energy_mwh {
        text += &format!("\n  energy of the GPUs: {} MWh", grouped(energy.round()));
    }
    text
}
