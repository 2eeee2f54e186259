//! Where CUDA's libraries are: by the dynamic linker's rules, and where Python's wheels and toolkits put them.
//!
//! A library that the linker does not find by itself is loaded here by its whole path and kept; whoever then asks for it
//! by its bare name gets the one that is loaded. That is how a machine whose only CUDA came with PyTorch is enough.
//!
//! A library of a newer major version than the driver's CUDA is the last choice: its code does not load there.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A library that Allfold can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CudaLibrary {
    /// The driver's own.
    Driver,
    /// The run-time compiler.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// Convolutions.
    Cudnn,
    /// Collectives.
    Nccl,
}

impl CudaLibrary {
    /// All of them.
    pub const ALL: [CudaLibrary; 5] = [
        CudaLibrary::Driver,
        CudaLibrary::Nvrtc,
        CudaLibrary::CublasLt,
        CudaLibrary::Cudnn,
        CudaLibrary::Nccl,
    ];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            CudaLibrary::Driver => "the NVIDIA driver",
            CudaLibrary::Nvrtc => "NVRTC",
            CudaLibrary::CublasLt => "cuBLASLt",
            CudaLibrary::Cudnn => "cuDNN",
            CudaLibrary::Nccl => "NCCL",
        }
    }

    /// File names by which it may be found, the preferred one first.
    pub const fn files(self) -> &'static [&'static str] {
        match self {
            CudaLibrary::Driver => &["libcuda.so.1"],
            CudaLibrary::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12"],
            CudaLibrary::CublasLt => &["libcublasLt.so.13", "libcublasLt.so.12"],
            CudaLibrary::Cudnn => &["libcudnn.so.9"],
            CudaLibrary::Nccl => &["libnccl.so.2"],
        }
    }

    /// One line: how to get it.
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
        }
    }

    /// Loads it, once for the life of the program. Where it was found: a whole path, or the name that the linker knows.
    pub fn load(self) -> Option<&'static Path> {
        static FOUND: [OnceLock<Option<PathBuf>>; 5] = [const { OnceLock::new() }; 5];
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
        // NVRTC opens its built-in functions by their bare name at the first compilation: from the same folder.
        if let (CudaLibrary::Nvrtc, Some(folder)) =
            (self, found.parent().filter(|folder| folder.is_absolute()))
        {
            for path in entries(folder).iter().filter(|path| named(path, "libnvrtc-builtins.so")) {
                keep(path);
            }
        }
        Some(found)
    }

    /// Whether a driver of this major version of CUDA runs what a file of ours makes or has.
    fn fits(self, file: &str, driver: Option<i32>) -> bool {
        let versioned = matches!(self, CudaLibrary::Nvrtc | CudaLibrary::CublasLt);
        let major = file.rsplit('.').next().and_then(|major| major.parse::<i32>().ok());
        !versioned || driver.zip(major).is_none_or(|(driver, major)| major <= driver)
    }

    /// Where it may be, in order: what the driver runs before what it may not; the linker's before the folders'.
    fn candidates(self, driver: Option<i32>, folders: &[PathBuf]) -> Vec<PathBuf> {
        let mut all = Vec::new();
        for fits in [true, false] {
            let files = || self.files().iter().filter(move |file| self.fits(file, driver) == fits);
            all.extend(files().map(PathBuf::from));
            // Files may stand under names that the linker's cache does not know; folders are in order of preference.
            all.extend(folders.iter().flat_map(|folder| files().map(move |file| folder.join(file))));
        }
        all
    }

    /// Where the file lies, without loading it.
    pub fn locate(self) -> Option<PathBuf> {
        let folders = folders();
        folders.iter().flat_map(|f| self.files().iter().map(|file| f.join(file))).find(|path| path.is_file())
    }
}

/// Names of libraries that this process must not find, even if the machine has them.
#[cfg(feature = "testing")]
fn hidden() -> std::sync::MutexGuard<'static, Vec<CudaLibrary>> {
    static HIDDEN: std::sync::Mutex<Vec<CudaLibrary>> = std::sync::Mutex::new(Vec::new());
    HIDDEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Keeps libraries from being found in this process: one that has stand-ins uses no other library of NVIDIA's. A library that
/// was loaded before stays. For tests.
#[cfg(feature = "testing")]
pub fn hide(libraries: &[CudaLibrary]) {
    hidden().extend(libraries);
}

/// The major version of the driver's CUDA; none where there is no driver.
fn driver_major() -> Option<i32> {
    CudaLibrary::Driver.load()?;
    let mut version = 0;
    // SAFETY: only looks for a library by name, and loads it; then a place for one integer, before cuInit too.
    let answer = unsafe {
        cudarc::driver::sys::is_culib_present().then(|| cudarc::driver::sys::cuDriverGetVersion(&mut version))
    };
    (answer?.result().is_ok() && version > 0).then_some(version / 1000)
}

/// Loads a library for good, its names visible to those that come later. Whether it could be.
fn keep(path: &Path) -> bool {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
    // SAFETY: loading runs the library's initialisers; these are NVIDIA's own libraries, made to be loaded like this, and
    // none is ever unloaded.
    match unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) } {
        Ok(library) => {
            std::mem::forget(library);
            true
        }
        Err(_) => false,
    }
}

/// Folders that may hold CUDA's libraries: the environment's, toolkits', Python's wheels', the system's.
pub fn folders() -> Vec<PathBuf> {
    let list = |name: &str| std::env::var_os(name).map(|value| std::env::split_paths(&value).collect());
    let mut folders: Vec<PathBuf> = list("LD_LIBRARY_PATH").unwrap_or_default();
    // Tests find what scripts/install-cuda-compiler.sh installs without being told.
    #[cfg(feature = "testing")]
    folders.extend(
        std::fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/cuda"))
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

/// The library folders of NVIDIA's wheels under a folder of Python packages: `nvidia/PACKAGE/lib`.
fn wheels(packages: &Path) -> Vec<PathBuf> {
    let found = entries(&packages.join("nvidia")).into_iter().map(|package| package.join("lib"));
    found.filter(|folder| folder.is_dir()).collect()
}

fn named(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}

/// Entries of a folder, sorted; none if it cannot be read.
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
