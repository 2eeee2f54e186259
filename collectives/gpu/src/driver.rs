//! Errors of a GPU driver, as errors of a rank.

use crate::Error;

/// A wrong argument stays an argument error; any other driver error becomes a system error.
pub(crate) fn failed(error: allfold_cuda::Error) -> Error {
    match error {
        allfold_cuda::Error::Argument(what) => Error::Argument(what),
        other => Error::System(other.to_string()),
    }
}
