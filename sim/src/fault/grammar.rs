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

/// A table of kinds, each with the method of [`Reader`] that has its name, an example, and the example in words.
macro_rules! kinds {
    ($($name:ident: $example:literal, $about:literal;)*) => {
        /// Every kind of fault rule.
        pub const KINDS: [FaultKind; [$($example),*].len()] = [$(FaultKind {
            name: stringify!($name),
            example: $example,
            about: $about,
            read: |reader, rest| reader.$name(rest),
        }),*];
    };
}

kinds! {
    slow_rank: "slow_rank=3:x4", "rank 3 takes 4 times as long over launches, overheads, reductions, computation";
    jitter_rank: "jitter_rank=*:exp(5us)", "each launch and computation takes a random time more";
    device: "device=4-7:h100", "ranks 4 to 7 compute on another device than the rest";
    stop_rank: "stop_rank=3@5ms..20ms", "rank 3 makes no progress from 5 ms to 20 ms";
    dead_rank: "dead_rank=3@5ms", "rank 3 dies at 5 ms; :op2 in operation 2, :op2.round5 before its round 5";
    slow_link: "slow_link=nic_out[0]:x10", "a tenth of the bandwidth; :+20us is 20 us more latency";
    jitter_link: "jitter_link=up[*]:lognormal(2us,0.5)", "each message over these links takes a random time more";
    flap: "flap=nic_in[2]:1ms/10ms", "down for the last 1 ms of every 10 ms";
    partition: "partition=0-3|4-7@5ms..20ms", "nothing passes between the two sets; it heals at 20 ms";
    cut: "cut=0>1@5ms..", "nothing passes from rank 0 to rank 1; 0<>1 is both ways";
    drop: "drop=0>1:#3", "the third message from rank 0 to rank 1 never arrives; *>*:0.1% one in a thousand of all";
    corrupt: "corrupt=0>1:#3", "a bit of the third message is flipped; the receiver's checksum shows it";
    duplicate: "duplicate=0>1:#3", "the third message from rank 0 to rank 1 is sent twice";
    delay: "delay=0>1:all:exp(20us)", "messages from rank 0 to rank 1 arrive later; :+20us by that much";
    reorder: "reorder=0>1:#3:+20us", "the third message is held back until the next one has passed, or for 20 us";
}

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
