//! Compiled kernels on disk: each is compiled once for all processes of a machine.

use crate::alone::{Found, alone_with, is_child};
use allfold_cuda::{Gpu, Queue, launch};
use allfold_kernels::{DType, ReduceOp};
use allfold_standin::{Nvrtc, StandinOptions, standin_compilations};

const TEST: &str = "cache::a_kernel_is_compiled_once_by_all_processes_and_again_where_its_entry_is_damaged";

fn sum() -> Found {
    let queue = Queue::new(Gpu::open()?, 0)?;
    let (a, b) = (queue.upload(&[1.0f32, 2.0])?, queue.upload(&[10.0f32, 20.0])?);
    launch::reduce(&queue, DType::F32, ReduceOp::Sum, a.all(), b.all())?;
    assert_eq!(queue.download::<f32>(a.all())?, [11.0, 22.0]);
    println!("compiled {}", standin_compilations().len());
    Ok(())
}

#[test]
fn a_kernel_is_compiled_once_by_all_processes_and_again_where_its_entry_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let compiled = |variant: &str, options: StandinOptions, count: usize| {
        let text = alone_with(Some(folder.path()), (TEST, variant), options, sum);
        assert!(is_child() || text.contains(&format!("compiled {count}\n")), "{variant}: {text}");
    };
    compiled("first", StandinOptions::default(), 1);
    compiled("second", StandinOptions::default(), 0);
    let entries = || std::fs::read_dir(folder.path()).into_iter().flatten().flatten();
    let damage = |change: fn(&mut Vec<u8>)| {
        for entry in entries().filter(|entry| entry.path().extension().is_none()) {
            let mut bytes = std::fs::read(entry.path()).unwrap();
            change(&mut bytes);
            std::fs::write(entry.path(), bytes).unwrap();
        }
    };
    for (variant, change) in [
        ("empty", (|bytes| bytes.clear()) as fn(&mut Vec<u8>)),
        ("short", |bytes| bytes.truncate(9)),
        ("changed", |bytes| bytes[8] ^= 1),
    ] {
        if !is_child() {
            damage(change);
        }
        compiled(variant, StandinOptions::default(), 1);
        compiled(&format!("{variant}, made again"), StandinOptions::default(), 0);
    }
    // Another architecture, driver or compiler has code of its own.
    compiled("architecture", StandinOptions { arch: 80, ..StandinOptions::default() }, 1);
    compiled("driver", StandinOptions { driver: 13_010, ..StandinOptions::default() }, 1);
    let nvrtc = Nvrtc { version: (13, 1), ..Nvrtc::default() };
    compiled("compiler", StandinOptions { nvrtc: Some(nvrtc), ..StandinOptions::default() }, 1);
    compiled("last", StandinOptions::default(), 0);
}
