//! Every layout that is read, and the errors for files that cannot be read.

mod posted;

use super::{Run, parse};
use allfold_schedules::Collective;

/// A table of nccl-tests 2.17, with `root` and `#wrong`, in the output of two ranks that a launcher has labelled.
const RECENT: &str = "\
[1,0]<stdout>:# Collective test starting: all_reduce_perf
[1,0]<stdout>:# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 1 iters: 20
[1,0]<stdout>:# Using devices
[1,0]<stdout>:#  Rank  0 Group  0 Pid 1234 on      node1 device  0 [0000:0f:00] NVIDIA H100 80GB HBM3
[1,0]<stdout>:#  Rank  1 Group  0 Pid 1235 on      node1 device  1 [0000:2d:00] NVIDIA H100 80GB HBM3
[1,1]<stdout>:node1:1235:1300 [1] NCCL INFO Using network IB
[1,0]<stdout>:NCCL version 2.21.5+cuda12.4
[1,0]<stdout>:#                                                              out-of-place                       in-place
[1,0]<stdout>:#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
[1,0]<stdout>:#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
[1,0]<stdout>:           8             2     float     sum      -1    13.02    0.00    0.00      0    12.95    0.00    0.00      0
[1,0]<stdout>:  1073741824     268435456     float     sum      -1   4000.0  268.44  268.44      0   4100.0  261.89  261.89    N/A
[1,0]<stdout>:# Out of bounds values : 0 OK
[1,0]<stdout>:# Avg bus bandwidth    : 132.58
";

fn one(name: &str, text: &str) -> Run {
    let runs = parse(name, text).unwrap();
    assert_eq!(runs.len(), 1);
    runs.into_iter().next().unwrap()
}

fn said(name: &str, text: &str) -> String {
    parse(name, text).unwrap_err().to_string()
}

#[test]
fn a_recent_table_is_read_by_its_header() {
    let run = one("log", RECENT);
    assert_eq!((run.collective, run.ranks, &*run.dtype), (Collective::AllReduce, 2, "float"));
    assert_eq!(run.nccl_version.as_deref(), Some("2.21.5+cuda12.4"));
    let times: Vec<_> = run.rows.iter().map(|row| (row.bytes, row.in_place, row.time_us)).collect();
    let gib = 1 << 30;
    assert_eq!(times, [(8, false, 13.02), (8, true, 12.95), (gib, false, 4000.0), (gib, true, 4100.0)]);
    assert!(run.left_out.is_empty());
}

#[test]
fn older_layouts_have_fewer_columns_or_blank_ones() {
    let device = |rank| format!("#   Rank {rank:2} Pid 8262 on host device  0 [0x00] Tesla V100\n");
    let devices: String = (0..4).map(device).collect();
    let no_root = "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n\
                   #        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n\
                       1000000        250000   float     sum    100.0   10.00   15.00  1e-07    125.0    8.00   12.00  1e-07\n";
    let run = one("v100_all_reduce", &format!("{devices}{no_root}"));
    assert_eq!((run.ranks, run.rows[1].in_place, run.rows[1].busbw_gbps), (4, true, 12.0));

    let blank_operator = no_root.replace("     sum ", "         ");
    let run = one("0_all_reduce", &format!("{devices}{blank_operator}"));
    assert_eq!((run.rows[0].time_us, run.rows[1].time_us), (100.0, 125.0));

    let no_operator = no_root.replace("   redop", "").replace("     sum ", "     ").replace("15.00", " 7.50");
    let run = one("all_gather", &format!("{devices}{}", no_operator.replace("12.00", " 6.00")));
    assert_eq!((run.collective, run.rows[0].busbw_gbps), (Collective::AllGather, 7.5));
}

#[test]
fn a_newer_layout_has_more_columns_and_a_time_of_day() {
    let text = "# all_reduce_perf\n#  Rank  0 Group  0\n#  Rank  1 Group  0\n#  Rank  2 Group  1\n#  Rank  3 Group  1\n\
        # size count type redop root time algbw busbw #wrong #bitdiff time algbw busbw #wrong #bitdiff timestamp\n\
        1000 250 float sum -1 1.0 1.0 1.0 0 0 2.0 0.5 0.5 0 0 2026-01-28 14:50:17\n";
    let run = one("log", text);
    assert_eq!(run.ranks, 2, "bandwidths are those of a group");
    assert_eq!((run.rows[0].time_us, run.rows[1].time_us), (1.0, 2.0));
    let in_place_only = text.replace("1.0 1.0 1.0 0 0 2.0", "2.0").replace(" 2026-01-28 14:50:17", "");
    assert_eq!(one("log", &in_place_only).rows.len(), 1);
}

#[test]
fn a_log_of_several_tables_is_several_runs() {
    let second = RECENT.replace("all_reduce", "broadcast");
    let runs = parse("log", &format!("{RECENT}{second}")).unwrap();
    let found: Vec<_> = runs.iter().map(|run| (&*run.name, run.collective)).collect();
    assert_eq!(found, [("log", Collective::AllReduce), ("log#2", Collective::Broadcast)]);
}

const JSON: &str = r#"{"version": 3, "args": ["./build/all_reduce_perf", "-J", "x"],
 "env": ["NCCL_ALGO=ring", "HOME=/root"], "nccl_version": 22902,
 "config": {"nthreads": 1, "ngpus": 2, "devices": [{"rank": 0, "group": 0}, {"rank": 2, "group": 0}]},
 "results": [{"size": 1000000, "count": 250000, "type": "float", "redop": "sum", "root": "    -1",
   "out_of_place": {"time": 100.0, "alg_bw": 10.0, "bus_bw": 15.0, "nwrong": null}, "in_place": null}]}"#;

#[test]
fn the_tests_own_json_is_read() {
    let run = one("log", JSON);
    assert_eq!((run.collective, run.ranks), (Collective::AllReduce, 4), "two processes of two GPUs");
    assert_eq!(run.nccl_version.as_deref(), Some("2.29.2"));
    assert_eq!(run.env.iter().map(|(k, v)| (&**k, &**v)).collect::<Vec<_>>(), [("NCCL_ALGO", "ring")]);
    assert_eq!(run.rows.len(), 1);
    assert!(said("log", &JSON.replace("3,", "2,")).contains("expected version 3"));
    assert!(said("log", &JSON.replace("\"time\"", "\"cpu_time\"")).contains("-C"));
    assert!(said("log", &JSON.replace("all_reduce", "frob")).contains("which collective"));
}

#[test]
fn a_published_run_is_read_with_its_hardware() {
    let text = include_str!("../../../../tests/fixtures/runs/gh200x4_2n_alps_all_reduce.json");
    let run = one("alps", text);
    let hardware = run.hardware.unwrap();
    assert_eq!((run.ranks, hardware.gpus_per_node, hardware.nodes), (8, Some(4), Some(2)));
    assert_eq!(hardware.gpu.as_deref(), Some("GH200 120GB"));
    assert_eq!(run.rows.len(), 60);
    assert_eq!(run.env["NCCL_CROSS_NIC"], "0");
}

#[test]
fn a_row_that_contradicts_itself_is_left_out_by_name() {
    let run = one("log", &RECENT.replace("268.44      0", "263.44      0"));
    assert_eq!(run.rows.len(), 3);
    assert_eq!(
        run.left_out.contradicting,
        ["1073741824 bytes out of place: busbw 263.44 GB/s where 4000 us make 268.44"]
    );
    for bad in ["    0.00    0.00    0.00", "     nan    0.00    0.00", "   13.02    0.00     inf"] {
        assert_eq!(one("log", &RECENT.replace("   13.02    0.00    0.00", bad)).left_out.len(), 1, "{bad}");
    }
}

#[test]
fn a_run_that_contradicts_itself_is_refused() {
    // Read as a broadcast, the busbw of an all-reduce over 4 ranks is too high by half.
    let said = said("log", &JSON.replace("all_reduce", "broadcast"));
    assert!(said.contains("contradicts itself in 1 of 1 rows, as a broadcast over 4 ranks"), "{said}");
}

#[test]
fn a_row_that_is_cut_off_or_broken_is_counted_and_the_others_are_read() {
    let broken = |text: String, lines: &[usize]| {
        let run = one("log", &text);
        assert_eq!((run.rows.len(), &*run.left_out.broken), (2, lines), "{text}");
        assert!(run.to_string().contains("1 row cut off or broken (the first: line 1"), "{run}");
    };
    broken(RECENT.replace("13.02", "13,02"), &[11]);
    broken(RECENT.replace("    N/A", ""), &[12]);
    broken(RECENT.replace("   8    ", "   99999999999999999999 "), &[11]);
    broken(RECENT[..RECENT.find("   4100.0").unwrap()].into(), &[12]);
}

#[test]
fn what_cannot_be_read_is_named_by_line_and_column() {
    assert!(said("log", &RECENT.replace("  algbw", "  abw")).contains("`time algbw busbw`"));
    assert!(said("log", &RECENT.replace("     time", "  cputime")).contains("-C"));
    let unnamed = RECENT.replace("all_reduce_perf", "");
    assert_eq!(
        one("log", &unnamed).collective,
        Collective::AllReduce,
        "the only one that sums with this busbw"
    );
    let unnamed = unnamed.replace("     sum", "    none");
    assert!(said("log", &unnamed).starts_with("line 9, column 1: which collective"));
    let unlisted = RECENT.replace("Rank", "Rnk");
    assert_eq!(one("log", &unlisted).ranks, 2, "busbw / algbw of an all-reduce over 2 ranks is 1");
    let unlisted = unlisted.replace("all_reduce", "broadcast");
    assert!(said("log", &unlisted).starts_with("line 9, column 1: how many ranks"));
    assert!(said("log", "hello\n").contains("expected nccl-tests' table"));
    assert!(said("log", "{\"rows\": [\n}").starts_with("line 2, column 1: "));
    assert!(said("log", "{}").contains("it has neither"));
    let run = r#"{"collective": "all_redcue", "dtype": "float", "ranks": 2, "rows": []}"#;
    assert!(said("log", run).contains("did you mean `all_reduce`?"));
    let run = run.replace("redcue", "reduce").replace("2,", "0,");
    assert!(said("log", &run).starts_with("line 1, column 57: "), "{}", said("log", &run));
    assert!(said("log", &run.replace("0,", "2,")).contains("no rows"));
}
