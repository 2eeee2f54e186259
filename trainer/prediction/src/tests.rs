mod pipeline;

use super::*;
use allfold_sim::Topology;
use allfold_sim::machines::GpuRates;
use allfold_trainer::workloads::{Precision, WORKLOADS, Workload};

fn step(
    name: &str,
    device: &str,
    precision: Precision,
    batch: usize,
    topology: &str,
    ranks: u32,
) -> StepPrediction {
    let (workload, device) = (Workload::named(name).unwrap(), GpuRates::named(device).unwrap());
    let (topology, plan) = (Topology::named(topology, ranks).unwrap(), Plan::default());
    let mut exchange = SimulatedExchange::new(&topology, topology.costs(), Sharing::default(), &plan);
    predict_workload(&WorkloadTraining::new(&workload, device, precision, batch), ranks, &mut exchange)
        .unwrap()
}

/// Each row: workload, device, precision, batch, samples per second as published.
#[test]
fn one_device_is_near_what_was_published() {
    // NVIDIA's DeepLearningExamples, PyTorch: one GPU of a DGX-1 and of a DGX A100.
    for (name, device, precision, batch, published) in [
        ("resnet50", "V100 SXM", Precision::F32, 128, 356.0),
        ("resnet50", "V100 SXM", Precision::Half, 256, 1_156.0),
        ("resnet50", "A100 SXM", Precision::Tf32, 256, 938.0),
        ("resnet50", "A100 SXM", Precision::Half, 256, 2_470.0),
    ] {
        let found = step(name, device, precision, batch, "switch", 1).throughput();
        let factor = (found / published).max(published / found);
        println!("{name} {device} {precision:?}: {found:.0} images/s, published {published}");
        assert!(factor < 1.25, "{name} {device} {precision:?}: {found:.0} images/s, published {published}");
    }
}

#[test]
fn no_step_is_faster_than_its_arithmetic_or_its_links() {
    for row in &WORKLOADS {
        let workload = Workload::named(row.name).unwrap();
        let device = GpuRates::named("A100 SXM").unwrap();
        for precision in [Precision::F32, Precision::Tf32, Precision::Half] {
            let mut last = 0.0;
            for ranks in [1u32, 2, 8, 16, 64] {
                let found = step(row.name, "A100 SXM", precision, 8, "dgx-a100", ranks);
                let flops = 3 * workload.forward_flops() * 8 * 9 / 10;
                let least = Picos((flops as f64 / precision.peak(device)) as u64);
                assert!(found.time.total() > least, "{} {precision:?}", row.name);
                // Both halves of an all-reduce through one port of 240 GB/s.
                let bytes =
                    workload.parameters() as f64 * 4.0 * 2.0 * f64::from(ranks - 1) / f64::from(ranks);
                assert!(found.communication.as_secs() >= bytes / 240e9 || ranks == 1, "{}", row.name);
                assert!(found.time.exposed.0 <= found.communication.0 + 1, "{}", row.name);
                assert!(found.throughput() > last, "{} {precision:?} {ranks}", row.name);
                last = found.throughput();
            }
        }
    }
}

#[test]
fn a_step_takes_longer_with_more_samples_ranks_or_synchronised_norms() {
    let workload = Workload::named("resnet50").unwrap();
    let device = GpuRates::named("A100 SXM").unwrap();
    let (topology, plan) = (Topology::named("dgx-a100", 64).unwrap(), Plan::default());
    let mut exchange = SimulatedExchange::new(&topology, topology.costs(), Sharing::default(), &plan);
    let base = WorkloadTraining::new(&workload, device, Precision::Half, 64);
    let mut total = |job: &WorkloadTraining| predict_workload(job, 64, &mut exchange).unwrap().time;
    let one = total(&base);
    assert!(total(&WorkloadTraining { batch: 65, ..base }).total() > one.total());
    assert!(total(&WorkloadTraining { sync_batch_norm: true, ..base }).exposed > one.exposed);
    assert!(total(&WorkloadTraining { accumulate: 4, ..base }).total() > one.total());
    let four = total(&WorkloadTraining { batch: 256, accumulate: 4, ..base });
    assert!(four.exposed <= one.exposed, "gradients are exchanged once in four batches");
    assert!(total(&WorkloadTraining { precision: Precision::F32, ..base }).total() > one.total());
    // A single bucket of all gradients hides no communication.
    let one_bucket =
        WorkloadTraining { caps: allfold_trainer::buckets::Caps { first: 1 << 40, rest: 1 << 40 }, ..base };
    assert!(total(&one_bucket).exposed > one.exposed);
    let terms = Overheads {
        device_variation: 0.02,
        jitter_us: 1000.0,
        contention: 0.1,
        input: Some(10_000.0),
        node: 8,
    };
    assert!(total(&WorkloadTraining { terms, ..base }).total() > one.total());
    // Eight ranks of a node that prepares 8,000 samples a second get 1,000 each.
    let starved = Overheads { input: Some(8_000.0), ..Overheads::NONE };
    let step = predict_workload(&WorkloadTraining { terms: starved, ..base }, 64, &mut exchange).unwrap();
    assert!((step.throughput() / 64_000.0 - 1.0).abs() < 1e-6, "{}", step.throughput());
}

#[test]
fn a_measured_device_takes_what_was_measured() {
    let workload = Workload::named("resnet50").unwrap();
    let device = GpuRates::named("V100").unwrap();
    let job = WorkloadTraining {
        measured: Some(356.0),
        ..WorkloadTraining::new(&workload, device, Precision::F32, 128)
    };
    let (topology, plan) = (Topology::named("dgx1-v100", 1).unwrap(), Plan::default());
    let mut exchange = SimulatedExchange::new(&topology, topology.costs(), Sharing::default(), &plan);
    let one = predict_workload(&job, 1, &mut exchange).unwrap();
    assert!((one.throughput() / 356.0 - 1.0).abs() < 1e-4, "{}", one.throughput());
}

#[test]
fn folding_changes_no_step_that_divides() {
    let workload = Workload::named("resnet18").unwrap();
    let device = GpuRates::named("A100 SXM").unwrap();
    let job = WorkloadTraining::new(&workload, device, Precision::Half, 32);
    let plan = Plan::default();
    let time = |ranks: u32| {
        let topology = Topology::named("dgx-a100", ranks).unwrap();
        let mut exchange = SimulatedExchange::new(&topology, topology.costs(), Sharing::default(), &plan);
        predict_workload(&job, ranks, &mut exchange).unwrap()
    };
    let (stepped, by_symmetry) = (time(1024), time(2048));
    assert!(
        by_symmetry.engines.iter().any(|engine| engine.contains("by_symmetry")),
        "{:?}",
        by_symmetry.engines
    );
    assert!(by_symmetry.time.total() > stepped.time.total());
    assert!(by_symmetry.time.total().0 < stepped.time.total().0 * 11 / 10);
}

#[test]
fn a_gpu_is_named_by_whole_words() {
    let name = |text: &str| GpuRates::named(text).map(|gpu| &*gpu.name).ok();
    assert_eq!((name("a100"), name("A100-SXM")), (Some("A100 SXM"), Some("A100 SXM")));
    // The form factors in which a GPU is made, and no others.
    assert_eq!((name("T4 PCIe"), name("h200-sxm")), (Some("T4"), Some("H200")));
    assert_eq!((name("a10"), name("l4")), (Some("A10"), Some("L4")));
    assert_eq!([name("T4 SXM"), name("H200 PCIe"), name("GH200 SXM"), name("V100 NVL")], [None; 4]);
    // GPUs that exist and are not listed.
    assert_eq!([name("a1"), name("l5"), name("a"), name("")], [None; 4]);
}
