//! From the probe to a kernel's result, and the rules that hold on the way.

use crate::alone::alone;
use allfold_kernels::cuda::standin::{StandinOptions, standin_live, standin_rules};
use allfold_kernels::cuda::{Gpu, Queue, launch, probe};
use allfold_kernels::{DType, ReduceOp};

#[test]
fn a_kernel_runs_from_probe_to_result() {
    alone("first::a_kernel_runs_from_probe_to_result", StandinOptions::default(), || {
        let probe = probe().unwrap();
        assert_eq!((probe.cuda, probe.nvrtc, probe.devices.len()), ((13, 0), (13, 0), 1));
        assert_eq!((probe.devices[0].arch, probe.devices[0].name.as_str()), (90, "stand-in GPU"));
        let queue = Queue::new(Gpu::open().unwrap(), 0).unwrap();
        let (a, b) = (queue.upload(&[1.0f32, 2.0]).unwrap(), queue.upload(&[10.0f32, 20.0]).unwrap());
        launch::reduce(&queue, DType::F32, ReduceOp::Sum, a.all(), b.all()).unwrap();
        assert_eq!(queue.download::<f32>(a.all()).unwrap(), [11.0, 22.0]);
        drop((a, b, queue));
        let live = standin_live();
        assert_eq!((live.streams, live.events, live.memory), (0, 0, 0), "{live:?}");
    });
}

#[test]
fn every_function_has_a_rule() {
    let rules = standin_rules();
    rules.iter().for_each(|(name, rule)| println!("{name:30} {rule}"));
    assert!(rules.len() > 50 && rules.iter().all(|(_, rule)| rule.len() > 3));
}
