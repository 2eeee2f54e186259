//! Runs that were measured elsewhere: which machine they were on, what is left out of their fit, and what is made of their records.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{folder, said, says};
use std::fs;
use std::path::Path;

/// A table of nccl-tests of two ranks on each of these hosts.
fn log(hosts: &[&str], gpu: &str) -> String {
    let mut text = "# Collective test starting: all_reduce_perf\n".to_string();
    for rank in 0..2 * hosts.len() {
        let host = hosts[rank / 2];
        text +=
            &format!("#  Rank {rank:2} Group  0 Pid 7 on {host} device {} [0000:0f:00] {gpu}\n", rank % 2);
    }
    let ranks = 2.0 * hosts.len() as f64;
    text += "NCCL version 2.21.5+cuda12.4\n# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n";
    for (bytes, us) in [(8.0, 20.0), (1_048_576.0, 50.0), (67_108_864.0, 800.0)] {
        let algbw = bytes / us / 1e3;
        let side = format!("{us} {algbw:.2} {:.2} 0", algbw * 2.0 * (ranks - 1.0) / ranks);
        text += &format!("{bytes} {} float sum -1 {side} {side}\n", bytes / 4.0);
    }
    text + "# Avg bus bandwidth : 1\n"
}

fn written(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().into()
}

#[test]
fn a_log_s_own_lines_say_what_it_ran_on_and_no_other_machine_is_taken() {
    let folder = folder();
    let one = written(folder.path(), "one.log", &log(&["n1"], "NVIDIA A100-SXM4-80GB"));
    let two = written(folder.path(), "two.log", &log(&["n1", "n2"], "NVIDIA A100-SXM4-80GB"));
    let text = said(&["validate", &one, "--predictor", "physical"]);
    assert!(
        text.contains("1 x 2 GPUs") && text.contains("A100 SXM") && text.contains("NCCL 2.21.5"),
        "{text}"
    );
    let listed = "lists 2 hosts of 2 x NVIDIA A100-SXM4-80GB";
    says(&["validate", &two], &[listed, "--topology hgx-h100", "--machine FILE", "\"inter_node\""]);
    let out = folder.path().join("p.toml");
    says(&["calibrate", &two, "--out", out.to_str().unwrap()], &[listed, "--topology hgx-h100"]);
    says(
        &["validate", &two, "--topology", "hgx-h100"],
        &[listed, "H100 SXM", "the machine that the run was on"],
    );
    let words =
        |gpu: &str, more: &str| format!("{{\"gpu\": \"{gpu}\", \"inter_node\": \"2x200Gb/s RoCE\"{more}}}");
    for (wrong, said) in
        [(words("H100", ""), "H100"), (words("A100", ", \"nodes\": 4"), "4 hosts of ? x A100")]
    {
        let wrong = written(folder.path(), "wrong.json", &wrong);
        says(&["validate", &two, "--machine", &wrong], &[listed, said]);
    }
    let right = written(folder.path(), "right.json", &words("A100 SXM", ""));
    for given in [["--machine", &right], ["--topology", "dgx-a100"]] {
        let text = said(&[&["validate", &two, "--predictor", "physical"], &given[..]].concat());
        assert!(text.contains("hardware of two: 2 x 2 GPUs"), "{text}");
    }
    let mixed =
        fs::read_to_string(&two).unwrap().replacen("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", 1);
    says(&["validate", &written(folder.path(), "mixed.log", &mixed)], &["two kinds of GPU"]);
    let uneven = fs::read_to_string(&two).unwrap().replacen("on n2", "on n1", 1);
    says(&["validate", &written(folder.path(), "uneven.log", &uneven)], &["different numbers of ranks"]);
}

#[test]
fn a_run_that_is_given_twice_counts_once_and_a_copy_of_a_fitted_run_is_known() {
    let folder = folder();
    let text = log(&["n1"], "NVIDIA H100 80GB HBM3");
    let [one, two] = ["one.log", "two.log"].map(|name| written(folder.path(), name, &text));
    let found = said(&["validate", &one, &two, "--predictor", "physical"]);
    assert!(found.contains("left out: two has the same rows as one, and counts once"), "{found}");
    let fitted = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/runs/v100x1_2n_p3dn_all_reduce.json");
    let copy = written(folder.path(), "mine.json", &fs::read_to_string(fitted).unwrap());
    let found = said(&["validate", &copy, "--predictor", "physical"]);
    assert!(found.contains("1 of 1 runs took part in the fit"), "{found}");
}

#[test]
fn what_is_given_takes_the_place_of_what_a_log_lacks() {
    let folder = folder();
    let text = log(&["n1"], "NVIDIA H100 80GB HBM3");
    let table: String =
        text.lines().filter(|line| !line.contains("Rank")).map(|line| format!("{line}\n")).collect();
    let bare = written(folder.path(), "bare.log", &table.replace("all_reduce_perf", "broadcast_perf"));
    says(
        &["validate", &bare, "--topology", "hgx-h100,devices=2"],
        &["bare.log:3:1: how many ranks?", "--ranks N"],
    );
    let call =
        ["validate", &bare, "--topology", "hgx-h100,devices=2", "--predictor", "physical", "--ranks", "2"];
    let found = said(&[&call[..], &["--env", "NCCL_PROTO=LL", "--env", "NCCL_CROSS_NIC=0"]].concat());
    for part in
        ["broadcast over 2 ranks", "understood: NCCL_PROTO=LL", "no effect on the prediction: NCCL_CROSS_NIC"]
    {
        assert!(found.contains(part), "{found}");
    }
    says(&[&call[..], &["--env", "NCCL_PROTO"]].concat(), &["such as NCCL_ALGO=Ring"]);
}

#[test]
fn a_fit_that_leaves_out_all_runs_is_refused() {
    let folder = folder();
    let one = written(folder.path(), "one.log", &log(&["n1"], "NVIDIA H100 80GB HBM3"));
    for flag in ["--leave-one-system-out", "--leave-one-generation-out", "--leave-one-fabric-out"] {
        says(&["validate", &one, flag], &["nothing is left to fit to", "several"]);
    }
}

/// A run's `system` is a text of the file; the plot is named after it.
#[test]
fn plots_stay_in_their_folder_and_say_what_their_predictions_are_made_from() {
    let folder = folder();
    let rows: Vec<String> = [1 << 10, 1 << 20, 1 << 26]
        .map(|bytes: u64| format!("{{\"bytes\":{bytes},\"time_us\":50.0}}"))
        .to_vec();
    let absolute = folder.path().join("absolute").to_str().unwrap().to_string();
    for (number, system) in ["../outside", &absolute, "..", "a/b", ""].into_iter().enumerate() {
        let text = format!(
            "{{\"hardware\":{{\"gpu\":\"H100 SXM\",\"gpus_per_node\":8,\"nodes\":1}},\"system\":\"{system}\",\
             \"collective\":\"all_reduce\",\"dtype\":\"float\",\"ranks\":8,\"rows\":[{}]}}",
            rows.join(",")
        );
        let run = written(folder.path(), "run.json", &text);
        let plots = folder.path().join(format!("plots{number}"));
        said(&["validate", &run, "--predictor", "physical", "--plots", plots.to_str().unwrap()]);
        let files: Vec<_> = fs::read_dir(&plots).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), 1, "{system}: {files:?}");
        let svg = fs::read_to_string(&files[0]).unwrap();
        assert!(svg.contains("predicted by given parameters, without these runs"), "{svg}");
        assert!(!svg.contains("from all other"), "{svg}");
    }
    let outside: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    let known = |name: &std::ffi::OsString| name == "run.json" || name.to_str().unwrap().starts_with("plots");
    assert!(outside.iter().all(known), "{outside:?}");
}

#[test]
fn records_of_validate_become_a_page_and_are_compared_with_simulated_ones() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let run = written(folder.path(), "run.log", &log(&["n1"], "NVIDIA H100 80GB HBM3"));
    let (validated, simulated, page) = (path("validated.jsonl"), path("simulated.jsonl"), path("page"));
    let hint = "`allfold validate LOG --topology NAME --json FILE` makes records";
    common::says(&["report", "--from", &run, "--out", &page], &["run.log: line 1: no JSON record", hint]);
    common::says(&["diff", &run, &run], &[hint]);
    said(&["validate", &run, "--json", &validated]);
    let lines = fs::read_to_string(&validated).unwrap();
    assert_eq!((lines.lines().count(), lines.matches("\"command\"").count()), (9, 1), "{lines}");
    said(&["report", "--from", &validated, "--out", &page]);
    let html = fs::read_to_string(Path::new(&page).join("report.html")).unwrap();
    assert!(
        html.contains("Predicted beside measured") && html.contains("by the predictor physical"),
        "{html}"
    );
    let call = ["simulate", "all_reduce", "--algo", "nccl", "--topology", "hgx-h100", "--ranks", "2"];
    said(&[&call[..], &["-b", "1M", "-e", "64M", "-f", "64", "--json", &simulated]].concat());
    for (before, after, which) in
        [(&validated, &simulated, "measured by simulated"), (&simulated, &validated, "simulated by measured")]
    {
        let output = common::allfold(&["diff", before, after, "--tolerance", "1000"]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(which) && text.contains("all_reduce of 64 MiB, 2 ranks"), "{text}");
    }
    let text = said(&["diff", &validated, &validated]);
    assert!(text.contains("of run, predicted by closed-form") && text.contains("0 slower"), "{text}");
}
