//! What the stand-ins are: the driver and its GPUs, and the libraries that are there.

use std::time::Duration;

/// What the stand-in is.
#[derive(Clone, Debug)]
pub struct StandinOptions {
    /// GPUs.
    pub devices: usize,
    /// The driver's CUDA, as the driver counts: 13000 is 13.0.
    pub driver: i32,
    /// What `cuInit` answers; 0 is success.
    pub init: u32,
    /// The GPUs' architecture.
    pub arch: u32,
    /// GPUs in exclusive-process mode that another process holds.
    pub taken: &'static [usize],
    /// Whether kernels of a GPU can be let to reach the others' memory.
    pub peers: bool,
    /// Bytes of each GPU.
    pub memory: u64,
    /// NVRTC; `None`: it is not there.
    pub nvrtc: Option<Nvrtc>,
    /// cuBLASLt; `None`: it is not there.
    pub products: Option<Products>,
    /// cuDNN; `None`: it is not there.
    pub convolutions: Option<Convolutions>,
    /// Names of libraries of other versions that are there too.
    pub others: &'static [&'static str],
    /// The longest that a stream waits before a task.
    pub delay: Duration,
    /// What the delays are drawn from.
    pub seed: u64,
    /// A call that waits longer than this is a violation, and answers that a launch timed out.
    pub limit: Duration,
    /// Defects of `docs/GPU.md` that are put back in: [`allfold_kernels::cuda::CudaMachine::seeded`] answers by this list.
    pub seeded: &'static [u8],
}

impl Default for StandinOptions {
    fn default() -> StandinOptions {
        StandinOptions {
            devices: 1,
            driver: 13_000,
            init: 0,
            arch: 90,
            taken: &[],
            peers: true,
            memory: 8 << 30,
            nvrtc: Some(Nvrtc::default()),
            products: None,
            convolutions: None,
            others: &[],
            delay: Duration::from_micros(100),
            seed: 1,
            limit: Duration::from_secs(20),
            seeded: &[],
        }
    }
}

/// An NVRTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nvrtc {
    /// The name of its library.
    pub file: &'static str,
    /// The driver's version.
    pub version: (i32, i32),
    /// The architectures that it compiles for.
    pub architectures: &'static [u32],
    /// Files that it says do not compile.
    pub broken: &'static [&'static str],
}

impl Default for Nvrtc {
    fn default() -> Nvrtc {
        let architectures = &[75, 80, 86, 89, 90, 100, 103, 120];
        Nvrtc { file: "libnvrtc.so.13", version: (13, 0), architectures, broken: &[] }
    }
}

/// A cuBLASLt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Products {
    /// The name of its library.
    pub file: &'static str,
    /// The library's version in its own counting: 130000 is 13.0.
    pub version: usize,
    /// Whether a handle can be made.
    pub starts: bool,
}

impl Default for Products {
    fn default() -> Products {
        Products { file: "libcublasLt.so.13", version: 130_000, starts: true }
    }
}

/// A cuDNN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Convolutions {
    /// Whether a handle can be made.
    pub starts: bool,
    /// Whether some algorithm supports a shape.
    pub supports: bool,
    /// How many descriptions can be made before memory runs out.
    pub descriptions: usize,
}

impl Default for Convolutions {
    fn default() -> Convolutions {
        Convolutions { starts: true, supports: true, descriptions: usize::MAX }
    }
}
