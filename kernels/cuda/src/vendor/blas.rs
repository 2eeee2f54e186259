//! cuBLASLt: matrix products, with bias, GELU or a bias's gradient in the same call, by its fastest algorithm for each shape.

use super::cublas_lt::{CublasLt, cublas_lt};
use super::epilogue::Epilogue;
use super::{Handle, Handles, deterministic, lock, native, pointer, refused};
use crate::launch::{self, DeviceMatrix, ProductOutput};
use crate::libraries::CudaLibrary;
use crate::{Error, Memory, Queue, Result, Slice};
use allfold_kernels::DType;
use cudarc::cublaslt::sys;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex};

/// The workspace of an algorithm in bytes: NVIDIA's recommendation for Hopper.
const WORKSPACE: usize = 32 << 20;
/// The most algorithms that are timed for a shape.
const TRIED: usize = 8;
/// The number of timed runs of each algorithm.
const RUNS: u32 = 3;

/// From so many elements on, a 16-bit matrix whose sides tensor cores cannot read is copied to one with larger sides.
const COPIED: usize = 1 << 16;

/// Whether a matrix is copied if its sides are no multiples of 8, the 16 bytes that tensor cores load at once. Otherwise cuBLASLt uses
/// kernels for single elements: on an H200, the logits of GPT-2 took five times as long with these kernels.
fn is_padded(dtype: DType, rows: usize, columns: usize) -> bool {
    dtype.size() == 2 && rows * columns >= COPIED
}

/// A product's m, n, k, two transposes, the types of operands and result, whether it adds to c, the number of its epilogue, and the
/// operands' alignments.
type Shape = (usize, usize, usize, bool, bool, [DType; 2], bool, i32, [u32; 3]);

/// cuBLASLt on one device.
pub(super) struct Blas {
    library: &'static CublasLt,
    handle: Mutex<Handle<sys::cublasLtHandle_t>>,
    /// `None` for epilogues that the library does not compute.
    chosen: Mutex<BTreeMap<Shape, Option<sys::cublasLtMatmulAlgo_t>>>,
}

/// Whether cuBLASLt can be loaded.
pub(super) fn present() -> bool {
    cublas_lt().is_ok()
}

/// cuBLASLt's version; zeros if it is not installed.
pub(super) fn version() -> (usize, usize, usize) {
    // SAFETY: the function takes no arguments.
    let version = cublas_lt().map_or(0, |library| unsafe { (library.cublasLtGetVersion)() });
    (version / 10_000, version / 100 % 100, version % 100)
}

fn check(call: &'static str, answer: sys::cublasStatus_t) -> Result<()> {
    match answer {
        sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        other => Err(refused(call, other)),
    }
}

/// The alignment of an address in bytes, up to the 256 of allocations.
fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(8)
}

fn type_of(dtype: DType) -> Result<sys::cudaDataType> {
    match dtype {
        DType::F32 => Ok(sys::cudaDataType_t::CUDA_R_32F),
        DType::F16 => Ok(sys::cudaDataType_t::CUDA_R_16F),
        DType::Bf16 => Ok(sys::cudaDataType_t::CUDA_R_16BF),
        other => Err(Error::Argument(format!(
            "matrix products of {other} are not supported; use f32, f16 or bf16"
        ))),
    }
}

/// A matrix as cuBLASLt describes it: column by column, `ld` elements from one column to the next.
struct TensorLayout(sys::cublasLtMatrixLayout_t, &'static CublasLt);

impl TensorLayout {
    /// The layout of a row-major matrix of `rows` by `columns` with rows `stride` apart. cuBLASLt counts column by column, so to it this
    /// is the matrix's transpose.
    fn of(
        library: &'static CublasLt,
        dtype: DType,
        (rows, columns): (usize, usize),
        stride: usize,
    ) -> Result<TensorLayout> {
        let (kind, mut made) = (type_of(dtype)?, ptr::null_mut());
        let (across, down) = (columns as u64, rows as u64);
        // SAFETY: the library writes one handle to `made`.
        let answer =
            unsafe { (library.cublasLtMatrixLayoutCreate)(&mut made, kind, across, down, stride as i64) };
        check("describe a matrix", answer).map(|()| TensorLayout(made, library))
    }
}

impl Drop for TensorLayout {
    fn drop(&mut self) {
        // SAFETY: the layout was made in `of` and is destroyed once.
        let _ = unsafe { (self.1.cublasLtMatrixLayoutDestroy)(self.0) };
    }
}

struct Description(sys::cublasLtMatmulDesc_t, &'static CublasLt);

impl Description {
    /// The description of a product with f32 sums and scales.
    fn new(library: &'static CublasLt) -> Result<Description> {
        let (compute, scale) =
            (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType_t::CUDA_R_32F);
        let mut made = ptr::null_mut();
        // SAFETY: the library writes one handle to `made`.
        let answer = unsafe { (library.cublasLtMatmulDescCreate)(&mut made, compute, scale) };
        check("describe a product", answer).map(|()| Description(made, library))
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: T) -> Result<()> {
        let from = (&raw const value).cast();
        // SAFETY: the description is live, and `from` points to a value of the given size.
        check("describe a product", unsafe {
            (self.1.cublasLtMatmulDescSetAttribute)(self.0, attribute, from, size_of::<T>())
        })
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: the description was made in `new` and is destroyed once.
        let _ = unsafe { (self.1.cublasLtMatmulDescDestroy)(self.0) };
    }
}

/// The limits on the algorithms that cuBLASLt proposes.
struct Preference(sys::cublasLtMatmulPreference_t, &'static CublasLt);

impl Preference {
    fn new(library: &'static CublasLt) -> Result<Preference> {
        let mut made = ptr::null_mut();
        // SAFETY: the library writes one handle to `made`.
        let answer = unsafe { (library.cublasLtMatmulPreferenceCreate)(&mut made) };
        check("state a preference", answer).map(|()| Preference(made, library))
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulPreferenceAttributes_t, value: T) -> Result<()> {
        let from = (&raw const value).cast();
        // SAFETY: the preference is live, and `from` points to a value of the given size.
        check("state a preference", unsafe {
            (self.1.cublasLtMatmulPreferenceSetAttribute)(self.0, attribute, from, size_of::<T>())
        })
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: the preference was made in `new` and is destroyed once.
        let _ = unsafe { (self.1.cublasLtMatmulPreferenceDestroy)(self.0) };
    }
}

/// A matrix product's description, with the addresses of its operands.
struct Call<'a> {
    description: Description,
    layouts: [TensorLayout; 3],
    operands: [*mut c_void; 2],
    /// The alignments of the operands and of the result, in bytes.
    aligned: [u32; 3],
    shape: Shape,
    /// The bytes of the result.
    bytes: usize,
    keep: f32,
    queue: &'a Queue,
}

/// An operand of a product, copied to larger sides if necessary.
pub(super) struct Operand<'a> {
    matrix: DeviceMatrix<'a>,
    copy: Option<Memory>,
    /// Rows and columns in memory, and the distance of rows.
    sides: (usize, usize),
    stride: usize,
}

impl<'a> Operand<'a> {
    /// `matrix` with the sides `wanted`, which are its own or larger; the added elements are zeros.
    fn new(queue: &Queue, dtype: DType, matrix: DeviceMatrix<'a>, wanted: (usize, usize)) -> Result<Self> {
        let stored = |(rows, columns)| if matrix.transposed { (columns, rows) } else { (rows, columns) };
        let ((rows, columns, apart), sides) = (matrix.stored(), stored(wanted));
        let stride = if is_padded(dtype, rows, columns) { sides.1.next_multiple_of(8) } else { sides.1 };
        // Between rows that are apart there are zeros.
        let stride = if apart > columns && apart >= sides.1 { apart } else { stride };
        let copied = (sides.0, stride) != (rows, apart);
        let copy = copied.then(|| queue.memory(2 * sides.0 * stride)).transpose()?;
        if let Some(copy) = &copy {
            launch::restride(queue, (matrix.data, apart), (copy.all(), stride), (rows, columns))?;
        }
        Ok(Operand { matrix, copy, sides, stride })
    }

    pub fn data(&self) -> Slice<'_> {
        self.copy.as_ref().map_or(self.matrix.data, Memory::all)
    }
}

/// Pads operands that tensor cores cannot read, lets `product` compute them, and does what the library's call does not: copies a padded
/// result back, and adds a bias of another type than c.
pub(super) fn padded(
    queue: &Queue,
    dtype: DType,
    (a, b): (DeviceMatrix<'_>, DeviceMatrix<'_>),
    c: ProductOutput<'_>,
    bias: Option<Slice<'_>>,
    product: impl FnOnce([&Operand<'_>; 2], (usize, usize), ProductOutput<'_>, Option<Slice<'_>>) -> Result<()>,
) -> Result<()> {
    let (m, n, k) = (a.rows, b.columns, a.columns);
    [a, b].iter().try_for_each(|matrix| matrix.check(dtype))?;
    let apart = c.check(dtype, (m, n))?;
    let bias_size = |bias: Slice<'_>| launch::bias_size(dtype, bias, n);
    bias.map_or(Ok(()), |bias| launch::holds("a bias", bias, n as u64, bias_size(bias)))?;
    // Zeros beyond k change no sum, and columns beyond n are not copied back, or lie between the rows of c.
    let side = |side: usize, pad: bool| if pad { side.next_multiple_of(8) } else { side };
    let spread = |apart: usize, columns: usize| dtype.size() == 2 && apart > columns;
    let wide = side(n, c.keep == 0.0 && (spread(apart, n) || is_padded(c.dtype, m, n)));
    // cuBLASLt takes only a bias of c's own type, with a value for every column.
    let inside = bias.filter(|bias| bias_size(*bias) == c.dtype.size() && wide == n);
    if bias.is_some() && inside.is_none() && apart > n {
        let what = "a bias of another type is added to adjacent rows only";
        return Err(Error::Argument(what.into()));
    }
    let deep = side(k, is_padded(dtype, m, k) || is_padded(dtype, k, n) || spread(a.apart, k));
    let (a, b) = (Operand::new(queue, dtype, a, (m, deep))?, Operand::new(queue, dtype, b, (deep, wide))?);
    let copied_c = (wide > apart).then(|| queue.memory(2 * m * wide)).transpose()?;
    let to = copied_c.as_ref().map_or(c, |copy| ProductOutput { data: copy.all(), apart: wide, ..c });
    product([&a, &b], (m, wide), to, inside)?;
    if copied_c.is_some() {
        launch::restride(queue, (to.data, wide), (c.data, apart), (m, n))?;
    }
    if let (Some(bias), None) = (bias, inside) {
        launch::bias(queue, c.dtype, c.data, bias, 1)?;
    }
    Ok(())
}

impl Blas {
    /// cuBLASLt on the queue's device; `None` without a GPU, or if the library is missing or does not start.
    pub fn of(queue: &Queue) -> Result<Option<Arc<Blas>>> {
        static ALL: Handles<Blas> = Handles::new();
        ALL.of(queue, CudaLibrary::CublasLt, || {
            let (library, mut handle) = (cublas_lt()?, ptr::null_mut());
            // SAFETY: the library writes one handle to `handle`, in the context of the queue's device.
            check("start cuBLASLt", unsafe { (library.cublasLtCreate)(&mut handle) })?;
            Ok(Blas { library, handle: Mutex::new(Handle(handle)), chosen: Mutex::default() })
        })
    }

    /// `c [m, n] = a b` row by row is `c' = b' a'` column by column, so the operands are exchanged.
    pub fn matmul(
        &self,
        queue: &Queue,
        dtype: DType,
        operands: (DeviceMatrix<'_>, DeviceMatrix<'_>),
        c: ProductOutput<'_>,
        bias: Option<Slice<'_>>,
    ) -> Result<()> {
        padded(queue, dtype, operands, c, bias, |[a, b], sides, to, bias| {
            let epilogue = bias.map_or(Epilogue::None, Epilogue::Bias);
            let call = self.call(queue, dtype, [a, b], sides, to, epilogue)?;
            let algorithm = self.algorithm(&call, || self.fastest(&call).map(Some))?;
            let missing = || refused("multiply matrices", "no algorithm runs");
            self.run(&call, &algorithm.ok_or_else(missing)?, to.data)
        })
    }

    /// A product with an epilogue that not every version computes; `false` if it cannot, and then nothing is written.
    pub fn fused(
        &self,
        queue: &Queue,
        dtype: DType,
        (a, b): (DeviceMatrix<'_>, DeviceMatrix<'_>),
        c: ProductOutput<'_>,
        epilogue: Epilogue<'_>,
    ) -> Result<bool> {
        let sides = (a.rows, b.columns);
        let [a, b] = [a, b].map(|matrix| Operand::new(queue, dtype, matrix, (matrix.rows, matrix.columns)));
        let Ok(call) = self.call(queue, dtype, [&a?, &b?], sides, c, epilogue) else { return Ok(false) };
        // A library that refuses the epilogue proposes no algorithm.
        match self.algorithm(&call, || Ok(self.fastest(&call).ok()))? {
            Some(algorithm) => self.run(&call, &algorithm, c.data).map(|()| true),
            None => Ok(false),
        }
    }

    /// Describes a product of operands as they lie in memory, to rows of `wide` elements.
    fn call<'q>(
        &self,
        queue: &'q Queue,
        dtype: DType,
        [a, b]: [&Operand<'_>; 2],
        (m, wide): (usize, usize),
        to: ProductOutput<'_>,
        epilogue: Epilogue<'_>,
    ) -> Result<Call<'q>> {
        let lies =
            |operand: &Operand<'_>| TensorLayout::of(self.library, dtype, operand.sides, operand.stride);
        let description = Description::new(self.library)?;
        // cublasOperation_t: 0 reads the matrix as stored, 1 reads its transpose.
        let turn = |turned: bool| i32::from(turned);
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        description.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, turn(b.matrix.transposed))?;
        description.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, turn(a.matrix.transposed))?;
        let kind = epilogue.kind();
        if kind != sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT {
            description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, kind)?;
        }
        if let Some(bias) = epilogue.bias() {
            description.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.address())?;
        }
        if let Some(before) = epilogue.before() {
            description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, before.address())?;
            description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, wide as i64)?;
        }
        let aligned = [b.data(), a.data(), to.data].map(|operand| alignment(operand.address()));
        let (n, k, types) = (b.matrix.columns, a.matrix.columns, [dtype, to.dtype]);
        let turned = [a.matrix.transposed, b.matrix.transposed];
        let shape = (m, n, k, turned[0], turned[1], types, to.keep != 0.0, kind as i32, aligned);
        let result = TensorLayout::of(self.library, to.dtype, (m, wide), to.apart.max(wide))?;
        let layouts = [lies(b)?, lies(a)?, result];
        let operands = [pointer(b.data()), pointer(a.data())];
        Ok(Call {
            description,
            layouts,
            operands,
            aligned,
            shape,
            bytes: to.data.len(),
            keep: to.keep,
            queue,
        })
    }

    /// The algorithm that was chosen for the shape before, or that `choose` chooses now.
    fn algorithm(
        &self,
        call: &Call<'_>,
        choose: impl FnOnce() -> Result<Option<sys::cublasLtMatmulAlgo_t>>,
    ) -> Result<Option<sys::cublasLtMatmulAlgo_t>> {
        if let Some(known) = lock(&self.chosen).get(&call.shape) {
            return Ok(*known);
        }
        let best = choose()?;
        // Threads that search at the same time all use the first thread's algorithm.
        Ok(*lock(&self.chosen).entry(call.shape).or_insert(best))
    }

    fn run(&self, call: &Call<'_>, algorithm: &sys::cublasLtMatmulAlgo_t, c: Slice<'_>) -> Result<()> {
        let workspace = call.queue.memory(WORKSPACE)?;
        let (one, stream) = (1.0f32, native(call.queue)?);
        let [a, b, d] = &call.layouts;
        let handle = lock(&self.handle);
        // SAFETY: the descriptions are live and the caller has checked their lengths against the memory; scalars have the scale's
        // type. The workspace is of the queue's pool, so its next user runs after this product.
        check("multiply matrices", unsafe {
            (self.library.cublasLtMatmul)(
                handle.0,
                call.description.0,
                (&raw const one).cast(),
                call.operands[0],
                a.0,
                call.operands[1],
                b.0,
                (&raw const call.keep).cast(),
                pointer(c),
                d.0,
                pointer(c),
                d.0,
                algorithm,
                workspace.address() as *mut c_void,
                WORKSPACE,
                stream.cast(),
            )
        })
    }

    /// The fastest of the library's proposals, timed with a result that is not used; in deterministic mode, the first proposal
    /// that runs.
    fn fastest(&self, call: &Call<'_>) -> Result<sys::cublasLtMatmulAlgo_t> {
        let proposals = self.proposals(call)?;
        let scratch = call.queue.memory(call.bytes)?;
        call.queue.fill(scratch.all(), 0)?;
        let (from, to) = (call.queue.record()?, call.queue.record()?);
        let mut best: Option<(u64, sys::cublasLtMatmulAlgo_t)> = None;
        for algorithm in proposals {
            // An algorithm that the library proposes but then refuses is skipped.
            if self.run(call, &algorithm, scratch.all()).is_err() {
                continue;
            }
            if deterministic() {
                return Ok(algorithm);
            }
            from.move_to(call.queue)?;
            (0..RUNS).try_for_each(|_| self.run(call, &algorithm, scratch.all()))?;
            to.move_to(call.queue)?;
            let time = from.until(&to)?;
            if best.is_none_or(|(least, _)| time < least) {
                best = Some((time, algorithm));
            }
        }
        best.map(|(_, algorithm)| algorithm).ok_or_else(|| refused("multiply matrices", "no algorithm runs"))
    }

    fn proposals(&self, call: &Call<'_>) -> Result<Vec<sys::cublasLtMatmulAlgo_t>> {
        let preference = Preference::new(self.library)?;
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, WORKSPACE as u64)?;
        // cuBLASLt assumes an alignment of 256 bytes by default, but a slice may begin anywhere.
        let [a, b, d] = call.aligned;
        for (attribute, bytes) in [
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, a),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, b),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, d),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d),
        ] {
            if !call.queue.machine().seeded(21) {
                preference.set(attribute, bytes)?;
            }
        }
        let mut found =
            [const { std::mem::MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed() }; TRIED];
        let (mut count, handle, [a, b, d]) = (0, lock(&self.handle), &call.layouts);
        // SAFETY: the descriptions are live, and `found` is as long as the number of requested algorithms.
        let answer = unsafe {
            (self.library.cublasLtMatmulAlgoGetHeuristic)(
                handle.0,
                call.description.0,
                a.0,
                b.0,
                d.0,
                d.0,
                preference.0,
                TRIED as i32,
                found.as_mut_ptr().cast(),
                &mut count,
            )
        };
        check("propose algorithms", answer)?;
        // SAFETY: the library has written the first `count` results.
        Ok(found[..count.clamp(0, TRIED as i32) as usize]
            .iter()
            .map(|one| unsafe { one.assume_init_ref() }.algo)
            .collect())
    }
}
