//! `allfold why`: causes of slow runs on the command line.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{folder, refused, said};

const FORCED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/why/ring-forced.json");
const HEALTHY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/why/one-gpu-four-nics.json");

#[test]
fn a_forced_algorithm_is_confirmed_and_among_the_first_two() {
    let folder = folder();
    let records = folder.path().join("why.jsonl").display().to_string();
    let text = said(&["why", FORCED, "--env", "NCCL_TREE_THRESHOLD=0", "--json", &records]);
    assert!(text.contains("NCCL_TREE_THRESHOLD=0: confirms wrong algorithm"), "{text}");
    let records = std::fs::read_to_string(&records).unwrap();
    let causes = records.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let causes: Vec<_> =
        causes.take(2).map(|cause| (cause["kind"].clone(), cause["cause"].clone())).collect();
    assert!(causes.contains(&("why".into(), "wrong algorithm (Ring)".into())), "{causes:?}");
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
