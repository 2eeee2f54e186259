//! A world whose ranks are threads of one process and communicate over loopback sockets, with the same code as processes.

use super::super::Host;
use super::options::{Deadlines, PeerOptions};
use super::proxy::{FrameDecision, Proxy, Rules};
use super::rank::Tcp;
use crate::{Error, Rank, Result};
use allfold_net::{Security, accept_queue};
use allfold_sim::Faults;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

/// The options of a world of threads over loopback sockets.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    pub security: Security,
    pub deadlines: Deadlines,
    /// The faults that a proxy before every rank injects into connections.
    pub faults: Faults,
    /// Simulated hosts with this many ranks each, in order; `None` for one rank per host.
    pub ranks_per_host: Option<u32>,
}

/// The connected ranks of a world over loopback sockets.
pub(crate) struct Mesh {
    pub ranks: Vec<Arc<Tcp>>,
    /// The proxy, which must outlive the ranks.
    _proxy: Option<Proxy>,
}

impl Local {
    /// Connects all ranks with each other.
    pub fn connect(&self, ranks: u32) -> Result<Mesh> {
        fits(ranks, accept_queue::descriptors())?;
        let failed =
            |error: std::io::Error| Error::System(format!("cannot create loopback sockets: {error}"));
        let listen = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let listeners: Vec<TcpListener> =
            (0..ranks).map(listen).collect::<std::io::Result<_>>().map_err(failed)?;
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<std::io::Result<Vec<_>>>();
        let mut addresses = addresses.map_err(failed)?;
        let proxy = self.proxy(&addresses)?;
        if let Some(proxy) = &proxy {
            addresses = proxy.addresses().to_vec();
        }
        let job = allfold_net::random()?;
        let ranks: Vec<Result<Arc<Tcp>>> = std::thread::scope(|scope| {
            let start = |(listener, rank)| {
                let peers = PeerOptions {
                    rank: Rank(rank),
                    job,
                    epoch: 0,
                    listener,
                    addresses: addresses.clone(),
                    host: self.ranks_per_host.map(|each| Host::pretended(rank / each.max(1))),
                    security: self.security.clone(),
                    deadlines: self.deadlines,
                };
                scope.spawn(move || Tcp::connect(peers).map(Arc::new))
            };
            let threads: Vec<_> = listeners.into_iter().zip(0..).map(start).collect();
            let panicked = |_| Err(Error::System("a rank panicked while it connected".into()));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
        });
        match cause(ranks.iter().filter_map(|rank| rank.as_ref().err())) {
            Some(cause) => Err(cause.clone()),
            None => Ok(Mesh { ranks: ranks.into_iter().collect::<Result<_>>()?, _proxy: proxy }),
        }
    }

    /// Starts the proxy, if there are fault rules for it.
    fn proxy(&self, addresses: &[SocketAddr]) -> Result<Option<Proxy>> {
        if self.faults.is_empty() {
            return Ok(None);
        }
        let unseen = match (&self.security, self.ranks_per_host) {
            (Security::Tls(_), _) => "no proxy sees frames inside TLS",
            (_, Some(_)) => "no proxy sees frames between ranks of one host, which go through shared memory",
            _ => "",
        };
        if !unseen.is_empty() {
            return Err(Error::Argument(format!("faults are injected into plain sockets only: {unseen}")));
        }
        let rules: Arc<dyn FrameDecision> = Arc::new(Rules::new(self.faults.clone()));
        Proxy::start(addresses, rules).map(Some)
    }
}

/// Refuses more ranks than this many descriptors suffice for: two for the connection between any two ranks, and for each rank one to
/// listen and one for its waker. With too few descriptors, ranks would wait for each other until their deadline.
fn fits(ranks: u32, descriptors: u64) -> Result<()> {
    let need = u64::from(ranks) * (u64::from(ranks) + 1);
    match need <= descriptors {
        true => Ok(()),
        false => Err(Error::System(format!(
            "{ranks} ranks in one process need {need} descriptors to be connected, and it may open {descriptors}: raise the \
             limit by `ulimit -n`, or take fewer ranks"
        ))),
    }
}

/// The error to report, of the errors of ranks that did not all connect: a refusal by the system first, then ranks that could not be
/// reached in time, then a refusal by another rank, which may have given up. Errors about other ranks that were lost or gave up are only
/// consequences.
fn cause<'a>(errors: impl Iterator<Item = &'a Error>) -> Option<&'a Error> {
    errors.min_by_key(|error| match error {
        Error::System(_) => 0,
        Error::PeerLost { .. } | Error::Aborted { .. } | Error::Poisoned { .. } => 3,
        Error::Refused { .. } => 2,
        _ => 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lost;
    use crate::backends::{Backend, GroupId, Member, TaskId};
    use crate::schedule::Combine;
    use crate::transport::{Event, Frame};
    use crate::{Call, Collective, DType, Operation};
    use allfold_net::handshake::Purpose;
    use allfold_net::peer_stream::PeerStream;

    /// Exchanges a message with every other rank. Returns which ranks it reached through shared memory.
    fn trade(tcp: &Arc<Tcp>, rank: Rank, ranks: u32) -> Vec<Rank> {
        let call = Call::plain(Operation::Collective(Collective::AllReduce), 0, 1, DType::F32);
        let call = Arc::new(call);
        let member = Member { group: GroupId(0), rank };
        let mut connection = tcp.clone().connect(TaskId(0), member);
        let transport = connection.messages();
        transport.enter(&call).unwrap();
        let others = || (0..ranks).map(Rank).filter(|other| *other != rank);
        for other in others() {
            let mut payload = transport.alloc(4);
            payload.copy_from_slice(&rank.0.to_le_bytes());
            transport.post_send(other, 0, Frame { call: call.clone(), round: 0, payload });
            transport.post_recv(other, 0, 4, Combine::Copy);
        }
        for _ in 0..2 * others().count() {
            if let Event::Received { from, frame, .. } = transport.wait(0).unwrap() {
                assert_eq!(frame.payload[..], from.0.to_le_bytes());
            }
        }
        transport.done();
        let links = tcp.node.group(0).take(Purpose::Data).unwrap();
        others()
            .filter(|other| matches!(links[other].stream(), Some(PeerStream::SharedMemoryLink(_))))
            .collect()
    }

    #[test]
    fn ranks_that_the_descriptors_do_not_connect_are_refused_at_once() {
        assert_eq!((fits(4, 20), fits(128, 16_512)), (Ok(()), Ok(())));
        let says = |ranks, limit| fits(ranks, limit).unwrap_err().to_string();
        assert!(
            says(128, 16_511).starts_with("128 ranks in one process need 16512 descriptors to be connected")
        );
        assert!(says(u32::MAX, 1024).contains("it may open 1024"), "no product overflows");
    }

    #[test]
    fn the_first_of_causes_is_told_and_not_who_was_lost_over_it() {
        let lost = Error::lost(Rank(7), Lost::Disconnected("closed its connection".into()), None);
        let missing = Error::Missing { missing: vec![Rank(9)], after: Deadlines::default().start };
        let refused = Error::System("no descriptors left".into());
        assert_eq!(cause([&lost, &missing, &lost].into_iter()), Some(&missing));
        assert_eq!(cause([&lost, &missing, &refused].into_iter()), Some(&refused));
        assert_eq!(cause([&lost].into_iter()), Some(&lost));
        assert_eq!(cause([].into_iter()), None);
    }

    #[test]
    fn messages_within_a_host_go_through_memory_and_no_others() {
        let (security, deadlines) = (Security::Loopback, Deadlines::default());
        let local = Local { security, deadlines, faults: Faults::NONE, ranks_per_host: Some(2) };
        let mesh = local.connect(3).unwrap();
        let shared_memory: Vec<Vec<Rank>> = std::thread::scope(|scope| {
            let start = |(tcp, rank)| scope.spawn(move || trade(tcp, Rank(rank), 3));
            let threads: Vec<_> = mesh.ranks.iter().zip(0..).map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(shared_memory, [vec![Rank(1)], vec![Rank(0)], vec![]]);
    }
}
