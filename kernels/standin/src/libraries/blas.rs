//! The stand-in for cuBLASLt: column-major products in plain arithmetic, and algorithms valid only for the stated alignment.

use super::entry::entries;
use super::foreign::{Kind, Table, give};
use super::world::here;
use allfold_base::lock;
use cudarc::cublaslt::sys::cublasStatus_t as Code;
use std::ffi::c_int;
use std::sync::Mutex;

/// The number of products computed so far, and the number of descriptions that were not destroyed.
pub fn standin_products() -> (usize, usize) {
    (*lock(&COMPUTED), PRODUCTS.len() + LAYOUTS.len() + PREFERENCES.len())
}

/// The number of products computed with an epilogue that is more than a bias.
pub fn standin_epilogues() -> usize {
    *lock(&EPILOGUES)
}

static COMPUTED: Mutex<usize> = Mutex::new(0);
static EPILOGUES: Mutex<usize> = Mutex::new(0);
static PRODUCTS: Table<Product> = Table::new();
static LAYOUTS: Table<TensorLayout> = Table::new();
static PREFERENCES: Table<Preference> = Table::new();

#[derive(Clone, Copy, Default)]
struct Product {
    turned: [bool; 2],
    /// The value of CUBLASLT_MATMUL_DESC_EPILOGUE, or 0.
    epilogue: i32,
    bias: Option<u64>,
    /// The matrix beside d, and the distance of its columns.
    beside: (u64, usize),
}

// The values of cublasLtEpilogue_t.
const BIAS: i32 = 4;
const GELU_AUX: i32 = 160;
const GELU_AUX_BIAS: i32 = 164;
const DGELU: i32 = 192;
const BGRADB: i32 = 512;

/// GELU in the tanh approximation, and its slope.
fn gelu(x: f32) -> (f32, f32) {
    let root = (2.0 / std::f32::consts::PI).sqrt();
    let t = (root * (x + 0.044715 * x * x * x)).tanh();
    let slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * root * (1.0 + 3.0 * 0.044715 * x * x);
    (0.5 * x * (1.0 + t), slope)
}

impl Product {
    /// The memory beside the operands and d that the call uses.
    fn ranges(&self, d: &TensorLayout) -> impl Iterator<Item = (u64, u64)> {
        let columns = if self.epilogue == BGRADB { d.columns } else { d.rows };
        let bias = self.bias.map(|at| (at, columns as u64 * d.kind.size()));
        let beside = TensorLayout { ld: self.beside.1, ..*d }.bytes();
        let beside =
            matches!(self.epilogue, GELU_AUX | GELU_AUX_BIAS | DGELU).then_some((self.beside.0, beside));
        bias.into_iter().chain(beside)
    }

    /// Whether the attributes that the epilogue needs are set, as NVIDIA documents them.
    fn is_whole(&self, d: &TensorLayout) -> bool {
        let (at, ld) = self.beside;
        let beside = at != 0 && at.is_multiple_of(16) && ld >= d.rows && ld.is_multiple_of(8);
        match self.epilogue {
            0 => self.bias.is_none(),
            BIAS | BGRADB => self.bias.is_some(),
            GELU_AUX_BIAS => self.bias.is_some() && beside,
            GELU_AUX | DGELU => beside,
            _ => false,
        }
    }
}

#[derive(Clone, Copy)]
struct TensorLayout {
    kind: Kind,
    rows: usize,
    columns: usize,
    ld: usize,
}

/// The limits on requested algorithms: the alignments of A, B, C and D, 256 bytes by default.
#[derive(Clone, Copy)]
struct Preference([u32; 4]);

impl TensorLayout {
    fn bytes(&self) -> u64 {
        match self.columns {
            0 => 0,
            columns => ((columns - 1) * self.ld + self.rows) as u64 * self.kind.size(),
        }
    }
}

fn put<T>(place: *mut T, value: T) -> Result<(), Code> {
    if place.is_null() {
        return Err(Code::CUBLAS_STATUS_INVALID_VALUE);
    }
    // SAFETY: `place` is not null, and the caller guarantees space for one value.
    unsafe { place.write(value) };
    Ok(())
}

/// Reads an attribute's value, which must have the size of `T`.
fn value<T: Copy>(from: *const T, bytes: usize) -> Result<T, Code> {
    if from.is_null() || bytes != size_of::<T>() {
        return Err(Code::CUBLAS_STATUS_INVALID_VALUE);
    }
    // SAFETY: `from` is not null and points to a value of the size that the caller gives.
    Ok(unsafe { from.read_unaligned() })
}

fn ended(was_there: bool) -> Result<(), Code> {
    if was_there { Ok(()) } else { Err(Code::CUBLAS_STATUS_INVALID_VALUE) }
}

/// The shape of a product with consistent layouts: rows, columns, and the length of its sums.
fn shape(product: &Product, [a, b, d]: [TensorLayout; 3]) -> Result<(usize, usize, usize), Code> {
    let side =
        |l: &TensorLayout, turned: bool| if turned { (l.columns, l.rows) } else { (l.rows, l.columns) };
    let ((m, k), (k2, n)) = (side(&a, product.turned[0]), side(&b, product.turned[1]));
    match k == k2 && (d.rows, d.columns) == (m, n) && [a, b, d].iter().all(|l| l.ld >= l.rows) {
        true => Ok((m, n, k)),
        false => Err(Code::CUBLAS_STATUS_INVALID_VALUE),
    }
}

/// Computes `d = alpha op(a) op(b) + beta c`, with the product's epilogue.
fn compute(
    product: &Product,
    [a, b, d]: [TensorLayout; 3],
    (m, n, k): (usize, usize, usize),
    [at_a, at_b, at_c, at_d]: [u64; 4],
    (alpha, beta): (f32, f32),
) {
    let read = |l: &TensorLayout, at| l.kind.read(at, (l.bytes() / l.kind.size()) as usize);
    let (va, vb) = (read(&a, at_a), read(&b, at_b));
    let old = if beta == 0.0 { Vec::new() } else { read(&d, at_c) };
    let y = |l: usize, j: usize| if product.turned[1] { vb[l * b.ld + j] } else { vb[j * b.ld + l] };
    let adds = matches!(product.epilogue, BIAS | GELU_AUX_BIAS);
    let bias = product.bias.filter(|_| adds).map(|at| d.kind.read(at, m));
    let (beside, apart) = product.beside;
    for j in 0..n {
        let column = (0..m).map(|i| {
            let sum: f32 = (0..k)
                .map(|l| {
                    let x = if product.turned[0] { va[i * a.ld + l] } else { va[l * a.ld + i] };
                    x * y(l, j)
                })
                .sum();
            let kept = if beta == 0.0 { 0.0 } else { beta * old[j * d.ld + i] };
            alpha * sum + kept + bias.as_ref().map_or(0.0, |bias| bias[i])
        });
        let mut column: Vec<f32> = column.collect();
        let next_to = beside + (j * apart) as u64 * d.kind.size();
        match product.epilogue {
            GELU_AUX | GELU_AUX_BIAS => {
                d.kind.write(next_to, &column);
                column.iter_mut().for_each(|x| *x = gelu(*x).0);
            }
            DGELU => column.iter_mut().zip(d.kind.read(next_to, m)).for_each(|(x, at)| *x *= gelu(at).1),
            _ => {}
        }
        d.kind.write(at_d + (j * d.ld) as u64 * d.kind.size(), &column);
    }
    if let (BGRADB, Some(at)) = (product.epilogue, product.bias) {
        d.kind.write(at, &(0..n).map(|j| (0..k).map(|l| y(l, j)).sum()).collect::<Vec<_>>());
    }
    *lock(&COMPUTED) += 1;
    *lock(&EPILOGUES) += usize::from(product.epilogue > BIAS);
}

extern "C" fn cublasLtGetVersion() -> usize {
    here().options.products.as_ref().map_or(0, |products| products.version)
}

/// The table of cuBLASLt's functions, with `cublasLtGetVersion`, which returns a number.
pub(super) const TABLE: &[&[super::entry::Entry]] = &[
    ENTRIES,
    &[super::entry::Entry {
        name: "cublasLtGetVersion",
        at: cublasLtGetVersion as *const (),
        rule: "without a handle",
    }],
];

entries! {
    cublasLtCreate(place: *mut u64) "in a context; refused where the library is newer than the driver" {
        let here = here();
        let starts = here.options.products.as_ref().is_some_and(|products| products.starts);
        match here.current().is_ok() && starts {
            true => put(place, 16),
            false => Err(Code::CUBLAS_STATUS_NOT_INITIALIZED),
        }
    }
    cublasLtMatmulDescCreate(place: *mut u64, compute: c_int, scale: c_int) "sums and scales in f32" {
        // The values of CUBLAS_COMPUTE_32F and CUDA_R_32F.
        if (compute, scale) != (68, 0) {
            return Err(Code::CUBLAS_STATUS_NOT_SUPPORTED);
        }
        put(place, PRODUCTS.make(Product::default()))
    }
    cublasLtMatmulDescSetAttribute(product: u64, attribute: c_int, from: *const u64, bytes: usize)
    "of the size of its attribute" {
        let flag = |nth: usize| -> Result<bool, Code> {
            let turned = value::<i32>(from.cast(), bytes)? == 1;
            Ok(PRODUCTS.change(product, |product| product.turned[nth] = turned))
        };
        ended(match attribute {
            3 => flag(0)?,
            4 => flag(1)?,
            7 => {
                let epilogue = value::<i32>(from.cast(), bytes)?;
                PRODUCTS.change(product, |product| product.epilogue = epilogue)
            }
            8 => {
                let at = value::<u64>(from, bytes)?;
                PRODUCTS.change(product, |product| product.bias = Some(at))
            }
            // CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER and _LD.
            11 => {
                let at = value::<u64>(from, bytes)?;
                PRODUCTS.change(product, |product| product.beside.0 = at)
            }
            12 => {
                let ld = value::<i64>(from.cast(), bytes)?;
                PRODUCTS.change(product, |product| product.beside.1 = ld as usize)
            }
            _ => false,
        })
    }
    cublasLtMatmulDescDestroy(product: u64) "once" { ended(PRODUCTS.end(product)) }
    cublasLtMatrixLayoutCreate(place: *mut u64, kind: c_int, rows: u64, columns: u64, ld: i64) "column by column" {
        let kind = match kind {
            0 => Kind::F32,
            2 => Kind::F16,
            14 => Kind::Bf16,
            _ => return Err(Code::CUBLAS_STATUS_NOT_SUPPORTED),
        };
        let (rows, columns, ld) = (rows as usize, columns as usize, ld as usize);
        put(place, LAYOUTS.make(TensorLayout { kind, rows, columns, ld }))
    }
    cublasLtMatrixLayoutDestroy(layout: u64) "once" { ended(LAYOUTS.end(layout)) }
    cublasLtMatmulPreferenceCreate(place: *mut u64) "every alignment is 256 bytes unless it is set" {
        put(place, PREFERENCES.make(Preference([256; 4])))
    }
    cublasLtMatmulPreferenceSetAttribute(preference: u64, attribute: c_int, from: *const u64, bytes: usize)
    "workspace, and the alignment of A, B, C, D" {
        ended(match attribute {
            1 => value::<u64>(from, bytes).is_ok(),
            5..=8 => {
                let aligned = value::<u32>(from.cast(), bytes)?;
                PREFERENCES.change(preference, |preference| preference.0[attribute as usize - 5] = aligned)
            }
            _ => false,
        })
    }
    cublasLtMatmulPreferenceDestroy(preference: u64) "once" { ended(PREFERENCES.end(preference)) }
    cublasLtMatmulAlgoGetHeuristic(
        _handle: u64, product: u64, a: u64, b: u64, _c: u64, d: u64, preference: u64,
        asked: c_int, found: *mut [u64; 12], count: *mut c_int,
    )
    "algorithms that hold for the alignment that was stated" {
        let (Some(product), Some(Preference(aligned))) = (PRODUCTS.get(product), PREFERENCES.get(preference)) else {
            return Err(Code::CUBLAS_STATUS_INVALID_VALUE);
        };
        let (Some(a), Some(b), Some(d)) = (LAYOUTS.get(a), LAYOUTS.get(b), LAYOUTS.get(d)) else {
            return Err(Code::CUBLAS_STATUS_INVALID_VALUE);
        };
        shape(&product, [a, b, d])?;
        let epilogues = here().options.products.as_ref().is_some_and(|products| products.epilogues);
        if !product.is_whole(&d) || product.epilogue > BIAS && (!epilogues || a.kind == Kind::F32) {
            return Err(Code::CUBLAS_STATUS_NOT_SUPPORTED);
        }
        let proposed = asked.min(2);
        for nth in 0..proposed as usize {
            let mut words = [0u64; 12];
            words[..4].copy_from_slice(&aligned.map(u64::from));
            // SAFETY: the caller has space for as many results as it requested: a description of 64 bytes, and 32 bytes more.
            unsafe { found.add(nth).write(words) };
        }
        put(count, proposed)
    }
    cublasLtMatmul(
        _handle: u64, product: u64, alpha: *const f32, at_a: u64, a: u64, at_b: u64, b: u64, beta: *const f32,
        at_c: u64, _c: u64, at_d: u64, d: u64, algorithm: *const [u64; 8], _workspace: u64, _bytes: usize, stream: u64,
    )
    "runs on the stream; operands must have the alignment that the algorithm was chosen for" {
        let (Some(product), Some(a), Some(b), Some(d)) =
            (PRODUCTS.get(product), LAYOUTS.get(a), LAYOUTS.get(b), LAYOUTS.get(d))
        else {
            return Err(Code::CUBLAS_STATUS_INVALID_VALUE);
        };
        let sides = shape(&product, [a, b, d])?;
        let addresses = [at_a, at_b, at_c, at_d];
        // SAFETY: the algorithm is one of this stand-in's, and scales are f32.
        let (aligned, scales) = unsafe { (*algorithm, (*alpha, *beta)) };
        if let Some(at) = (0..4).find(|at| !addresses[*at].is_multiple_of(aligned[*at].max(1))) {
            let wanted = aligned[at];
            here().violates(format!("cublasLtMatmul: operand {at} is not aligned to {wanted} bytes, as its algorithm needs"));
            return Err(Code::CUBLAS_STATUS_INVALID_VALUE);
        }
        let ranges = [(at_a, a.bytes()), (at_b, b.bytes()), (at_c, d.bytes()), (at_d, d.bytes())];
        let ranges = ranges.into_iter().chain(product.ranges(&d)).collect();
        let work = move || compute(&product, [a, b, d], sides, addresses, scales);
        give(stream, "cublasLtMatmul", ranges, work).map_err(|_| Code::CUBLAS_STATUS_EXECUTION_FAILED)
    }
}
