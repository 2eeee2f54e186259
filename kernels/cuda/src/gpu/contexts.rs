//! The devices' primary contexts, one set for the process; a context is opened at the first use of its device.
//!
//! A context costs some hundred megabytes of device memory and a fraction of a second, so a process opens one only for each device
//! that it uses. Peer access between two devices is enabled when the second of them is opened.

use super::numbered::{Handle, lock};
use crate::error::driver;
use crate::{Error, Result};
use cudarc::driver::{result, sys};
use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock};

/// The contexts of all devices that the driver lists.
pub(super) struct Contexts {
    opened: Vec<OnceLock<Handle<sys::CUcontext>>>,
    /// The pairs (from, to) where kernels of device `from` may access memory of device `to`. Locked while a context is opened.
    peers: Mutex<BTreeSet<(usize, usize)>>,
}

impl Contexts {
    /// The contexts of this process's devices, made without opening any.
    pub fn of_process(devices: usize) -> &'static Contexts {
        static ALL: OnceLock<Contexts> = OnceLock::new();
        ALL.get_or_init(|| Contexts {
            opened: (0..devices).map(|_| OnceLock::new()).collect(),
            peers: Mutex::default(),
        })
    }

    /// Makes a device's context current for the calling thread, and opens the context first if no thread has yet.
    pub fn enter(&self, device: usize) -> Result<()> {
        let place = self.opened.get(device);
        let place = place.ok_or_else(|| {
            Error::Argument(format!(
                "device {device} does not exist; there are {} devices",
                self.opened.len()
            ))
        })?;
        let context = match place.get() {
            Some(context) => *context,
            None => self.open(device, place)?,
        };
        make_current(context)
    }

    /// Makes the context of any opened device current for the calling thread; opens the first device if no device is open.
    pub fn enter_any(&self) -> Result<()> {
        self.enter(self.opened.iter().position(|place| place.get().is_some()).unwrap_or(0))
    }

    /// Whether kernels of device `from` may access memory of device `to`; opens both unless they are one device.
    pub fn reaches(&self, from: usize, to: usize) -> bool {
        from == to
            || self.enter(to).and_then(|()| self.enter(from)).is_ok()
                && lock(&self.peers).contains(&(from, to))
    }

    fn open(
        &self,
        device: usize,
        place: &OnceLock<Handle<sys::CUcontext>>,
    ) -> Result<Handle<sys::CUcontext>> {
        let mut peers = lock(&self.peers);
        if let Some(context) = place.get() {
            return Ok(*context);
        }
        let handle = driver("open a device", result::device::get(device as i32))?;
        // SAFETY: `handle` is a device that the driver gave; the context is released when the program ends.
        let context = match unsafe { result::primary_ctx::retain(handle) } {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => {
                return Err(busy(device));
            }
            context => Handle(driver("make a context", context)?),
        };
        match self.enable_peer_access_to_all(device, context) {
            Ok(found) => peers.extend(found),
            Err(error) => {
                // SAFETY: the context was retained above, and no other code holds it.
                let _ = unsafe { result::primary_ctx::release(handle) };
                return Err(error);
            }
        }
        Ok(*place.get_or_init(|| context))
    }

    /// Enables peer access between a device and every other open device, where they can. Returns the pairs (from, to) that have it.
    fn enable_peer_access_to_all(
        &self,
        device: usize,
        context: Handle<sys::CUcontext>,
    ) -> Result<Vec<(usize, usize)>> {
        let mut pairs = Vec::new();
        let others = self.opened.iter().enumerate();
        for (other, of_other) in others.filter_map(|(other, place)| Some((other, *place.get()?))) {
            for ((from, a), (to, b)) in
                [((device, context), (other, of_other)), ((other, of_other), (device, context))]
            {
                if can_reach(from, to)? && enable_peer_access(a, b)? {
                    pairs.push((from, to));
                }
            }
        }
        Ok(pairs)
    }
}

fn busy(device: usize) -> Error {
    Error::NoDevice(format!(
        "device {device} is in exclusive-process mode and another process holds it: leave it out of CUDA_VISIBLE_DEVICES, or share it by `nvidia-smi -i {device} -c DEFAULT`"
    ))
}

fn make_current(context: Handle<sys::CUcontext>) -> Result<()> {
    // SAFETY: the context is live, because no context is released before the program ends.
    driver("enter a context", unsafe { result::ctx::set_current(context.0) })
}

fn can_reach(from: usize, to: usize) -> Result<bool> {
    let mut can = 0;
    // SAFETY: the driver counted these ordinals, and it writes one integer to `can`.
    let answer = unsafe { sys::cuDeviceCanAccessPeer(&mut can, from as i32, to as i32) };
    driver("tell whether devices reach each other", answer.result())?;
    Ok(can == 1)
}

/// Enables peer access of `from`'s kernels to `to`'s memory. False if the pair has no such access, or `from` too many peers.
fn enable_peer_access(from: Handle<sys::CUcontext>, to: Handle<sys::CUcontext>) -> Result<bool> {
    make_current(from)?;
    // SAFETY: both contexts are live.
    match unsafe { sys::cuCtxEnablePeerAccess(to.0, 0) } {
        sys::CUresult::CUDA_SUCCESS | sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(true),
        sys::CUresult::CUDA_ERROR_TOO_MANY_PEERS | sys::CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED => {
            Ok(false)
        }
        answer => driver("let a device reach another", answer.result()).map(|()| false),
    }
}
