//! The tasks beside the computing threads: they connect and accept, and read and write control frames.

use super::super::Invitation;
use super::frame::{HEADER, Header, Kind};
use super::groups::News;
use super::node::Node;
use super::options::Deadlines;
use super::outbox::{Outbox, Outgoing};
use crate::{Error, Lost, Rank, Result};
use allfold_kernels::fused::Pipe;
use allfold_net::Secured;
use allfold_net::arrivals::Arrivals;
use allfold_net::beside::Offer;
use allfold_net::handshake::{Claims, Purpose, Refusal, Verdict};
use allfold_net::wire::Wire;
use std::net::TcpListener;
use std::sync::atomic::Ordering;
use std::sync::mpsc as blocking;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, copy, sink};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// How often a side that says it holds another secret is asked again: it may have been too busy to answer.
const ASKED: u32 = 3;

/// The runtime of this process.
pub(crate) fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<std::result::Result<Runtime, String>> = OnceLock::new();
    let made = RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).thread_name("allfold control").enable_all();
        builder.build().map_err(|error| error.to_string())
    });
    made.as_ref().map_err(|error| Error::System(format!("no runtime for connections: {error}")))
}

/// A connection was made, by this side or the other.
pub(super) fn join(node: &Arc<Node>, peer: Rank, claims: &Claims, stream: Secured, memory: Option<Pipe>) {
    allfold_net::socket::tune(stream.socket(), node.deadlines.dead);
    if claims.purpose == Purpose::Control {
        return node.keep(peer, serve(node.clone(), peer, stream));
    }
    let Ok(wire) = stream.into_wire(memory) else { return };
    node.deliver(claims.group, peer, News::Wire(claims.purpose, wire));
}

/// Starts the two tasks of a control connection.
fn serve(node: Arc<Node>, peer: Rank, stream: Secured) -> Outbox {
    let (reader, writer) = tokio::io::split(stream);
    let (frames, waiting) = mpsc::unbounded_channel();
    let (done, written) = blocking::channel();
    let (deadlines, epoch) = (node.deadlines, node.epoch);
    tokio::spawn(async move {
        write(writer, waiting, deadlines, epoch).await;
        // Nobody waits for it unless the node is closing.
        let _ = done.send(());
    });
    tokio::spawn(async move {
        let cause = read(&node, peer, reader).await;
        node.ended(peer, cause);
    });
    Outbox { frames, written }
}

async fn write(
    mut writer: WriteHalf<Secured>,
    mut frames: mpsc::UnboundedReceiver<Outgoing>,
    deadlines: Deadlines,
    epoch: u32,
) {
    let alive = Header::control(Kind::Beat, epoch, &[]).encode();
    let mut beats = interval(deadlines.beat);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let sent = tokio::select! {
            biased;
            frame = frames.recv() => match frame {
                Some(Outgoing::Frame(frame)) => writer.write_all(&frame).await,
                Some(Outgoing::Part(wire)) => {
                    tokio::spawn(part(wire, deadlines.dead));
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
    // The reader's side says why a connection has ended; here it only ends.
    let _ = writer.shutdown().await;
}

/// Ends a connection that this side needs no more. What comes is dropped until the other side ends it too: a socket that is
/// closed with bytes unread takes back what the other side has not got yet.
async fn part(mut wire: Wire, patience: Duration) {
    wire.finish();
    let Ok(mut socket) = TcpStream::from_std(wire.into_socket()) else { return };
    let _ = timeout(patience, copy(&mut socket, &mut sink())).await;
}

/// Reads control frames until there are no more. Returns why.
async fn read(node: &Arc<Node>, peer: Rank, mut reader: ReadHalf<Secured>) -> Lost {
    let dead = node.deadlines.dead;
    loop {
        let frame = async {
            let mut header = [0; HEADER];
            reader.read_exact(&mut header).await.map_err(|e| e.to_string())?;
            let header =
                Header::decode(&header).map_err(|what| format!("sent a frame that cannot be: {what}"))?;
            let mut payload = vec![0; header.bytes as usize];
            if header.kind == Kind::Data {
                return Err("sent a message on its control connection".into());
            }
            reader.read_exact(&mut payload).await.map_err(|e| e.to_string())?;
            if super::frame::crc32c(&payload) != header.payload_crc || header.epoch != node.epoch {
                return Err("sent a control frame that was damaged, or of another epoch".to_string());
            }
            Ok((header.kind, payload))
        };
        match timeout(dead, frame).await {
            Err(_) => return Lost::Silent { by: node.rank, after: dead },
            Ok(Err(what)) if what.contains("early eof") || what.contains("close_notify") => {
                return Lost::Disconnected("closed its connection".into());
            }
            Ok(Err(what)) => return Lost::Disconnected(format!("broke its connection: {what}")),
            Ok(Ok((kind, payload))) => {
                if let Err(what) = node.control(peer, kind, payload) {
                    return Lost::Disconnected(format!("sent {what}"));
                }
            }
        }
    }
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
        let mut arrivals = Arrivals::at(listener, node.starved.clone());
        loop {
            let (socket, _) = arrivals.next().await;
            let one = node.clone();
            let task = tokio::spawn(async move {
                let mut memory = None;
                let judge = |claims: &Claims| {
                    let (verdict, pipe) = one.admit(claims);
                    memory = pipe;
                    verdict
                };
                match one.door.accept(socket, judge).await {
                    Ok((stream, claims)) => join(&one, claims.rank, &claims, stream, memory),
                    Err(_) => {
                        one.refused.fetch_add(1, Ordering::Relaxed);
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

/// Connects to a lower rank, again and again until it answers or `patience` is over. `failed` hears why not.
pub(super) fn connect(
    node: &Arc<Node>,
    peer: Rank,
    purpose: Purpose,
    group: u64,
    patience: Duration,
    failed: impl FnOnce(&Node, Error) + Send + 'static,
) -> Result<()> {
    let node = node.clone();
    let host = node.host.filter(|_| purpose != Purpose::Control);
    let (memory, job, epoch, size, rank) =
        (Invitation::default(), node.job, node.epoch, node.size, node.rank);
    let claims = Claims { purpose, job, epoch, size, rank, peer, group, memory };
    runtime()?.spawn(async move {
        let address = node.addresses[peer.index()];
        let mut pause = Duration::from_millis(2);
        let mut asked = 0;
        let mut last = Error::Missing { missing: vec![peer], after: patience };
        let tries = async {
            loop {
                if node.is_closing() || !node.sits_in(group) {
                    return None;
                }
                // New memory for every try: of an earlier one the other side may have the other end.
                let offer = host.and_then(Offer::new);
                let memory = offer.as_ref().map_or(memory, |offer| offer.memory);
                match node.door.connect(address, Claims { memory, ..claims }).await {
                    Ok((stream, verdict)) => {
                        let accepted = offer.filter(|_| verdict == Verdict::Beside);
                        join(&node, peer, &claims, stream, accepted.map(|offer| offer.pipe));
                        return None;
                    }
                    Err(Refusal::Broken(why)) => last = Error::Refused { peer, why },
                    Err(Refusal::Secret) => {
                        asked += 1;
                        last = Error::AuthFailed { peer };
                        if asked >= ASKED {
                            return Some(Error::AuthFailed { peer });
                        }
                    }
                    // It may be on its way out of an earlier life, or not have seen our control connection yet.
                    Err(Refusal::Verdict(Verdict::Duplicate(_), why)) if purpose != Purpose::Control => {
                        last = Error::Refused { peer, why };
                    }
                    Err(Refusal::Stranger(why)) => {
                        return Some(Error::Refused { peer, why: why.to_string() });
                    }
                    Err(Refusal::Verdict(_, why) | Refusal::Forbidden(why)) => {
                        return Some(Error::Refused { peer, why });
                    }
                }
                sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(100));
            }
        };
        let error = match timeout(patience, tries).await {
            Ok(Some(error)) => error,
            Ok(None) => return,
            Err(_) => last,
        };
        failed(&node, error);
    });
    Ok(())
}
