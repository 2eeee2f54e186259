//! The agent of one node: it starts this node's ranks when the coordinator says so, and tells what becomes of them.

use crate::coordinator::{Plan, coordinate};
use crate::end::End;
use crate::error::{Error, LaunchResult};
use crate::guard::Guard;
use crate::job::LaunchJob;
use crate::line::{Line, Lost};
use crate::messages::Message;
use crate::output::Printed;
use crate::output::{Output, Printer};
use crate::process::Ended;
use crate::process::Program;
use crate::processes::Processes;
use crate::signals::{News, Signals};
use crate::start::Start;
use crate::variables::variables;
use allfold_collectives::Rank;
use allfold_collectives::rendezvous::{self, Hello, PeerKind, RendezvousTimeouts, Server};
use allfold_collectives::tcp::AuthenticatedStream;
use rustix::process::{Signal, set_child_subreaper};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpSocket;
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;
use tokio::time::sleep;

/// How long the output of ranks is waited for after a signal.
const FAREWELL: Duration = Duration::from_secs(1);

/// Processes that end within this time are judged together: a rank killed by a signal is a cause, and ranks that returned with
/// an error may only have been told of it.
const TOGETHER: Duration = Duration::from_millis(30);

/// Launches, and waits for the end.
///
/// # Errors
/// The first failure of a rank, with what the launcher is to return for it; or that the launch itself is impossible.
pub fn run(job: LaunchJob) -> LaunchResult {
    // A single thread starts every process: a process dies when the thread that started it ends.
    let runtime = Builder::new_current_thread().enable_all().build().map_err(Error::run)?;
    // Files of outputs are written beside it: while they are slow, it goes on saying that it is alive.
    let pumps = Builder::new_multi_thread().worker_threads(1).build().map_err(Error::run)?;
    let outcome = runtime.block_on(node(job, pumps.handle().clone()));
    pumps.shutdown_background();
    outcome
}

async fn node(mut job: LaunchJob, pumps: Handle) -> LaunchResult {
    set_child_subreaper(Some(rustix::process::getpid())).map_err(Error::run)?;
    let mut guard = Guard::start().map_err(|error| Error::run(format!("cannot start the guard: {error}")))?;
    let printer = Printer::start(pumps).map_err(Error::run)?;
    let mut coordinator = None;
    let timeout = RendezvousTimeouts { rendezvous: job.timeout, ..RendezvousTimeouts::default() };
    let authenticator = rendezvous::authenticator(&job.security, timeout).map_err(Error::run)?;
    if job.node == 0 {
        let address =
            rendezvous::address_for(&job.rendezvous_address, job.nodes > 1).map_err(|why| at(&job, &why))?;
        job.security.allows(address).map_err(Error::usage)?;
        let server = Server::bind(address).map_err(|why| at(&job, &why))?;
        let held = server.address().map_err(|why| at(&job, &why))?;
        job.rendezvous_address.port = held.port();
        if let Some(warning) = job.security.warning(held.port()) {
            printer.say(&warning);
        }
        let (send, callers) = mpsc::channel(16);
        tokio::spawn(server.serve(authenticator.clone(), timeout, Some(send)));
        let plan = Plan {
            nodes: job.nodes,
            // An elastic job's restarts have been used up before the agent reports a failure.
            max_restarts: if job.elastic { 0 } else { job.max_restarts },
            timeout: job.timeout,
            grace: job.grace,
        };
        let mut reserved = Reserved { near: held, socket: None };
        let task = coordinate(plan, callers, move || reserved.another(), printer.clone());
        coordinator = Some(tokio::spawn(task));
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
    let stream = rendezvous::call(&job.rendezvous_address, hello, &authenticator, timeout)
        .await
        .map_err(|why| at(&job, &why))?;
    let output = Output { folder: job.log_dir.clone(), printer };
    let (send, news) = mpsc::unbounded_channel();
    let line = Line::open(stream, move |said| send.send(said).is_ok());
    let mut agent = Agent { job, output, line, news };
    // The agent ends by itself once it has reported that all ranks are done.
    let broken = async {
        if let Some(task) = coordinator
            && let Err(error) = task.await
        {
            return error;
        }
        std::future::pending().await
    };
    let outcome = tokio::select! {
        outcome = agent.obey(&mut guard) => outcome,
        error = broken => Err(Error::run(format!("the launcher has failed: {error}"))),
    };
    guard.dismiss().await;
    outcome
}

fn at(job: &LaunchJob, why: &rendezvous::RendezvousFailure) -> Error {
    let line = format!("rendezvous at {}: {why}", job.rendezvous_address);
    if why.is_lasting() { Error::usage(line) } else { Error::run(line) }
}

/// A port at which programs of other libraries meet. It is held without listening, so that the system assigns it to no other
/// program and a program of the job may still listen there.
struct Reserved {
    near: SocketAddr,
    socket: Option<TcpSocket>,
}

impl Reserved {
    /// Another one, for the next start. 0 where the system has none.
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
}

impl Agent {
    /// The coordinator's next message.
    async fn hear(&mut self) -> LaunchResult<Message> {
        let said = self.news.recv().await.unwrap_or(Err(Lost::Gone));
        said.map_err(|lost| Error::run(format!("node 0 is lost: {lost}")))
    }

    /// Does what the coordinator says until it says that all is over.
    async fn obey(&mut self, guard: &mut Guard) -> LaunchResult {
        let mut signals = Signals::new().map_err(Error::run)?;
        loop {
            tokio::select! {
                message = self.hear() => match message? {
                    Message::Start { epoch, world, first, port } => {
                        self.start(Start { epoch, world, first, port }, guard, &mut signals).await?;
                    }
                    Message::Over { code: 0, .. } => return Ok(()),
                    Message::Over { code, text } => return Err(Error::Rank { text, code }),
                    _ => {}
                },
                signal = signals.end() => {
                    let text = format!("stopped by signal {}", signal.as_raw());
                    return Err(Error::Rank { text, code: End::Signal(signal.as_raw()).code() });
                }
            }
        }
    }

    /// Runs one start of the world, until none of this node's ranks runs any more.
    async fn start(&mut self, start: Start, guard: &mut Guard, signals: &mut Signals) -> LaunchResult {
        let epoch = start.epoch;
        let mut ranks = Processes::new();
        let launched = self.launch(&mut ranks, 0..self.job.ranks, start, guard).await;
        let mut said = launched.err().map(|unable| unable.of(epoch));
        let mut again = 0;
        let mut with = Signal::TERM;
        while ranks.is_running() && said.is_none() {
            tokio::select! {
                ended = ranks.ended() => {
                    if !ended.end.is_good() {
                        said = self.failed(ended, &mut ranks, start, &mut again, guard).await;
                    }
                }
                message = self.hear() => match message {
                    Ok(Message::Stop { epoch: of }) if of == epoch => break,
                    Ok(_) => {}
                    Err(lost) => {
                        ranks.stop(Signal::TERM, self.job.grace, guard).await;
                        return Err(lost);
                    }
                },
                news = signals.next() => match news {
                    News::Passed(signal) => ranks.signal(signal),
                    News::End(signal) => {
                        with = signal;
                        said = Some(Message::Interrupted { epoch, signal: signal.as_raw() });
                    }
                },
            }
        }
        let done = said.is_none() && !ranks.is_running();
        if let Some(said) = &said {
            self.line.say(said).await;
        }
        let interrupted = matches!(said, Some(Message::Interrupted { .. }));
        self.end(ranks, with, Stopping { epoch, interrupted }, guard, signals).await;
        let end = if done { Message::Done { epoch } } else { Message::Stopped { epoch } };
        self.line.say(&end).await;
        Ok(())
    }

    /// The message about a rank that failed; none if the rank was started again, `again` times so far.
    async fn failed(
        &mut self,
        ended: Ended,
        ranks: &mut Processes,
        start: Start,
        again: &mut u32,
        guard: &mut Guard,
    ) -> Option<Message> {
        let together = ranks.soon(TOGETHER).await;
        let bad = |ended: &&Ended| !ended.end.is_good();
        let failed: Vec<u32> =
            [&ended].into_iter().chain(&together).filter(bad).map(|ended| ended.local).collect();
        let cause = cause(ended, together);
        let rank = start.rank(cause.local).rank;
        if self.job.elastic && *again < self.job.max_restarts && cause.end.may_differ() {
            *again += 1;
            self.output.printer.say(&format!(
                "rank {rank} failed, {}; starting it again ({again} of {})",
                cause.end, self.job.max_restarts
            ));
            let later = Start { epoch: start.epoch + *again, ..start };
            let launched = self.launch(ranks, failed, later, guard).await;
            return launched.err().map(|unable| unable.of(start.epoch));
        }
        let end = cause.end;
        Some(Message::Failed { epoch: start.epoch, rank, end, text: cause.last_words().await })
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
                let epoch = stopping.epoch;
                self.line.say(&Message::Interrupted { epoch, signal: signal.as_raw() }).await;
                ranks.stop(Signal::KILL, Duration::ZERO, guard).await;
            }
            () = ranks.stop(with, self.job.grace, guard) => {}
        }
        // A slow reader of the ranks' output does not delay the end once a signal has asked for it.
        tokio::select! {
            () = ranks.heard(&self.output.printer) => {}
            _ = signals.end() => {}
            () = sleep(FAREWELL), if stopping.interrupted => {}
        }
    }

    /// Starts some of this node's ranks, by their numbers here.
    async fn launch(
        &self,
        ranks: &mut Processes,
        which: impl IntoIterator<Item = u32>,
        start: Start,
        guard: &mut Guard,
    ) -> Result<(), Unable> {
        let unwritable = |error| Unable {
            code: 2,
            text: format!("--log-dir cannot be written: {error}; name a folder that can"),
        };
        if start.epoch == 0 {
            self.output.clear().map_err(unwritable)?;
        }
        let folder = self.output.folder(start.epoch).map_err(unwritable)?;
        let flight = folder.as_ref().map(|folder| folder.display().to_string());
        for at in which.into_iter().map(|local| start.rank(local)) {
            let variables = variables(&self.job, start, at, flight.as_deref());
            let program = Program { command: &self.job.command, variables: &variables };
            let output = Printed { folder: folder.as_deref(), printer: &self.output.printer };
            ranks.start(&program, at, output, guard).await.map_err(|error| Unable {
                code: 1,
                text: format!("cannot start rank {}: {error}", at.rank),
            })?;
        }
        Ok(())
    }
}

/// Why a rank could not be started, and the code to return for it.
struct Unable {
    code: u8,
    text: String,
}

impl Unable {
    fn of(self, epoch: u32) -> Message {
        Message::Unable { epoch, code: self.code, text: self.text }
    }
}

/// An end of a start: which one, and whether a signal has asked for it.
struct Stopping {
    epoch: u32,
    interrupted: bool,
}

/// The cause among ends that came at the same time: a killed rank before one that returned, and among those the first.
fn cause(first: Ended, others: Vec<Ended>) -> Ended {
    let killed = |ended: &Ended| matches!(ended.end, End::Signal(_));
    if killed(&first) {
        return first;
    }
    others.into_iter().find(killed).unwrap_or(first)
}
