//! The tables of `allfold compare`.

use allfold_cli::columns;
use allfold_report::format::{rate, rounded_bytes, short, time};
use allfold_report::records::{ComparedStrategy, RankMemory, awaited_most, hidden_us};

/// The smallest and the largest of the ranks' values; one value if all are the same.
fn range<T: PartialOrd + Copy>(values: &[T], read: impl Fn(T) -> String) -> String {
    let smallest = values.iter().copied().reduce(|a, b| if b < a { b } else { a });
    let greatest = values.iter().copied().reduce(|a, b| if b > a { b } else { a });
    match (smallest.map(&read), greatest.map(&read)) {
        (Some(smallest), Some(greatest)) if smallest != greatest => format!("{smallest} .. {greatest}"),
        (Some(one), _) => one,
        _ => "-".into(),
    }
}

/// The table of the compared strategies.
pub(super) fn table<const MEASURED: bool>(records: &[ComparedStrategy<MEASURED>]) -> String {
    columns::table(
        records,
        &[
            ("strategy", |r| r.setup.strategy.clone()),
            ("mesh", |r| {
                let axes = r.setup.mesh.iter().map(|(axis, size)| format!("{axis} {size}"));
                axes.collect::<Vec<_>>().join(" x ")
            }),
            ("micro-batches", |r| r.micro_batches.to_string()),
            ("step", |r| time(r.step_us)),
            ("samples/s", |r| rate(r.batch as f64 / (r.step_us / 1e6))),
            ("waiting", |r| range(&r.waiting_us, time)),
            ("most for", |r| awaited_most(&r.waiting_for, &r.waiting_us)),
            ("hidden", |r| range(&hidden_us(&r.communication_us, &r.waiting_us), time)),
            ("sent by a rank", |r| range(&r.bytes_sent, rounded_bytes)),
            ("peak of a rank", |r| {
                let excess = if r.memory.exceeds(r.device_memory) { " *" } else { "" };
                range(&r.peak_bytes, rounded_bytes) + excess
            }),
            ("params", |r| rounded_bytes(r.memory.params)),
            ("gradients", |r| rounded_bytes(r.memory.gradients)),
            ("optimiser", |r| rounded_bytes(r.memory.optimiser)),
            ("activations", |r| {
                let RankMemory { activations, saved_for_backward, activation_gradients, .. } = r.memory;
                rounded_bytes(activations + saved_for_backward + activation_gradients)
            }),
            ("loss", |r| r.loss.map_or("-".into(), |loss| format!("{loss:.6}"))),
            ("weights", |r| r.weights_hash.as_deref().map_or("-".into(), short)),
        ],
    )
}
