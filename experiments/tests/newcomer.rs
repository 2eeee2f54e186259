//! Mistakes that newcomers make: each is refused with one line that says what would be right.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use allfold_sim::Device;
use allfold_sim::machines::GpuRates;
use allfold_sim::machines::presets::Preset;
use common::{allfold, folder, records, said, says};
use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

const MLP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-mlp.toml");

fn refused(args: &[&str], hint: &str) {
    let output = allfold(args);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert!(error.contains(hint) && error.trim_end().lines().count() == 1, "{args:?}: {error}");
}

#[test]
fn mistakes_are_answered_by_what_would_be_right() {
    refused(
        &["simulate", "all_reduce", "--ranks", "4294967295", "--topology", "switch"],
        "the most are 1048576",
    );
    refused(&["simulate", "all_reduce", "--ranks", "4", "--topology", "empty.txt"], "ends in .toml");
    refused(&["simulate", "all_reduce", "--ranks", "4", "--topology", "nope.toml"], "docs/TOPOLOGY.md");
    refused(&["bench", "all_reduce", "--backend", "threads", "--ranks", "2", "-g", "2"], "--ranks N");
    refused(&["scale", "--config", MLP, "--ranks", "1", "--amp"], "--set precision.amp=f16");
    refused(&["train", "--config", MLP, "--amp"], "--set precision.amp=f16");
    let vary = ["scale", "workload", "resnet18", "--ranks", "8", "--device-variation"];
    refused(&[&vary[..], &["2"]].concat(), "that is 200 %; write 2% or 0.02");
    refused(&["scale", "--config", MLP, "--ranks", "1", "--set", "bach=3"], "batch");
    let nccl = ["simulate", "all_reduce", "--ranks", "8", "--algo", "nccl", "--topology"];
    refused(&[&nccl[..], &["nodes8"]].concat(), "nics=4");
    refused(&[&nccl[..], &["my.toml"]].concat(), "there is no such file");
}

#[test]
fn a_plot_is_an_svg_file() {
    let workload = ["scale", "workload", "resnet18", "--ranks", "1,8", "--plot"];
    let simulate = ["simulate", "all_reduce", "--ranks", "8", "-b", "1K", "-e", "1M", "-f", "4", "--plot"];
    for command in [&["train", "--config", MLP, "--plot"][..], &workload, &simulate] {
        refused(
            &[command, &["out/p.png"]].concat(),
            "plots are SVG files, which browsers open; write out/p.svg",
        );
    }
    let folder = folder();
    for name in ["p.SVG", "plot"] {
        let path = folder.path().join(name);
        said(&[&workload[..], &[path.to_str().unwrap()]].concat());
        assert!(fs::read_to_string(path).unwrap().starts_with("<svg"), "{name}");
    }
}

#[test]
fn the_help_says_what_a_column_means_and_what_a_workload_leaves_out() {
    let help = |args: &[&str]| said(args).split_whitespace().collect::<Vec<_>>().join(" ");
    let workload = help(&["scale", "workload", "--help"]);
    assert!(workload.contains("by DDP alone"), "{workload}");
    assert!(
        workload.contains("scale --config FILE --strategy NAME --ranks COUNTS --modeled-only"),
        "{workload}"
    );
    assert!(workload.contains("--single-gpu-rate replaces these times"), "{workload}");
    let config = help(&["scale", "--help"]);
    assert!(config.contains("--config to compare strategies and keys, `scale workload` to compare machines"));
    let compare = help(&["compare", "--help"]);
    assert!(compare.contains("`most for` is the rank that the others wait for longest"), "{compare}");
}

#[test]
fn a_command_without_what_it_needs_is_answered_by_an_example() {
    refused(&["simulate"], "<COLLECTIVE>; for example: allfold simulate all_reduce ");
    refused(
        &["scale", "workload", "resnet50"],
        "--ranks <COUNTS>; for example: allfold scale workload resnet50 ",
    );
    refused(&["train"], "--config <FILE>; for example: allfold train --config ");
}

#[test]
fn keys_without_an_effect_are_named_and_a_resumed_run_prints_its_own_steps() {
    let folder = folder();
    let dir = format!("checkpoint.dir={}", folder.path().join("kept").display());
    let train = |more: &[&str]| allfold(&[&["train", "--config", MLP, "--set", &dir], more].concat());
    let idle = train(&["--steps", "1", "--set", "parallel.stages=2"]);
    let error = String::from_utf8(idle.stderr).unwrap();
    assert!(idle.status.success(), "{error}");
    assert!(error.contains("`parallel.stages` has no effect without strategy pipeline\n"), "{error}");
    assert!(error.contains("`checkpoint.dir` has no effect without `checkpoint.every`"), "{error}");
    let resumed = |steps| {
        let keep = ["--set", "checkpoint.every=4", "--set", "checkpoint.resume=true", "--steps", steps];
        let output = train(&keep);
        let text = String::from_utf8(output.stdout).unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        // A folder without a checkpoint may be a misspelt one.
        let begins = error.contains("note: no checkpoint in ") && error.contains("the run begins at step 0");
        assert_eq!((begins, error.contains("resumed from")), (steps == "8", steps == "12"), "{error}");
        let step = |line: &str| line.trim().strip_prefix("step")?.split_whitespace().next()?.parse().ok();
        text.lines().filter_map(step).collect::<Vec<u64>>()
    };
    assert_eq!(resumed("8"), (0..8).collect::<Vec<_>>());
    assert_eq!(resumed("12"), (8..12).collect::<Vec<_>>());
    let lost = train(&["--steps", "1", "--set", "checkpoint.resume=true", "--set", "checkpoint.dir=nowhere"]);
    let error = String::from_utf8(lost.stderr).unwrap();
    assert!(lost.status.success() && error.contains("finds no checkpoint in nowhere"), "{error}");
}

#[test]
fn a_run_says_what_it_trains_and_into_how_many_micro_batches_a_batch_is_cut() {
    let folder = folder();
    let profile = folder.path().join("p.json").display().to_string();
    let train = |more: &[&str]| allfold(&[&["train", "--config", MLP, "--steps", "2"], more].concat());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let keys = ["--set", "model.frozen=[\"*\"]", "--set", "model.trained=[\"fc3\"]"];
    let output = train(&[&keys[..], &["--set", "training.accumulate=40"]].concat());
    let (said, notes) = (text(output.stdout), text(output.stderr));
    assert!(
        said.contains(", 650 of them trained, ddp, 1 rank, batch 32 each in 32 micro-batches; "),
        "{said}"
    );
    assert!(notes.contains("`training.accumulate` is 40 and has the effect of 32"), "{notes}");
    assert!(said.contains("backward ") && !said.contains("exposed"), "one rank waits for nobody: {said}");
    assert!(text(train(&["--ranks", "2"]).stdout).contains("exposed communication "));
    let refused = text(train(&["--profile", &profile]).stderr);
    assert!(refused.contains("as by --profile-schedule wait=0,warmup=0,active=1\n"), "{refused}");
    let recorded = train(&["--profile", &profile, "--profile-schedule", "wait=0,warmup=0,active=1"]);
    assert!(recorded.status.success(), "{recorded:?}");
}

#[test]
fn a_damaged_checkpoint_is_refused_with_the_whole_one_before_it() {
    let folder = folder();
    let place = folder.path().join("kept").display().to_string();
    let dir = format!("checkpoint.dir={place}");
    let train = |steps: &str| {
        let keys = ["--set", &dir, "--set", "checkpoint.every=1", "--set", "checkpoint.resume=true"];
        allfold(&[&["train", "--config", MLP, "--steps", steps][..], &keys].concat())
    };
    assert!(train("2").status.success());
    let [older, newest] = [1, 2].map(|step| format!("{place}/step-{step:08}.safetensors"));
    let bytes = fs::read(&newest).unwrap();
    fs::write(&newest, &bytes[..bytes.len() / 2]).unwrap();
    let refused = train("3");
    let error = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert!(error.contains(&format!("{newest}: ends at byte ")), "{error}");
    let way = format!("; {older} is whole: move or remove {newest} to go on from step 1\n");
    assert!(error.ends_with(&way), "{error}");
    fs::remove_file(newest).unwrap();
    let resumed = String::from_utf8(train("3").stderr).unwrap();
    assert!(resumed.contains("resumed from the checkpoint of step 1; 2 steps are left"), "{resumed}");
}

#[test]
fn a_long_range_of_ranks_is_thinned_and_scale_takes_keys() {
    let text =
        said(&["scale", "--config", MLP, "--ranks", "1..64", "--modeled-only", "--set", "training.batch=8"]);
    assert_eq!(
        text.lines().filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit())).count(),
        7,
        "{text}"
    );
}

#[test]
fn machines_describes_a_topology_file() {
    let folder = folder();
    let path = folder.path().join("my.toml");
    fs::write(
        &path,
        "kind = \"nodes\"\nranks = 8\ndevices = 4\nnics = 2\n[device]\nbandwidth = \"300 GB/s\"\n\
         latency = \"1 us\"\n[nic]\nbandwidth = \"200 Gb/s\"\nlatency = \"2 us\"\n",
    )
    .unwrap();
    let output = allfold(&["machines", path.to_str().unwrap()]);
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("8 ranks") && text.contains("nic_out") && text.contains("25.00"), "{text}");
}

/// `machines` describes everything that `--topology` takes.
#[test]
fn machines_describes_shapes_and_machines_with_options() {
    for (name, ranks, link) in [("nodes8", 8, "nic_out"), ("dgx-a100:2", 16, "nic_out")] {
        let output = allfold(&["machines", name]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.starts_with(&format!("{name}: {ranks} ranks")) && text.contains(link), "{text}");
    }
    // A GPU's name lists its machines, and no others.
    let output = allfold(&["machines", "H100"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("hgx-h100 ") && text.contains("nd-h100-v5 "), "{text}");
    assert!(!text.contains("dgx-a100"), "{text}");
    let output = allfold(&["machines", "dgx-a10"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("did you mean `dgx-a100`?"), "{text}");
}

/// The path of a file in the repository's folder `examples`.
fn example(path: &str) -> String {
    format!("{}/../examples/{path}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_layer_table_is_predicted_like_a_known_network() {
    let table = example("layers/small-cnn.toml");
    let text =
        said(&["scale", "workload", &table, "--topology", "dgx-a100", "--ranks", "1,8,64", "--batch", "64"]);
    assert!(text.contains("small-cnn") && text.contains("an image of 224 x 224"), "{text}");
    let folder = folder();
    let wrong = folder.path().join("wrong.toml");
    fs::write(&wrong, "name = \"n\"\n[[layer]]\nname = \"a\"\nkind = \"matmul\"\nflops = 1\nvalues = 1\n")
        .unwrap();
    let workload = |path: &str, hint: &str| refused(&["scale", "workload", path, "--ranks", "1"], hint);
    workload(wrong.to_str().unwrap(), "wrong.toml:4:8: unknown variant `matmul`, expected one of");
    let endless = folder.path().join("endless.toml");
    std::os::unix::fs::symlink("/dev/zero", &endless).unwrap();
    workload(endless.to_str().unwrap(), "a layer table may have 16 MiB");
    workload("missing.toml", "missing.toml");
    workload("resnet", "ends in .toml");
}

/// Regression: a parameter's shape was answered with "expected a number", a missing configuration with the name of the missing file,
/// and too many ranks with a smaller size, where there is no size.
#[test]
fn an_error_says_what_to_write_here() {
    let folder = folder();
    let table = folder.path().join("net.toml");
    let rows =
        "name = \"net\"\n[[layer]]\nname = \"embedding\"\nkind = \"product\"\nflops = 1e6\nvalues = 1e3\n";
    let table_of = |params: &str| {
        std::fs::write(&table, format!("{rows}params = {params}\n")).unwrap();
        ["scale", "workload", table.to_str().unwrap(), "--ranks", "1"]
    };
    common::says(
        &table_of("[[32000, 4096]]"),
        &["net.toml:7:", "expected the number of elements, such as 131072000"],
    );
    said(&table_of("[131072000, 4.096e3]"));
    let missing = "experiments/configs/missing.toml";
    common::says(
        &["scale", "--config", missing, "--ranks", "1"],
        &[missing, "part of Allfold's source tree", "`allfold train --keys` prints every key"],
    );
    let show = ["show", "all_reduce", "--algo", "ring", "--ranks"];
    common::says(&[&show[..], &["1000000"]].concat(), &["too many for a proof; the most are 1024"]);
    let pieces = ["1024", "--segments", "65536"];
    common::says(&[&show[..], &pieces].concat(), &["; take fewer ranks or fewer --segments"]);
}

/// The memory of a rank does not grow with the number of ranks: lists of all routes took 4.3 GB here, and 20 s.
#[test]
#[allow(clippy::disallowed_methods, reason = "between two looks at the memory of another process")]
fn five_hundred_ranks_on_threads_take_little_memory() {
    let args = ["train", "--config", MLP, "--ranks", "500", "--steps", "2", "--set", "training.batch=1"];
    let mut child =
        Command::new(env!("CARGO_BIN_EXE_allfold")).args(args).stdout(Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak_kb = 0;
    let ended = loop {
        let now = fs::read_to_string(&status).unwrap_or_default();
        let peak = now.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        peak_kb = peak.map_or(peak_kb, |kb| kb.parse::<u64>().unwrap());
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
        thread::sleep(Duration::from_millis(20));
    };
    assert!(ended.success() && (1..1_000_000).contains(&peak_kb), "{ended}, {peak_kb} kB");
}

/// A network that does not fit on a GPU is predicted all the same, with a note.
#[test]
fn what_a_gpu_holds_is_said_of_a_workload() {
    let on = |network: &str, gpu: &str, batch: &str| {
        said(&["scale", "workload", network, "--ranks", "1", "--accelerator", gpu, "--batch", batch])
    };
    // 1,557,611,200 parameters, gradients and Adam's two moments of 4 bytes each.
    let fits = on("gpt2-xl", "H200", "1");
    let has = "GiB of each GPU: 131.316 (141 GB), needed up to ";
    assert!(fits.contains(has) && fits.contains(": 23.210 for weights") && !fits.contains("MORE"), "{fits}");
    for (gpu, batch) in [("RTX 3090", "1"), ("H200", "64")] {
        assert!(on("gpt2-xl", gpu, batch).contains("MORE THAN IT HAS"), "{gpu}");
    }
    // A ResNet-50 of 256 pictures in f32 takes 22 GB or so with PyTorch: it fits on a V100 of 32 GB and on no RTX 3090.
    assert!(!on("resnet50", "V100 SXM", "256").contains("MORE"));
    assert!(on("resnet50", "RTX 2080 Ti", "256").contains("MORE"));
}

/// Regression: the parts of the first line had a sum below the GPU's memory where the table said that the network does not fit.
#[test]
fn the_parts_of_a_gpu_s_memory_add_up_to_what_the_table_says() {
    let flags = ["scale", "workload", "gpt2", "--topology", "hgx-h100", "--ranks", "8", "--amp", "--batch"];
    for (batch, fits) in [("8", true), ("72", false)] {
        let text = said(&[&flags[..], &[batch]].concat());
        let line = text.lines().find(|line| line.starts_with("GiB of each GPU: ")).unwrap();
        assert_eq!(line.contains(" (MORE THAN IT HAS; the times ignore this limit)"), !fits, "{text}");
        let words = line.split(|c: char| !c.is_ascii_digit() && c != '.').filter(|word| word.contains('.'));
        let words: Vec<&str> = words.collect();
        let gib = |word: &str| -> f64 { word.parse().unwrap() };
        let (needed, sum) = (words[1], words[2..].iter().map(|word| gib(word)).sum::<f64>());
        assert!(words.len() == 5 && (sum / gib(needed) - 1.0).abs() < 1e-3, "{sum}: {line}");
        // The record has the same classes.
        let points = records(&[&flags[..], &[batch]].concat());
        let held = points.iter().rfind(|record| record["kind"] == "scale").unwrap()["memory"].clone();
        let activations = held["activations"].as_f64().unwrap() / f64::from(1 << 30);
        assert!((activations - gib(words[3])).abs() < 1e-3, "{held}: {line}");
        let row = text.lines().find(|line| line.trim_start().starts_with("8 ")).unwrap();
        let most = row.trim_end_matches("no").trim_end().strip_suffix(" GiB").unwrap();
        assert!(most.ends_with(&format!(" {needed}")), "{text}");
        // One unit, but for the size by which the GPU is sold.
        assert_eq!(text.matches(" GB").count(), 1, "{text}");
        assert_eq!(text.contains("its device has 74.506 GiB; the times ignore this limit"), !fits, "{text}");
    }
}

/// Regression: times beyond what a clock holds were printed as 0 us, or as those of another rate.
#[test]
fn steps_that_are_too_long_or_too_short_are_refused() {
    for flags in [
        "resnet50 --single-gpu-rate 1e-9",
        "resnet50 --single-gpu-rate 1e-5",
        "resnet50 --single-gpu-rate 1e12",
        "resnet50 --input-rate 1e-9",
        "vgg16 --batch 4294967296 --accumulate 4096 --accelerator L40S",
    ] {
        let args: Vec<&str> =
            ["scale", "workload", "--ranks", "1"].into_iter().chain(flags.split(' ')).collect();
        says(&args, &["less than 1 us or more than 11 days", "take another --batch"]);
    }
    let slow = said(&["scale", "workload", "resnet50", "--ranks", "1", "--single-gpu-rate", "1e-4"]);
    assert!(slow.contains(" 640000.0 s "), "{slow}");
}

/// The help of `scale` gives the range of these ratios, and says whose memory each of both counts.
#[test]
fn both_predictions_of_a_network_differ_as_the_help_says() {
    let help = [said(&["scale", "--help"]), said(&["scale", "workload", "--help"])];
    let help = help.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
    assert!(help[0].contains("0.9 to 1.9 times as long in f32, and 0.6 to 1.0 times with AMP"), "{help:?}");
    assert!(help[1].contains("0.9 to 1.9 times as long by --config in f32, and 0.6 to 1.0 times with AMP"));
    let point = |args: &[&str]| -> serde_json::Value {
        let on = ["--ranks", "1", "--topology", "hgx-h100"];
        records(&[args, &on].concat()).into_iter().find(|record| record["kind"] == "scale").unwrap()
    };
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/gpu/gpt2.toml");
    let own =
        ["scale", "--config", config, "--set", "device=cpu", "--set", "training.batch=8", "--modeled-only"];
    let table = ["scale", "workload", "gpt2", "--batch", "8"];
    for (gpu, device) in [("A100 SXM", "a100_f32"), ("B200", "b200_f32"), ("L40S", "l40s_f32")] {
        let by = [("none", &[][..], 0.85..1.95), ("f16", &["--amp"][..], 0.55..1.05)];
        // Bytes of what is no weight, gradient of a weight or optimiser state.
        let held = by.map(|(amp, flag, range)| {
            let amp = format!("precision.amp={amp}");
            let own = point(&[&own[..], &["--set", &amp, "--device", device]].concat());
            let table = point(&[&table[..], &["--accelerator", gpu], flag].concat());
            let ratio = own["time_us"].as_f64().unwrap() / table["time_us"].as_f64().unwrap();
            assert!(range.contains(&ratio), "{device}, {amp}: {ratio}");
            [own, table].map(|of| {
                let classes = ["activations", "saved_for_backward", "activation_gradients"];
                classes.iter().map(|class| of["memory"][class].as_f64().unwrap()).sum::<f64>()
            })
        });
        let [[own, table], [own_amp, table_amp]] = held;
        assert!(own < table && own_amp > 0.99 * own, "{device}: {held:?}");
        assert!((0.45..0.55).contains(&(table_amp / table)), "{device}: {held:?}");
    }
}

/// A network of a configuration that does not fit is predicted too, and marked in the table and in the records.
#[test]
fn a_step_that_a_device_does_not_hold_is_marked() {
    fn on<'a>(device: &'a str, batch: &'a str) -> Vec<&'a str> {
        let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/gpu/gpt2.toml");
        let scale = ["scale", "--config", config, "--set", "device=cpu", "--ranks", "1,2", "--modeled-only"];
        [&scale[..], &["--device", device, "--set", batch]].concat()
    }
    // Of 64 sequences the logits alone are 64 x 1,024 x 50,257 numbers of 4 bytes, 13 GB, and their gradients as many.
    let text = said(&on("t4", "training.batch=64"));
    assert!(text.contains("does not fit (ranks: 1, 2): a rank needs up to "), "{text}");
    assert!(text.contains(" GiB, and its device has 14.901 GiB") && !text.contains(" GB"), "{text}");
    let fits = said(&on("h200", "training.batch=1"));
    assert!(!fits.contains("does not fit") && fits.contains("most memory"), "{fits}");
    let point = records(&on("t4", "training.batch=64")).into_iter().find(|record| record["kind"] == "scale");
    let bytes = point.unwrap()["device_memory"].as_u64();
    assert_eq!(bytes, Some(16_000_000_000));
}

/// A run that diverges is not a mistake in a flag, and another start would diverge again.
#[test]
fn a_run_that_diverges_has_an_exit_code_of_its_own() {
    let folder = folder();
    let records = folder.path().join("run.jsonl").display().to_string();
    let flags = ["--ranks", "1", "--set", "optimiser.lr=1e30", "--json", &records];
    let output = allfold(&[&["train", "--config", MLP][..], &flags].concat());
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(65), "{error}");
    assert!(error.contains("error: step ") && error.contains("the loss of rank 0 is "), "{error}");
    let kept = std::fs::read_to_string(&records).unwrap();
    let last: serde_json::Value = serde_json::from_str(kept.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["kind"], &last["loss"]),
        (&"train_progress".into(), &serde_json::Value::Null),
        "{kept}"
    );
    assert!(error.contains(&format!("error: step {}:", last["step"])), "{error} {kept}");
    assert!(said(&["--help"]).contains("65 a run diverged"));
}

/// The names that `--accelerator` takes, and those of the machines' GPUs, are names of device models too.
#[test]
fn every_gpu_has_one_name_everywhere() {
    for gpu in ["A100 SXM", "RTX 2080 Ti"] {
        said(&["scale", "workload", "resnet18", "--topology", "pcie8", "--ranks", "1", "--accelerator", gpu]);
        let scale = ["scale", "--config", MLP, "--ranks", "1,2", "--modeled-only", "--device", gpu];
        assert!(said(&scale).contains(Device::named(gpu).unwrap().name), "{gpu}");
    }
    for gpu in GpuRates::all() {
        assert!(Device::named(&gpu.name).is_ok() && Device::named(&format!("{}_f32", gpu.name)).is_ok());
    }
    let gpus = Preset::all().unwrap().into_iter().map(|machine| machine.gpu);
    for gpu in gpus.collect::<BTreeSet<_>>() {
        assert_eq!(GpuRates::named(&gpu).unwrap().name, gpu);
        assert!(Device::named(&gpu).is_ok(), "{gpu}");
    }
}

#[test]
fn the_sample_runs_can_be_validated_and_calibrated() {
    let runs =
        ["a100x8_2n_all_gather", "a100x8_2n_all_reduce", "h100x8_1n_all_reduce", "h100x8_4n_all_reduce"];
    let runs = runs.map(|name| example(&format!("runs/{name}.json")));
    let runs: Vec<&str> = runs.iter().map(String::as_str).collect();
    let text = said(&[&["validate"], &*runs].concat());
    assert!(
        text.contains("example one") && text.contains("example two") && !text.contains("left out"),
        "{text}"
    );
    let folder = folder();
    let fitted = folder.path().join("ours.toml").to_str().unwrap().to_string();
    said(&[&["calibrate"], &*runs, &["--prior", "published", "--out", &fitted]].concat());
    let text = said(&["validate", runs[3], "--parameters", &fitted, "--rows"]);
    assert!(text.contains("predicted ") && text.contains("factor "), "{text}");
    let (table, hardware) = (example("runs/all_reduce_h100.txt"), example("runs/h100_hardware.json"));
    assert!(said(&["validate", &table, "--machine", &hardware]).contains("all_reduce_h100"));
}
