//! The agent of one node: it starts this node's ranks when the coordinator says so, and tells what becomes of them.

use crate::coordinator::{Plan, coordinate};
use crate::end::End;
use crate::error::{Error, Outcome};
use crate::guard::Guard;
use crate::line::{Line, Lost};
use crate::messages::Message;
use crate::output::{Output, Printer};
use crate::process::Ended;
use crate::processes::Processes;
use allfold_collectives::Rank;
use allfold_collectives::environment::Meeting;
use allfold_collectives::rendezvous::{self, Hello, Kind, Patience, Server};
use allfold_collectives::tcp::{Secured, Security};
use rustix::process::{Signal, set_child_subreaper};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::task::Poll;
use std::time::Duration;
use tokio::net::TcpSocket;
use tokio::runtime::{Builder, Handle};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep;

/// How long the output of ranks is waited for after a signal.
const FAREWELL: Duration = Duration::from_secs(1);

/// Ends that come this close together are looked at together: a rank that a signal killed is a cause, and those that
/// returned with an error may have been told of it.
const TOGETHER: Duration = Duration::from_millis(30);

/// What is to be launched, on this node.
#[derive(Clone, Debug)]
pub struct Job {
    /// Ranks of this node.
    pub ranks: u32,
    /// Nodes in all.
    pub nodes: u32,
    /// Which of them this one is.
    pub node: u32,
    /// Where launchers and ranks meet. Port 0, on one node: any.
    pub meeting: Meeting,
    /// How often to start again after a failure.
    pub max_restarts: u32,
    /// Whether only the ranks that failed are started again, and the others wait for them.
    pub elastic: bool,
    /// How long ranks may take to end when they are asked to.
    pub grace: Duration,
    /// How long nodes and ranks wait for each other.
    pub patience: Duration,
    /// Who may join.
    pub security: Security,
    /// A folder for the output of ranks and their flight records; none: the output is the launcher's, line by line.
    pub log_dir: Option<PathBuf>,
    /// What each rank runs.
    pub command: Vec<OsString>,
}

/// Launches, and waits for the end.
///
/// # Errors
/// The first failure of a rank, with what the launcher is to return for it; or that the launch itself is impossible.
pub fn run(job: Job) -> Outcome {
    // One thread: it starts every process, and those die when the thread that started them ends.
    let runtime = Builder::new_current_thread().enable_all().build().map_err(Error::run)?;
    // Files of outputs are written beside it: while they are slow, it goes on saying that it is alive.
    let pumps = Builder::new_multi_thread().worker_threads(1).build().map_err(Error::run)?;
    let outcome = runtime.block_on(node(job, pumps.handle().clone()));
    pumps.shutdown_background();
    outcome
}

async fn node(mut job: Job, pumps: Handle) -> Outcome {
    set_child_subreaper(Some(rustix::process::getpid())).map_err(Error::run)?;
    let mut guard = Guard::start().map_err(|error| Error::run(format!("cannot start the guard: {error}")))?;
    let printer = Printer::start(pumps).map_err(Error::run)?;
    let mut coordinator = None;
    let patience = Patience { rendezvous: job.patience, ..Patience::default() };
    let door = rendezvous::door(&job.security, patience).map_err(Error::run)?;
    if job.node == 0 {
        let address = rendezvous::address_for(&job.meeting, job.nodes > 1).map_err(|why| at(&job, &why))?;
        job.security.allows(address).map_err(Error::usage)?;
        let server = Server::bind(address).map_err(|why| at(&job, &why))?;
        let held = server.address().map_err(|why| at(&job, &why))?;
        job.meeting.port = held.port();
        if let Some(warning) = job.security.warning(held.port()) {
            printer.say(&warning);
        }
        let (send, callers) = mpsc::channel(16);
        tokio::spawn(server.serve(door.clone(), patience, Some(send)));
        let plan = Plan {
            nodes: job.nodes,
            // Of an elastic job the agent has used them up before it tells of a failure.
            max_restarts: if job.elastic { 0 } else { job.max_restarts },
            patience: job.patience,
            grace: job.grace,
        };
        let mut reserved = Reserved { near: held, socket: None };
        let task = coordinate(plan, callers, move || reserved.another(), printer.clone());
        coordinator = Some(tokio::spawn(task));
    }
    let hello = Hello {
        kind: Kind::Agent,
        epoch: 0,
        rank: Rank(job.node),
        size: job.nodes,
        port: job.ranks,
        configuration: 0,
        job: 0,
        host: [0; 16],
    };
    let stream =
        rendezvous::call(&job.meeting, hello, &door, patience).await.map_err(|why| at(&job, &why))?;
    let output = Output { folder: job.log_dir.clone(), printer };
    let (send, news) = mpsc::unbounded_channel();
    let line = Line::open(stream, move |said| send.send(said).is_ok());
    let mut agent = Agent { job, output, line, news };
    // It ends by itself once it has said that all is over.
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

fn at(job: &Job, why: &rendezvous::Failure) -> Error {
    let line = format!("rendezvous at {}: {why}", job.meeting);
    if why.is_lasting() { Error::usage(line) } else { Error::run(line) }
}

/// A port for programs of other libraries to meet at: held without listening, so that nobody else is given it and a
/// program of the job may still listen there.
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
    job: Job,
    output: Output,
    line: Line<Secured>,
    news: mpsc::UnboundedReceiver<Result<Message, Lost>>,
}

impl Agent {
    /// What the coordinator says next.
    async fn hear(&mut self) -> Outcome<Message> {
        let said = self.news.recv().await.unwrap_or(Err(Lost::Gone));
        said.map_err(|lost| Error::run(format!("node 0 is lost: {lost}")))
    }

    /// Does what the coordinator says until it says that all is over.
    async fn obey(&mut self, guard: &mut Guard) -> Outcome {
        let mut signals = Signals::new().map_err(Error::run)?;
        loop {
            tokio::select! {
                message = self.hear() => match message? {
                    Message::Start { epoch, world, first, port } => {
                        self.start(epoch, (world, first), port, guard, &mut signals).await?;
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

    /// One start of the world, until none of this node's ranks runs any more.
    async fn start(
        &mut self,
        epoch: u32,
        (world, first): (u32, u32),
        port: u16,
        guard: &mut Guard,
        signals: &mut Signals,
    ) -> Outcome {
        let mut ranks = Processes::new();
        let unable = |(code, text)| Message::Unable { epoch, code, text };
        let launched = self.launch(&mut ranks, 0..self.job.ranks, epoch, (world, first), port, guard);
        let mut said = launched.await.err().map(unable);
        let mut again = 0;
        let mut with = Signal::TERM;
        while ranks.is_running() && said.is_none() {
            tokio::select! {
                ended = ranks.ended() => {
                    if !ended.end.is_good() {
                        let together = ranks.soon(TOGETHER).await;
                        let bad = |ended: &&Ended| !ended.end.is_good();
                        let failed: Vec<u32> = [&ended].into_iter().chain(&together).filter(bad)
                            .map(|ended| ended.local as u32).collect();
                        let cause = cause(ended, together);
                        let rank = first + cause.local as u32;
                        if self.job.elastic && again < self.job.max_restarts && cause.end.may_differ() {
                            again += 1;
                            self.output.printer.say(&format!(
                                "rank {rank} failed, {}; starting it again ({again} of {})",
                                cause.end, self.job.max_restarts
                            ));
                            let place = (world, first);
                            let launched = self.launch(&mut ranks, failed, epoch + again, place, port, guard);
                            said = launched.await.err().map(unable);
                            continue;
                        }
                        let end = cause.end;
                        said = Some(Message::Failed { epoch, rank, end, text: cause.last_words().await });
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
        let mut interrupted = matches!(said, Some(Message::Interrupted { .. }));
        // A second signal makes an end of it, and one that comes while a failure ends the others lets nothing start again.
        tokio::select! {
            biased;
            signal = signals.end() => {
                interrupted = true;
                self.line.say(&Message::Interrupted { epoch, signal: signal.as_raw() }).await;
                ranks.stop(Signal::KILL, Duration::ZERO, guard).await;
            }
            () = ranks.stop(with, self.job.grace, guard) => {}
        }
        // Who reads what they said may be slow; who has asked for the end does not wait for it.
        tokio::select! {
            () = ranks.heard(&self.output.printer) => {}
            _ = signals.end() => {}
            () = sleep(FAREWELL), if interrupted => {}
        }
        let end = if done { Message::Done { epoch } } else { Message::Stopped { epoch } };
        self.line.say(&end).await;
        Ok(())
    }
}

impl Agent {
    /// Starts some of this node's ranks, by their numbers here. An error: the code to return, and why.
    async fn launch(
        &self,
        ranks: &mut Processes,
        which: impl IntoIterator<Item = u32>,
        epoch: u32,
        (world, first): (u32, u32),
        port: u16,
        guard: &mut Guard,
    ) -> Result<(), (u8, String)> {
        let unwritable = |error| (2, format!("--log-dir cannot be written: {error}; name a folder that can"));
        if epoch == 0 {
            self.output.clear().map_err(unwritable)?;
        }
        let folder = self.output.folder(epoch).map_err(unwritable)?;
        let flight = folder.as_ref().map(|folder| folder.display().to_string());
        for local in which {
            let variables = variables(&self.job, epoch, (world, first, local), port, flight.as_deref());
            let place = (local as usize, first + local);
            ranks
                .start(&self.job.command, &variables, place, (folder.as_deref(), &self.output.printer), guard)
                .await
                .map_err(|error| (1, format!("cannot start rank {}: {error}", first + local)))?;
        }
        Ok(())
    }
}

/// Of ends that came at once: who was killed before who returned, and of those whoever came first.
fn cause(first: Ended, others: Vec<Ended>) -> Ended {
    let killed = |ended: &Ended| matches!(ended.end, End::Signal(_));
    if killed(&first) {
        return first;
    }
    others.into_iter().find(killed).unwrap_or(first)
}

/// What torchrun tells its ranks, and where ours meet.
fn variables(
    job: &Job,
    epoch: u32,
    (world, first, local): (u32, u32, u32),
    port: u16,
    flight: Option<&str>,
) -> Vec<(&'static str, String)> {
    let mut all = vec![
        ("RANK", (first + local).to_string()),
        ("WORLD_SIZE", world.to_string()),
        ("LOCAL_RANK", local.to_string()),
        ("LOCAL_WORLD_SIZE", job.ranks.to_string()),
        ("GROUP_RANK", job.node.to_string()),
        ("GROUP_WORLD_SIZE", job.nodes.to_string()),
        ("ROLE_NAME", "default".into()),
        ("ROLE_RANK", (first + local).to_string()),
        ("ROLE_WORLD_SIZE", world.to_string()),
        ("MASTER_ADDR", job.meeting.host.clone()),
        ("MASTER_PORT", port.to_string()),
        ("TORCHELASTIC_RESTART_COUNT", epoch.to_string()),
        ("TORCHELASTIC_MAX_RESTARTS", job.max_restarts.to_string()),
        ("TORCHELASTIC_RUN_ID", "allfold".into()),
        ("TORCHELASTIC_USE_AGENT_STORE", "False".into()),
        ("ALLFOLD_RENDEZVOUS", job.meeting.to_string()),
        ("ALLFOLD_RENDEZVOUS_TIMEOUT", job.patience.as_secs_f64().to_string()),
    ];
    all.extend(job.elastic.then(|| ("ALLFOLD_ELASTIC", "1".into())));
    all.extend(flight.map(|folder| ("ALLFOLD_FLIGHT_DIR", folder.to_string())));
    all
}

/// A signal that came.
enum News {
    /// It ends the launcher, and its ranks with it.
    End(Signal),
    /// It is for the ranks.
    Passed(Signal),
}

/// The signals that a launcher hears.
struct Signals {
    end: [(Signal, tokio::signal::unix::Signal); 4],
    passed: [(Signal, tokio::signal::unix::Signal); 2],
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            end: [
                (Signal::INT, signal(SignalKind::interrupt())?),
                (Signal::TERM, signal(SignalKind::terminate())?),
                (Signal::HUP, signal(SignalKind::hangup())?),
                (Signal::QUIT, signal(SignalKind::quit())?),
            ],
            passed: [
                (Signal::USR1, signal(SignalKind::user_defined1())?),
                (Signal::USR2, signal(SignalKind::user_defined2())?),
            ],
        })
    }

    async fn next(&mut self) -> News {
        tokio::select! {
            signal = first(&mut self.end) => News::End(signal),
            signal = first(&mut self.passed) => News::Passed(signal),
        }
    }

    /// The next one that ends the launcher.
    async fn end(&mut self) -> Signal {
        first(&mut self.end).await
    }
}

/// The first of these that comes.
async fn first(signals: &mut [(Signal, tokio::signal::unix::Signal)]) -> Signal {
    std::future::poll_fn(|context| {
        let mut come = signals
            .iter_mut()
            .filter_map(|(which, signal)| signal.poll_recv(context).is_ready().then_some(*which));
        come.next().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}
