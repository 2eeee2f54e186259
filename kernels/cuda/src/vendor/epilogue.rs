//! What a product computes in the same pass over its result.

use crate::Slice;
use crate::launch::{DeviceMatrix, ProductOutput};
use allfold_kernels::DType;
use cudarc::cublaslt::sys::cublasLtEpilogue_t as Kind;

/// What a product computes of its sums, beside rounding them.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue<'a> {
    /// Nothing.
    None,
    /// Adds a value per column, of f32 or of the operands' type.
    Bias(Slice<'a>),
    /// Adds a bias, stores the sums in `before`, and writes their GELU.
    Gelu {
        /// The value that is added to each column.
        bias: Option<Slice<'a>>,
        /// The sums, of the result's shape and type.
        before: Slice<'a>,
    },
    /// Multiplies by the slope of GELU at `before`: the gradient of [`Epilogue::Gelu`].
    GeluBack {
        /// What GELU was computed of, of the result's shape and type.
        before: Slice<'a>,
    },
    /// Writes the sum of each row of the left operand (f32), which must be transposed: the gradient of a bias beside that of weights.
    RowSums(Slice<'a>),
}

impl<'a> Epilogue<'a> {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Epilogue::None => Kind::CUBLASLT_EPILOGUE_DEFAULT,
            Epilogue::Bias(_) => Kind::CUBLASLT_EPILOGUE_BIAS,
            Epilogue::Gelu { bias: Some(_), .. } => Kind::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
            Epilogue::Gelu { bias: None, .. } => Kind::CUBLASLT_EPILOGUE_GELU_AUX,
            Epilogue::GeluBack { .. } => Kind::CUBLASLT_EPILOGUE_DGELU,
            // The left operand is cuBLASLt's second.
            Epilogue::RowSums(_) => Kind::CUBLASLT_EPILOGUE_BGRADB,
        }
    }

    /// The vector that the library calls the bias, which [`Epilogue::RowSums`] writes.
    pub(super) fn bias(&self) -> Option<Slice<'a>> {
        match *self {
            Epilogue::Bias(bias) | Epilogue::RowSums(bias) => Some(bias),
            Epilogue::Gelu { bias, .. } => bias,
            _ => None,
        }
    }

    /// The matrix that the library calls the auxiliary buffer, which [`Epilogue::Gelu`] writes.
    pub(super) fn before(&self) -> Option<Slice<'a>> {
        match *self {
            Epilogue::Gelu { before, .. } | Epilogue::GeluBack { before } => Some(before),
            _ => None,
        }
    }

    /// Whether cuBLASLt may compute it: for 16-bit operands whose sides and memory tensor cores read, and a bias of the result's type.
    pub(super) fn may_fuse(
        &self,
        dtype: DType,
        (a, b): (DeviceMatrix<'_>, DeviceMatrix<'_>),
        c: ProductOutput<'_>,
    ) -> bool {
        let sides = [a.rows, a.columns, b.columns, a.apart, b.apart];
        let memory = [Some(c.data), self.bias(), self.before()];
        // The library's bias has the type of the result. Without an epilogue, and with a bias alone, operands may be padded too.
        let bias = match self {
            Epilogue::None | Epilogue::Bias(_) => false,
            Epilogue::Gelu { bias, .. } => bias.is_none_or(|bias| bias.len() == b.columns * dtype.size()),
            Epilogue::GeluBack { .. } => true,
            Epilogue::RowSums(_) => c.dtype == DType::F32,
        };
        dtype.size() == 2
            && bias
            && (c.keep, c.apart) == (0.0, 0)
            && sides.iter().all(|side| side.is_multiple_of(8))
            && memory.iter().flatten().all(|part| part.address().is_multiple_of(16))
    }
}
