//! A connection as the data path uses it: never waits, and moves bytes straight between the kernel and their place.

use super::records::{Opened, Records};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// A non-blocking socket, with TLS on it or not.
pub(super) struct Wire {
    socket: TcpStream,
    tls: Option<Box<Records>>,
}

impl Wire {
    pub fn new(socket: TcpStream, tls: Option<Box<Records>>) -> Wire {
        Wire { socket, tls }
    }

    /// Whether no byte can be changed on the way unnoticed.
    pub fn is_authentic(&self) -> bool {
        self.tls.is_some()
    }

    /// Reads what is there, up to the buffer's length. 0: the other side will send nothing more.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return again(|| self.socket.read(into));
        };
        loop {
            match tls.open(into) {
                Ok(Opened::Bytes(bytes)) => return Ok(bytes),
                Ok(Opened::Closed) => return Ok(0),
                Ok(Opened::Wanting) => {}
                Err(error) => {
                    // The other side is to hear why, if it can.
                    let _ = self.flush();
                    return Err(error);
                }
            }
            let bytes = again(|| self.socket.read(tls.room()))?;
            tls.filled(bytes)?;
        }
    }

    /// Writes some of what is given.
    pub fn write(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        if self.tls.is_none() {
            let slices = [IoSlice::new(first), IoSlice::new(second)];
            return again(|| match (first.is_empty(), second.is_empty()) {
                (true, _) => self.socket.write(second),
                (_, true) => self.socket.write(first),
                _ => self.socket.write_vectored(&slices),
            });
        }
        // What is sealed is still in the cache when it is written: no more of it than one frame.
        if !self.flush()? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let taken = self.tls.as_mut().map_or(Ok(0), |tls| tls.seal(first, second))?;
        self.flush()?;
        Ok(taken)
    }

    /// Hands the kernel what TLS still holds. Whether all of it has gone.
    pub fn flush(&mut self) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else { return Ok(true) };
        while !tls.held().is_empty() {
            match again(|| self.socket.write(tls.held())) {
                Ok(bytes) => tls.written(bytes),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Ends this direction; what was written still arrives.
    pub fn finish(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.close();
        }
        // A connection that is broken already needs no ending.
        let _ = self.flush();
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Repeats what a signal interrupted.
fn again(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
