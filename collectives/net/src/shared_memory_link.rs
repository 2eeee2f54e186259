//! A connection within one host: its bytes are exchanged through shared memory. Its socket only wakes a sleeping end and reports that the
//! other end has closed.

use super::socket::again;
use crate::{Host, SegmentHandle};
use allfold_kernels::fused::{Pipe, Wants};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// How often an end finds nothing to do before it checks the socket, which costs a system call.
const LOOKS: u32 = 64;

/// One end of a link over shared memory.
pub struct SharedMemoryLink {
    pipe: Pipe,
    socket: TcpStream,
    /// How often there was nothing to do since the last check of the socket.
    looks: u32,
    /// Set once the other end writes nothing more.
    ended: Option<ErrorKind>,
}

/// Shared memory offered for a connection during its handshake.
pub struct SegmentOffer {
    /// This side's end of the pipe.
    pub pipe: Pipe,
    /// The handle by which the other end finds the memory.
    pub memory: SegmentHandle,
    /// The descriptor stays open until the other end has opened the memory, too.
    _descriptor: OwnedFd,
}

impl SegmentOffer {
    /// Allocates memory. `None` if the system has none.
    pub fn new(host: Host) -> Option<SegmentOffer> {
        let nonce = SegmentHandle::nonce()?;
        let (pipe, descriptor) = Pipe::shared(&SegmentHandle::name(nonce)).ok()?;
        Some(SegmentOffer {
            pipe,
            memory: SegmentHandle::to(Some(host), &descriptor, nonce),
            _descriptor: descriptor,
        })
    }

    /// Opens the other end of the pipe from its handle, if possible.
    pub fn accept(memory: &SegmentHandle, host: Option<Host>) -> Option<Pipe> {
        let here = SegmentHandle::none(host);
        here.is_same_host(memory).then(|| Pipe::attach(memory.open()?).ok()).flatten()
    }
}

impl SharedMemoryLink {
    /// A link over a pipe and a socket that carries nothing else.
    pub fn new(pipe: Pipe, socket: TcpStream) -> SharedMemoryLink {
        SharedMemoryLink { pipe, socket, looks: 0, ended: None }
    }

    /// Reads available bytes. 0: the other side writes nothing more.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is available now; otherwise how the connection ended.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.pipe.take(into).map_err(damaged)? {
                0 => {}
                bytes => return self.moved(bytes),
            }
            match self.ended {
                Some(ErrorKind::UnexpectedEof) => return Ok(0),
                Some(kind) => return Err(kind.into()),
                None => self.listen()?,
            }
        }
    }

    /// Writes some of the given bytes.
    ///
    /// # Errors
    /// `WouldBlock` if the pipe is full now; otherwise how the connection ended.
    pub fn write(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        loop {
            let mut bytes = self.pipe.put(first).map_err(damaged)?;
            if bytes == first.len() {
                bytes += self.pipe.put(second).map_err(damaged)?;
            }
            match (bytes, self.ended) {
                (0, Some(_)) => return Err(ErrorKind::BrokenPipe.into()),
                (0, None) => self.listen()?,
                _ => return self.moved(bytes),
            }
        }
    }

    /// Ends this direction; bytes that were written can still be read.
    pub fn finish(&mut self) {
        // A connection that is already broken needs no ending.
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }

    /// The socket of the link; its memory is dropped.
    pub fn into_socket(self) -> TcpStream {
        self.socket
    }

    /// Announces that this end is going to sleep on its descriptor. False if it must not sleep.
    pub fn prepare_sleep(&self, wants: Wants) -> bool {
        self.pipe.prepare_sleep(wants)
    }

    /// Announces that this end is awake; the socket may have woken it.
    pub fn finish_sleep(&mut self) {
        self.pipe.finish_sleep();
        self.looks = LOOKS;
    }

    /// Wakes the other end after a write or read, if it sleeps.
    fn moved(&mut self, bytes: usize) -> io::Result<usize> {
        self.looks = 0;
        if self.pipe.must_wake() {
            // A full socket holds enough bytes to wake the other end; a broken one reports it at the next check.
            let _ = self.socket.write(&[1]);
        }
        Ok(bytes)
    }

    /// Called when there is nothing to do: from time to time checks the socket for the other end's close. Returns `WouldBlock` if the
    /// other end has not closed. After a close the caller reads the pipe once more for bytes that the other end wrote before.
    fn listen(&mut self) -> io::Result<()> {
        self.looks += 1;
        if self.looks < LOOKS {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.looks = 0;
        let mut calls = [0; 64];
        loop {
            match again(|| self.socket.read(&mut calls)) {
                Ok(0) => self.ended = Some(ErrorKind::UnexpectedEof),
                Ok(_) => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(error),
                Err(error) => self.ended = Some(error.kind()),
            }
            return Ok(());
        }
    }
}

fn damaged(_: allfold_kernels::fused::Damaged) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "the shared memory holds an invalid state")
}

impl AsFd for SharedMemoryLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    fn pair() -> [SharedMemoryLink; 2] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (here, _) = listener.accept().unwrap();
        let [a, b] = Pipe::pair();
        [(a, here), (b, there)].map(|(pipe, socket)| {
            socket.set_nonblocking(true).unwrap();
            SharedMemoryLink::new(pipe, socket)
        })
    }

    /// Reads until some bytes have arrived or the pipe has ended.
    fn wait(end: &mut SharedMemoryLink, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match end.read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                other => return other,
            }
        }
    }

    #[test]
    fn bytes_written_before_the_end_are_read_before_it() {
        let [mut a, mut b] = pair();
        // The byte that wakes `a` is unread when `a` closes its socket, so that `b` sees a reset.
        assert!(b.prepare_sleep(Wants { bytes: true, room: false }));
        assert_eq!(a.write(b"to ", b"the last").unwrap(), 11);
        assert!(a.prepare_sleep(Wants { bytes: true, room: false }));
        assert_eq!(b.write(b"unread", b"").unwrap(), 6);
        drop(a);
        let mut heard = [0; 32];
        assert_eq!(wait(&mut b, &mut heard).unwrap(), 11);
        assert_eq!(&heard[..11], b"to the last");
        let end = wait(&mut b, &mut heard);
        assert!(matches!(&end, Ok(0)) || end.is_err(), "{end:?}");
    }

    #[test]
    fn an_end_that_is_finished_is_read_to_its_end() {
        let [mut a, mut b] = pair();
        a.write(b"bye", b"").unwrap();
        a.finish();
        let mut heard = [0; 8];
        assert_eq!(wait(&mut b, &mut heard).unwrap(), 3);
        assert_eq!(wait(&mut b, &mut heard).unwrap(), 0);
    }

    #[test]
    fn a_full_pipe_to_nobody_is_broken() {
        let [mut a, b] = pair();
        drop(b);
        let piece = [7; 64 << 10];
        let error = loop {
            match a.write(&piece, &[]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn memory_of_another_host_is_not_accepted() {
        let (here, there) = (Host::pretended(0), Host::pretended(1));
        let offer = SegmentOffer::new(here).unwrap();
        assert!(SegmentOffer::accept(&offer.memory, Some(there)).is_none());
        assert!(SegmentOffer::accept(&offer.memory, None).is_none());
        assert!(
            SegmentOffer::accept(&SegmentHandle::none(Some(here)), Some(here)).is_none(),
            "there is none"
        );
        assert!(SegmentOffer::accept(&offer.memory, Some(here)).is_some());
    }
}
