//! The shim catches what it is there to catch: kernels with a mistake each.

use allfold_kernels::cuda::{Arguments, Error, Family, Kernel, Launch, Machine, Order, Queue, Result, Shim};
use std::sync::Arc;

fn run(order: Order, name: &str, n: usize) -> Result<Vec<u32>> {
    let machine: Arc<dyn Machine> = Shim::open(order)?;
    let queue = Queue::new(machine.clone(), 0)?;
    let out = queue.memory(4 * n)?;
    let kernel = Kernel { family: Family::Reduce, dtype: None, name: name.into() };
    let mut arguments = Arguments::new().writes(out.all());
    if name == "wrong_bounds" {
        arguments = arguments.with(n as u64);
    }
    #[allow(unsafe_code, reason = "a kernel beside the library, to be caught")]
    // SAFETY: the kernel takes these arguments; what it writes beyond its buffer stays within the strips.
    unsafe {
        machine.launch(queue.stream(), &Launch { kernel, grid: [1, 1, 1], arguments })?;
    }
    queue.download(out.all())
}

fn caught(name: &str) -> String {
    match run(Order::Upwards, name, 256) {
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
    assert_eq!(caught("wrong_bounds"), "wrote 0 bytes into the strip after a buffer of 1024 bytes");
}

#[test]
fn an_unknown_kernel_is_an_error() {
    assert_eq!(caught("no_such_kernel"), "no such kernel");
}

/// The result depends on the order of the fibres: what running both orders is for.
#[test]
fn a_missing_barrier_shows_in_one_of_the_orders() {
    let (up, down) = (
        run(Order::Upwards, "wrong_missing_barrier", 256),
        run(Order::Downwards, "wrong_missing_barrier", 256),
    );
    assert_ne!(up.unwrap(), down.unwrap());
}
