//! `allfold compare`: what it records, and what it refuses.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{allfold, records, said};

const MLP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-mlp.toml");
const GPT2: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/gpu/gpt2.toml");
const SMALL_GPT: &str = "[model]\nname = \"gpt\"\nlayers = 4\nwidth = 16\nheads = 4\ntied = true\n\
    [data]\nname = \"synthetic\"\nsynthetic_samples = 64\nsynthetic_classes = 13\npositions = 8\n\
    [training]\nbatch = 4\n";

#[test]
fn strategies_are_compared_by_time_bytes_and_memory() {
    let ways = "single,ddp,zero1,zero2,zero3,pipeline";
    let all = records(&[
        "compare",
        "--config",
        MLP,
        "--ranks",
        "8",
        "--steps",
        "3",
        "--strategies",
        ways,
        "--set",
        "parallel.stages=2",
    ]);
    let of = |measured: bool| -> Vec<&serde_json::Value> {
        all.iter().filter(|record| record["kind"] == "compare" && record["measured"] == measured).collect()
    };
    let (measured, simulated) = (of(true), of(false));
    let names = |of: &[&serde_json::Value]| -> Vec<String> {
        of.iter().map(|record| record["strategy"].as_str().unwrap().to_string()).collect()
    };
    assert_eq!(names(&measured).join(","), ways);
    assert_eq!(names(&simulated).join(","), ways);
    for (real, predicted) in measured.iter().zip(&simulated) {
        assert_eq!(real["weights_hash"], predicted["weights_hash"], "{}", real["strategy"]);
        assert_eq!(real["batch"], 256, "every strategy takes the same samples");
        for same in ["peak_bytes", "bytes_sent", "bytes_by_operation"] {
            assert_eq!(real[same], predicted[same], "{}", real["strategy"]);
        }
        assert!(predicted["step_us"].as_f64().unwrap() > 0.0);
    }
    // ZeRO's stages 1, 2 and 3 send 1, 1 and 1.5 times the bytes of DDP, except for padding.
    let sent = |at: usize| -> f64 {
        let by_rank = simulated[at]["bytes_sent"].as_array().unwrap();
        assert_eq!(by_rank.len(), if at == 0 { 1 } else { 8 });
        by_rank.iter().map(|bytes| bytes.as_f64().unwrap()).sum()
    };
    assert_eq!(sent(0), 0.0);
    for (at, times) in [(2, 1.0), (3, 1.0), (4, 1.5)] {
        let ratio = sent(at) / sent(1);
        assert!(
            (ratio / times - 1.0).abs() < 0.005,
            "{}: {ratio} times DDP's bytes",
            simulated[at]["strategy"]
        );
    }
    // Waiting is for communication, so that no rank waits for longer than its communication is under way.
    for record in &simulated[1..] {
        let list = |key: &str| -> Vec<f64> {
            record[key].as_array().unwrap().iter().map(|us| us.as_f64().unwrap()).collect()
        };
        let (all, waited) = (list("communication_us"), list("waiting_us"));
        assert_eq!((all.len(), waited.len()), (8, 8), "{}", record["strategy"]);
        let within = all.iter().zip(&waited).all(|(all, waited)| *all > 0.0 && *waited < 1.02 * all);
        assert!(within, "{}: {all:?}, waited {waited:?}", record["strategy"]);
    }
    let state = |at: usize| simulated[at]["memory"]["optimiser"].as_f64().unwrap();
    assert!((state(2) / state(1) - 0.125).abs() < 0.005, "zero1 holds an eighth of the state");
    // The records contain the step of every rank, for the plot.
    let drawn = |record: &&serde_json::Value| record["kind"] == "span" && record["strategy"] == "pipeline";
    let ranks: std::collections::BTreeSet<u64> =
        all.iter().filter(drawn).map(|span| span["rank"].as_u64().unwrap()).collect();
    assert_eq!(ranks.len(), 8);
}

/// Without arithmetic a strategy has the times, bytes and memory of its run on virtual time, on every rank.
#[test]
fn a_comparison_without_arithmetic_predicts_what_runs() {
    let folder = common::folder();
    let path = folder.path().join("gpt.toml");
    std::fs::write(&path, SMALL_GPT).unwrap();
    for config in [MLP, path.to_str().unwrap()] {
        let compared = |by: &[&str]| -> Vec<serde_json::Value> {
            let flags = ["compare", "--config", config, "--ranks", "4", "--topology", "dgx-a100"];
            let all = records(&[&flags[..], by].concat());
            all.into_iter().filter(|record| record["kind"] == "compare").collect()
        };
        // After more steps a worker of a parameter server finds other free buffers, and may hold more of them.
        let (ran, modeled) = (compared(&["--predicted-only", "--steps", "4"]), compared(&["--modeled-only"]));
        assert!(ran.len() >= 9 && ran.len() == modeled.len(), "{} and {}", ran.len(), modeled.len());
        ran.iter().zip(&modeled).for_each(|(ran, modeled)| same_but_for_values(ran, modeled));
    }
}

fn same_but_for_values(ran: &serde_json::Value, modeled: &serde_json::Value) {
    let strategy = ran["strategy"].as_str().unwrap();
    assert_eq!(modeled["backend"], "modeled");
    assert!(modeled.get("loss").is_none() && modeled.get("weights_hash").is_none(), "{strategy}");
    for key in
        ["strategy", "batch", "micro_batches", "mesh", "bytes_sent", "bytes_by_operation", "peak_bytes"]
    {
        assert_eq!(ran[key], modeled[key], "{strategy}: {key}");
    }
    // Times of a run are means over steps, whose sums of picoseconds are rounded differently; with these two strategies the first
    // steps differ from the later ones.
    let settles = ["parameter_server", "data_parallel"].contains(&strategy);
    let tolerance = if settles { 0.02 } else { 1e-9 };
    let times = |record: &serde_json::Value, key: &str| -> Vec<f64> {
        let list = record[key].as_array().cloned().unwrap_or_else(|| vec![record[key].clone()]);
        list.iter().map(|us| us.as_f64().unwrap()).collect()
    };
    for key in ["step_us", "data_us", "forward_us", "backward_us", "exposed_us", "waiting_us"] {
        let (ran, modeled) = (times(ran, key), times(modeled, key));
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= tolerance * a.max(*b);
        let same = ran.len() == modeled.len() && ran.iter().zip(&modeled).all(near);
        assert!(same, "{strategy}: {key} {ran:?}, {modeled:?}");
    }
}

/// GPT-2 on 16 GPUs: 160 GiB of models, none of which is allocated.
#[test]
fn a_large_network_is_compared_without_its_memory() {
    let flags = ["compare", "--config", GPT2, "--ranks", "16", "--topology", "dgx-a100", "--strategies"];
    let all = records(&[&flags[..], &["ddp,zero3,pipeline", "--modeled-only"]].concat());
    let of = |strategy: &str| {
        let is = |record: &&serde_json::Value| record["kind"] == "compare" && record["strategy"] == strategy;
        all.iter().find(is).unwrap_or_else(|| panic!("no row of {strategy}"))
    };
    let params = |strategy: &str| of(strategy)["memory"]["params"].as_f64().unwrap();
    assert!((params("ddp") / (4.0 * 124_439_808.0) - 1.0).abs() < 1e-3, "{}", params("ddp"));
    assert!(params("zero3") < 0.6 * params("ddp") && params("pipeline") < 0.4 * params("ddp"));
    let sum = |strategy: &str| -> f64 {
        of(strategy)["bytes_sent"].as_array().unwrap().iter().map(|bytes| bytes.as_f64().unwrap()).sum()
    };
    let times = sum("zero3") / sum("ddp");
    assert!((1.5..2.0).contains(&times), "{times} times the bytes of DDP");
    // A bar for every rank, of which the page draws a Gantt chart.
    let ranks: std::collections::BTreeSet<u64> =
        all.iter().filter_map(|record| record["rank"].as_u64()).collect();
    assert_eq!(ranks.len(), 16);
}

/// On unlike devices all ranks wait for the slowest one, with and without arithmetic.
#[test]
fn strategies_are_compared_on_unlike_devices() {
    let compared = |by: &[&str]| -> Vec<serde_json::Value> {
        let flags = [
            "compare",
            "--config",
            MLP,
            "--ranks",
            "4",
            "--topology",
            "dgx-a100",
            "--strategies",
            "ddp,zero3",
        ];
        let all = records(&[&flags[..], &["--device", "a100_f32,3:cpu_core"], by].concat());
        all.into_iter().filter(|record| record["kind"] == "compare").collect()
    };
    let (ran, modeled) = (compared(&["--predicted-only", "--steps", "4"]), compared(&["--modeled-only"]));
    ran.iter().zip(&modeled).for_each(|(ran, modeled)| same_but_for_values(ran, modeled));
    for record in &modeled {
        let waits = record["waiting_for"].as_array().unwrap();
        let of = |is: fn(u64) -> bool| -> f64 {
            let pairs = waits.iter().filter(|pair| is(pair["of"].as_u64().unwrap()));
            pairs.map(|pair| pair["us"].as_f64().unwrap()).sum()
        };
        assert!(of(|rank| rank == 3) > 3.0 * of(|rank| rank != 3), "{}: {waits:?}", record["strategy"]);
        assert_eq!(record["device"], "a100_f32,3:cpu_core");
    }
}

/// Runs on many ranks have fewer steps unless the user gives their number: each step computes the samples of all ranks.
#[test]
fn runs_on_many_ranks_have_fewer_steps() {
    let weights = |ranks: &str, steps: &[&str]| {
        let flags = ["--ranks", ranks, "--strategies", "ddp"];
        let all = records(&[&["compare", "--config", MLP][..], &flags, steps].concat());
        all.iter().find(|record| record["kind"] == "compare").unwrap()["weights_hash"].to_string()
    };
    for (ranks, steps) in [("2", "10"), ("8", "10"), ("16", "5"), ("64", "3")] {
        assert_eq!(weights(ranks, &[]), weights(ranks, &["--steps", steps]), "{ranks} ranks");
    }
}

/// A Gantt chart of every rank, as a file of its own.
#[test]
fn a_step_on_every_rank_is_drawn() {
    let folder = common::folder();
    let plots = folder.path().join("plots");
    let ways =
        ["--ranks", "12", "--strategies", "ddp,pipeline", "--set", "parallel.stages=2", "--steps", "2"];
    let to = ["--predicted-only", "--plots", plots.to_str().unwrap()];
    let said = common::said(&[&["compare", "--config", MLP][..], &ways, &to].concat());
    assert!(said.contains("plots: "), "{said}");
    let names: Vec<String> = std::fs::read_dir(&plots)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    let gantt = names.iter().find(|name| name.ends_with("-pipeline.svg")).unwrap();
    let svg = std::fs::read_to_string(plots.join(gantt)).unwrap();
    let alone = [0, 1, 2, 3, 6, 7, 8, 9].map(|rank| format!("rank {rank}: "));
    let rows = alone.into_iter().chain(["ranks 4,5: ".into(), "ranks 10,11: ".into()]);
    let missing: Vec<String> = rows.filter(|row| !svg.contains(row)).collect();
    assert!(missing.is_empty(), "{gantt} lacks {missing:?}");
}

/// `context` refuses a mixture of experts, and `expert` refuses a plain GPT.
#[test]
fn every_strategy_has_its_row() {
    let folder = common::folder();
    let compared = |name: &str, text: &str| -> Vec<String> {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let rows = records(
            &[
                &["compare", "--config", path.to_str().unwrap(), "--ranks", "4", "--steps", "2"][..],
                &["--predicted-only"],
            ]
            .concat(),
        );
        let rows = rows.into_iter().filter(|record| record["kind"] == "compare");
        rows.map(|record| record["strategy"].as_str().unwrap().to_string()).collect()
    };
    let mut ran = compared("gpt.toml", SMALL_GPT);
    ran.extend(compared(
        "mixture.toml",
        &SMALL_GPT.replace("[data]", "experts = 4\nexperts_per_token = 2\n[data]"),
    ));
    let missing: Vec<&str> =
        allfold_trainer::strategies::names().filter(|name| !ran.iter().any(|ran| ran == name)).collect();
    assert!(missing.is_empty(), "no row of {missing:?} in {ran:?}");
}

/// A modeled comparison needs no files of a dataset whose sample shape is known.
#[test]
fn a_prediction_needs_no_files_of_published_data() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.toml");
    let dir = format!("data.dir = '{}'\n", folder.path().display());
    let compare = |more: &[&str]| {
        let ranks = ["compare", "--config", path.to_str().unwrap(), "--ranks", "2", "--strategies", "ddp"];
        allfold(&[&ranks[..], more].concat())
    };
    std::fs::write(&path, format!("model.name = \"mlp\"\ndata.name = \"mnist\"\n{dir}")).unwrap();
    let modeled = compare(&["--modeled-only"]);
    let said = String::from_utf8_lossy(&modeled.stderr).into_owned();
    assert_eq!(modeled.status.code(), Some(0), "{said}");
    let measured = compare(&[]);
    let said = String::from_utf8_lossy(&measured.stderr).into_owned();
    assert!(measured.status.code() == Some(2) && said.contains("allfold.fetch mnist"), "{said}");
    // The vocabulary of a text is not known without it.
    std::fs::write(&path, format!("model.name = \"gpt\"\ndata.name = \"text\"\n{dir}")).unwrap();
    let scale = ["scale", "--config", path.to_str().unwrap(), "--ranks", "2", "--modeled-only"];
    let refused = allfold(&scale);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.lines().count() == 1, "{said}");
    assert!(said.contains("text.txt") && said.contains("--set data.name=synthetic"), "{said}");
}

#[test]
fn a_comparison_names_what_it_leaves_out_and_refuses_what_it_cannot_do() {
    let compare = |more: &[&str]| {
        allfold(&[&["compare", "--config", MLP, "--predicted-only", "--steps", "2"], more].concat())
    };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let page = page.to_str().unwrap();
    let stages = ["--ranks", "3", "--set", "parallel.stages=2", "--strategies", "ddp,pipeline"];
    let both = compare(&[&stages[..], &["--html", page]].concat());
    let said = String::from_utf8_lossy(&both.stdout).into_owned();
    assert!(
        said.contains("left out: pipeline: `parallel.stages` is 2, which does not divide the 3 ranks"),
        "{said}"
    );
    assert_eq!(both.status.code(), Some(0));
    let written = std::fs::read_to_string(page).unwrap();
    assert!(written.contains("Left out") && written.contains("which does not divide the 3 ranks"));
    for (flags, why) in [
        (
            &["--ranks", "3", "--set", "parallel.stages=2", "--strategies", "pipeline"][..],
            "does not divide the 3 ranks",
        ),
        (&["--ranks", "4", "--strategies", "zero9"], "unknown strategy `zero9`; the nearest is `zero1`"),
        (&["--ranks", "4", "--strategies", "ddp,zero1,ddp"], "names ddp twice; name each strategy once"),
        (&["--ranks", "4", "--set", "device=cuda"], "use --set device=cpu"),
        (&["--ranks", "4", "--topology", "nowhere"], "nowhere"),
        (&["--ranks", "4", "--set", "batch"], "write KEY=VALUE"),
        (
            &["--ranks", "64", "--set", "model.hidden=[40000, 40000]"],
            "or compute nothing with --modeled-only",
        ),
    ] {
        let refused = compare(flags);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{flags:?}: {said}");
        assert!(said.contains(why) && said.lines().count() == 1, "{flags:?}: {said}");
    }
}

/// Four ranks of which two hold a copy of the weights together are two copies, and no axis of four.
#[test]
fn the_mesh_has_an_axis_for_ranks_that_hold_a_copy_together() {
    let text = said(&[
        "compare",
        "--config",
        MLP,
        "--ranks",
        "4",
        "--strategies",
        "zero3",
        "--modeled-only",
        "--set",
        "parallel.shard=2",
    ]);
    assert!(text.contains("data 2 x shard 2") && text.contains("128 samples"), "{text}");
}

/// A step of many exchanges on many ranks is predicted by one rank of each kind, which gives no bytes of single ranks, and no message.
#[test]
fn a_step_of_too_many_messages_is_predicted_without_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gpt.toml");
    let way = |layers: u32| {
        let text = SMALL_GPT
            .replace("positions = 8", "positions = 128")
            .replace("layers = 4", &format!("layers = {layers}"));
        std::fs::write(&path, text).unwrap();
        let config = path.to_str().unwrap();
        let all = records(&[
            "compare",
            "--config",
            config,
            "--ranks",
            "64",
            "--strategies",
            "context",
            "--predicted-only",
        ]);
        all.into_iter().find(|record| record["kind"] == "compare").unwrap()
    };
    for (layers, of_ranks) in [(1, 64), (8, 0)] {
        let record = way(layers);
        assert_eq!(record["bytes_sent"].as_array().map_or(0, Vec::len), of_ranks, "{record}");
        assert!(record["step_us"].as_f64().unwrap() > 0.0 && record["memory"]["params"].as_u64() > Some(0));
        assert!(record["weights_hash"].is_null(), "--predicted-only computes nothing: {record}");
    }
    let gpt2 = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/gpu/gpt2.toml");
    let broadcasts = records(&[
        "compare",
        "--config",
        gpt2,
        "--ranks",
        "64",
        "--strategies",
        "data_parallel",
        "--predicted-only",
    ]);
    let record = broadcasts.into_iter().find(|record| record["kind"] == "compare").unwrap();
    assert_eq!(record["bytes_sent"].as_array().map_or(0, Vec::len), 0, "{record}");
}
