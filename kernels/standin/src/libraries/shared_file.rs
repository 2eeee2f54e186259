//! What processes share in place of a GPU's memory and of events: a file without a name, which another process opens by its number in the
//! process that has it.

use super::range::{self, PAGE};
use cudarc::driver::sys::CUresult as Code;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What processes know of memory or an event together.
#[repr(C)]
struct Numbers {
    /// How many processes have it open by its handle.
    open: AtomicU64,
    /// The recordings of an event, and the last of them that has happened.
    recorded: AtomicU64,
    happened: AtomicU64,
}

/// Memory of a device, or an event, of which other processes can have the handle.
pub(super) struct SharedFile {
    pub file: File,
    pub bytes: u64,
    pub device: usize,
    /// The address of the numbers, which have a page behind the bytes.
    numbers: u64,
    /// Whether another process has made it.
    opened: bool,
}

impl SharedFile {
    /// A new file for this many bytes of a device.
    pub fn new(bytes: u64, device: usize) -> Result<Arc<SharedFile>, Code> {
        let file =
            memfd_create("stand-in", MemfdFlags::CLOEXEC).map_err(|_| Code::CUDA_ERROR_OUT_OF_MEMORY)?;
        let file = File::from(file);
        let whole = bytes.next_multiple_of(PAGE) + PAGE;
        file.set_len(whole).map_err(|_| Code::CUDA_ERROR_OUT_OF_MEMORY)?;
        SharedFile::over(file, (bytes, device), false)
    }

    fn over(file: File, (bytes, device): (u64, usize), opened: bool) -> Result<Arc<SharedFile>, Code> {
        let numbers = range::map(None, PAGE, &file, bytes.next_multiple_of(PAGE))?;
        let shared = SharedFile { file, bytes, device, numbers, opened };
        shared.numbers().open.fetch_add(u64::from(opened), Ordering::AcqRel);
        Ok(Arc::new(shared))
    }

    /// Opens the file of another process by its handle.
    pub fn open(handle: [u8; 64]) -> Result<Arc<SharedFile>, Code> {
        let (words, _) = handle.as_chunks::<8>();
        let [process, number, bytes, device] = [0, 1, 2, 3].map(|at| u64::from_le_bytes(words[at]));
        if process == u64::from(std::process::id()) {
            return Err(Code::CUDA_ERROR_INVALID_CONTEXT);
        }
        let file = File::options().read(true).write(true).open(format!("/proc/{process}/fd/{number}"));
        SharedFile::over(file.map_err(|_| Code::CUDA_ERROR_INVALID_VALUE)?, (bytes, device as usize), true)
    }

    /// What another process needs to open it.
    pub fn handle(&self) -> [u8; 64] {
        let file = self.file.as_raw_fd() as u64;
        let words = [u64::from(std::process::id()), file, self.bytes, self.device as u64, 0, 0, 0, 0];
        let bytes = words.map(u64::to_le_bytes);
        std::array::from_fn(|at| bytes[at / 8][at % 8])
    }

    fn numbers(&self) -> &Numbers {
        // SAFETY: the page is mapped as long as this value lives, and holds atomic numbers that begin as zeros.
        unsafe { &*(self.numbers as *const Numbers) }
    }

    /// Whether another process has it open.
    pub fn is_open(&self) -> bool {
        !self.opened && self.numbers().open.load(Ordering::Acquire) > 0
    }

    /// The number of a new recording.
    pub fn record(&self) -> u64 {
        self.numbers().recorded.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The number of the last recording; 0 is before the first.
    pub fn recorded(&self) -> u64 {
        self.numbers().recorded.load(Ordering::Acquire)
    }

    pub fn has_happened(&self, nth: u64) -> bool {
        self.numbers().happened.load(Ordering::Acquire) >= nth
    }

    pub fn happens(&self, nth: u64) {
        self.numbers().happened.fetch_max(nth, Ordering::AcqRel);
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        self.numbers().open.fetch_sub(u64::from(self.opened), Ordering::AcqRel);
        range::unmap(self.numbers, PAGE);
    }
}
