//! What can go wrong on the way to a GPU.

use super::libraries::CudaLibrary;

/// Why something could not be done on a GPU. One line each, with what would help.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A library is not there, or lacks a function that is needed.
    Missing {
        /// The library.
        library: CudaLibrary,
        /// What was looked for.
        looked_for: String,
    },
    /// CUDA is there, but there is nothing to run on.
    NoDevice(String),
    /// The driver or a library refused a call.
    Refused {
        /// The call that was refused.
        call: &'static str,
        /// The driver's or the library's answer, by name.
        answer: String,
    },
    /// NVRTC could not compile a family of kernels.
    Compile {
        /// The source file.
        file: &'static str,
        /// The target architecture.
        target: String,
        /// The first lines of its log.
        log: String,
    },
    /// A kernel did what it must not: found by the shim, which names the places.
    Kernel {
        /// The kernel.
        kernel: String,
        /// What the caller did wrong.
        what: String,
    },
    /// Two tasks touch the same memory, one of them writes it, and nothing orders them: found by the shim.
    Race(String),
    /// The call itself cannot be right: a length, a shape.
    Argument(String),
}

/// The result of anything on a GPU.
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

/// What the driver answered, as a result.
pub(super) fn driver<T>(
    call: &'static str,
    answer: std::result::Result<T, cudarc::driver::result::DriverError>,
) -> Result<T> {
    // By the code's own name: asking the driver for its words is one more call that can fail.
    answer.map_err(|error| Error::Refused { call, answer: format!("{:?}", error.0) })
}
