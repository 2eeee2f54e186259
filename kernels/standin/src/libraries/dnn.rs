//! The stand-in for cuDNN: convolutions in plain arithmetic.

use super::entry::{Entry, entries};
use super::foreign::{Kind, Table, give};
use super::options::Convolutions;
use super::world::here;
use allfold_base::lock;
use cudarc::cudnn::sys::cudnnStatus_t as Code;
use std::ffi::c_int;
use std::sync::Mutex;

/// Counts of how the stand-in for cuDNN was used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Convolutions by deterministic algorithms.
    pub same_bits: usize,
    /// Convolutions by algorithms whose bits may differ from run to run.
    pub other_bits: usize,
    /// Searches that ran algorithms.
    pub searches: usize,
    /// Descriptors that were not destroyed.
    pub described: usize,
}

static USED: Mutex<Used> = Mutex::new(Used { same_bits: 0, other_bits: 0, searches: 0, described: 0 });
/// The stream of each handle.
static HANDLES: Table<u64> = Table::new();
static TENSORS: Table<Tensor> = Table::new();
static TURNS: Table<Turn> = Table::new();

/// How the stand-in for cuDNN was used so far.
pub fn standin_convolutions() -> Used {
    Used { described: TENSORS.len() + TURNS.len(), ..lock(&USED).clone() }
}

/// A tensor of pictures or filters: sides `[N, C, H, W]`, in memory with channels last or not.
#[derive(Clone, Copy)]
struct Tensor {
    kind: Kind,
    last: bool,
    sides: [usize; 4],
}

impl Tensor {
    fn len(&self) -> usize {
        self.sides.iter().product()
    }

    fn at(&self, [n, c, h, w]: [usize; 4]) -> usize {
        let [_, cs, hs, ws] = self.sides;
        if self.last { ((n * hs + h) * ws + w) * cs + c } else { ((n * cs + c) * hs + h) * ws + w }
    }
}

/// A convolution's padding, stride and number of groups.
#[derive(Clone, Copy, Default)]
struct Turn {
    padding: usize,
    stride: usize,
    groups: usize,
}

fn put<T>(place: *mut T, value: T) -> Result<(), Code> {
    if place.is_null() {
        return Err(Code::CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    }
    // SAFETY: `place` is not null, and the caller guarantees space for one value.
    unsafe { place.write(value) };
    Ok(())
}

fn done(there: bool) -> Result<(), Code> {
    if there { Ok(()) } else { Err(Code::CUDNN_STATUS_BAD_PARAM) }
}

fn options() -> Convolutions {
    here().options.convolutions.clone().unwrap_or_default()
}

fn check_capacity() -> Result<(), Code> {
    match TENSORS.len() + TURNS.len() < options().descriptions {
        true => Ok(()),
        false => Err(Code::CUDNN_STATUS_ALLOC_FAILED),
    }
}

fn tensor(handle: u64, format: c_int, kind: c_int, sides: [c_int; 4]) -> Result<(), Code> {
    let kind = match kind {
        0 => Kind::F32,
        2 => Kind::F16,
        9 => Kind::Bf16,
        _ => return Err(Code::CUDNN_STATUS_NOT_SUPPORTED),
    };
    let made = Tensor { kind, last: format == 1, sides: sides.map(|side| side as usize) };
    done(TENSORS.change(handle, |tensor| *tensor = made))
}

/// The operand that is computed from the other two.
#[derive(Clone, Copy, PartialEq)]
enum ConvProduct {
    Y,
    X,
    W,
}

/// Adds every product of the definition of a convolution to the operand that is computed.
fn convolve(part: ConvProduct, turn: Turn, [x, w, y]: [Tensor; 3], at: [u64; 3]) {
    let values =
        |t: &Tensor, at, computed| if computed { vec![0.0; t.len()] } else { t.kind.read(at, t.len()) };
    let mut vx = values(&x, at[0], part == ConvProduct::X);
    let mut vw = values(&w, at[1], part == ConvProduct::W);
    let mut vy = values(&y, at[2], part == ConvProduct::Y);
    let ([n, k, p, q], [_, each, r, s]) = (y.sides, w.sides);
    let of_group = k / turn.groups;
    for place in 0..n * k * p * q * each * r * s {
        let (t, rest) = (place % s, place / s);
        let (u, rest) = (rest % r, rest / r);
        let (c, rest) = (rest % each, rest / each);
        let (column, rest) = (rest % q, rest / q);
        let (row, rest) = (rest % p, rest / p);
        let (f, sample) = (rest % k, rest / k);
        let (h, v) = (
            (row * turn.stride + u).wrapping_sub(turn.padding),
            (column * turn.stride + t).wrapping_sub(turn.padding),
        );
        if h >= x.sides[2] || v >= x.sides[3] {
            continue;
        }
        let ix = x.at([sample, f / of_group * each + c, h, v]);
        let (iw, iy) = (w.at([f, c, u, t]), y.at([sample, f, row, column]));
        match part {
            ConvProduct::Y => vy[iy] += vx[ix] * vw[iw],
            ConvProduct::X => vx[ix] += vy[iy] * vw[iw],
            ConvProduct::W => vw[iw] += vx[ix] * vy[iy],
        }
    }
    match part {
        ConvProduct::Y => y.kind.write(at[2], &vy),
        ConvProduct::X => x.kind.write(at[0], &vx),
        ConvProduct::W => w.kind.write(at[1], &vw),
    }
}

fn run(
    handle: u64,
    part: ConvProduct,
    turn: u64,
    [x, w, y]: [u64; 3],
    at: [u64; 3],
    algorithm: c_int,
) -> Result<(), Code> {
    let (Some(turn), Some(x), Some(w), Some(y)) =
        (TURNS.get(turn), TENSORS.get(x), TENSORS.get(w), TENSORS.get(y))
    else {
        return Err(Code::CUDNN_STATUS_BAD_PARAM);
    };
    if turn.groups == 0 || x.sides[1] != w.sides[1] * turn.groups {
        return Err(Code::CUDNN_STATUS_BAD_PARAM);
    }
    {
        let mut used = lock(&USED);
        // Algorithm 0 sums in the order in which blocks finish, which differs from run to run.
        *(if algorithm == 0 { &mut used.other_bits } else { &mut used.same_bits }) += 1;
    }
    let ranges = [x, w, y].iter().zip(at).map(|(t, at)| (at, t.len() as u64 * t.kind.size())).collect();
    let stream = HANDLES.get(handle).ok_or(Code::CUDNN_STATUS_BAD_PARAM)?;
    give(stream, "a convolution", ranges, move || convolve(part, turn, [x, w, y], at))
        .map_err(|_| Code::CUDNN_STATUS_EXECUTION_FAILED)
}

/// A found algorithm: its number, status, time, workspace, and whether it is deterministic, in cuDNN's layout.
#[repr(C)]
struct Found {
    algorithm: c_int,
    status: u32,
    time: f32,
    memory: usize,
    determinism: c_int,
    math: c_int,
    reserved: [c_int; 3],
}

fn find(requested: c_int, count: *mut c_int, place: *mut Found, searched: bool) -> Result<(), Code> {
    if searched {
        lock(&USED).searches += 1;
        if !options().search_memory {
            return Err(Code::CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED);
        }
    }
    if options().refuses {
        return Err(Code::CUDNN_STATUS_NOT_SUPPORTED_SHAPE);
    }
    let status = if options().supports { 0 } else { Code::CUDNN_STATUS_NOT_SUPPORTED as u32 };
    for nth in 0..requested.min(2) {
        let found = Found {
            algorithm: nth,
            status,
            time: nth as f32,
            memory: 64,
            determinism: nth,
            math: 0,
            reserved: [0; 3],
        };
        // SAFETY: the caller has space for as many results as it requested.
        unsafe { place.add(nth as usize).write(found) };
    }
    put(count, requested.min(2))
}

extern "C" fn cudnnGetVersion() -> usize {
    92_800
}

/// The table of cuDNN's functions, with `cudnnGetVersion`, which returns a number.
pub(super) const TABLE: &[&[Entry]] = &[
    ENTRIES,
    &[Entry { name: "cudnnGetVersion", at: cudnnGetVersion as *const (), rule: "without a handle" }],
];

entries! {
    cudnnCreate(place: *mut u64) "in a context; refused where the library is newer than the driver" {
        match here().current().is_ok() && options().starts {
            true => put(place, HANDLES.make(0)),
            false => Err(Code::CUDNN_STATUS_NOT_INITIALIZED),
        }
    }
    cudnnSetStream(handle: u64, stream: u64)
    "for the calls that follow; refused while the handle's earlier stream is being captured" {
        let before = HANDLES.get(handle).ok_or(Code::CUDNN_STATUS_BAD_PARAM)?;
        let captured = here().streams.get(&before).is_some_and(|before| before.capture.is_some());
        match captured && before != stream {
            true => Err(Code::CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH),
            false => done(HANDLES.change(handle, |own| *own = stream)),
        }
    }
    cudnnCreateTensorDescriptor(place: *mut u64) "refused where memory runs out" {
        check_capacity()?;
        put(place, TENSORS.make(Tensor { kind: Kind::F32, last: false, sides: [0; 4] }))
    }
    cudnnCreateFilterDescriptor(place: *mut u64) "refused where memory runs out" {
        check_capacity()?;
        put(place, TENSORS.make(Tensor { kind: Kind::F32, last: false, sides: [0; 4] }))
    }
    cudnnCreateConvolutionDescriptor(place: *mut u64) "refused where memory runs out" {
        check_capacity()?;
        put(place, TURNS.make(Turn::default()))
    }
    cudnnDestroyTensorDescriptor(tensor: u64) "once" { done(TENSORS.end(tensor)) }
    cudnnDestroyFilterDescriptor(tensor: u64) "once" { done(TENSORS.end(tensor)) }
    cudnnDestroyConvolutionDescriptor(turn: u64) "once" { done(TURNS.end(turn)) }
    cudnnSetTensor4dDescriptor(of: u64, format: c_int, kind: c_int, n: c_int, c: c_int, h: c_int, w: c_int)
    "planes or channels last" {
        tensor(of, format, kind, [n, c, h, w])
    }
    cudnnSetFilter4dDescriptor(of: u64, kind: c_int, format: c_int, k: c_int, c: c_int, h: c_int, w: c_int)
    "in the pictures' layout" {
        tensor(of, format, kind, [k, c, h, w])
    }
    cudnnSetConvolution2dDescriptor(
        of: u64, pad: c_int, across: c_int, stride: c_int, along: c_int, dh: c_int, dw: c_int, mode: c_int, kind: c_int,
    )
    "cross-correlation, alike in both directions, not dilated, sums in f32" {
        if (dh, dw, mode, kind) != (1, 1, 1, 0) || (across, along) != (pad, stride) {
            return Err(Code::CUDNN_STATUS_NOT_SUPPORTED);
        }
        done(TURNS.change(of, |turn| (turn.padding, turn.stride, turn.groups) = (pad as usize, stride as usize, 1)))
    }
    cudnnSetConvolutionGroupCount(of: u64, groups: c_int) "1 or more" {
        done(groups > 0 && TURNS.change(of, |turn| turn.groups = groups as usize))
    }
    cudnnSetConvolutionMathType(of: u64, _math: c_int) "of a live description" { done(TURNS.get(of).is_some()) }
    cudnnFindConvolutionForwardAlgorithm(
        _h: u64, _x: u64, _w: u64, _turn: u64, _y: u64, requested: c_int, count: *mut c_int, place: *mut Found,
    ) "the fastest first, which is not deterministic" { find(requested, count, place, true) }
    cudnnFindConvolutionBackwardDataAlgorithm(
        _h: u64, _w: u64, _y: u64, _turn: u64, _x: u64, requested: c_int, count: *mut c_int, place: *mut Found,
    ) "the fastest first, which is not deterministic" { find(requested, count, place, true) }
    cudnnFindConvolutionBackwardFilterAlgorithm(
        _h: u64, _x: u64, _y: u64, _turn: u64, _w: u64, requested: c_int, count: *mut c_int, place: *mut Found,
    ) "the fastest first, which is not deterministic" { find(requested, count, place, true) }
    cudnnGetConvolutionForwardAlgorithm_v7(
        _h: u64, _x: u64, _w: u64, _turn: u64, _y: u64, requested: c_int, count: *mut c_int, place: *mut Found,
    ) "as the search, without a run" { find(requested, count, place, false) }
    cudnnGetConvolutionBackwardDataAlgorithm_v7(
        _h: u64, _w: u64, _y: u64, _turn: u64, _x: u64, requested: c_int, count: *mut c_int, place: *mut Found,
    ) "as the search, without a run" { find(requested, count, place, false) }
    cudnnGetConvolutionBackwardFilterAlgorithm_v7(
        _h: u64, _x: u64, _y: u64, _turn: u64, _w: u64, requested: c_int, count: *mut c_int, place: *mut Found,
    ) "as the search, without a run" { find(requested, count, place, false) }
    cudnnConvolutionForward(
        h: u64, _one: *const f32, x: u64, at_x: u64, w: u64, at_w: u64, turn: u64, algorithm: c_int, _work: u64,
        _bytes: usize, _zero: *const f32, y: u64, at_y: u64,
    ) "on the handle's stream" { run(h, ConvProduct::Y, turn, [x, w, y], [at_x, at_w, at_y], algorithm) }
    cudnnConvolutionBackwardData(
        h: u64, _one: *const f32, w: u64, at_w: u64, y: u64, at_y: u64, turn: u64, algorithm: c_int, _work: u64,
        _bytes: usize, _zero: *const f32, x: u64, at_x: u64,
    ) "on the handle's stream" { run(h, ConvProduct::X, turn, [x, w, y], [at_x, at_w, at_y], algorithm) }
    cudnnConvolutionBackwardFilter(
        h: u64, _one: *const f32, x: u64, at_x: u64, y: u64, at_y: u64, turn: u64, algorithm: c_int, _work: u64,
        _bytes: usize, _zero: *const f32, w: u64, at_w: u64,
    ) "on the handle's stream" { run(h, ConvProduct::W, turn, [x, w, y], [at_x, at_w, at_y], algorithm) }
}
