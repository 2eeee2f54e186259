//! The tables of `allfold compare`.

use allfold_report::format::{rate, rounded_bytes, short, time};
use allfold_report::records::{
    MeasuredComparison, RankMemory, Setup, SimulatedComparison, WaitingFor, awaited_most, hidden_us,
};

/// What both tables show of a strategy.
pub(super) struct Row<'a> {
    setup: &'a Setup,
    micro_batches: u64,
    batch: u64,
    step_us: f64,
    waiting_us: &'a [f64],
    waiting_for: &'a [WaitingFor],
    hidden_us: Vec<f64>,
    sent: &'a [u64],
    peaks: &'a [u64],
    memory: RankMemory,
    device_memory: Option<u64>,
    loss: Option<f64>,
    weights: Option<&'a str>,
}

impl Row<'_> {
    /// Whether a rank holds more than its device.
    pub fn exceeds(&self) -> bool {
        self.memory.exceeds(self.device_memory)
    }
}

macro_rules! row {
    ($record:ident) => {
        impl<'a> From<&'a $record> for Row<'a> {
            fn from(record: &'a $record) -> Row<'a> {
                Row {
                    setup: &record.setup,
                    micro_batches: record.micro_batches,
                    batch: record.batch,
                    step_us: record.step_us,
                    waiting_us: &record.waiting_us,
                    waiting_for: &record.waiting_for,
                    hidden_us: hidden_us(&record.communication_us, &record.waiting_us),
                    sent: &record.bytes_sent,
                    peaks: &record.peak_bytes,
                    memory: record.memory,
                    device_memory: record.device_memory,
                    loss: record.loss,
                    weights: record.weights_hash.as_deref(),
                }
            }
        }
    };
}

row!(MeasuredComparison);
row!(SimulatedComparison);

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

/// The table of these rows, with its header.
pub(super) fn table<'a>(rows: impl Iterator<Item = Row<'a>>) -> Vec<Vec<String>> {
    let names = [
        "strategy",
        "mesh",
        "micro-batches",
        "step",
        "samples/s",
        "waiting",
        "most for",
        "hidden",
        "sent by a rank",
        "peak of a rank",
        "params",
        "gradients",
        "optimiser",
        "activations",
        "loss",
        "weights",
    ];
    let mut table = vec![names.map(String::from).to_vec()];
    for row in rows {
        let RankMemory { params, gradients, optimiser, .. } = row.memory;
        let RankMemory { activations, saved_for_backward, activation_gradients, .. } = row.memory;
        let mesh: Vec<String> = row.setup.mesh.iter().map(|(axis, size)| format!("{axis} {size}")).collect();
        let mut cells = vec![
            row.setup.strategy.clone(),
            mesh.join(" x "),
            row.micro_batches.to_string(),
            time(row.step_us),
            rate(row.batch as f64 / (row.step_us / 1e6)),
            range(row.waiting_us, time),
            awaited_most(row.waiting_for, row.waiting_us),
            range(&row.hidden_us, time),
            range(row.sent, rounded_bytes),
            range(row.peaks, rounded_bytes) + if row.exceeds() { " *" } else { "" },
        ];
        let classes = [params, gradients, optimiser, activations + saved_for_backward + activation_gradients];
        cells.extend(classes.map(rounded_bytes));
        let loss = row.loss.map_or("-".into(), |loss| format!("{loss:.6}"));
        cells.extend([loss, row.weights.map_or("-".into(), short)]);
        table.push(cells);
    }
    table
}
