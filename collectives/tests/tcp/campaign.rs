//! Seeded fault rules in numbers, over real sockets: the injected faults and their outcomes, as in the README's table.

use super::arena::{deadlines, run, sum};
use allfold_collectives::tcp::{Deadlines, FrameDecision, Passing, ProxyAction, Rules};
use allfold_collectives::{Error, Rank};
use allfold_sim::Faults;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The outcome of many runs of one kind of fault.
#[derive(Default)]
struct Tally {
    injected: u64,
    wrong: u64,
    unnamed: u64,
}

/// Counts the frames that the rules do not simply pass. The rules' time begins with the first frame of data between two culprits, so that
/// a rule that holds for a time meets that frame, however long the ranks took to get there.
struct Counting {
    rules: Rules,
    culprits: Vec<u32>,
    begun: OnceLock<Duration>,
    injected: AtomicU64,
}

/// The time at which the first frame of data between two culprits passes.
const FIRST: Duration = Duration::from_millis(10);

impl FrameDecision for Counting {
    fn decide(&self, frame: &Passing) -> ProxyAction {
        let concerned = [frame.from, frame.to].iter().all(|rank| self.culprits.contains(&rank.0));
        let begun = match frame.is_data && concerned {
            true => Some(self.begun.get_or_init(|| frame.time)),
            false => self.begun.get(),
        };
        let time = begun.map_or(Duration::ZERO, |begun| FIRST + frame.time.saturating_sub(*begun));
        let action = self.rules.decide(&Passing { time, ..*frame });
        if action != ProxyAction::Pass {
            self.injected.fetch_add(1, Ordering::Relaxed);
        }
        action
    }
}

/// How many runs of a rule are in flight at the same time: runs that lose a message wait for their deadlines.
const AT_ONCE: usize = 4;

/// Runs a rule against three ranks that do ten operations. Results are checked where operations succeed; errors must name a rank that the
/// rule concerns.
fn campaign(rule: &(impl Fn(u64) -> (String, Vec<u32>) + Sync), runs: u64) -> Tally {
    // Only a dropped message is found by the operation's deadline. The other faults get a longer deadline, so that a busy machine does
    // not exceed it.
    let lost = rule(0).0.starts_with("drop");
    let limits = Deadlines { operation: Duration::from_secs(if lost { 3 } else { 20 }), ..deadlines() };
    let every = |first: u64| (first..runs).step_by(AT_ONCE).map(|seed| one_run(rule(seed), seed, limits));
    let tallies: Vec<Tally> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..AT_ONCE as u64).map(|first| scope.spawn(move || every(first).collect::<Vec<_>>())).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    tallies.iter().fold(Tally::default(), |sum, run| Tally {
        injected: sum.injected + run.injected,
        wrong: sum.wrong + run.wrong,
        unnamed: sum.unnamed + run.unnamed,
    })
}

fn one_run((text, culprits): (String, Vec<u32>), seed: u64, limits: Deadlines) -> Tally {
    let faults = Faults::of_ranks(vec![text.parse().unwrap()], 3).unwrap().seeded(seed);
    let decision = Arc::new(Counting {
        rules: Rules::new(faults),
        culprits: culprits.clone(),
        begun: OnceLock::new(),
        injected: AtomicU64::new(0),
    });
    // A hang fails in `run`; a wrong result panics in `sum`, and its rank is lost to the others.
    let results =
        run(3, decision.clone(), limits, |comm| (0..10).try_for_each(|i| sum(comm, 100 + i * 7000)));
    let mut tally =
        Tally { injected: u64::from(decision.injected.load(Ordering::Relaxed) > 0), ..Tally::default() };
    // A dead rank is cut off from all others and reports them as lost, so its error is not counted.
    let dead = |rank: u32| text.starts_with("dead_rank") && culprits.contains(&rank);
    let told = (0..).zip(results).filter(|(rank, _)| !dead(*rank));
    for error in told.filter_map(|(_, result)| result.err()) {
        let named = |rank: &Rank| culprits.contains(&rank.0);
        let text = error.to_string();
        tally.wrong += u64::from(text.contains("panicked"));
        tally.unnamed += u64::from(match &error {
            Error::PeerLost { rank, .. } => !named(rank),
            Error::Protocol { peer, rank, .. } => !named(peer) && !named(rank),
            Error::Mismatch { rank, peer, .. } => !named(rank) && !named(peer),
            Error::DeadlineExceeded { waiting_on, .. } => !waiting_on.iter().any(named),
            _ => true,
        });
    }
    tally
}

#[test]
fn faults_in_numbers_as_the_readme_shows_them() {
    let pair = |seed: u64| (seed % 3, (seed + 1 + seed / 3 % 2) % 3);
    type Rule = Box<dyn Fn(u64) -> (String, Vec<u32>) + Sync>;
    let between = |make: fn(u64, u64, u64) -> String| -> Rule {
        Box::new(move |seed| {
            let (a, b) = pair(seed);
            (make(a, b, seed), vec![a as u32, b as u32])
        })
    };
    let kinds: [(&str, u64, Rule); 6] = [
        ("message lost", 12, between(|a, b, seed| format!("drop={a}>{b}:#{}", 1 + seed % 7))),
        ("bit flipped", 24, between(|a, b, seed| format!("corrupt={a}>{b}:#{}", 1 + seed % 7))),
        ("message repeated", 24, between(|a, b, seed| format!("duplicate={a}>{b}:#{}", 1 + seed % 7))),
        ("messages delayed", 12, between(|a, b, _| format!("delay={a}>{b}:all:exp(1ms)"))),
        ("partition that heals", 6, between(|a, _, _| format!("partition={a}|{}@5ms..60ms", (a + 1) % 3))),
        ("rank killed", 24, between(|a, _, seed| format!("dead_rank={a}:op{}", seed % 10))),
    ];
    let mut lines =
        vec!["| fault over TCP | injected | hangs | wrong results | unnamed culprits |".to_string()];
    lines.push("|---|---|---|---|---|".into());
    let (mut all, mut wrongs, mut nameless) = (0, 0, 0);
    for (name, runs, rule) in kinds {
        let Tally { injected, wrong, unnamed } = campaign(&rule, runs);
        assert!(injected > 0, "{name}: {runs} runs, and nothing was injected");
        (all, wrongs, nameless) = (all + runs, wrongs + wrong, nameless + unnamed);
        // A hang would have failed the test where it happened.
        lines.push(format!("| {name} | {injected} | 0 | {wrong} | {unnamed} |"));
    }
    let table = lines.join("\n");
    println!("{table}");
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let row = format!("numbers`) | {all} runs | 0 | {wrongs} | {nameless} |");
    assert!(readme.contains(&row), "the README does not say: {row}\n{table}");
}
