//! Candidates: a cause in one degree, as a change of a run's settings and of its cases.

use super::cause::SlowCause;
use crate::prepare::{GivenMachine, Prepared, prepare};
use crate::runs::Run;
use crate::settings::SLOWING;
use allfold_nccl_model::physics::{CallMachine, Parameters, PhysicsCase, Terms, closed};
use allfold_schedules::Collective;
use allfold_sim::machines::Fabric;

/// A cause in one degree, and the run with it.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The cause.
    pub cause: SlowCause,
    /// The degree in words: `2 of 8 NICs`; empty if the cause has one degree.
    pub degree: String,
    /// The run with the cause, whose rows are those of the run.
    pub run: Prepared,
    /// The share of the links in a node, and of the network, that is left.
    shares: [f64; 2],
    /// Microseconds that are added to every call.
    late_us: f64,
}

/// What a candidate changes.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) cause: SlowCause,
    pub(super) degree: String,
    /// Variables and their values.
    pub(super) env: Vec<(&'static str, String)>,
    /// The share of the links in a node, and of the network, that is left.
    pub(super) shares: [f64; 2],
    pub(super) late_us: f64,
}

/// Microseconds by which a rank may come late.
const LATE_US: [f64; 6] = [15.0, 30.0, 60.0, 120.0, 250.0, 500.0];
/// Shares of a link's speed that are left: one generation of PCIe less or half of the lanes, and twice that.
const LEFT: [f64; 3] = [0.75, 0.5, 0.25];

impl Candidate {
    /// The healthy run, and the run with each cause that its machine can have, in every degree.
    ///
    /// # Errors
    /// As [`prepare`], of the healthy run.
    pub fn all(run: &Run, given: Option<&GivenMachine>) -> Result<Vec<Candidate>, String> {
        let sound = sound(run);
        let healthy = prepare(&sound, given, true)?;
        let changes = changes(&healthy, run.collective);
        let mut all = vec![Candidate {
            cause: SlowCause::Healthy,
            degree: String::new(),
            run: healthy,
            shares: [1.0; 2],
            late_us: 0.0,
        }];
        all.push(Candidate { cause: SlowCause::Other, ..all[0].clone() });
        // A choice that the machine does not have, such as trees for an all-gather, is no candidate.
        all.extend(changes.into_iter().filter_map(|change| Candidate::with(&sound, given, change).ok()));
        Ok(all)
    }

    /// A run with a change.
    pub(super) fn with(
        sound: &Run,
        given: Option<&GivenMachine>,
        change: Change,
    ) -> Result<Candidate, String> {
        let mut changed = sound.clone();
        changed.env.extend(change.env.into_iter().map(|(key, value)| (key.into(), value)));
        let run = prepare(&changed, given, true)?;
        let Change { cause, degree, shares, late_us, .. } = change;
        Ok(Candidate { cause, degree, run, shares, late_us })
    }

    /// The time of every row in microseconds.
    pub fn times(&self, parameters: &Parameters) -> Vec<f64> {
        self.run.rows.iter().map(|row| self.time(row.case, parameters)).collect()
    }

    /// The time of a call that the run did not make, in microseconds; `None` if NCCL cannot choose how to run it.
    pub fn time_of(&self, collective: Collective, bytes: u64, parameters: &Parameters) -> Option<f64> {
        self.run.setting.case(collective, bytes, false).ok().map(|case| self.time(case, parameters))
    }

    fn time(&self, case: PhysicsCase, parameters: &Parameters) -> f64 {
        let [inside, across] = self.shares;
        let CallMachine { port, network, .. } = case.machine;
        let machine = CallMachine { port: port * inside, network: network * across, ..case.machine };
        let case = PhysicsCase { machine, ..case };
        closed(&case, parameters, Terms::default()) + self.late_us
    }

    /// The cause with its degree: `NICs missing (4 of 8)`.
    pub fn title(&self) -> String {
        match &*self.degree {
            "" => self.cause.name().into(),
            degree => format!("{} ({degree})", self.cause),
        }
    }
}

/// A run without the settings that make it slow.
pub(super) fn sound(run: &Run) -> Run {
    let mut sound = run.clone();
    sound.env.retain(|key, _| !SLOWING.contains(&key.as_str()));
    sound
}

pub(super) fn changes(healthy: &Prepared, collective: Collective) -> Vec<Change> {
    let machine = &healthy.setting.machine;
    let platform = &healthy.setting.platform;
    let mut all = Vec::new();
    let mut set = |cause, degree: String, key, value: String| {
        all.push(Change { cause, degree, env: vec![(key, value)], shares: [1.0; 2], late_us: 0.0 });
    };
    let plain = String::new;
    if let Some(nics) = machine.nics {
        if nics.gpudirect {
            set(SlowCause::NoGpuDirect, plain(), "NCCL_NET_GDR_LEVEL", "LOC".into());
        }
        if nics.fabric != Fabric::Sockets {
            set(SlowCause::Sockets, plain(), "NCCL_IB_DISABLE", "1".into());
        }
        let mut left = vec![nics.count * 3 / 4, nics.count / 2, nics.count / 4];
        left.dedup();
        for count in left.into_iter().filter(|count| (2..nics.count).contains(count)) {
            let degree = format!("{count} of {}", nics.count);
            set(SlowCause::NicsMissing, degree, "NCCL_IB_HCA", listed(count));
        }
        if nics.count > 1 {
            set(SlowCause::OneRail, format!("1 of {}", nics.count), "NCCL_IB_HCA", listed(1));
        }
    }
    if machine.devices > 1 && (machine.nvlink || machine.peer) {
        set(SlowCause::NoPeer, plain(), "NCCL_P2P_DISABLE", "1".into());
    }
    if collective == Collective::AllToAll {
        all.extend(slow(healthy));
        return all;
    }
    for name in ["Ring", "Tree", "NVLSTree"] {
        set(SlowCause::Algorithm, name.into(), "NCCL_ALGO", name.into());
    }
    for name in ["LL", "LL128", "Simple"] {
        set(SlowCause::Protocol, name.into(), "NCCL_PROTO", name.into());
    }
    if platform.ll128 {
        set(SlowCause::NoLl128, plain(), "NCCL_PROTO", "^LL128".into());
    }
    if platform.nvls.is_some() {
        set(SlowCause::NoNvls, plain(), "NCCL_NVLS_ENABLE", "0".into());
    }
    all.extend(slow(healthy));
    all
}

/// Sockets over one interface, few channels, slow links and late ranks.
fn slow(healthy: &Prepared) -> Vec<Change> {
    let machine = &healthy.setting.machine;
    let (ring, doubled) = (healthy.setting.platform.ring, healthy.setting.platform.doubled);
    let [port, network] =
        healthy.rows.first().map_or([1.0; 2], |row| [row.case.machine.port, row.case.machine.network]);
    let whole = Change {
        cause: SlowCause::LateRank,
        degree: String::new(),
        env: Vec::new(),
        shares: [1.0; 2],
        late_us: 0.0,
    };
    let late =
        LATE_US.iter().map(|&late_us| Change { degree: format!("{late_us} us"), late_us, ..whole.clone() });
    let mut all: Vec<Change> = late.collect();
    if let Some(nics) = machine.nics.filter(|nics| nics.count > 1 && nics.fabric != Fabric::Sockets) {
        all.push(Change {
            cause: SlowCause::Sockets,
            degree: format!("1 interface of {}", nics.count),
            env: vec![("NCCL_IB_DISABLE", "1".into()), ("NCCL_IB_HCA", listed(1))],
            ..whole.clone()
        });
    }
    for left in LEFT {
        let slow = Change { cause: SlowCause::SlowLinks, ..whole.clone() };
        let percent = 100.0 * left;
        if machine.nics.is_some() {
            all.push(Change { degree: format!("NICs at {percent} %"), shares: [1.0, left], ..slow.clone() });
        }
        if machine.devices > 1 {
            let kind = if machine.nvlink { "NVLink" } else { "PCIe" };
            all.push(Change { degree: format!("{kind} at {percent} %"), shares: [left, 1.0], ..slow });
        }
    }
    for count in [1, 2, 4, 8].into_iter().filter(|count| *count < ring.channels * doubled) {
        // A channel moves no more than the graph search counts on, GB/s (`src/graph/search.cc`).
        let share =
            |all: f64, each: f64| if all > 0.0 { (f64::from(count) * each / all).min(1.0) } else { 1.0 };
        all.push(Change {
            cause: SlowCause::FewChannels,
            degree: count.to_string(),
            env: vec![("NCCL_MAX_NCHANNELS", count.to_string())],
            shares: [share(port, ring.inside), share(network, ring.across)],
            late_us: 0.0,
        });
    }
    all
}

/// `NCCL_IB_HCA` with this many NICs.
fn listed(count: u32) -> String {
    (0..count).map(|nic| format!("mlx5_{nic}")).collect::<Vec<_>>().join(",")
}
