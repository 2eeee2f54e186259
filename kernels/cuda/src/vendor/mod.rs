//! Matrix products and convolutions by NVIDIA's libraries where they are installed, else by Allfold's own kernels.
//!
//! The process searches for each library once. The first call of a shape tries the library's algorithms and stores the fastest, so a step
//! must have run once before it is captured. Libraries and kernels both read pictures as `[N, C, H, W]` and as channels last.
//!
//! [`set_deterministic`] makes the choice equal in every run: by the libraries' heuristics instead of timing, among algorithms
//! that give the same bits every time.

mod blas;
mod cublas_lt;
mod dnn;
mod epilogue;
mod fused;

pub use epilogue::Epilogue;
pub use fused::product;

use super::launch::{self, Conv, DeviceMatrix, ProductOutput};
use super::libraries::CudaLibrary;
use super::{Error, Queue, Result, Slice};
use allfold_kernels::DType;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// `c = a b + keep c + bias`, as [`launch::matmul`], by cuBLASLt where it is installed.
///
/// # Errors
/// Operands whose shapes do not match; a library's error.
pub fn matmul(
    queue: &Queue,
    dtype: DType,
    (a, b): (DeviceMatrix<'_>, DeviceMatrix<'_>),
    c: ProductOutput<'_>,
    bias: Option<Slice<'_>>,
) -> Result<()> {
    let fits = a.columns == b.rows && a.rows * b.columns * a.columns > 0;
    match if fits { blas::Blas::of(queue)? } else { None } {
        Some(blas) => blas.matmul(queue, dtype, (a, b), c, bias),
        None if fits && queue.machine().counted_call("cublasLtMatmul", &[]) => {
            blas::padded(queue, dtype, (a, b), c, bias, |[a, b], _, to, bias| {
                let inputs = [Some(a.data()), Some(b.data()), bias, (to.keep != 0.0).then_some(to.data)];
                let inputs = inputs.into_iter().flatten().map(|input| (input, false));
                let accesses = inputs.chain([(to.data, true)]).map(|(part, write)| part.access(write));
                queue.machine().counted_call("cublasLtMatmul", &accesses.collect::<Vec<_>>());
                Ok(())
            })
        }
        None => launch::matmul(queue, dtype, (a, b), c, bias),
    }
}

/// One of a convolution's three products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConvProduct {
    /// The output: y from x and w.
    Forward,
    /// The gradient of the input: dx from dy and w.
    Input,
    /// The gradient of the filters: dw from x and dy.
    Weight,
}

/// One of a convolution's products, as [`launch::conv`], [`launch::conv_input`] and [`launch::conv_weight`] with their operands in
/// that order, by cuDNN where it is installed.
///
/// # Errors
/// Operands whose shapes do not match; a library's error.
pub fn conv(
    queue: &Queue,
    part: ConvProduct,
    s: &Conv,
    operands: (Slice<'_>, Slice<'_>),
    out: Slice<'_>,
) -> Result<()> {
    s.check(match part {
        ConvProduct::Forward => [operands.0, operands.1, out],
        ConvProduct::Input => [out, operands.1, operands.0],
        ConvProduct::Weight => [operands.0, out, operands.1],
    })?;
    let empty = operands.0.is_empty() || operands.1.is_empty() || out.is_empty();
    if let Some(dnn) = if empty { None } else { dnn::Dnn::of(queue)? } {
        // Where cuDNN has no algorithm for a shape, Allfold's own kernel computes it.
        if dnn.conv(queue, part, s, operands, out)? {
            return Ok(());
        }
    }
    match part {
        ConvProduct::Forward => launch::conv(queue, s, operands.0, operands.1, out),
        ConvProduct::Input => launch::conv_input(queue, s, operands.0, operands.1, out),
        ConvProduct::Weight => launch::conv_weight(queue, s, operands.0, operands.1, out),
    }
}

/// Whether the libraries' algorithms are chosen so that every run has the same bits.
static DETERMINISTIC: OnceLock<AtomicBool> = OnceLock::new();

fn choice() -> &'static AtomicBool {
    DETERMINISTIC.get_or_init(|| {
        let set =
            std::env::var("ALLFOLD_DETERMINISTIC").is_ok_and(|value| !matches!(value.as_str(), "" | "0"));
        AtomicBool::new(set)
    })
}

/// Makes the libraries choose algorithms that give the same bits in every run (`on`), or the fastest algorithms (the default), from now
/// on and in the whole process. The environment variable `ALLFOLD_DETERMINISTIC=1` does the same. A shape retains an algorithm that was
/// chosen before, so call this before the first product.
pub fn set_deterministic(on: bool) {
    choice().store(on, Ordering::Relaxed);
}

/// Whether deterministic algorithms are chosen, as set by [`set_deterministic`] or by the environment.
pub fn deterministic() -> bool {
    choice().load(Ordering::Relaxed)
}

/// The version of cuBLASLt or cuDNN, such as (13, 0, 2); needs no GPU.
///
/// # Errors
/// [`Error::Missing`] with what was searched for, the version that is needed, and how to get it; [`Error::Argument`] for another library.
pub fn version(library: CudaLibrary) -> Result<(usize, usize, usize)> {
    let missing = |looked_for: String| Error::Missing { library, looked_for };
    let (present, least): (fn() -> bool, _) = match library {
        CudaLibrary::CublasLt => (blas::present, "12"),
        CudaLibrary::Cudnn => (dnn::present, "9"),
        other => return Err(Error::Argument(format!("{} is neither cuBLASLt nor cuDNN", other.name()))),
    };
    if library.load().is_none() || !present() {
        return Err(missing(format!("no {}", library.files().join(" or "))));
    }
    let (major, minor, patch) =
        if library == CudaLibrary::CublasLt { blas::version() } else { dnn::version() };
    match major >= least.parse().unwrap_or(0) {
        true => Ok((major, minor, patch)),
        false => Err(missing(format!("version {major}.{minor}.{patch}, and {least} or newer is needed"))),
    }
}

/// The libraries that compute products and convolutions on the queue's machine, as text for reports.
pub fn names(queue: &Queue) -> [&'static str; 2] {
    let blas = blas::Blas::of(queue).ok().flatten().is_some();
    let dnn = dnn::Dnn::of(queue).ok().flatten().is_some();
    [if blas { "cuBLASLt" } else { "own products" }, if dnn { "cuDNN" } else { "own convolutions" }]
}

/// The shape of a convolution's output, `[N, K, P, Q]`, as cuDNN computes it from its descriptors; needs no GPU. For tests.
///
/// # Errors
/// The errors of [`version`]; cuDNN's error.
#[cfg(feature = "testing")]
pub fn convolved(s: &Conv) -> Result<[usize; 4]> {
    version(CudaLibrary::Cudnn)?;
    dnn::output(s)
}

/// A library's handle: a pointer that any thread may use, one thread at a time.
#[derive(Clone, Copy)]
struct Handle<T>(T);

// SAFETY: the libraries' handles are used by one thread at a time, under a lock.
unsafe impl<T> Send for Handle<T> {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A library's handles by device, made on first use; `None` where the library is not installed or does not start.
struct Handles<T>(Mutex<BTreeMap<usize, Option<Arc<T>>>>);

impl<T> Handles<T> {
    const fn new() -> Handles<T> {
        Handles(Mutex::new(BTreeMap::new()))
    }

    fn of(
        &self,
        queue: &Queue,
        library: CudaLibrary,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Option<Arc<T>>> {
        // The call also makes the queue's device current for the thread.
        if queue.machine().native(queue.stream()).is_err() {
            return Ok(None);
        }
        let mut all = lock(&self.0);
        if let Some(known) = all.get(&queue.device()) {
            return Ok(known.clone());
        }
        let made = match version(library).is_ok().then(make) {
            Some(Ok(made)) => Some(Arc::new(made)),
            Some(Err(error)) => {
                // A library of another CUDA version than the driver fails here; the run continues without the library, slower.
                eprintln!(
                    "warning: {} is there and does not start on device {} ({error}), so Allfold's own kernels are used: install the version for this driver's CUDA",
                    library.name(),
                    queue.device()
                );
                None
            }
            None => None,
        };
        all.insert(queue.device(), made.clone());
        Ok(made)
    }
}

fn native(queue: &Queue) -> Result<*mut std::ffi::c_void> {
    queue.machine().native(queue.stream()).map(|stream| stream as *mut std::ffi::c_void)
}

fn refused(call: &'static str, answer: impl std::fmt::Debug) -> Error {
    Error::Refused { call, answer: format!("{answer:?}") }
}

fn pointer(of: Slice<'_>) -> *mut std::ffi::c_void {
    of.address() as *mut std::ffi::c_void
}
