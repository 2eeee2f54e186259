//! The options of the stand-ins: the driver, its GPUs, and the installed libraries.

use std::time::Duration;

/// The options of a process's stand-ins.
#[derive(Clone, Debug)]
pub struct StandinOptions {
    /// The number of GPUs.
    pub devices: usize,
    /// The CUDA version of the driver, as cuDriverGetVersion counts: 13000 is 13.0.
    pub driver: i32,
    /// The result of `cuInit`: 0 (success), 100 or 803. With 1 it succeeds and there is no device; any other value means 999.
    pub init: u32,
    /// The GPUs' compute capability, times ten.
    pub arch: u32,
    /// The GPUs that are in exclusive-process mode and held by another process.
    pub taken: &'static [usize],
    /// Whether the GPUs support peer access to each other's memory.
    pub peers: bool,
    /// Whether processes of this host can share memory and events of the GPUs.
    pub ipc: bool,
    /// The memory of each GPU in bytes.
    pub memory: u64,
    /// The installed NVRTC; `None` if there is none.
    pub nvrtc: Option<Nvrtc>,
    /// The installed cuBLASLt; `None` if there is none.
    pub products: Option<Products>,
    /// The installed cuDNN; `None` if there is none.
    pub convolutions: Option<Convolutions>,
    /// The names of installed libraries of other versions.
    pub others: &'static [&'static str],
    /// The longest random delay of a stream before a task.
    pub delay: Duration,
    /// The seed of the random delays.
    pub seed: u64,
    /// The time after which a waiting call is a violation and returns that a launch timed out.
    pub limit: Duration,
    /// The seeded defects, by their numbers in `docs/GPU.md`; [`allfold_cuda::CudaMachine::seeded`] returns whether a defect is in this
    /// list.
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
            ipc: true,
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

/// The options of the stand-in for NVRTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nvrtc {
    /// The file name of the library.
    pub file: &'static str,
    /// The version of NVRTC.
    pub version: (i32, i32),
    /// The architectures that NVRTC compiles for.
    pub architectures: &'static [u32],
    /// The source files whose compilation fails.
    pub broken: &'static [&'static str],
}

impl Default for Nvrtc {
    fn default() -> Nvrtc {
        let architectures = &[75, 80, 86, 89, 90, 100, 103, 120];
        Nvrtc { file: "libnvrtc.so.13", version: (13, 0), architectures, broken: &[] }
    }
}

/// The options of the stand-in for cuBLASLt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Products {
    /// The file name of the library.
    pub file: &'static str,
    /// The version of cuBLASLt, as the library counts: 130000 is 13.0.
    pub version: usize,
    /// Whether a handle can be created.
    pub starts: bool,
    /// Whether epilogues beyond a bias are computed.
    pub epilogues: bool,
}

impl Default for Products {
    fn default() -> Products {
        Products { file: "libcublasLt.so.13", version: 130_000, starts: true, epilogues: true }
    }
}

/// The options of the stand-in for cuDNN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Convolutions {
    /// Whether a handle can be created.
    pub starts: bool,
    /// Whether any algorithm supports the requested shapes.
    pub supports: bool,
    /// Whether a search fails with the status that the shapes are not supported, as from cuDNN 9.0 on.
    pub refuses: bool,
    /// Whether a search gets the memory for its candidates.
    pub search_memory: bool,
    /// The number of descriptors that can be created before memory runs out.
    pub descriptions: usize,
}

impl Default for Convolutions {
    fn default() -> Convolutions {
        Convolutions {
            starts: true,
            supports: true,
            refuses: false,
            search_memory: true,
            descriptions: usize::MAX,
        }
    }
}
