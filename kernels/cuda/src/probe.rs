//! The machine's CUDA installation: driver, devices and compiler, looked up once.

use super::error::driver;
use super::libraries::CudaLibrary;
use super::{Error, Result, nvrtc_version};
use cudarc::driver::{result, sys};
use std::sync::OnceLock;

/// The oldest driver that has every function that Allfold calls, as cuDriverGetVersion counts: CUDA 12.8.
const OLDEST: i32 = 12_080;

/// The properties of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbedDevice {
    /// The device's name, as the driver gives it.
    pub name: String,
    /// The device's compute capability, times ten: 90 is Hopper.
    pub arch: u32,
    /// The device's memory in bytes.
    pub memory: u64,
    /// The number of multiprocessors.
    pub multiprocessors: u32,
    /// The device's UUID.
    pub uuid: [u8; 16],
}

/// A usable CUDA installation: a driver, at least one device, and NVRTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The newest CUDA version that the driver supports, such as (13, 0).
    pub cuda: (i32, i32),
    /// NVRTC's version.
    pub nvrtc: (i32, i32),
    /// The GPUs, by ordinal.
    pub devices: Vec<ProbedDevice>,
}

/// Searches for a driver, a device and the compiler, once for the process.
///
/// # Errors
/// [`Error::Missing`], [`Error::NoDevice`], or the driver's error.
pub fn probe() -> Result<Probe> {
    static ANSWER: OnceLock<Result<Probe>> = OnceLock::new();
    ANSWER.get_or_init(look).clone()
}

fn look() -> Result<Probe> {
    let missing = |looked_for: String| Error::Missing { library: CudaLibrary::Driver, looked_for };
    if CudaLibrary::Driver.load().is_none() {
        return Err(missing("no libcuda.so.1".into()));
    }
    // SAFETY: the call only searches for a library by name, and loads it.
    if !unsafe { sys::is_culib_present() } {
        return Err(missing("libcuda.so.1 is there and cannot be loaded".into()));
    }
    let mut version = 0;
    // SAFETY: the call writes one integer, exists in every driver, and may be made before cuInit.
    let answer = unsafe { sys::cuDriverGetVersion(&mut version) };
    driver("tell its version", answer.result())?;
    let cuda = (version / 1000, version % 1000 / 10);
    if version < OLDEST {
        return Err(missing(format!("its CUDA is {}.{}, and 12.8 or newer is needed", cuda.0, cuda.1)));
    }
    if let Err(error) = result::init() {
        return Err(Error::NoDevice(format!("cuInit answered {:?}: {}", error.0, remedy(error.0))));
    }
    let count = driver("count devices", result::device::get_count())?;
    if count == 0 {
        return Err(Error::NoDevice(
            "the driver lists none: see what `nvidia-smi -L` lists and what CUDA_VISIBLE_DEVICES hides"
                .into(),
        ));
    }
    let devices = (0..count).map(describe).collect::<Result<Vec<_>>>()?;
    Ok(Probe { cuda, nvrtc: nvrtc_version()?, devices })
}

/// How kernels of one device reach another device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeerLink {
    /// Not at all.
    None,
    /// Over PCIe.
    Pcie,
    /// Over NVLink: the link has atomics of its own.
    NvLink,
}

/// The link between two devices of [`probe()`]; no context is opened.
///
/// # Errors
/// The driver's error.
pub fn peer_link(from: usize, to: usize) -> Result<PeerLink> {
    use sys::CUdevice_P2PAttribute as Attribute;
    let ask = |attribute| {
        let mut value = 0;
        // SAFETY: the call writes one integer; the driver refuses numbers of devices that it does not have.
        let answer = unsafe { sys::cuDeviceGetP2PAttribute(&mut value, attribute, from as i32, to as i32) };
        driver("describe the link of two devices", answer.result()).map(|()| value != 0)
    };
    Ok(match ask(Attribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED)? {
        false => PeerLink::None,
        true if ask(Attribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)? => PeerLink::NvLink,
        true => PeerLink::Pcie,
    })
}

/// How the user can mend a driver that does not start.
fn remedy(code: sys::CUresult) -> &'static str {
    match code {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => {
            "see what `nvidia-smi -L` lists and what CUDA_VISIBLE_DEVICES hides; a container needs --gpus all"
        }
        sys::CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
        | sys::CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "libcuda.so.1 and the kernel's module are of different versions: restart the machine after an update of the driver, and take CUDA's compat folder off LD_LIBRARY_PATH"
        }
        sys::CUresult::CUDA_ERROR_SYSTEM_NOT_READY => "start nvidia-fabricmanager, which NVSwitch needs",
        _ => "see whether `nvidia-smi` works and the module nvidia_uvm is loaded; else restart the machine",
    }
}

fn describe(ordinal: i32) -> Result<ProbedDevice> {
    use sys::CUdevice_attribute as Attribute;
    let device = driver("open a device", result::device::get(ordinal))?;
    let ask = |attribute| {
        // SAFETY: `device` comes from the driver.
        driver("describe a device", unsafe { result::device::get_attribute(device, attribute) })
    };
    let major = ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let multiprocessors = ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    // SAFETY: `device` comes from the driver.
    let memory = driver("tell a device's memory", unsafe { result::device::total_mem(device) })?;
    let name = driver("name a device", result::device::get_name(device))?;
    let uuid = driver("tell a device's UUID", result::device::get_uuid(device))?;
    Ok(ProbedDevice {
        name,
        arch: (major * 10 + minor) as u32,
        memory: memory as u64,
        multiprocessors: multiprocessors as u32,
        uuid: uuid.bytes.map(|byte| byte as u8),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_the_error_contains_a_remedy() {
        match probe() {
            Ok(probe) => assert!(!probe.devices.is_empty()),
            Err(error) => {
                let text = error.to_string();
                assert!(!text.contains('\n') && text.len() < 300, "{text}");
                if let Error::Missing { library, .. } = error {
                    assert!(text.contains(library.name()) && text.contains(library.how_to_get()), "{text}");
                }
            }
        }
    }
}
