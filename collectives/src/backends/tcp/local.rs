//! A world of ranks that are threads of one process and talk over loopback sockets: every byte goes the way it would
//! between processes.

use super::{Deadlines, Judge, Peers, Proxy, Rules, Security, Tcp, handshake};
use crate::{Error, Rank, Result};
use allfold_sim::Faults;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

/// How such a world is made.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    pub security: Security,
    pub deadlines: Deadlines,
    /// What a proxy before every rank does to connections.
    pub faults: Faults,
}

/// The ranks of such a world, connected.
pub(crate) struct Mesh {
    pub ranks: Vec<Arc<Tcp>>,
    /// It outlives the ranks.
    _proxy: Option<Proxy>,
}

impl Local {
    /// Connects all ranks with each other.
    pub fn connect(&self, ranks: u32) -> Result<Mesh> {
        let failed = |error: std::io::Error| Error::System(format!("no loopback sockets: {error}"));
        let listen = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let listeners: Vec<TcpListener> =
            (0..ranks).map(listen).collect::<std::io::Result<_>>().map_err(failed)?;
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<std::io::Result<Vec<_>>>();
        let mut addresses = addresses.map_err(failed)?;
        let proxy = self.proxy(&addresses)?;
        if let Some(proxy) = &proxy {
            addresses = proxy.addresses().to_vec();
        }
        let job = handshake::random()?;
        let ranks: Result<Vec<Arc<Tcp>>> = std::thread::scope(|scope| {
            let start = |(listener, rank)| {
                let peers = Peers {
                    rank: Rank(rank),
                    job,
                    epoch: 0,
                    listener,
                    addresses: addresses.clone(),
                    security: self.security.clone(),
                    deadlines: self.deadlines,
                };
                scope.spawn(move || Tcp::connect(peers).map(Arc::new))
            };
            let threads: Vec<_> = listeners.into_iter().zip(0..).map(start).collect();
            let panicked = |_| Err(Error::System("a rank panicked while it connected".into()));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
        });
        Ok(Mesh { ranks: ranks?, _proxy: proxy })
    }

    /// Where there are rules.
    fn proxy(&self, addresses: &[SocketAddr]) -> Result<Option<Proxy>> {
        if self.faults.is_empty() {
            return Ok(None);
        }
        if matches!(self.security, Security::Tls(_)) {
            let why = "faults are injected into plain connections: inside TLS no proxy sees a frame";
            return Err(Error::Argument(why.into()));
        }
        let rules: Arc<dyn Judge> = Arc::new(Rules::new(self.faults.clone()));
        Proxy::start(addresses, rules).map(Some)
    }
}
