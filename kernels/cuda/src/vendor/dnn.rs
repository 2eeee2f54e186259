//! cuDNN: convolutions, by its fastest algorithm for each shape.

use super::{ConvProduct, Handle, Handles, deterministic, lock, native, pointer, refused};
use crate::launch::{Conv, TensorLayout};
use crate::libraries::CudaLibrary;
use crate::{Error, Queue, Result, Slice};
use allfold_kernels::DType;
use cudarc::cudnn::{result, sys};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex};

/// The number of algorithms that are tried for a shape.
const TRIED: usize = 8;
/// The largest workspace of an algorithm, in bytes.
const WORKSPACE: usize = 1 << 30;

/// A chosen algorithm, with its workspace in bytes and its arithmetic (tensor cores or not).
#[derive(Clone, Copy)]
struct Choice {
    algorithm: Algorithm,
    workspace: usize,
    math: sys::cudnnMathType_t,
}

#[derive(Clone, Copy)]
enum Algorithm {
    Forward(sys::cudnnConvolutionFwdAlgo_t),
    Input(sys::cudnnConvolutionBwdDataAlgo_t),
    Weight(sys::cudnnConvolutionBwdFilterAlgo_t),
}

/// The properties of a convolution by which its algorithm is chosen.
type Shape = (ConvProduct, DType, [usize; 10]);

/// cuDNN on one device.
pub(super) struct Dnn {
    /// The algorithm of each shape; `None` where cuDNN has none.
    chosen: Mutex<BTreeMap<Shape, Option<Choice>>>,
}

/// The handles of threads that have ended, with their devices.
static FREE: Mutex<Vec<(usize, Handle<sys::cudnnHandle_t>)>> = Mutex::new(Vec::new());

thread_local! {
    /// This thread's handles by device: cuDNN refuses a stream while another thread captures the stream that the handle had before.
    static HANDLES: RefCell<ThreadHandles> = const { RefCell::new(ThreadHandles(Vec::new())) };
}

struct ThreadHandles(Vec<(usize, Handle<sys::cudnnHandle_t>)>);

impl Drop for ThreadHandles {
    fn drop(&mut self) {
        // To destroy a handle would wait for the device, where a lost rank's kernel may never end.
        lock(&FREE).append(&mut self.0);
    }
}

/// This thread's handle on a device, which must be current.
fn handle(device: usize) -> Result<sys::cudnnHandle_t> {
    HANDLES.with_borrow_mut(|ThreadHandles(own)| {
        if let Some((_, Handle(known))) = own.iter().find(|(on, _)| *on == device) {
            return Ok(*known);
        }
        let mut free = lock(&FREE);
        let unused = free.iter().position(|(on, _)| *on == device).map(|at| free.swap_remove(at).1.0);
        let made = || result::create_handle().map_err(|error| refused("start cuDNN", error.0));
        let handle = unused.map_or_else(made, Ok)?;
        own.push((device, Handle(handle)));
        Ok(handle)
    })
}

/// Whether cuDNN can be loaded by its name.
pub(super) fn present() -> bool {
    // SAFETY: the call only searches for a library by name, and loads it.
    unsafe { sys::is_culib_present() }
}

/// cuDNN's version. cuDNN must be present.
pub(super) fn version() -> (usize, usize, usize) {
    let version = result::get_version();
    (version / 10_000, version / 100 % 100, version % 100)
}

fn check(call: &'static str, answer: std::result::Result<(), result::CudnnError>) -> Result<()> {
    answer.map_err(|error| refused(call, error.0))
}

/// cuDNN's descriptors of x, y, w and the convolution; the descriptors that were made are destroyed on drop.
struct Described {
    x: sys::cudnnTensorDescriptor_t,
    y: sys::cudnnTensorDescriptor_t,
    w: sys::cudnnFilterDescriptor_t,
    conv: sys::cudnnConvolutionDescriptor_t,
}

fn int(n: usize) -> Result<c_int> {
    c_int::try_from(n).map_err(|_| {
        Error::Argument(format!("a tensor has a side of {n}, and cuDNN takes at most 2147483647"))
    })
}

impl Described {
    fn new(s: &Conv) -> Result<Described> {
        let made = |error: result::CudnnError| refused("describe a convolution", error.0);
        let (x, y, w, conv) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let mut described = Described { x, y, w, conv };
        described.x = result::create_tensor_descriptor().map_err(made)?;
        described.y = result::create_tensor_descriptor().map_err(made)?;
        described.w = result::create_filter_descriptor().map_err(made)?;
        described.conv = result::create_convolution_descriptor().map_err(made)?;
        let dtype = match s.dtype {
            DType::F32 => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
            DType::F16 => sys::cudnnDataType_t::CUDNN_DATA_HALF,
            DType::Bf16 => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
            other => {
                return Err(Error::Argument(format!(
                    "cuDNN has no convolutions of {other}; use f32, f16 or bf16"
                )));
            }
        };
        let format = match s.layout {
            TensorLayout::Planes => sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW,
            TensorLayout::ChannelsLast => sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC,
        };
        let (p, q) = s.output_picture()?;
        // A filter has the pictures' layout, and the channels of one group.
        let (groups, each) = (int(s.groups)?, int(s.channels / s.groups.max(1))?);
        let [n, c, h, w, k, r] = [s.n, s.channels, s.picture.0, s.picture.1, s.filters, s.side].map(int);
        let (n, c, h, w, k, r, p, q) = (n?, c?, h?, w?, k?, r?, int(p)?, int(q)?);
        let (pad, stride) = (int(s.padding)?, int(s.stride)?);
        let mode = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        // SAFETY: the descriptors are live; sums are in f32.
        let answers = unsafe {
            [
                result::set_tensor4d_descriptor(described.x, format, dtype, [n, c, h, w]),
                result::set_tensor4d_descriptor(described.y, format, dtype, [n, k, p, q]),
                result::set_filter4d_descriptor(described.w, dtype, format, [k, each, r, r]),
                result::set_convolution2d_descriptor(
                    described.conv,
                    pad,
                    pad,
                    stride,
                    stride,
                    1,
                    1,
                    mode,
                    sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
                ),
                sys::cudnnSetConvolutionGroupCount(described.conv, groups).result(),
                result::set_convolution_math_type(described.conv, math(s.dtype)),
            ]
        };
        answers.into_iter().try_for_each(|answer| check("describe a convolution", answer))?;
        Ok(described)
    }
}

/// The shape of a convolution's output, as cuDNN computes it.
#[cfg(feature = "testing")]
pub(super) fn output(s: &Conv) -> Result<[usize; 4]> {
    let Described { x, w, conv, .. } = &Described::new(s)?;
    let [mut n, mut c, mut h, mut v]: [c_int; 4] = [0; 4];
    // SAFETY: the descriptors are live, and cuDNN writes four integers.
    let answer =
        unsafe { sys::cudnnGetConvolution2dForwardOutputDim(*conv, *x, *w, &mut n, &mut c, &mut h, &mut v) };
    check("tell the shape of a convolution", answer.result())?;
    Ok([n, c, h, v].map(|side| side as usize))
}

/// The arithmetic of a type: f32 without tensor cores, as in all of Allfold; 16-bit types with them.
fn math(dtype: DType) -> sys::cudnnMathType_t {
    match dtype {
        DType::F32 => sys::cudnnMathType_t::CUDNN_FMA_MATH,
        _ => sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
    }
}

impl Drop for Described {
    fn drop(&mut self) {
        // SAFETY: descriptors that are not null were made in `new`, and each is destroyed once.
        unsafe {
            for tensor in [self.x, self.y].into_iter().filter(|tensor| !tensor.is_null()) {
                let _ = result::destroy_tensor_descriptor(tensor);
            }
            if !self.w.is_null() {
                let _ = result::destroy_filter_descriptor(self.w);
            }
            if !self.conv.is_null() {
                let _ = result::destroy_convolution_descriptor(self.conv);
            }
        }
    }
}

/// cuDNN's best algorithm that is supported and needs at most [`WORKSPACE`] bytes. cuDNN finds it by running its algorithms; in
/// deterministic mode cuDNN uses its heuristics alone, and the algorithm must also be deterministic.
macro_rules! best {
    ($search:ident, $rules:ident($($argument:expr),*), $found:ty, $kind:path) => {{
        let same_bits = deterministic();
        let mut found = [const { std::mem::MaybeUninit::<$found>::zeroed() }; TRIED];
        let mut count = 0;
        let mut ask = |searches: bool| {
            // SAFETY: the descriptors are live, and `found` is as long as the number of requested algorithms.
            unsafe {
                match searches {
                    true => sys::$search($($argument,)* TRIED as c_int, &mut count, found.as_mut_ptr().cast()),
                    false => sys::$rules($($argument,)* TRIED as c_int, &mut count, found.as_mut_ptr().cast()),
                }
            }
        };
        let mut answer = ask(!same_bits);
        // A search runs its candidates on memory of its own, which may be lacking; the rules need none.
        if matches!(answer as u32, 4003 | 4004) && !same_bits {
            answer = ask(false);
        }
        // Where cuDNN finds no algorithm for a shape, it may return a status instead of a count of 0: from 9.0 on one of those from 3000
        // on, by reason.
        if matches!(answer as u32, 3000..=3999 | 4003 | 4004) {
            count = 0;
        } else {
            check("search for a convolution's algorithm", answer.result())?;
        }
        let count = count.clamp(0, TRIED as c_int) as usize;
        // SAFETY: cuDNN has written the first `count` results, fastest first.
        let found = found[..count].iter().map(|one| unsafe { one.assume_init_ref() });
        let mut found = found
            .filter(|one| one.status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS && one.memory <= WORKSPACE);
        found
            .find(|one| !same_bits || one.determinism == sys::cudnnDeterminism_t::CUDNN_DETERMINISTIC)
            .map(|one| Choice { algorithm: $kind(one.algo), workspace: one.memory, math: one.mathType })
    }};
}

impl Dnn {
    /// cuDNN on the queue's device; `None` without a GPU, or if the library is missing or does not start.
    pub fn of(queue: &Queue) -> Result<Option<Arc<Dnn>>> {
        static ALL: Handles<Dnn> = Handles::new();
        ALL.of(queue, CudaLibrary::Cudnn, || handle(queue.device()).map(|_| Dnn { chosen: Mutex::default() }))
    }

    /// One product of a convolution whose operands have been checked; `false` if cuDNN has no algorithm for it.
    pub fn conv(
        &self,
        queue: &Queue,
        part: ConvProduct,
        s: &Conv,
        (a, b): (Slice<'_>, Slice<'_>),
        out: Slice<'_>,
    ) -> Result<bool> {
        let described = Described::new(s)?;
        let stream = native(queue)?;
        let handle = handle(queue.device())?;
        // SAFETY: the handle and the stream are live.
        check("set the stream of cuDNN", unsafe { result::set_stream(handle, stream.cast()) })?;
        let last = usize::from(s.layout == TensorLayout::ChannelsLast);
        let (h, w) = s.picture;
        let sides = [s.n, s.channels, h, w, s.filters, s.side, s.stride, s.padding, s.groups, last];
        let shape = (part, s.dtype, sides);
        let known = lock(&self.chosen).get(&shape).copied();
        let choice = match known {
            Some(known) => known,
            None => {
                let found = search(handle, part, &described)?;
                // Threads that search at the same time all use the first thread's algorithm.
                *lock(&self.chosen).entry(shape).or_insert(found)
            }
        };
        let Some(choice) = choice else { return Ok(false) };
        // SAFETY: the descriptor is live.
        check("set the math type of a convolution", unsafe {
            result::set_convolution_math_type(described.conv, choice.math)
        })?;
        let workspace = queue.memory(choice.workspace)?;
        let (one, zero, bytes) = (1.0f32, 0.0f32, choice.workspace);
        let (one, zero): (*const c_void, *const c_void) = ((&raw const one).cast(), (&raw const zero).cast());
        let (work, Described { x, y, w, conv }) = (workspace.address() as *mut c_void, &described);
        let (a, b, into) = (pointer(a), pointer(b), pointer(out));
        // SAFETY: the descriptors are live and of the memory's lengths. The workspace is of the queue's pool, so its next user runs
        // after this convolution.
        check("convolve", unsafe {
            match choice.algorithm {
                Algorithm::Forward(by) => result::convolution_forward(
                    handle, one, *x, a, *w, b, *conv, by, work, bytes, zero, *y, into,
                ),
                Algorithm::Input(by) => result::convolution_backward_data(
                    handle, one, *w, b, *y, a, *conv, by, work, bytes, zero, *x, into,
                ),
                Algorithm::Weight(by) => result::convolution_backward_filter(
                    handle, one, *x, a, *y, b, *conv, by, work, bytes, zero, *w, into,
                ),
            }
        })?;
        Ok(true)
    }
}

/// Finds an algorithm for the product `part`; cuDNN runs its candidates on memory of its own.
fn search(handle: sys::cudnnHandle_t, part: ConvProduct, d: &Described) -> Result<Option<Choice>> {
    Ok(match part {
        ConvProduct::Forward => best!(
            cudnnFindConvolutionForwardAlgorithm,
            cudnnGetConvolutionForwardAlgorithm_v7(handle, d.x, d.w, d.conv, d.y),
            sys::cudnnConvolutionFwdAlgoPerf_t,
            Algorithm::Forward
        ),
        ConvProduct::Input => best!(
            cudnnFindConvolutionBackwardDataAlgorithm,
            cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, d.w, d.y, d.conv, d.x),
            sys::cudnnConvolutionBwdDataAlgoPerf_t,
            Algorithm::Input
        ),
        ConvProduct::Weight => best!(
            cudnnFindConvolutionBackwardFilterAlgorithm,
            cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, d.x, d.y, d.conv, d.w),
            sys::cudnnConvolutionBwdFilterAlgoPerf_t,
            Algorithm::Weight
        ),
    })
}
