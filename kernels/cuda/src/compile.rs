//! Compilation with NVRTC: from CUDA source to code that a device runs.

use super::image_cache;
use super::libraries::CudaLibrary;
use super::symbols::symbols;
use super::{Error, Family, HEADERS, Result};
use allfold_kernels::DType;
use cudarc::nvrtc::sys::{nvrtcProgram, nvrtcResult};
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

symbols! {
    /// NVRTC's functions.
    Nvrtc of cudarc::nvrtc::sys {
        nvrtcVersion(*mut c_int, *mut c_int) -> nvrtcResult;
        nvrtcGetNumSupportedArchs(*mut c_int) -> nvrtcResult;
        nvrtcGetSupportedArchs(*mut c_int) -> nvrtcResult;
        nvrtcCreateProgram(
            *mut nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
        ) -> nvrtcResult;
        nvrtcCompileProgram(nvrtcProgram, c_int, *const *const c_char) -> nvrtcResult;
        nvrtcGetProgramLogSize(nvrtcProgram, *mut usize) -> nvrtcResult;
        nvrtcGetProgramLog(nvrtcProgram, *mut c_char) -> nvrtcResult;
        nvrtcGetCUBINSize(nvrtcProgram, *mut usize) -> nvrtcResult;
        nvrtcGetCUBIN(nvrtcProgram, *mut c_char) -> nvrtcResult;
        nvrtcGetPTXSize(nvrtcProgram, *mut usize) -> nvrtcResult;
        nvrtcGetPTX(nvrtcProgram, *mut c_char) -> nvrtcResult;
        nvrtcDestroyProgram(*mut nvrtcProgram) -> nvrtcResult;
    }
}

/// Options of every compilation: without fused multiply-add, which rounds once where the CPU rounds twice.
const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

/// The format of compiled code.
pub(super) enum CodeFormat {
    /// Machine code of one architecture, such as `sm_90`.
    Cubin(u32),
    /// Portable code for this architecture and newer ones, such as `compute_90`.
    Ptx(u32),
}

impl CodeFormat {
    fn target(&self) -> String {
        match self {
            CodeFormat::Cubin(arch) => format!("sm_{arch}"),
            CodeFormat::Ptx(arch) => format!("compute_{arch}"),
        }
    }
}

/// Compiles `family` to PTX for architecture `arch` (80, 90, 100): its instances of element type `only`, or of all types.
///
/// # Errors
/// [`Error::Missing`] without NVRTC; [`Error::Compile`] with NVRTC's log.
pub fn compile_ptx(family: Family, only: Option<DType>, arch: u32) -> Result<String> {
    let ptx = compile(family, only, CodeFormat::Ptx(arch))?;
    let text = ptx.strip_suffix(&[0]).unwrap_or(&ptx);
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// NVRTC's version, such as (13, 0).
///
/// # Errors
/// [`Error::Missing`] without NVRTC.
pub fn nvrtc_version() -> Result<(i32, i32)> {
    let nvrtc = nvrtc()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: NVRTC writes its version to two integers.
    check("tell NVRTC's version", unsafe { (nvrtc.nvrtcVersion)(&mut major, &mut minor) })?;
    Ok((major, minor))
}

type Key = (Family, Option<DType>, u32);
type Image = Arc<[u8]>;

/// A family's code for a device of architecture `arch`: machine code, or PTX where NVRTC is older than the device. The process compiles
/// each image once, unless `anew`; a thread that needs an image that is being compiled waits for this image only.
pub(super) fn image_for(family: Family, only: Option<DType>, arch: u32, anew: bool) -> Result<Image> {
    static IMAGES: Mutex<BTreeMap<Key, Arc<Mutex<Option<Image>>>>> = Mutex::new(BTreeMap::new());
    let place = {
        let mut images = IMAGES.lock().unwrap_or_else(PoisonError::into_inner);
        images.entry((family, only, arch)).or_default().clone()
    };
    let mut image = place.lock().unwrap_or_else(PoisonError::into_inner);
    match &*image {
        Some(image) if !anew => Ok(image.clone()),
        _ => {
            let made = image_cache::image(&key(family, only, arch)?, || compile_for(family, only, arch))?;
            Ok(image.insert(made.into()).clone())
        }
    }
}

/// All that the code of a family depends on, for the entry of the cache on disk.
fn key(family: Family, only: Option<DType>, arch: u32) -> Result<String> {
    let (nvrtc, driver) = (nvrtc_version()?, crate::probe()?.cuda);
    let (file, source) = (family.file(), family.source());
    Ok(format!("{nvrtc:?} {driver:?} {arch} {only:?} {OPTIONS:?} {HEADERS:?} {file} {source}"))
}

fn compile_for(family: Family, only: Option<DType>, arch: u32) -> Result<Vec<u8>> {
    let known = architectures()?;
    match known.iter().copied().filter(|known| *known <= arch).max() {
        Some(newest) if newest == arch => compile(family, only, CodeFormat::Cubin(arch)),
        Some(newest) => compile(family, only, CodeFormat::Ptx(newest)),
        None => {
            let ((major, minor), least) = (nvrtc_version()?, known.iter().min().copied().unwrap_or(0));
            Err(Error::NoDevice(format!(
                "NVRTC {major}.{minor} compiles for compute {least} and newer, and the device is compute {arch}: take an older NVRTC, by ALLFOLD_CUDA or LD_LIBRARY_PATH, or a newer GPU"
            )))
        }
    }
}

/// NVRTC's functions, looked up once for the process.
fn nvrtc() -> Result<&'static Nvrtc> {
    static FOUND: OnceLock<Result<Nvrtc>> = OnceLock::new();
    let missing = |looked_for: String| Error::Missing { library: CudaLibrary::Nvrtc, looked_for };
    let find = || {
        let path = CudaLibrary::Nvrtc.load().ok_or_else(|| missing("no libnvrtc.so.13 or .12".into()))?;
        Nvrtc::open(path).map_err(missing)
    };
    FOUND.get_or_init(find).as_ref().map_err(Error::clone)
}

fn architectures() -> Result<Vec<u32>> {
    let nvrtc = nvrtc()?;
    let mut count = 0;
    // SAFETY: NVRTC writes one integer to `count`.
    check("list its targets", unsafe { (nvrtc.nvrtcGetNumSupportedArchs)(&mut count) })?;
    let mut all = vec![0; count.max(0) as usize];
    // SAFETY: NVRTC writes `count` integers, the length of `all`.
    check("list its targets", unsafe { (nvrtc.nvrtcGetSupportedArchs)(all.as_mut_ptr()) })?;
    Ok(all.into_iter().map(|arch| arch as u32).collect())
}

fn check(call: &'static str, answer: nvrtcResult) -> Result<()> {
    match answer {
        nvrtcResult::NVRTC_SUCCESS => Ok(()),
        other => Err(Error::Refused { call, answer: format!("{other:?}") }),
    }
}

/// An NVRTC program, destroyed on drop.
struct Program(nvrtcProgram, &'static Nvrtc);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program was created by NVRTC and is destroyed once.
        unsafe { (self.1.nvrtcDestroyProgram)(&mut self.0) };
    }
}

fn text(from: &str) -> Result<CString> {
    CString::new(from).map_err(|_| Error::Argument("the source of a kernel holds a zero byte".into()))
}

fn compile(family: Family, only: Option<DType>, form: CodeFormat) -> Result<Vec<u8>> {
    let nvrtc = nvrtc()?;
    let (source, name) = (text(family.source())?, text(family.file())?);
    let all = HEADERS.iter().flat_map(|(name, header)| [text(name), text(header)]);
    let all = all.collect::<Result<Vec<_>>>()?;
    let [names, headers] = [0, 1].map(|first| [all[first].as_ptr(), all[first + 2].as_ptr()]);
    let mut program = Program(ptr::null_mut(), nvrtc);
    // SAFETY: every string lives until the end of this function; two headers and two names are passed, and the count is two.
    check("take a source", unsafe {
        let (source, name) = (source.as_ptr(), name.as_ptr());
        (nvrtc.nvrtcCreateProgram)(&mut program.0, source, name, 2, headers.as_ptr(), names.as_ptr())
    })?;
    let mut options = vec![format!("--gpu-architecture={}", form.target())];
    options.extend(OPTIONS.map(String::from));
    options.extend(only.map(|dtype| format!("-DONLY={dtype}")));
    let options = options.iter().map(|option| text(option)).collect::<Result<Vec<_>>>()?;
    let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: `pointers` holds as many strings as the count, and all are alive.
    let answer = unsafe { (nvrtc.nvrtcCompileProgram)(program.0, pointers.len() as i32, pointers.as_ptr()) };
    if answer != nvrtcResult::NVRTC_SUCCESS {
        let log = fetch(&program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)?;
        let log = String::from_utf8_lossy(&log);
        let log: Vec<&str> =
            log.trim_end_matches('\0').lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let log = log[..log.len().min(4)].join(" | ");
        return Err(Error::Compile { file: family.file(), target: form.target(), log });
    }
    match form {
        CodeFormat::Cubin(_) => fetch(&program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN),
        CodeFormat::Ptx(_) => fetch(&program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX),
    }
}

type SizeOf = unsafe extern "C" fn(nvrtcProgram, *mut usize) -> nvrtcResult;
type Fetch = unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> nvrtcResult;

fn fetch(program: &Program, size_of: SizeOf, fetch: Fetch) -> Result<Vec<u8>> {
    let mut size = 0;
    // SAFETY: the program is live, and NVRTC writes one integer to `size`.
    check("tell a size", unsafe { size_of(program.0, &mut size) })?;
    let mut bytes = vec![0u8; size];
    // SAFETY: `bytes` has the length that NVRTC has returned for its result.
    check("hand over a result", unsafe { fetch(program.0, bytes.as_mut_ptr().cast()) })?;
    Ok(bytes)
}
