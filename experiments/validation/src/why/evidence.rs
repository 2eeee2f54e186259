//! What the settings of a run and a log of NCCL say on causes: confirmed, or ruled out.

use super::cause::SlowCause;
use crate::runs::{LogFacts, Run};
use crate::settings::listed;

/// By how much a cause is likelier if a log or a setting shows it; it may still not be what slows the run.
const CONFIRMED: f64 = 30.0;
/// By how much a cause is less likely if a log shows the opposite; of some nodes a log may lack lines.
const RULED_OUT: f64 = 0.01;

/// Causes that a setting or a log confirms or rules out.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// The cause, whether it is confirmed (else ruled out), and what shows it.
    pub found: Vec<(SlowCause, bool, String)>,
}

impl Evidence {
    /// The evidence in a run's settings and, if there is one, a log. `nics`: the number of NICs of a node of the machine.
    pub fn of(run: &Run, log: Option<&LogFacts>, nics: Option<u32>) -> Evidence {
        let mut env = run.env.clone();
        env.extend(log.iter().flat_map(|log| log.env.clone()));
        let mut evidence = Evidence::default();
        for (key, value) in &env {
            let (off, on) = (value == "0" || value.eq_ignore_ascii_case("LOC"), value == "1");
            let cause = match key.as_str() {
                "NCCL_ALGO" | "NCCL_TREE_THRESHOLD" => SlowCause::Algorithm,
                "NCCL_PROTO" if value.eq_ignore_ascii_case("^LL128") => SlowCause::NoLl128,
                "NCCL_PROTO" => SlowCause::Protocol,
                "NCCL_NVLS_ENABLE" if off => SlowCause::NoNvls,
                "NCCL_MAX_NCHANNELS" | "NCCL_MAX_CTAS" => SlowCause::FewChannels,
                "NCCL_IB_DISABLE" if on => SlowCause::Sockets,
                "NCCL_NET" if value.eq_ignore_ascii_case("socket") => SlowCause::Sockets,
                "NCCL_NET_GDR_LEVEL" if off => SlowCause::NoGpuDirect,
                "NCCL_P2P_DISABLE" if on => SlowCause::NoPeer,
                "NCCL_P2P_LEVEL" if off => SlowCause::NoPeer,
                "NCCL_IB_HCA" => match listed(value) {
                    Some(1) if nics.is_some_and(|nics| nics > 1) => SlowCause::OneRail,
                    Some(count) if nics.is_some_and(|nics| count < nics) => SlowCause::NicsMissing,
                    _ => continue,
                },
                _ => continue,
            };
            evidence.found.push((cause, true, format!("{key}={value}")));
        }
        if let Some(log) = log {
            evidence.log(log, nics);
        }
        evidence
    }

    fn log(&mut self, log: &LogFacts, nics: Option<u32>) {
        let shown = |words: &str| log.used.contains(words);
        let mut out = |causes: &[SlowCause], why: &str| {
            for cause in causes {
                // What is set is not ruled out by what some channels do.
                if !self.found.iter().any(|(found, ..)| found == cause) {
                    self.found.push((*cause, false, why.into()));
                }
            }
        };
        if shown("/GDRDMA") {
            out(&[SlowCause::NoGpuDirect], "channels by /GDRDMA");
        }
        if shown("via NET/") && !shown("via NET/Socket") && !shown("Using network Socket") {
            out(&[SlowCause::Sockets], "channels via NET/, none of them sockets");
        }
        if shown("via P2P") && !shown("via SHM") {
            out(&[SlowCause::NoPeer], "channels via P2P");
        }
        if shown("Init COMPLETE") {
            // NCCL prints each variable that it takes from the environment.
            let forced = [SlowCause::Algorithm, SlowCause::Protocol, SlowCause::FewChannels];
            out(&forced, "no line `set by environment` for it");
        }
        match (log.nics, nics) {
            (Some(1), Some(2..)) => self.found.push((SlowCause::OneRail, true, "the log uses 1 NIC".into())),
            (Some(used), Some(all)) if used < all => {
                self.found.push((SlowCause::NicsMissing, true, format!("the log uses {used} NICs of {all}")));
            }
            (Some(used), Some(_)) => {
                out(&[SlowCause::NicsMissing, SlowCause::OneRail], &format!("the log uses {used} NICs"));
            }
            _ => {}
        }
    }

    /// By how much a cause is likelier with this evidence.
    pub fn weight(&self, cause: SlowCause) -> f64 {
        let of_cause = self.found.iter().find(|(found, ..)| *found == cause);
        of_cause.map_or(1.0, |(_, confirmed, _)| if *confirmed { CONFIRMED } else { RULED_OUT })
    }
}
