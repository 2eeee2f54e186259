//! Tests of machines that cannot be used, or that lack what a call needs: each error is one line that contains a remedy.

use crate::alone::{Found, alone, ensure, is_child};
use allfold_cuda::{Gpu, Queue, launch};
use allfold_kernels::{DType, ReduceOp};
use allfold_standin::{Nvrtc, StandinOptions};

/// Asserts the one-line error that a machine with these options gives when two numbers are added on its GPU.
fn line(test: &str, variant: &str, options: StandinOptions, parts: &[&str]) {
    let text = alone(test, variant, options, || {
        let why = sum().unwrap_err().to_string();
        println!("LINE {why}");
        ensure(!why.contains('\n') && why.len() < 400, why)
    });
    let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("LINE ")).collect();
    if !is_child() {
        println!("{variant:18} {}", lines[0]);
        assert!(
            lines.len() == 1 && parts.iter().all(|part| lines[0].contains(part)),
            "{variant}: no {parts:?}"
        );
    }
}

fn sum() -> Found {
    let queue = Queue::new(Gpu::open()?, 0)?;
    let (a, b) = (queue.upload(&[1.0f32])?, queue.upload(&[2.0f32])?);
    launch::reduce(&queue, DType::F32, ReduceOp::Sum, a.all(), b.all())?;
    ensure(queue.download::<f32>(a.all())? == [3.0], "3.0")
}

#[test]
fn each_error_is_one_line_with_a_remedy() {
    let test = "bad_input::each_error_is_one_line_with_a_remedy";
    let usual = StandinOptions::default;
    let nvrtc = |version, architectures| Some(Nvrtc { version, architectures, ..Nvrtc::default() });
    let cases: Vec<(&str, StandinOptions, &[&str])> = vec![
        (
            "driver too old",
            StandinOptions { driver: 12_040, ..usual() },
            &["CUDA is 12.4", "12.8 or newer", "version 570"],
        ),
        (
            "no device",
            StandinOptions { init: 1, ..usual() },
            &["the driver lists none", "CUDA_VISIBLE_DEVICES"],
        ),
        ("cuInit: none", StandinOptions { init: 100, ..usual() }, &["CUDA_ERROR_NO_DEVICE", "nvidia-smi -L"]),
        (
            "cuInit: mismatch",
            StandinOptions { init: 803, ..usual() },
            &["CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "restart"],
        ),
        ("cuInit: unknown", StandinOptions { init: 999, ..usual() }, &["CUDA_ERROR_UNKNOWN", "nvidia_uvm"]),
        (
            "exclusive",
            StandinOptions { taken: &[0], ..usual() },
            &["device 0 is in exclusive-process mode", "-c DEFAULT"],
        ),
        (
            "NVRTC missing",
            StandinOptions { nvrtc: None, ..usual() },
            &["NVRTC is missing", "pip install nvidia-cuda-nvrtc"],
        ),
        (
            "NVRTC too new",
            StandinOptions { driver: 12_080, ..usual() },
            &["NVRTC 13.0 is newer than the driver's CUDA 12.8", "nvidia-cuda-nvrtc-cu12"],
        ),
        (
            "device too old",
            StandinOptions { nvrtc: nvrtc((13, 0), &[100, 120]), ..usual() },
            &["NVRTC 13.0 compiles for compute 100 and newer", "the device is compute 90", "an older NVRTC"],
        ),
        (
            "broken kernel",
            StandinOptions { nvrtc: Some(Nvrtc { broken: &["reduce.cu"], ..Nvrtc::default() }), ..usual() },
            &["reduce.cu does not compile for sm_90", "1 error"],
        ),
    ];
    for (variant, options, parts) in cases {
        line(test, variant, options, parts);
    }
}

/// An NVRTC that is older than the device compiles portable code, which the driver compiles for the device.
#[test]
fn an_nvrtc_older_than_the_device_is_enough() {
    let nvrtc = Some(Nvrtc { architectures: &[80, 90], ..Nvrtc::default() });
    let options = StandinOptions { arch: 100, nvrtc, ..StandinOptions::default() };
    alone("bad_input::an_nvrtc_older_than_the_device_is_enough", "", options, || {
        sum()?;
        let compiled = allfold_standin::standin_compilations();
        ensure(compiled[0].1.contains("--gpu-architecture=compute_90"), compiled)
    });
}

#[test]
fn too_little_memory_says_how_much_there_is() {
    let options = StandinOptions { memory: 1 << 20, ..StandinOptions::default() };
    alone("bad_input::too_little_memory_says_how_much_there_is", "", options, || {
        let queue = Queue::new(Gpu::open()?, 0)?;
        let held = queue.memory(600_000)?;
        let why = queue.memory(500_000).unwrap_err().to_string();
        println!("{why}");
        let parts = ["500000 bytes are wanted", "448576 of 1048576 are free on device 0", "a smaller batch"];
        ensure(parts.iter().all(|part| why.contains(part)) && !why.contains('\n'), why)?;
        drop(held);
        queue.memory(1_000_000)?;
        Ok(())
    });
}
