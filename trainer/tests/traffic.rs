//! The bytes that a training step on a GPU moves, counted by the memory that its launches and library calls name.
#![allow(missing_docs, clippy::unwrap_used)]

use allfold_collectives::World;
use allfold_standin::{Counter, Traffic};
use allfold_trainer::cuda::Replica;
use allfold_trainer::data::SampleForm;
use allfold_trainer::engine::StepInput;
use allfold_trainer::{Batch, Config};
use std::collections::BTreeMap;

/// The traffic of a step of a configuration in `experiments/configs/gpu`.
fn step(file: &str, form: SampleForm, rows: usize) -> BTreeMap<String, Traffic> {
    let path = format!("{}/../experiments/configs/gpu/{file}", env!("CARGO_MANIFEST_DIR"));
    let config = Config::read(&std::fs::read_to_string(path).unwrap(), file).unwrap();
    let machine = Counter::open();
    let counter = Counter::of(&*machine).unwrap();
    let n = config.training.batch;
    let (c, h, w) = form.shape;
    let batch = Batch::<f32> { x: vec![0.0; n * c * h * w], labels: vec![0; n * rows] };
    World::threads(1)
        .run(|comm| {
            let mut replica = Replica::new(&config, form, &comm, (machine.clone(), 0))?;
            counter.clear();
            replica.stage(&batch)?;
            let scale = config.precision.loss_scale;
            let input =
                StepInput { loss_scale: if scale > 0.0 { scale } else { 1.0 }, ..StepInput::default() };
            let samples = replica.start(input, n as u64, scale > 0.0)?;
            replica.finish(samples)
        })
        .unwrap();
    counter.traffic()
}

/// What a kernel, a library function or a copy belongs to.
fn group(name: &str) -> &'static str {
    const GROUPS: [(&str, &[&str]); 4] = [
        ("products", &["conv", "matmul", "cublas", "attention"]),
        ("optimiser", &["adam", "sgd", "squares", "clip", "found_inf", "unscale"]),
        ("loss", &["cross_entropy", "mean_f32"]),
        ("copies", &["restride", "copy", "upload", "download", "fill", "turn"]),
    ];
    let of = GROUPS.iter().find(|(_, stems)| stems.iter().any(|stem| name.starts_with(stem)));
    of.map_or("element-wise", |(group, _)| group)
}

/// The gigabytes that each group moves; prints them, and the kernels in order of their bytes.
fn grouped(what: &str, traffic: &BTreeMap<String, Traffic>) -> BTreeMap<&'static str, f64> {
    let mut all: Vec<_> = traffic.iter().collect();
    all.sort_by_key(|(_, traffic)| std::cmp::Reverse(traffic.read + traffic.written));
    println!("{what}: kernel, launches, GB read, GB written");
    let mut groups = BTreeMap::new();
    for (name, Traffic { launches, read, written }) in all {
        println!("{name:24} {launches:5} {:8.3} {:8.3}", *read as f64 / 1e9, *written as f64 / 1e9);
        *groups.entry(group(name)).or_default() += (read + written) as f64 / 1e9;
    }
    println!("{groups:.2?}");
    groups
}

#[test]
fn a_step_of_resnet50_moves_at_most_so_many_bytes() {
    let groups = grouped("ResNet-50", &step("resnet50.toml", SampleForm::new((3, 224, 224), 1000), 1));
    assert!(groups["element-wise"] <= 60.0, "{groups:?}");
    // Images and results of 53 convolutions, each read and written once, forward and backward.
    assert!((30.0..40.0).contains(&groups["products"]), "{groups:?}");
}

#[test]
fn a_step_of_gpt2_moves_at_most_so_many_bytes() {
    let groups = grouped("GPT-2", &step("gpt2.toml", SampleForm::new((1, 1, 1024), 50_257), 1024));
    for (group, most) in [("element-wise", 5.5), ("copies", 0.4), ("loss", 1.7), ("optimiser", 4.3)] {
        assert!(groups[group] <= most, "{group}: {groups:?}");
    }
    assert!((10.0..20.0).contains(&groups["products"]), "{groups:?}");
}
