//! `allfold why`: causes of slow runs on the command line.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{folder, refused, said};

const FORCED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/why/ring-forced.json");
const HEALTHY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/why/one-gpu-four-nics.json");

#[test]
fn a_forced_algorithm_is_named_with_what_mends_it() {
    let folder = folder();
    let records = folder.path().join("why.jsonl").display().to_string();
    let text = said(&["why", FORCED, "--json", &records]);
    assert!(text.contains("to mend it: unset NCCL_ALGO"), "{text}");
    let first = std::fs::read_to_string(&records).unwrap();
    let first: serde_json::Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    assert_eq!(
        (first["kind"].as_str(), first["cause"].as_str()),
        (Some("why"), Some("wrong algorithm (Ring)"))
    );
    assert!(first["probability"].as_f64().unwrap() > 0.8, "{first}");
}

#[test]
fn a_run_within_its_interval_is_not_mended() {
    let text = said(&["why", HEALTHY]);
    assert!(text.contains("as many as of a healthy run") && !text.contains("to mend it"), "{text}");
}

#[test]
fn a_log_rules_causes_out_and_no_log_is_refused() {
    let folder = folder();
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let log = path(
        "nccl.log",
        "a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA\n\
         a:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 16 - Init COMPLETE\n",
    );
    let text = said(&["why", FORCED, "--log", &log]);
    assert!(
        text.contains("rules out GPUDirect RDMA off") && text.contains("rules out wrong algorithm"),
        "{text}"
    );
    let other = path("other.txt", "nothing\n");
    assert!(refused(&["why", FORCED, "--log", &other]).contains("expected lines with `NCCL INFO`"));
}

#[test]
fn no_tuner_file_is_written_where_no_gain_is_sure() {
    let folder = folder();
    let file = folder.path().join("tuner.conf");
    let text = said(&["why", HEALTHY, "--tuner", &file.display().to_string()]);
    assert!(text.contains("no tuner file: ") && !file.exists(), "{text}");
}
