//! Tests that the shim finds mistakes: each kernel here has one.

use allfold_cuda::launch::{self, DeviceMatrix, ProductOutput};
use allfold_cuda::{Arguments, CudaMachine, Error, Family, Kernel, Launch, Queue, Result, Slice};
use allfold_kernels::DType;
use allfold_standin::{FiberOrder, Shim, ShimOptions};
use std::sync::Arc;

fn run(order: FiberOrder, name: &str, n: usize) -> Result<Vec<u32>> {
    let machine: Arc<dyn CudaMachine> = Shim::open(order)?;
    let queue = Queue::new(machine.clone(), 0)?;
    let out = queue.memory(4 * n)?;
    let kernel = Kernel { family: Family::Reduce, dtype: None, name: name.into() };
    let mut arguments = Arguments::new().writes(out.all());
    if name == "wrong_bounds" {
        arguments = arguments.with(n as u64);
    }
    #[allow(unsafe_code, reason = "a kernel beside the library, to be caught")]
    // SAFETY: the kernel takes these arguments; its writes outside its buffer stay within the guard strips.
    unsafe {
        machine.launch(queue.stream(), &Launch { kernel, grid: [1, 1, 1], arguments })?;
    }
    queue.download(out.all())
}

fn caught(name: &str) -> String {
    match run(FiberOrder::Upwards, name, 256) {
        Err(Error::Kernel { kernel, what }) if kernel == name => what,
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn a_divergent_barrier_is_caught() {
    let what = caught("wrong_divergent_barrier");
    assert_eq!(what, "divergent barrier at wrong.cu:7: 128 of 256 threads wait, 128 have ended");
}

#[test]
fn two_barriers_at_once_are_caught() {
    let what = caught("wrong_two_barriers");
    assert_eq!(what, "threads of one block wait at different barriers: wrong.cu:14 and wrong.cu:17");
}

#[test]
fn a_shuffle_without_its_lanes_is_caught() {
    assert!(caught("wrong_shuffle_mask").contains("not all lanes"));
}

#[test]
fn a_write_beyond_the_end_is_caught() {
    assert_eq!(caught("wrong_bounds"), "wrote to byte 0 of the strip after a buffer of 1024 bytes");
}

/// Shared memory and fibres are globals of a copy of the library, and each copy has its own.
#[test]
fn kernels_that_run_at_the_same_time_share_no_memory() {
    const SIDE: usize = 128;
    let products = |value: f32| {
        let queue = Queue::new(Shim::open(FiberOrder::Upwards).unwrap(), 0).unwrap();
        let (a, product) =
            (queue.upload(&vec![value; SIDE * SIDE]).unwrap(), queue.memory(4 * SIDE * SIDE).unwrap());
        let matrix = || DeviceMatrix::new(a.all(), [SIDE, SIDE], false);
        for _ in 0..20 {
            let c = ProductOutput::new(product.all(), DType::F32);
            launch::matmul(&queue, DType::F32, (matrix(), matrix()), c, None).unwrap();
            let sums: Vec<f32> = queue.download(product.all()).unwrap();
            assert!(sums.iter().all(|sum| *sum == value * value * SIDE as f32));
        }
    };
    std::thread::scope(|scope| {
        for value in [1.0, 2.0] {
            scope.spawn(move || products(value));
        }
    });
}

#[test]
fn an_unknown_kernel_is_an_error() {
    assert_eq!(caught("no_such_kernel"), "no such kernel");
}

/// The sum that an audited launch computes, or its error. The launch names its operands by `names`.
fn audited(names: impl Fn(Slice<'_>, Slice<'_>) -> Arguments) -> Result<Vec<f32>> {
    let options = ShimOptions { audit: true, ..ShimOptions::default() };
    let queue = Queue::new(Shim::with(options)?, 0)?;
    let (into, from) = (queue.upload(&[1.0f32; 300])?, queue.upload(&[2.0f32; 300])?);
    let kernel = Kernel::typed(Family::Reduce, "reduce_sum", DType::F32);
    let arguments = names(into.all(), from.all()).with(300u64);
    #[allow(unsafe_code, reason = "a launch that does not say what it touches, to be caught")]
    // SAFETY: the kernel takes these arguments, and both operands have 300 elements.
    unsafe {
        queue.machine().launch(queue.stream(), &Launch { kernel, grid: [1, 1, 1], arguments })?;
    }
    assert_eq!(queue.download::<f32>(from.all())?, [2.0; 300], "an operand that is only read");
    queue.download(into.all())
}

#[test]
fn a_launch_that_omits_an_access_is_caught() {
    let named = audited(|into, from| Arguments::new().writes(into).reads(from));
    assert_eq!(named.unwrap(), [3.0; 300]);
    let unread = audited(|into, from| Arguments::new().writes(into).with(from.address()));
    assert_ne!(unread.unwrap(), [3.0; 300], "an operand that is read and not named");
    let unwritten = audited(|into, from| Arguments::new().with(into.address()).reads(from));
    let said = unwritten.unwrap_err().to_string();
    assert!(said.contains("bytes that it does not name as written"), "{said}");
    let read_alone = audited(|into, from| Arguments::new().reads(into).reads(from));
    let said = read_alone.unwrap_err().to_string();
    assert!(said.contains("byte 2 of 1200 bytes that it does not name as written"), "{said}");
    let part = |into: Slice<'_>, from: Slice<'_>| {
        let (first, last) = (into.part(0, 1196).unwrap(), from.part(4, 1196).unwrap());
        (
            Arguments::new().writes(first).reads(from),
            Arguments::new().writes(into).with(from.address()).touches(last, false),
        )
    };
    assert!(audited(|into, from| part(into, from).0).is_err(), "a part too short by an element");
    assert_ne!(audited(|into, from| part(into, from).1).unwrap(), [3.0; 300], "a part that begins too late");
    let nothing = audited(|into, from| Arguments::new().with(into.address()).with(from.address()));
    assert!(nothing.unwrap_err().to_string().contains("names no memory that it touches"));
}

/// A kernel without a barrier gives different results in the two orders of fibres.
#[test]
fn a_missing_barrier_shows_in_one_of_the_orders() {
    let (up, down) = (
        run(FiberOrder::Upwards, "wrong_missing_barrier", 256),
        run(FiberOrder::Downwards, "wrong_missing_barrier", 256),
    );
    assert_ne!(up.unwrap(), down.unwrap());
}
