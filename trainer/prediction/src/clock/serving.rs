//! One rank cannot stand for a parameter server's ranks, since servers and workers do different things: they are not predicted.

use super::ClockRank;
use allfold_trainer::engine::{Serving, ServingRole};

impl Serving for ClockRank<'_> {
    fn role(&self) -> ServingRole {
        ServingRole { servers: 0, workers: self.with.mesh.data, server: None }
    }
}
