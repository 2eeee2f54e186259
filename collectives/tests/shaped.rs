#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
//! Compares the simulator with a real network: every collective by every algorithm over TCP, between hosts that are network
//! namespaces, on links whose rate the kernel limits, and its simulated time on the same topology.
//!
//! ```text
//! h0 --veth, tbf both ways-- [bridge s0] --veth, tbf-- [bridge s1] -- h2
//! h1 ------------------------'                         '------------- h3
//! ```
//!
//! Needs root and iproute2 (`scripts/iproute2.sh` installs it); skips with its reason otherwise. All interfaces are in namespaces that
//! this test makes and removes. `SHAPED=full` runs every network, bounds the median error and writes `docs/results/transports/shaped.md`;
//! `SHAPED=unequal` runs the networks with that word in their name. Without the variable only all-reduces on one small network run.

use allfold_collectives::meaning::Portion;
use allfold_collectives::tcp::{Deadlines, PeerOptions, Secret, Security};
use allfold_collectives::time::{Job, traced};
use allfold_collectives::{Collective, Communicator, DType, Error, Planned, Rank, ReduceOp, registry};
use allfold_sim::{Sharing, Topology};
use std::fmt::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Of a frame of 1514 bytes, which is what the kernel's rate counts, 1448 are TCP's payload (timestamps on).
const PAYLOAD: f64 = 1448.0 / 1514.0;
/// The latency of a hop in microseconds: one way through two sockets and a veth pair, as measured between idle hosts.
const HOP_US: f64 = 20.0;

/// A network: hosts on switches, with the rate of each host's link; the switches are in a row with trunks between them.
struct Network {
    name: &'static str,
    /// (switch, Mbit/s) of each host.
    hosts: Vec<(usize, u32)>,
    /// Mbit/s from switch k to switch k + 1.
    trunks: Vec<u32>,
    /// MiB of the calls that are timed.
    sizes: Vec<usize>,
}

fn networks(full: bool) -> Vec<Network> {
    let star = |name, rates: &[u32]| Network {
        name,
        hosts: rates.iter().map(|rate| (0, *rate)).collect(),
        trunks: Vec::new(),
        sizes: vec![1],
    };
    let mut all = vec![star("star of 4, 200 Mbit/s", &[200; 4])];
    if full {
        let two = |name, rates: [u32; 4], trunk| Network {
            hosts: [0, 0, 1, 1].into_iter().zip(rates).collect(),
            trunks: vec![trunk],
            ..star(name, &[])
        };
        all.extend([
            Network { sizes: vec![1, 16], ..star("star of 2, 2 Gbit/s", &[2000; 2]) },
            Network { sizes: vec![1, 16], ..star("star of 2, 1 Gbit/s", &[1000; 2]) },
            Network { sizes: vec![4], ..star("star of 3, 500 Mbit/s", &[500; 3]) },
            star("star of 8, 100 Mbit/s", &[100; 8]),
            star("star of 5, unequal", &[200, 200, 100, 200, 150]),
            two("two switches of 2, 200 Mbit/s, trunk 100", [200; 4], 100),
            two("two switches of 2, unequal, trunk 150", [200, 100, 200, 150], 150),
        ]);
    }
    all
}

impl Network {
    /// This network as a topology of the simulator.
    fn topology(&self) -> Topology {
        let switches: Vec<String> = (0..=self.trunks.len()).map(|k| format!("\"s{k}\"")).collect();
        let n = self.hosts.len();
        let mut text = format!("kind = \"graph\"\nranks = {n}\nswitches = [{}]\n", switches.join(", "));
        let mut link = |from: String, to: String, rate: u32| {
            let gbps = f64::from(rate) / 8e3 * PAYLOAD;
            let _ = write!(
                text,
                "[[link]]\nfrom = {from}\nto = {to}\nbandwidth = \"{gbps} GB/s\"\nlatency = \"{HOP_US} us\"\n"
            );
        };
        self.hosts
            .iter()
            .enumerate()
            .for_each(|(i, (k, rate))| link(i.to_string(), format!("\"s{k}\""), *rate));
        self.trunks.iter().enumerate().for_each(|(k, rate)| {
            link(format!("\"s{k}\""), format!("\"s{}\"", k + 1), *rate);
        });
        text += "[costs]\noverhead = \"10 us\"\n";
        Topology::from_toml(self.name, &text, n as u32).unwrap()
    }
}

/// The namespaces of one network, removed when dropped.
struct Hosts {
    prefix: String,
    made: Vec<String>,
}

fn ip(words: &str) -> Result<(), String> {
    tool("ip", words)
}

fn tool(program: &str, words: &str) -> Result<(), String> {
    let done = Command::new(program).args(words.split_whitespace()).output();
    let done = done.map_err(|error| format!("{program}: {error}"))?;
    if done.status.success() {
        return Ok(());
    }
    Err(format!("{program} {words}: {}", String::from_utf8_lossy(&done.stderr).trim()))
}

impl Hosts {
    fn make(network: &Network) -> Result<Hosts, String> {
        let mut hosts = Hosts { prefix: format!("af{}", std::process::id()), made: Vec::new() };
        let p = hosts.prefix.clone();
        let mut add = |name: String| {
            let added = ip(&format!("netns add {name}"));
            hosts.made.push(name);
            added
        };
        for k in 0..=network.trunks.len() {
            add(format!("{p}s{k}"))?;
            ip(&format!("-n {p}s{k} link add name sw type bridge"))?;
            ip(&format!("-n {p}s{k} link set sw up"))?;
        }
        // Packets have at most 16 KiB, so that the kernel need not split them before it counts them. A burst is at least a packet, and at
        // least 320 us at the link's rate, by which a timer may be late. Both are small compared with a timed message.
        let shape = |at: &str, device: &str, rate: u32| {
            let burst = (rate * 40).max(20_000);
            ip(&format!("-n {at} link set {device} gso_max_size 16384"))?;
            tool(
                "tc",
                &format!("-n {at} qdisc add dev {device} root tbf rate {rate}mbit burst {burst} limit 64mb"),
            )
        };
        for (i, (k, rate)) in network.hosts.iter().enumerate() {
            let (host, switch) = (format!("{p}h{i}"), format!("{p}s{k}"));
            add(host.clone())?;
            ip(&format!("-n {host} link set lo up"))?;
            ip(&format!("link add name eth0 netns {host} type veth peer name p{i} netns {switch}"))?;
            ip(&format!("-n {host} addr add 10.77.0.{}/24 dev eth0", i + 1))?;
            ip(&format!("-n {host} link set eth0 up"))?;
            ip(&format!("-n {switch} link set p{i} master sw up"))?;
            shape(&host, "eth0", *rate)?;
            shape(&switch, &format!("p{i}"), *rate)?;
            tool("ip", &format!("netns exec {host} sysctl -qw net.ipv4.tcp_slow_start_after_idle=0"))?;
            // BBR, which is some systems' default, paces a chain of messages below the rate of the links.
            tool("ip", &format!("netns exec {host} sysctl -qw net.ipv4.tcp_congestion_control=reno"))?;
        }
        for (k, rate) in network.trunks.iter().enumerate() {
            let (one, other) = (format!("{p}s{k}"), format!("{p}s{}", k + 1));
            ip(&format!("link add name up{k} netns {one} type veth peer name down{k} netns {other}"))?;
            ip(&format!("-n {one} link set up{k} master sw up"))?;
            ip(&format!("-n {other} link set down{k} master sw up"))?;
            shape(&one, &format!("up{k}"), *rate)?;
            shape(&other, &format!("down{k}"), *rate)?;
        }
        Ok(hosts)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.made.iter().for_each(|name| drop(ip(&format!("netns del {name}"))));
    }
}

/// A collective, an algorithm of it, and bytes.
type Case = (Collective, &'static str, usize);

/// The timed cases: every algorithm of every collective that moves data (unless `full`, of all-reduce), for each size in MiB.
fn cases(full: bool, sizes: &[usize]) -> Vec<Case> {
    let rows = registry::ALGORITHMS.iter().filter(|row| row.collective != Collective::Barrier);
    let rows = rows.filter(|row| full || row.collective == Collective::AllReduce);
    rows.flat_map(|row| sizes.iter().map(move |mib| (row.collective, row.name, mib << 20))).collect()
}

/// Elements of a call, as a communicator counts them, and of its whole buffer.
fn counts(collective: Collective, bytes: usize, ranks: usize) -> (usize, usize) {
    let all = bytes / 4 / ranks * ranks;
    (if collective.blocked() { all / ranks } else { all }, all)
}

/// One rank: a process in its host's namespace. Without `SHAPED_CHILD` it does nothing.
#[test]
fn child() {
    let Ok(words) = std::env::var("SHAPED_CHILD") else { return };
    let words: Vec<usize> = words.split(' ').map(|word| word.parse().unwrap()).collect();
    let (rank, network, full) = (words[0], networks(true).swap_remove(words[1]), words[2] == 1);
    let ranks = network.hosts.len();
    let address = |i: usize| -> SocketAddr { format!("10.77.0.{}:7700", i + 1).parse().unwrap() };
    let peers = PeerOptions {
        rank: Rank(rank as u32),
        job: [1; 16],
        epoch: 0,
        listener: TcpListener::bind(address(rank)).unwrap(),
        addresses: (0..ranks).map(address).collect(),
        host: None,
        security: Security::TrustedFabric(Secret::new([9; 32])),
        deadlines: Deadlines { operation: Duration::from_secs(60), ..Deadlines::default() },
    };
    let comm = Communicator::over_tcp(peers).unwrap();
    let cases = cases(full, &network.sizes);
    let timed: Vec<_> = cases.into_iter().map(|case| time(&comm, case).unwrap()).collect();
    let topology = network.topology();
    for (us, planned) in timed.iter().filter(|_| rank == 0) {
        println!(">{us} {}", simulated(&topology, planned));
    }
}

/// The microseconds of a call's slowest rank, as the median of five calls, and the schedule that they ran. (The minimum would
/// be too small: when a rank starts late, the messages that it waits for have already arrived.)
fn time(comm: &Communicator, (collective, name, bytes): Case) -> Result<(f64, Planned), Error> {
    let plan = comm.plan().algorithm(collective, name)?;
    let comm = comm.split(Some(0), 0)?.expect("a colour").with_plan(plan);
    let (count, all) = counts(collective, bytes, comm.size() as usize);
    let (mut data, mut block, mut out) = (vec![0f32; all], vec![0f32; count], vec![0f32; all]);
    let mut times = Vec::new();
    for _ in 0..7 {
        comm.barrier()?;
        let start = Instant::now();
        let row = collective.meaning();
        let (input, output) = match (row.input.part, row.output.part) {
            _ if collective.in_place() => (&[][..], &mut data),
            (Portion::Block, _) => (&block[..], &mut out),
            (_, Portion::Block) => (&data[..], &mut block),
            _ => (&data[..], &mut out),
        };
        comm.collective(collective, input, output, ReduceOp::Sum, Rank(0))?;
        let mut took = [start.elapsed().as_secs_f64() * 1e6];
        comm.all_reduce(&mut took, ReduceOp::Max)?;
        times.push(took[0]);
    }
    // The first two calls open connections and TCP windows.
    times.drain(..2);
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2], comm.planned(collective, count, DType::F32)?))
}

/// The simulated microseconds of what the communicator ran.
fn simulated(topology: &Topology, planned: &Planned) -> f64 {
    let job = Job {
        window: planned.window,
        sharing: Sharing::MaxMin.into(),
        ..Job::new(&*planned.schedule, &planned.geometry, 4, topology)
    };
    let outcome = traced(&job, &mut |_| {}).unwrap();
    outcome.finish.iter().map(|finish| finish.0).max().unwrap_or_default() as f64 / 1e6
}

/// Measured and simulated microseconds of the cases of network number `at`, in order of [`cases`].
fn measured(at: usize, ranks: usize, hosts: &Hosts, full: bool) -> Vec<(f64, f64)> {
    let mut children: Vec<_> = (0..ranks)
        .map(|rank| {
            Command::new("ip")
                .args(["netns", "exec", &format!("{}h{rank}", hosts.prefix)])
                .arg(std::env::current_exe().unwrap())
                .args(["--exact", "child", "--nocapture"])
                .env("SHAPED_CHILD", format!("{rank} {at} {}", u8::from(full)))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let rest = children.split_off(1);
    let first = children.remove(0).wait_with_output().unwrap();
    for mut child in rest {
        child.wait().unwrap();
    }
    let text = String::from_utf8_lossy(&first.stdout).into_owned();
    let pair = |line: &str| {
        let (measured, simulated) = line.split_once('>')?.1.split_once(' ')?;
        Some((measured.parse().ok()?, simulated.parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

#[test]
fn simulated_times_equal_those_of_shaped_links() {
    if let Err(why) = ip("netns add afprobe").and_then(|()| ip("netns del afprobe")) {
        println!("SKIP: hosts of network namespaces cannot be made here: {why}");
        return;
    }
    let wanted = std::env::var("SHAPED").unwrap_or_default();
    let (full, every_case) = (wanted == "full", !wanted.is_empty());
    let mut text =
        String::from("| network | collective | algorithm | MiB | measured us | simulated us | off |\n");
    text += "|---|---|---|---|---|---|---|\n";
    let mut summary =
        String::from("| network | cases | median of abs. error | within 5 % |\n|---|---|---|---|\n");
    let (mut every, mut offs) = (Vec::new(), Vec::new());
    let chosen = networks(every_case).into_iter().enumerate();
    for (at, network) in chosen.filter(|(_, network)| full || network.name.contains(&wanted)) {
        let hosts = match Hosts::make(&network) {
            Ok(hosts) => hosts,
            Err(why) => {
                println!("SKIP: links cannot be shaped here: {why}");
                return;
            }
        };
        let times = measured(at, network.hosts.len(), &hosts, every_case);
        let cases = cases(every_case, &network.sizes);
        assert_eq!(times.len(), cases.len(), "a rank failed on {}", network.name);
        let mut errors = Vec::new();
        for ((collective, name, bytes), (got, want)) in cases.into_iter().zip(times) {
            let off = want / got - 1.0;
            errors.push(off.abs());
            offs.push(off);
            let (mib, off) = (bytes >> 20, off * 100.0);
            let _ = writeln!(
                text,
                "| {} | {collective} | {name} | {mib} | {got:.0} | {want:.0} | {off:+.1} % |",
                network.name
            );
        }
        errors.sort_by(f64::total_cmp);
        let (n, near) = (errors.len(), errors.iter().filter(|error| **error <= 0.05).count());
        let _ = writeln!(summary, "| {} | {n} | {:.1} % | {near} |", network.name, errors[n / 2] * 100.0);
        every.extend(errors);
    }
    assert!(!every.is_empty(), "SHAPED={wanted}: no network has that in its name");
    every.sort_by(f64::total_cmp);
    let median = every[every.len() / 2];
    println!("{text}\n{summary}\nmedian of all {}: {:.1} %", every.len(), median * 100.0);
    if full {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/results/transports/shaped.md");
        let head = "# Simulated compared with measured times on shaped links\n\n\
            `SHAPED=full cargo test --release -p allfold-collectives --test shaped -- --nocapture`, as root, on a 2-core machine.\n\
            Hosts are network namespaces joined by veth pairs; `tc tbf` holds both directions of each to its rate.\n\
            Measured is the time of a call's slowest rank: the median of five calls after two of warm-up.\n\n";
        let end = format!(
            "\nMedian of the absolute error over all {} cases: {:.1} %.\n",
            every.len(),
            median * 100.0
        );
        std::fs::write(path, format!("{head}{summary}{end}\n{text}")).unwrap();
    }
    if full {
        assert!(median <= 0.05, "the median is off by {:.1} %", median * 100.0);
    }
    if every_case {
        return;
    }
    // A busy machine may be late, and the test does not depend on how late it is. But no link is faster than its rate, so no all-reduce
    // is measured much faster than simulated; and if the median is ten times slower, something else is wrong.
    offs.sort_by(f64::total_cmp);
    let (middle, most) = (offs[offs.len() / 2], offs[offs.len() - 1]);
    assert!(most < 0.5, "one case was measured much faster than simulated:\n{text}");
    assert!(middle > -0.9, "measured ten times slower than simulated:\n{text}");
}
