//! NVRTC: from source to what a device runs.

use super::libraries::Library;
use super::{Error, Family, HEADER, Result};
use crate::DType;
use cudarc::nvrtc::sys;
use std::ffi::CString;
use std::ptr;

/// What comes out of a compilation.
pub(super) enum Form {
    /// Machine code of one architecture, `sm_90`.
    Cubin(u32),
    /// Portable code from one architecture on, `compute_90`.
    Ptx(u32),
}

impl Form {
    fn target(&self) -> String {
        match self {
            Form::Cubin(arch) => format!("sm_{arch}"),
            Form::Ptx(arch) => format!("compute_{arch}"),
        }
    }
}

/// A family's instances of one element type, or all, as PTX for an architecture: 80, 90, 100.
///
/// # Errors
/// [`Error::Missing`] without NVRTC; [`Error::Compile`] with its log.
pub fn compile_ptx(family: Family, only: Option<DType>, arch: u32) -> Result<String> {
    let ptx = compile(family, only, Form::Ptx(arch))?;
    let text = ptx.strip_suffix(&[0]).unwrap_or(&ptx);
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// NVRTC's version, (13, 0).
///
/// # Errors
/// [`Error::Missing`] without it.
pub fn nvrtc_version() -> Result<(i32, i32)> {
    present()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: two places for integers.
    check("tell NVRTC's version", unsafe { sys::nvrtcVersion(&mut major, &mut minor) })?;
    Ok((major, minor))
}

/// Code for the device that is there: its own machine code, or PTX where this NVRTC is older than the device.
pub(super) fn compile_for(family: Family, only: Option<DType>, arch: u32) -> Result<Vec<u8>> {
    let known = architectures()?;
    match known.iter().copied().filter(|known| *known <= arch).max() {
        Some(newest) if newest == arch => compile(family, only, Form::Cubin(arch)),
        Some(newest) => compile(family, only, Form::Ptx(newest)),
        None => Err(Error::NoDevice(format!("NVRTC compiles for {known:?}, and the device is {arch}"))),
    }
}

fn present() -> Result<()> {
    let missing =
        |looked_for: &str| Error::Missing { library: Library::Nvrtc, looked_for: looked_for.into() };
    Library::Nvrtc.load().ok_or_else(|| missing("no libnvrtc.so.13 or .12"))?;
    // SAFETY: only looks for a library by name, and loads it.
    match unsafe { sys::is_culib_present() } {
        true => Ok(()),
        false => Err(missing("libnvrtc cannot be loaded")),
    }
}

fn architectures() -> Result<Vec<u32>> {
    present()?;
    let mut count = 0;
    // SAFETY: a place for one integer, then a place for as many as it said.
    check("list its targets", unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) })?;
    let mut all = vec![0; count.max(0) as usize];
    // SAFETY: as above.
    check("list its targets", unsafe { sys::nvrtcGetSupportedArchs(all.as_mut_ptr()) })?;
    Ok(all.into_iter().map(|arch| arch as u32).collect())
}

fn check(call: &'static str, answer: sys::nvrtcResult) -> Result<()> {
    match answer {
        sys::nvrtcResult::NVRTC_SUCCESS => Ok(()),
        other => Err(Error::Refused { call, answer: format!("{other:?}") }),
    }
}

/// A program of NVRTC, destroyed at the end.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program was created by NVRTC and is destroyed once.
        unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

fn text(from: &str) -> Result<CString> {
    CString::new(from).map_err(|_| Error::Argument("a source with a zero byte".into()))
}

fn compile(family: Family, only: Option<DType>, form: Form) -> Result<Vec<u8>> {
    present()?;
    let (source, name) = (text(family.source())?, text(family.file())?);
    let (header, header_name) = (text(HEADER)?, text("element.cuh")?);
    let mut program = Program(ptr::null_mut());
    // SAFETY: every pointer is to a string that lives until the end of this function, with one header and one name.
    check("take a source", unsafe {
        let (headers, names) = ([header.as_ptr()], [header_name.as_ptr()]);
        let (headers, names) = (headers.as_ptr(), names.as_ptr());
        sys::nvrtcCreateProgram(&mut program.0, source.as_ptr(), name.as_ptr(), 1, headers, names)
    })?;
    let mut options = vec![format!("--gpu-architecture={}", form.target())];
    // A contracted multiply-add rounds once where the CPU rounds twice.
    options.extend(["--std=c++17", "--fmad=false"].map(String::from));
    options.extend(only.map(|dtype| format!("-DONLY={dtype}")));
    let options = options.iter().map(|option| text(option)).collect::<Result<Vec<_>>>()?;
    let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: as many strings as are said, all alive.
    let answer = unsafe { sys::nvrtcCompileProgram(program.0, pointers.len() as i32, pointers.as_ptr()) };
    if answer != sys::nvrtcResult::NVRTC_SUCCESS {
        let log = fetch(&program, sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog)?;
        let log = String::from_utf8_lossy(&log);
        let log: Vec<&str> =
            log.trim_end_matches('\0').lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let log = log[..log.len().min(4)].join(" | ");
        return Err(Error::Compile { file: family.file(), target: form.target(), log });
    }
    match form {
        Form::Cubin(_) => fetch(&program, sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN),
        Form::Ptx(_) => fetch(&program, sys::nvrtcGetPTXSize, sys::nvrtcGetPTX),
    }
}

type SizeOf = unsafe fn(sys::nvrtcProgram, *mut usize) -> sys::nvrtcResult;
type Fetch = unsafe fn(sys::nvrtcProgram, *mut std::ffi::c_char) -> sys::nvrtcResult;

fn fetch(program: &Program, size_of: SizeOf, fetch: Fetch) -> Result<Vec<u8>> {
    let mut size = 0;
    // SAFETY: a live program and a place for one integer.
    check("tell a size", unsafe { size_of(program.0, &mut size) })?;
    let mut bytes = vec![0u8; size];
    // SAFETY: as many bytes as it said that it writes.
    check("hand over a result", unsafe { fetch(program.0, bytes.as_mut_ptr().cast()) })?;
    Ok(bytes)
}
