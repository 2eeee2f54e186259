//! A non-blocking connection for the data path. Plain TCP needs no buffer between the kernel and the caller's buffers.

use super::shared_memory_link::SharedMemoryLink;
use super::socket::again;
use super::tls::{Opened, Records};
use allfold_kernels::fused::{Pipe, Wants};
use rustix::event::PollFlags;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// A non-blocking connection to a peer.
pub enum PeerStream {
    /// A connection by plain TCP.
    Plain(TcpStream),
    /// A connection by TLS 1.3.
    Tls(Tls),
    /// A connection through the shared memory of one host.
    SharedMemoryLink(SharedMemoryLink),
}

/// A socket with TLS records.
pub struct Tls {
    socket: TcpStream,
    records: Box<Records>,
}

impl PeerStream {
    pub(crate) fn new(socket: TcpStream, tls: Option<Box<Records>>) -> PeerStream {
        match tls {
            Some(records) => PeerStream::Tls(Tls { socket, records }),
            None => PeerStream::Plain(socket),
        }
    }

    /// A stream through shared memory; the socket wakes a sleeping end.
    pub fn shared_memory(socket: TcpStream, pipe: Pipe) -> PeerStream {
        PeerStream::SharedMemoryLink(SharedMemoryLink::new(pipe, socket))
    }

    /// Whether frames need no checksum: TLS detects changed bytes itself, and shared memory is not checked.
    #[inline]
    pub fn is_authentic(&self) -> bool {
        !matches!(self, PeerStream::Plain(_))
    }

    /// Reads available bytes, up to the buffer's length. 0: the other side sends nothing more.
    #[inline]
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            PeerStream::Plain(socket) => again(|| socket.read(into)),
            PeerStream::Tls(tls) => tls.read(into),
            PeerStream::SharedMemoryLink(shared_memory) => shared_memory.read(into),
        }
    }

    /// Writes some of the given bytes.
    #[inline]
    pub fn write(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        match self {
            PeerStream::Plain(socket) => again(|| match (first.is_empty(), second.is_empty()) {
                (true, _) => socket.write(second),
                (_, true) => socket.write(first),
                _ => socket.write_vectored(&[IoSlice::new(first), IoSlice::new(second)]),
            }),
            PeerStream::Tls(tls) => tls.write(first, second),
            PeerStream::SharedMemoryLink(shared_memory) => shared_memory.write(first, second),
        }
    }

    /// Writes the bytes that TLS has sealed and still holds to the kernel. Returns whether all were written.
    #[inline]
    pub fn flush(&mut self) -> io::Result<bool> {
        match self {
            PeerStream::Tls(tls) => tls.flush(),
            PeerStream::Plain(_) | PeerStream::SharedMemoryLink(_) => Ok(true),
        }
    }

    /// Ends this direction; bytes that were written still arrive.
    pub fn finish(&mut self) {
        match self {
            // A connection that is already broken needs no ending.
            PeerStream::Plain(socket) => drop(socket.shutdown(std::net::Shutdown::Write)),
            PeerStream::Tls(tls) => tls.finish(),
            PeerStream::SharedMemoryLink(shared_memory) => shared_memory.finish(),
        }
    }

    /// The socket of a finished connection.
    pub fn into_socket(self) -> TcpStream {
        match self {
            PeerStream::Plain(socket) | PeerStream::Tls(Tls { socket, .. }) => socket,
            PeerStream::SharedMemoryLink(shared_memory) => shared_memory.into_socket(),
        }
    }

    /// The poll flags for a caller that sleeps until something in `wants` is possible. `None` if it is possible now: the caller
    /// must not sleep. [`PeerStream::finish_sleep`] follows in both cases.
    #[inline]
    pub fn prepare_sleep(&self, wants: Wants) -> Option<PollFlags> {
        if let PeerStream::SharedMemoryLink(shared_memory) = self {
            return shared_memory.prepare_sleep(wants).then_some(PollFlags::IN);
        }
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, wants.bytes);
        flags.set(PollFlags::OUT, wants.room);
        Some(flags)
    }

    /// Ends the sleep that `prepare_sleep` announced.
    #[inline]
    pub fn finish_sleep(&mut self) {
        if let PeerStream::SharedMemoryLink(shared_memory) = self {
            shared_memory.finish_sleep();
        }
    }
}

impl AsFd for PeerStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            PeerStream::Plain(socket) | PeerStream::Tls(Tls { socket, .. }) => socket.as_fd(),
            PeerStream::SharedMemoryLink(shared_memory) => shared_memory.as_fd(),
        }
    }
}

impl Tls {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.records.open(into) {
                Ok(Opened::Bytes(bytes)) => return Ok(bytes),
                Ok(Opened::Closed) => return Ok(0),
                Ok(Opened::Wanting) => {}
                Err(error) => {
                    // Sends the TLS alert to the other side, if possible.
                    let _ = self.flush();
                    return Err(error);
                }
            }
            let bytes = again(|| self.socket.read(self.records.read_buffer()))?;
            self.records.filled(bytes)?;
        }
    }

    fn write(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        // At most one frame is sealed at a time, so that it is still in the cache when it is written.
        if !self.flush()? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let taken = self.records.seal(first, second)?;
        self.flush()?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<bool> {
        while !self.records.held().is_empty() {
            match again(|| self.socket.write(self.records.held())) {
                Ok(bytes) => self.records.written(bytes),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn finish(&mut self) {
        self.records.close();
        let _ = self.flush();
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }
}
