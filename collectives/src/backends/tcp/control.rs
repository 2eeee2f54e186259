//! Background tasks: they connect and accept, and read and write control frames.

use super::super::SegmentHandle;
use super::frame::{FrameHeader, HEADER, Kind, crc32c};
use super::groups::News;
use super::node::Node;
use super::outbox::{Outbox, Outgoing};
use crate::{Error, Lost, Rank, Result};
use allfold_kernels::fused::Pipe;
use allfold_net::AuthenticatedStream;
use allfold_net::accept_queue::{AcceptQueue, PENDING};
use allfold_net::handshake::{HandshakeAnswer, PeerIdentity, Purpose, Refusal};
use allfold_net::peer_stream::PeerStream;
use allfold_net::running_time;
use allfold_net::shared_memory_link::SegmentOffer;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::sync::atomic::Ordering;
use std::sync::mpsc as blocking;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, copy, sink};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

/// After this many handshakes that fail over the secret, the other side is given up. A single failure is not enough: a side that is too
/// busy to answer in time looks the same.
const ASKED: u32 = 3;

/// The runtime of this process.
pub(crate) fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<std::result::Result<Runtime, String>> = OnceLock::new();
    let made = RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).thread_name("allfold control").enable_all();
        builder.build().map_err(|error| error.to_string())
    });
    made.as_ref().map_err(|error| Error::System(format!("cannot start the runtime of connections: {error}")))
}

/// Adds a connection that this side or the other side has made.
pub(super) fn join(
    node: &Arc<Node>,
    peer: Rank,
    identity: &PeerIdentity,
    stream: AuthenticatedStream,
    memory: Option<Pipe>,
) {
    allfold_net::socket::tune(stream.socket(), node.deadlines.dead);
    if identity.purpose == Purpose::Control {
        return node.keep(peer, serve(node.clone(), peer, stream));
    }
    let Ok(stream) = stream.into_peer_stream(memory) else { return };
    node.deliver(identity.group, peer, News::PeerStream(identity.purpose, stream));
}

/// Starts the two tasks of a control connection.
fn serve(node: Arc<Node>, peer: Rank, stream: AuthenticatedStream) -> Outbox {
    let (reader, writer) = tokio::io::split(stream);
    let (frames, waiting) = mpsc::unbounded_channel();
    let (done, written) = blocking::channel();
    let (deadlines, epoch) = (node.deadlines, node.epoch);
    let beat = deadlines.beat_among(node.size());
    tokio::spawn(async move {
        write(writer, waiting, (beat, deadlines.dead), epoch).await;
        // `Outbox::drain` waits for this when the node closes. At any other time nothing waits for it, and the error is ignored.
        let _ = done.send(());
    });
    tokio::spawn(async move {
        let cause = read(&node, peer, reader).await;
        node.ended(peer, cause);
    });
    Outbox { frames, written }
}

async fn write(
    mut writer: WriteHalf<AuthenticatedStream>,
    mut frames: mpsc::UnboundedReceiver<Outgoing>,
    (beat, dead): (Duration, Duration),
    epoch: u32,
) {
    let alive = FrameHeader::control(Kind::Beat, epoch, &[]).encode();
    // The handshake counts as the first heartbeat, so the next is due after one interval.
    let mut beats = interval_at(Instant::now() + beat, beat);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let sent = tokio::select! {
            biased;
            frame = frames.recv() => match frame {
                Some(Outgoing::Frame(frame)) => writer.write_all(&frame).await,
                Some(Outgoing::Part(stream)) => {
                    tokio::spawn(part(stream, dead));
                    continue;
                }
                None => break,
            },
            _ = beats.tick() => writer.write_all(&alive).await,
        };
        if sent.is_err() || writer.flush().await.is_err() {
            return;
        }
    }
    // The reading task reports the reason why a connection has ended; the writing task only ends it.
    let _ = writer.shutdown().await;
}

/// Ends a connection that this side no longer needs. Incoming bytes are dropped until the other side ends it too: closing a socket with
/// unread bytes would discard bytes that the other side has not received yet.
async fn part(mut stream: PeerStream, timeout: Duration) {
    stream.finish();
    let Ok(mut socket) = TcpStream::from_std(stream.into_socket()) else { return };
    let _ = running_time::timeout(timeout, copy(&mut socket, &mut sink())).await;
}

/// Reads control frames until the connection ends. Returns why it ended.
async fn read(node: &Arc<Node>, peer: Rank, mut reader: ReadHalf<AuthenticatedStream>) -> Lost {
    let dead = node.deadlines.dead;
    loop {
        match running_time::timeout(dead, frame(&mut reader, node.epoch)).await {
            Err(_) => return Lost::Silent { by: node.rank, after: dead },
            Ok(Err(end)) => return Lost::Disconnected(end.to_string()),
            Ok(Ok((kind, payload))) => {
                if let Err(what) = node.control(peer, kind, payload) {
                    return Lost::Disconnected(format!("sent {what}"));
                }
            }
        }
    }
}

/// Why a control connection ended.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum End {
    /// The peer closed the connection, after or within a frame, with or without TLS's close notification.
    #[error("closed its connection")]
    Closed,
    /// The system or TLS closed the connection.
    #[error("broke its connection: {0}")]
    Broken(String),
    /// The peer sent an invalid frame.
    #[error("broke its connection: sent {0}")]
    Wrong(String),
}

impl From<std::io::Error> for End {
    fn from(error: std::io::Error) -> End {
        match error.kind() {
            ErrorKind::UnexpectedEof => End::Closed,
            _ => End::Broken(error.to_string()),
        }
    }
}

/// Reads the next control frame.
async fn frame(
    reader: &mut (impl AsyncRead + Unpin),
    epoch: u32,
) -> std::result::Result<(Kind, Vec<u8>), End> {
    let mut header = [0; HEADER];
    reader.read_exact(&mut header).await?;
    let header =
        FrameHeader::decode(&header).map_err(|what| End::Wrong(format!("an invalid frame: {what}")))?;
    if header.kind == Kind::Data {
        return Err(End::Wrong("a message on its control connection".into()));
    }
    let mut payload = vec![0; header.bytes as usize];
    reader.read_exact(&mut payload).await?;
    if crc32c(&payload) != header.payload_crc || header.epoch != epoch {
        return Err(End::Wrong("a control frame that was damaged, or of another epoch".into()));
    }
    Ok((header.kind, payload))
}

/// Accepts connections until the node closes.
pub(super) fn accept(node: &Arc<Node>, listener: TcpListener) -> Result<tokio::task::AbortHandle> {
    let failed = |error: std::io::Error| Error::System(format!("cannot listen: {error}"));
    allfold_net::socket::listen(&listener);
    listener.set_nonblocking(true).map_err(failed)?;
    let runtime = runtime()?;
    let guard = runtime.enter();
    let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
    drop(guard);
    let node = node.clone();
    let task = runtime.spawn(async move {
        let mut arrivals = AcceptQueue::at(listener, PENDING, node.starved.clone());
        loop {
            let (socket, _) = arrivals.next().await;
            let one = node.clone();
            let task = tokio::spawn(async move {
                let mut memory = None;
                let answer = |identity: &PeerIdentity| {
                    let (answer, pipe) = one.admit(identity);
                    memory = pipe;
                    answer
                };
                match one.authenticator.accept(socket, answer).await {
                    Ok((stream, identity)) => join(&one, identity.rank, &identity, stream, memory),
                    Err(refusal) => {
                        one.refused.fetch_add(1, Ordering::Relaxed);
                        one.distrusted.fetch_add(u64::from(refusal == Refusal::Secret), Ordering::Relaxed);
                    }
                }
            });
            if arrivals.hear(task.abort_handle()) {
                node.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    Ok(task.abort_handle())
}

/// Connects to a lower rank, repeatedly until it answers or `timeout` is over. `failed` is called with the cause of a failure.
pub(super) fn connect(
    node: &Arc<Node>,
    peer: Rank,
    purpose: Purpose,
    group: u64,
    timeout: Duration,
    failed: impl FnOnce(&Node, Error) + Send + 'static,
) -> Result<()> {
    let node = node.clone();
    let host = node.host.filter(|_| purpose != Purpose::Control);
    let (memory, job, epoch, size, rank) =
        (SegmentHandle::default(), node.job, node.epoch, node.size(), node.rank);
    let identity = PeerIdentity { purpose, job, epoch, size, rank, peer, group, memory };
    runtime()?.spawn(async move {
        let address = node.addresses[peer.index()];
        let mut pause = Duration::from_millis(2);
        let mut asked = 0;
        let mut last = Error::Missing { missing: vec![peer], after: timeout };
        let tries = async {
            loop {
                if node.is_closing() || !node.is_member(group) {
                    return None;
                }
                // Each try sends new memory: the other side may have opened the memory of an earlier try.
                let offer = host.and_then(SegmentOffer::new);
                let memory = offer.as_ref().map_or(memory, |offer| offer.memory);
                let connecting = (purpose == Purpose::Control).then(|| node.connecting(peer));
                match node.authenticator.connect(address, PeerIdentity { memory, ..identity }).await {
                    Ok((stream, verdict)) => {
                        let accepted = offer.filter(|_| verdict == HandshakeAnswer::SharedMemoryLink);
                        join(&node, peer, &identity, stream, accepted.map(|offer| offer.pipe));
                        return None;
                    }
                    Err(Refusal::Broken(why)) => last = Error::Refused { peer, why },
                    Err(Refusal::Secret) => {
                        node.distrusted.fetch_add(1, Ordering::Relaxed);
                        asked += 1;
                        last = Error::AuthFailed { peer };
                        if asked >= ASKED {
                            return Some(Error::AuthFailed { peer });
                        }
                    }
                    // The peer also answers `Duplicate` while it has not yet registered this rank's control connection.
                    Err(Refusal::Answer(HandshakeAnswer::Duplicate(_), why))
                        if purpose != Purpose::Control =>
                    {
                        last = Error::Refused { peer, why };
                    }
                    Err(Refusal::IncompatiblePeer(why)) => {
                        return Some(Error::Refused { peer, why: why.to_string() });
                    }
                    Err(Refusal::Answer(_, why) | Refusal::Forbidden(why)) => {
                        return Some(Error::Refused { peer, why });
                    }
                }
                drop(connecting);
                sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(100));
            }
        };
        let error = match running_time::timeout(timeout, tries).await {
            Ok(Some(error)) => error,
            Ok(None) => return,
            Err(_) => node.suspects(last),
        };
        failed(&node, error);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Error as Broken;
    use std::pin::Pin;
    use std::task::{Context, Poll};
    use tokio::io::ReadBuf;

    /// A connection that yields these bytes, and then this error or the end.
    struct Given<'a>(&'a [u8], Option<Broken>);

    impl AsyncRead for Given<'_> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            let (now, later) = self.0.split_at(self.0.len().min(buf.remaining()));
            buf.put_slice(now);
            self.0 = later;
            let end = if now.is_empty() { self.1.take() } else { None };
            Poll::Ready(end.map_or(Ok(()), Err))
        }
    }

    async fn read(bytes: &[u8], end: Option<Broken>) -> std::result::Result<(Kind, Vec<u8>), End> {
        frame(&mut Given(bytes, end), 7).await
    }

    #[tokio::test]
    async fn the_end_of_a_control_connection_is_known_by_its_kind_and_not_by_words() {
        let beat = FrameHeader::control(Kind::Beat, 7, &[]).encode();
        assert_eq!(read(&beat, None).await, Ok((Kind::Beat, Vec::new())));
        assert_eq!(read(&[], None).await, Err(End::Closed));
        assert_eq!(read(&beat[..40], None).await, Err(End::Closed));
        let unannounced = Broken::new(ErrorKind::UnexpectedEof, "whatever a library calls it");
        assert_eq!(read(&beat[..40], Some(unannounced)).await, Err(End::Closed));
        // The message of the system's error does not matter, only its kind.
        let reset = Broken::new(ErrorKind::ConnectionReset, "reset after an early eof");
        let End::Broken(what) = read(&[], Some(reset)).await.unwrap_err() else { panic!("it was broken") };
        assert!(what.contains("reset"));
    }

    #[tokio::test]
    async fn a_control_frame_that_no_peer_sends_is_told() {
        let told = async |bytes: &[u8]| read(bytes, None).await.unwrap_err().to_string();
        let data = FrameHeader { kind: Kind::Data, ..FrameHeader::control(Kind::Beat, 7, &[]) };
        assert!(told(&data.encode()).await.starts_with("broke its connection: sent a message"));
        let other = FrameHeader::control(Kind::Beat, 8, &[]).encode();
        assert!(told(&other).await.contains("of another epoch"));
        assert!(told(&[0; HEADER]).await.contains("sent an invalid frame: it is not an Allfold frame"));
    }
}
