//! The ranges of NVTX that a step on a GPU marks, counted by a stand-in for NVTX's library.
#![allow(missing_docs, clippy::unwrap_used)]

use allfold_collectives::World;
use allfold_standin::{Counter, install_ranges, standin_ranges};
use allfold_trainer::cuda::Replica;
use allfold_trainer::data::SampleForm;
use allfold_trainer::engine::StepInput;
use allfold_trainer::{Batch, Config, Error};
use std::process::Command;

const NAME: &str = "a_step_marks_its_phases_if_the_variable_is_set";

/// Trains three steps: launched, captured and replayed.
fn train() {
    let (config, form) = (Config::default(), SampleForm::new((1, 8, 8), 10));
    let n = config.training.batch;
    let batch = Batch::<f32> { x: vec![0.0; n * 64], labels: vec![0; n] };
    let machine = Counter::open();
    World::threads(1)
        .run(|comm| {
            let mut replica = Replica::new(&config, form, &comm, (machine.clone(), 0))?;
            for _ in 0..3 {
                replica.stage(&batch)?;
                let samples = replica.start(StepInput::default(), n as u64, false)?;
                replica.finish(samples)?;
            }
            Ok::<_, Error>(())
        })
        .unwrap();
}

/// Runs the test again in a process with the variable, which is read once.
fn again(value: &str) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", NAME, "--nocapture"]).env("ALLFOLD_NVTX", value);
    child.status().unwrap().success()
}

#[test]
fn a_step_marks_its_phases_if_the_variable_is_set() {
    let Ok(value) = std::env::var("ALLFOLD_NVTX") else {
        assert!(again("1") && again("0"));
        return;
    };
    install_ranges().unwrap();
    train();
    let ranges = standin_ranges();
    if value == "0" {
        assert!(ranges.is_empty(), "{ranges:?}");
        return;
    }
    let of = |name: &str| ranges.get(name).copied().unwrap_or(0);
    assert_eq!([of("step"), of("wait for the step"), of("step/optimiser")], [3, 3, 3], "{ranges:?}");
    // The second step is captured and then replayed, the third one is replayed.
    assert_eq!([of("step/loss"), of("step/optimiser/replay") + of("step/replay")], [2, 2], "{ranges:?}");
    assert!(of("step/forward") > 2 && of("step/backward") > 2, "{ranges:?}");
}
