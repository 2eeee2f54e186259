//! The TLS handshake of a connection on the runtime: rustls reports the bytes to write and the bytes that it needs to read, and at the
//! end the keys of the records.

use super::records::{PREFIX, Records, Session};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use rustls::{Error, ExtractedSecrets};
use std::io::{self, ErrorKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An upper limit on the size of a handshake record, in bytes.
const RECORD: usize = 17 << 10;

/// The client or the server of a handshake.
pub(super) trait Side {
    type Data;
    fn step<'c, 'i>(&'c mut self, records: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn keys(self) -> Result<(ExtractedSecrets, Session), Error>;
}

impl Side for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn step<'c, 'i>(&'c mut self, records: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(records)
    }

    fn keys(self) -> Result<(ExtractedSecrets, Session), Error> {
        let (secrets, session): (_, KernelConnection<_>) = self.dangerous_into_kernel_connection()?;
        Ok((secrets, Session::Client(session)))
    }
}

impl Side for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn step<'c, 'i>(&'c mut self, records: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(records)
    }

    fn keys(self) -> Result<(ExtractedSecrets, Session), Error> {
        let (secrets, session): (_, KernelConnection<_>) = self.dangerous_into_kernel_connection()?;
        Ok((secrets, Session::Server(session)))
    }
}

/// What the handshake needs before its next step.
enum Next {
    Step,
    Write,
    Read,
    Done,
}

/// Performs the TLS handshake over the socket.
///
/// # Errors
/// The connection broke, or one side refused the other.
pub(super) async fn shake<S: Side>(mut side: S, socket: &mut TcpStream) -> io::Result<Records> {
    let (mut incoming, mut outgoing) = (Vec::new(), Vec::new());
    // How many bytes rustls may read: whole records, and no more than the handshake requests, so that it decrypts no later record.
    let mut offered = 0;
    let mut failed = None;
    loop {
        let UnbufferedStatus { discard, state, .. } = side.step(&mut incoming[..offered]);
        let next = match state {
            Ok(state) => answer(state, &mut outgoing)?,
            // The loop continues once after an error, so that the other side receives the alert.
            Err(error) if failed.is_none() => {
                failed = Some(error);
                Next::Step
            }
            Err(error) => return Err(invalid(error)),
        };
        incoming.drain(..discard);
        offered -= discard;
        match (next, failed.take()) {
            (Next::Step, before) => failed = before,
            (Next::Write, before) => {
                socket.write_all(&outgoing).await?;
                outgoing.clear();
                failed = before;
            }
            (_, Some(error)) => return Err(invalid(error)),
            (Next::Read, None) => offered += record(socket, &mut incoming, offered).await?,
            (Next::Done, None) => break,
        }
    }
    let (secrets, session) = side.keys().map_err(invalid)?;
    Records::new(secrets, session, &incoming)
}

fn invalid(error: Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

/// Performs the action that a state requests, if the action needs no waiting.
fn answer<D>(state: ConnectionState<'_, '_, D>, outgoing: &mut Vec<u8>) -> io::Result<Next> {
    Ok(match state {
        ConnectionState::EncodeTlsData(mut data) => {
            let from = outgoing.len();
            outgoing.resize(from + RECORD, 0);
            let bytes = data.encode(&mut outgoing[from..]);
            let bytes = bytes.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            outgoing.truncate(from + bytes);
            Next::Step
        }
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Next::Write
        }
        ConnectionState::BlockedHandshake => Next::Read,
        ConnectionState::WriteTraffic(_) => Next::Done,
        other => {
            return Err(io::Error::new(ErrorKind::InvalidData, format!("TLS: {other:?} in a handshake")));
        }
    })
}

/// Reads until a whole record begins at offset `from` of `incoming`. Returns the record's length in bytes, prefix included.
async fn record(socket: &mut TcpStream, incoming: &mut Vec<u8>, from: usize) -> io::Result<usize> {
    loop {
        if let Some(front) = incoming[from..].first_chunk::<PREFIX>() {
            let bytes = PREFIX + usize::from(u16::from_be_bytes([front[3], front[4]]));
            if incoming.len() >= from + bytes {
                return Ok(bytes);
            }
        }
        let mut some = [0; 4096];
        match socket.read(&mut some).await? {
            0 => {
                return Err(io::Error::new(
                    ErrorKind::UnexpectedEof,
                    "the peer closed the connection in the TLS handshake",
                ));
            }
            bytes => incoming.extend_from_slice(&some[..bytes]),
        }
    }
}
