//! Launchers of several nodes: what the other launchers do when one of them ends, is stopped, or cannot be reached.

use super::*;

/// The launcher of one node, which starts one rank.
fn node(node: u32, nodes: u32, at: &str, script: &str) -> Command {
    node_of(1, node, nodes, at, script)
}

fn node_of(ranks: u32, node: u32, nodes: u32, at: &str, script: &str) -> Command {
    let [ranks, node, nodes] = [ranks, node, nodes].map(|number| number.to_string());
    launch(&[
        "-n",
        &ranks,
        "--node-rank",
        &node,
        "--nnodes",
        &nodes,
        "--rdzv",
        at,
        "--grace",
        "1",
        "--",
        "sh",
        "-c",
        script,
    ])
}

/// Waits until a launcher's rank prints `up`.
fn up(launcher: &mut Child) {
    let mut line = String::new();
    BufReader::new(launcher.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.ends_with("up\n"), "{line}");
}

fn says(child: Child, code: i32, what: &str) {
    let output = ended(child);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(what), "{said}");
}

#[test]
fn nodes_start_and_end_together() {
    let at = unused();
    let node = |which, script| node_of(2, which, 2, &at, script).spawn().unwrap();
    let script = "echo $RANK of $WORLD_SIZE on $GROUP_RANK";
    let (first, second) = (node(0, script), node(1, script));
    let (first, second) = (first.wait_with_output().unwrap(), second.wait_with_output().unwrap());
    assert!(first.status.success() && second.status.success(), "{}", text(&second.stderr));
    assert_eq!(by_rank(&text(&second.stdout))[&3], ["3 of 4 on 1"]);

    let script = "[ $RANK = 3 ] && exit 5; sleep 1000";
    let (first, second) = (node(0, script), node(1, script));
    for node in [first, second] {
        let output = node.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(5));
        assert!(
            text(&output.stderr).contains("rank 3 failed first, exited with 5"),
            "{}",
            text(&output.stderr)
        );
    }
}

#[test]
fn a_node_that_died_while_others_were_awaited_may_be_started_again() {
    let at = unused();
    let node = |which| node(which, 3, &at, "true").spawn().unwrap();
    let first = node(0);
    // Of two launchers that both claim to be node 1, one is refused; the other has joined by then.
    let mut twins = [node(1), node(1)];
    let away = loop {
        if let Some(away) = twins.iter_mut().position(|twin| twin.try_wait().unwrap().is_some()) {
            break away;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let [zero, one] = twins;
    let (away, mut in_place) = if away == 0 { (zero, one) } else { (one, zero) };
    says(away, 2, "node 1 cannot join: nodes are 0 to 2, and each joins once");
    kill(&in_place, "-KILL");
    in_place.wait().unwrap();
    for node in [node(1), node(2), first] {
        says(node, 0, "");
    }
}

#[test]
fn a_node_that_cannot_start_its_ranks_tells_all_why() {
    let (at, file) = (unused(), tempfile::NamedTempFile::new().unwrap());
    let first = node(0, 2, &at, "while :; do sleep 1; done # unable-mark-31");
    let folder = file.path().join("logs").display().to_string();
    let second =
        launch(&["--node-rank", "1", "--nnodes", "2", "--rdzv", &at, "--log-dir", &folder, "--", "true"]);
    for node in [first, second].map(|mut node| node.spawn().unwrap()) {
        says(node, 2, "node 1: --log-dir cannot be written");
    }
    gone("unable-mark-31");
}

/// Both tests wait for the same timeout, so they wait at the same time, in one thread of the tests.
#[test]
fn launchers_that_say_nothing_are_named() {
    std::thread::scope(|scope| {
        scope.spawn(a_launcher_that_is_stopped_is_named_and_ends_when_it_wakes);
        scope.spawn(a_host_that_vanishes_is_named);
    });
}

fn a_launcher_that_is_stopped_is_named_and_ends_when_it_wakes() {
    let at = unused();
    let script = "echo up; while :; do sleep 1; done # stopped-mark-83";
    let [first, mut second] = [0, 1].map(|which| node(which, 2, &at, script).spawn().unwrap());
    up(&mut second);
    kill(&second, "-STOP");
    says(first, 1, "node 1 is lost: its launcher has sent nothing for 20s");
    kill(&second, "-CONT");
    says(second, 1, "node 0 is lost");
    gone("stopped-mark-83");
}

/// Two network namespaces that stand for hosts, with a virtual link between them; removed on drop.
struct Hosts([String; 2]);

fn ip(words: &str) -> Result<(), String> {
    let done = Command::new("ip").args(words.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    done.status.success().then_some(()).ok_or_else(|| format!("ip {words}: {}", text(&done.stderr).trim()))
}

impl Hosts {
    fn make() -> Result<Hosts, String> {
        let hosts = Hosts(["a", "b"].map(|host| format!("al{}{host}", std::process::id())));
        let [a, b] = &hosts.0;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!("link add name eth0 netns {a} type veth peer name eth0 netns {b}"))?;
        for (host, number) in [(a, 1), (b, 2)] {
            ip(&format!("-n {host} addr add 10.78.0.{number}/24 dev eth0"))?;
            ip(&format!("-n {host} link set eth0 up"))?;
            ip(&format!("-n {host} link set lo up"))?;
        }
        Ok(hosts)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.0.iter().for_each(|host| drop(ip(&format!("netns del {host}"))));
    }
}

/// A host that vanishes is named, and no rank of either host is left.
fn a_host_that_vanishes_is_named() {
    let hosts = match Hosts::make() {
        Ok(hosts) => hosts,
        Err(why) => {
            return println!("SKIP: networks cannot be made here ({why}); they need root and iproute2");
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, [7; 32]).unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let script = "echo up; while :; do sleep 1; done # vanished-mark-37";
    let mut launchers = [0, 1].map(|which: u32| {
        let inside = node(which, 2, "10.78.0.1:29500", script);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &hosts.0[which as usize], ALLFOLD]).args(inside.get_args());
        command.env("ALLFOLD_SECRET_FILE", &secret).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    });
    launchers.iter_mut().for_each(up);
    ip(&format!("-n {} link set eth0 down", hosts.0[1])).unwrap();
    let [first, second] = launchers;
    says(first, 1, "node 1 is lost: its launcher has sent nothing");
    says(second, 1, "node 0 is lost: its launcher has sent nothing");
    gone("vanished-mark-37");
}
