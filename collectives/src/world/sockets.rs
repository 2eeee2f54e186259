//! Worlds of ranks that are connected by sockets.

use super::description::World;
use super::kind::OnSockets;
use crate::backends::tcp::{Deadlines, Local, Security};
use allfold_sim::Faults;

impl World<OnSockets> {
    /// Ranks that are threads of this process, connected over loopback TCP: bytes are sent and faults are found as between processes.
    pub fn tcp(ranks: u32) -> World<OnSockets> {
        let local = Local {
            security: Security::Loopback,
            deadlines: Deadlines::default(),
            faults: Faults::NONE,
            ranks_per_host: None,
        };
        World::of(ranks, OnSockets { local, share: false })
    }

    /// A world of ranks that are connected by sockets and share a memory segment, which every rank maps for itself, as processes of one
    /// host do.
    pub fn shm(ranks: u32) -> World<OnSockets> {
        let mut world = World::tcp(ranks);
        world.kind.share = true;
        world
    }

    /// The security mode.
    pub fn security(mut self, security: Security) -> World<OnSockets> {
        self.kind.local.security = security;
        self
    }

    /// The deadlines of connecting, of operations and of silence.
    pub fn deadlines(mut self, deadlines: Deadlines) -> World<OnSockets> {
        self.kind.local.deadlines = deadlines;
        self
    }

    /// Starts a proxy in front of every rank, which applies the fault rules that concern messages, partitions and deaths.
    pub fn faults(mut self, faults: Faults) -> World<OnSockets> {
        self.kind.local.faults = faults;
        self
    }

    /// Groups the ranks, in order, into hosts of `ranks` ranks each. Messages between ranks of one host are sent through memory that the
    /// two share, as in a world that a launcher started on several hosts; other messages are sent over sockets. 0 is refused when the
    /// world runs.
    pub fn ranks_per_host(mut self, ranks: u32) -> World<OnSockets> {
        match ranks {
            0 => self.refuse("a host has 0 ranks; it must have 1 or more"),
            _ => {
                self.kind.local.ranks_per_host = Some(ranks);
                self
            }
        }
    }
}
