//! For whom ranks wait in each step: while a rank waits in an operation that another one has not entered yet, it waits for that
//! one. The rest of its waiting is for messages that are on their way.
//!
//! ```text
//! rank 0   | compute  | wait .................. |      for rank 1 until rank 1 has entered the all-reduce
//! rank 1   | compute ............ | all-reduce  |
//! ```
//!
//! When a step ends, each rank passes the times at which it entered the operations of that step (56 bytes each) and the spans in which it
//! waited (16 bytes each) to a collector: some hundred bytes with DDP. All ranks' times of one step become one sum for each pair of ranks
//! that waits (16 bytes) and are then dropped. Ranks that exchange values in every step are at most a step apart, so the times of two steps
//! are held at once.

use allfold_base::lock;
use allfold_collectives::Collective;
use allfold_collectives::flight::Entry;
use allfold_report::records::{WaitingByStep, WaitingFor};
use allfold_sim::Picos;
use allfold_trainer::timing::{StepSpan, StepWork};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The most ranks whose waiting is recorded.
const MOST_RANKS: u32 = 256;

/// What identifies an operation: its communicator, its number, and of a message its two ends and its length.
type Key = (u64, u64, Option<(u32, u32, u64)>);

fn key(entry: &Entry) -> Key {
    let ends = entry.peer.map(|peer| (entry.rank.min(peer), entry.rank.max(peer), entry.count));
    (entry.group, entry.sequence, ends)
}

/// Whose entry into an operation an early rank waits for.
#[derive(Clone, Copy)]
enum Awaited {
    Nobody,
    /// The root, whose values all others wait for.
    Root,
    /// The last rank that enters the operation.
    Last,
}

fn awaited(entry: &Entry) -> Awaited {
    let named = |collective: Collective| entry.operation == collective.name();
    if named(Collective::Broadcast) || named(Collective::Scatter) {
        return Awaited::Root;
    }
    let to_root = named(Collective::Reduce) || named(Collective::Gather);
    if to_root && entry.root != Some(entry.rank) { Awaited::Nobody } else { Awaited::Last }
}

/// An operation as one rank entered it.
#[derive(Clone)]
struct Entered {
    operation: Key,
    at: Picos,
    is_root: bool,
    awaited: Awaited,
}

/// The times of one step that a rank passes to the collector.
#[derive(Clone)]
struct RankTimes {
    entered: Vec<Entered>,
    /// When the rank began and ended to wait, in order.
    waited: Vec<(Picos, Picos)>,
}

impl RankTimes {
    fn of(spans: &[StepSpan], operations: &[Entry]) -> RankTimes {
        let entered = operations.iter().filter_map(|entry| {
            let at = Picos((entry.started_us? * 1e6).round() as u64);
            let is_root = entry.root == Some(entry.rank);
            Some(Entered { operation: key(entry), at, is_root, awaited: awaited(entry) })
        });
        let waiting = spans.iter().filter(|span| span.work == StepWork::Waiting);
        RankTimes { entered: entered.collect(), waited: waiting.map(|span| (span.start, span.end)).collect() }
    }
}

/// When an operation's last rank and its root entered it, and which ranks these are.
#[derive(Clone, Copy, Default)]
struct Met {
    last: (Picos, u32),
    root: Option<(Picos, u32)>,
}

/// How long each rank waits for each other one in a step, from the times of all ranks.
fn combined(ranks: &[Option<RankTimes>]) -> Vec<WaitingFor> {
    let ranks = || (0u32..).zip(ranks).filter_map(|(rank, times)| Some((rank, times.as_ref()?)));
    let mut met: BTreeMap<Key, Met> = BTreeMap::new();
    for (rank, times) in ranks() {
        for Entered { operation, at, is_root, .. } in &times.entered {
            let met = met.entry(*operation).or_default();
            met.last = met.last.max((*at, rank));
            if *is_root {
                met.root = Some((*at, rank));
            }
        }
    }
    let mut sums: BTreeMap<(u32, u32), Picos> = BTreeMap::new();
    for (rank, times) in ranks() {
        // From when to when the rank is in an operation that the awaited rank has not entered.
        let early = times.entered.iter().filter_map(|entered| {
            let met = met.get(&entered.operation)?;
            let (until, of) = match entered.awaited {
                Awaited::Nobody => None,
                Awaited::Root => met.root,
                Awaited::Last => Some(met.last),
            }?;
            (of != rank && until > entered.at).then_some((entered.at, until, of))
        });
        let mut early: Vec<(Picos, Picos, u32)> = early.collect();
        early.sort_by_key(|(start, ..)| *start);
        let mut early = &early[..];
        for &(mut from, end) in &times.waited {
            early = &early[early.iter().take_while(|(_, until, _)| *until <= from).count()..];
            for &(start, until, of) in early.iter().take_while(|(start, ..)| *start < end) {
                let (begin, until) = (from.later(start), until.min(end));
                if until > begin {
                    *sums.entry((rank, of)).or_default() += until - begin;
                    from = until;
                }
            }
        }
    }
    sums.into_iter().map(|((rank, of), time)| WaitingFor { rank, of, us: time.as_micros() }).collect()
}

/// For whom ranks wait in a step, from each rank's spans and operations.
pub fn waiting_in_step<'a>(ranks: impl Iterator<Item = (&'a [StepSpan], &'a [Entry])>) -> Vec<WaitingFor> {
    let times = ranks.map(|(spans, operations)| Some(RankTimes::of(spans, operations)));
    combined(&times.collect::<Vec<_>>())
}

/// Collects for whom the ranks of this process wait.
pub struct WaitCollector {
    ranks: usize,
    state: Mutex<State>,
}

struct State {
    /// The steps that not all ranks have ended, and the last one that they have.
    open: BTreeMap<u64, Vec<Option<RankTimes>>>,
    kept: WaitingByStep,
}

impl WaitCollector {
    /// A collector for a world of this process; `None` for one rank and for more than 256.
    pub fn new(ranks: u32) -> Option<WaitCollector> {
        let state = Mutex::new(State { open: BTreeMap::new(), kept: WaitingByStep::default() });
        (2..=MOST_RANKS).contains(&ranks).then_some(WaitCollector { ranks: ranks as usize, state })
    }

    /// Takes the spans and the operations of a step that `rank` has ended.
    pub fn hand_in(&self, rank: u32, step: u64, spans: &[StepSpan], operations: &[Entry]) {
        let times = RankTimes::of(spans, operations);
        let mut state = lock(&self.state);
        let State { open, kept } = &mut *state;
        open.entry(step).or_insert_with(|| vec![None; self.ranks])[rank as usize] = Some(times);
        // The first rank that ends the next step does this work, since it would wait for the others anyway.
        let all = |ranks: &[Option<RankTimes>]| ranks.iter().all(Option::is_some);
        while let Some(whole) = open.first_entry().filter(|first| *first.key() < step && all(first.get())) {
            let (ended, ranks) = whole.remove_entry();
            kept.keep(ended, combined(&ranks));
        }
    }

    /// For whom ranks waited in a step that all of them have ended, if it is kept.
    pub fn of(&self, step: u64) -> Option<Vec<WaitingFor>> {
        let state = lock(&self.state);
        let open = || state.open.get(&step).map(|ranks| combined(ranks));
        state.kept.of(step).map(<[WaitingFor]>::to_vec).or_else(open)
    }

    /// For whom ranks waited in the steps that are kept.
    pub fn finish(self) -> WaitingByStep {
        let State { open, mut kept } = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        open.into_iter().for_each(|(step, ranks)| kept.keep(step, combined(&ranks)));
        kept
    }
}
