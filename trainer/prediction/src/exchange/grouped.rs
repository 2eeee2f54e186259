//! Schedules in which several groups of ranks, or several pairs, do the same at the same time.

use crate::RankGroups;
use allfold_collectives::Rank;
use allfold_collectives::schedule::{Combine, Schedule, Span, Step};
use std::ops::Range;
use std::sync::Arc;

/// A schedule that every group follows. Ranks in no group are idle.
pub(super) struct InGroups<'a> {
    of: Arc<dyn Schedule>,
    among: &'a RankGroups,
    /// For each rank: its group, and its position there.
    places: Vec<Option<(usize, Rank)>>,
}

impl<'a> InGroups<'a> {
    pub fn new(of: Arc<dyn Schedule>, among: &'a RankGroups) -> InGroups<'a> {
        let mut places = vec![None; among.ranks as usize];
        for (group, members) in among.groups.iter().enumerate() {
            for (position, rank) in members.iter().enumerate() {
                places[rank.index()] = Some((group, Rank(position as u32)));
            }
        }
        InGroups { of, among, places }
    }
}

impl Schedule for InGroups<'_> {
    fn ranks(&self) -> u32 {
        self.among.ranks
    }
    fn chunks(&self) -> u32 {
        self.of.chunks()
    }
    fn rounds(&self) -> u64 {
        self.of.rounds()
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        let Some((group, position)) = self.places[rank.index()] else { return Step::IDLE };
        let members = &self.among.groups[group];
        self.of.step(position, round).map(|peer| members[peer.index()], |span| span)
    }
    fn active(&self, rank: Rank) -> Range<u64> {
        self.places[rank.index()].map_or(0..0, |(_, position)| self.of.active(position))
    }
    fn next(&self, rank: Rank, round: u64) -> Option<u64> {
        self.places[rank.index()].and_then(|(_, position)| self.of.next(position, round))
    }
    fn lanes(&self) -> u32 {
        self.of.lanes()
    }
    fn lane(&self, round: u64) -> u32 {
        self.of.lane(round)
    }
    fn segments(&self) -> u32 {
        self.of.segments()
    }
    fn stride(&self) -> u64 {
        self.of.stride()
    }
}

/// One message of the whole buffer from the first to the second rank of each pair.
pub(super) struct Messages {
    /// For each rank: where it sends, and from where it receives.
    peers: Vec<(Option<Rank>, Option<Rank>)>,
}

impl Messages {
    pub fn new(pairs: &[(Rank, Rank)], ranks: u32) -> Messages {
        let mut peers = vec![(None, None); ranks as usize];
        for &(from, to) in pairs {
            peers[from.index()].0 = Some(to);
            peers[to.index()].1 = Some(from);
        }
        Messages { peers }
    }
}

impl Schedule for Messages {
    fn ranks(&self) -> u32 {
        self.peers.len() as u32
    }
    fn chunks(&self) -> u32 {
        1
    }
    fn rounds(&self) -> u64 {
        1
    }
    fn step(&self, rank: Rank, _: u64) -> Step {
        let (to, from) = self.peers[rank.index()];
        let span = Span::data(0, 1);
        Step { send: to.map(|to| (to, span)), recv: from.map(|from| (from, span, Combine::Copy)) }
    }
}
