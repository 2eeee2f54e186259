//! What the ranks of a communicator tell each other if they are processes: changes of their common state, as frames over sockets.
//!
//! ```text
//! process of the unique id    serves: passes each frame on to all other ranks, and says which rank's connection has ended
//! every rank                  connects, sends its changes, and makes those of the others in its own copy of the state
//! frame                       length | rank | tag | 7 numbers | length of the group's path | path | bytes
//! ```

use super::traffic::{Event, Link, Said};
use allfold_base::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

/// The collectives by their names; a frame holds a number.
const KINDS: [&str; 5] = ["all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"];
/// The bytes of a frame before the path: rank, tag, numbers, length of the path.
const HEAD: usize = 8 * 10;
/// The path of frames that are about a process and not about one of its groups.
const PROCESS: &str = "process";

/// A rank's change in the group of this path.
#[derive(Debug, PartialEq)]
struct Frame {
    path: String,
    rank: usize,
    event: Event,
}

fn encode(path: &str, rank: usize, event: &Event) -> Vec<u8> {
    let none: &[u8] = &[];
    let (tag, numbers, bytes): (i64, Vec<i64>, &[u8]) = match event {
        Event::Joined(gpu, blocks) => (0, vec![i64::from(*blocks)], gpu),
        Event::Gone => (1, Vec::new(), none),
        Event::Calls(Link::Pair { from, to }) => (2, vec![*from as i64, *to as i64], none),
        Event::Calls(Link::All { large }) => (3, vec![i64::from(*large)], none),
        Event::Calls(Link::Registered { nth }) => (8, vec![*nth as i64], none),
        Event::Begins(at, (said, replayed, input)) => {
            let kind = KINDS.iter().position(|kind| *kind == said.kind).unwrap_or_default();
            let Said { bytes, dtype, op, root, .. } = *said;
            let (dtype, op, replayed) = (i64::from(dtype), i64::from(op), i64::from(*replayed));
            (4, vec![*at as i64, kind as i64, bytes as i64, dtype, op, root as i64, replayed], input)
        }
        Event::Sends(to, message) => (5, vec![*to as i64], message),
        Event::Takes(from) => (6, vec![*from as i64], none),
        Event::Splits(nth, color, key) => (7, vec![*nth as i64, i64::from(*color), i64::from(*key)], none),
    };
    let mut words = [0i64; HEAD / 8];
    (words[0], words[1], words[9]) = (rank as i64, tag, path.len() as i64);
    words[2..2 + numbers.len()].copy_from_slice(&numbers);
    let length = HEAD + path.len() + bytes.len();
    let mut frame = (length as u64).to_le_bytes().to_vec();
    words.iter().for_each(|word| frame.extend(word.to_le_bytes()));
    frame.extend(path.as_bytes());
    frame.extend(bytes);
    frame
}

/// The frame of these bytes, without their length; `None` if they are none.
fn decode(frame: &[u8]) -> Option<Frame> {
    let (head, rest) = frame.split_at_checked(HEAD)?;
    let (words, _) = head.as_chunks::<8>();
    let n: Vec<i64> = words.iter().map(|word| i64::from_le_bytes(*word)).collect();
    let (path, bytes) = rest.split_at_checked(n[9] as usize)?;
    let event = match n[1] {
        0 => Event::Joined(bytes.try_into().ok()?, n[2] as u32),
        1 => Event::Gone,
        2 => Event::Calls(Link::Pair { from: n[2] as usize, to: n[3] as usize }),
        3 => Event::Calls(Link::All { large: n[2] != 0 }),
        4 => {
            let (bytes, input) = (n[4] as usize, Arc::new(bytes.to_vec()));
            let (kind, dtype, op) = (*KINDS.get(n[3] as usize)?, n[5] as i32, n[6] as i32);
            Event::Begins(
                n[2] as u64,
                (Said { kind, bytes, dtype, op, root: n[7] as usize }, n[8] != 0, input),
            )
        }
        5 => Event::Sends(n[2] as usize, bytes.to_vec()),
        6 => Event::Takes(n[2] as usize),
        7 => Event::Splits(n[2] as usize, n[3] as i32, n[4] as i32),
        8 => Event::Calls(Link::Registered { nth: n[2] as usize }),
        _ => return None,
    };
    Some(Frame { path: String::from_utf8(path.to_vec()).ok()?, rank: n[0] as usize, event })
}

fn receive(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let mut frame = vec![0; u64::from_le_bytes(length) as usize];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}

/// The connections of a server: the frames for each rank, and all frames so far for those that connect later.
#[derive(Default)]
struct Served {
    ranks: BTreeMap<usize, Sender<Arc<[u8]>>>,
    log: Vec<Arc<[u8]>>,
    /// Whether all ranks have connected, so that no log is needed.
    complete: bool,
}

/// Serves the ranks of a new unique id on a port of this host, which it returns, as long as this process lives.
pub(super) fn serve() -> io::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let served = Arc::new(Mutex::new(Served::default()));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let served = served.clone();
            std::thread::spawn(move || pass_on(stream, &served));
        }
    });
    Ok(port)
}

/// Serves one rank: sends it what the others say, and passes on what it says until its connection ends.
fn pass_on(mut stream: TcpStream, served: &Mutex<Served>) -> Option<()> {
    let mut hello = [0; 16];
    stream.read_exact(&mut hello).ok()?;
    let (rank, size) = hello.split_at(8);
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).map(|number| number as usize).ok();
    let (rank, size) = (number(rank)?, number(size)?);
    let (out, frames) = channel::<Arc<[u8]>>();
    {
        let mut served = lock(served);
        served.log.iter().for_each(|frame| drop(out.send(frame.clone())));
        served.ranks.insert(rank, out);
        if served.ranks.len() == size {
            (served.complete, served.log) = (true, Vec::new());
        }
    }
    // Small frames must not wait for each other's acknowledgements.
    stream.set_nodelay(true).ok()?;
    let mut to = stream.try_clone().ok()?;
    std::thread::spawn(move || frames.iter().try_for_each(|frame| to.write_all(&frame)));
    let send = |frame: Arc<[u8]>| {
        let mut served = lock(served);
        let others = served.ranks.iter().filter(|(other, _)| **other != rank);
        others.for_each(|(_, out)| drop(out.send(frame.clone())));
        if !served.complete {
            served.log.push(frame);
        }
    };
    while let Ok(frame) = receive(&mut stream) {
        send((frame.len() as u64).to_le_bytes().into_iter().chain(frame).collect());
    }
    send(encode(PROCESS, rank, &Event::Gone).into());
    lock(served).ranks.remove(&rank);
    Some(())
}

/// The connection of a rank's process to the others, for a communicator and those that are split from it.
pub(super) struct Wire {
    rank: usize,
    out: Mutex<TcpStream>,
    routes: Mutex<Routes>,
}

/// What makes a rank's change in the state of a group.
type Hear = Arc<dyn Fn(usize, Event) + Send + Sync>;

/// A group of this process: the ranks of the unique id's communicator that are its members, and what makes their changes.
#[derive(Clone)]
struct Route {
    members: Vec<usize>,
    hear: Hear,
}

/// Where frames go.
#[derive(Default)]
struct Routes {
    groups: BTreeMap<String, Route>,
    /// Frames of groups that this process has not made yet.
    early: Vec<Frame>,
    /// The ranks whose processes are gone.
    lost: BTreeSet<usize>,
}

impl Wire {
    /// Connects a rank of so many to the server at a port of this host.
    pub fn connect(port: u16, (rank, size): (usize, usize)) -> io::Result<Arc<Wire>> {
        let mut out = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        out.set_nodelay(true)?;
        out.write_all(&[(rank as u64).to_le_bytes(), (size as u64).to_le_bytes()].concat())?;
        let mut stream = out.try_clone()?;
        let wire = Arc::new(Wire { rank, out: Mutex::new(out), routes: Mutex::default() });
        let weak = Arc::downgrade(&wire);
        std::thread::spawn(move || {
            while let Ok(frame) = receive(&mut stream) {
                let (Some(wire), Some(frame)) = (weak.upgrade(), decode(&frame)) else { return };
                wire.take(frame);
            }
            // Without the server's process nobody is reached.
            let Some(wire) = weak.upgrade() else { return };
            (0..size).filter(|other| *other != rank).for_each(|other| wire.lose(other));
        });
        Ok(wire)
    }

    /// Tells the other processes of a rank's change in the group of this path. A lost connection shows when the others do not answer.
    pub fn send(&self, path: &str, rank: usize, event: &Event) {
        let _ = lock(&self.out).write_all(&encode(path, rank, event));
    }

    /// Delivers to a new group what the others have said to it, and from now on say.
    pub fn register(&self, path: &str, members: &[usize], hear: Hear) {
        let route = Route { members: members.to_vec(), hear };
        let (early, lost) = {
            let mut routes = lock(&self.routes);
            routes.groups.insert(path.into(), route.clone());
            let early: Vec<Frame> = routes.early.extract_if(.., |frame| frame.path == path).collect();
            (early, routes.lost.clone())
        };
        early.into_iter().for_each(|frame| (route.hear)(frame.rank, frame.event));
        lost.into_iter().for_each(|rank| route.leave(rank));
    }

    fn take(&self, frame: Frame) {
        if frame.path == PROCESS {
            return self.lose(frame.rank);
        }
        let route = {
            let mut routes = lock(&self.routes);
            match routes.groups.get(&frame.path) {
                Some(route) => route.clone(),
                None => return routes.early.push(frame),
            }
        };
        // A message is kept by its receiver alone.
        if !matches!(frame.event, Event::Sends(to, _) if route.members[to] != self.rank) {
            (route.hear)(frame.rank, frame.event);
        }
    }

    /// A rank's process is gone, and with it its rank in every group.
    fn lose(&self, rank: usize) {
        let routes: Vec<Route> = {
            let mut routes = lock(&self.routes);
            routes.lost.insert(rank);
            routes.groups.values().cloned().collect()
        };
        routes.iter().for_each(|route| route.leave(rank));
    }
}

impl Route {
    /// Marks a rank of the unique id's communicator as gone, if it is a member.
    fn leave(&self, rank: usize) {
        if let Some(at) = self.members.iter().position(|member| *member == rank) {
            (self.hear)(at, Event::Gone);
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = lock(&self.out).shutdown(Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_as_it_was_sent_and_no_part_of_it_is() {
        let said = Said { kind: "reduce", bytes: 3, dtype: 7, op: 2, root: 1 };
        for event in [
            Event::Joined([7; 16], 64),
            Event::Gone,
            Event::Calls(Link::Pair { from: 2, to: 1 }),
            Event::Calls(Link::All { large: true }),
            Event::Calls(Link::Registered { nth: 3 }),
            Event::Begins(9, (said, true, Arc::new(vec![1, 2, 3]))),
            Event::Sends(3, vec![4, 5]),
            Event::Takes(2),
            Event::Splits(1, -1, 5),
        ] {
            let bytes = encode("/split 0", 4, &event);
            assert_eq!(decode(&bytes[8..]), Some(Frame { path: "/split 0".into(), rank: 4, event }));
            assert!((8..HEAD + 8).all(|end| decode(&bytes[8..end]).is_none()));
        }
    }
}
