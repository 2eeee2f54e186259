//! Scaling curves of runs on two stand-ins for GPUs, in a test file of their own: stand-ins are installed for a whole process.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_cli::error::CommandError;
use allfold_experiments::scaling::points::Scaling;
use allfold_experiments::training::launch_mode::LaunchMode;
use allfold_sim::Device;
use allfold_standin::{StandinOptions, install};
use allfold_trainer::Config;

fn on_gpus() -> Config {
    Config::default().with(|c| c.device = "cuda".into())
}

fn refused<T>(outcome: Result<T, CommandError>) -> String {
    match outcome {
        Err(CommandError::Usage(said)) => said,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("not refused"),
    }
}

#[test]
fn runs_on_gpus_are_told_from_threads_and_never_share_or_pretend() {
    install(StandinOptions { devices: 2, ..StandinOptions::default() }).unwrap();
    let device = LaunchMode::Threads(2).device(&on_gpus()).unwrap();
    assert_ne!(device, "cpu", "a run on GPUs is recorded as one on the CPU");
    assert_eq!(LaunchMode::Threads(2).device(&Config::default()).unwrap(), "cpu");

    let scaling = Scaling::new(on_gpus(), "switch".into(), Device::default());
    assert_eq!(scaling.gpus().unwrap(), Some(2));
    let said = refused(scaling.measured(3));
    assert!(said.contains("3 ranks need a GPU each, and this machine has 2 GPUs"), "{said}");
    let said = refused(scaling.on_virtual_clock(1));
    assert!(said.contains("`device` is cuda") && said.contains("--sim-ranks"), "{said}");
}
