//! The mode `tls`: a handshake that rustls makes, pinned to the certificates that both sides have proved, and the records after it.

mod credentials;
mod handshake;
mod records;

pub(crate) use credentials::Credentials;
pub(crate) use records::{Opened, Records};

use handshake::shake;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use std::io;
use tokio::net::TcpStream;

/// Speaks TLS as the side that connects, with the holder of the certificate whose SHA-256 is `theirs`.
pub(crate) async fn connect(
    own: &Credentials,
    theirs: [u8; 32],
    socket: &mut TcpStream,
) -> io::Result<Records> {
    let config = own.client(theirs).map_err(io::Error::other)?;
    let name = Credentials::name().map_err(io::Error::other)?;
    let side = UnbufferedClientConnection::new(config, name).map_err(io::Error::other)?;
    shake(side, socket).await
}

/// Speaks TLS as the side that accepts the connection.
pub(crate) async fn accept(
    own: &Credentials,
    theirs: [u8; 32],
    socket: &mut TcpStream,
) -> io::Result<Records> {
    let config = own.server(theirs).map_err(io::Error::other)?;
    let side = UnbufferedServerConnection::new(config).map_err(io::Error::other)?;
    shake(side, socket).await
}
