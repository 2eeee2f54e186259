//! What the engine reports to an observer of its steps: spans of work and waiting, the peak of memory; and no step uses more memory
//! than earlier steps.

use crate::{ROWS, on};
use allfold_collectives::{Communicator, World};
use allfold_sim::{Picos, Topology};
use allfold_trainer::config::ElementType;
use allfold_trainer::timing::{StepSpan, StepWork};
use allfold_trainer::{MemoryUse, Observer, StepReport, train};

/// A step as it was reported to the observer.
struct Step {
    end: Picos,
    time: Picos,
    exposed: Picos,
    memory: MemoryUse,
    peak: MemoryUse,
    spans: Vec<StepSpan>,
}

struct Recorded<'a> {
    comm: &'a Communicator,
    steps: Vec<Step>,
}

impl Observer for Recorded<'_> {
    fn wants_spans(&self) -> bool {
        true
    }

    fn step(&mut self, report: &StepReport) {
        self.steps.push(Step {
            end: self.comm.now(),
            time: report.time.total(),
            exposed: report.time.exposed,
            memory: report.memory,
            peak: report.peak,
            spans: report.spans.to_vec(),
        });
    }
}

/// The steps of each of four ranks on virtual time.
fn recorded(name: &str, steps: u64) -> Vec<Vec<Step>> {
    let row = ROWS.iter().find(|row| row.name == name).unwrap();
    let base = row.gpt().with(|c| {
        c.precision.dtype = ElementType::F32;
        c.training.max_steps = steps;
        c.training.epochs = steps;
    });
    let config = on(row, &base, (row.data)(4).unwrap());
    let body = |comm: Communicator| {
        let mut recorded = Recorded { comm: &comm, steps: Vec::new() };
        train(&config, &comm, &mut recorded)?;
        Ok::<_, allfold_trainer::Error>(recorded.steps)
    };
    let topology = Topology::named("nodes8", 4).unwrap();
    World::sim(&topology).device(allfold_sim::Device::named("a100_f32").unwrap()).run(body).unwrap()
}

#[test]
fn later_steps_hold_no_more_than_earlier_ones() {
    for row in ROWS.iter().filter(|row| (row.data)(4).is_some()) {
        for (rank, steps) in recorded(row.name, 12).iter().enumerate() {
            let held = |step: usize| (steps[step].memory.total(), steps[step].peak.total());
            assert_eq!(held(5), held(11), "{}, rank {rank}: bytes after 6 and after 12 steps", row.name);
        }
    }
}

#[test]
fn spans_are_in_order_within_the_step_and_their_waiting_is_the_exposed_time() {
    for row in ROWS.iter().filter(|row| (row.data)(4).is_some()) {
        for (rank, steps) in recorded(row.name, 3).iter().enumerate() {
            let Step { end, time, exposed, peak, memory, spans, .. } = &steps[2];
            let begin = Picos(end.0 - time.0);
            let what = format!("{}, rank {rank}", row.name);
            assert!(spans.first().unwrap().start >= begin && spans.last().unwrap().end <= *end, "{what}");
            assert!(spans.windows(2).all(|pair| pair[0].end <= pair[1].start), "{what}: {spans:?}");
            let waited = spans.iter().filter(|span| span.work == StepWork::Waiting);
            assert_eq!(waited.map(|span| span.end.0 - span.start.0).sum::<u64>(), exposed.0, "{what}");
            let serves = row.strategy == "parameter_server" && rank < if row.keys.is_empty() { 1 } else { 2 };
            let computes = spans.iter().any(|span| span.work == StepWork::Forward);
            assert_eq!(computes, !serves, "{what}");
            assert!(peak.total() >= memory.total(), "{what}");
        }
    }
}
