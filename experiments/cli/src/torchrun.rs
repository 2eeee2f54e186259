//! Flags of torchrun that `allfold launch` does not have, and what to write instead.

/// Flags, with `-` where torchrun also takes `_`, and what to write instead of each.
const FLAGS: [(&str, &str); 9] = [
    ("--nproc-per-node --nproc --np", "write -n N, the number of ranks on this node"),
    ("--nnodes", "write --nnodes NODES"),
    ("--node-rank", "write --node-rank NODE"),
    (
        "--master-addr --master-port --rdzv-endpoint --local-addr",
        "write --rdzv HOST:PORT, the host of node 0 and a free port there, the same on every node",
    ),
    ("--rdzv-conf", "write --rdzv-timeout SECONDS for the time that ranks wait for each other"),
    (
        "--rdzv-backend --rdzv-id --standalone --role --monitor-interval --start-method --no-python --run-path",
        "leave it out; `allfold launch` needs nothing in its place",
    ),
    ("--max-restarts", "write --max-restarts COUNT"),
    (
        "--log-dir --redirects -r -t --local-ranks-filter",
        "write --log-dir DIR, and --tee to see the output as well",
    ),
    ("-m --module", "write -- python -m MODULE"),
];

/// What to write for a flag of torchrun, if it is one.
pub fn hint(flag: &str) -> Option<&'static str> {
    let flag = flag.replace('_', "-");
    FLAGS.iter().find(|(theirs, _)| theirs.split(' ').any(|their| their == flag)).map(|(_, hint)| *hint)
}
