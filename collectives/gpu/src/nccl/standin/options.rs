//! What a test asks of the stand-in, by the machine on which the ranks are.

use allfold_base::lock;
use allfold_kernels::cuda::CudaMachine;
use std::sync::{Arc, Mutex, Weak};

/// How the other ranks notice that a rank is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerLoss {
    /// By an asynchronous error, as over sockets.
    Told,
    /// Not at all, as over NVLink.
    Silent,
}

/// What the stand-in for NCCL is like on one shim.
#[derive(Clone, Copy, Debug)]
pub struct StandIn {
    /// The version that the stand-in reports: one of those that [`stand_in`] lists.
    pub version: (i32, i32),
    /// Whether NCCL_MULTI_RANK_GPU_ENABLE is set: several ranks may be on one GPU.
    pub shares: bool,
    /// Whether `auto` finds it. It is found when it is asked for by name in any case.
    pub offered: bool,
    /// How a rank that is gone shows.
    pub lost: PeerLoss,
    /// Whether kernels that disagree fail with words. NCCL's own never end, or give wrong data.
    pub tells_mismatch: bool,
    /// Whether the first call of a kind waits for the peers' first call.
    pub connects: bool,
    /// Whether kernels never end.
    pub hangs: bool,
    /// Whether collectives return at once and do nothing: for the time of what is around them.
    pub instant: bool,
}

impl Default for StandIn {
    fn default() -> StandIn {
        StandIn {
            version: (2, 30),
            shares: false,
            offered: false,
            lost: PeerLoss::Told,
            tells_mismatch: true,
            connects: true,
            hangs: false,
            instant: false,
        }
    }
}

/// A weak reference keeps the machine's address from being given to another.
type Asked = (Weak<dyn CudaMachine>, StandIn);
static OPTIONS: Mutex<Vec<Asked>> = Mutex::new(Vec::new());

/// Sets what the stand-in for NCCL is like on a shim from here on. Versions: 2.30, 2.21 (neither estimates nor shrinks), 2.17
/// (too old) and 3.0.
pub fn stand_in(machine: &Arc<dyn CudaMachine>, options: StandIn) {
    let mut all = lock(&OPTIONS);
    all.retain(|(of, _)| of.strong_count() > 0 && !is(of, machine));
    all.push((Arc::downgrade(machine), options));
}

fn is(of: &Weak<dyn CudaMachine>, machine: &Arc<dyn CudaMachine>) -> bool {
    std::ptr::addr_eq(of.as_ptr(), Arc::as_ptr(machine))
}

/// The options of the stand-in on a machine.
pub(in super::super) fn options(machine: &Arc<dyn CudaMachine>) -> StandIn {
    let all = lock(&OPTIONS);
    all.iter().find(|(of, _)| is(of, machine)).map_or_else(StandIn::default, |(_, options)| *options)
}
