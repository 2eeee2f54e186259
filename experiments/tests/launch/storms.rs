//! Jobs whose ranks end at different times, by every kind of end. None may wait for a rank that never comes: STORMS=500 for a long run,
//! STORM_SEED for other storms.

use super::*;
use std::fmt::Write;

/// Longer than the hang limit of a test, so that a job that waits for a rendezvous to time out is a hang.
const NEVER: &str = "1000";

/// A small network that a rank trains in a fraction of a second; a checkpoint every second step.
fn small(folder: &Path, steps: u32) -> String {
    let mlp =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-mlp.toml")).unwrap();
    let text = mlp.replace("[training]\n", &format!("[training]\nmax_steps = {steps}\n"));
    let (path, checkpoints) = (folder.join("run.toml"), folder.join("checkpoints"));
    let text = format!("{text}\n[checkpoint]\nevery = 2\ndir = \"{}\"\n", checkpoints.display());
    std::fs::write(&path, text).unwrap();
    format!("{ALLFOLD} -q train --config {}", path.display())
}

/// The launchers of all nodes of one job, with one rank each.
fn nodes(nodes: u32, flags: &[&str], script: &str) -> Vec<Child> {
    let at = unused();
    let node = |node: u32| {
        let (count, node) = (nodes.to_string(), node.to_string());
        let place = ["--nnodes", &count, "--node-rank", &node, "--rdzv", &at];
        launch(&[&place, flags, &["--", "sh", "-c", script]].concat()).spawn().unwrap()
    };
    (0..nodes).map(node).collect()
}

#[test]
fn ranks_that_wait_for_a_rank_that_exited_with_0_start_again_with_it_or_fail_at_once() {
    for count in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let train = small(folder.path(), 4);
        let ranks = if count == 1 { "2" } else { "1" };
        let run = |restarts: &'static str, first: &str| {
            let flags = [
                "-n",
                ranks,
                "--rdzv-timeout",
                NEVER,
                "--max-restarts",
                restarts,
                "--elastic",
                "--grace",
                "1",
            ];
            let mut ended = nodes(count, &flags, &format!("{first}; exec {train}")).into_iter().map(ended);
            let first = ended.next().unwrap();
            (first.status.code(), text(&first.stderr))
        };
        // Rank 0 exits with 0 in the first start only. On another node rank 1 may be started again before that node knows it.
        let mark = folder.path().join("mark").display().to_string();
        let once = format!("[ $RANK = 0 ] && ! [ -e {mark} ] && touch {mark} && exit 0");
        let (code, said) = run("3", &once);
        assert_eq!(code, Some(0), "{said}");
        let again = said.lines().any(|line| {
            line.contains("rank 0 had exited with 0 before") && line.contains("; starting again (")
        });
        assert!(again, "{said}");

        let (code, said) = run("1", "[ $RANK = 0 ] && exit 0");
        assert_eq!(code, Some(1), "{said}");
        let last = said.lines().last().unwrap();
        assert!(last.starts_with("error: rank 1 failed first, exited with 1 (rank 0 had exited"), "{said}");
        assert!(last.ends_with("rank 0 exited with 0 and cannot join any more"), "{said}");
    }
}

#[test]
fn a_rank_lost_after_another_exited_with_0_is_not_started_alone() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display();
    // Rank 1 fails in the first start as soon as the launcher has seen the end of rank 0's process.
    let script = format!(
        "echo $RANK.$TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0; \
         [ $RANK = 0 ] && {{ echo $$ > {place}/pid; exit 0; }}; \
         while ! [ -s {place}/pid ] || kill -0 $(cat {place}/pid) 2>/dev/null; do sleep 0.01; done; exit 3"
    );
    let output = end(launch(&["-n", "2", "--max-restarts", "1", "--elastic", "--", "sh", "-c", &script]));
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    let begins = "rank 1 failed first, exited with 3 (rank 0 had exited with 0 before, after ";
    assert!(said.starts_with(begins) && said.ends_with("; starting again (1 of 1)\n"), "{said}");
    let ran = by_rank(&text(&output.stdout));
    assert_eq!([&ran[&0], &ran[&1]], [&["0.0", "0.1"], &["1.0", "1.1"]]);
}

/// Numbers that a seed determines (SplitMix64).
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// What the ranks of a storm do before they train: by rank and epoch an end with 0 or another code, a kill, or a stop that lasts for
/// 8 seconds.
fn weather(draws: &mut Draws, world: u64, stops: bool) -> String {
    let mut cases = String::new();
    for (rank, epoch) in (0..world).flat_map(|rank| (0..4).map(move |epoch| (rank, epoch))) {
        let after = format!("0.{}", draws.below(10));
        let does = match draws.below(if epoch == 0 { 6 } else { 12 }) {
            0 => "exit 0".to_string(),
            1 => format!("sleep {after}; exit 0"),
            2 => format!("sleep {after}; exit 3"),
            3 if stops => format!("(sleep {after}; kill -STOP $$; sleep 8; kill -CONT $$) &"),
            3 | 4 => format!("(sleep {after}; kill -9 $$) &"),
            _ => continue,
        };
        write!(cases, "{rank}.{epoch}) {does};; ").unwrap();
    }
    format!("case $RANK.$TORCHELASTIC_RESTART_COUNT in {} esac", cases.replace("&;;", "& ;;"))
}

/// Names a storm whose thread panics.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in the storm of seed {}", self.0);
        }
    }
}

/// Runs one storm, and returns how it ended by node 0's launcher.
fn storm(seed: u64) -> String {
    let _named = Named(seed);
    let mut draws = Draws(seed);
    let folder = tempfile::tempdir().unwrap();
    let count = 1 + draws.below(3);
    let each = if count == 1 { 2 + draws.below(3) } else { 1 + draws.below(2) };
    let stops = draws.below(4) == 0;
    let before = weather(&mut draws, count * each, stops);
    // Two thirds of the jobs train; the ranks of the others do not wait for each other.
    let train = small(folder.path(), 20);
    let mark = folder.path().display();
    let program =
        if stops || draws.below(3) > 0 { format!("exec {train}") } else { format!("sleep 0.2 # {mark}") };
    // A rank that is stopped before it joins is found by the rendezvous only.
    let timeout = if stops { "4" } else { NEVER };
    let (each, restarts) = (each.to_string(), draws.below(4).to_string());
    let mut flags = vec!["-n", &each, "--grace", "1", "--rdzv-timeout", timeout, "--max-restarts", &restarts];
    if draws.below(8) > 0 {
        flags.push("--elastic");
    }
    let mut launchers = nodes(count as u32, &flags, &format!(": > {mark}/up; {before}; {program}"));
    let (victim, signal) = (draws.below(count) as usize, ["-TERM", "-INT", "-KILL"][draws.below(3) as usize]);
    if draws.below(6) == 0 {
        // A node that is lost before it joins may be started again: the others wait for it.
        while !folder.path().join("up").exists() && launchers[0].try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(draws.below(2000)));
        // The launcher may have ended already.
        Command::new("kill")
            .args([signal, &launchers[victim].id().to_string()])
            .stderr(Stdio::null())
            .status()
            .unwrap();
    }
    let ends: Vec<Output> = launchers.into_iter().map(ended).collect();
    gone(&mark.to_string());
    let (code, said) = (ends[0].status.code(), text(&ends[0].stderr));
    let last = said.lines().last().unwrap_or_default();
    let named = [
        ("error: rank ", " failed "),
        ("error: stopped by ", "SIG"),
        ("error: node ", " is lost: "),
        ("error: node ", " did not join "),
    ];
    match code {
        Some(0) => "0, all ranks done".into(),
        None => "the launcher was killed".into(),
        Some(_) => match named.iter().find(|(begin, has)| last.starts_with(begin) && last.contains(has)) {
            Some((begin, has)) => format!("{begin}..{has}.."),
            None => panic!("storm {seed} ended with {code:?} and no cause: {said}"),
        },
    }
}

/// How many storms rage at once.
const AT_ONCE: u64 = 4;

#[test]
fn no_storm_of_ends_hangs() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (storms, first) = (number("STORMS").unwrap_or(8), number("STORM_SEED").unwrap_or(0));
    let every = |at: u64| (at..storms).step_by(AT_ONCE as usize).map(|storm_at| storm(first + storm_at));
    let ends: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..AT_ONCE).map(|at| scope.spawn(move || every(at).collect::<Vec<_>>())).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let mut table: BTreeMap<&str, u64> = BTreeMap::new();
    ends.iter().for_each(|end| *table.entry(end).or_default() += 1);
    // A hang would have failed the test where it happened.
    println!("| {storms} storms, 0 hangs | |\n|---|---|");
    table.iter().for_each(|(end, count)| println!("| {end} | {count} |"));
    assert_eq!(ends.len() as u64, storms);
    assert!(table.len() > 1, "all storms ended in the same way: {table:?}");
}
