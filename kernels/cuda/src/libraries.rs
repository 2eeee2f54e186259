//! The search for CUDA's libraries: by the dynamic linker's rules, then in the folders of Python's wheels and of toolkits.
//!
//! A library that the linker does not find by itself is loaded by its full path and stays loaded; a later load by its bare name then gets
//! the loaded library. So a machine whose only CUDA was installed with PyTorch is enough.
//!
//! A library of a newer major version than the driver's CUDA is the last choice, since the driver cannot load its code.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A library of NVIDIA's that Allfold can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CudaLibrary {
    /// The CUDA driver, `libcuda`.
    Driver,
    /// NVRTC, the run-time compiler.
    Nvrtc,
    /// cuBLASLt, for matrix products.
    CublasLt,
    /// cuDNN, for convolutions.
    Cudnn,
    /// NCCL, for collectives.
    Nccl,
    /// NVTX, which names ranges for profilers. Nothing is missing without it.
    Nvtx,
}

impl CudaLibrary {
    /// All libraries that Allfold computes with.
    pub const ALL: [CudaLibrary; 5] = [
        CudaLibrary::Driver,
        CudaLibrary::Nvrtc,
        CudaLibrary::CublasLt,
        CudaLibrary::Cudnn,
        CudaLibrary::Nccl,
    ];

    /// The library's usual name.
    pub const fn name(self) -> &'static str {
        match self {
            CudaLibrary::Driver => "the NVIDIA driver",
            CudaLibrary::Nvrtc => "NVRTC",
            CudaLibrary::CublasLt => "cuBLASLt",
            CudaLibrary::Cudnn => "cuDNN",
            CudaLibrary::Nccl => "NCCL",
            CudaLibrary::Nvtx => "NVTX",
        }
    }

    /// The library's file names, the preferred one first.
    pub const fn files(self) -> &'static [&'static str] {
        match self {
            CudaLibrary::Driver => &["libcuda.so.1"],
            CudaLibrary::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12"],
            CudaLibrary::CublasLt => &["libcublasLt.so.13", "libcublasLt.so.12"],
            CudaLibrary::Cudnn => &["libcudnn.so.9"],
            CudaLibrary::Nccl => &["libnccl.so.2"],
            CudaLibrary::Nvtx => &["libnvtx3interop.so.1", "libnvToolsExt.so.1"],
        }
    }

    /// How to install the library, in one line.
    pub const fn how_to_get(self) -> &'static str {
        match self {
            CudaLibrary::Driver => "install NVIDIA's driver for your GPU, version 570 (CUDA 12.8) or newer",
            CudaLibrary::Nvrtc => {
                "pip install nvidia-cuda-nvrtc, or a CUDA toolkit 12 or 13, and set CUDA_HOME or LD_LIBRARY_PATH if it is in an unusual place"
            }
            CudaLibrary::CublasLt => {
                "pip install nvidia-cublas, or a CUDA toolkit; without it Allfold's own, slower products are used"
            }
            CudaLibrary::Cudnn => {
                "pip install nvidia-cudnn-cu13; without it Allfold's own, slower convolutions are used"
            }
            CudaLibrary::Nccl => {
                "pip install nvidia-nccl-cu13, or install libnccl2 from NVIDIA's packages, and set LD_LIBRARY_PATH if it is in an unusual place"
            }
            CudaLibrary::Nvtx => "pip install nvidia-nvtx",
        }
    }

    /// Loads the library once for the life of the program. Returns its full path, or the name by which the linker found it.
    pub fn load(self) -> Option<&'static Path> {
        static FOUND: [OnceLock<Option<PathBuf>>; 6] = [const { OnceLock::new() }; 6];
        FOUND[self as usize].get_or_init(|| self.find_and_load()).as_deref()
    }

    fn find_and_load(self) -> Option<PathBuf> {
        #[cfg(feature = "testing")]
        if hidden().contains(&self) {
            return None;
        }
        let major = if self == CudaLibrary::Driver { None } else { driver_major() };
        let folders = folders();
        let found = self
            .candidates(major, &folders)
            .into_iter()
            .find(|path| (path.components().count() == 1 || path.is_file()) && keep(path))?;
        // At its first compilation NVRTC opens its built-in functions by their bare name; they are loaded from its folder first.
        if let (CudaLibrary::Nvrtc, Some(folder)) =
            (self, found.parent().filter(|folder| folder.is_absolute()))
        {
            for path in entries(folder).iter().filter(|path| named(path, "libnvrtc-builtins.so")) {
                keep(path);
            }
        }
        Some(found)
    }

    /// Whether a driver of CUDA's major version `driver` runs the library `file` and the code that it compiles.
    fn fits(self, file: &str, driver: Option<i32>) -> bool {
        let versioned = matches!(self, CudaLibrary::Nvrtc | CudaLibrary::CublasLt);
        let major = file.rsplit('.').next().and_then(|major| major.parse::<i32>().ok());
        !versioned || driver.zip(major).is_none_or(|(driver, major)| major <= driver)
    }

    /// The library's possible paths: versions that the driver runs first; for each, bare names for the linker before `folders`.
    fn candidates(self, driver: Option<i32>, folders: &[PathBuf]) -> Vec<PathBuf> {
        let mut all = Vec::new();
        for fits in [true, false] {
            let files = || self.files().iter().filter(move |file| self.fits(file, driver) == fits);
            all.extend(files().map(PathBuf::from));
            // A file's name can be absent from the linker's cache, so the folders are searched too, in order of preference.
            all.extend(folders.iter().flat_map(|folder| files().map(move |file| folder.join(file))));
        }
        all
    }

    /// The library's path in the known folders, without loading it.
    pub fn locate(self) -> Option<PathBuf> {
        let folders = folders();
        folders.iter().flat_map(|f| self.files().iter().map(|file| f.join(file))).find(|path| path.is_file())
    }
}

/// Libraries that this process must not find, even if the machine has them.
#[cfg(feature = "testing")]
fn hidden() -> std::sync::MutexGuard<'static, Vec<CudaLibrary>> {
    static HIDDEN: std::sync::Mutex<Vec<CudaLibrary>> = std::sync::Mutex::new(Vec::new());
    HIDDEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Keeps the search from finding `libraries` in this process, so that a process with stand-ins uses no NVIDIA library. A library
/// that is already loaded stays. For tests.
#[cfg(feature = "testing")]
pub fn hide(libraries: &[CudaLibrary]) {
    hidden().extend(libraries);
}

/// The major version of the driver's CUDA; `None` without a driver.
fn driver_major() -> Option<i32> {
    CudaLibrary::Driver.load()?;
    let mut version = 0;
    // SAFETY: the first call only searches for and loads the driver; the second writes one integer and may be called before cuInit.
    let answer = unsafe {
        cudarc::driver::sys::is_culib_present().then(|| cudarc::driver::sys::cuDriverGetVersion(&mut version))
    };
    (answer?.result().is_ok() && version > 0).then_some(version / 1000)
}

/// Loads a library for good, with its symbols visible to libraries that are loaded later. Returns whether the load succeeded.
fn keep(path: &Path) -> bool {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
    // SAFETY: loading runs the library's initialisers; these are NVIDIA's own libraries, made to be loaded in this way, and they are
    // never unloaded.
    match unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) } {
        Ok(library) => {
            std::mem::forget(library);
            true
        }
        Err(_) => false,
    }
}

/// Folders that may hold CUDA's libraries: folders named by the environment, of toolkits, of Python's wheels and of the system.
pub fn folders() -> Vec<PathBuf> {
    let list = |name: &str| std::env::var_os(name).map(|value| std::env::split_paths(&value).collect());
    let mut folders: Vec<PathBuf> = list("LD_LIBRARY_PATH").unwrap_or_default();
    // The folder of scripts/install-cuda-compiler.sh is always searched, so that tests find NVRTC without a setting.
    #[cfg(feature = "testing")]
    folders.extend(
        std::fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/cuda"))
            .iter()
            .flat_map(|root| wheels(root)),
    );
    for home in ["ALLFOLD_CUDA", "CUDA_HOME", "CUDA_PATH"] {
        for root in list(home).unwrap_or_default() as Vec<PathBuf> {
            folders.extend([root.join("lib64"), root.join("lib")]);
            folders.extend(wheels(&root));
        }
    }
    folders.extend(
        ["/usr/local/cuda/lib64", "/usr/local/nvidia/lib64", "/usr/lib64", "/usr/lib"].map(PathBuf::from),
    );
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    folders.extend(["/usr/lib", "/lib"].map(|root| Path::new(root).join(&triple)));
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(std::env::var_os);
    let homes = std::env::var_os("HOME").map(|home| Path::new(&home).join(".local"));
    let roots = environments.map(PathBuf::from).chain(homes);
    for root in roots.chain(["/usr/local".into(), "/usr".into(), "/opt/conda".into()]) {
        for python in entries(&root.join("lib")).into_iter().filter(|path| named(path, "python3")) {
            folders
                .extend(["site-packages", "dist-packages"].iter().flat_map(|sub| wheels(&python.join(sub))));
        }
    }
    folders
}

/// The library folders of NVIDIA's wheels, `nvidia/PACKAGE/lib`, under a folder of Python packages.
fn wheels(packages: &Path) -> Vec<PathBuf> {
    let found = entries(&packages.join("nvidia")).into_iter().map(|package| package.join("lib"));
    found.filter(|folder| folder.is_dir()).collect()
}

fn named(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}

/// The entries of a folder, sorted; empty if the folder cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(library: CudaLibrary, driver: Option<i32>) -> Vec<String> {
        let all = library.candidates(driver, &["/a".into(), "/b".into()]);
        all.iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn a_library_newer_than_the_driver_is_the_last_choice() {
        let of_12 = ["12", "/a/12", "/b/12", "13", "/a/13", "/b/13"];
        let of_13 = ["13", "12", "/a/13", "/a/12", "/b/13", "/b/12"];
        for (library, stem) in
            [(CudaLibrary::Nvrtc, "libnvrtc.so."), (CudaLibrary::CublasLt, "libcublasLt.so.")]
        {
            let named = |short: &str| match short.rsplit_once('/') {
                Some((folder, major)) => format!("{folder}/{stem}{major}"),
                None => format!("{stem}{short}"),
            };
            assert_eq!(order(library, Some(12)), of_12.map(named));
            assert_eq!(order(library, Some(13)), of_13.map(named));
            assert_eq!(order(library, Some(14)), of_13.map(named));
            assert_eq!(order(library, None), of_13.map(named));
        }
        assert_eq!(
            order(CudaLibrary::Cudnn, Some(12)),
            ["libcudnn.so.9", "/a/libcudnn.so.9", "/b/libcudnn.so.9"]
        );
    }
}
