//! Errors of a GPU driver, as errors of a rank.

use crate::Error;
use allfold_kernels::cuda;

/// A wrong argument stays an argument error; any other driver error becomes a system error.
pub(crate) fn failed(error: cuda::Error) -> Error {
    match error {
        cuda::Error::Argument(what) => Error::Argument(what),
        other => Error::System(other.to_string()),
    }
}
