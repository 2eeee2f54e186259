//! A connection as the data path uses it: never waits, and moves bytes straight between the kernel and their place.

use rustls::Connection;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

/// How much TLS may hold that the kernel has not taken yet.
const HELD: usize = 512 << 10;
/// What is read at once for TLS, which by itself asks for a few KiB at a time.
const READ: usize = 128 << 10;

/// A non-blocking socket, with TLS on it or not.
pub(super) struct Wire {
    socket: TcpStream,
    tls: Option<Tls>,
}

struct Tls {
    connection: Box<Connection>,
    /// Read from the kernel, and not by TLS yet: these of it.
    raw: Box<[u8]>,
    left: Range<usize>,
}

impl Wire {
    pub fn new(socket: TcpStream, tls: Option<Connection>) -> Wire {
        let tls = tls.map(|mut tls| {
            tls.set_buffer_limit(Some(HELD));
            Tls { connection: Box::new(tls), raw: vec![0; READ].into_boxed_slice(), left: 0..0 }
        });
        Wire { socket, tls }
    }

    /// Whether no byte can be changed on the way unnoticed.
    pub fn is_authentic(&self) -> bool {
        self.tls.is_some()
    }

    /// Reads what is there, up to the buffer's length. 0: the other side will send nothing more.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(Tls { connection, raw, left }) = &mut self.tls else {
            return again(|| self.socket.read(into));
        };
        loop {
            match connection.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => return other,
            }
            if left.start == left.end {
                *left = 0..again(|| self.socket.read(raw))?;
            }
            // Nothing left now is the end, and TLS says whether it was announced.
            left.start += connection.read_tls(&mut &raw[left.clone()])?;
            connection
                .process_new_packets()
                .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        }
    }

    /// Writes some of what is given.
    pub fn write(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        let slices = [IoSlice::new(first), IoSlice::new(second)];
        let Some(tls) = &mut self.tls else {
            return again(|| match (first.is_empty(), second.is_empty()) {
                (true, _) => self.socket.write(second),
                (_, true) => self.socket.write(first),
                _ => self.socket.write_vectored(&slices),
            });
        };
        let taken = tls.connection.writer().write_vectored(&slices)?;
        match self.flush() {
            Ok(_) if taken > 0 => Ok(taken),
            Ok(_) => Err(ErrorKind::WouldBlock.into()),
            Err(error) => Err(error),
        }
    }

    /// Hands the kernel what TLS still holds. Whether all of it has gone.
    pub fn flush(&mut self) -> io::Result<bool> {
        let Some(Tls { connection, .. }) = &mut self.tls else { return Ok(true) };
        while connection.wants_write() {
            match again(|| connection.write_tls(&mut self.socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Ends this direction; what was written still arrives.
    pub fn finish(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.connection.send_close_notify();
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
