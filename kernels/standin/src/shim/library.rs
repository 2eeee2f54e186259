//! The kernels' own source as a library for this CPU: compiled once per version of the sources, and never unloaded.

use super::options::FiberOrder;
use allfold_base::lock;
use allfold_cuda::{Error, Family, HEADERS, Result};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

type ShimLaunch = unsafe extern "C" fn(
    *const c_char,
    *const u32,
    u32,
    *mut *mut c_void,
    c_int,
    *mut c_char,
    usize,
) -> c_int;

const SHIM_H: &str = include_str!("../../native/shim.h");
const SHIM_CC: &str = include_str!("../../native/shim.cc");
/// A source file of kernels with one mistake each.
const WRONG: (&str, &str) = ("wrong.cu", include_str!("../../native/wrong.cu"));
/// The compiler's flags: `-fno-tree-sra` since GCC 12 crashes in its scalar replacement of unions, `-fno-strict-aliasing` since
/// kernels move words by unions and casts, `-fvisibility=hidden` since the linker would give shared memory in templates, as any symbol
/// that many files define, to all loaded copies of the library together.
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-fno-plt",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-tree-sra",
    "-fvisibility=hidden",
    "-Wno-unknown-pragmas",
    "-include",
    "shim.h",
    "-I.",
    "-x",
    "c++",
    "-c",
];

/// The functions of the loaded library that list its kernels.
#[derive(Clone, Copy)]
pub(super) struct Entries {
    pub kernel: unsafe extern "C" fn(usize) -> *const c_char,
    pub describe: unsafe extern "C" fn(*const c_char, *mut *const usize) -> *const c_char,
}

/// The library, loaded several times: fibres and shared memory are globals, so each copy runs one kernel at a time.
struct Loaded {
    entries: Entries,
    runs: Vec<Mutex<ShimLaunch>>,
}

fn all_loaded() -> Result<&'static Loaded> {
    static LOADED: OnceLock<Result<Loaded>> = OnceLock::new();
    LOADED.get_or_init(load).as_ref().map_err(Error::clone)
}

/// The functions of the library, which is compiled and loaded by the first call.
pub(super) fn loaded() -> Result<Entries> {
    Ok(all_loaded()?.entries)
}

/// Runs a kernel.
///
/// # Safety
/// `arguments` are as many as the kernel has, and point to values of its arguments' types, which name memory that the kernel may use.
///
/// # Errors
/// No kernel has this name; a barrier that some threads did not reach.
pub(super) unsafe fn run_kernel(
    name: &CStr,
    grid: [u32; 3],
    threads: u32,
    arguments: &mut [*mut c_void],
    order: FiberOrder,
) -> std::result::Result<(), String> {
    static TURN: AtomicUsize = AtomicUsize::new(0);
    let runs = &all_loaded().map_err(|error| error.to_string())?.runs;
    let free = runs.iter().find_map(|run| run.try_lock().ok());
    let run = free.unwrap_or_else(|| lock(&runs[TURN.fetch_add(1, Ordering::Relaxed) % runs.len()]));
    let mut message = [0 as c_char; 512];
    let downwards = c_int::from(order == FiberOrder::Downwards);
    // SAFETY: the caller guarantees the arguments; the message buffer has the size that is passed.
    let answer = unsafe {
        let (arguments, message) = (arguments.as_mut_ptr(), message.as_mut_ptr());
        run(name.as_ptr(), grid.as_ptr(), threads, arguments, downwards, message, 512)
    };
    drop(run);
    match answer {
        0 => Ok(()),
        1 => Err("no such kernel".into()),
        _ => Err(message.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect()),
    }
}

fn load() -> Result<Loaded> {
    let library = build()?;
    let mut runs = Vec::new();
    let (first, launch) = load_from(&library)?;
    runs.push(Mutex::new(launch));
    // Loading the same file again would return the same library.
    let copy = library.with_extension(format!("so-{}", std::process::id()));
    for _ in 1..std::thread::available_parallelism().map_or(1, usize::from).min(8) {
        let loaded =
            std::fs::copy(&library, &copy).map_err(|error| failed(&error)).and_then(|_| load_from(&copy));
        let _ = std::fs::remove_file(&copy);
        runs.push(Mutex::new(loaded?.1));
    }
    Ok(Loaded { entries: first, runs })
}

fn load_from(path: &Path) -> Result<(Entries, ShimLaunch)> {
    // SAFETY: the library is Allfold's own and its initialisers only list kernels; it stays loaded.
    let library = Box::leak(Box::new(unsafe { Library::new(path) }.map_err(|error| failed(&error))?));
    // SAFETY: the functions have these types in shim.cc.
    unsafe {
        let launch = *library.get(b"shim_launch").map_err(|error| failed(&error))?;
        let kernel = *library.get(b"shim_kernel").map_err(|error| failed(&error))?;
        let describe = *library.get(b"shim_describe").map_err(|error| failed(&error))?;
        Ok((Entries { kernel, describe }, launch))
    }
}

fn failed(why: &dyn std::fmt::Display) -> Error {
    let log = why.to_string().lines().take(6).collect::<Vec<_>>().join(" | ");
    Error::Compile { file: "shim.cc", target: "the CPU shim".into(), log }
}

/// The path of the library for the current sources, compiled if it does not exist yet.
fn build() -> Result<PathBuf> {
    let families = Family::ALL.iter().map(|family| (family.file(), family.source())).chain([WRONG]);
    let sources: Vec<(&str, &str)> = families.collect();
    #[allow(
        deprecated,
        reason = "stable between runs, which the default hasher does not promise and this one does"
    )]
    let mut hash = std::hash::SipHasher::new();
    (HEADERS, SHIM_H, SHIM_CC, &sources, FLAGS).hash(&mut hash);
    // The library is in the same folder as cargo's other results; two processes may build at the same time, and the last one writes equal
    // bytes.
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
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
    let fixed = [("shim.h", SHIM_H), ("shim.cc", SHIM_CC)];
    for (name, text) in HEADERS.iter().chain(&fixed).chain(sources) {
        std::fs::write(folder.join(name), text).map_err(|error| failed(&error))?;
    }
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let files: Vec<&str> = sources.iter().map(|source| source.0).chain(["shim.cc"]).collect();
    // Several files are compiled at a time; each takes one or two seconds.
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
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
    run(Command::new(&compiler)
        .current_dir(folder)
        .args(["-shared", "-Wl,-Bsymbolic", "-o", "shim.so"])
        .args(objects))?;
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
