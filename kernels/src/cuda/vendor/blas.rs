//! cuBLASLt: products with the bias in the same call, the fastest of its algorithms by shape.

use super::{Handle, Handles, lock, native, pointer, refused};
use crate::DType;
use crate::cuda::launch::{self, Matrix, Moved};
use crate::cuda::libraries::Library;
use crate::cuda::{Error, Queue, Result, Slice};
use cudarc::cublaslt::{result, sys};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

/// Bytes that an algorithm may use beside its operands: what NVIDIA advises for Hopper.
const WORKSPACE: usize = 32 << 20;
/// Algorithms that are tried.
const TRIED: usize = 8;
/// Runs of each.
const RUNS: u32 = 3;

/// m, n, k, transposes, type, whether it adds to c, whether a bias is added.
type Shape = (usize, usize, usize, bool, bool, DType, bool, bool);

/// The library on one device.
pub(super) struct Blas {
    handle: Mutex<Handle<sys::cublasLtHandle_t>>,
    chosen: Mutex<BTreeMap<Shape, sys::cublasLtMatmulAlgo_t>>,
}

/// Whether it can be loaded by its name.
pub(super) fn present() -> bool {
    // SAFETY: only looks for a library by name, and loads it.
    unsafe { sys::is_culib_present() }
}

/// Its version; only where it is present.
pub(super) fn version() -> (usize, usize, usize) {
    // SAFETY: takes nothing.
    let version = unsafe { sys::cublasLtGetVersion() };
    (version / 10_000, version / 100 % 100, version % 100)
}

fn check(call: &'static str, answer: std::result::Result<(), result::CublasError>) -> Result<()> {
    answer.map_err(|error| refused(call, error.0))
}

fn type_of(dtype: DType) -> Result<sys::cudaDataType> {
    match dtype {
        DType::F32 => Ok(sys::cudaDataType_t::CUDA_R_32F),
        DType::F16 => Ok(sys::cudaDataType_t::CUDA_R_16F),
        DType::Bf16 => Ok(sys::cudaDataType_t::CUDA_R_16BF),
        other => Err(Error::Argument(format!("no products of {other}"))),
    }
}

/// A matrix of the library's: column by column, `ld` elements from one to the next.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    /// Of a row-major matrix of `rows` by `columns` in memory, which column by column is its transpose.
    fn of(dtype: DType, rows: usize, columns: usize) -> Result<Layout> {
        let made = result::create_matrix_layout(type_of(dtype)?, columns as u64, rows as u64, columns as i64);
        made.map(Layout).map_err(|error| refused("describe a matrix", error.0))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: made in `of`, destroyed once.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

struct Description(sys::cublasLtMatmulDesc_t);

impl Description {
    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: T) -> Result<()> {
        // SAFETY: a live description, and a value of the size that is said.
        let answer = unsafe {
            result::set_matmul_desc_attribute(self.0, attribute, (&raw const value).cast(), size_of::<T>())
        };
        check("describe a product", answer)
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: made by `create_matmul_desc`, destroyed once.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// A product that is described, with the addresses that it works on.
struct Call<'a> {
    description: Description,
    layouts: [Layout; 3],
    operands: [*mut c_void; 2],
    keep: f32,
    queue: &'a Queue,
}

impl Blas {
    /// The library on the queue's device, where both are there.
    pub fn of(queue: &Queue) -> Result<Option<Arc<Blas>>> {
        static ALL: Handles<Blas> = Handles::new();
        ALL.of(queue, Library::CublasLt, || {
            let handle = result::create_handle().map_err(|error| refused("start cuBLASLt", error.0))?;
            Ok(Blas { handle: Mutex::new(Handle(handle)), chosen: Mutex::default() })
        })
    }

    /// Row by row, `c [m, n] = a b` is `c' = b' a'` column by column: the operands change places.
    pub fn matmul(
        &self,
        queue: &Queue,
        dtype: DType,
        (a, b): (Matrix<'_>, Matrix<'_>),
        c: Slice<'_>,
        keep: f32,
        bias: Option<Slice<'_>>,
    ) -> Result<Moved> {
        let (m, n, k) = (a.rows, b.columns, a.columns);
        launch::holds("a matrix", a.data, (m * k) as u64, dtype.size())?;
        launch::holds("a matrix", b.data, (k * n) as u64, dtype.size())?;
        launch::holds("a product", c, (m * n) as u64, dtype.size())?;
        bias.map_or(Ok(()), |bias| launch::holds("a bias", bias, n as u64, 4))?;
        // The library takes a bias of c's own type.
        let inside = bias.filter(|_| dtype == DType::F32);
        let lies = |matrix: &Matrix<'_>| match matrix.transposed {
            true => Layout::of(dtype, matrix.columns, matrix.rows),
            false => Layout::of(dtype, matrix.rows, matrix.columns),
        };
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let made = result::create_matmul_desc(compute, sys::cudaDataType_t::CUDA_R_32F);
        let description = made.map(Description).map_err(|error| refused("describe a product", error.0))?;
        // cublasOperation_t: 0 as it lies, 1 transposed.
        let turn = |turned: bool| i32::from(turned);
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        description.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, turn(b.transposed))?;
        description.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, turn(a.transposed))?;
        if let Some(bias) = inside {
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
            description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue)?;
            description.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.address())?;
        }
        let call = Call {
            description,
            layouts: [lies(&b)?, lies(&a)?, Layout::of(dtype, m, n)?],
            operands: [pointer(b.data), pointer(a.data)],
            keep,
            queue,
        };
        let shape = (m, n, k, a.transposed, b.transposed, dtype, keep != 0.0, inside.is_some());
        let known = lock(&self.chosen).get(&shape).copied();
        let algorithm = match known {
            Some(known) => known,
            None => {
                let best = self.fastest(&call, c)?;
                lock(&self.chosen).insert(shape, best);
                best
            }
        };
        self.run(&call, &algorithm, c)?;
        if let (Some(bias), None) = (bias, inside) {
            launch::bias(queue, dtype, c, bias, 1)?;
        }
        Ok((a.data.len() + b.data.len() + c.len()) as u64)
    }

    fn run(&self, call: &Call<'_>, algorithm: &sys::cublasLtMatmulAlgo_t, c: Slice<'_>) -> Result<()> {
        let workspace = call.queue.memory(WORKSPACE)?;
        let (one, stream) = (1.0f32, native(call.queue)?);
        let [a, b, d] = &call.layouts;
        let handle = lock(&self.handle);
        // SAFETY: live descriptions over memory of the lengths that they say, checked by the caller; scalars of the scale's
        // type. The workspace is the queue's, so whoever has it next comes after this.
        check("multiply matrices", unsafe {
            result::matmul(
                handle.0,
                call.description.0,
                (&raw const one).cast(),
                (&raw const call.keep).cast(),
                call.operands[0],
                a.0,
                call.operands[1],
                b.0,
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

    /// The fastest of the library's proposals, timed over a result that is thrown away.
    fn fastest(&self, call: &Call<'_>, c: Slice<'_>) -> Result<sys::cublasLtMatmulAlgo_t> {
        let proposals = self.proposals(call)?;
        let scratch = call.queue.memory(c.len())?;
        call.queue.fill(scratch.all(), 0)?;
        let (from, to) = (call.queue.record()?, call.queue.record()?);
        let mut best: Option<(u64, sys::cublasLtMatmulAlgo_t)> = None;
        for algorithm in proposals {
            // One that is refused after all is passed over.
            if self.run(call, &algorithm, scratch.all()).is_err() {
                continue;
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
        let preference =
            result::create_matmul_pref().map_err(|error| refused("state a preference", error.0))?;
        let limit = WORKSPACE as u64;
        let attribute = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        // SAFETY: a live preference and a value of the size that is said.
        let set =
            unsafe { result::set_matmul_pref_attribute(preference, attribute, (&raw const limit).cast(), 8) };
        let mut found =
            [const { std::mem::MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed() }; TRIED];
        let (mut count, handle, [a, b, d]) = (0, lock(&self.handle), &call.layouts);
        // SAFETY: live descriptions, and a place for as many answers as are asked for.
        let answer = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                handle.0,
                call.description.0,
                a.0,
                b.0,
                d.0,
                d.0,
                preference,
                TRIED as i32,
                found.as_mut_ptr().cast(),
                &mut count,
            )
        };
        // SAFETY: made above, destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(preference) };
        check("state a preference", set)?;
        check("propose algorithms", answer.result())?;
        // SAFETY: the library has written the first `count`.
        Ok(found[..count.clamp(0, TRIED as i32) as usize]
            .iter()
            .map(|one| unsafe { one.assume_init_ref() }.algo)
            .collect())
    }
}
