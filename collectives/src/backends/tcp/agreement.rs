//! The agreement of a group's survivors on the list of survivors, while more ranks may fail.
//!
//! ```text
//! every rank     ask: its lost ranks, last proposal, decision --> all ranks not lost, at first and whenever one more is lost
//! coordinator    the lowest rank that is not lost; once every remaining rank has sent it an `ask` that lists all lower
//!                   ranks as lost: propose a reported decision, else a known proposal, else the list of remaining ranks
//!                   --> all remaining ranks
//! every rank     accept --> coordinator
//! coordinator    once all remaining ranks have accepted: decide --> all others, including ranks that were given up
//! every rank     on the first `decide`: the same --> all others
//! ```
//!
//! A decision is made only when every remaining rank holds it as a proposal, and a new coordinator proposes nothing else once a remaining
//! rank holds a proposal. So all ranks that decide make the same decision (three-phase commit with a perfect detector of crashes; D.
//! Skeen, Nonblocking commit protocols, SIGMOD 1981). A rank counts as lost when its connection ends or it leaves the group, so a rank
//! that has the decision has sent it to the others before it can count as lost. The agreement is plain data: the node sends the messages,
//! in order between any two ranks.

use crate::Rank;
use crate::backends::codec::{Reader, Writer};
use std::collections::{BTreeMap, BTreeSet};

type Ranks = BTreeSet<Rank>;

/// The messages that ranks exchange to agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Ask { gone: Ranks, proposed: Option<Ranks>, decided: Option<Ranks> },
    Propose(Ranks),
    Accept(Ranks),
    Decide(Ranks),
}

/// Messages to send, each with its receiver.
pub(super) type Outgoing = Vec<(Rank, Message)>;

/// The last state that a rank announced.
#[derive(Clone, Default)]
struct State {
    gone: Ranks,
    proposed: Option<Ranks>,
    decided: Option<Ranks>,
}

pub(super) struct Agreement {
    me: Rank,
    size: u32,
    /// Whether this rank has requested the survivors.
    asking: bool,
    gone: Ranks,
    proposed: Option<Ranks>,
    decided: Option<Ranks>,
    states: BTreeMap<Rank, State>,
    /// On the coordinator: the proposal, and the ranks that have accepted it.
    accepted: Option<(Ranks, Ranks)>,
}

impl Agreement {
    pub fn new(me: Rank, size: u32) -> Agreement {
        let (gone, states) = Default::default();
        Agreement { me, size, asking: false, gone, proposed: None, decided: None, states, accepted: None }
    }

    /// The survivors, once decided.
    pub fn decided(&self) -> Option<&Ranks> {
        self.decided.as_ref()
    }

    /// Begins the agreement for this rank, which called `shrink`.
    pub fn ask(&mut self) -> Outgoing {
        self.asking = true;
        let mut outgoing = self.announce();
        outgoing.extend(self.coordinate());
        outgoing
    }

    /// Records that a rank is lost.
    pub fn lose(&mut self, rank: Rank) -> Outgoing {
        self.suspect([rank].into())
    }

    /// Treats the ranks that have not requested the survivors by now as lost.
    pub fn give_up(&mut self) -> Outgoing {
        let silent = self.left().filter(|rank| *rank != self.me && !self.states.contains_key(rank)).collect();
        self.suspect(silent)
    }

    /// Handles a message of a peer.
    pub fn handle(&mut self, from: Rank, message: Message) -> Outgoing {
        let mut outgoing = Vec::new();
        match message {
            Message::Ask { gone, proposed, decided } => {
                if let Some(decided) = &self.decided {
                    outgoing.push((from, Message::Decide(decided.clone())));
                }
                self.states.insert(from, State { gone: gone.clone(), proposed, decided });
                outgoing.extend(self.suspect(gone.into_iter().filter(|rank| *rank != self.me).collect()));
                outgoing.extend(self.coordinate());
            }
            Message::Propose(ranks) if self.asking && !self.gone.contains(&from) => {
                self.proposed = Some(ranks.clone());
                outgoing.push((from, Message::Accept(ranks)));
            }
            Message::Accept(ranks) => {
                if let Some((proposal, accepted)) = &mut self.accepted
                    && *proposal == ranks
                {
                    accepted.insert(from);
                }
                outgoing.extend(self.coordinate());
            }
            Message::Decide(ranks) => outgoing.extend(self.decide(ranks)),
            Message::Propose(_) => {}
        }
        outgoing
    }

    fn suspect(&mut self, ranks: Ranks) -> Outgoing {
        let before = self.gone.len();
        self.gone.extend(ranks);
        if !self.asking || self.gone.len() == before {
            return Vec::new();
        }
        let mut outgoing = self.announce();
        outgoing.extend(self.coordinate());
        outgoing
    }

    fn left(&self) -> impl Iterator<Item = Rank> {
        (0..self.size).map(Rank).filter(|rank| !self.gone.contains(rank))
    }

    fn to_all(&self, message: Message) -> Outgoing {
        self.left().filter(|rank| *rank != self.me).map(|rank| (rank, message.clone())).collect()
    }

    fn announce(&self) -> Outgoing {
        let (gone, proposed, decided) = (self.gone.clone(), self.proposed.clone(), self.decided.clone());
        self.to_all(Message::Ask { gone, proposed, decided })
    }

    /// Performs the coordinator's steps, if this rank is the coordinator.
    fn coordinate(&mut self) -> Outgoing {
        if !self.asking || self.decided.is_some() || self.left().next() != Some(self.me) {
            return Vec::new();
        }
        let lower: Vec<Rank> = (0..self.me.0).map(Rank).collect();
        let knows = |rank: &Rank| {
            *rank == self.me
                || self.states.get(rank).is_some_and(|state| lower.iter().all(|low| state.gone.contains(low)))
        };
        if !self.left().all(|rank| knows(&rank)) {
            return Vec::new();
        }
        let mut outgoing = Vec::new();
        if self.accepted.is_none() {
            let states: Vec<&State> = self.left().filter_map(|rank| self.states.get(&rank)).collect();
            let decided = states.iter().find_map(|state| state.decided.clone());
            let proposed =
                states.iter().find_map(|state| state.proposed.clone()).or_else(|| self.proposed.clone());
            let ranks = decided.or(proposed).unwrap_or_else(|| self.left().collect());
            self.proposed = Some(ranks.clone());
            outgoing = self.to_all(Message::Propose(ranks.clone()));
            self.accepted = Some((ranks, [self.me].into()));
        }
        if let Some((ranks, accepted)) = &self.accepted
            && self.left().all(|rank| accepted.contains(&rank))
        {
            let ranks = ranks.clone();
            outgoing.extend(self.decide(ranks));
        }
        outgoing
    }

    /// Records the decision, and the first time sends it to the others. A rank that was given up may still be alive: if it learned only
    /// that the others have left, it would decide alone.
    fn decide(&mut self, ranks: Ranks) -> Outgoing {
        if self.decided.is_some() {
            return Vec::new();
        }
        let others = (0..self.size).map(Rank).filter(|rank| *rank != self.me);
        let outgoing = others.map(|rank| (rank, Message::Decide(ranks.clone()))).collect();
        self.decided = Some(ranks);
        outgoing
    }
}

impl Message {
    /// Encodes a message, after the group's number. A set of ranks is encoded as a bit for each rank of the group.
    pub fn write(&self, to: &mut Writer, size: u32) {
        let set = |to: &mut Writer, ranks: &Ranks| {
            let mut words = vec![0u64; size.div_ceil(64) as usize];
            ranks.iter().for_each(|rank| words[rank.index() / 64] |= 1 << (rank.0 % 64));
            words.into_iter().for_each(|word| _ = to.word(word));
        };
        let maybe = |to: &mut Writer, ranks: &Option<Ranks>| {
            to.byte(ranks.is_some().into());
            ranks.iter().for_each(|ranks| set(to, ranks));
        };
        match self {
            Message::Ask { gone, proposed, decided } => {
                set(to.byte(0), gone);
                maybe(to, proposed);
                maybe(to, decided);
            }
            Message::Propose(ranks) => set(to.byte(1), ranks),
            Message::Accept(ranks) => set(to.byte(2), ranks),
            Message::Decide(ranks) => set(to.byte(3), ranks),
        }
    }

    /// Reads a message of a group of this many ranks.
    pub fn read(from: &mut Reader, size: u32) -> Option<Message> {
        let set = |from: &mut Reader| -> Option<Ranks> {
            let words = (0..size.div_ceil(64)).map(|_| from.word()).collect::<Option<Vec<u64>>>()?;
            let ranks = (0..words.len() as u32 * 64)
                .filter(|rank| words[*rank as usize / 64] >> (rank % 64) & 1 == 1);
            ranks.map(|rank| (rank < size).then_some(Rank(rank))).collect()
        };
        let maybe = |from: &mut Reader| -> Option<Option<Ranks>> {
            if from.byte()? == 0 { Some(None) } else { set(from).map(Some) }
        };
        Some(match from.byte()? {
            0 => Message::Ask { gone: set(from)?, proposed: maybe(from)?, decided: maybe(from)? },
            1 => Message::Propose(set(from)?),
            2 => Message::Accept(set(from)?),
            3 => Message::Decide(set(from)?),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// A test run of ranks. Messages between two ranks arrive in order; messages of different pairs arrive in any order.
    struct Run {
        ranks: Vec<Agreement>,
        dead: Vec<bool>,
        wires: BTreeMap<(Rank, Rank), VecDeque<Option<Message>>>,
    }

    impl Run {
        fn new(size: u32) -> Run {
            let ranks = (0..size).map(|rank| Agreement::new(Rank(rank), size)).collect();
            Run { ranks, dead: vec![false; size as usize], wires: BTreeMap::new() }
        }

        fn post(&mut self, from: Rank, outgoing: Outgoing) {
            for (to, message) in outgoing {
                self.wires.entry((from, to)).or_default().push_back(Some(message));
            }
        }

        /// Kills a rank. Its last messages may be lost; the other ranks notice the loss after the messages that arrive.
        fn die(&mut self, who: Rank, lost: usize) {
            if std::mem::replace(&mut self.dead[who.index()], true) {
                return;
            }
            for to in (0..self.ranks.len() as u32).map(Rank) {
                let stream = self.wires.entry((who, to)).or_default();
                stream.truncate(stream.len().saturating_sub(lost));
                stream.push_back(None);
            }
        }

        /// Lets one of the ranks that have the decision leave the group.
        fn leave(&mut self, choice: usize) {
            let who = choice % (4 * self.ranks.len());
            if self.ranks.get(who).is_some_and(|rank| rank.decided().is_some()) {
                self.die(Rank(who as u32), 0);
            }
        }

        /// Delivers one message of some connection; returns whether there was a message.
        fn step(&mut self, choice: usize) -> bool {
            let busy: Vec<(Rank, Rank)> =
                self.wires.iter().filter(|(_, w)| !w.is_empty()).map(|(k, _)| *k).collect();
            let Some((from, to)) = busy.get(choice % busy.len().max(1)).copied() else { return false };
            let message = self.wires.get_mut(&(from, to)).and_then(VecDeque::pop_front).unwrap();
            if !self.dead[to.index()] {
                let rank = &mut self.ranks[to.index()];
                let outgoing = match message {
                    Some(message) => rank.handle(from, message),
                    None => rank.lose(from),
                };
                self.post(to, outgoing);
            }
            true
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

        #[test]
        fn all_remaining_ranks_decide_the_same_for_any_deaths(
            size in 2..=8u32,
            deaths in proptest::collection::vec((0..200usize, 0..8u32, 0..20usize), 0..8),
            choices in proptest::collection::vec(any::<usize>(), 200),
        ) {
            let mut run = Run::new(size);
            let mut first: Option<Ranks> = None;
            let mut asked = 0;
            for at in 0..4000 {
                for (_, who, lost) in deaths.iter().filter(|(when, who, _)| *when == at && *who < size) {
                    let alive = run.dead.iter().filter(|dead| !**dead).count();
                    if alive > 1 {
                        run.die(Rank(*who), *lost);
                    }
                }
                // The ranks call `shrink` one after the other, while others already exchange messages.
                if at % 3 == 0 && asked < size {
                    if !run.dead[asked as usize] {
                        let outgoing = run.ranks[asked as usize].ask();
                        run.post(Rank(asked), outgoing);
                    }
                    asked += 1;
                }
                let more = run.step(choices[at % choices.len()]);
                run.leave(choices[at * 7 % choices.len()] >> 8);
                for decided in run.ranks.iter().filter_map(Agreement::decided) {
                    prop_assert_eq!(decided, &*first.get_or_insert_with(|| decided.clone()));
                }
                if !more && at > 200 {
                    break;
                }
            }
            for (rank, _) in run.ranks.iter().zip(&run.dead).filter(|(_, dead)| !**dead) {
                let decided = rank.decided();
                prop_assert!(decided.is_some_and(|ranks| ranks.contains(&rank.me)), "{:?} has {:?}", rank.me, decided);
            }
        }

        #[test]
        fn ranks_that_were_given_up_decide_the_same(
            size in 2..=6u32,
            hurry in proptest::collection::vec((0..300usize, 0..6u32), 0..6),
            asks in proptest::collection::vec(0..300usize, 6),
            choices in proptest::collection::vec(any::<usize>(), 200),
        ) {
            let mut run = Run::new(size);
            for at in 0..2000 {
                for who in (0..size).filter(|who| !run.dead[*who as usize]).collect::<Vec<_>>() {
                    let rank = &mut run.ranks[who as usize];
                    let mut outgoing = if asks[who as usize] == at { rank.ask() } else { Vec::new() };
                    // Late in the run every rank's deadline passes, again and again.
                    let up = at > 400 && at % 50 == 0 || hurry.contains(&(at, who));
                    if up && rank.asking {
                        outgoing.extend(rank.give_up());
                    }
                    run.post(Rank(who), outgoing);
                }
                run.step(choices[at % choices.len()]);
                run.leave(choices[at * 7 % choices.len()] >> 8);
            }
            while run.step(0) {}
            let first = run.ranks[0].decided().cloned();
            prop_assert!(first.is_some());
            for rank in &run.ranks {
                prop_assert_eq!(rank.decided(), first.as_ref(), "{:?}", rank.me);
            }
        }

        #[test]
        fn any_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::read(&mut Reader { rest: &bytes, known: "" }, 8);
        }
    }

    #[test]
    fn messages_survive_their_travel() {
        let some: Ranks = [Rank(1), Rank(5)].into();
        let ask = Message::Ask { gone: some.clone(), proposed: None, decided: Some(some.clone()) };
        for message in
            [ask, Message::Propose(some.clone()), Message::Accept(some.clone()), Message::Decide(some)]
        {
            let mut bytes = Writer::default();
            message.write(&mut bytes, 6);
            assert_eq!(Message::read(&mut Reader { rest: &bytes.0, known: "" }, 6), Some(message));
            assert_eq!(Message::read(&mut Reader { rest: &bytes.0, known: "" }, 5), None, "rank 5 of 5");
        }
    }

    #[test]
    fn a_rank_that_never_shrinks_is_excluded_and_informed() {
        let mut run = Run::new(3);
        for rank in [0, 2] {
            let outgoing = run.ranks[rank].ask();
            run.post(Rank(rank as u32), outgoing);
        }
        while run.step(0) {}
        assert_eq!(run.ranks[0].decided(), None);
        for rank in [0, 2] {
            let outgoing = run.ranks[rank].give_up();
            run.post(Rank(rank as u32), outgoing);
        }
        while run.step(1) {}
        let left: Ranks = [Rank(0), Rank(2)].into();
        assert_eq!(
            [0, 2].map(|rank| run.ranks[rank].decided().cloned()),
            [Some(left.clone()), Some(left.clone())]
        );
        // The other ranks continue without rank 1 and leave this group before rank 1 wakes.
        [0, 2].into_iter().for_each(|rank| run.die(Rank(rank), 0));
        while run.step(0) {}
        let outgoing = run.ranks[1].ask();
        run.post(Rank(1), outgoing);
        assert_eq!(run.ranks[1].decided(), Some(&left), "and not itself alone");
    }

    #[test]
    fn a_rank_that_was_given_up_gets_the_decision_from_another_rank() {
        let mut run = Run::new(3);
        for happens in [Agreement::ask, Agreement::give_up] {
            for rank in [0, 1] {
                let outgoing = happens(&mut run.ranks[rank]);
                run.post(Rank(rank as u32), outgoing);
            }
            loop {
                // The coordinator's messages to rank 2 never arrive.
                run.wires.remove(&(Rank(0), Rank(2)));
                if !run.step(0) {
                    break;
                }
            }
        }
        [0, 1].into_iter().for_each(|rank| run.die(Rank(rank), 0));
        while run.step(0) {}
        let outgoing = run.ranks[2].ask();
        run.post(Rank(2), outgoing);
        assert_eq!(run.ranks[2].decided(), Some(&[Rank(0), Rank(1)].into()));
    }
}
