//! Exchanges, before ranks join over NCCL, each rank's state: whether its NCCL is usable and lets ranks share a GPU, and its GPU.
//!
//! A rank without NCCL, or two ranks on one GPU, must not make the other ranks wait within `ncclCommInitRankConfig`.

use super::api::{self, Api};
use super::control::Control;
use super::host::host;
use crate::{Error, Rank, Result};
use allfold_cuda::Queue;
#[cfg(any(test, feature = "testing"))]
use allfold_standin::Shim;

/// The first version that can have several ranks on one GPU, if a variable allows it.
const SHARES_FROM: (i32, i32, i32) = (2, 30, 0);
/// The variable that allows several ranks on one GPU.
const SHARES: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

/// The NCCL library, as one rank finds it.
pub(crate) struct NcclLibrary {
    pub(super) api: Result<&'static Api>,
    version: (i32, i32, i32),
    /// Whether several ranks on one GPU are allowed.
    shares: bool,
}

/// The result of the exchange between all ranks.
pub(crate) struct Presence {
    /// Why the ranks cannot join: the first rank that has no usable NCCL, or another version of it than rank 0.
    pub lacks: Option<String>,
    /// The first two ranks that share a GPU.
    pub on_one_gpu: Option<(Rank, Rank)>,
    /// The largest number of ranks on one GPU.
    most_on_one_gpu: u32,
    /// Whether NCCL allows ranks to share a GPU, on every rank.
    may_share: bool,
}

impl NcclLibrary {
    /// The library for a queue: the NCCL stand-in if the queue is on the shim, otherwise this machine's NCCL.
    pub fn of(queue: &Queue) -> NcclLibrary {
        #[cfg(any(test, feature = "testing"))]
        if Shim::of(queue.machine().as_ref()).is_some() || super::standin::spans_processes() {
            let options = super::standin::options(queue.machine());
            return NcclLibrary::new(Ok(super::standin::table(&options)), options.shares);
        }
        let _ = queue;
        NcclLibrary::new(api::api(), std::env::var_os(SHARES).is_some_and(|value| value == "1"))
    }

    fn new(api: Result<&'static Api>, allowed: bool) -> NcclLibrary {
        let known = api.and_then(|api| Ok((api, api::supported(api)?)));
        match known {
            Ok((api, version)) => {
                NcclLibrary { api: Ok(api), version, shares: allowed && version >= SHARES_FROM }
            }
            Err(error) => NcclLibrary { api: Err(error), version: (0, 0, 0), shares: false },
        }
    }

    /// Whether `auto` may use the library: always on a GPU; on the shim if a test enables it.
    pub fn offered(queue: &Queue) -> bool {
        #[cfg(any(test, feature = "testing"))]
        if Shim::of(queue.machine().as_ref()).is_some() {
            return super::standin::options(queue.machine()).offered;
        }
        queue.machine().native(queue.stream()).is_ok()
    }

    /// Exchanges with all ranks whether each has NCCL and may use it (this rank: `usable`), and its GPU. Every rank must call this.
    ///
    /// # Errors
    /// The error of the channel.
    pub fn ask(&self, queue: &Queue, usable: bool, control: &mut dyn Control) -> Result<Presence> {
        let mut mine = vec![u8::from(usable && self.api.is_ok()), u8::from(self.shares)];
        let (major, minor, patch) = self.version;
        mine.extend([major, minor, patch].map(|number| number as u8));
        mine.extend(host());
        mine.extend(queue.machine().identity(queue.device()));
        let all = control.all_gather(&mine)?;
        let rank = |at: usize| Rank(at as u32);
        let lacks = all.iter().position(|said| said.first() != Some(&1));
        let lacks = lacks.map(|rank| format!("rank {rank} has no NCCL; `allfold doctor` there says why"));
        let version = |at: usize| all.get(at).and_then(|said| said.get(2..5)).unwrap_or_default();
        let unlike = (1..all.len()).find(|other| version(*other) != version(0)).map(|other| {
            let [own, other_s] =
                [0, other].map(|at| version(at).iter().map(u8::to_string).collect::<Vec<_>>().join("."));
            format!("rank {other} has NCCL {other_s} and rank 0 has {own}: all ranks need the same version")
        });
        let may_share = all.iter().all(|said| said.get(1) == Some(&1));
        let place = |at: usize| all.get(at).and_then(|said| said.get(5..));
        let on_one_gpu =
            (0..all.len()).find_map(|b| (0..b).find(|a| place(*a) == place(b)).map(|a| (rank(a), rank(b))));
        let beside = |at: usize| (0..all.len()).filter(|other| place(*other) == place(at)).count() as u32;
        let most_on_one_gpu = (0..all.len()).map(beside).max().unwrap_or(1);
        Ok(Presence { lacks: lacks.or(unlike), on_one_gpu, most_on_one_gpu, may_share })
    }

    /// The library's functions and the most ranks on one GPU, if all ranks may join. Ranks exchange which library and GPU each has: no rank
    /// may wait for a rank without NCCL, or for two ranks on one GPU.
    ///
    /// # Errors
    /// Why the ranks cannot join; the error of the channel.
    pub(super) fn admitted(
        &self,
        queue: &Queue,
        size: u32,
        control: &mut dyn Control,
    ) -> Result<(&'static Api, u32)> {
        let presence = self.ask(queue, true, control)?;
        if let (Some(why), 2..) = (presence.lacks, size) {
            // A rank without NCCL says why. All ranks end alike, whichever of them is seen first.
            let own = self.api.as_ref().err().map(ToString::to_string);
            return Err(Error::Argument(own.unwrap_or(why)));
        }
        let api = self.api.clone()?;
        match (presence.on_one_gpu, presence.may_share) {
            (Some(pair), false) => Err(self.refuses(pair)),
            _ => Ok((api, presence.most_on_one_gpu)),
        }
    }

    /// The error that two ranks cannot share a GPU, with possible remedies.
    fn refuses(&self, (a, b): (Rank, Rank)) -> Error {
        let (major, minor, patch) = self.version;
        let shown = std::env::var("CUDA_VISIBLE_DEVICES").map_or(String::new(), |all| {
            format!(" of its own (CUDA_VISIBLE_DEVICES is \"{}\" here)", all.escape_debug())
        });
        Error::Argument(format!(
            "ranks {a} and {b} are on one GPU, which NCCL {major}.{minor}.{patch} refuses here: give each rank a GPU{shown}, \
             set {SHARES}=1 with NCCL 2.30 or newer, or exchange by `device` or `host`"
        ))
    }
}
