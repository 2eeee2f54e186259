//! From messages to shared memory, where all ranks are processes of one host.

use super::Communicator;
use crate::backends::shm::{Invitation, Segment};
use crate::{Rank, ReduceOp, Result};

impl Communicator {
    /// Whether the data of its collectives goes through memory that all of its ranks share.
    pub fn shares_memory(&self) -> bool {
        self.transport.borrow().shares_memory()
    }

    /// Lets the data of this communicator's collectives go through shared memory from now on, if all its ranks are on
    /// one host and can map a segment of rank 0's. Whether they do: all of them, or none. The results are the same bits.
    /// Communicators split off later do the same.
    ///
    /// Every rank must call it, before any asynchronous operation; it is two small collectives. The segment has no name
    /// and is gone with the last rank, however that ends.
    ///
    /// # Errors
    /// As of any collective.
    pub fn share_memory(&mut self) -> Result<bool> {
        // Threads share all memory anyway; and one rank has nobody to share with.
        if self.size() == 1 || self.transport.borrow().shares_memory() {
            return Ok(self.transport.borrow().shares_memory());
        }
        let segment = (self.rank() == Rank(0)).then(|| Segment::new(self.size())).flatten();
        let mine = Invitation::to(segment.as_ref());
        let mut words = vec![0; Invitation::WORDS * self.size() as usize];
        self.all_gather(&mine.words(), &mut words)?;
        let all: Option<Vec<Invitation>> = words.chunks(Invitation::WORDS).map(Invitation::read).collect();
        let all = all.unwrap_or_default();
        let beside = !all.is_empty() && all.iter().all(|other| other.is_beside(&mine));
        let board = match segment {
            _ if !beside => None,
            Some(segment) => Some(segment.board.clone()).map(|board| (board, Some(segment))),
            None => all[0].accept(self.size()).map(|board| (board, None)),
        };
        // The segment's descriptor stays open until all have said whether they have mapped it.
        let mut have = [i64::from(board.is_some() && self.seat.outstanding().is_none())];
        self.all_reduce(&mut have, ReduceOp::Min)?;
        let Some((board, _segment)) = board.filter(|_| have == [1]) else { return Ok(false) };
        let _ = self.seat.board.set(board);
        self.transport.replace(self.seat.transport(self.seat.actor));
        self.prepared.take();
        Ok(true)
    }
}
