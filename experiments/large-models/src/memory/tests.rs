use super::*;
use crate::catalog;
use crate::cluster::Cluster;
use crate::fixtures;
use crate::job::{Details, OperandPrecision};
use crate::layout::{Layout, Sharding};
use crate::model::LargeModel;
use crate::rows::TrainingRow;

/// The memory of every stage of the pipeline, the first one first.
fn stages(job: &TrainingJob) -> Vec<JobMemory> {
    let recompute = memory(job).recompute.unwrap_or(Recompute::Full);
    (0..job.layout.pipeline.max(1)).map(|stage| of_stage(job, stage, recompute)).collect()
}

/// Published rows of training that are not doubted.
fn published() -> Vec<TrainingRow> {
    let rows = fixtures::published().into_iter().flat_map(|file| file.rows);
    rows.filter(|row| !row.suspect).collect()
}

fn job(model: &str, layout: Layout) -> TrainingJob {
    TrainingJob {
        model: LargeModel::named(model).unwrap().clone(),
        layout,
        cluster: Cluster::of("H100", 8, None).unwrap(),
        precision: OperandPrecision::Bf16,
        framework: Framework::MegatronCore,
        lora: false,
        packed: false,
        release: None,
        details: Details::default(),
    }
}

fn layout(gpus: u32, tensor: u32, pipeline: u32) -> Layout {
    Layout { tensor, pipeline, global_batch: 8 * gpus / tensor / pipeline, ..fixtures::layout(gpus) }
}

fn close(value: f64, right: f64, share: f64) {
    assert!((value / right - 1.0).abs() <= share, "{value:e} is not {right:e}");
}

#[test]
fn state_of_a_small_model_is_as_counted_by_hand() {
    // GPT 7.5B: 36 blocks of 12 x 4096^2 and an embedding of 51200 x 4096, tied.
    let blocks = 36.0 * 12.0 * 4096.0 * 4096.0;
    let embedding = 51200.0 * 4096.0;
    let all = blocks + embedding;
    let state = |sharding| {
        let used = memory(&job("gpt 7.5b", Layout { sharding, ..layout(8, 1, 1) }));
        [used.parameters, used.gradients, used.optimizer]
    };
    assert_eq!(state(Sharding::None), [2.0 * all, 4.0 * all, 12.0 * all]);
    assert_eq!(state(Sharding::Zero1), [2.0 * all, 4.0 * all, 12.0 * all / 8.0]);
    assert_eq!(state(Sharding::Zero2), [2.0 * all, 4.0 * all / 8.0, 12.0 * all / 8.0]);
    assert_eq!(state(Sharding::Zero3), [2.0 * all / 8.0, 4.0 * all / 8.0, 12.0 * all / 8.0]);
    let fsdp = TrainingJob {
        framework: Framework::Torchtitan,
        ..job("gpt 7.5b", Layout { sharding: Sharding::Fsdp, ..layout(8, 1, 1) })
    };
    assert_eq!(memory(&fsdp).parameters, 4.0 * all / 8.0);
    // Two stages of two tensor-parallel ranks: the tied embedding is on both.
    for used in stages(&job("gpt 7.5b", layout(8, 2, 2))) {
        assert_eq!(used.parameters, 2.0 * (blocks / 2.0 + embedding) / 2.0, "stage {}", used.stage);
    }
    let lora = TrainingJob { lora: true, ..job("gpt 7.5b", layout(8, 1, 1)) };
    assert!(memory(&lora).optimizer < 0.01 * 12.0 * all && memory(&lora).parameters == 2.0 * all);
}

#[test]
fn activations_are_those_of_korthikanti_2022() {
    // 175B, tensor 8, 2048 tokens, 96 heads: s b h (10 + 24/t + 5 a s / (h t)); with sequence parallelism (34 + 5 a s / h) / t;
    // selective recomputation takes the scores away (tables 2 and 4).
    let (s, h, a, t) = (2048.0, 12288.0, 96.0, 8.0);
    let kept = |sequence_parallel, recompute| {
        let job = TrainingJob {
            framework: Framework::Megatron2022,
            ..job("gpt-3 175b", Layout { sequence_parallel, ..layout(64, 8, 8) })
        };
        let [attention, _, dense, _] = bytes_per_token(&job, recompute);
        attention + dense
    };
    let scores = 5.0 * a * s / h;
    close(kept(false, Recompute::None), h * (10.0 + 24.0 / t + scores / t), 1e-9);
    close(kept(true, Recompute::None), h * (34.0 + scores) / t, 1e-9);
    close(kept(true, Recompute::Selective), h * 34.0 / t, 0.02);
    assert_eq!(kept(false, Recompute::Full), 2.0 * h);
    // Figure 1: 12.35 GiB with both, on the first of 8 stages with 3 chunks; parameters and optimizer 45.56 GiB.
    let both = TrainingJob {
        framework: Framework::Megatron2022,
        ..job(
            "gpt-3 175b",
            Layout {
                sequence_parallel: true,
                recompute: Recompute::Selective,
                chunks: 3,
                global_batch: 64,
                ..layout(64, 8, 8)
            },
        )
    };
    let middle = stages(&both)[1];
    close(middle.parameters + middle.gradients + middle.optimizer, 45.56 * 1.073_741_824e9, 0.02);
    close(stages(&both)[0].activations, 12.35 * 1.073_741_824e9, 0.05);
}

#[test]
fn memory_falls_and_grows_as_it_must() {
    let total = |layout| memory(&job("llama 3 8b", layout)).total();
    let base = || layout(64, 1, 1);
    let by_recompute = [Recompute::None, Recompute::Selective, Recompute::Full]
        .map(|recompute| total(Layout { recompute, ..base() }));
    assert!(by_recompute[0] >= by_recompute[1] && by_recompute[1] > by_recompute[2]);
    let sharding = [Sharding::None, Sharding::Zero1, Sharding::Zero2]
        .map(|sharding| total(Layout { sharding, ..base() }));
    assert!(sharding[0] > sharding[1] && sharding[1] > sharding[2]);
    for tensor in [1, 2, 4] {
        assert!(total(layout(64, tensor, 1)) > total(layout(64, 2 * tensor, 1)), "{tensor}");
    }
    for micro_batch in 1..6 {
        let of = |micro_batch| total(Layout { micro_batch, ..base() });
        assert!(of(micro_batch) < of(micro_batch + 1));
    }
    assert!(total(Layout { context: 4, ..base() }) < total(base()));
    assert!(total(Layout { chunks: 4, ..layout(64, 2, 4) }) > total(layout(64, 2, 4)));
    let used = memory(&job("llama 3 8b", base()));
    assert!(used.allocated() < used.reserved() && used.reserved() < used.total());
    let odds = [40e9, 80e9, 120e9, 160e9].map(|capacity| used.fits(capacity));
    assert!(odds.is_sorted() && odds[0] < 0.01 && odds[3] > 0.5, "{odds:?}");
    // What is not stated is the least that fits.
    let unknown = |capacity: f64| {
        let mut job = job(
            "llama 3 8b",
            Layout { recompute: Recompute::Unknown, sharding: Sharding::Zero1, ..layout(64, 1, 1) },
        );
        (job.layout.sequence, job.cluster.capacity) = (8192, capacity);
        memory(&job).recompute
    };
    assert_eq!(unknown(1e12), Some(Recompute::None));
    assert_eq!(unknown(60e9), Some(Recompute::Full));
}

#[test]
fn every_model_of_the_catalog_has_finite_memory() {
    for row in catalog::models() {
        for (tensor, expert, precision) in
            [(1, 1, OperandPrecision::Bf16), (2, 4, OperandPrecision::Fp8), (4, 1, OperandPrecision::Nvfp4)]
        {
            let mut job = job(&row.model.name, Layout { expert, ..layout(32, tensor, 2) });
            job.precision = precision;
            for used in stages(&job) {
                let classes = [used.parameters, used.gradients, used.optimizer, used.activations, used.slack];
                assert!(classes.iter().all(|bytes| bytes.is_finite() && *bytes > 0.0), "{}", row.model.name);
            }
        }
    }
}

#[test]
fn published_memory_is_predicted() {
    let rows = published();
    if rows.is_empty() {
        return;
    }
    let of = |part: fn(&TrainingRow) -> bool| {
        let measured = rows.iter().filter(|row| part(row)).filter_map(|row| Some((row, row.memory_gb?)));
        let mut errors: Vec<f64> =
            measured.map(|(row, gb)| (reported(&row.job, row.meter) / 1e9 / gb - 1.0).abs()).collect();
        errors.sort_by(f64::total_cmp);
        let at = |share: usize| errors[errors.len() * share / 100];
        println!(
            "{} rows: median {:.1} %, 90 % within {:.1} %",
            errors.len(),
            100.0 * at(50),
            100.0 * at(90)
        );
        (at(50), at(90))
    };
    let all = of(|_| true);
    assert!(all.0 <= 0.035 && all.1 <= 0.105, "{all:?}");
    let allocated = of(|row| row.meter == MemoryMeter::Allocated);
    assert!(allocated.0 <= 0.022 && allocated.1 <= 0.05, "{allocated:?}");
    let fits = |row: &&TrainingRow| memory(&row.job).fits(row.job.cluster.capacity) >= 0.5;
    let (failed, ran): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.out_of_memory == Some(true));
    let found = failed.iter().filter(|row| !fits(row)).count();
    let refused = ran.iter().filter(|row| !fits(row)).count();
    println!("out of memory: {found} of {} found; {refused} of {} others refused", failed.len(), ran.len());
    assert!(refused * 100 <= ran.len() * 3, "{refused} of {}", ran.len());
    assert!(found * 3 >= 2 * failed.len(), "{found} of {}", failed.len());
}
