//! Ranks that are killed, stopped or late in a collective, in each command, on one host and as two nodes: nothing waits for longer than
//! `ALLFOLD_TIMEOUT`, every end names the rank, and a rank that is late changes no result.

use super::*;

/// The commands of the matrix.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Running {
    Bench,
    Train,
    Scale,
}

/// How the ranks of a job lie: four on one host, or two on each of two nodes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Layout {
    OneHost,
    TwoNodes,
}

/// The rank that is struck: of two nodes, one of the node without rank 0.
fn struck(layout: Layout) -> &'static str {
    match layout {
        Layout::OneHost => "1",
        Layout::TwoNodes => "3",
    }
}

impl Running {
    fn words(self, ends: bool, json: &str) -> Vec<String> {
        let config = config("digits-mlp.toml");
        let steps = if ends { "12" } else { "1000000" };
        let most = format!("training.max_steps={steps}");
        let words: Vec<&str> = match self {
            Running::Bench => {
                let calls = if ends { "20" } else { "1000000" };
                vec![
                    "bench",
                    "all_reduce",
                    "--backend",
                    "nccl",
                    "-b",
                    "4K",
                    "-e",
                    "4K",
                    "-w",
                    "1",
                    "-n",
                    calls,
                ]
            }
            Running::Train => vec![
                "train",
                "--config",
                &config,
                "--device",
                "cuda",
                "--set",
                "training.epochs=1000000",
                "--set",
                &most,
                "--json",
                json,
            ],
            Running::Scale => vec![
                // The fault comes early in the first point of the struck rank.
                "scale",
                "--config",
                &config,
                "--set",
                "device=\"cuda\"",
                "--ranks",
                "2,4",
                "--steps",
                "12",
                "--json",
                json,
            ],
        };
        words.into_iter().map(String::from).collect()
    }
}

/// Runs a command on four ranks, of which one has the fault; returns how each launcher ended.
fn job(running: Running, layout: Layout, fault: Option<&str>, ends: bool, json: &str) -> Vec<Ended> {
    let rendezvous = format!("127.0.0.1:{}", free_port());
    let node = |launch: &[&str], node: &str| {
        let words: Vec<String> = launch.iter().map(|word| (*word).to_string()).collect();
        let all = [words, vec!["--".into()], running.words(ends, json)].concat();
        let mut command = command(&all.iter().map(String::as_str).collect::<Vec<_>>());
        command.env("NCCL_HOSTID", format!("node{node}"));
        if let Some(fault) = fault {
            command.env("ALLFOLD_STANDIN_RANK", struck(layout)).env("ALLFOLD_STANDIN_FAULT", fault);
        }
        if !ends {
            command.env("ALLFOLD_TIMEOUT", "8");
        }
        command
    };
    let of_two = |number: &'static str| {
        let launch = [
            "launch",
            "-n",
            "2",
            "--grace",
            "1",
            "--nnodes",
            "2",
            "--node-rank",
            number,
            "--rdzv",
            &rendezvous,
        ];
        node(&launch, number)
    };
    together(match layout {
        Layout::OneHost => vec![node(&["launch", "-n", "4", "--grace", "1"], "0")],
        Layout::TwoNodes => vec![of_two("0"), of_two("1")],
    })
}

/// A job with a rank that is killed or stopped fails, and its errors name the rank.
fn is_named(running: Running, layout: Layout, fault: &str) {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("records").display().to_string();
    let ended = job(running, layout, Some(fault), false, &json);
    let named = format!("rank {}", struck(layout));
    for launcher in &ended {
        assert!(
            !matches!(launcher.code, Some(0 | 101)),
            "{running:?} {layout:?} {fault}: {}",
            launcher.errors
        );
        assert!(!launcher.errors.contains("panicked"), "{running:?} {layout:?} {fault}: {}", launcher.errors);
    }
    let errors = &ended[0].errors;
    let names = errors.lines().any(|line| line.contains("error") && line.contains(&named));
    assert!(names, "{running:?} {layout:?} {fault}: {named} is not named in: {errors}");
}

/// A job with a rank that is late for a second ends with the results of an undisturbed one.
fn late_changes_nothing(running: Running, layout: Layout) {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, layout, fault| {
        let json = folder.path().join(name).display().to_string();
        let ended = job(running, layout, fault, true, &json);
        let all = ended.iter().map(|launcher| launcher.errors.as_str()).collect::<String>();
        assert!(ended.iter().all(|launcher| launcher.code == Some(0)), "{running:?} {layout:?}: {all}");
        (ended[0].text.clone(), std::path::PathBuf::from(json))
    };
    let (text, json) = run("late", layout, Some("late:8"));
    let losses = |json: &std::path::Path| {
        let last = records(json).into_iter().rfind(|record| record["losses_hash"].is_string()).unwrap();
        [last["losses_hash"].clone(), last["loss"].clone()]
    };
    match running {
        Running::Bench => {
            let row = text.lines().find(|line| line.contains("float")).unwrap();
            let words: Vec<&str> = row.trim_start_matches("[rank 0] ").split_whitespace().collect();
            assert_eq!([words[8], words[12]], ["0", "0"], "{layout:?}: {row}");
        }
        Running::Train => {
            let undisturbed = run("undisturbed", Layout::OneHost, None).1;
            assert_eq!(losses(&json), losses(&undisturbed), "{layout:?}");
        }
        Running::Scale => {
            let all = records(&json);
            let measured =
                all.iter().filter(|record| record["kind"] == "scale" && record["measured"] == true);
            let points: Vec<_> =
                measured.map(|point| (point["ranks"].as_u64(), point["exchange"].as_str())).collect();
            let nccl = Some("native NCCL 2.30.3");
            assert_eq!(points, [(Some(1), None), (Some(2), nccl), (Some(4), nccl)], "{layout:?}");
        }
    }
}

macro_rules! matrix {
    ($($name:ident: $running:ident $layout:ident),*) => {$(
        mod $name {
            use super::{Layout, Running, is_named, late_changes_nothing};

            #[test]
            fn a_rank_that_is_killed_in_a_collective_is_named() {
                is_named(Running::$running, Layout::$layout, "kill:9");
            }

            #[test]
            fn a_rank_that_is_stopped_in_a_collective_is_named() {
                is_named(Running::$running, Layout::$layout, "stop:9");
            }

            #[test]
            fn a_rank_that_is_late_changes_no_result() {
                late_changes_nothing(Running::$running, Layout::$layout);
            }
        }
    )*};
}

matrix! {
    bench_on_one_host: Bench OneHost,
    bench_on_two_nodes: Bench TwoNodes,
    train_on_one_host: Train OneHost,
    train_on_two_nodes: Train TwoNodes,
    scale_on_one_host: Scale OneHost,
    scale_on_two_nodes: Scale TwoNodes
}
