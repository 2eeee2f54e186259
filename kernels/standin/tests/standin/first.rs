//! A test from the probe to a kernel's result, with the rules that hold in between.

use crate::alone::{alone, ensure};
use allfold_cuda::{Gpu, Queue, launch, probe};
use allfold_kernels::{DType, ReduceOp};
use allfold_standin::{StandinOptions, standin_live, standin_rules};

#[test]
fn a_kernel_runs_from_probe_to_result() {
    alone("first::a_kernel_runs_from_probe_to_result", "", StandinOptions::default(), || {
        let probe = probe()?;
        ensure((probe.cuda, probe.nvrtc, probe.devices.len()) == ((13, 0), (13, 0), 1), &probe)?;
        let device = &probe.devices[0];
        ensure((device.arch, device.name.as_str()) == (90, "stand-in GPU"), device)?;
        let gpu = Gpu::open()?;
        ensure(gpu.identity(0) == device.uuid && device.uuid != [0; 16], device.uuid)?;
        let queue = Queue::new(gpu, 0)?;
        let (a, b) = (queue.upload(&[1.0f32, 2.0])?, queue.upload(&[10.0f32, 20.0])?);
        launch::reduce(&queue, DType::F32, ReduceOp::Sum, a.all(), b.all())?;
        let sum = queue.download::<f32>(a.all())?;
        ensure(sum == [11.0, 22.0], sum)?;
        drop((a, b, queue));
        let live = standin_live();
        // The staging ring of the destroyed stream is stored for the next stream, with the event after the ring's last copy.
        ensure((live.streams, live.memory, live.pinned, live.events) == (0, 0, 1, 1), live)
    });
}

#[test]
fn every_function_has_a_rule() {
    let rules = standin_rules();
    rules.iter().for_each(|(name, rule)| println!("{name:30} {rule}"));
    assert!(rules.len() > 50 && rules.iter().all(|(_, rule)| rule.len() > 3));
}
