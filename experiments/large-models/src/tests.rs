//! Steps by hand-computed values, and what must hold of every step.

mod physics;

use crate::cluster::Cluster;
use crate::exchanges::{self, DataExchange};
use crate::fit::{StepSample, fit};
use crate::fixtures::layout;
use crate::framework::Traits;
use crate::interval::{KnownStep, StepPredictor};
use crate::job::{Details, Framework, OperandPrecision, TrainingJob};
use crate::kernels::{Product, Speeds};
use crate::layout::{Recompute, Sharding};
use crate::model::{Hybrid, LargeModel, RoutedExperts};
use crate::parameters::{Physical, STEP_PARAMETERS, StepParameterRow, StepParameters};
use crate::stage::Stage;
use crate::step::step;

fn model() -> LargeModel {
    LargeModel {
        name: "test".into(),
        layers: 8,
        hidden: 4096,
        ffn: 16384,
        gated: false,
        heads: 32,
        kv_heads: None,
        head_dim: None,
        vocab: 32000,
        tied: true,
        latent: None,
        experts: None,
        hybrid: None,
        extra_predictions: 0,
        stated_parameters: None,
    }
}

/// One A100 with a sequence of 2,048 tokens.
fn job() -> TrainingJob {
    TrainingJob {
        model: model(),
        layout: layout(1),
        cluster: Cluster::of("A100", 8, Some(25e9)).unwrap(),
        precision: OperandPrecision::Bf16,
        framework: Framework::MegatronCore,
        lora: false,
        packed: false,
        release: None,
        details: Details::default(),
    }
}

fn changed(change: impl Fn(&mut TrainingJob)) -> TrainingJob {
    let mut job = job();
    change(&mut job);
    job
}

/// Every parameter is 1, but these.
fn ones(but: &[(Physical, f64)]) -> StepParameters {
    let mut logs = vec![0.0; STEP_PARAMETERS];
    but.iter().for_each(|(parameter, value)| logs[*parameter as usize] = value.ln());
    StepParameters::from_logs(&logs)
}

fn close(found: f64, right: f64) {
    assert!((found / right - 1.0).abs() < 1e-3, "{found:e}, by hand {right:e}");
}

#[test]
fn a_product_takes_its_arithmetic_or_its_bytes() {
    // With one multiprocessor all waves of tiles are whole.
    let (job, p) = (changed(|job| job.cluster.cores = 1), ones(&[(Physical::ProductsAmpere, 0.8)]));
    let speeds = Speeds::of(&job, &Traits::of_job(&job), &p);
    let product = |m, n, k| speeds.product(&Product { m, n, k, times: 3.0, grouped: false }, &p);
    close(product(8192.0, 4096.0, 4096.0), 3.0 * 2.0 * 8192.0 * 4096.0 * 4096.0 / (0.8 * 312e12));
    close(product(16.0, 64.0, 65536.0), 3.0 * 2.0 * (80.0 * 65536.0 + 16.0 * 64.0) / 2039e9);
    // 1,800 is no multiple of 64.
    let slow = ones(&[(Physical::ProductsAmpere, 0.8), (Physical::Misaligned, 0.5)]);
    let slow =
        speeds.product(&Product { m: 8192.0, n: 1800.0, k: 4096.0, times: 1.0, grouped: false }, &slow);
    close(slow, 2.0 * 2.0 * 8192.0 * 1800.0 * 4096.0 / (0.8 * 312e12));
}

#[test]
fn attention_takes_half_of_all_pairs_fused_and_its_scores_through_memory_otherwise() {
    let p = ones(&[(Physical::AttentionAmpere, 0.5), (Physical::ScorePasses, 10.0)]);
    let of = |job: &TrainingJob| {
        let traits = Traits::of_job(job);
        let [flops, scores] = Stage::of(job).attention_work(job);
        Speeds::of(job, &traits, &p).attention(flops, scores, &traits, &p)
    };
    // 8 layers x 32 heads x 2,048 x 2,048 pairs, two products of depth 128.
    let pairs = 8.0 * 32.0 * 2048.0 * 2048.0;
    let [forward, backward] = of(&job());
    close(forward, pairs / 2.0 * 4.0 * 128.0 / (0.5 * 312e12));
    close(backward, 2.5 * forward);
    let [forward, _] = of(&changed(|job| job.framework = Framework::Megatron2021));
    close(forward, pairs * 4.0 * 128.0 / 312e12 + 0.4 * 10.0 * pairs * 2.0 / 2039e9);
}

#[test]
fn exchanges_take_their_bytes_over_the_links_or_the_nics_of_their_group() {
    let tiny = ones(&[(Physical::Latency, 1e-12)]);
    let of = |job: &TrainingJob| exchanges::of_micro_batch(job, &Stage::of(job), &Traits::of_job(job), &tiny);
    let tensor = |ranks: u32| changed(|job| (job.layout.gpus, job.layout.tensor) = (ranks, ranks));
    // Two all-reduces a layer of 2,048 x 4,096 16-bit activations.
    let bytes = 8.0 * 2.0 * 2048.0 * 4096.0 * 2.0;
    close(of(&tensor(4))[0], bytes * 2.0 * 0.75 / 240e9);
    // A group over two nodes uses the NICs of its eight members on a node.
    close(of(&tensor(16))[0], bytes * 2.0 * (15.0 / 16.0) / (8.0 * 25e9));
    let context = changed(|job| (job.layout.gpus, job.layout.context) = (2, 2));
    close(of(&context)[1], 8.0 * 1024.0 * 2.0 * 4096.0 * 2.0 / 240e9);
    // Two of eight GPUs of a mesh have one link of seven between them.
    let mesh = changed(|job| {
        (job.layout.gpus, job.layout.tensor) = (2, 2);
        job.cluster = Cluster::of("MI300X", 8, None).unwrap();
    });
    close(of(&mesh)[0], bytes / 64e9);
    let data = changed(|job| (job.layout.gpus, job.layout.global_batch) = (16, 16));
    let exchange = DataExchange::of(&data, &Stage::of(&data), &Traits::of_job(&data), &tiny);
    // All-reduce of 4-byte gradients between 16 ranks.
    close(exchange.step, 15.0 / 16.0 * 8.0 * data.model.parameters().total() / (8.0 * 25e9));
}

#[test]
fn what_a_run_states_goes_before_its_frameworks_usual_way() {
    let spread = |framework, sharding| {
        changed(|job| {
            (job.framework, job.layout.sharding) = (framework, sharding);
            (job.layout.gpus, job.layout.global_batch) = (64, 64);
        })
    };
    let p = StepParameters::published();
    let bridge = spread(Framework::MegatronBridge, Sharding::Zero1);
    let stated = |details: Details| step(&TrainingJob { details, ..bridge.clone() }, &p);
    let usual = stated(Details::default());
    assert!(stated(Details { no_overlap: true, ..Details::default() }).data > 2.0 * usual.data);
    assert!(stated(Details { pure_16_bit: true, ..Details::default() }).optimizer < usual.optimizer);
    assert!(stated(Details { unfused_attention: true, ..Details::default() }).attention > usual.attention);
    // DeepSpeed's partitions cross one NIC of a node, FSDP's all of them.
    let [one, all] = [Framework::MegatronDeepspeed, Framework::TorchtitanEager].map(|framework| {
        let job = spread(framework, Sharding::Zero3);
        DataExchange::of(&job, &Stage::of(&job), &Traits::of_job(&job), &p).gather
    });
    assert!(one > 4.0 * all, "{one} {all}");
}

#[test]
fn what_is_known_ahead_and_what_is_fused_takes_time_from_experts() {
    let with = |release: Option<u32>, token_drop: bool| {
        let job = changed(|job| {
            job.cluster = Cluster::of("B200", 8, None).unwrap();
            (job.framework, job.precision) = (Framework::MegatronBridge, OperandPrecision::Mxfp8);
            (job.release, job.details.token_drop) = (release, token_drop);
            (job.layout.gpus, job.layout.expert, job.layout.global_batch) = (8, 8, 64);
            let small = RoutedExperts { count: 64, top_k: 4, ffn: 512, ..of_jobs() };
            job.model.experts = Some(small);
        });
        step(&job, &StepParameters::published())
    };
    let [dropless, early] = [None, Some(2026 * 12 + 5)].map(|release| with(release, false));
    assert_eq!(dropless, early);
    // The host waits for the numbers of tokens, unless a capacity fixes them.
    let dropped = with(None, true);
    assert!(dropless.launches > 0.0 && dropped.launches < dropless.launches);
    assert_eq!(dropped.products, dropless.products);
    let fused = with(Some(2026 * 12 + 6), false);
    assert_eq!(fused.launches, 0.0);
    assert!(fused.products < dropless.products && fused.casts < dropless.casts);
    assert!(fused.elements < dropless.elements);
}

#[test]
fn a_pipeline_waits_for_its_other_stages_once_a_step() {
    let pipeline = |micro_batches: u32, chunks: u32| {
        let job = changed(|job| {
            (job.layout.gpus, job.layout.pipeline, job.layout.chunks) = (4, 4, chunks);
            job.layout.global_batch = micro_batches;
            job.cluster.nic = 1e13;
        });
        step(&job, &ones(&[(Physical::Fixed, 1e-9), (Physical::HostDense, 1e-9), (Physical::Uneven, 1e-9)]))
    };
    let (two, many, chunked) = (pipeline(2, 1), pipeline(8, 1), pipeline(8, 2));
    let worked = two.total() - two.bubble - two.messages - two.optimizer;
    let worked = (worked - two.stragglers) / 2.0;
    close(two.bubble, 3.0 * worked);
    close(many.bubble, two.bubble);
    close(chunked.bubble, two.bubble / 2.0);
    close(many.products, 4.0 * two.products);
}

#[test]
fn from_the_second_micro_batch_on_gradients_are_added_to_those_before() {
    let added = |change: &dyn Fn(&mut TrainingJob)| {
        let elements = |batch: u32| {
            let job = changed(|job| {
                change(job);
                job.layout.global_batch = batch;
            });
            step(&job, &ones(&[])).elements / f64::from(batch)
        };
        (elements(4) - elements(1)) * 2039e9
    };
    // 8 blocks of 12 x 4,096^2 and an embedding; 10 bytes by a kernel of its own, 3 inside of the product.
    let parameters = 8.0 * 12.0 * 4096.0 * 4096.0 + 32000.0 * 4096.0;
    close(added(&|job| job.framework = Framework::Megatron2021), 10.0 * parameters);
    close(added(&|_| ()), 3.0 * parameters);
    assert!(added(&|job| job.lora = true).abs() < 1e-3 * parameters);
}

#[test]
fn a_mixer_takes_its_scan_and_the_host_launches_each_block_of_a_hybrid_once() {
    let hybrid = |attention: u32, mamba: u32, ffn: u32| {
        changed(|job| job.model.hybrid = Some(Hybrid { attention, mamba, ffn }))
    };
    let work = |job: &TrainingJob| Stage::of(job).attention_work(job)[0];
    // As attention of 2,048 tokens with heads twice as wide as the model: here the tokens of a sequence.
    close(work(&hybrid(0, 1, 7)), 2.0 * work(&hybrid(1, 0, 7)));
    // The host counts for all of the time: 8 blocks of 16 that a transformer of 8 layers has.
    let host = |job: &TrainingJob| step(job, &ones(&[(Physical::HostDense, 1e3)])).launches;
    close(host(&hybrid(1, 3, 4)), host(&job()) / 2.0);
}

#[test]
fn more_ranks_wait_longer_for_the_slowest() {
    let slowest = |gpus: u32| {
        let job = changed(|job| (job.layout.gpus, job.layout.global_batch) = (gpus, gpus));
        let found = step(&job, &StepParameters::published());
        found.stragglers / (found.total() - found.stragglers) / 0.012
    };
    assert_eq!(slowest(1), 0.0);
    // The expected largest of 8, 64 and 1,024 normal values: 1.42, 2.34, 3.22.
    for (gpus, right) in [(8, 1.42), (64, 2.34), (1024, 3.22)] {
        assert!((slowest(gpus) / right - 1.0).abs() < 0.1, "{gpus}: {}", slowest(gpus));
    }
}

#[test]
fn tiles_of_a_product_pass_in_whole_waves() {
    let (job, p) = (job(), StepParameters::published());
    let speeds = Speeds::of(&job, &Traits::of_job(&job), &p);
    let waves = |m: f64, n: f64| speeds.waves(&Product { m, n, k: 4096.0, times: 1.0, grouped: false });
    // A100: 108 multiprocessors; 9 x 12 tiles are one wave.
    close(waves(9.0 * 128.0, 12.0 * 256.0), 1.0);
    close(waves(9.0 * 128.0, 6.0 * 256.0).powi(2), 0.95);
    // 256 large tiles would be 2.4 waves of 3, 512 small ones are 4.7 of 5.
    close(waves(2048.0, 4096.0).powi(2), 0.95 * 512.0 / 540.0);
}

#[test]
fn heads_that_are_no_multiples_of_16_bytes_leave_the_tensor_cores() {
    let attention = |heads: u32| {
        let job = changed(|job| {
            job.framework = Framework::Megatron2021;
            (job.model.hidden, job.model.heads, job.model.kv_heads) = (4320, heads, None);
        });
        let p = ones(&[(Physical::ScorePasses, 1e-9)]);
        step(&job, &p).attention
    };
    // Widths of 72, 108 and, with heads that nobody stated, 4320 / 34.
    let [fits, misfits, unstated] = [60, 40, 34].map(attention);
    close(misfits / fits, 312.0 / 19.5);
    close(unstated / fits, 1.0);
}

#[test]
fn one_gpu_and_one_product_heavy_layer_is_the_roofline() {
    let p = ones(&[(Physical::Fixed, 1e-9), (Physical::HostDense, 1e-9)]);
    // With one multiprocessor all waves of tiles are whole.
    let found = step(&changed(|job| job.cluster.cores = 1), &p);
    let tokens = 2048.0;
    let blocks = job().model.parameters().dense;
    assert!((found.products / (6.0 * tokens * blocks / 312e12) - 1.0).abs() < 0.02, "{found:?}");
    assert!((found.head / (6.0 * tokens * 4096.0 * 32000.0 / 312e12) - 1.0).abs() < 0.6, "{found:?}");
    let none = [found.casts, found.recomputation, found.uneven, found.tensor, found.context, found.experts];
    assert_eq!(none, [0.0; 6]);
    assert_eq!([found.sharding, found.bubble, found.messages, found.data], [0.0; 4]);
}

fn of_jobs() -> RoutedExperts {
    let (count, top_k, ffn) = (32, 4, 2048);
    RoutedExperts { count, top_k, ffn, shared_ffn: 0, dense_layers: 0, input: None, most_nodes: None }
}

/// Jobs of every kind.
fn jobs() -> Vec<TrainingJob> {
    let mut jobs = Vec::new();
    for framework in [
        Framework::Megatron2021,
        Framework::MegatronDeepspeed,
        Framework::MegatronBridge,
        Framework::Foundry,
        Framework::Torchtitan,
        Framework::Xla,
    ] {
        for gpu in ["V100", "A100 PCIe", "H100", "H800", "GB200", "MI300X"] {
            for sharding in [Sharding::None, Sharding::Zero1, Sharding::Fsdp, Sharding::Hsdp] {
                for experts in [false, true] {
                    jobs.push(changed(|job| {
                        job.framework = framework;
                        job.cluster = Cluster::of(gpu, 8, None).unwrap();
                        let layout = &mut job.layout;
                        (layout.gpus, layout.tensor, layout.pipeline, layout.sharding) = (64, 2, 2, sharding);
                        (layout.global_batch, layout.recompute) = (128, Recompute::Selective);
                        if experts {
                            layout.expert = 16;
                            job.model.experts = Some(of_jobs());
                        }
                    }));
                }
            }
        }
    }
    jobs
}

#[test]
fn a_faster_machine_is_never_slower_and_the_parts_are_the_step() {
    let p = StepParameters::published();
    for job in jobs() {
        let found = step(&job, &p);
        assert!(found.parts().iter().all(|part| part.is_finite() && *part >= 0.0), "{job:?}: {found:?}");
        let peak = 6.0 * job.layout.tokens() * job.model.parameters().dense / 64.0 / job.cluster.flops[0];
        assert!(found.total() > peak, "{job:?}");
        type Faster = fn(&mut Cluster);
        let faster: [Faster; 4] = [
            |cluster| cluster.flops.iter_mut().for_each(|flops| *flops *= 1.5),
            |cluster| cluster.memory *= 1.5,
            |cluster| cluster.links *= 1.5,
            |cluster| cluster.nic *= 1.5,
        ];
        for (number, change) in faster.iter().enumerate() {
            let mut other = job.clone();
            change(&mut other.cluster);
            assert!(step(&other, &p).total() <= found.total() * (1.0 + 1e-9), "{number}: {job:?}");
        }
    }
}

#[test]
fn known_rows_move_what_is_like_them_and_narrow_its_interval() {
    let predictor = StepPredictor::published();
    let near = changed(|job| job.layout.global_batch = 2);
    let far = changed(|job| {
        job.model.name = "another".into();
        job.framework = Framework::Foundry;
        (job.layout.gpus, job.layout.sharding, job.layout.global_batch) = (64, Sharding::Fsdp, 64);
    });
    let plain = [&near, &far].map(|job| predictor.predict(job));
    let measured = predictor.predict(&job()).seconds * 1.2;
    let knowing = predictor.knowing(&[KnownStep { job: &job(), seconds: measured }]);
    let moved = [&near, &far].map(|job| knowing.predict(job));
    let by = |at: usize| moved[at].seconds / plain[at].seconds;
    assert!(by(0) > by(1) && by(1) > 1.0 && by(0) < 1.2, "{} {}", by(0), by(1));
    assert!(moved[0].deviation < plain[0].deviation && moved[1].deviation <= plain[1].deviation);
    for predicted in plain {
        let [low, high] = predicted.within80;
        assert!(low < predicted.seconds && predicted.seconds < high);
        assert!(predicted.within95[0] < low && high < predicted.within95[1]);
    }
    // A row that is five times as slow as predicted is odd: it tells less than one 1.2 times as slow. Where four rows agree, none is odd.
    let five = |count: usize| {
        let seconds = 5.0 * predictor.predict(&job()).seconds;
        let knowing = predictor.knowing(&vec![KnownStep { job: &job(), seconds }; count]);
        knowing.predict(&near).seconds / plain[0].seconds
    };
    assert!(five(1) < by(0) && five(4) > 2.0, "{} {}", five(1), five(4));
    // Twice the tokens of a step on the same GPU at less than twice the time; each is as good as itself.
    assert!(predictor.odds(&near, &job()) > 0.5);
    assert!((predictor.odds(&near, &far) + predictor.odds(&far, &near) - 1.0).abs() < 1e-6);
    assert!((predictor.odds(&near, &near) - 0.5).abs() < 1e-6);
}

#[test]
fn a_gpu_or_framework_that_the_fit_has_not_seen_has_a_wider_interval() {
    let predictor = StepPredictor::published();
    let amd = changed(|job| job.cluster = Cluster::of("MI300X", 8, None).unwrap());
    assert!(predictor.predict(&amd).deviation > predictor.predict(&job()).deviation);
}

#[test]
fn a_fit_finds_what_its_rows_were_made_with_and_gives_a_systems_own_to_its_offset() {
    let truth = StepParameters::published();
    let mut logs = truth.logs();
    logs[Physical::ProductsHopper as usize] += 0.1;
    let changed = StepParameters::from_logs(&logs);
    let jobs: Vec<TrainingJob> = jobs()
        .into_iter()
        .filter(|job| job.cluster.gpu == "H100 SXM" && job.model.experts.is_none())
        .collect();
    let samples: Vec<StepSample<'_>> = jobs
        .iter()
        .enumerate()
        .flat_map(|(number, job)| {
            let seconds = step(job, &changed).total();
            let slow = if number % 2 == 0 { 1.05 } else { 1.0 };
            let system = if number % 2 == 0 { "slow" } else { "fast" };
            std::iter::repeat_n(StepSample { job, seconds: seconds * slow, system, noisy: false }, 4)
        })
        .collect();
    let found = fit(&samples, StepParameterRow::published(), &truth);
    let (hopper, volta) = (Physical::ProductsHopper, Physical::ProductsVolta);
    assert!(found.parameters.at(hopper) > 1.03 * truth.at(hopper), "{}", found.parameters.at(hopper));
    let offsets = found.offsets["slow"] - found.offsets["fast"];
    assert!((offsets - 1.05f64.ln()).abs() < 0.02, "{offsets}");
    // No row tells anything of V100: the prior stays.
    let prior = &StepParameterRow::published()[volta as usize];
    assert!((found.parameters.at(volta) / prior.prior - 1.0).abs() < 1e-6);
    assert!((found.std_devs[volta as usize] / prior.std_dev - 1.0).abs() < 1e-3);
}
