//! What the driver of a GPU refuses, as an error of a rank.

use crate::Error;
use allfold_kernels::cuda;

/// A wrong argument stays one; all else is the system's.
pub(crate) fn failed(error: cuda::Error) -> Error {
    match error {
        cuda::Error::Argument(what) => Error::Argument(what),
        other => Error::System(other.to_string()),
    }
}
