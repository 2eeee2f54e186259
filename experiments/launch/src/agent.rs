//! The agent of one node: it starts this node's ranks when the coordinator says so, and reports how they end.

use crate::caught::Passed;
use crate::coordinator::{Plan, coordinate};
use crate::end::{End, signal_name};
use crate::error::{Error, LaunchResult};
use crate::guard::Guard;
use crate::job::LaunchJob;
use crate::limits;
use crate::line::{Line, Lost};
use crate::messages::Message;
use crate::output::Printed;
use crate::output::{Output, Printer};
use crate::process::Ended;
use crate::process::Program;
use crate::processes::Processes;
use crate::program;
use crate::said::WAS_ASKED;
use crate::signals::{News, Signals, asking};
use crate::start::Start;
use crate::system;
use crate::variables::variables;
use crate::waiting::Waiting;
use allfold_collectives::Rank;
use allfold_collectives::rendezvous::{self, Hello, Launching, PeerKind, RendezvousTimeouts, Server};
use allfold_collectives::tcp::{AuthenticatedStream, Authenticator};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpSocket;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// How long the agent waits until ranks' output is printed after a signal, and its line about flight records after a failure.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);

/// How often the launcher looks for flight records of ranks without progress.
const LOOK: Duration = Duration::from_secs(1);

/// Processes that end within this time are considered together: a rank that a signal killed is the cause, and ranks that returned
/// an error may have failed only because they lost that rank.
const TOGETHER: Duration = Duration::from_millis(30);

/// How long the launcher waits for a rank that writes a core dump. Such a rank crashed before the others failed over it, and only its end
/// tells the signal.
const DUMP: Duration = Duration::from_secs(60);

/// Starts this node's ranks and waits until the job is over. Ranks' standard output is printed to `stdout`.
///
/// # Errors
/// The job failed, by a rank, a node or a signal, with the launcher's exit code for it; or the launch itself is impossible.
pub fn run(job: LaunchJob, stdout: Box<dyn Write + Send>) -> LaunchResult {
    limits::check(&job)?;
    // A single thread starts every process: a process dies when the thread that started it ends.
    let runtime = Builder::new_current_thread().enable_all().build().map_err(Error::run)?;
    // Output files are written by another thread, so that the agent sends its beats even while the files are slow.
    let pumps = Builder::new_multi_thread().worker_threads(1).build().map_err(Error::run)?;
    let outcome = runtime.block_on(node(job, stdout, pumps.handle().clone()));
    pumps.shutdown_background();
    outcome
}

async fn node(mut job: LaunchJob, stdout: Box<dyn Write + Send>, pumps: Handle) -> LaunchResult {
    system::adopt_orphans().map_err(Error::run)?;
    let mut guard = Guard::start().map_err(|error| Error::run(format!("cannot start the guard: {error}")))?;
    let printer = Printer::start(pumps, stdout).map_err(Error::run)?;
    let mut coordinator = None;
    let timeouts = RendezvousTimeouts { rendezvous: job.timeout, ..RendezvousTimeouts::default() };
    let authenticator = rendezvous::authenticator(&job.security, timeouts).map_err(Error::run)?;
    if job.node == 0 {
        coordinator = Some(serve(&mut job, timeouts, &authenticator, &printer)?);
    }
    let hello = Hello {
        kind: PeerKind::Agent,
        epoch: 0,
        rank: Rank(job.node),
        size: job.nodes,
        port: job.ranks,
        configuration: 0,
        job: 0,
        host: [0; 16],
    };
    let call = rendezvous::call(&job.rendezvous_address, hello, &authenticator, timeouts);
    let node_0 = format!("node 0 at {}", job.rendezvous_address);
    let stream = Waiting::new(printer.clone()).during(call, &node_0).await.map_err(|why| at(&job, &why))?;
    let output = Output { folder: job.log_dir.clone(), tee: job.tee, printer };
    let (send, news) = mpsc::unbounded_channel();
    let line = Line::open(stream, move |said| send.send(said).is_ok());
    let mut agent = Agent { job, output, line, news, incomplete: false };
    // A coordinator that ends normally has sent the agent `Over`, and the agent ends by itself. Only a panic of the coordinator
    // ends the job here.
    let broken = async {
        if let Some(task) = coordinator
            && let Err(error) = task.await
        {
            return error;
        }
        std::future::pending().await
    };
    let outcome = tokio::select! {
        outcome = agent.handle_messages(&mut guard) => outcome,
        error = broken => Err(Error::run(format!("the launcher has failed: {error}"))),
    };
    guard.dismiss().await;
    outcome.and_then(|()| agent.output.printer.lost().map_or(Ok(()), Err))
}

/// Serves the rendezvous on node 0, and coordinates the launchers of all nodes.
fn serve(
    job: &mut LaunchJob,
    timeouts: RendezvousTimeouts,
    authenticator: &Authenticator,
    printer: &Printer,
) -> LaunchResult<JoinHandle<()>> {
    let address =
        rendezvous::address_for(&job.rendezvous_address, job.nodes > 1).map_err(|why| at(job, &why))?;
    job.security.allows(address).map_err(Error::usage)?;
    let server = Server::bind(address).map_err(|why| at(job, &why))?;
    let says = printer.clone();
    let server = server.saying(move |line| {
        if tracing::enabled!(tracing::Level::INFO) {
            says.say(line);
        }
    });
    let held = server.address().map_err(|why| at(job, &why))?;
    job.rendezvous_address.port = held.port();
    if let Some(warning) = job.security.warning(held.port()) {
        printer.say(&warning);
    }
    let (send, callers) = mpsc::channel(16);
    let (exits, exited) = watch::channel(BTreeSet::new());
    let launching = Launching { callers: send, exited };
    tokio::spawn(server.serve(authenticator.clone(), timeouts, Some(launching)));
    let plan = Plan {
        nodes: job.nodes,
        max_restarts: job.max_restarts,
        elastic: job.elastic,
        timeout: job.timeout,
        grace: job.grace,
    };
    let mut reserved = Reserved { near: held, socket: None };
    let task = coordinate(plan, callers, exits, move || reserved.another(), printer.clone());
    Ok(tokio::spawn(task))
}

fn at(job: &LaunchJob, why: &rendezvous::RendezvousFailure) -> Error {
    let line = format!("rendezvous at {}: {why}", job.rendezvous_address);
    if why.is_lasting() { Error::usage(line) } else { Error::run(line) }
}

/// The port for `MASTER_PORT`, the rendezvous of other libraries (PyTorch). It is bound without listening, so that the
/// system assigns it to no other program and a program of the job may still listen there.
struct Reserved {
    near: SocketAddr,
    socket: Option<TcpSocket>,
}

impl Reserved {
    /// Another port, for the next start; 0 if the system has none.
    fn another(&mut self) -> u16 {
        self.socket = self.bind().ok();
        let address = self.socket.as_ref().and_then(|socket| socket.local_addr().ok());
        address.map_or(0, |address| address.port())
    }

    fn bind(&self) -> std::io::Result<TcpSocket> {
        let socket = if self.near.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::new(self.near.ip(), 0))?;
        Ok(socket)
    }
}

struct Agent {
    job: LaunchJob,
    output: Output,
    line: Line<AuthenticatedStream>,
    news: mpsc::UnboundedReceiver<Result<Message, Lost>>,
    /// Whether a rank of this start, on any node, has exited with 0: the world cannot be complete again before another start.
    incomplete: bool,
}

impl Agent {
    /// Receives the coordinator's next message.
    async fn receive(&mut self) -> LaunchResult<Message> {
        let said = self.news.recv().await.unwrap_or(Err(Lost::Gone));
        said.map_err(|lost| Error::run(format!("node 0 is lost: {lost}")))
    }

    /// Carries out the coordinator's messages until the message that the job is over.
    async fn handle_messages(&mut self, guard: &mut Guard) -> LaunchResult {
        let mut signals = Signals::new().map_err(Error::run)?;
        // On node 0 the coordinator says which nodes it waits for.
        let mut waiting = (self.job.node > 0).then(|| Waiting::new(self.output.printer.clone()));
        loop {
            let line = async {
                match &mut waiting {
                    Some(waiting) => waiting.line(|| "the other nodes to join".into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = line => {}
                message = self.receive() => match message? {
                    Message::Start { epoch, world, first, port } => {
                        waiting = None;
                        self.start(Start { epoch, world, first, port }, guard, &mut signals).await?;
                    }
                    Message::Over { code: 0, .. } => return Ok(()),
                    Message::Over { code, text } => {
                        self.point_to_records().await;
                        return Err(Error::Rank { text, code });
                    }
                    _ => {}
                },
                signal = signals.end() => {
                    let text = format!("stopped by {}", signal_name(signal));
                    return Err(Error::Rank { text, code: End::Signal(signal).code() });
                }
            }
        }
    }

    /// Prints the command that reads the flight records, if ranks have left some.
    async fn point_to_records(&self) {
        let Some(folder) = self.output.folder.as_ref().filter(|_| self.output.has_records()) else { return };
        self.output.printer.say(&format!("what each rank was in: allfold triage {}", folder.display()));
        // The error is printed next, by another way, and must not overtake this line. The wait is bounded because the reader of
        // standard error may be slow.
        let _ = timeout(OUTPUT_TIMEOUT, self.output.printer.written()).await;
    }

    /// The launcher's line after a signal that requests the flight records of a start.
    fn records_requested(&self, epoch: u32, passed: &Passed) -> String {
        let Some(folder) = &self.output.folder else {
            return format!(
                "{passed}; ranks of allfold write their flight records on SIGUSR2 with --log-dir only"
            );
        };
        let (start, folder) = (folder.join(format!("start-{epoch}")), folder.display());
        let triage = format!("in {}: allfold triage {folder}", start.display());
        match (passed.got.is_empty(), passed.missed.is_empty()) {
            (true, _) => format!("{passed}, so that no rank writes its flight record"),
            (_, true) => format!("asked every rank for its flight record, {triage}"),
            _ => format!("{passed}; the other ranks write their flight records, {triage}"),
        }
    }

    /// Passes a signal to the ranks, and says which ranks did not get it.
    fn pass(&self, signal: Signal, ranks: &Processes, start: Start) {
        let (got, missed): (Vec<_>, Vec<_>) = ranks.pass(signal).into_iter().partition(|(_, got)| *got);
        let world = |all: Vec<(u32, bool)>| {
            all.into_iter().map(|(local, _)| Rank(start.rank(local).rank)).collect::<Vec<_>>()
        };
        let passed = Passed { signal, got: world(got), missed: world(missed) };
        tracing::debug!("{passed}");
        if signal == Signal::USR2 {
            self.output.printer.say(&self.records_requested(start.epoch, &passed));
        } else if !passed.missed.is_empty() {
            self.output.printer.say(&passed.to_string());
        }
    }

    /// Runs one start of the world, until none of this node's ranks runs any more.
    async fn start(&mut self, start: Start, guard: &mut Guard, signals: &mut Signals) -> LaunchResult {
        let epoch = start.epoch;
        self.incomplete = false;
        let mut ranks = Processes::new();
        let launched = self.launch(&mut ranks, 0..self.job.ranks, start, guard, signals).await;
        let mut said = launched.err().map(|halt| halt.of(epoch));
        let mut again = 0;
        let mut told = self.job.stalled.is_none();
        while ranks.is_running() && said.is_none() {
            tokio::select! {
                ended = ranks.ended() => {
                    if ended.end.is_good() {
                        let (rank, after) = (start.rank(ended.local).rank, ended.after);
                        self.incomplete = true;
                        self.line.say(&Message::Exited { epoch, rank, after }).await;
                    } else {
                        said = self.failed(ended, &mut ranks, start, &mut again, (guard, signals)).await;
                    }
                }
                message = self.receive() => match message {
                    Ok(Message::Stop { epoch: of }) if of == epoch => break,
                    Ok(Message::Lost { epoch: of, rank }) if self.job.elastic => {
                        start.local(rank).into_iter().for_each(|local| ranks.lose(local, of));
                    }
                    Ok(Message::Exited { epoch: of, .. }) if of == epoch => self.incomplete = true,
                    Ok(_) => {}
                    Err(lost) => {
                        ranks.stop(Signal::TERM, self.job.grace, guard).await;
                        return Err(lost);
                    }
                },
                () = sleep(LOOK), if !told => told = self.output.told_of_stall(epoch, self.job.stalled),
                news = signals.next() => match news {
                    News::Passed(signal) => self.pass(signal, &ranks, start),
                    News::End(signal) => {
                        said = Some(Message::Interrupted { epoch, signal });
                    }
                    News::ChildEnded => ranks.reap_orphans(guard.id()),
                },
            }
        }
        let done = said.is_none() && !ranks.is_running();
        if let Some(said) = &said {
            self.line.say(said).await;
        }
        let (with, interrupted) = match said {
            Some(Message::Interrupted { signal, .. }) => {
                if let Some(local) = ranks.stopped() {
                    let rank = start.rank(local).rank;
                    self.output
                        .printer
                        .say(&format!("rank {rank} is stopped by a signal such as SIGSTOP: it is killed"));
                }
                (asking(signal), true)
            }
            _ => (Signal::TERM, false),
        };
        self.end(ranks, with, Stopping { start, interrupted }, guard, signals).await;
        let end = if done { Message::Done { epoch } } else { Message::Stopped { epoch } };
        self.line.say(&end).await;
        Ok(())
    }

    /// Handles a rank that failed. Returns the message for the coordinator; `None` if an elastic job has started the rank again.
    /// `again` counts these restarts.
    async fn failed(
        &mut self,
        ended: Ended,
        ranks: &mut Processes,
        start: Start,
        again: &mut u32,
        (guard, signals): (&mut Guard, &mut Signals),
    ) -> Option<Message> {
        // Stopped ranks are determined now, because the launcher's own signals change their state later.
        let stopped = ranks.stopped().map(|local| start.rank(local).rank);
        let together = ranks.soon(TOGETHER, DUMP).await;
        let bad = |ended: &&Ended| !ended.end.is_good();
        let failed: Vec<u32> =
            [&ended].into_iter().chain(&together).filter(bad).map(|ended| ended.local).collect();
        let cause = cause(ended, together);
        let rank = start.rank(cause.local).rank;
        let restarts = start.epoch + *again;
        let alone = self.job.elastic && !self.incomplete;
        if alone && restarts < self.job.max_restarts && cause.end.may_differ() {
            *again += 1;
            let how = cause.lost.map_or_else(|| cause.end.to_string(), |lost| lost.to_string());
            let mut all: Vec<Rank> = failed.iter().map(|local| Rank(start.rank(*local).rank)).collect();
            all.sort();
            let which = if all.len() == 1 { "it".into() } else { Rank::list(&all) };
            self.output.printer.say(&format!(
                "rank {rank} failed, {how}; starting {which} again ({} of {})",
                restarts + 1,
                self.job.max_restarts
            ));
            let later = Start { epoch: restarts + 1, ..start };
            self.line.say(&Message::Lost { epoch: later.epoch, rank }).await;
            let launched = self.launch(ranks, failed, later, guard, signals).await;
            return launched.err().map(|halt| halt.of(start.epoch));
        }
        let (end, lost) = (cause.end, cause.lost);
        let text = match lost {
            Some(lost) => lost.to_string(),
            None => match cause.explanation().await {
                // A rank that a signal ends from outside has no cause of its own, but may say which rank got the signal.
                text if end.is_from_outside() && !text.contains(WAS_ASKED) => String::new(),
                text => text,
            },
        };
        // A stopped rank is blamed only for a rank that exited by itself: a rank that was killed is itself the cause.
        let stopped = stopped.filter(|_| matches!(end, End::Code(_)));
        Some(Message::Failed { epoch: start.epoch, rank, end, stopped, text })
    }

    /// Ends the ranks that still run, and waits until their output is printed.
    async fn end(
        &mut self,
        mut ranks: Processes,
        with: Signal,
        mut stopping: Stopping,
        guard: &mut Guard,
        signals: &mut Signals,
    ) {
        // A second signal kills the job. A signal that arrives while a failure ends the job prevents a restart.
        tokio::select! {
            biased;
            signal = signals.end() => {
                stopping.interrupted = true;
                let epoch = stopping.start.epoch;
                self.line.say(&Message::Interrupted { epoch, signal }).await;
                ranks.stop(Signal::KILL, Duration::ZERO, guard).await;
            }
            late = ranks.stop(with, self.job.grace, guard) => self.name_killed(&late, with, stopping.start),
        }
        // Once a signal has requested the end, a slow reader of the ranks' output delays it by `OUTPUT_TIMEOUT` at most.
        tokio::select! {
            () = ranks.output_printed(&self.output.printer) => {}
            _ = signals.end() => {}
            () = sleep(OUTPUT_TIMEOUT), if stopping.interrupted => {}
        }
    }

    /// Says which ranks were killed because they still ran after the grace period.
    fn name_killed(&self, late: &[u32], with: Signal, start: Start) {
        let late: Vec<Rank> = late.iter().map(|local| Rank(start.rank(*local).rank)).collect();
        if !late.is_empty() {
            self.output.printer.say(&format!(
                "{} still ran {:?} after {}, and had to be killed; --grace SECONDS gives ranks more time",
                Rank::list(&late),
                self.job.grace,
                signal_name(with.as_raw())
            ));
        }
    }

    /// Starts the ranks with the numbers `which` on this node. Checks before each of them for a signal that ends the launcher.
    async fn launch(
        &self,
        ranks: &mut Processes,
        which: impl IntoIterator<Item = u32>,
        start: Start,
        guard: &mut Guard,
        signals: &mut Signals,
    ) -> Result<(), Halt> {
        let unwritable =
            |error| Halt::Unable(2, format!("--log-dir cannot be written: {error}; name a folder that can"));
        if let Some(program) = self.job.command.first() {
            let path = std::env::var_os("PATH");
            program::find(program, path.as_deref()).map_err(|(code, text)| Halt::Unable(code, text))?;
        }
        if start.epoch == 0 {
            self.output.clear().map_err(unwritable)?;
        }
        let folder = self.output.folder(start.epoch).map_err(unwritable)?;
        let flight = folder.as_ref().map(|folder| folder.display().to_string());
        if let (Some(folder), 0, 0, false) = (&flight, start.epoch, self.job.node, self.output.tee) {
            self.output
                .printer
                .say(&format!("the ranks write to {folder}/rank-N.out and rank-N.err; --tee prints it too"));
        }
        for at in which.into_iter().map(|local| start.rank(local)) {
            if let Some(signal) = signals.ended().await {
                return Err(Halt::Signal(signal));
            }
            let variables = variables(&self.job, start, at, flight.as_deref());
            let program = Program { command: &self.job.command, variables: &variables };
            let Output { tee, printer, .. } = &self.output;
            let output = Printed { folder: folder.as_deref(), tee: *tee, printer };
            let started = ranks.start(&program, (at, start.epoch), output, guard).await;
            started.map_err(|error| Halt::Unable(1, format!("cannot start rank {}: {error}", at.rank)))?;
        }
        Ok(())
    }
}

/// Why not all ranks were started.
enum Halt {
    /// A rank cannot be started: the exit code, and the cause.
    Unable(u8, String),
    /// A signal of this number ends the launcher.
    Signal(i32),
}

impl Halt {
    fn of(self, epoch: u32) -> Message {
        match self {
            Halt::Unable(code, text) => Message::Unable { epoch, code, text },
            Halt::Signal(signal) => Message::Interrupted { epoch, signal },
        }
    }
}

/// The end of a start's ranks: the start, and whether a signal requested the end.
struct Stopping {
    start: Start,
    interrupted: bool,
}

/// The cause of a failure among ranks that ended at the same time: a killed rank before one that returned an error, and among
/// equals the first.
fn cause(first: Ended, others: Vec<Ended>) -> Ended {
    let killed = |ended: &Ended| matches!(ended.end, End::Signal(_));
    if killed(&first) {
        return first;
    }
    others.into_iter().find(killed).unwrap_or(first)
}
