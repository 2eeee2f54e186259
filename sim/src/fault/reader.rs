//! Parsers for the text that follows the kind and `=` in a fault rule.

use super::rule::Death;
use super::{Factor, Links, Noise, Pair, Ranks, Rule, When, Which, span};
use crate::{Device, Error, Picos, Rank, Result};

/// The text and the kind's example of the rule that is being parsed, for error messages.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) text: &'a str,
    pub(super) example: &'static str,
}

/// Examples of links, of a switch. [`Faults::parse`](super::Faults::parse) replaces them by links of its topology.
pub(super) const LINK_EXAMPLES: &str = "up[0], up[0-3] or up[*]";

/// One parser for each kind of rule.
impl Reader<'_> {
    pub(super) fn slow_rank(self, rest: &str) -> Result<Rule> {
        let (ranks, effect, when) = self.effect(rest)?;
        let factor = effect.strip_prefix('x');
        let factor = factor.ok_or_else(|| self.wrong(effect, "must be a factor such as x4"))?;
        Ok(Rule::SlowRank { ranks: self.ranks(ranks)?, factor: self.factor(factor)?, when })
    }

    pub(super) fn jitter_rank(self, rest: &str) -> Result<Rule> {
        let (ranks, noise, when) = self.effect(rest)?;
        Ok(Rule::JitterRank { ranks: self.ranks(ranks)?, noise: self.noise(noise)?, when })
    }

    pub(super) fn device(self, rest: &str) -> Result<Rule> {
        let (rest, when) = self.when(rest)?;
        let (ranks, device) = self.parts(rest)?;
        let device = Device::named(device).map_err(|error| Error::Fault(error.to_string()))?;
        match when {
            When::ALWAYS => Ok(Rule::Device { ranks: self.ranks(ranks)?, device }),
            _ => Err(self.wrong(rest, "takes no time span: a rank has the same device for the whole run")),
        }
    }

    pub(super) fn stop_rank(self, rest: &str) -> Result<Rule> {
        let (ranks, when) = self.when(rest)?;
        if !rest.contains('@') {
            return Err(self.wrong(self.text, "needs a time span, such as `@1ms..2ms`"));
        }
        Ok(Rule::StopRank { ranks: self.ranks(ranks)?, when })
    }

    pub(super) fn slow_link(self, rest: &str) -> Result<Rule> {
        let (links, effect, when) = self.effect(rest)?;
        let none =
            || self.wrong(effect, "is no effect; write a factor such as x10 or a latency such as +20us");
        let (factor, latency) = effect.split_once('+').unwrap_or((effect, ""));
        let factor = match factor.trim() {
            "" => Factor::ONE,
            factor => self.factor(factor.strip_prefix('x').ok_or_else(none)?)?,
        };
        let latency = match effect.contains('+') {
            false => Picos::ZERO,
            true => span::span(latency.trim()).ok_or_else(none)?,
        };
        Ok(Rule::SlowLink { links: self.links(links)?, factor, latency, when })
    }

    pub(super) fn jitter_link(self, rest: &str) -> Result<Rule> {
        let (links, noise, when) = self.effect(rest)?;
        Ok(Rule::JitterLink { links: self.links(links)?, noise: self.noise(noise)?, when })
    }

    pub(super) fn flap(self, rest: &str) -> Result<Rule> {
        let (links, effect, when) = self.effect(rest)?;
        let spans = effect
            .split_once('/')
            .and_then(|(down, period)| Some((span::span(down.trim())?, span::span(period.trim())?)));
        let spans = spans.filter(|(down, period)| Picos::ZERO < *down && down < period);
        let (down, period) = spans.ok_or_else(|| {
            self.wrong(
                effect,
                "is no flapping; write how long the link is down and the whole period, such as 1ms/10ms",
            )
        })?;
        Ok(Rule::Flap { links: self.links(links)?, down, period, when })
    }

    pub(super) fn partition(self, rest: &str) -> Result<Rule> {
        let (rest, when) = self.when(rest)?;
        let sides = rest.split('|').map(|side| self.ranks(side)).collect::<Result<Vec<Ranks>>>()?;
        if sides.len() < 2 || sides.contains(&Ranks::All) {
            return Err(self.wrong(rest, "must name two sets of ranks or more, with | between them"));
        }
        Ok(Rule::Partition { sides, when })
    }

    pub(super) fn cut(self, rest: &str) -> Result<Rule> {
        let (pair, when) = self.when(rest)?;
        Ok(Rule::Cut { pair: self.pair(pair)?, when })
    }

    pub(super) fn drop(self, rest: &str) -> Result<Rule> {
        let (rest, when) = self.when(rest)?;
        self.some(rest).map(|(pair, which)| Rule::Drop { pair, which, when })
    }

    pub(super) fn corrupt(self, rest: &str) -> Result<Rule> {
        let (rest, when) = self.when(rest)?;
        self.some(rest).map(|(pair, which)| Rule::Corrupt { pair, which, when })
    }

    pub(super) fn duplicate(self, rest: &str) -> Result<Rule> {
        let (rest, when) = self.when(rest)?;
        self.some(rest).map(|(pair, which)| Rule::Duplicate { pair, which, when })
    }

    pub(super) fn delay(self, rest: &str) -> Result<Rule> {
        let (messages, noise, when) = self.effect(rest)?;
        let (pair, which) = self.some(messages)?;
        Ok(Rule::Delay { pair, which, noise: self.noise(noise)?, when })
    }

    pub(super) fn reorder(self, rest: &str) -> Result<Rule> {
        let (messages, hold, when) = self.effect(rest)?;
        let (pair, which) = self.some(messages)?;
        let hold = hold.strip_prefix('+').and_then(span::span);
        let hold =
            hold.ok_or_else(|| self.wrong(messages, "must end with the longest delay, such as +20us"))?;
        Ok(Rule::Reorder { pair, which, hold, when })
    }

    pub(super) fn dead_rank(self, rest: &str) -> Result<Rule> {
        let at = |(rank, at): (&str, &str)| Some((rank.to_string(), Death::At(span::span(at.trim())?)));
        let step = |(rank, step): (&str, &str)| {
            let (operation, round) =
                step.trim().strip_prefix("op")?.split_once('.').unwrap_or((&step.trim()[2..], "round0"));
            let (operation, round) = (operation.parse().ok()?, round.strip_prefix("round")?.parse().ok()?);
            Some((rank.to_string(), Death::In { operation, round }))
        };
        let read = rest.split_once('@').and_then(at).or_else(|| rest.split_once(':').and_then(step));
        let Some((rank, death)) = read else {
            return Err(self.wrong(rest, "has no time; write 3@5ms, 3:op2 or 3:op2.round5"));
        };
        let rank = rank.trim().parse().map_err(|_| self.wrong(&rank, "is no rank; write a number from 0"))?;
        Ok(Rule::DeadRank { rank: Rank(rank), death })
    }
}

/// Parsers for the parts that several kinds of rule share.
impl Reader<'_> {
    /// Splits the text into the target, the effect behind the last `:`, and the time.
    fn effect(self, rest: &str) -> Result<(&str, &str, When)> {
        let (rest, when) = self.when(rest)?;
        let (target, effect) = self.parts(rest)?;
        Ok((target, effect, when))
    }

    /// Splits the text into the part before `@` and the time after it; a rule without `@` always holds.
    fn when(self, rest: &str) -> Result<(&str, When)> {
        let Some((rest, when)) = rest.rsplit_once('@') else { return Ok((rest, When::ALWAYS)) };
        let read = When::parse(when.trim());
        let read = read.ok_or_else(|| {
            self.wrong(when, "is not a time; write from and until, such as 5ms..20ms or 5ms..")
        })?;
        Ok((rest.trim(), read))
    }

    fn parts(self, rest: &str) -> Result<(&str, &str)> {
        let parts = rest.rsplit_once(':').map(|(target, effect)| (target.trim(), effect.trim()));
        parts.ok_or_else(|| {
            Error::Fault(format!("`{}` has no effect; write it as in {}", self.text, self.example))
        })
    }

    /// Parses a pair of ranks and the messages of the pair that the rule affects.
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
            let what = "is not a link; write its family and number, such as";
            match text.contains('>') {
                // A link of a graph, without its number.
                true => self.wrong(text, &format!("{what} {}[0]", text.split('[').next().unwrap_or(text))),
                false => self.wrong(text, &format!("{what} {LINK_EXAMPLES}")),
            }
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
