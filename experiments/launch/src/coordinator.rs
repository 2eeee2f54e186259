//! The coordinator, on node 0: starts all nodes' ranks together, and ends them together.
//!
//! ```text
//! agents join  ->  start E  ->  all done                          -> over, 0
//!                     ^     ->  the first failure -> stop -> all stopped -> over, its code
//!                     '--------------- E + 1, while restarts are left ----'
//! ```

use crate::end::{End, signal_name};
use crate::line::{Line, Lost};
use crate::messages::{Message, write};
use crate::output::Printer;
use crate::waiting::Waiting;
use allfold_collectives::Rank;
use allfold_collectives::rendezvous::{Caller, PeerKind};
use allfold_collectives::running_time::{after, sleep_until, timeout_at};
use allfold_collectives::tcp::AuthenticatedStream;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// The properties of the whole job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub nodes: u32,
    pub max_restarts: u32,
    /// Whether agents start failed ranks again by themselves, as long as no rank has exited with 0.
    pub elastic: bool,
    /// The time for all nodes to join.
    pub timeout: Duration,
    /// The time between the request that ranks end and killing them.
    pub grace: Duration,
}

/// An upper limit on the time that a node needs to end its ranks after the grace period.
const MARGIN: Duration = Duration::from_secs(5);

/// How many ranks that exited with 0 the error of a job names at most.
const NAMED: usize = 8;

/// How long the coordinator waits, when a launcher calls for a node that has joined, for that node's earlier launcher to be lost:
/// a launcher that ended may have been started again at once.
const MOMENT: Duration = Duration::from_millis(100);

/// The nodes that have joined: the number of ranks that each starts, and the connection to it.
#[derive(Default)]
struct Nodes {
    all: BTreeMap<u32, (u32, Line<AuthenticatedStream>)>,
    /// By rank: the latest epoch in which a peer reported that rank as lost.
    lost: BTreeMap<u32, u32>,
    /// The latest epoch in which a node has started ranks.
    latest: u32,
}

/// An event of a node: a message, or the loss of its launcher.
type News = (u32, Result<Message, Lost>);

/// Why a start of the world ended.
struct Cause {
    code: u8,
    text: String,
    /// Whether another start could succeed.
    again: bool,
}

/// Coordinates the launchers until the job is over. `port` finds a free port for each start. The server of the rendezvous learns by
/// `exits` which ranks of a start have exited with 0.
pub(super) async fn coordinate(
    plan: Plan,
    mut callers: mpsc::Receiver<Caller>,
    exits: watch::Sender<BTreeSet<Rank>>,
    mut port: impl FnMut() -> u16,
    printer: Printer,
) {
    let (send, mut news) = mpsc::unbounded_channel();
    let mut nodes = Nodes::default();
    let due = after(plan.timeout);
    let mut waiting = Waiting::new(printer.clone());
    while nodes.all.len() < plan.nodes as usize {
        let caller = tokio::select! {
            biased;
            // An agent that was lost may be started again.
            Some((node, Err(_))) = news.recv() => {
                nodes.all.remove(&node);
                continue;
            }
            () = waiting.line(|| format!("node {} to join", nodes.missing(plan.nodes))) => continue,
            caller = timeout_at(due, callers.recv()) => caller,
        };
        let Ok(Some(caller)) = caller else {
            let text = format!("node {} did not join within {:?}", nodes.missing(plan.nodes), plan.timeout);
            return nodes.over(1, text).await;
        };
        if caller.hello.kind != PeerKind::Agent {
            continue;
        }
        let _ = timeout(MOMENT, nodes.until_gone(caller.hello.rank.0, &mut news)).await;
        if let Err(text) = nodes.admit(plan, caller, &send).await {
            return nodes.over(2, text).await;
        }
    }
    loop {
        let heard = (&mut news, &mut callers);
        exits.send_replace(BTreeSet::new());
        let Some(cause) = start(&mut nodes, heard, &exits, port(), plan).await else {
            return nodes.over(0, String::new()).await;
        };
        if !cause.again || nodes.latest >= plan.max_restarts {
            return nodes.over(cause.code, cause.text).await;
        }
        nodes.latest += 1;
        printer.say(&format!("{}; starting again ({} of {})", cause.text, nodes.latest, plan.max_restarts));
    }
}

/// Runs one start of the world, in the epoch `nodes.latest`; `None` if all ranks succeeded.
async fn start(
    nodes: &mut Nodes,
    (news, callers): (&mut mpsc::UnboundedReceiver<News>, &mut mpsc::Receiver<Caller>),
    exits: &watch::Sender<BTreeSet<Rank>>,
    port: u16,
    plan: Plan,
) -> Option<Cause> {
    let epoch = nodes.latest;
    let world = nodes.all.values().map(|(ranks, _)| ranks).sum();
    let mut first = 0;
    for (ranks, line) in nodes.all.values() {
        line.say(&Message::Start { epoch, world, first, port }).await;
        first += *ranks;
    }
    let mut open: BTreeSet<u32> = nodes.all.keys().copied().collect();
    let mut cause: Option<Cause> = None;
    // By rank: how long a rank ran that has exited with 0. The others may have failed because they needed it.
    let mut exited = BTreeMap::new();
    let mut due = None;
    while !open.is_empty() {
        let (node, message) = tokio::select! {
            Some(next) = news.recv() => next,
            Some(caller) = callers.recv() => {
                nodes.called(caller).await;
                continue;
            }
            () = sleep_until(due) => break,
        };
        let found = match message {
            Ok(Message::Done { epoch: of } | Message::Stopped { epoch: of }) if of == epoch => {
                open.remove(&node);
                continue;
            }
            Ok(Message::Failed { epoch: of, rank, end, stopped, text }) if of == epoch => {
                let failed = failed(rank, end, stopped, &exited, &text);
                Cause { again: failed.again && (!plan.elastic || !exited.is_empty()), ..failed }
            }
            Ok(Message::Exited { epoch: of, rank, after }) if of == epoch => {
                exited.insert(rank, after);
                exits.send_modify(|exits| _ = exits.insert(Rank(rank)));
                if plan.elastic {
                    nodes.say_all(&Message::Exited { epoch, rank, after }).await;
                }
                continue;
            }
            Ok(Message::Lost { epoch: of, .. }) => {
                nodes.latest = nodes.latest.max(of);
                continue;
            }
            Ok(Message::Unable { epoch: of, code, text }) if of == epoch => {
                let text = if plan.nodes > 1 { format!("node {node}: {text}") } else { text };
                Cause { code, text, again: false }
            }
            Ok(Message::Interrupted { epoch: of, signal }) if of == epoch => {
                let text = format!("stopped by {}", signal_name(signal));
                Cause { code: End::Signal(signal).code(), text, again: false }
            }
            Ok(_) => continue,
            Err(lost) => {
                open.remove(&node);
                nodes.all.remove(&node);
                Cause { code: 1, text: format!("node {node} is lost: {lost}"), again: false }
            }
        };
        if cause.is_none() {
            nodes.say_all(&Message::Stop { epoch }).await;
            due = Some(after(plan.grace + MARGIN));
            cause = Some(found);
        } else if !found.again {
            // The first failure is reported, but a lost node or a signal from the user prevents a restart.
            cause = cause.map(|first| Cause { again: false, ..first });
        }
    }
    cause
}

fn failed(rank: u32, end: End, stopped: Option<u32>, exited: &BTreeMap<u32, Duration>, said: &str) -> Cause {
    let said = said.strip_prefix("error: ").unwrap_or(said);
    let said = if said.is_empty() { String::new() } else { format!(": {}", printable(said)) };
    let text = match stopped {
        Some(stopped) => format!(
            "rank {stopped} is stopped by a signal such as SIGSTOP, and rank {rank} failed over it, {end}{said}"
        ),
        // A rendezvous and a comparison of ranks fail for all ranks at once, with a text that names the ranks at fault: the rank that ends
        // first need not be one of them.
        None if [": rendezvous at ", ": rank "].iter().any(|all| said.starts_with(all))
            && !end.may_differ() =>
        {
            said[2..].into()
        }
        None => format!("rank {rank} failed first, {end}{}{said}", before(exited)),
    };
    Cause { code: end.code(), text, again: end.may_differ() }
}

/// A note about the ranks that had exited with 0 before another rank failed; empty if there are none.
fn before(exited: &BTreeMap<u32, Duration>) -> String {
    let ranks: Vec<Rank> = exited.keys().copied().map(Rank).take(NAMED).collect();
    let Some(first) = exited.values().min() else { return String::new() };
    let more = exited.len() - ranks.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let the_first = if exited.len() > 1 { "the first of them " } else { "" };
    format!(
        " ({}{more} had exited with 0 before, {the_first}after {:.1} s)",
        Rank::list(&ranks),
        first.as_secs_f64()
    )
}

/// A rank's last line with its control characters escaped, so that a terminal prints them instead of acting on them.
fn printable(said: &str) -> String {
    said.chars().fold(String::new(), |mut text, c| {
        if c.is_control() {
            text.extend(c.escape_default())
        } else {
            text.push(c)
        }
        text
    })
}

impl Nodes {
    /// Sends a message to every agent.
    async fn say_all(&self, message: &Message) {
        for (_, line) in self.all.values() {
            line.say(message).await;
        }
    }

    /// The numbers of the nodes that have not joined, of this many.
    fn missing(&self, nodes: u32) -> String {
        let missing = (0..nodes).filter(|node| !self.all.contains_key(node));
        missing.map(|node| node.to_string()).collect::<Vec<_>>().join(", ")
    }

    async fn admit(
        &mut self,
        plan: Plan,
        caller: Caller,
        news: &mpsc::UnboundedSender<News>,
    ) -> Result<(), String> {
        let (node, ranks) = (caller.hello.rank.0, caller.hello.port);
        let mut stream = caller.stream;
        if self.all.contains_key(&node) || node >= plan.nodes {
            let text =
                format!("node {node} cannot join: nodes are 0 to {}, and each joins once", plan.nodes - 1);
            let _ = write(&mut stream, &Message::Over { code: 2, text }).await;
            return Ok(());
        }
        if caller.hello.size != plan.nodes {
            let text = format!(
                "node 0 was given --nnodes {} and node {node} --nnodes {}",
                plan.nodes, caller.hello.size
            );
            let _ = write(&mut stream, &Message::Over { code: 2, text: text.clone() }).await;
            return Err(text);
        }
        let news = news.clone();
        let line = Line::open(stream, move |said| news.send((node, said)).is_ok());
        self.all.insert(node, (ranks, line));
        Ok(())
    }

    /// Answers a caller while ranks run. A peer's report of a lost rank is passed to the agent of that rank's node, once per
    /// epoch. A launcher is refused: all nodes have joined.
    async fn called(&mut self, mut caller: Caller) {
        let (rank, epoch) = (caller.hello.rank.0, caller.hello.epoch);
        if caller.hello.kind == PeerKind::Agent {
            let text = format!("node {rank} has joined already");
            let _ = write(&mut caller.stream, &Message::Over { code: 2, text }).await;
            return;
        }
        if self.lost.get(&rank).is_some_and(|last| *last >= epoch) {
            return;
        }
        self.lost.insert(rank, epoch);
        let mut first = 0;
        for (ranks, line) in self.all.values() {
            if (first..first + ranks).contains(&rank) {
                line.say(&Message::Lost { epoch, rank }).await;
            }
            first += ranks;
        }
    }

    /// Waits until node `node` is lost; removes it, and every other node that is lost meanwhile.
    async fn until_gone(&mut self, node: u32, news: &mut mpsc::UnboundedReceiver<News>) {
        while self.all.contains_key(&node) {
            if let Some((gone, Err(_))) = news.recv().await {
                self.all.remove(&gone);
            }
        }
    }

    /// Tells every agent that the job is over; node 0's own agent last, because it ends this process.
    async fn over(self, code: u8, text: String) {
        for (_, line) in self.all.values().rev() {
            line.say(&Message::Over { code, text: text.clone() }).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_a_line_that_a_terminal_only_prints() {
        let text = |stopped, said: &str| failed(1, End::Code(1), stopped, &BTreeMap::new(), said).text;
        assert_eq!(text(None, "error: no such luck"), "rank 1 failed first, exited with 1: no such luck");
        let unlike = failed(1, End::Code(2), None, &BTreeMap::new(), "error: rank 2 has `a = 1`").text;
        assert_eq!(unlike, "rank 2 has `a = 1`");
        let escaped = "rank 1 failed first, exited with 1: \\u{1b}]0;title\\u{7} caf\u{e9}";
        assert_eq!(text(None, "\x1b]0;title\x07 caf\u{e9}"), escaped);
        assert!(
            text(Some(2), "rank 2 is lost")
                .starts_with("rank 2 is stopped by a signal such as SIGSTOP, and rank 1")
        );
    }

    #[test]
    fn ranks_that_exited_with_0_before_a_failure_are_named_with_their_time() {
        let exited =
            |ranks: u32| (1..=ranks).map(|rank| (rank, Duration::from_millis(200 * u64::from(rank))));
        let text = |ranks| failed(0, End::Code(1), None, &exited(ranks).collect(), "").text;
        assert_eq!(text(0), "rank 0 failed first, exited with 1");
        assert_eq!(
            text(1),
            "rank 0 failed first, exited with 1 (rank 1 had exited with 0 before, after 0.2 s)"
        );
        assert!(text(2).ends_with(" (ranks 1, 2 had exited with 0 before, the first of them after 0.2 s)"));
        assert!(text(11).contains(" (ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 more had exited with 0 before, "));
    }
}
