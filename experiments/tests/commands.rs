//! What each command prints and records.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{folder, records, said};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;

const CNN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-cnn.toml");

/// The rows of an nccl-tests table, each as its words between white space.
fn rows(text: &str) -> Vec<Vec<String>> {
    let body = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    body.map(|line| line.split_whitespace().map(String::from).collect()).collect()
}

fn check_table(text: &str, columns: usize, sizes: &[&str]) {
    let header: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
    assert!(header.iter().any(|l| l.contains("out-of-place") && l.contains("in-place")), "{text}");
    assert!(
        header.iter().any(|l| l.split_whitespace().nth(1) == Some("size") && l.contains("busbw")),
        "{text}"
    );
    assert!(header.iter().any(|l| l.starts_with("# Out of bounds values : ")), "{text}");
    assert!(header.iter().any(|l| l.starts_with("# Avg bus bandwidth    : ")), "{text}");
    let rows = rows(text);
    assert_eq!(rows.iter().map(|row| &row[0]).collect::<Vec<_>>(), sizes);
    for row in rows {
        assert_eq!(row.len(), columns, "{row:?}");
        assert_eq!(row[2], "float");
        assert!(row[5].parse::<f64>().is_ok() || row[5] == "N/A", "{row:?}");
        assert!(row[9].parse::<f64>().is_ok() || row[9] == "N/A", "{row:?}");
    }
}

#[test]
fn bench_prints_nccl_tests_table_and_finds_nothing_wrong() {
    let text = said(&[
        "bench",
        "all_reduce",
        "--backend",
        "threads",
        "--ranks",
        "3",
        "-b",
        "1K",
        "-e",
        "4K",
        "-n",
        "2",
        "-w",
        "1",
    ]);
    check_table(&text, 13, &["1024", "2048", "4096"]);
    assert!(text.contains("# Out of bounds values : 0 OK"), "{text}");
    assert!(text.contains("Limit, measured in this run") && text.contains("tree "), "{text}");
}

#[test]
fn simulate_prints_the_table_with_the_bound_beside_each_time() {
    let text =
        said(&["simulate", "all_reduce", "--topology", "nodes8", "--ranks", "16", "-b", "64K", "-e", "256K"]);
    check_table(&text, 14, &["65536", "131072", "262144"]);
    assert!(
        text.contains("simulated, all times are virtual") && text.contains("million messages/s"),
        "{text}"
    );
    for row in rows(&text) {
        let (time, bound): (f64, f64) = (row[5].parse().unwrap(), row[13].parse().unwrap());
        assert!(time >= bound && bound > 0.0, "{row:?}");
    }
}

#[test]
fn every_collective_is_measured_and_carried_right_and_alike() {
    for collective in allfold_collectives::Collective::ALL {
        let flags =
            ["--ranks", "3", "-b", "1000", "-e", "1000", "-n", "1", "-w", "0", "-r", "0", "-d", "bf16"];
        let on = |backend| {
            let all = records(&[&["bench", collective.name(), "--backend", backend], &flags[..]].concat());
            all.into_iter().filter(|record| record["kind"] == "collective").collect::<Vec<_>>()
        };
        let (real, sim) = (on("threads"), on("sim"));
        assert!(!real.is_empty() && real.len() == sim.len(), "{collective}");
        for (real, sim) in real.iter().zip(&sim) {
            assert_eq!((&real["measured"], &sim["measured"]), (&Value::Bool(true), &Value::Bool(false)));
            assert_eq!(
                (&real["wrong_elements"], &sim["wrong_elements"]),
                (&Value::from(0), &Value::from(0)),
                "{collective}"
            );
            assert_eq!(real["checksum"], sim["checksum"], "{collective}: the same bits on both");
        }
    }
}

#[test]
fn what_is_carried_takes_the_time_that_is_simulated() {
    let flags = [
        "all_reduce",
        "--topology",
        "nodes8",
        "--ranks",
        "16",
        "-b",
        "300000",
        "-e",
        "300000",
        "--algo",
        "ring",
    ];
    let time =
        |records: Vec<Value>| records.iter().find(|r| r["kind"] == "collective").unwrap()["time_us"].clone();
    let carried = time(records(&[&["bench", "--backend", "sim"], &flags[..]].concat()));
    let timed = time(records(&[&["simulate"], &flags[..]].concat()));
    assert_eq!(carried, timed);
}

#[test]
fn a_call_is_simulated_as_nccl_would_run_it() {
    let of = |extra: &[&str]| -> Vec<(String, f64)> {
        let flags = ["simulate", "all_reduce", "--topology", "hgx-h100", "--ranks", "16", "--algo", "nccl"];
        let sizes = ["-b", "8", "-e", "128M", "-f", "4096"];
        let all = records(&[&flags[..], &sizes[..], extra].concat());
        let calls = all.iter().filter(|record| record["kind"] == "collective");
        let calls = calls.map(|record| {
            let time = record["time_us"].as_f64().unwrap();
            assert!(time >= record["bound_us"].as_f64().unwrap(), "{record}");
            (record["algorithm"].as_str().unwrap().to_string(), time)
        });
        calls.collect()
    };
    let free = of(&[]);
    assert_eq!(free.len(), 3);
    assert_eq!(free[0].0, "NCCL Tree/LL", "the smallest call");
    assert!(free[2].0.ends_with("/Simple"), "the largest: {}", free[2].0);
    let ring = of(&["--nccl-algo", "ring", "--nccl-proto", "LL128,Simple"]);
    assert!(
        ring.iter().all(|(name, _)| name.starts_with("NCCL Ring/") && !name.ends_with("/LL")),
        "{ring:?}"
    );
    assert!(ring[0].1 > 1.5 * free[0].1, "a ring of 16 takes longer for 8 bytes: {ring:?}, {free:?}");
    let slow = of(&["--nccl-algo", "ring", "--nccl-proto", "LL128,Simple", "--without", "link-efficiency"]);
    assert!(slow[2].1 < ring[2].1, "nominal links are faster: {slow:?}");
}

#[test]
fn a_run_on_hardware_that_was_never_seen_says_what_was_made_of_it() {
    let folder = folder();
    let path = folder.path().join("ada.json");
    let text = r#"{"hardware":{"gpu":"NVIDIA RTX 6000 Ada Generation","gpus_per_node":4,"nodes":2,
        "intra_node":"PCIe Gen4, no NVLink","inter_node":"dual 100GbE RoCEv2"},
        "collective":"all_reduce","dtype":"float","ranks":8,
        "rows":[{"bytes":1073741824,"time_us":98000.0,"algbw_gbps":10.96,"busbw_gbps":19.17}]}"#;
    fs::write(&path, text).unwrap();
    let text = said(&["validate", path.to_str().unwrap(), "--predictor", "simulated"]);
    for line in [
        "understood: `NVIDIA RTX 6000 Ada Generation`: 6000 Ada",
        "understood: `dual 100GbE RoCEv2`: 2 NICs of 100 Gb/s, RoCE",
        "assumed: the GPUs of a node talk over PCIe",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn a_topology_file_brings_its_links_and_its_costs() {
    let folder = folder();
    let time = |costs: &str| {
        let path = folder.path().join("machine.toml");
        let text = format!(
            "kind = \"switch\"\n[device]\nbandwidth = \"100 GB/s\"\nlatency = \"1 us\"\n[costs]\n{costs}\n"
        );
        fs::write(&path, text).unwrap();
        let flags =
            ["all_reduce", "--topology", path.to_str().unwrap(), "--ranks", "4", "-b", "64K", "-e", "64K"];
        let of = |command: &[&str]| {
            let all = records(&[command, &flags[..]].concat());
            all.iter().find(|r| r["kind"] == "collective").unwrap()["time_us"].as_f64().unwrap()
        };
        let (timed, carried) = (of(&["simulate"]), of(&["bench", "--backend", "sim"]));
        assert_eq!(timed, carried);
        timed
    };
    let (cheap, dear) = (time("launch = \"0 us\""), time("launch = \"50 us\""));
    assert!((dear - cheap - 50.0).abs() < 1e-6, "{cheap} {dear}");
}

#[test]
fn records_carry_the_schema_and_never_mix_measured_with_simulated() {
    let measured = records(&[
        "bench",
        "broadcast",
        "--backend",
        "threads",
        "--ranks",
        "2",
        "-b",
        "64",
        "-e",
        "64",
        "-n",
        "1",
    ]);
    let simulated =
        records(&["simulate", "broadcast", "--topology", "switch", "--ranks", "2", "-b", "64", "-e", "64"]);
    for record in measured.iter().chain(&simulated) {
        for key in ["schema", "kind", "measured", "commit", "host", "command"] {
            assert!(record.get(key).is_some(), "no {key}: {record}");
        }
        assert_eq!(record["schema"], 2);
    }
    let keys = |record: &Value| record.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let collective = |all: &[Value]| all.iter().find(|r| r["kind"] == "collective").unwrap().clone();
    let (real, virtual_) = (collective(&measured), collective(&simulated));
    assert_eq!((&real["measured"], &virtual_["measured"]), (&Value::Bool(true), &Value::Bool(false)));
    for key in [
        "backend",
        "collective",
        "algorithm",
        "ranks",
        "dtype",
        "bytes",
        "time_us",
        "algbw_gbps",
        "busbw_gbps",
    ] {
        assert!(real.get(key).is_some() && virtual_.get(key).is_some(), "{key}");
    }
    assert!(!keys(&real).contains("topology") && !keys(&virtual_).contains("iterations"));
}

#[test]
fn verify_proves_and_records_every_algorithm() {
    let text = said(&["verify", "--ranks", "1..5"]);
    let count = allfold_collectives::registry::ALGORITHMS.len();
    assert!(text.contains(&format!("{0} of {0} proofs hold", count * 5)), "{text}");
    let records = records(&["verify", "all_reduce", "--algo", "ring", "--ranks", "2,4"]);
    let read = |r: &Value| (r["algorithm"].clone(), r["ranks"].clone(), r["ok"].clone());
    let expected = [2, 4].map(|ranks| (Value::from("ring"), Value::from(ranks), Value::Bool(true)));
    assert_eq!(records.iter().map(read).collect::<Vec<_>>(), expected);
    // The order may depend on the number of ranks: the table has the least that holds for all of them, not the last.
    let hierarchical =
        |ranks: &str| said(&["verify", "all_reduce", "--algo", "hierarchical", "--ranks", ranks]);
    assert!(hierarchical("1..13").contains(" uniform "), "{}", hierarchical("1..13"));
}

#[test]
fn show_draws_the_rounds_and_names_the_tree() {
    let text = said(&["show", "all_reduce", "--algo", "ring", "--ranks", "8"]);
    assert!(text.contains("rank 7") && text.contains("14 rounds") && text.contains("positional"), "{text}");
    let rooted =
        said(&["show", "broadcast", "--algo", "chain", "--ranks", "4", "--root", "2", "--segments", "3"]);
    assert!(rooted.contains("broadcast by chain"), "{rooted}");
}

#[test]
fn train_gives_the_same_bits_on_threads_and_on_sim() {
    let folder = folder();
    let config = folder.path().join("short.toml");
    let text = "[training]\nmax_steps = 3\nbatch = 8\n[ddp]\nfirst_bucket_kib = 16\nbucket_kib = 64\n";
    fs::write(&config, text).unwrap();
    let train = |more: &[&str]| {
        records(&[&["train", "--config", config.to_str().unwrap(), "--ranks", "2"], more].concat())
    };
    let trace = folder.path().join("trace.json");
    let (real, sim) = (train(&[]), train(&["--backend", "sim", "--trace", trace.to_str().unwrap()]));
    assert_eq!(real.len(), 3);
    for run in [&real, &sim] {
        lives_of_buckets(run, 2);
        let held = &run[2]["memory"];
        assert!(held["params"].as_u64().unwrap() > 0 && held["optimiser"] == held["params"], "{held}");
    }
    let losses =
        |all: &[Value]| all.iter().map(|r| (r["step"].clone(), r["loss"].clone())).collect::<Vec<_>>();
    assert_eq!(losses(&real), losses(&sim));
    let hash = |all: &[Value]| all.last().unwrap()["weights_hash"].as_str().unwrap().to_string();
    assert_eq!(hash(&real), hash(&sim));
    assert_eq!((&real[0]["measured"], &sim[0]["measured"]), (&Value::Bool(true), &Value::Bool(false)));
    let trace: Value = serde_json::from_str(&fs::read_to_string(trace).unwrap()).unwrap();
    assert!(!trace["traceEvents"].as_array().unwrap().is_empty());
}

/// Only the record of this step has more than one bucket; each was ready, sent and summed in that order.
fn lives_of_buckets(run: &[Value], step: usize) {
    for record in run {
        let buckets = record["buckets"].as_array().map_or(0, Vec::len);
        assert_eq!(buckets > 1, record["step"] == step, "{record}");
    }
    for bucket in run[step]["buckets"].as_array().unwrap() {
        let at = |what: &str| bucket[what].as_f64().unwrap();
        assert!(0.0 < at("ready_us") && at("ready_us") <= at("sent_us") && at("sent_us") <= at("done_us"));
        assert!(bucket["bytes"].as_u64().unwrap() > 0);
    }
}

/// On threads the trace of a step shows each bucket that the step sent. The memory of a hook is counted.
#[test]
fn a_traced_step_has_its_buckets() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let text = "[training]\nmax_steps = 4\nbatch = 8\n[ddp]\nfirst_bucket_kib = 16\nbucket_kib = 64\nhook = \"topk\"\n";
    fs::write(path("run.toml"), text).unwrap();
    let (config, trace) = (path("run.toml"), path("trace.json"));
    let train = ["train", "--config", &config, "--ranks", "2", "--trace", &trace, "--trace-step", "1"];
    let run = records(&train);
    lives_of_buckets(&run, 1);
    let (buckets, params) = (&run[3]["memory"]["buckets"], &run[3]["memory"]["params"]);
    // The buckets' buffers, and the parts of gradients that were not sent yet.
    assert!(buckets.as_u64().unwrap() >= 2 * params.as_u64().unwrap(), "{buckets} {params}");
    let trace: Value = serde_json::from_str(&fs::read_to_string(trace).unwrap()).unwrap();
    for rank in [0, 1] {
        let sent = |event: &&Value| event["pid"] == rank && event["cat"] == "communication";
        let drawn = trace["traceEvents"].as_array().unwrap().iter().filter(sent).count();
        assert_eq!(drawn, run[1]["buckets"].as_array().unwrap().len(), "{trace}");
    }
}

/// A resumed run times and traces only the steps that it ran itself, numbered as in the whole run.
#[test]
fn a_resumed_run_tells_of_its_own_steps() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let keep = "every = 2\nresume = true\n[training]\nbatch = 8\n";
    let text = format!("[checkpoint]\ndir = '{}'\n{keep}", path("kept"));
    fs::write(path("run.toml"), text).unwrap();
    let config = path("run.toml");
    let train = |steps: &str, more: &[&str]| {
        let train = ["train", "--config", &config, "--ranks", "2", "--backend", "sim", "--steps", steps];
        records(&[&train[..], more].concat())
    };
    let time = |records: &[Value]| records.last().unwrap()["time_us"].as_f64().unwrap();
    let backward = |records: &[Value]| records.last().unwrap()["backward_us"].as_f64().unwrap();
    let whole = train("8", &["--set", "checkpoint.every=0"]);
    train("6", &[]);
    let rest = train("8", &[]);
    assert_eq!((rest.len(), &rest[7]["weights_hash"]), (8, &whole[7]["weights_hash"]));
    // On virtual time a resumed step takes as long as the others.
    assert!((time(&rest) / time(&whole) - 1.0).abs() < 0.1, "{} {}", time(&rest), time(&whole));
    assert!((backward(&rest) / backward(&whole) - 1.0).abs() < 0.1);

    let traced = |step: &str| {
        let trace = path("trace.json");
        let threads = ["train", "--config", &config, "--ranks", "2", "--steps", "10", "--trace", &trace];
        let more = ["--set", "checkpoint.every=0", "--trace-step", step, "--json", &path("traced.jsonl")];
        common::allfold(&[&threads[..], &more].concat())
    };
    let output = traced("7");
    let says = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{says}");
    assert!(says.contains("step 7 was not traced: this process ran 2 steps, from step 8 on"), "{says}");
    assert_eq!(fs::read_to_string(path("traced.jsonl")).unwrap().lines().count(), 10, "the run is kept");
    assert_eq!(traced("9").status.code(), Some(0));
    assert!(fs::read_to_string(path("trace.json")).unwrap().contains("weight gradients"));
}

/// A loss that is not a number is null in a record, and the record can still be read.
#[test]
fn a_record_of_a_loss_that_is_no_number_is_read_back() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("run.toml"), "training.max_steps = 2\n").unwrap();
    said(&["train", "--config", &path("run.toml"), "--json", &path("runs.jsonl")]);
    let records = fs::read_to_string(path("runs.jsonl")).unwrap();
    let of_no_number = |line: &str| {
        let mut record: Value = serde_json::from_str(line).unwrap();
        if let Some(loss) = record.get_mut("loss") {
            *loss = serde_json::json!(f64::NAN);
        }
        record.to_string() + "\n"
    };
    fs::write(path("runs.jsonl"), records.lines().map(of_no_number).collect::<String>()).unwrap();
    said(&["report", "--from", &path("runs.jsonl"), "--out", &path("out")]);
    let page = fs::read_to_string(path("out/report.html")).unwrap();
    assert!(page.contains("<section id=\"training\">") && page.contains(">NaN<"), "{page}");
}

#[test]
fn shipped_configurations_are_valid() {
    let folders =
        ["/configs", "/configs/gpu"].map(|folder| format!("{}{folder}", env!("CARGO_MANIFEST_DIR")));
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    for path in entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
        let text = fs::read_to_string(&path).unwrap();
        allfold_trainer::config::parse(&text, &path.display().to_string()).unwrap();
    }
}

#[test]
fn scale_has_a_point_of_one_rank_and_a_table_of_each_kind() {
    let folder = folder();
    let html = folder.path().join("scaling.html");
    let text = said(&[
        "scale",
        "--config",
        CNN,
        "--ranks",
        "2,64",
        "--steps",
        "2",
        "--sim-ranks",
        "2",
        "--html",
        html.to_str().unwrap(),
    ]);
    assert!(text.contains("measured on this machine") && text.contains("modeled"), "{text}");
    assert!(text.lines().any(|line| line.trim_start().starts_with("64 ")), "{text}");
    assert!(fs::read_to_string(html).unwrap().contains("id=\"scaling\""));
}

/// A step on images with twelve times as many values takes longer than a step on the digits.
#[test]
fn scale_predicts_for_the_data_that_is_configured() {
    let folder = folder();
    let time = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        let records =
            records(&["scale", "--modeled-only", "--ranks", "2", "--config", path.to_str().unwrap()]);
        records.last().unwrap()["time_us"].as_f64().unwrap()
    };
    let digits = time("digits.toml", "training.batch = 64\n");
    let wide = "training.batch = 64\ndata.name = \"synthetic\"\ndata.synthetic_shape = [3, 16, 16]\n";
    assert!(time("wide.toml", wide) > 1.5 * digits);
    // CIFAR's files are missing here: the shape of its samples is known without them.
    assert!(time("cifar.toml", "training.batch = 64\ndata.name = \"cifar10\"\n") > 1.5 * digits);
}

/// Two ranks take 1,000 samples each in a step, from a dataset of 1,437.
#[test]
fn scale_has_points_of_more_samples_than_there_are() {
    let folder = folder();
    let path = folder.path().join("large.toml");
    fs::write(&path, "training.batch = 1000\n").unwrap();
    let text = said(&[
        "scale",
        "--config",
        path.to_str().unwrap(),
        "--ranks",
        "2",
        "--steps",
        "1",
        "--sim-ranks",
        "2",
    ]);
    assert_eq!(text.lines().filter(|line| line.trim_start().starts_with("2 ")).count(), 3, "{text}");
}

#[test]
fn scale_leaves_checkpoints_alone() {
    let folder = folder();
    let checkpoints = folder.path().join("checkpoints");
    let path = folder.path().join("config.toml");
    let set = format!("\n[checkpoint]\ndir = '{}'\nevery = 1\n", checkpoints.display());
    fs::write(&path, format!("{}{set}", fs::read_to_string(CNN).unwrap())).unwrap();
    said(&["scale", "--config", path.to_str().unwrap(), "--ranks", "1", "--steps", "2", "--sim-ranks", "1"]);
    assert!(!checkpoints.exists(), "{checkpoints:?}");
}

#[test]
fn more_sockets_than_the_soft_limit_are_had() {
    let script = format!(
        "ulimit -S -n 64; '{}' bench all_reduce --backend tcp --ranks 8 -b 8 -e 8 -n 1 -w 0",
        env!("CARGO_BIN_EXE_allfold")
    );
    let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn doctor_finds_the_cpus() {
    let records = records(&["doctor"]);
    let cpu = records.iter().find(|record| record["item"] == "cpu").unwrap();
    assert_eq!(cpu["found"], true);
    assert!(records.iter().all(|record| record["found"] == true || record["advice"].is_string()));
}

#[test]
fn records_are_appended_to_a_file() {
    let folder = folder();
    let path = folder.path().join("runs.jsonl");
    for _ in 0..2 {
        said(&[
            "show",
            "barrier",
            "--algo",
            "dissemination",
            "--ranks",
            "4",
            "--json",
            path.to_str().unwrap(),
        ]);
    }
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file stays");
}
