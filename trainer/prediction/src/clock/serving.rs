//! The messages of a parameter server, which one rank cannot stand for: servers and workers do different things.

use super::ClockRank;
use allfold_trainer::engine::{Serving, ServingRole};
use allfold_trainer::{Error, Result};

fn refused<T>() -> Result<T> {
    Err(Error::Strategy(
        "servers and workers are not predicted without arithmetic: run the strategy on virtual time".into(),
    ))
}

impl Serving for ClockRank<'_> {
    fn role(&self) -> ServingRole {
        ServingRole { servers: 0, workers: self.with.mesh.data, server: None }
    }
    fn pull(&mut self, _unit: usize) -> Result<()> {
        refused()
    }
    fn pulled(&mut self, _unit: usize) -> Result<()> {
        refused()
    }
    fn push(&mut self, _unit: usize) -> Result<()> {
        refused()
    }
    fn serve(&mut self, _unit: usize, _worker: usize) -> Result<()> {
        refused()
    }
    fn expect(&mut self, _units: &[usize], _worker: usize) -> Result<()> {
        refused()
    }
    fn first_pushed(&mut self, _workers: &[usize]) -> Result<usize> {
        refused()
    }
    fn take_push(&mut self, _worker: usize) -> Result<()> {
        refused()
    }
    fn apply_pushes(&mut self) -> Result<()> {
        refused()
    }
}
