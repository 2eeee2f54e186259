//! The grammar of fault rules as text.
//!
//! ```text
//! KIND=TARGET[:WHICH][:EFFECT][@WHEN]       slow_link = nic_out[0] : x10 @ 5ms..20ms
//! ```

use super::Rule;
use super::reader::Reader;
use crate::{Error, Result, suggest};
use std::str::FromStr;

/// A kind of fault rule.
#[derive(Clone, Copy, Debug)]
pub struct FaultKind {
    /// The kind's name, before `=`.
    pub name: &'static str,
    /// A valid rule of this kind.
    pub example: &'static str,
    /// What the example rule does, in words.
    pub about: &'static str,
    /// The parser of the text behind `=`.
    read: fn(Reader<'_>, &str) -> Result<Rule>,
}

/// Every kind of fault rule.
pub const KINDS: [FaultKind; 15] = [
    FaultKind {
        name: "slow_rank",
        example: "slow_rank=3:x4",
        about: "rank 3 takes 4 times as long over launches, overheads, reductions, computation",
        read: |reader, rest| reader.slow_rank(rest),
    },
    FaultKind {
        name: "jitter_rank",
        example: "jitter_rank=*:exp(5us)",
        about: "each launch and computation takes a random time more",
        read: |reader, rest| reader.jitter_rank(rest),
    },
    FaultKind {
        name: "device",
        example: "device=4-7:h100",
        about: "ranks 4 to 7 compute on another device than the rest",
        read: |reader, rest| reader.device(rest),
    },
    FaultKind {
        name: "stop_rank",
        example: "stop_rank=3@5ms..20ms",
        about: "rank 3 makes no progress from 5 ms to 20 ms",
        read: |reader, rest| reader.stop_rank(rest),
    },
    FaultKind {
        name: "dead_rank",
        example: "dead_rank=3@5ms",
        about: "rank 3 dies at 5 ms; :op2 in operation 2, :op2.round5 before its round 5",
        read: |reader, rest| reader.dead_rank(rest),
    },
    FaultKind {
        name: "slow_link",
        example: "slow_link=nic_out[0]:x10",
        about: "a tenth of the bandwidth; :+20us is 20 us more latency",
        read: |reader, rest| reader.slow_link(rest),
    },
    FaultKind {
        name: "jitter_link",
        example: "jitter_link=up[*]:lognormal(2us,0.5)",
        about: "each message over these links takes a random time more",
        read: |reader, rest| reader.jitter_link(rest),
    },
    FaultKind {
        name: "flap",
        example: "flap=nic_in[2]:1ms/10ms",
        about: "down for the last 1 ms of every 10 ms",
        read: |reader, rest| reader.flap(rest),
    },
    FaultKind {
        name: "partition",
        example: "partition=0-3|4-7@5ms..20ms",
        about: "nothing passes between the two sets; it heals at 20 ms",
        read: |reader, rest| reader.partition(rest),
    },
    FaultKind {
        name: "cut",
        example: "cut=0>1@5ms..",
        about: "nothing passes from rank 0 to rank 1; 0<>1 is both ways",
        read: |reader, rest| reader.cut(rest),
    },
    FaultKind {
        name: "drop",
        example: "drop=0>1:#3",
        about: "the third message from rank 0 to rank 1 never arrives; *>*:0.1% one in a thousand of all",
        read: |reader, rest| reader.drop(rest),
    },
    FaultKind {
        name: "corrupt",
        example: "corrupt=0>1:#3",
        about: "a bit of the third message is flipped; the receiver's checksum shows it",
        read: |reader, rest| reader.corrupt(rest),
    },
    FaultKind {
        name: "duplicate",
        example: "duplicate=0>1:#3",
        about: "the third message from rank 0 to rank 1 is sent twice",
        read: |reader, rest| reader.duplicate(rest),
    },
    FaultKind {
        name: "delay",
        example: "delay=0>1:all:exp(20us)",
        about: "messages from rank 0 to rank 1 arrive later; :+20us by that much",
        read: |reader, rest| reader.delay(rest),
    },
    FaultKind {
        name: "reorder",
        example: "reorder=0>1:#3:+20us",
        about: "the third message is held back until the next one has passed, or for 20 us",
        read: |reader, rest| reader.reorder(rest),
    },
];

impl FromStr for Rule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Rule> {
        let Some((name, rest)) = text.split_once('=') else {
            let list: Vec<&str> = KINDS.iter().map(|kind| kind.example).collect();
            let (first, most) = (list[0], list[1..].join(", "));
            return Err(Error::Fault(format!("`{text}` is no rule; write {first}, or one of {most}")));
        };
        let name = name.trim();
        let Some(kind) = KINDS.iter().find(|known| known.name == name) else {
            return Err(Error::Fault(suggest::unknown("rule", name, &KINDS.map(|kind| kind.name))));
        };
        (kind.read)(Reader { text, example: kind.example }, rest.trim())
    }
}
