//! The stand-in for NVRTC: it compiles nothing, and makes images that name a source file, whose kernels the shim has compiled.

use super::entry::entries;
use super::options::Nvrtc;
use allfold_base::lock;
use allfold_cuda::HEADERS;
use cudarc::nvrtc::sys::nvrtcResult as Code;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::sync::Mutex;

#[derive(Default)]
struct Program {
    file: String,
    image: Vec<u8>,
    log: Vec<u8>,
}

#[derive(Default)]
struct State {
    next: u64,
    programs: BTreeMap<u64, Program>,
    /// The compiled files with the options of their compilation, in order.
    compiled: Vec<(String, String)>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// The compilations of the stand-in for NVRTC so far, in order: (file, options).
pub fn standin_compilations() -> Vec<(String, String)> {
    lock(&STATE).as_ref().map_or_else(Vec::new, |state| state.compiled.clone())
}

fn options() -> Nvrtc {
    super::world::here().options.nvrtc.clone().unwrap_or_default()
}

fn put<T>(place: *mut T, value: T) -> Result<(), Code> {
    if place.is_null() {
        return Err(Code::NVRTC_ERROR_INVALID_INPUT);
    }
    // SAFETY: `place` is not null, and the caller guarantees space for one value.
    unsafe { place.write(value) };
    Ok(())
}

fn with<T>(program: u64, body: impl FnOnce(&mut Program) -> Result<T, Code>) -> Result<T, Code> {
    let mut state = lock(&STATE);
    let program = state.get_or_insert_default().programs.get_mut(&program);
    body(program.ok_or(Code::NVRTC_ERROR_INVALID_PROGRAM)?)
}

fn string(from: *const c_char) -> String {
    // SAFETY: the caller gives a string that ends with a zero byte.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

/// Copies bytes to the buffer of a caller that has queried their number before.
fn hand_over(bytes: &[u8], place: *mut c_char) -> Result<(), Code> {
    // SAFETY: the caller has space for the number of bytes that the size call returned.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast(), bytes.len()) };
    Ok(())
}

fn compile(program: u64, given: &[String]) -> Result<(), Code> {
    let nvrtc = options();
    let target = given.iter().find_map(|option| option.strip_prefix("--gpu-architecture="));
    let (form, arch) = match target.and_then(|target| target.split_once('_')) {
        Some(("sm", arch)) => ("cubin", arch),
        Some(("compute", arch)) => ("ptx", arch),
        _ => return Err(Code::NVRTC_ERROR_INVALID_OPTION),
    };
    if !arch.parse().is_ok_and(|arch: u32| nvrtc.architectures.contains(&arch)) {
        return Err(Code::NVRTC_ERROR_INVALID_OPTION);
    }
    let file = with(program, |program| {
        if nvrtc.broken.contains(&program.file.as_str()) {
            program.log = format!("{}(1): error: broken by the test\n\n1 error\0", program.file).into();
            return Err(Code::NVRTC_ERROR_COMPILATION);
        }
        program.image = format!("standin {form} {arch} {} {}\0", program.file, nvrtc.version.0).into();
        Ok(program.file.clone())
    })?;
    lock(&STATE).get_or_insert_default().compiled.push((file, given.join(" ")));
    Ok(())
}

entries! {
    nvrtcVersion(major: *mut c_int, minor: *mut c_int) "without a driver too" {
        put(major, options().version.0)?;
        put(minor, options().version.1)
    }
    nvrtcGetNumSupportedArchs(count: *mut c_int) "as many as nvrtcGetSupportedArchs writes" {
        put(count, options().architectures.len() as c_int)
    }
    nvrtcGetSupportedArchs(place: *mut c_int) "in ascending order" {
        for (nth, arch) in options().architectures.iter().enumerate() {
            // SAFETY: the caller has space for the number that nvrtcGetNumSupportedArchs returned.
            unsafe { place.add(nth).write(*arch as c_int) };
        }
        Ok(())
    }
    nvrtcCreateProgram(
        place: *mut u64, source: *const c_char, name: *const c_char, headers: c_int,
        _texts: *const *const c_char, _names: *const *const c_char,
    )
    "a source that is not empty, with all headers" {
        if string(source).is_empty() || headers as usize != HEADERS.len() {
            return Err(Code::NVRTC_ERROR_INVALID_INPUT);
        }
        let mut state = lock(&STATE);
        let state = state.get_or_insert_default();
        state.next += 1;
        state.programs.insert(state.next, Program { file: string(name), ..Program::default() });
        put(place, state.next)
    }
    nvrtcCompileProgram(program: u64, count: c_int, given: *const *const c_char)
    "for an architecture of its list; a file that the options list as broken leaves a log" {
        // SAFETY: `given` holds `count` strings, by the caller's contract.
        let given: Vec<String> = (0..count as usize).map(|nth| string(unsafe { *given.add(nth) })).collect();
        compile(program, &given)
    }
    nvrtcGetProgramLogSize(program: u64, size: *mut usize) "with the closing zero" {
        put(size, with(program, |program| Ok(program.log.len().max(1)))?)
    }
    nvrtcGetProgramLog(program: u64, place: *mut c_char) "as many bytes as its size" {
        with(program, |program| hand_over(if program.log.is_empty() { b"\0" } else { &program.log }, place))
    }
    nvrtcGetCUBINSize(program: u64, size: *mut usize) "of a program that was compiled for sm_" {
        put(size, with(program, |program| Ok(program.image.len()))?)
    }
    nvrtcGetCUBIN(program: u64, place: *mut c_char) "as many bytes as its size" {
        with(program, |program| hand_over(&program.image, place))
    }
    nvrtcGetPTXSize(program: u64, size: *mut usize) "with the closing zero" {
        put(size, with(program, |program| Ok(program.image.len()))?)
    }
    nvrtcGetPTX(program: u64, place: *mut c_char) "as many bytes as its size" {
        with(program, |program| hand_over(&program.image, place))
    }
    nvrtcDestroyProgram(place: *mut u64) "once; its handle becomes null" {
        if place.is_null() {
            return Err(Code::NVRTC_ERROR_INVALID_INPUT);
        }
        // SAFETY: `place` is not null and holds the caller's handle.
        let program = unsafe { place.read() };
        let removed = lock(&STATE).as_mut().and_then(|state| state.programs.remove(&program));
        put(place, 0)?;
        removed.map(|_| ()).ok_or(Code::NVRTC_ERROR_INVALID_PROGRAM)
    }
}
