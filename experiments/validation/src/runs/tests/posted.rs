//! Logs as people post them: with labels, in parts, without header, of several jobs; and rows that must not count.

use super::super::{Reading, Run, parse, parse_given};
use allfold_schedules::Collective;

const HEADER: &str = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong";

/// The rows of a run of `ranks` ranks, each of a size and a time: the parts that are written one after the other.
fn parts(collective: Collective, ranks: u32, rows: &[(u64, f64)]) -> Vec<[String; 3]> {
    let operator = if collective.reduces() { "sum" } else { "none" };
    let side = |&(bytes, us): &(u64, f64)| {
        let algbw = bytes as f64 / us / 1e3;
        format!("{us:9.2} {algbw:7.2} {:7.2}      0", algbw * collective.bus_factor(ranks))
    };
    let row = |row: &(u64, f64)| {
        [format!("{:12}  {:12}     float  {operator:>6}      -1", row.0, row.0 / 4), side(row), side(row)]
    };
    rows.iter().map(row).collect()
}

fn devices(ranks: u32, host: &str) -> String {
    let device = |rank| {
        format!(
            "#  Rank {rank:2} Group  0 Pid {} on {host} device {rank:2} [0x{rank:02}] NVIDIA H100 80GB HBM3\n",
            70 + rank
        )
    };
    (0..ranks).map(device).collect()
}

const ROWS: [(u64, f64); 3] = [(8, 20.0), (1 << 20, 60.0), (1 << 28, 2000.0)];

/// A job's output.
fn log(test: &str, ranks: u32, host: &str) -> String {
    let collective = super::super::run::collective(test).unwrap_or(Collective::AllGather);
    let rows: Vec<String> = parts(collective, ranks, &ROWS).iter().map(|row| row.concat()).collect();
    format!(
        "# Collective test starting: {test}\n# nThread 1 nGpus 1 minBytes 8\n{}NCCL version 2.22.3+cuda12.6\n{HEADER}\n{}\n\
         # Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1\n# Collective test concluded: {test}\n",
        devices(ranks, host),
        rows.join("\n")
    )
}

fn one(name: &str, text: &str) -> Run {
    let mut runs = parse(name, text).unwrap();
    assert_eq!(runs.len(), 1, "{text}");
    runs.remove(0)
}

fn read(text: &str) -> Reading {
    parse_given("log", text, None).unwrap()
}

fn said(text: &str) -> String {
    parse("log", text).unwrap_err().to_string()
}

fn sizes(run: &Run) -> Vec<u64> {
    run.rows.iter().filter(|row| !row.in_place).map(|row| row.bytes).collect()
}

#[test]
fn labels_of_launchers_and_collectors_are_no_part_of_a_row() {
    let plain = one("log", &log("all_reduce_perf", 8, "node1"));
    assert_eq!((plain.ranks, &*sizes(&plain), plain.listed.len()), (8, &[8, 1 << 20, 1 << 28][..], 8));
    for label in [
        "[1,0]<stdout>:",
        "[1,0]<stdout>: ",
        "[prterun-h-71@1,0]<stdout>:",
        "Thu Jul 18 15:41:05 2024<stdout>:",
        "Thu Jul 18 15:41:05 2024[1,0]<stdout>:",
        "[0] ",
        "0: ",
        " 0: ",
        "node-17: ",
        "[pod/launcher-x7/mpi] ",
        "launcher-x7x2q mpi ",
        "nccl-1  | ",
        "2024-05-01T12:00:00.1234567Z ",
        "2024-05-01T12:00:00.123456789Z stdout F ",
        "[2024-05-01 12:00:00] ",
        "Jul 18 15:41:05 node1 job[123]: ",
        "> ",
        "> > ",
        "\u{1b}[32m",
        "\u{feff}",
        "INFO:root:  ",
        "(RayActor pid=71, ip=10.0.0.5) ",
        "[Rank 0] ",
    ] {
        let text: String =
            log("all_reduce_perf", 8, "node1").lines().map(|line| format!("{label}{line}\r\n")).collect();
        let run = one("log", &text);
        assert_eq!(
            (run.rows, run.listed, run.nccl_version),
            (plain.rows.clone(), plain.listed.clone(), plain.nccl_version.clone()),
            "{label}"
        );
    }
    let without_hash = log("all_reduce_perf", 8, "node1").replace('#', "");
    assert_eq!(one("log", &without_hash).rows, plain.rows);
}

/// What stands between the three parts of a row, which are written one after the other.
#[test]
fn a_row_in_parts_is_put_together() {
    let head = format!("# all_reduce_perf\n{}{HEADER}\n", devices(8, "node1"));
    let whole = one("log", &log("all_reduce_perf", 8, "node1")).rows;
    let info = "node1:70:91 [0] NCCL INFO 524288 Bytes -> Algo 0 proto 0 time 25.2\n";
    for (before, between) in [
        ("", info.to_string()),
        ("", info.repeat(3)),
        ("", format!("[2025-05-05 12:00:00] {info}")),
        ("", "WARNING: the cache is cold\n7 entries evicted:\n".replace("7 ", "seven ")),
        ("[0] ", "[0] ".into()),
        ("[1,0]<stdout>:", "[1,0]<stdout>:".into()),
        ("Thu Jul 18 15:41:05 2024<stdout>:", "Thu Jul 18 15:41:06 2024<stdout>:".into()),
        ("[0] ", format!("[0] {info}[0] {info}[0] ")),
    ] {
        let rows = parts(Collective::AllReduce, 8, &ROWS);
        let rows: String = rows.iter().map(|row| format!("{before}{}\n", row.join(&between))).collect();
        let run = one("log", &format!("{head}{rows}"));
        assert_eq!((run.rows, run.left_out.len()), (whole.clone(), 0), "{before}{between}");
    }
}

#[test]
fn a_table_alone_is_read_by_its_arithmetic() {
    for (collective, ranks) in
        [(Collective::AllReduce, 24), (Collective::ReduceScatter, 16), (Collective::AllGather, 8)]
    {
        let rows: String = parts(collective, ranks, &ROWS).iter().map(|row| row.concat() + "\n").collect();
        for text in [rows.clone(), format!("{HEADER}\n{rows}")] {
            let run = one(&format!("cluster_{}", collective.name()), &text);
            assert_eq!((run.collective, run.ranks, run.rows.len()), (collective, ranks, 6), "{text}");
        }
    }
    let rows: String =
        parts(Collective::AllReduce, 24, &ROWS).iter().map(|row| row.concat() + "\n").collect();
    let run = parse_given("table", &rows, Some(24)).unwrap().runs.remove(0);
    assert_eq!(
        (run.collective, run.ranks),
        (Collective::AllReduce, 24),
        "only an all-reduce sums with this busbw"
    );
    let said = parse_given("all_reduce", &rows, Some(16)).unwrap_err().to_string();
    assert!(said.contains("16 ranks are said, and busbw / algbw says 24"), "{said}");
}

#[test]
fn layouts_from_2016_on_are_read() {
    // In milliseconds, of NCCL's first tests.
    let first = "# Using devices\n#   Device  0 ->  0 [0x0a] GeForce GTX TITAN X\n#   Device  1 ->  1 [0x09] GeForce GTX TITAN X\n\
        #   Device  2 ->  2 [0x06] GeForce GTX TITAN X\n#   Device  3 ->  3 [0x05] GeForce GTX TITAN X\n\n\
        #      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res\n\
        10000000      10000000    char     sum    1.628   6.14   9.21    0e+00    1.932   5.18   7.77    0e+00\n\
        4             1     int     sum    0.010   0.00   0.00    0e+00    0.009   0.00   0.00    0e+00\n";
    let run = one("all_reduce_test", first);
    assert_eq!((run.ranks, run.rows[0].time_us, run.rows[3].time_us), (4, 1628.0, 9.0));
    // Until June 2020 algbw held the factor.
    let old = "# nThread 1 nGpus 2\n#   Rank  0 Pid 10 on a device  0 [0x0f] GeForce RTX 2080 Ti\n\
        #   Rank  1 Pid 10 on a device  1 [0x1f] GeForce RTX 2080 Ti\n\
        #       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error\n\
        32768          4096   float    13.39    1.22    1.22  0e+00    11.85    1.38    1.38  0e+00\n\
        134217728      16777216   float  3298.60   20.34   20.34  0e+00  3070.30   21.86   21.86  0e+00\n";
    let run = one("all_gather_perf", old);
    assert_eq!((run.rows.len(), run.driven, run.remarks.len()), (4, Some(2), 1));
    assert!((run.rows[2].algbw_gbps - 40.69).abs() < 0.01, "{run:?}");
    let osu = "$ srun -n 4 ./osu_allreduce -d cuda\n# OSU MPI-CUDA Allreduce Latency Test v7.0\n\
        # Size       Avg Latency(us)   Min Latency(us)\n[node1] some warning\n16777216             8630.58           8619.50\n";
    let run = parse_given("log", osu, Some(4)).unwrap().runs.remove(0);
    assert_eq!((run.collective, run.rows[0].time_us, run.rows.len()), (Collective::AllReduce, 8630.58, 1));
    let gather = osu.replace("Allreduce", "Allgather");
    let run = parse_given("log", &gather, Some(4)).unwrap().runs.remove(0);
    assert_eq!(run.rows[0].bytes, 4 << 24, "OSU counts what a rank sends");
}

#[test]
fn jobs_of_one_log_are_told_apart_and_an_unknown_test_is_none_of_them() {
    let suite: String = ["all_reduce_perf", "all_gather_perf", "hypercube_perf", "reduce_scatter_perf"]
        .map(|test| log(test, 4, "node1"))
        .concat();
    let found = read(&suite);
    let names: Vec<_> = found.runs.iter().map(|run| (&*run.name, run.collective)).collect();
    assert_eq!(
        names,
        [
            ("log", Collective::AllReduce),
            ("log#2", Collective::AllGather),
            ("log#4", Collective::ReduceScatter)
        ]
    );
    assert!(found.left_out[0].to_string().contains("`hypercube_perf` is no test of a known collective"));
    // A job that was killed in its table, before another of other settings.
    let ring = log("all_reduce_perf", 8, "node1").replacen(
        "# nThread",
        "+ mpirun -x NCCL_ALGO=Ring ./all_reduce_perf\n# nThread",
        1,
    );
    let cut = &ring[..ring.find("# Out of").unwrap()];
    let found = read(&format!("{cut}{}", log("all_reduce_perf", 4, "node1")));
    let jobs: Vec<_> = found.runs.iter().map(|run| (run.ranks, run.env.len())).collect();
    assert_eq!(jobs, [(8, 1), (4, 0)]);
    // Two jobs at the same time, line by line, by their labels.
    let (a, b) = (log("all_reduce_perf", 8, "host1"), log("all_reduce_perf", 8, "host2"));
    let both: String = a.lines().zip(b.lines()).map(|(a, b)| format!("host1: {a}\nhost2: {b}\n")).collect();
    let hosts: Vec<_> = read(&both).runs.iter().map(|run| run.listed.first().unwrap().1.clone()).collect();
    assert_eq!(hosts, ["host1", "host2"]);
    let mixed: String = a.lines().zip(b.lines()).map(|(a, b)| format!("{a}\n{b}\n")).collect();
    assert!(said(&mixed).contains("2 jobs of 8 ranks are mixed"), "{}", said(&mixed));
    let alone: String = [log("all_reduce_perf", 1, "a"), log("all_reduce_perf", 1, "b")]
        .map(|log| log.replace("Pid 70", "Pid 9"))
        .concat();
    assert!(said(&alone).contains("a job of 1 rank exchanges nothing"), "{}", said(&alone));
}

#[test]
fn rows_that_must_not_count_are_left_out_by_reason() {
    let text = log("all_reduce_perf", 8, "node1");
    let size = text.find("     1048576").unwrap();
    let wrong = format!("{}{}", &text[..size], text[size..].replacen("      0", "  23785", 1));
    let run = one("log", &wrong);
    assert_eq!((run.left_out.wrong.clone(), run.rows.len()), (vec![1 << 20], 5));
    let zero = text.replace(
        HEADER,
        &format!("{HEADER}\n0  0  float  sum  -1  14.22  0.00  0.00  0  14.26  0.00  0.00  0"),
    );
    let run = one("log", &zero);
    assert_eq!((run.left_out.zero, run.rows.len()), (2, 6));
    assert!(run.to_string().ends_with("left out: 2 rows of 0 bytes"), "{run}");
    assert!(said(&text.replace("0 OK", "6 FAILED")).contains("FAILED"));
    let all_zero = log("all_reduce_perf", 8, "node1").replace("      0", "     17");
    assert!(said(&all_zero).contains("no rows that count: 6 rows with wrong results"), "{}", said(&all_zero));
}

#[test]
fn what_the_log_says_of_its_settings_is_kept() {
    let info = |line: &str| format!("node1:70:91 [0] NCCL INFO {line}\n");
    let text = |lines: &str| {
        log("all_reduce_perf", 8, "node1").replacen("NCCL version", &format!("{lines}NCCL version"), 1)
    };
    let env = |lines: &str| {
        let env = one("log", &text(lines)).env;
        env.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(env(&info("NCCL_ALGO set by environment to Ring.")), "NCCL_ALGO=Ring");
    assert_eq!(env("export NCCL_PROTO='LL'\n"), "NCCL_PROTO=LL");
    assert_eq!(
        env("mpiexec -genv NCCL_ALGO Tree -n 8 x -x NCCL_NVLS_ENABLE=0 \\\n"),
        "NCCL_ALGO=Tree NCCL_NVLS_ENABLE=0"
    );
    let slurm = |list: &str| env(&format!("+ srun -N 2 --export={list} ./build/all_reduce_perf -b 8\n"));
    assert_eq!(slurm("ALL,NCCL_ALGO=Tree,NCCL_PROTO=LL"), "NCCL_ALGO=Tree NCCL_PROTO=LL");
    assert_eq!(slurm("NCCL_ALGO=Ring"), "NCCL_ALGO=Ring");
    assert_eq!(env("mpirun -x NCCL_IB_HCA=mlx5_0,mlx5_1 ./all_reduce_perf\n"), "NCCL_IB_HCA=mlx5_0,mlx5_1");
    assert_eq!(env("I would try NCCL_ALGO=Tree\n"), "", "no command");
    assert_eq!(env(&info("Channel 00/0 : 7[7] -> 8[0] [send] via NET/Socket/0")), "NCCL_NET=Socket");
    assert_eq!(env(&info("Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0")), "NCCL_NET_GDR_LEVEL=LOC");
    assert_eq!(env(&info("Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA")), "");
    assert_eq!(env(&info("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct")), "NCCL_P2P_DISABLE=1");
    assert_eq!(env(&info("Channel 00 : 0[0] -> 1[1] via P2P/CUMEM")), "");
    let driven = one("log", &text("").replace("nGpus 1", "nGpus 8")).driven;
    assert_eq!(driven, Some(8));
}

#[test]
fn records_of_rccl_tests_are_read_as_json_and_as_csv() {
    let record = |place: u8, time: f64, wrong: &str| {
        format!(
            r##"{{"#wrong":"{wrong}","algBw":{},"busBw":{},"gpus":4,"inPlace":{place},"name":"AllReduce","redop":"sum","size":1048576,"time":{time},"type":"float"}}"##,
            1048.576 / time,
            1.5 * 1048.576 / time
        )
    };
    let [out, in_place] = [record(0, 41.2, "0"), record(1, 41.0, "0")];
    for text in [format!("{out}\n{in_place}\n"), format!("[\n{out},\n{in_place}\n]\n")] {
        let run = one("log", &text);
        assert_eq!(
            (run.collective, run.ranks, run.rows.len(), run.rows[1].in_place),
            (Collective::AllReduce, 4, 2, true)
        );
    }
    assert_eq!(one("log", &format!("{out}\n{}\n", record(1, 41.0, "7"))).left_out.wrong, [1 << 20]);
    let csv = "numCycle,collective,nodes,ranks,ranksPerNode,gpusPerRank,size,type,redop,inplace,time,algbw,busbw,#wrong\n\
        0,AllReduce,1,8,8,1,1024,float,sum,0,50.0,0.02048,0.03584,0\n0,AllReduce,1,8,8,1,1024,float,sum,1,51.0,0.02008,0.03514,N/A\n";
    let run = one("log", csv);
    assert_eq!((run.ranks, run.rows.len(), run.rows[0].time_us), (8, 2, 50.0));
    assert!(
        said(&csv.replace("50.0,", ""))
            .starts_with("line 2, column 1: expected 14 columns as in the header, found 13")
    );
    assert!(said(&csv.replace("AllReduce", "HyperCube")).contains("`HyperCube` is no test"));
}
