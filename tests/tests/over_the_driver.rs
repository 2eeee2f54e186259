//! Every algorithm conforms on the GPUs of the stand-in for the CUDA driver: through the driver's calls, without a GPU. The
//! stand-in's streams are threads that wait for random times.
//!
//! ```text
//! parent   1, 2 and 4 GPUs --- a process each, since a process has one driver
//! child    Gpu::open -> conforms_on -> checks which objects remain, and that no call was one that a driver leaves undefined
//! ```
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_collectives::registry::ALGORITHMS;
use allfold_cuda::Gpu;
use allfold_gpu::testing::conforms_on;
use allfold_standin::{StandinOptions, install, standin_live, standin_violations};
use std::process::{Command, Stdio};
use std::time::Duration;

const NAME: &str = "ALLFOLD_STANDIN_TEST";

fn child(devices: usize) {
    let delay = Duration::from_micros(20);
    install(StandinOptions { devices, delay, ..StandinOptions::default() }).unwrap();
    let gpu = Gpu::open().unwrap();
    conforms_on(&gpu, ALGORITHMS).unwrap();
    drop(gpu);
    let live = standin_live();
    println!(
        "{} algorithms on {devices} GPUs of the stand-in conform; alive after them: {live:?}",
        ALGORITHMS.len()
    );
    assert_eq!((live.contexts, live.streams, live.graphs, live.memory), (devices, 0, 0, 0), "{live:?}");
    // Pinned ring buffers for small copies are kept for the next stream, with up to four events each.
    assert!(live.events <= 4 * live.pinned, "{live:?}");
    assert_eq!(standin_violations(), [""; 0]);
}

#[test]
fn every_algorithm_conforms_over_the_drivers_calls() {
    if let Ok(devices) = std::env::var(NAME) {
        return child(devices.parse().unwrap());
    }
    let begin = |devices: u32| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["every_algorithm_conforms_over_the_drivers_calls", "--exact", "--nocapture"]);
        command.env(NAME, devices.to_string()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for (devices, child) in [1, 2, 4].map(|devices| (devices, begin(devices))) {
        let output = child.wait_with_output().unwrap();
        let text =
            [output.stdout, output.stderr].map(|part| String::from_utf8_lossy(&part).into_owned()).concat();
        assert!(output.status.success() && text.contains("conform"), "{devices} GPUs\n{text}");
        text.lines().filter(|line| line.contains("conform;")).for_each(|line| println!("{line}"));
    }
}
