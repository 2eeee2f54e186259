//! A connection whose two ends have proved to each other that they belong to one job.
//!
//! ```text
//! TcpStream -- handshake under the secret -- (TLS 1.3, bound to the handshake) -- AuthenticatedStream: read and write
//! ```

use super::accept_queue;
use super::crypto::random;
use super::handshake::{
    Acceptor, Connector, HandshakeAnswer, OPENING, PROOF, PeerIdentity, Refusal, WELCOME, opening,
    read_opening,
};
use super::peer_stream::PeerStream;
use super::running_time::timeout;
use super::security::Security;
use super::tls::{self, Credentials, Opened, Records};
use crate::{Error, Result};
use allfold_kernels::fused::Pipe;
use rustix::io::Errno;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

/// Makes the connections of one job. It has the security mode, and the certificate for TLS.
#[derive(Clone)]
pub struct Authenticator {
    security: Security,
    credentials: Option<Arc<Credentials>>,
    /// How long a handshake may take.
    timeout: Duration,
}

/// An authenticated connection: bytes in both directions, over TLS where the mode requires TLS.
pub struct AuthenticatedStream {
    socket: TcpStream,
    tls: Option<Box<Records>>,
}

impl Authenticator {
    /// An authenticator for one mode. `timeout` bounds every handshake; five seconds is usual.
    ///
    /// # Errors
    /// The certificate cannot be made.
    pub fn new(security: Security, timeout: Duration) -> Result<Authenticator> {
        let credentials = match security {
            Security::Tls(_) => Some(Arc::new(Credentials::new()?)),
            _ => None,
        };
        Ok(Authenticator { security, credentials, timeout })
    }

    /// The security mode of the job.
    pub fn security(&self) -> &Security {
        &self.security
    }

    /// Connects and proves this side's identity. Returns the connection and the other side's answer.
    ///
    /// # Errors
    /// Why the connection failed.
    pub async fn connect(
        &self,
        to: SocketAddr,
        identity: PeerIdentity,
    ) -> std::result::Result<(AuthenticatedStream, HandshakeAnswer), Refusal> {
        self.security.allows(to).map_err(|error| Refusal::Forbidden(error.to_string()))?;
        let whole = async {
            let mut socket = super::socket::connect(to).await.map_err(unconnected)?;
            socket.set_nodelay(true).map_err(broken)?;
            let hello = self.opening().map_err(|error| Refusal::Broken(error.to_string()))?;
            socket.write_all(&hello).await.map_err(broken)?;
            let challenge: [u8; OPENING] = exactly(&mut socket).await?;
            let theirs = read_opening(&challenge, &self.security).map_err(Refusal::IncompatiblePeer)?;
            let (connector, proof) = Connector::new(&self.security, &hello, &challenge, identity);
            socket.write_all(&proof).await.map_err(broken)?;
            // An acceptor that rejects the proof closes the connection without an answer.
            let welcome: [u8; WELCOME] = match exactly(&mut socket).await {
                Err(Refusal::Broken(_)) => return Err(Refusal::Secret),
                other => other?,
            };
            let verdict = connector.finish(&welcome)?;
            let Some(credentials) = &self.credentials else {
                return Ok((AuthenticatedStream { socket, tls: None }, verdict));
            };
            let tls = tls::connect(credentials, theirs, &mut socket).await.map_err(broken)?;
            Ok((AuthenticatedStream { socket, tls: Some(Box::new(tls)) }, verdict))
        };
        timeout(self.timeout, whole).await.unwrap_or_else(|_| Err(self.late()))
    }

    /// Accepts a connection: verifies the other side's proof and sends the result of `answer` for its identity.
    ///
    /// # Errors
    /// Why no connection was made.
    pub async fn accept(
        &self,
        mut socket: TcpStream,
        answer: impl FnOnce(&PeerIdentity) -> HandshakeAnswer,
    ) -> std::result::Result<(AuthenticatedStream, PeerIdentity), Refusal> {
        let whole = async {
            socket.set_nodelay(true).map_err(broken)?;
            let hello: [u8; OPENING] = exactly(&mut socket).await?;
            let challenge = self.opening().map_err(broken)?;
            let read = read_opening(&hello, &self.security);
            // An Allfold of another version or mode also receives this opening, which shows it the difference.
            if read.is_ok() || hello[..4] == challenge[..4] {
                socket.write_all(&challenge).await.map_err(broken)?;
            }
            let theirs = read.map_err(Refusal::IncompatiblePeer)?;
            let proof: [u8; PROOF] = exactly(&mut socket).await?;
            let mut acceptor = Acceptor::new(&self.security, &hello, &challenge);
            let identity = acceptor.verify(&proof).ok_or(Refusal::Secret)?;
            let answer = answer(&identity);
            socket.write_all(&acceptor.welcome(answer)).await.map_err(broken)?;
            if !answer.is_welcome() {
                return Err(Refusal::Answer(answer, answer.explain(&identity)));
            }
            let Some(credentials) = &self.credentials else {
                return Ok((AuthenticatedStream { socket, tls: None }, identity));
            };
            let tls = tls::accept(credentials, theirs, &mut socket).await.map_err(broken)?;
            Ok((AuthenticatedStream { socket, tls: Some(Box::new(tls)) }, identity))
        };
        timeout(self.timeout, whole).await.unwrap_or_else(|_| Err(self.late()))
    }

    fn opening(&self) -> Result<[u8; OPENING]> {
        let certificate = self.credentials.as_ref().map_or([0; 32], |own| own.fingerprint);
        Ok(opening(&self.security, &random()?, &certificate))
    }

    fn late(&self) -> Refusal {
        Refusal::Broken(format!("no handshake within {:?}", self.timeout))
    }
}

async fn exactly<const N: usize>(socket: &mut TcpStream) -> std::result::Result<[u8; N], Refusal> {
    let mut bytes = [0; N];
    socket.read_exact(&mut bytes).await.map_err(broken)?;
    Ok(bytes)
}

/// The reason why there is no connection. If this process may open no more descriptors, the reason states this, because it is no fault of
/// the peer.
fn unconnected(error: io::Error) -> Refusal {
    match Errno::from_io_error(&error) {
        Some(Errno::MFILE | Errno::NFILE) => Refusal::Broken(format!(
            "this process may not open more than {} descriptors; raise the limit by `ulimit -n`",
            accept_queue::descriptors()
        )),
        _ => broken(error),
    }
}

fn broken(error: impl ToString) -> Refusal {
    Refusal::Broken(error.to_string())
}

impl AuthenticatedStream {
    /// The addresses of this end and of the other end.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        Ok((self.socket.local_addr()?, self.socket.peer_addr()?))
    }

    /// The socket under the authenticated stream.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Turns the connection into a non-blocking one outside the asynchronous runtime. With shared memory for the bytes, the socket
    /// carries nothing that TLS would have to protect.
    pub fn into_peer_stream(self, memory: Option<Pipe>) -> Result<PeerStream> {
        let failed = |error: io::Error| {
            Error::System(format!("cannot register a socket with the event loop: {error}"))
        };
        let socket = self.socket.into_std().map_err(failed)?;
        Ok(match memory {
            Some(pipe) => PeerStream::shared_memory(socket, pipe),
            None => PeerStream::new(socket, self.tls),
        })
    }

    /// Writes the sealed bytes that TLS still holds to the socket.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(tls) = &mut self.tls else { return Poll::Ready(Ok(())) };
        while !tls.held().is_empty() {
            let bytes = ready!(Pin::new(&mut self.socket).poll_write(cx, tls.held()))?;
            tls.written(bytes);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for AuthenticatedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let AuthenticatedStream { socket, tls } = self.get_mut();
        let Some(tls) = tls else { return Pin::new(socket).poll_read(cx, buf) };
        loop {
            match tls.open(buf.initialize_unfilled())? {
                Opened::Bytes(bytes) => {
                    buf.advance(bytes);
                    return Poll::Ready(Ok(()));
                }
                Opened::Closed => return Poll::Ready(Ok(())),
                Opened::Wanting => {}
            }
            let mut raw = ReadBuf::new(tls.read_buffer());
            ready!(Pin::new(&mut *socket).poll_read(cx, &mut raw))?;
            let bytes = raw.filled().len();
            tls.filled(bytes)?;
        }
    }
}

impl AsyncWrite for AuthenticatedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_held(cx))?;
        let Some(tls) = &mut this.tls else { return Pin::new(&mut this.socket).poll_write(cx, buf) };
        let taken = tls.seal(&[], buf)?;
        match this.poll_held(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(taken)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_held(cx))?;
        Pin::new(&mut this.socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(tls) = &mut this.tls {
            tls.close();
        }
        ready!(this.poll_held(cx))?;
        Pin::new(&mut this.socket).poll_shutdown(cx)
    }
}
