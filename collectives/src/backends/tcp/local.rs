//! A world whose ranks are threads of one process and communicate over loopback sockets, with the same code as processes.

use super::super::Host;
use super::options::{Deadlines, Peers};
use super::proxy::{Judge, Proxy, Rules};
use super::rank::Tcp;
use crate::{Error, Rank, Result};
use allfold_net::Security;
use allfold_sim::Faults;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

/// The options of such a world.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    pub security: Security,
    pub deadlines: Deadlines,
    /// The faults that a proxy before every rank injects into connections.
    pub faults: Faults,
    /// Pretended hosts with this many ranks each, in order; `None` for one rank per host.
    pub ranks_per_host: Option<u32>,
}

/// The ranks of such a world, connected.
pub(crate) struct Mesh {
    pub ranks: Vec<Arc<Tcp>>,
    /// The runtime, which outlives the ranks.
    _proxy: Option<Proxy>,
}

impl Local {
    /// Connects all ranks with each other.
    pub fn connect(&self, ranks: u32) -> Result<Mesh> {
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
                let peers = Peers {
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
        // If the system refused something to one rank, that is why the others lost it.
        let (refused, ranks): (Vec<_>, Vec<_>) =
            ranks.into_iter().partition(|rank| matches!(rank, Err(Error::System(_))));
        let ranks = refused.into_iter().chain(ranks).collect::<Result<_>>()?;
        Ok(Mesh { ranks, _proxy: proxy })
    }

    /// The proxy, if there are rules for it.
    fn proxy(&self, addresses: &[SocketAddr]) -> Result<Option<Proxy>> {
        if self.faults.is_empty() {
            return Ok(None);
        }
        let unseen = match (&self.security, self.ranks_per_host) {
            (Security::Tls(_), _) => "inside TLS no proxy sees a frame",
            (_, Some(_)) => "between ranks of one host it sees none either",
            _ => "",
        };
        if !unseen.is_empty() {
            return Err(Error::Argument(format!("faults are injected into plain connections: {unseen}")));
        }
        let rules: Arc<dyn Judge> = Arc::new(Rules::new(self.faults.clone()));
        Proxy::start(addresses, rules).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
            let mut payload = transport.room(4);
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
