use super::rank::LEAST_ODDS;
use super::*;
use crate::cluster::Cluster;
use crate::interval::StepPredictor;
use crate::job::{Framework, OperandPrecision};
use crate::layout::Recompute;
use crate::model::LargeModel;

fn task(model: &str, gpus: u32) -> PlanTask {
    PlanTask {
        model: LargeModel::named(model).unwrap().clone(),
        cluster: Cluster::of("H100", 8, None).unwrap(),
        gpus,
        global_batch: 1024,
        sequence: 4096,
        precision: OperandPrecision::Bf16,
        framework: Framework::MegatronBridge,
    }
}

#[test]
fn proposed_layouts_divide_the_job_and_fit() {
    let predictor = StepPredictor::published();
    for (model, gpus) in [("llama 2 7b", 8), ("llama 3 70b", 512), ("mixtral 8x7b", 64), ("deepseek-v3", 512)]
    {
        let task = task(model, gpus);
        let found = plan(&task, &predictor, 20);
        assert_eq!(found.layouts.len(), 20.min(found.fitting as usize), "{model}");
        assert!(found.fitting > 0, "{model}");
        assert_eq!(found.tried, found.fitting + found.left_out.values().sum::<u32>());
        for layout in &found.layouts {
            assert_eq!(layout.job.layout.check(&task.model), Ok(()), "{model}");
            assert!(layout.memory.needed() < 80e9 * 1.062 && layout.fits >= LEAST_ODDS, "{model}");
            let [low, high] = layout.step.within80;
            assert!(low < layout.step.seconds && layout.step.seconds < high);
            assert!((0.05..0.75).contains(&layout.mfu()), "{model} {}", layout.mfu());
        }
        assert!(found.layouts.is_sorted_by(|one, other| one.step.seconds <= other.step.seconds));
        // A layout that is ranked before another one is more likely faster.
        let odds: Vec<f64> = found.layouts.iter().filter_map(|layout| layout.before_next).collect();
        assert!(odds.iter().all(|odds| (0.499..=1.0).contains(odds)), "{odds:?}");
        assert_eq!(plan(&task, &predictor, 20), found, "the same again");
    }
}

#[test]
fn a_job_without_a_layout_says_how_much_memory_it_lacks() {
    let found = plan(&task("gpt 1008b", 8), &StepPredictor::published(), 20);
    assert!(found.layouts.is_empty() && found.fitting == 0);
    assert!(found.least_memory.unwrap() > 1e12, "{:?}", found.least_memory);
    assert!(found.left_out["more memory than a GPU has"] > 0);
}

#[test]
fn more_gpus_and_network_bring_something_and_a_measurement_narrows() {
    let (task, predictor) = (task("llama 3 8b", 64), StepPredictor::published());
    let found = plan(&task, &predictor, 10);
    let changes = what_if(&task, &found, &predictor);
    assert_eq!(changes.len(), 2);
    assert!(changes[0].speedup > 1.05 && changes[0].speedup < 1.2, "{}", changes[0].speedup);
    assert!(changes[1].speedup >= 1.0 && changes[1].speedup < 1.5, "{}", changes[1].speedup);
    let narrow = narrowing(&found, &predictor).unwrap();
    assert!(narrow.after < narrow.before * 0.9 && narrow.job.layout.gpus <= 64, "{narrow:?}");
    assert_eq!(narrow.job.layout.check(&task.model), Ok(()));
    assert!(crate::memory::memory(&narrow.job).fits(task.cluster.capacity) >= LEAST_ODDS);
}

#[test]
fn what_no_layout_can_use_changes_nothing() {
    // 1,032 GPUs are 8 x 3 x 43: no layout of them is faster than the best of 1,024.
    let predictor = StepPredictor::published();
    for (model, gpus) in [("llama 3 70b", 1024), ("llama 3 405b", 2048)] {
        let task = task(model, gpus);
        let found = plan(&task, &predictor, 1);
        for change in what_if(&task, &found, &predictor) {
            assert!(change.speedup >= 1.0, "{model}: {} {}", change.change, change.speedup);
            assert!(change.layout.job.layout.gpus <= gpus + 8);
        }
    }
}

#[test]
fn flops_of_a_token_are_six_for_each_active_parameter() {
    let dense = LargeModel::named("llama 2 7b").unwrap();
    let products = 6.0 * (6.738e9 - 32000.0 * 4096.0);
    let scores = 6.0 * 32.0 * 4096.0 * 4096.0;
    assert!((flops_per_token(dense, 4096) / (products + scores) - 1.0).abs() < 1e-3);
    let mixture = LargeModel::named("qwen3 30b-a3b").unwrap();
    let active = flops_per_token(mixture, 1) / 6.0 / 1e9;
    assert!((2.9..3.4).contains(&active), "{active}");
}

#[test]
fn a_layout_has_a_short_name() {
    let mut layout =
        plan(&task("llama 2 7b", 8), &StepPredictor::published(), 1).layouts[0].job.layout.clone();
    (layout.tensor, layout.pipeline, layout.chunks, layout.context) = (4, 2, 1, 1);
    (layout.micro_batch, layout.recompute) = (1, Recompute::Full);
    assert_eq!(name(&layout), "tp 4, pp 2, zero1, micro-batch 1, full recomputation");
}
