//! Flags of torchrun that `allfold launch` does not have, and what to write instead.

const RANKS: &str = "write -n N, the number of ranks on this node";
const RENDEZVOUS: &str =
    "write --rdzv HOST:PORT, the host of node 0 and a free port there, the same on every node";
const NOT_NEEDED: &str = "leave it out; `allfold launch` needs nothing in its place";
const LOGS: &str = "write --log-dir DIR, and --tee to see the output as well";

/// Each flag, with `-` where torchrun also takes `_`, and the hint.
const FLAGS: [(&str, &str); 26] = [
    ("--nproc-per-node", RANKS),
    ("--nproc", RANKS),
    ("--np", RANKS),
    ("--nnodes", "write --nnodes NODES"),
    ("--node-rank", "write --node-rank NODE"),
    ("--master-addr", RENDEZVOUS),
    ("--master-port", RENDEZVOUS),
    ("--rdzv-endpoint", RENDEZVOUS),
    ("--local-addr", RENDEZVOUS),
    ("--rdzv-conf", "write --rdzv-timeout SECONDS for the time that ranks wait for each other"),
    ("--rdzv-backend", NOT_NEEDED),
    ("--rdzv-id", NOT_NEEDED),
    ("--standalone", NOT_NEEDED),
    ("--role", NOT_NEEDED),
    ("--monitor-interval", NOT_NEEDED),
    ("--start-method", NOT_NEEDED),
    ("--no-python", NOT_NEEDED),
    ("--run-path", NOT_NEEDED),
    ("--max-restarts", "write --max-restarts COUNT"),
    ("--log-dir", LOGS),
    ("--redirects", LOGS),
    ("-r", LOGS),
    ("-t", LOGS),
    ("--local-ranks-filter", LOGS),
    ("-m", "write -- python -m MODULE"),
    ("--module", "write -- python -m MODULE"),
];

/// What to write for a flag of torchrun, if it is one.
pub fn hint(flag: &str) -> Option<&'static str> {
    let flag = flag.replace('_', "-");
    FLAGS.iter().find(|(theirs, _)| *theirs == flag).map(|(_, hint)| *hint)
}
