//! The machine that is this CPU: the kernels' own source, compiled by a C++ compiler, a fibre per thread.
//!
//! What it shows: indices and tails, barriers, shuffles, arithmetic. What it cannot show: speed, and that blocks do not
//! race (they run one after another). Every buffer stands between two strips of known bytes, which are looked at after
//! each kernel. A capture is a list that is run again.

use super::machine::{Event, Graph, Launch, Machine, Stream, THREADS};
use super::{Error, Family, HEADER, Result};
use libloading::Library;
use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes of a strip, and what they are.
const STRIP: usize = 256;
const STRIP_BYTE: u8 = 0xa5;
/// What memory holds before it is written: a NaN in every float type.
const FRESH: u8 = 0xff;

type ShimLaunch = unsafe extern "C" fn(
    *const c_char,
    *const u32,
    u32,
    *mut *mut c_void,
    c_int,
    *mut c_char,
    usize,
) -> c_int;

/// In which order the fibres of a block take their turns. A result that depends on it lacks a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Thread 0 first.
    Upwards,
    /// The last thread first.
    Downwards,
}

/// One entry of a capture.
#[derive(Clone)]
enum Task {
    Copy { into: u64, from: u64, bytes: usize },
    Fill { into: u64, bytes: usize, value: u8 },
    Launch(Box<Launch>),
}

#[derive(Default)]
struct State {
    streams: u32,
    events: u32,
    /// Bytes by address of what is acquired.
    acquired: BTreeMap<u64, usize>,
    capture: Option<Vec<Task>>,
    graphs: Vec<Option<Vec<Task>>>,
}

/// A CPU that runs CUDA kernels, slowly and to the letter.
pub struct Shim {
    order: Order,
    launch: ShimLaunch,
    state: Mutex<State>,
}

/// Fibres and their blocks are global to the loaded library: one kernel runs at a time, whatever the number of shims.
static RUNNING: Mutex<()> = Mutex::new(());
/// Kernels that have run to their end, by name.
static LAUNCHED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Every kernel that has run on a shim of this process.
pub fn shim_launched() -> BTreeSet<String> {
    lock(&LAUNCHED).clone()
}

/// Every kernel that the shim has.
pub fn shim_kernels() -> Vec<String> {
    let Ok(entries) = loaded() else { return Vec::new() };
    // SAFETY: the function returns null or a string that lives as long as the library, which is for good.
    let name = |nth| unsafe {
        let name = (entries.kernel)(nth);
        (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
    };
    (0..).map_while(name).collect()
}

impl Shim {
    /// Compiles the kernels (some seconds, once per version of the sources) and loads them.
    ///
    /// # Errors
    /// [`Error::Compile`] with the compiler's words, or that there is none.
    pub fn open(order: Order) -> Result<Arc<dyn Machine>> {
        Ok(Arc::new(Shim { order, launch: loaded()?.launch, state: Mutex::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Notes a task where a capture is under way, else does it.
    fn give(&self, task: Task) -> Result<()> {
        let mut state = self.state();
        match &mut state.capture {
            Some(tasks) => {
                tasks.push(task);
                Ok(())
            }
            None => {
                drop(state);
                self.run(&task)
            }
        }
    }

    fn run(&self, task: &Task) -> Result<()> {
        match task {
            // SAFETY: whoever gave the task promised acquired memory without overlap.
            Task::Copy { into, from, bytes } => unsafe {
                std::ptr::copy_nonoverlapping(*from as *const u8, *into as *mut u8, *bytes);
            },
            // SAFETY: as above.
            Task::Fill { into, bytes, value } => unsafe {
                std::ptr::write_bytes(*into as *mut u8, *value, *bytes)
            },
            Task::Launch(launch) => self.kernel(launch)?,
        }
        Ok(())
    }

    fn kernel(&self, launch: &Launch) -> Result<()> {
        let failed = |what: String| Error::Kernel { kernel: launch.kernel.name.clone(), what };
        let name = CString::new(launch.kernel.name.as_str()).map_err(|_| failed("no such name".into()))?;
        let mut arguments = launch.arguments.clone();
        let mut pointers = arguments.pointers();
        let mut message = [0 as c_char; 512];
        let (grid, downwards) = (launch.grid, c_int::from(self.order == Order::Downwards));
        let running = lock(&RUNNING);
        // SAFETY: the caller's promise about the arguments; the message has the room that is said.
        let answer = unsafe {
            let (pointers, message) = (pointers.as_mut_ptr(), message.as_mut_ptr());
            (self.launch)(name.as_ptr(), grid.as_ptr(), THREADS, pointers, downwards, message, 512)
        };
        drop(running);
        let message: String = message.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect();
        match answer {
            0 => {
                lock(&LAUNCHED).insert(launch.kernel.name.clone());
                self.strips().map_err(failed)
            }
            1 => Err(failed("no such kernel".into())),
            _ => Err(failed(message)),
        }
    }

    /// Whether every strip is as it was.
    fn strips(&self) -> std::result::Result<(), String> {
        for (&address, &bytes) in &self.state().acquired {
            for (side, start) in [("before", address as usize - STRIP), ("after", address as usize + bytes)] {
                // SAFETY: both strips belong to the allocation of this buffer.
                let strip = unsafe { std::slice::from_raw_parts(start as *const u8, STRIP) };
                if let Some(at) = strip.iter().position(|byte| *byte != STRIP_BYTE) {
                    return Err(format!("wrote {at} bytes into the strip {side} a buffer of {bytes} bytes"));
                }
            }
        }
        Ok(())
    }
}

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.checked_add(2 * STRIP)?, STRIP).ok()
}

impl Machine for Shim {
    fn name(&self) -> String {
        "the CPU shim".into()
    }

    fn devices(&self) -> usize {
        1
    }

    /// Few, so that grids are small and their strides are walked.
    fn multiprocessors(&self, _device: usize) -> u32 {
        1
    }

    fn stream(&self, _device: usize) -> Result<Stream> {
        let mut state = self.state();
        state.streams += 1;
        Ok(Stream(state.streams - 1))
    }

    fn native(&self, _stream: Stream) -> Result<u64> {
        Err(Error::Argument("the CPU shim has no streams of CUDA's".into()))
    }

    fn acquire(&self, _device: usize, bytes: usize) -> Result<u64> {
        let layout = layout(bytes).ok_or_else(|| Error::Argument(format!("{bytes} bytes of memory")))?;
        // SAFETY: the layout is not empty, and all of it is set before anyone sees it.
        let address = unsafe {
            let start = alloc(layout);
            if start.is_null() {
                return Err(Error::Refused { call: "allocate memory", answer: "out of memory".into() });
            }
            std::ptr::write_bytes(start, STRIP_BYTE, layout.size());
            std::ptr::write_bytes(start.add(STRIP), FRESH, bytes);
            start as u64 + STRIP as u64
        };
        self.state().acquired.insert(address, bytes);
        Ok(address)
    }

    unsafe fn release(&self, _device: usize, address: u64) {
        if let Some(layout) = self.state().acquired.remove(&address).and_then(layout) {
            // SAFETY: acquired with this layout, and taken off the list of what is.
            unsafe { dealloc((address as usize - STRIP) as *mut u8, layout) };
        }
    }

    fn pin(&self, device: usize, bytes: usize) -> Result<u64> {
        self.acquire(device, bytes)
    }

    unsafe fn unpin(&self, address: u64) {
        // SAFETY: the caller's promise: of `pin`, which is `acquire` here.
        unsafe { self.release(0, address) };
    }

    unsafe fn fetch(&self, _stream: Stream, into: u64, from: u64, bytes: usize) -> Result<()> {
        self.give(Task::Copy { into, from, bytes })
    }

    unsafe fn write(&self, _stream: Stream, into: u64, from: &[u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into as *mut u8, from.len()) };
        Ok(())
    }

    unsafe fn read(&self, _stream: Stream, into: &mut [u8], from: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    unsafe fn copy(&self, _stream: Stream, into: u64, from: u64, bytes: usize) -> Result<()> {
        self.give(Task::Copy { into, from, bytes })
    }

    unsafe fn fill(&self, _stream: Stream, into: u64, bytes: usize, value: u8) -> Result<()> {
        self.give(Task::Fill { into, bytes, value })
    }

    unsafe fn launch(&self, _stream: Stream, launch: &Launch) -> Result<()> {
        self.give(Task::Launch(Box::new(launch.clone())))
    }

    fn record(&self, _stream: Stream) -> Result<Event> {
        let mut state = self.state();
        state.events += 1;
        Ok(Event(state.events - 1))
    }

    fn record_again(&self, event: Event, stream: Stream) -> Result<()> {
        self.wait(stream, event)
    }

    fn wait(&self, _stream: Stream, event: Event) -> Result<()> {
        // Everything runs in the order in which it was given, so an event that there is has happened.
        match event.0 < self.state().events {
            true => Ok(()),
            false => Err(Error::Argument(format!("event {} of another machine", event.0))),
        }
    }

    fn finish(&self, _stream: Stream) -> Result<()> {
        Ok(())
    }

    fn idle(&self, _stream: Stream) -> Result<bool> {
        Ok(true)
    }

    fn happened(&self, event: Event) -> Result<()> {
        self.wait(Stream(0), event)
    }

    fn between(&self, _from: Event, _to: Event) -> Result<u64> {
        Ok(0)
    }

    fn begin_capture(&self, _stream: Stream) -> Result<()> {
        let mut state = self.state();
        if state.capture.is_some() {
            return Err(Error::Argument("a capture within a capture".into()));
        }
        state.capture = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&self, _stream: Stream) -> Result<Graph> {
        let mut state = self.state();
        let tasks = state.capture.take().ok_or_else(|| Error::Argument("the end of no capture".into()))?;
        state.graphs.push(Some(tasks));
        Ok(Graph(state.graphs.len() as u32 - 1))
    }

    unsafe fn replay(&self, _stream: Stream, graph: Graph) -> Result<()> {
        let tasks = self.state().graphs.get(graph.0 as usize).cloned().flatten();
        let tasks = tasks.ok_or_else(|| Error::Argument(format!("graph {} is no more", graph.0)))?;
        tasks.iter().try_for_each(|task| self.run(task))
    }

    fn forget(&self, graph: Graph) {
        if let Some(graph) = self.state().graphs.get_mut(graph.0 as usize) {
            *graph = None;
        }
    }
}

const SHIM_H: &str = include_str!("../../cuda/shim/shim.h");
const SHIM_CC: &str = include_str!("../../cuda/shim/shim.cc");
/// Kernels with a mistake each.
const WRONG: (&str, &str) = ("wrong.cu", include_str!("../../cuda/shim/wrong.cu"));
/// GCC 12 breaks off in its scalar replacement of unions, hence the second line; unions and casts are how words move.
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-tree-sra",
    "-Wno-unknown-pragmas",
    "-include",
    "shim.h",
    "-I.",
    "-x",
    "c++",
    "-c",
];

/// The functions of the loaded library.
#[derive(Clone, Copy)]
struct Entries {
    launch: ShimLaunch,
    kernel: unsafe extern "C" fn(usize) -> *const c_char,
}

fn loaded() -> Result<Entries> {
    static LOADED: OnceLock<Result<Entries>> = OnceLock::new();
    LOADED.get_or_init(load).clone()
}

fn load() -> Result<Entries> {
    let library = build()?;
    // SAFETY: our own library, whose initialisers only list kernels; it stays loaded.
    let library = Box::leak(Box::new(unsafe { Library::new(&library) }.map_err(|error| failed(&error))?));
    // SAFETY: both functions have these types in shim.cc.
    unsafe {
        let launch = *library.get(b"shim_launch").map_err(|error| failed(&error))?;
        let kernel = *library.get(b"shim_kernel").map_err(|error| failed(&error))?;
        Ok(Entries { launch, kernel })
    }
}

fn failed(why: &dyn std::fmt::Display) -> Error {
    let log = why.to_string().lines().take(6).collect::<Vec<_>>().join(" | ");
    Error::Compile { file: "shim.cc", target: "the CPU shim".into(), log }
}

/// The library for these very sources, compiled if it is not there yet.
fn build() -> Result<PathBuf> {
    let families = Family::ALL.iter().map(|family| (family.file(), family.source())).chain([WRONG]);
    let sources: Vec<(&str, &str)> = families.collect();
    #[allow(
        deprecated,
        reason = "stable between runs, which the default hasher does not promise and this one does"
    )]
    let mut hash = std::hash::SipHasher::new();
    (HEADER, SHIM_H, SHIM_CC, &sources, FLAGS).hash(&mut hash);
    // Beside cargo's other results; two processes may build at once, and the last to finish wins with equal bytes.
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let name = format!("shim-{:016x}", hash.finish());
    let library = target.join(format!("{name}.so"));
    if library.is_file() {
        return Ok(library);
    }
    let folder = target.join(format!("{name}-{}", std::process::id()));
    let built =
        compile(&folder, &sources).and_then(|made| std::fs::rename(made, &library).map_err(|e| failed(&e)));
    let _ = std::fs::remove_dir_all(&folder);
    built.map(|()| library)
}

fn compile(folder: &Path, sources: &[(&str, &str)]) -> Result<PathBuf> {
    std::fs::create_dir_all(folder).map_err(|error| failed(&error))?;
    let fixed = [("element.cuh", HEADER), ("shim.h", SHIM_H), ("shim.cc", SHIM_CC)];
    for (name, text) in fixed.iter().chain(sources) {
        std::fs::write(folder.join(name), text).map_err(|error| failed(&error))?;
    }
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let files: Vec<&str> = sources.iter().map(|source| source.0).chain(["shim.cc"]).collect();
    // Several at a time: each is a second or two.
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || -> Result<()> {
        while let Some(file) = files.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
            let mut command = Command::new(&compiler);
            run(command.current_dir(folder).args(FLAGS).arg(file).args(["-o", &format!("{file}.o")]))?;
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| Err(failed(&"a panic"))))
    })?;
    let objects = files.iter().map(|file| format!("{file}.o"));
    run(Command::new(&compiler).current_dir(folder).args(["-shared", "-o", "shim.so"]).args(objects))?;
    Ok(folder.join("shim.so"))
}

fn run(command: &mut Command) -> Result<()> {
    let output =
        command.output().map_err(|error| failed(&format!("no C++ compiler ({error}): install g++")))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(&String::from_utf8_lossy(&output.stderr))),
    }
}
