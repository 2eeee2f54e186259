//! The execution of streams: a thread for each stream runs its tasks in order, after seeded random delays.

use super::range;
use super::task::{Gate, Kernel, Task};
use super::world::{World, here};
use crate::shim::{self, Foreign, Poll, Progress};
use allfold_base::lock;
use allfold_cuda::Error;
use cudarc::driver::sys::CUresult as Code;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Queues on a stream, by its native handle, a kernel that spins until all members of a gate have arrived.
pub fn standin_spin(stream: u64, gate: &Arc<Gate>) {
    let mut here = here();
    if let Some(found) = here.streams.get_mut(&stream) {
        found.queue.push_back(Task::Spin(gate.clone()));
        here.wake();
    }
}

/// Held while a task runs, one at a time: the shim's fibres and the page protection of device memory are global.
static ENGINE: Mutex<()> = Mutex::new(());

/// Waits until no task runs, and lets none run as long as the answer lives.
pub(super) fn engine() -> MutexGuard<'static, ()> {
    lock(&ENGINE)
}

/// The time after which a stream that waits for another process looks again.
const POLL: Duration = Duration::from_micros(50);

/// Starts the thread of a stream.
pub(super) fn begin(stream: u64, seed: u64) {
    std::thread::spawn(move || serve(stream, seed ^ stream));
}

fn serve(id: u64, mut draw: u64) {
    let mut world = here();
    loop {
        let Some(stream) = world.streams.get(&id) else { return };
        let (context, wake) = (stream.context, stream.wake.clone());
        let (mut opened, mut longest) = (false, None);
        let runs = match stream.queue.front() {
            None if stream.dead => {
                world.streams.remove(&id);
                return world.wake();
            }
            None => false,
            Some(Task::Wait(ticket)) => {
                longest = ticket.is_shared().then_some(POLL);
                ticket.is_done()
            }
            Some(Task::Spin(gate)) => {
                let (open, last) = gate.arrive(id);
                opened = last;
                open
            }
            Some(_) => true,
        };
        if opened {
            world.wake();
        }
        if !runs {
            world = world.sleep(&wake, longest);
            continue;
        }
        let failed = world.contexts.get(&context).is_none_or(|context| context.failed.is_some());
        let longest = world.options.delay;
        let Some(stream) = world.streams.get_mut(&id) else { return };
        let Some(task) = stream.queue.pop_front() else { continue };
        stream.busy = true;
        drop(world);
        let done = match (&task, failed) {
            // Copies, fills and kernels do not run after an error of their context.
            (Task::Record(_) | Task::Wait(_) | Task::Spin(_), _) | (_, true) => Ok(()),
            _ => {
                delay(&mut draw, longest);
                run(&task, context)
            }
        };
        world = here();
        if let Err(code) = done {
            world.fail(context, code);
        }
        if let Task::Record(ticket) = &task {
            ticket.punch();
        }
        if let Some(stream) = world.streams.get_mut(&id) {
            stream.busy = false;
        }
        world.wake();
    }
}

/// Waits for a random time up to `longest` before a task; half of all tasks start immediately.
fn delay(draw: &mut u64, longest: Duration) {
    // Knuth's multiplier of a linear congruential generator modulo 2^64.
    *draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let drawn = (*draw >> 33) as u32;
    if drawn & 1 == 1 && !longest.is_zero() {
        std::thread::sleep(longest.mul_f64(f64::from(drawn >> 1) / f64::from(1 << 30)));
    }
}

/// Queues work of a library for several processes on a stream, by its native handle; a captured stream records the work. The work waits for
/// other processes without stopping the other streams.
///
/// # Errors
/// The errors of a kernel's launch.
pub fn standin_foreign(stream: u64, foreign: Foreign) -> allfold_cuda::Result<()> {
    let Foreign { name, accesses, start, graphs } = foreign;
    let mut here = here();
    let captured = here.streams.get(&stream).is_some_and(|stream| stream.capture.is_some());
    let graphs = captured.then_some(graphs);
    let begin = move || {
        let _ = &graphs;
        start(captured)
    };
    let ranges = accesses.iter().map(|access| (access.address, access.bytes)).collect();
    let given = here.give(stream, name, Task::Waiting(ranges, Arc::new(begin)));
    given.map_err(|code| Error::Refused { call: name, answer: format!("{code:?}") })
}

/// Runs work that waits for other processes until it has ended.
fn wait(ranges: &[(u64, u64)], begin: &dyn Fn() -> Poll) -> Result<(), Code> {
    touch(ranges)?;
    let mut poll = begin();
    loop {
        match poll() {
            Progress::Busy => std::thread::sleep(POLL),
            Progress::Done => return Ok(()),
            Progress::Failed(what) => {
                here().violates(what);
                return Err(Code::CUDA_ERROR_LAUNCH_FAILED);
            }
        }
    }
}

fn run(task: &Task, context: u64) -> Result<(), Code> {
    if let Task::Waiting(ranges, begin) = task {
        return wait(ranges, &**begin);
    }
    let engine = engine();
    let done = match task {
        Task::Copy { into, from, bytes } => touch(&[(*into, *bytes), (*from, *bytes)]).map(|()| {
            // SAFETY: memory inside the range was just seen to be allocated; the driver's caller guarantees other host memory.
            unsafe { std::ptr::copy(*from as *const u8, *into as *mut u8, *bytes as usize) }
        }),
        Task::Fill { into, bytes, value } => touch(&[(*into, *bytes)]).map(|()| {
            // SAFETY: memory inside the range was just seen to be allocated; the driver's caller guarantees other host memory.
            unsafe { std::ptr::write_bytes(*into as *mut u8, *value, *bytes as usize) }
        }),
        Task::Foreign(ranges, work) => touch(ranges).map(|()| work()),
        Task::Kernel(kernel) => run_kernel(kernel, context),
        Task::Record(_) | Task::Wait(_) | Task::Spin(_) | Task::Waiting(..) => Ok(()),
    };
    drop(engine);
    done
}

/// Checks that the memory of a task is still allocated when the stream runs the task.
fn touch(ranges: &[(u64, u64)]) -> Result<(), Code> {
    let mut world = here();
    for (address, bytes) in ranges {
        if *bytes > 0 && world.is_ours(*address) && world.holds(*address, *bytes).is_none() {
            world.violates(format!(
                "a task accesses {bytes} bytes at {address:#x}, which were freed before it ran"
            ));
            return Err(Code::CUDA_ERROR_ILLEGAL_ADDRESS);
        }
    }
    Ok(())
}

/// The device memory that kernels of a context must not access.
fn beyond(world: &World, context: u64) -> Vec<(u64, u64)> {
    let Some(context) = world.contexts.get(&context) else { return Vec::new() };
    let ours = |device| {
        device == context.device || device == world.options.devices || context.peers.contains(&device)
    };
    world.memory.iter().filter(|(_, one)| !ours(one.device)).map(|(at, one)| (*at, one.bytes)).collect()
}

fn run_kernel(kernel: &Kernel, context: u64) -> Result<(), Code> {
    let beyond = beyond(&here(), context);
    beyond.iter().for_each(|(at, bytes)| range::open(*at, *bytes, false, false));
    let mut arguments = kernel.arguments.clone();
    let mut pointers: Vec<*mut c_void> =
        arguments.iter_mut().map(|words| words.as_mut_ptr().cast()).collect();
    let (answer, addresses, faults) =
        range::watched(|| shim::run_by_name(&kernel.name, kernel.grid, kernel.threads, &mut pointers));
    let mut world = here();
    for address in &addresses {
        let page = address & !(range::PAGE - 1);
        if world.holds(page, 1).is_none() {
            range::open(page, range::PAGE, false, true);
        }
    }
    beyond.iter().for_each(|(at, bytes)| range::open(*at, *bytes, true, false));
    let name = kernel.name.to_string_lossy();
    if let Some(first) = addresses.first() {
        let device = world.device_of(context);
        world.violates(format!(
            "kernel {name} on device {device} touched {faults} pages that it cannot reach, the first at {first:#x}"
        ));
        return Err(Code::CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    answer.map_err(|why| {
        world.violates(format!("kernel {name}: {why}"));
        Code::CUDA_ERROR_LAUNCH_FAILED
    })
}
