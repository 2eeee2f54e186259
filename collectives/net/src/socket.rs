//! The options of every socket.

use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};

/// Size of the kernel's buffer per direction between processes of one host (the kernel doubles it): small enough for a core's
/// cache.
const NEAR: usize = 256 << 10;
/// The congestion control between processes of one host, where there is no congestion. BBR, which is some systems' default, paces sent
/// data by timers, and reaches two thirds of the rate at which the processors can copy.
#[cfg(target_os = "linux")]
const UNPACED: &[u8] = b"reno";

/// Connects to this address.
pub(super) async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    if to.ip().is_loopback() {
        hasten(&socket);
    }
    socket.connect(to).await
}

/// Connects within this host, blocking.
pub(super) fn connect_now(to: SocketAddr) -> io::Result<std::net::TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    hasten(&socket);
    socket.connect(&to.into())?;
    Ok(socket.into())
}

/// Repeats a call that a signal interrupted.
pub(super) fn again(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Sets the options of a listener, which its connections inherit.
pub fn listen(listener: &TcpListener) {
    if listener.local_addr().is_ok_and(|address| address.ip().is_loopback()) {
        hasten(listener);
    }
}

/// Options for a socket within this host. They must be set before it connects: a socket that has once used pacing always does.
fn hasten(socket: &impl AsFd) {
    let socket = SockRef::from(socket);
    // An option that the system does not allow is not an error.
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_congestion(UNPACED);
    let _ = socket.set_send_buffer_size(NEAR);
    let _ = socket.set_recv_buffer_size(NEAR);
}

/// Options of every connection: no delay for small frames, and keepalive for peers whose host has vanished. `TCP_USER_TIMEOUT` is not
/// set: the system would end connections with unsent bytes during a pause of the whole job, and heartbeats find hosts that vanish.
pub fn tune(socket: &TcpStream, dead: Duration) {
    let socket = SockRef::from(socket);
    let probes =
        TcpKeepalive::new().with_time(dead / 2).with_interval((dead / 8).max(Duration::from_secs(1)));
    // An option that the system does not support is not an error: heartbeats find the same failures.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&probes.with_retries(4));
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::Builder;

    fn connected(look: impl FnOnce(&TcpStream, &TcpStream)) {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listen(&listener);
            listener.set_nonblocking(true).unwrap();
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let near = connect(listener.local_addr().unwrap()).await.unwrap();
            let (far, _) = listener.accept().await.unwrap();
            look(&near, &far);
        });
    }

    #[test]
    fn an_idle_socket_ends_when_the_other_host_has_vanished_and_no_socket_ends_in_a_pause() {
        connected(|near, _| {
            let dead = Duration::from_secs(20);
            tune(near, dead);
            let socket = SockRef::from(near);
            assert_eq!(socket.tcp_user_timeout().unwrap(), None, "it would count a pause of both ranks");
            assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), dead / 2);
        });
    }

    #[test]
    fn both_ends_within_a_host_are_not_paced() {
        connected(|near, far| {
            for socket in [near, far] {
                let name = SockRef::from(socket).tcp_congestion().unwrap();
                assert!(name.starts_with(UNPACED), "{}", String::from_utf8_lossy(&name));
            }
        });
    }
}
