//! `bench --backend nccl` over processes.

use super::*;

/// The rows of a table: the size, and the numbers of wrong elements out of place and in place.
fn rows(text: &str) -> Vec<(u64, String, String)> {
    let row = |line: &str| {
        // A launcher writes the rank before each line.
        let words: Vec<&str> = line.trim_start_matches("[rank 0] ").split_whitespace().collect();
        let size = words.first()?.parse().ok()?;
        Some((size, (*words.get(8)?).to_string(), (*words.get(12)?).to_string()))
    };
    text.lines().filter_map(row).collect()
}

fn right(text: &str, sizes: &[u64], in_place: &str) {
    let wanted: Vec<_> = sizes.iter().map(|size| (*size, "0".to_string(), in_place.to_string())).collect();
    assert_eq!(rows(text), wanted, "{text}");
    assert!(text.contains("of NCCL 2.30.3"), "{text}");
}

#[test]
fn every_collective_is_right_over_processes_on_one_communicator_for_all_sizes() {
    for (collective, in_place) in [
        ("all_reduce", "0"),
        ("broadcast", "0"),
        ("reduce", "0"),
        ("all_gather", "0"),
        ("reduce_scatter", "0"),
        ("all_to_all", "N/A"),
        ("gather", "N/A"),
        ("scatter", "N/A"),
    ] {
        let words = ["launch", "-n", "4", "--", "bench", collective, "--backend", "nccl"];
        let sizes = ["-b", "64", "-e", "4K", "-f", "64", "-w", "1", "-r", "0"];
        let text = said(&[&words[..], &sizes].concat());
        right(&text, &[64, 4096], in_place);
        assert!(text.contains("4 ranks on 8 x ") && text.contains("a process per rank"), "{text}");
    }
}

#[test]
fn what_reads_nccl_tests_tables_reads_this_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("table.txt");
    let bench = ["bench", "all_reduce", "--backend", "nccl", "-b", "1K", "-e", "64K", "-f", "8", "-w", "1"];
    let labelled = said(&[&["launch", "-n", "2", "--"], &bench[..]].concat());
    let plain = said(&[&bench[..], &["--ranks", "2"]].concat());
    for text in [labelled, plain] {
        assert!(text.contains("all_reduce_perf") && text.contains("Rank  1 Group  0 Pid"), "{text}");
        std::fs::write(&file, &text).unwrap();
        let read = run(&["validate", &file.display().to_string()]);
        assert!(!read.errors.contains("expected") && read.code != Some(101), "{}{}", read.text, read.errors);
    }
}

#[test]
fn a_job_of_two_nodes_on_one_host_is_told_apart_by_the_hosts_names() {
    let rendezvous = format!("127.0.0.1:{}", free_port());
    let nodes = |named: bool| {
        let node = |node: &'static str| {
            let launch = ["launch", "-n", "2", "--nnodes", "2", "--node-rank", node, "--rdzv", &rendezvous];
            let bench = ["--", "bench", "all_reduce", "--backend", "nccl", "-b", "4K", "-e", "4K", "-w", "1"];
            let mut command = command(&[&launch[..], &bench].concat());
            if named {
                command.env("NCCL_HOSTID", format!("node{node}"));
            }
            command
        };
        together(vec![node("0"), node("1")])
    };
    let apart = nodes(true);
    assert!(apart.iter().all(|node| node.code == Some(0)), "{}{}", apart[0].errors, apart[1].errors);
    right(&apart[0].text, &[4096], "0");
    let same = nodes(false);
    assert_eq!(same[0].code, Some(2), "{}", same[0].errors);
    assert!(same[0].errors.contains("are on one GPU, which NCCL 2.30.3 refuses here"), "{}", same[0].errors);
}

#[test]
fn torchruns_and_slurms_variables_make_a_process_a_rank() {
    let (port, job) = (free_port().to_string(), std::process::id().to_string());
    let rank = |variables: &[(&str, String)]| {
        let words = ["bench", "all_reduce", "--backend", "nccl", "-b", "4K", "-e", "4K", "-w", "1"];
        let mut command = command(&words);
        command.envs(variables.iter().map(|(name, value)| (*name, value)));
        command
    };
    let of_torchrun = |rank_: usize| {
        rank(&[
            ("RANK", rank_.to_string()),
            ("WORLD_SIZE", "2".into()),
            ("LOCAL_RANK", rank_.to_string()),
            ("LOCAL_WORLD_SIZE", "2".into()),
            ("MASTER_ADDR", "127.0.0.1".into()),
            ("MASTER_PORT", port.clone()),
        ])
    };
    let of_slurm = |rank_: usize| {
        rank(&[
            ("SLURM_JOB_ID", job.clone()),
            ("SLURM_STEP_ID", "0".into()),
            ("SLURM_PROCID", rank_.to_string()),
            ("SLURM_LOCALID", rank_.to_string()),
            ("SLURM_NODEID", "0".into()),
            ("SLURM_NTASKS", "2".into()),
            ("SLURM_STEP_NUM_TASKS", "2".into()),
            ("SLURM_STEP_TASKS_PER_NODE", "2".into()),
            ("SLURM_STEP_NODELIST", "127.0.0.1".into()),
            ("MASTER_ADDR", "127.0.0.1".into()),
            ("MASTER_PORT", port.clone()),
        ])
    };
    for ranks in [vec![of_torchrun(0), of_torchrun(1)], vec![of_slurm(0), of_slurm(1)]] {
        let ended = together(ranks);
        assert!(ended.iter().all(|rank| rank.code == Some(0)), "{}{}", ended[0].errors, ended[1].errors);
        right(&ended[0].text, &[4096], "0");
        assert!(ended[1].text.is_empty(), "{}", ended[1].text);
    }
}

/// A shell inside of `srun --pty` is a job of one process.
#[test]
fn an_interactive_step_of_slurm_has_started_no_other_ranks() {
    let mut bench =
        command(&["bench", "all_reduce", "--backend", "nccl", "--ranks", "2", "-b", "4K", "-e", "4K"]);
    let config = config("digits-mlp.toml");
    let mut train = command(&["train", "--config", &config, "--ranks", "2", "--set", "training.max_steps=2"]);
    for job in [&mut bench, &mut train] {
        job.envs([
            ("SLURM_JOB_ID", "7"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "0"),
            ("SLURM_LOCALID", "0"),
        ]);
        job.envs([("SLURM_NTASKS", "1"), ("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_STEP_TASKS_PER_NODE", "1")]);
        let ended = ended(job.output().unwrap());
        assert_eq!(ended.code, Some(0), "{}", ended.errors);
        assert!(ended.text.contains("2 ranks"), "{}", ended.text);
    }
}

#[test]
fn nccl_tests_flags_are_kept_or_refused_with_a_reason() {
    let words =
        ["launch", "-n", "2", "--", "bench", "all_reduce", "--backend", "nccl", "-b", "4K", "-e", "4K"];
    let kept = [
        &["-m", "4"][..],
        &["-z", "1"],
        &["-a", "3"],
        &["-C", "1"],
        &["-T", "60"],
        &["-p", "1"],
        &["-R", "1"],
        &["-R", "2"],
        &["-G", "2", "-m", "3"],
    ];
    for flags in kept {
        right(&said(&[&words[..], &["-w", "1"], flags].concat()), &[4096], "0");
    }
    let alone = ["bench", "all_reduce", "--backend", "nccl", "--ranks", "2"];
    for flag in ["-t", "-g", "-N", "-S", "-K", "-M", "-u"] {
        let Ended { code, text, errors } = run(&[&alone[..], &[flag, "1"]].concat());
        assert_eq!((code, text.as_str(), errors.lines().count()), (Some(2), "", 1), "{flag}: {errors}");
    }
    for flags in [&["-G", "1", "-z", "1"][..], &["-G", "1", "-I", "1"], &["-G", "1", "--algo", "ring"]] {
        let Ended { code, errors, .. } = run(&[&alone[..], flags].concat());
        assert!(code == Some(2) && errors.contains("calls in a graph run without it"), "{flags:?}: {errors}");
    }
    let split = ended(command(&alone).env("NCCL_TESTS_SPLIT", "MOD 2").output().unwrap());
    assert!(split.code == Some(2) && split.errors.contains("NCCL_TESTS_SPLIT divides"), "{}", split.errors);
    let old = command(&[&words[..], &["-R", "2"]].concat())
        .envs([("ALLFOLD_STANDIN_RANK", "all"), ("ALLFOLD_STANDIN_NCCL", "2.21")])
        .output()
        .unwrap();
    let old = ended(old);
    assert!(
        old.code == Some(2) && old.errors.contains("no ncclCommWindowRegister; 2.27 or newer"),
        "{}",
        old.errors
    );
    let other = run(&["bench", "all_reduce", "--backend", "threads", "--ranks", "2", "-m", "4"]);
    assert!(other.code == Some(2) && other.errors.contains("--backend nccl"), "{}", other.errors);
}

#[test]
fn the_file_of_results_is_read_as_nccl_tests_own_and_has_the_times_of_each_call() {
    let folder = tempfile::tempdir().unwrap();
    let [file, table] =
        ["results.json", "table.txt"].map(|name| folder.path().join(name).display().to_string());
    let bench = [
        "bench",
        "all_reduce",
        "--backend",
        "nccl",
        "-b",
        "1K",
        "-e",
        "64K",
        "-f",
        "8",
        "-w",
        "1",
        "-I",
        "1",
    ];
    let text = said(&[&["launch", "-n", "2", "--"], &bench[..], &["-J", &file]].concat());
    assert!(text.contains("i_min    i_max    i_p99    i_cv%"), "{text}");
    let written: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((&written["version"], &written["nccl_version"]), (&3.into(), &23003.into()));
    assert_eq!(written["config"]["devices"][1]["rank"], 1, "{written}");
    let sizes: Vec<_> =
        written["results"].as_array().unwrap().iter().map(|line| line["size"].clone()).collect();
    assert_eq!(sizes, [1024, 8192, 65536]);
    for line in written["results"].as_array().unwrap() {
        for side in ["out_of_place", "in_place"] {
            assert_eq!(line[side]["nwrong"], 0.0, "{line}");
            let calls = line[format!("{side}_per_iter")].clone();
            // Five stretches of 20 calls.
            assert_eq!(calls["times_us"].as_array().unwrap().len(), 100, "{line}");
            let of = |key: &str| calls[key].as_f64().unwrap();
            let order = [of("min_us"), of("p50_us"), of("p95_us"), of("p99_us"), of("max_us")];
            assert!(order.is_sorted(), "{order:?}");
        }
    }
    // The table and the file are the same run for what reads either, here as one of a GPU that is known.
    let known = |path: &str, text: &str| {
        std::fs::write(path, text.replace("stand-in GPU", "NVIDIA H100 80GB HBM3")).unwrap();
    };
    known(&table, &text);
    known(&file, &std::fs::read_to_string(&file).unwrap());
    let read = |path: &str| {
        let to = format!("{path}.jsonl");
        let Ended { text, errors, .. } = run(&["validate", path, "--json", &to]);
        assert!(text.contains("all_reduce over 2 ranks, 6 rows of float"), "{text}{errors}");
        let rows = records(to.as_ref()).into_iter().filter(|record| record["bytes"].is_u64());
        rows.map(|record| record["bytes"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let (of_file, of_table) = (read(&file), read(&table));
    assert_eq!(of_file, of_table);
    assert!(!of_file.is_empty());
}

#[test]
fn doctor_says_how_gpus_reach_each_other_and_what_nccl_finds() {
    let folder = tempfile::tempdir().unwrap();
    let tuner = folder.path().join("libnccl-tuner-own.so");
    std::fs::write(&tuner, "").unwrap();
    let mut doctor = command(&["doctor"]);
    doctor.env("ALLFOLD_STANDIN", "4").env("LD_LIBRARY_PATH", folder.path());
    doctor.env("NCCL_TUNER_PLUGIN", "own").env("NCCL_NET_PLUGIN", "none-such");
    let Ended { code, text, errors } = ended(doctor.output().unwrap());
    assert_eq!(code, Some(0), "{errors}");
    assert!(text.contains("6 pairs: 6 over NVLink, 0 over PCIe, 0 without peer access"), "{text}");
    let plugins = format!("network: NCCL_NET_PLUGIN=none-such is not found; tuner: {}", tuner.display());
    assert!(text.contains(&plugins), "{text}");
}
