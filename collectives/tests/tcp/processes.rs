//! Cases 1 to 6 and 18 with real processes, which are killed and stopped by signals.
//!
//! The test binary starts itself once per rank. A child prints its address, reads the addresses of all ranks from its standard input,
//! then runs its script and prints a line per step. A child with the script `meet` finds the others by a rendezvous.

use super::arena::{deadlines, listeners, peers, sum};
use allfold_collectives::tcp::{Deadlines, Host, PeerOptions};
use allfold_collectives::{Buffer, Communicator, Error, Rank, ReduceOp};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The suffix of a script whose messages are sent through memory of the host.
const BESIDE: &str = "_beside";

/// One rank as a process, and the lines that it prints.
pub struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Process {
    /// The next line that a child's script prints.
    pub fn line(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(600)).expect("a process hangs, or ended without a word")
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    fn signal(&self, name: &str) {
        let done = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a child with these words as its task, and these variables added to its environment.
pub fn child_of(words: &str, variables: &[(&str, &str)]) -> Process {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::child", "--nocapture"])
        .env("TCP_CHILD", words)
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // The test harness of the child prints lines as well.
            if let Some((_, said)) = line.split_once('>') {
                let _ = sender.send(said.to_string());
            }
        }
    });
    Process { child, stdin, lines }
}

/// Starts all ranks with one script.
fn start(ranks: u32, script: &str, operation: u64) -> Vec<Process> {
    let start = |rank| child_of(&format!("{rank} {script} {operation}"), &[]);
    let mut processes: Vec<Process> = (0..ranks).map(start).collect();
    let addresses: Vec<String> = processes.iter().map(Process::line).collect();
    processes.iter_mut().for_each(|process| process.tell(&addresses.join(" ")));
    processes
}

/// The task of a child. Without `TCP_CHILD` this test does nothing.
#[test]
fn child() {
    let Ok(words) = std::env::var("TCP_CHILD") else { return };
    let mut words = words.split(' ');
    let rank: u32 = words.next().unwrap().parse().unwrap();
    let script = words.next().unwrap();
    if script == "meet" {
        let met = Communicator::from_env().map(|comm| comm.size());
        return println!(">{}", met.map_or_else(|error| error.to_string(), |size| format!("met {size}")));
    }
    if script == "lengths" {
        super::strangers::announce_lengths();
        return println!(">done");
    }
    let operation = Duration::from_millis(words.next().unwrap().parse().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!(">{}", listener.local_addr().unwrap());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let addresses: Vec<SocketAddr> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let limits = Deadlines { operation, dead: Duration::from_secs(15), ..deadlines() };
    // With the suffix, messages are sent through memory, since all children are on this host; otherwise sockets carry every byte.
    let (script, host) = match script.strip_suffix(BESIDE) {
        Some(script) => (script, Host::here()),
        None => (script, None),
    };
    let limits = Deadlines { start: if script == "starved" { operation } else { limits.start }, ..limits };
    let peers = PeerOptions { host, ..peers(rank, listener, &addresses, limits) };
    let _taken = (script == "starved" && rank == 0).then(take_descriptors);
    let result = Communicator::over_tcp(peers).and_then(|mut comm| {
        println!(">connected");
        match script {
            "registered" => registered(&mut comm),
            _ => play(script, &comm),
        }
    });
    match result {
        Ok(()) => println!(">done"),
        Err(error) => println!(">{error}"),
    }
}

/// Takes all descriptors that this process may still have, except one.
fn take_descriptors() -> (Vec<File>, Communicator) {
    // A first rank opens what the process opens only once, in addition to connections, before the descriptors run out.
    let (mut listeners, addresses) = listeners(1);
    let alone = peers(0, listeners.remove(0), &addresses, deadlines());
    let alone = Communicator::over_tcp(alone).unwrap();
    let rlimit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..rlimit }).unwrap();
    let mut taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    // One descriptor is left for the rank's waker.
    taken.pop();
    (taken, alone)
}

fn play(script: &str, comm: &Communicator) -> Result<(), Error> {
    match script {
        // One operation, a printed line, then operations for ever.
        "for_ever" => {
            sum(comm, 1000)?;
            println!(">first");
            loop {
                sum(comm, 100_000)?;
            }
        }
        // Operations until rank 0 reads a line from its standard input.
        "until_told" => {
            let told = std::thread::spawn(|| std::io::stdin().read_line(&mut String::new()).is_ok());
            sum(comm, 1000)?;
            println!(">first");
            let mut over = [0];
            while over == [0] {
                sum(comm, 100_000)?;
                over = [u8::from(comm.rank().0 == 0 && told.is_finished())];
                comm.broadcast(&mut over, Rank(0))?;
            }
            Ok(())
        }
        // The highest rank calls nothing for a minute.
        "absent" => {
            if comm.rank().0 == comm.size() - 1 {
                std::thread::sleep(Duration::from_secs(60));
            }
            sum(comm, 1000)
        }
        // A group without rank 0 continues when the world has failed.
        "groups" => {
            let group = comm.split(Some(u32::from(comm.rank().0 > 0)), 0)?.expect("a colour");
            println!(">first");
            let world = loop {
                if let Err(error) = sum(comm, 100) {
                    break error;
                }
            };
            println!(">{world}");
            (0..10).try_for_each(|_| sum(&group, 5000))
        }
        other => panic!("no script {other}"),
    }
}

/// Sums registered buffers in place until an error. After the error no other process may write to this process's buffer.
fn registered(comm: &mut Communicator) -> Result<(), Error> {
    assert!(comm.share_memory()?, "these processes share no memory");
    let mut buffer: Buffer<i64> = comm.buffer(1_000_000);
    assert!(buffer.is_shared());
    let mut done = 0;
    let error = loop {
        buffer.fill(i64::from(comm.rank().0) + done);
        if let Err(error) = comm.all_reduce(&mut buffer, ReduceOp::Sum) {
            break error;
        }
        let n = i64::from(comm.size());
        assert!(buffer.iter().all(|sum| *sum == n * (n - 1) / 2 + n * done), "a wrong sum");
        if done == 0 {
            println!(">first");
        }
        done += 1;
    };
    buffer.fill(-7);
    println!(">{error}");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    assert!(buffer.iter().all(|kept| *kept == -7), "another process wrote to a buffer after its call");
    Ok(())
}

fn all_say(processes: &[Process], what: &str) {
    for process in processes {
        assert_eq!(process.line(), what);
    }
}

#[test]
fn case_1_a_process_killed_before_the_first_collective() {
    let mut processes = start(4, "absent", 30_000);
    all_say(&processes, "connected");
    std::thread::sleep(Duration::from_millis(100));
    let last = processes.pop().unwrap();
    last.signal("-KILL");
    for process in &processes {
        let line = process.line();
        // Found by its deadline only, it would be named by another error.
        assert!(line.starts_with("rank 3 is lost: it "), "{line}");
    }
}

#[test]
fn case_2_a_process_killed_in_the_middle_of_a_collective() {
    for (who, script) in (0..3).flat_map(|who| [(who, "for_ever"), (who, "for_ever_beside")]) {
        let mut processes = start(3, script, 30_000);
        all_say(&processes, "connected");
        all_say(&processes, "first");
        std::thread::sleep(Duration::from_millis(30));
        processes.remove(who).signal("-KILL");
        for process in &processes {
            let line = process.line();
            assert!(line.starts_with(&format!("rank {who} is lost: it ")), "{line}");
        }
        // All survivors end.
        for process in &mut processes {
            assert!(process.child.wait().unwrap().success());
        }
    }
}

#[test]
fn case_3_what_was_done_before_a_process_was_killed_stays_right() {
    // Rank 1 is killed only after every rank has printed that its first operation is done.
    let mut processes = start(2, "for_ever", 30_000);
    all_say(&processes, "connected");
    all_say(&processes, "first");
    processes.remove(1).signal("-KILL");
    let line = processes[0].line();
    assert!(line.starts_with("rank 1 is lost: it "), "{line}");
}

#[test]
fn case_4_groups_go_on_without_rank_0() {
    for script in ["groups", "groups_beside"] {
        let mut processes = start(3, script, 30_000);
        all_say(&processes, "connected");
        all_say(&processes, "first");
        processes.remove(0).signal("-KILL");
        for process in &processes {
            let line = process.line();
            assert!(line.starts_with("rank 0 is lost: it "), "{line}");
            assert_eq!(process.line(), "done");
        }
    }
}

#[test]
fn case_5_a_process_stopped_for_less_than_the_deadline_gives_the_right_result() {
    for script in ["until_told", "until_told_beside"] {
        let mut processes = start(3, script, 30_000);
        all_say(&processes, "connected");
        all_say(&processes, "first");
        // The process misses more than ten heartbeats.
        processes[1].signal("-STOP");
        std::thread::sleep(Duration::from_millis(700));
        processes[1].signal("-CONT");
        processes[0].tell("enough");
        all_say(&processes, "done");
    }
}

#[test]
fn case_6_a_process_stopped_beyond_the_deadline_is_named_and_is_told_when_it_wakes() {
    for script in ["for_ever", "for_ever_beside"] {
        let processes = start(3, script, 1500);
        all_say(&processes, "connected");
        all_say(&processes, "first");
        processes[1].signal("-STOP");
        for process in [&processes[0], &processes[2]] {
            let line = process.line();
            // A rank that is already in the next operation also waits for a rank that waits for rank 1 in the operation before.
            let named = ["rank 1", "ranks 0, 1", "ranks 1, 2"].iter().any(|ranks| line.contains(ranks));
            assert!(line.starts_with("deadline of 1.5s exceeded by rank ") && named, "{line}");
        }
        processes[1].signal("-CONT");
        let line = processes[1].line();
        assert!(line.contains("deadline of 1.5s exceeded") || line.contains("is lost"), "{line}");
    }
}

#[test]
fn a_process_without_descriptors_says_that_it_has_none() {
    let processes = start(2, "starved", 2000);
    let line = processes[0].line();
    assert!(line.contains("no descriptors left") && line.contains("limit is 64"), "{line}");
}

#[test]
fn a_process_that_comes_after_others_disagreed_is_told_by_rank_0_which_waits_for_it() {
    let port = listeners(1).1[0].port().to_string();
    let come = |rank: &str, size: &str| {
        let at = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &*port)];
        child_of(&format!("{rank} meet 0"), &[at[0], at[1], ("RANK", rank), ("WORLD_SIZE", size)])
    };
    let (first, second) = (come("0", "3"), come("1", "4"));
    let disagree = second.line();
    assert!(disagree.contains("was told that the world has"), "{disagree}");
    // Long enough for rank 0 to end, if it did not wait for rank 2.
    std::thread::sleep(Duration::from_secs(1));
    let third = come("2", "3");
    let told = third.lines.recv_timeout(Duration::from_secs(600));
    assert_eq!(told.as_deref(), Ok(&*disagree), "not that nobody answers, which takes a minute");
    assert_eq!(first.line(), disagree);
}

#[test]
fn case_18_a_process_that_skips_a_call_is_named() {
    let mut processes = start(3, "absent", 5000);
    all_say(&processes, "connected");
    let last = processes.pop();
    for process in &processes {
        let line = process.line();
        assert!(
            line.contains("deadline of 5s exceeded") && line.ends_with("rank 2 never entered it"),
            "{line}"
        );
    }
    drop(last);
}

#[test]
fn case_2_a_process_killed_while_others_read_its_registered_buffers() {
    for wait in [0, 7, 16, 33] {
        let mut processes = start(3, "registered", 30_000);
        all_say(&processes, "connected");
        all_say(&processes, "first");
        std::thread::sleep(Duration::from_millis(wait));
        processes.remove(1).signal("-KILL");
        for process in &mut processes {
            let line = process.line();
            assert!(line.starts_with("rank 1 is lost: it "), "{line}");
            process.tell("go on");
        }
        all_say(&processes, "done");
    }
}

#[test]
fn case_6_a_process_stopped_while_others_read_its_registered_buffers_writes_to_none_when_it_wakes() {
    for wait in [0, 17] {
        let mut processes = start(2, "registered", 4000);
        all_say(&processes, "connected");
        all_say(&processes, "first");
        std::thread::sleep(Duration::from_millis(wait));
        processes[1].signal("-STOP");
        let line = processes[0].line();
        assert!(line.starts_with("deadline of 4s exceeded by rank 0") && line.contains("rank 1"), "{line}");
        processes[1].signal("-CONT");
        let line = processes[1].line();
        assert!(line.contains("deadline of 4s exceeded") || line.contains("is lost"), "{line}");
        processes.iter_mut().for_each(|process| process.tell("look"));
        all_say(&processes, "done");
    }
}
