//! The options that a test sets for the stand-in for NCCL, for one machine.

use allfold_base::lock;
use allfold_cuda::CudaMachine;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// How the other ranks of a communicator notice a lost rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerLoss {
    /// By an asynchronous error, as over sockets.
    Told,
    /// Not at all, as over NVLink.
    Silent,
}

/// What befalls a process in the middle of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessFault {
    /// It is killed.
    Killed,
    /// It is stopped.
    Stopped,
    /// It pauses for a second.
    Late,
}

/// The behaviour of the stand-in for NCCL on one shim.
#[derive(Clone, Copy, Debug)]
pub struct StandIn {
    /// The version that the NCCL stand-in reports: one of those that [`stand_in`] lists.
    pub version: (i32, i32),
    /// Whether NCCL_MULTI_RANK_GPU_ENABLE is set: several ranks may be on one GPU.
    pub shares: bool,
    /// Whether `auto` uses the NCCL stand-in. A request for NCCL by name always uses it.
    pub offered: bool,
    /// How other ranks notice a lost rank.
    pub lost: PeerLoss,
    /// Whether mismatched kernels fail with a message. Real NCCL kernels never end, or give wrong data.
    pub tells_mismatch: bool,
    /// Whether the first call of a kind waits for the peers' first call.
    pub connects: bool,
    /// Whether kernels never end.
    pub hangs: bool,
    /// Whether collectives return immediately and do nothing, for measuring the time of the surrounding code.
    pub instant: bool,
    /// Whether a captured call registers its buffers, which waits for the peers' same call.
    pub registers: bool,
    /// What befalls this process in its collective of this number, counted from 1 over all communicators.
    pub fault: Option<(u64, ProcessFault)>,
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
            registers: false,
            fault: None,
        }
    }
}

/// A machine with its options. The weak reference prevents another machine from getting the same address.
type Asked = (Weak<dyn CudaMachine>, StandIn);
static OPTIONS: Mutex<Vec<Asked>> = Mutex::new(Vec::new());

/// Sets the behaviour of the stand-in for NCCL on a shim from now on. Versions: 2.30, 2.21 (can neither estimate nor shrink, and has no windows),
/// 2.17 (too old) and 3.0.
pub fn stand_in(machine: &Arc<dyn CudaMachine>, options: StandIn) {
    let mut all = lock(&OPTIONS);
    all.retain(|(of, _)| of.strong_count() > 0 && !is(of, machine));
    all.push((Arc::downgrade(machine), options));
}

/// The options of a process that is one of the ranks.
static ACROSS: OnceLock<StandIn> = OnceLock::new();

/// Makes the NCCL stand-in this process's NCCL on machines other than shims, and lets its communicators span processes of this host.
/// Only the first call counts.
pub fn across_processes(options: StandIn) {
    let _ = ACROSS.set(options);
}

/// Whether communicators span processes.
pub(in super::super) fn spans_processes() -> bool {
    ACROSS.get().is_some()
}

fn is(of: &Weak<dyn CudaMachine>, machine: &Arc<dyn CudaMachine>) -> bool {
    std::ptr::addr_eq(of.as_ptr(), Arc::as_ptr(machine))
}

/// The options of the NCCL stand-in on a machine.
pub(in super::super) fn options(machine: &Arc<dyn CudaMachine>) -> StandIn {
    let all = lock(&OPTIONS);
    let of_machine = all.iter().find(|(of, _)| is(of, machine)).map(|(_, options)| *options);
    of_machine.or_else(|| ACROSS.get().copied()).unwrap_or_default()
}
