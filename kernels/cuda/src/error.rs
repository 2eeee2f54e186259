//! The errors of GPU work.

use super::libraries::CudaLibrary;

/// Why a GPU operation failed. Each message is one line, with a remedy where the user can apply one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A CUDA library is not installed, or lacks a function that Allfold needs.
    Missing {
        /// The library that is missing or incomplete.
        library: CudaLibrary,
        /// The file or function that was searched for.
        looked_for: String,
    },
    /// CUDA is installed, but there is no usable device; the text contains the reason.
    NoDevice(String),
    /// The driver or a library refused a call.
    Refused {
        /// The call that was refused.
        call: &'static str,
        /// The driver's or the library's answer, by name.
        answer: String,
    },
    /// NVRTC could not compile a source file of kernels.
    Compile {
        /// The source file.
        file: &'static str,
        /// The target architecture.
        target: String,
        /// The first lines of NVRTC's log.
        log: String,
    },
    /// A kernel broke a rule, as found by the shim (the CPU machine of the tests).
    Kernel {
        /// The name of the kernel.
        kernel: String,
        /// The rule that was broken, and where.
        what: String,
    },
    /// Two unordered tasks touch the same memory and at least one of them writes it, as found by the shim; the text names them.
    Race(String),
    /// An argument of the call is wrong, such as a length or a shape.
    Argument(String),
}

/// The result of a GPU operation.
pub type Result<T> = std::result::Result<T, Error>;

impl std::error::Error for Error {}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Missing { library, looked_for } => {
                write!(f, "{} is missing ({looked_for}): {}", library.name(), library.how_to_get())
            }
            Error::NoDevice(why) => write!(f, "no usable GPU: {why}"),
            Error::Refused { call, answer } => write!(f, "CUDA refused to {call}: {answer}"),
            Error::Compile { file, target, log } => write!(f, "{file} does not compile for {target}: {log}"),
            Error::Kernel { kernel, what } => write!(f, "kernel {kernel}: {what}"),
            Error::Race(what) => write!(f, "a race: {what}"),
            Error::Argument(what) => f.write_str(what),
        }
    }
}

/// Turns the driver's answer to `call` into a result.
pub(super) fn driver<T>(
    call: &'static str,
    answer: std::result::Result<T, cudarc::driver::result::DriverError>,
) -> Result<T> {
    // The name of the code, because requesting a description from the driver is another call that can fail.
    answer.map_err(|error| Error::Refused { call, answer: format!("{:?}", error.0) })
}
