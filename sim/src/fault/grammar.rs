//! Rules from text.
//!
//! ```text
//! KIND=TARGET[:WHICH][:EFFECT][@WHEN]       slow_link = nic_out[0] : x10 @ 5ms..20ms
//! ```

use super::rule::Death;
use super::{Factor, Links, Noise, Pair, Ranks, Rule, When, Which, span};
use crate::{Device, Error, Picos, Rank, Result, suggest};
use std::str::FromStr;

/// Every kind of rule: its name, an example of it, what the example does.
pub const KINDS: [(&str, &str, &str); 15] = [
    (
        "slow_rank",
        "slow_rank=3:x4",
        "rank 3 takes 4 times as long over launches, overheads, reductions, computation",
    ),
    ("jitter_rank", "jitter_rank=*:exp(5us)", "each launch and computation takes a random time more"),
    ("device", "device=4-7:h100", "ranks 4 to 7 compute on another device than the rest"),
    ("stop_rank", "stop_rank=3@5ms..20ms", "rank 3 stands still for that time"),
    (
        "dead_rank",
        "dead_rank=3@5ms",
        "rank 3 dies at 5 ms; :op2 in operation 2, :op2.round5 before its round 5",
    ),
    ("slow_link", "slow_link=nic_out[0]:x10", "a tenth of the bandwidth; :+20us is 20 us more latency"),
    (
        "jitter_link",
        "jitter_link=up[*]:lognormal(2us,0.5)",
        "each message over these links takes a random time more",
    ),
    ("flap", "flap=nic_in[2]:1ms/10ms", "down for the last 1 ms of every 10 ms"),
    ("partition", "partition=0-3|4-7@5ms..20ms", "nothing passes between the two sets; it heals at 20 ms"),
    ("cut", "cut=0>1@5ms..", "nothing passes from rank 0 to rank 1; 0<>1 is both ways"),
    (
        "drop",
        "drop=0>1:#3",
        "the third message from rank 0 to rank 1 never arrives; *>*:0.1% one in a thousand of all",
    ),
    ("corrupt", "corrupt=0>1:#3", "a bit of it is flipped, which its checksum shows"),
    ("duplicate", "duplicate=0>1:#3", "it is sent twice"),
    ("delay", "delay=0>1:all:exp(20us)", "messages from rank 0 to rank 1 arrive later; :+20us by that much"),
    ("reorder", "reorder=0>1:#3:+20us", "the next message overtakes it, or 20 us pass"),
];

impl FromStr for Rule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Rule> {
        let Some((kind, rest)) = text.split_once('=') else {
            let list: Vec<&str> = KINDS.iter().map(|kind| kind.1).collect();
            let (first, most) = (list[0], list[1..].join(", "));
            return Err(Error::Fault(format!("`{text}` is no rule; write {first}, or one of {most}")));
        };
        let kind = kind.trim();
        let Some(&(_, example, _)) = KINDS.iter().find(|known| known.0 == kind) else {
            return Err(Error::Fault(suggest::unknown("rule", kind, &KINDS.map(|kind| kind.0))));
        };
        Reader { text, example }.rule(kind, rest.trim())
    }
}

/// What is being read, for errors.
#[derive(Clone, Copy)]
struct Reader<'a> {
    text: &'a str,
    example: &'static str,
}

impl Reader<'_> {
    fn rule(self, kind: &str, rest: &str) -> Result<Rule> {
        if kind == "dead_rank" {
            return self.dead(rest);
        }
        let (rest, when) = self.when(rest)?;
        match kind {
            "slow_rank" => {
                let (ranks, effect) = self.parts(rest)?;
                let factor = effect
                    .strip_prefix('x')
                    .ok_or_else(|| self.wrong(effect, "must be a factor such as x4"))?;
                Ok(Rule::SlowRank { ranks: self.ranks(ranks)?, factor: self.factor(factor)?, when })
            }
            "jitter_rank" => {
                let (ranks, noise) = self.parts(rest)?;
                Ok(Rule::JitterRank { ranks: self.ranks(ranks)?, noise: self.noise(noise)?, when })
            }
            "device" => {
                let (ranks, device) = self.parts(rest)?;
                let device = Device::named(device).map_err(|error| Error::Fault(error.to_string()))?;
                match when {
                    When::ALWAYS => Ok(Rule::Device { ranks: self.ranks(ranks)?, device }),
                    _ => Err(self.wrong(rest, "has no time: a rank keeps its device")),
                }
            }
            "stop_rank" if rest.len() == self.text.len() - "stop_rank=".len() => {
                Err(self.wrong(self.text, "must say for how long"))
            }
            "stop_rank" => Ok(Rule::StopRank { ranks: self.ranks(rest)?, when }),
            "slow_link" => {
                let (links, effect) = self.parts(rest)?;
                let (factor, latency) = effect.split_once('+').unwrap_or((effect, ""));
                let factor = match factor.trim() {
                    "" => Factor::ONE,
                    x => match x.strip_prefix('x') {
                        Some(x) => self.factor(x)?,
                        None => {
                            return Err(self.wrong(
                                effect,
                                "is no effect; write a factor such as x10 or a latency such as +20us",
                            ));
                        }
                    },
                };
                let latency = match effect.contains('+') {
                    false => Picos::ZERO,
                    true => span::span(latency.trim()).ok_or_else(|| {
                        self.wrong(
                            effect,
                            "is no effect; write a factor such as x10 or a latency such as +20us",
                        )
                    })?,
                };
                Ok(Rule::SlowLink { links: self.links(links)?, factor, latency, when })
            }
            "jitter_link" => {
                let (links, noise) = self.parts(rest)?;
                Ok(Rule::JitterLink { links: self.links(links)?, noise: self.noise(noise)?, when })
            }
            "flap" => {
                let (links, effect) = self.parts(rest)?;
                let spans = effect
                    .split_once('/')
                    .and_then(|(down, period)| Some((span::span(down.trim())?, span::span(period.trim())?)));
                let spans = spans.filter(|(down, period)| Picos::ZERO < *down && down < period);
                let (down, period) = spans.ok_or_else(|| {
                    self.wrong(
                        effect,
                        "is no flapping; write how long it is down and the whole period, such as 1ms/10ms",
                    )
                })?;
                Ok(Rule::Flap { links: self.links(links)?, down, period, when })
            }
            "partition" => {
                let sides: Result<Vec<Ranks>> = rest.split('|').map(|side| self.ranks(side)).collect();
                let sides = sides?;
                if sides.len() < 2 || sides.contains(&Ranks::All) {
                    return Err(self.wrong(rest, "must name two sets of ranks or more, with | between them"));
                }
                Ok(Rule::Partition { sides, when })
            }
            "cut" => Ok(Rule::Cut { pair: self.pair(rest)?, when }),
            "drop" => self.some(rest).map(|(pair, which)| Rule::Drop { pair, which, when }),
            "corrupt" => self.some(rest).map(|(pair, which)| Rule::Corrupt { pair, which, when }),
            "duplicate" => self.some(rest).map(|(pair, which)| Rule::Duplicate { pair, which, when }),
            "delay" => {
                let (rest, noise) = self.parts(rest)?;
                let (pair, which) = self.some(rest)?;
                Ok(Rule::Delay { pair, which, noise: self.noise(noise)?, when })
            }
            _ => {
                let (rest, hold) = self.parts(rest)?;
                let (pair, which) = self.some(rest)?;
                let hold = hold.strip_prefix('+').and_then(span::span);
                let hold = hold.ok_or_else(|| {
                    self.wrong(rest, "must end with how long it is held back, such as +20us")
                })?;
                Ok(Rule::Reorder { pair, which, hold, when })
            }
        }
    }

    fn dead(self, rest: &str) -> Result<Rule> {
        let at = |(rank, at): (&str, &str)| Some((rank.to_string(), Death::At(span::span(at.trim())?)));
        let step = |(rank, step): (&str, &str)| {
            let (operation, round) =
                step.trim().strip_prefix("op")?.split_once('.').unwrap_or((&step.trim()[2..], "round0"));
            let (operation, round) = (operation.parse().ok()?, round.strip_prefix("round")?.parse().ok()?);
            Some((rank.to_string(), Death::In { operation, round }))
        };
        let read = rest.split_once('@').and_then(at).or_else(|| rest.split_once(':').and_then(step));
        let Some((rank, death)) = read else {
            return Err(self.wrong(rest, "does not say when; write 3@5ms, 3:op2 or 3:op2.round5"));
        };
        let rank = rank.trim().parse().map_err(|_| self.wrong(&rank, "is no rank; write a number from 0"))?;
        Ok(Rule::DeadRank { rank: Rank(rank), death })
    }

    /// What is before `@`, and the time after it.
    fn when(self, rest: &str) -> Result<(&str, When)> {
        let Some((rest, when)) = rest.rsplit_once('@') else { return Ok((rest, When::ALWAYS)) };
        let read = When::parse(when.trim());
        let read = read.ok_or_else(|| {
            self.wrong(when, "is no time; write from and until, such as 5ms..20ms or 5ms..")
        })?;
        Ok((rest.trim(), read))
    }

    fn parts(self, rest: &str) -> Result<(&str, &str)> {
        let parts = rest.rsplit_once(':').map(|(target, effect)| (target.trim(), effect.trim()));
        parts.ok_or_else(|| {
            Error::Fault(format!("`{}` has no effect; write it as in {}", self.text, self.example))
        })
    }

    /// A pair and which of its messages.
    fn some(self, rest: &str) -> Result<(Pair, Which)> {
        let (pair, which) = self.parts(rest)?;
        let read = Which::parse(which);
        let which =
            read.ok_or_else(|| self.wrong(which, "is no choice of messages; write #3, 0.1% or all"))?;
        Ok((self.pair(pair)?, which))
    }

    fn ranks(self, text: &str) -> Result<Ranks> {
        let read = Ranks::parse(text);
        read.ok_or_else(|| self.wrong(text, "is no rank; write a number from 0, 0-3, 0,2,5 or *"))
    }

    fn pair(self, text: &str) -> Result<Pair> {
        Pair::parse(text).ok_or_else(|| self.wrong(text, "is no pair of ranks; write 0>1, 0<>1 or *>3"))
    }

    fn links(self, text: &str) -> Result<Links> {
        let read = Links::parse(text);
        read.ok_or_else(|| {
            self.wrong(text, "is no link; write its family and number, such as up[0], up[0-3] or up[*]")
        })
    }

    fn factor(self, text: &str) -> Result<Factor> {
        Factor::parse(text).ok_or_else(|| {
            self.wrong(&format!("x{text}"), "is no factor; write x1 or more, such as x4 or x1.5")
        })
    }

    fn noise(self, text: &str) -> Result<Noise> {
        Noise::parse(text).ok_or_else(|| {
            self.wrong(text, "is no span of time; write +20us, uniform(1us,3us), exp(5us), lognormal(5us,0.5) or pareto(1us,1.5)")
        })
    }

    fn wrong(self, part: &str, what: &str) -> Error {
        Error::Fault(format!("`{part}` in `{}` {what}", self.text))
    }
}
