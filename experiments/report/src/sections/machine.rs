//! The machine that the records come from, and when they were made.

use crate::format;
use crate::records::{MeasuringMachine, Records};

/// Date, processor, cores, memory, load and GPUs, one fact each; none without such a record. Of several records the first counts.
pub fn facts(records: &Records) -> Vec<String> {
    let Some(machine) = records.all::<MeasuringMachine>().into_iter().next() else { return Vec::new() };
    let mut facts = vec![machine.date, machine.processor, format::counted(machine.cores as usize, "core")];
    facts.extend(
        machine.memory_bytes.map(|bytes| format!("{:.1} GiB of memory", bytes as f64 / f64::from(1 << 30))),
    );
    facts.extend(machine.load.map(|load| format!("load {load:.2} at the start")));
    facts.push(if machine.gpus.is_empty() { "no GPU".into() } else { machine.gpus.join(", ") });
    facts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{Stamp, line};

    #[test]
    fn the_date_and_the_machine_are_facts() {
        let machine = MeasuringMachine {
            date: "2026-01-31 09:05 UTC".into(),
            processor: "A <CPU>".into(),
            cores: 1,
            memory_bytes: Some(3 << 29),
            load: Some(0.5),
            gpus: Vec::new(),
        };
        let stamp = Stamp { commit: String::new(), host: String::new(), seed: None, command: String::new() };
        let records = Records::parse(&line(&machine, &stamp).unwrap()).unwrap();
        let expected = [
            "2026-01-31 09:05 UTC",
            "A <CPU>",
            "1 core",
            "1.5 GiB of memory",
            "load 0.50 at the start",
            "no GPU",
        ];
        assert_eq!(facts(&records), expected);
        assert!(facts(&Records::default()).is_empty());
    }
}
