//! Systems without `memfd`: processes share no memory there, so a link within the host stays on its socket.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

fn unsupported() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "memory that processes share without a file needs Linux")
}

pub(super) fn create(_name: &str, _bytes: usize) -> io::Result<OwnedFd> {
    Err(unsupported())
}

pub(super) fn size(_fd: &OwnedFd) -> io::Result<(i64, bool)> {
    Err(unsupported())
}

pub(super) fn map(_fd: &OwnedFd, _bytes: usize) -> io::Result<NonNull<u8>> {
    Err(unsupported())
}

pub(super) unsafe fn unmap(_base: NonNull<u8>, _bytes: usize) {}

pub(super) unsafe fn prefer_large_pages(_from: NonNull<u8>, _bytes: usize) {}

pub(super) unsafe fn give_back(_from: NonNull<u8>, _bytes: usize) -> bool {
    false
}

pub(super) unsafe fn replace(_from: NonNull<u8>, _bytes: usize) -> bool {
    false
}
