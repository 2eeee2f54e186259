//! The coordinator, on node 0: starts all nodes' ranks together, and ends them together.
//!
//! ```text
//! agents come  ->  start E  ->  all done                          -> over, 0
//!                     ^     ->  the first failure -> stop -> all stopped -> over, its code
//!                     '--------------- E + 1, while restarts are left ----'
//! ```

use crate::end::End;
use crate::line::{Line, Lost};
use crate::messages::{Message, write};
use crate::output::Printer;
use allfold_collectives::rendezvous::Caller;
use allfold_collectives::tcp::AuthenticatedStream;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

/// The properties of the whole job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub nodes: u32,
    pub max_restarts: u32,
    /// The time for all nodes to join.
    pub timeout: Duration,
    /// For ranks to end when they are asked to.
    pub grace: Duration,
}

/// More than a node needs to make its ranks end after the grace period.
const MARGIN: Duration = Duration::from_secs(5);

/// How long the news that a launcher has gone may take when the launcher is started again.
const MOMENT: Duration = Duration::from_millis(100);

/// The nodes that have joined: the number of ranks that each starts, and the connection to it.
#[derive(Default)]
struct Nodes {
    all: BTreeMap<u32, (u32, Line<AuthenticatedStream>)>,
}

/// News of a node: a message, or that it is lost.
type News = (u32, Result<Message, Lost>);

/// Why a start ended.
struct Cause {
    code: u8,
    text: String,
    /// Whether another start could go better.
    again: bool,
}

/// Serves until all is over. `port` finds a free port for each start.
pub(super) async fn coordinate(
    plan: Plan,
    mut callers: mpsc::Receiver<Caller>,
    mut port: impl FnMut() -> u16,
    printer: Printer,
) {
    let (send, mut news) = mpsc::unbounded_channel();
    let mut nodes = Nodes::default();
    let due = Instant::now() + plan.timeout;
    while nodes.all.len() < plan.nodes as usize {
        let caller = tokio::select! {
            biased;
            // An agent that was lost may be started again.
            Some((node, Err(_))) = news.recv() => {
                nodes.all.remove(&node);
                continue;
            }
            caller = timeout_at(due, callers.recv()) => caller,
        };
        let Ok(Some(caller)) = caller else {
            let missing = (0..plan.nodes).filter(|node| !nodes.all.contains_key(node));
            let missing: Vec<String> = missing.map(|node| node.to_string()).collect();
            let text = format!("node {} did not come within {:?}", missing.join(", "), plan.timeout);
            return nodes.over(1, text).await;
        };
        let _ = timeout(MOMENT, nodes.until_gone(caller.hello.rank.0, &mut news)).await;
        if let Err(text) = nodes.admit(plan, caller, &send).await {
            return nodes.over(2, text).await;
        }
    }
    // A launcher that calls now is one too many.
    tokio::spawn(async move {
        while let Some(mut caller) = callers.recv().await {
            let text = format!("node {} is there already", caller.hello.rank);
            let _ = write(&mut caller.stream, &Message::Over { code: 2, text }).await;
        }
    });
    for epoch in 0.. {
        let Some(cause) = start(&mut nodes, &mut news, epoch, port(), plan).await else {
            return nodes.over(0, String::new()).await;
        };
        if !cause.again || epoch == plan.max_restarts {
            return nodes.over(cause.code, cause.text).await;
        }
        printer.say(&format!("{}; starting again ({} of {})", cause.text, epoch + 1, plan.max_restarts));
    }
}

/// Runs one start of the world; `None` if all went well.
async fn start(
    nodes: &mut Nodes,
    news: &mut mpsc::UnboundedReceiver<News>,
    epoch: u32,
    port: u16,
    plan: Plan,
) -> Option<Cause> {
    let world = nodes.all.values().map(|(ranks, _)| ranks).sum();
    let mut first = 0;
    for (ranks, line) in nodes.all.values() {
        line.say(&Message::Start { epoch, world, first, port }).await;
        first += *ranks;
    }
    let mut open: BTreeSet<u32> = nodes.all.keys().copied().collect();
    let mut cause: Option<Cause> = None;
    let mut due = None;
    while !open.is_empty() {
        let next = match due {
            Some(due) => timeout_at(due, news.recv()).await.unwrap_or(None),
            None => news.recv().await,
        };
        // `None` means that the time is over, or that no node is left.
        let Some((node, message)) = next else { break };
        let found = match message {
            Ok(Message::Done { epoch: of } | Message::Stopped { epoch: of }) if of == epoch => {
                open.remove(&node);
                continue;
            }
            Ok(Message::Failed { epoch: of, rank, end, text }) if of == epoch => failed(rank, end, &text),
            Ok(Message::Unable { epoch: of, code, text }) if of == epoch => {
                let text = if plan.nodes > 1 { format!("node {node}: {text}") } else { text };
                Cause { code, text, again: false }
            }
            Ok(Message::Interrupted { epoch: of, signal }) if of == epoch => {
                let text = format!("stopped by signal {signal}");
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
            for (_, line) in nodes.all.values() {
                line.say(&Message::Stop { epoch }).await;
            }
            due = Some(Instant::now() + plan.grace + MARGIN);
            cause = Some(found);
        } else if !found.again {
            // The first failure is reported, but a lost node or a signal from the user prevents a restart.
            cause = cause.map(|first| Cause { again: false, ..first });
        }
    }
    cause
}

fn failed(rank: u32, end: End, said: &str) -> Cause {
    let said = said.strip_prefix("error: ").unwrap_or(said);
    let said = if said.is_empty() { String::new() } else { format!(": {said}") };
    Cause {
        code: end.code(),
        text: format!("rank {rank} failed first, {end}{said}"),
        again: end.may_differ(),
    }
}

impl Nodes {
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
                format!("there is no place for another node {node}: nodes are 0 to {}", plan.nodes - 1);
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

    /// Waits until there is no such node, and forgets those that go meanwhile.
    async fn until_gone(&mut self, node: u32, news: &mut mpsc::UnboundedReceiver<News>) {
        while self.all.contains_key(&node) {
            if let Some((gone, Err(_))) = news.recv().await {
                self.all.remove(&gone);
            }
        }
    }

    /// Tells all; this node's own agent last, which ends the process.
    async fn over(self, code: u8, text: String) {
        for (_, line) in self.all.values().rev() {
            line.say(&Message::Over { code, text: text.clone() }).await;
        }
    }
}
