//! Every kernel is right on the shim, and its cost is as recorded: compiled by NVRTC and assembled by ptxas, with no spills.
//!
//! The record is `kernels/cuda/registers.txt`; ALLFOLD_BLESS=1 rewrites it. Run with `--nocapture` to see the table.

use crate::everything;
use allfold_cuda::libraries::folders;
use allfold_cuda::{Family, Queue, compile_ptx, nvrtc_version};
use allfold_standin::{FiberOrder, Shim, ShimOptions, shim_kernels, shim_launched};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const ARCHITECTURES: [u32; 3] = [80, 90, 100];
/// The NVRTC version of the record: registers depend on the compiler, so they are compared for this version only.
const NVRTC: (i32, i32) = (13, 0);

struct Cost {
    registers: u32,
    spills: u32,
}

fn ptxas() -> Option<PathBuf> {
    // In NVIDIA's wheels, `bin` is in the same folder as the libraries' `lib`.
    folders().iter().map(|folder| folder.join("../bin/ptxas")).find(|path| path.is_file())
}

/// The costs of a family's kernels as ptxas reports them.
fn assemble(ptxas: &PathBuf, family: Family, arch: u32) -> BTreeMap<String, Cost> {
    let ptx = compile_ptx(family, None, arch).unwrap();
    let mut command = Command::new(ptxas);
    command.args(["-v", &format!("-arch=sm_{arch}"), "-", "-o", "/dev/null"]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(ptx.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {text}", family.file());
    let (mut costs, mut name, mut spills) = (BTreeMap::new(), String::new(), 0);
    for line in text.lines() {
        let before = |end: &str| {
            line.split(end).next()?.rsplit([' ', ',']).find(|w| !w.is_empty())?.parse::<u32>().ok()
        };
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            name = rest.split('\'').next().unwrap_or_default().to_string();
        } else if line.contains("bytes spill stores") {
            spills = before(" bytes spill stores").unwrap() + before(" bytes spill loads").unwrap();
        } else if line.contains("registers") {
            let registers = before(" registers").unwrap();
            costs.insert(name.clone(), Cost { registers, spills });
        }
    }
    costs
}

#[test]
fn the_table_of_kernels() {
    // In one order of fibres, memory that a launch does not name holds changed values while the kernel runs: so the test also
    // checks that a launch names all its accesses.
    for (order, audit) in [(FiberOrder::Upwards, false), (FiberOrder::Downwards, true)] {
        let machine = Shim::with(ShimOptions { order, audit, ..ShimOptions::default() });
        everything(&Queue::new(machine.unwrap(), 0).unwrap());
    }
    let all: Vec<String> = shim_kernels().into_iter().filter(|name| !name.starts_with("wrong_")).collect();
    let launched = shim_launched();
    let missed: Vec<&String> = all.iter().filter(|name| !launched.contains(*name)).collect();
    assert!(missed.is_empty(), "no check runs {missed:?}");
    println!("{} kernels equal the CPU's arithmetic on the shim, in both orders of its fibres,", all.len());
    println!("and read and write only the memory that their launches name");

    let (version, Some(ptxas)) = (nvrtc_version(), ptxas()) else {
        return println!("SKIP registers: no ptxas; run scripts/install-cuda-compiler.sh");
    };
    match version {
        Ok(NVRTC) => {}
        Ok(other) => return println!("SKIP registers: recorded for NVRTC {NVRTC:?}, this is {other:?}"),
        Err(why) => return println!("SKIP registers: {why}"),
    }
    let mut rows: BTreeMap<(usize, String), Vec<Cost>> = BTreeMap::new();
    std::thread::scope(|scope| {
        let jobs = ARCHITECTURES.map(|arch| {
            let ptxas = &ptxas;
            scope.spawn(move || {
                Family::ALL.iter().map(|family| assemble(ptxas, *family, arch)).collect::<Vec<_>>()
            })
        });
        for job in jobs {
            for (nth, costs) in job.join().unwrap().into_iter().enumerate() {
                costs.into_iter().for_each(|(name, cost)| rows.entry((nth, name)).or_default().push(cost));
            }
        }
    });
    let mut text = String::from(
        "# Registers by ptxas 13.0 for sm_80, sm_90, sm_100; written by kernels/standin/tests/cuda_kernels/table.rs\n",
    );
    println!("{:<32} {:>5} {:>5} {:>6}  {:>6}  shim", "kernel", "sm_80", "sm_90", "sm_100", "spills");
    for ((_, name), costs) in &rows {
        let spills: u32 = costs.iter().map(|cost| cost.spills).sum();
        let [a, b, c] = [0, 1, 2].map(|i| costs.get(i).map_or(0, |cost| cost.registers));
        println!(
            "{name:<32} {a:>5} {b:>5} {c:>6}  {spills:>6}  {}",
            if launched.contains(name) { "equal" } else { "-" }
        );
        text += &format!("{name} {a} {b} {c}\n");
        assert_eq!(spills, 0, "{name} spills");
        assert_eq!(costs.len(), ARCHITECTURES.len(), "{name} is not on every architecture");
    }
    assert_eq!(rows.len(), all.len(), "kernels that were compiled, and those of the shim");
    let record = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../cuda/registers.txt");
    if std::env::var_os("ALLFOLD_BLESS").is_some() {
        std::fs::write(&record, &text).unwrap();
    }
    let recorded = std::fs::read_to_string(&record).unwrap_or_default();
    let changed: Vec<&str> = text.lines().filter(|line| !recorded.lines().any(|old| old == *line)).collect();
    assert!(changed.is_empty(), "registers are not as recorded (ALLFOLD_BLESS=1 records): {changed:?}");
    assert_eq!(recorded.lines().count(), text.lines().count(), "the record has kernels that are no more");
}
