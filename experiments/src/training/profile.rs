//! A profile of a run: how long each layer's passes take, in the steps that a schedule names.
//!
//! ```text
//! skip=5,wait=1,warmup=1,active=3,repeat=2
//! step   0 1 2 3 4   5   6   7 8 9   10  11  12 13 14   15 ..
//!        skipped     w   u   recorded  w   u   recorded   not recorded any more
//! ```

use allfold_report::format::counted;
use allfold_sim::Picos;
use allfold_trainer::StepReport;
use allfold_trainer::timing::{LayerSpan, StepSpan, StepWork};
use std::collections::BTreeMap;
use std::str::FromStr;

/// Which steps of a process are recorded, counted from its first one: those of `torch.profiler.schedule` with the same numbers. Steps
/// of `warmup` are recorded and left out of the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileSchedule {
    /// Steps before the first period.
    pub skip: u64,
    /// Steps at the start of a period that are not recorded.
    pub wait: u64,
    /// Steps after the waiting ones that are recorded and left out.
    pub warmup: u64,
    /// Steps after the warm-up ones that are in the profile, 1 or more.
    pub active: u64,
    /// The number of periods; 0: until the run ends.
    pub repeat: u64,
}

impl Default for ProfileSchedule {
    fn default() -> Self {
        ProfileSchedule { skip: 0, wait: 1, warmup: 1, active: 3, repeat: 1 }
    }
}

impl FromStr for ProfileSchedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut schedule = ProfileSchedule::default();
        for pair in text.split(',') {
            let right = "write for example `wait=1,warmup=1,active=3,repeat=2`";
            let (key, number) =
                pair.split_once('=').ok_or_else(|| format!("`{pair}` has no `=`; {right}"))?;
            let number = number.parse().map_err(|_| format!("`{number}` is no number of steps; {right}"))?;
            match key {
                "skip" => schedule.skip = number,
                "wait" => schedule.wait = number,
                "warmup" => schedule.warmup = number,
                "active" => schedule.active = number,
                "repeat" => schedule.repeat = number,
                _ => {
                    return Err(format!("`{key}` is none of skip, wait, warmup, active and repeat; {right}"));
                }
            }
        }
        if schedule.active == 0 {
            return Err("`active` is 0, so no step would be recorded; set it to 1 or more".into());
        }
        Ok(schedule)
    }
}

impl ProfileSchedule {
    /// The place of a step in its period; `None` before the first period and after the last.
    fn place(&self, step: u64) -> Option<u64> {
        let ProfileSchedule { skip, wait, warmup, active, repeat } = *self;
        let period = wait.saturating_add(warmup).saturating_add(active);
        let (number, place) = (step.checked_sub(skip)? / period, (step - skip) % period);
        (repeat == 0 || number < repeat).then_some(place)
    }

    /// Whether a step is recorded, for the profile or to warm up.
    pub fn records(&self, step: u64) -> bool {
        self.place(step).is_some_and(|place| place >= self.wait)
    }

    /// Whether a step is in the profile.
    pub fn profiles(&self, step: u64) -> bool {
        self.place(step).is_some_and(|place| place >= self.lead())
    }

    /// Whether any of so many steps is in the profile.
    pub fn fits(&self, steps: u64) -> bool {
        self.skip.saturating_add(self.lead()) < steps
    }

    /// The steps of a period before the active ones.
    fn lead(&self) -> u64 {
        self.wait.saturating_add(self.warmup)
    }
}

/// A step of one rank in a profile.
#[derive(Clone, Debug)]
pub struct ProfiledStep {
    /// The number of the step in the run, from 0.
    pub step: u64,
    /// When the step began, and when it ended.
    pub span: (Picos, Picos),
    /// The passes of layers.
    pub layers: Vec<LayerSpan>,
    /// The rank's work and waiting.
    pub spans: Vec<StepSpan>,
}

/// The profile of one rank.
#[derive(Clone, Debug, Default)]
pub struct RankProfile {
    /// The names of all layers.
    pub names: Vec<String>,
    /// The steps in the profile, in order.
    pub steps: Vec<ProfiledStep>,
}

impl RankProfile {
    /// Adds a step that ended at `end`.
    pub fn add(&mut self, report: &StepReport) {
        if self.names.is_empty() {
            self.names = report.layer_names.to_vec();
        }
        let (layers, spans) = (report.layers.to_vec(), report.spans.to_vec());
        self.steps.push(ProfiledStep {
            step: report.step,
            span: (report.start, report.start + report.time.total()),
            layers,
            spans,
        });
    }

    /// The name of a layer, or of the loss.
    pub fn name(&self, layer: Option<usize>) -> &str {
        layer.map_or("loss", |layer| self.names.get(layer).map_or("", String::as_str))
    }
}

/// The mean times of one layer in a step, over ranks that have the layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerTime {
    /// The name of the layer.
    pub name: String,
    /// Microseconds of forward passes, gradients of inputs and gradients of weights.
    pub us: [f64; 3],
}

impl LayerTime {
    /// All passes.
    pub fn total_us(&self) -> f64 {
        self.us.iter().sum()
    }
}

/// The mean times of all layers in a step, in order of layers.
pub fn by_layer(ranks: &[RankProfile]) -> Vec<LayerTime> {
    // For each layer: picoseconds of each pass, and the number of steps of ranks that had the layer.
    let mut all: BTreeMap<usize, ([u64; 3], u64)> = BTreeMap::new();
    for step in ranks.iter().flat_map(|rank| &rank.steps) {
        let mut had = BTreeMap::new();
        for span in &step.layers {
            let pass = match span.work {
                StepWork::Forward => 0,
                StepWork::WeightGrad => 2,
                _ => 1,
            };
            let times: &mut [u64; 3] = had.entry(span.layer.unwrap_or(usize::MAX)).or_default();
            times[pass] += (span.end - span.start).0;
        }
        for (layer, times) in had {
            let (sums, count) = all.entry(layer).or_default();
            sums.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
            *count += 1;
        }
    }
    let first = ranks.first();
    all.into_iter()
        .map(|(layer, (sums, count))| LayerTime {
            name: first.map_or("", |rank| rank.name((layer != usize::MAX).then_some(layer))).into(),
            us: sums.map(|picos| picos as f64 / 1e6 / count as f64),
        })
        .collect()
}

/// The table of the layers that take the most time. A run that ended early may have no profiled step; a line then says so.
pub fn summary(ranks: &[RankProfile], most: usize) -> Vec<String> {
    match ranks.iter().all(|rank| rank.steps.is_empty()) {
        true => {
            vec!["no step was profiled: this process ended before the schedule's first active step".into()]
        }
        false => table(ranks, most),
    }
}

/// The table of the layers that take the most time, and a line with the sum of the others.
fn table(ranks: &[RankProfile], most: usize) -> Vec<String> {
    let layers = by_layer(ranks);
    let all: f64 = layers.iter().map(LayerTime::total_us).sum();
    let mut sorted: Vec<&LayerTime> = layers.iter().collect();
    sorted.sort_by(|a, b| b.total_us().total_cmp(&a.total_us()));
    let (shown, rest) = sorted.split_at(most.min(sorted.len()));
    let width = shown.iter().map(|layer| layer.name.len()).max().unwrap_or(0).max(24);
    let line = |name: &str, us: [f64; 3]| {
        let total: f64 = us.iter().sum();
        let share = if all > 0.0 { total / all * 100.0 } else { 0.0 };
        let [forward, input, weight] = us;
        format!("  {name:width$} {forward:>12.1} {input:>12.1} {weight:>12.1} {total:>12.1} {share:>6.1} %")
    };
    let mut lines = vec![format!(
        "  {:width$} {:>12} {:>12} {:>12} {:>12} {:>8}",
        "us per step and rank", "forward", "input grad", "weight grad", "all", "share"
    )];
    lines.extend(shown.iter().map(|layer| line(&layer.name, layer.us)));
    if !rest.is_empty() {
        let sum = |pass: usize| rest.iter().map(|layer| layer.us[pass]).sum();
        lines.push(line(&counted(rest.len(), "other layer"), [sum(0), sum(1), sum(2)]));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_names_the_steps_that_torchs_does() {
        let of = |text: &str| text.parse::<ProfileSchedule>();
        let steps = |text: &str| (0..20).filter(|step| of(text).unwrap().profiles(*step)).collect::<Vec<_>>();
        assert_eq!(steps("active=3"), [2, 3, 4]);
        assert_eq!(steps("wait=1,warmup=1,active=2,repeat=2"), [2, 3, 6, 7]);
        assert_eq!(steps("skip=5,wait=2,warmup=0,active=1,repeat=0"), [7, 10, 13, 16, 19]);
        let schedule = of("wait=1,warmup=1,active=1").unwrap();
        assert_eq!((0..4).map(|step| schedule.records(step)).collect::<Vec<_>>(), [false, true, true, false]);
        assert!(!schedule.fits(2) && schedule.fits(3));
        let never = of(&format!("wait={}", u64::MAX)).unwrap();
        assert!(!never.fits(u64::MAX) && !never.records(0) && !never.profiles(0));
        assert!(of("active=0").unwrap_err().contains("set it to 1 or more"));
        assert!(of("often=1").unwrap_err().starts_with("`often` is none of skip, wait"));
        assert!(of("wait=x").unwrap_err().starts_with("`x` is no number of steps"));
        assert!(of("wait").unwrap_err().starts_with("`wait` has no `=`"));
    }

    #[test]
    fn times_are_means_over_steps_of_ranks_that_have_the_layer() {
        let span = |layer, work, us: u64| LayerSpan {
            layer,
            work,
            start: Picos(5_000_000),
            end: Picos(5_000_000 + us * 1_000_000),
        };
        let step = |layers: Vec<LayerSpan>| ProfiledStep {
            step: 0,
            span: (Picos::ZERO, Picos(9)),
            layers,
            spans: Vec::new(),
        };
        let names: Vec<String> = ["a", "b"].map(String::from).to_vec();
        let two = RankProfile {
            names: names.clone(),
            steps: vec![
                step(vec![span(Some(0), StepWork::Forward, 4), span(Some(0), StepWork::Forward, 2)]),
                step(vec![span(Some(0), StepWork::Forward, 2), span(None, StepWork::InputGrad, 3)]),
            ],
        };
        let other = RankProfile { names, steps: vec![step(vec![span(Some(1), StepWork::WeightGrad, 7)])] };
        let ranks = [two, other];
        let time = |name: &str, us| LayerTime { name: name.into(), us };
        assert_eq!(
            by_layer(&ranks),
            [time("a", [4.0, 0.0, 0.0]), time("b", [0.0, 0.0, 7.0]), time("loss", [0.0, 3.0, 0.0])]
        );
        assert!(summary(&[RankProfile::default()], 1)[0].starts_with("no step was profiled"));
        let lines = summary(&ranks, 1);
        assert!(lines[1].starts_with("  b ") && lines[1].ends_with(" 7.0   50.0 %"), "{lines:?}");
        assert!(lines[2].starts_with("  2 other layers") && lines[2].ends_with(" 7.0   50.0 %"), "{lines:?}");
    }
}
