//! Worlds of threads on real time.

use super::description::World;
use super::kind::OnThreads;
use crate::backends::threads::Options;
use std::time::Duration;

impl World<OnThreads> {
    /// Ranks that are threads of this process, on real time.
    pub fn threads(ranks: u32) -> World<OnThreads> {
        let options = Options { deadline: Duration::from_secs(300), capacity: 4, fused: true };
        World::of(ranks, OnThreads(options))
    }

    /// Sends every message of every schedule, where ranks would otherwise read each other's buffers and evaluate the same reduction trees
    /// there. The results have the same bits; the speed differs.
    pub fn messages(mut self) -> World<OnThreads> {
        self.kind.0.fused = false;
        self
    }

    /// [`World::messages`], with channels that hold this many messages before their sender must wait for the receiver. With 0, a
    /// send ends only when the receiver has taken the message. Results do not depend on the number.
    pub fn buffered(mut self, messages: usize) -> World<OnThreads> {
        self.kind.0.capacity = messages;
        self.messages()
    }
}
