//! One function per operation: it checks the arguments and launches one or more kernels, whose arguments name the memory that each reads
//! and writes. By these names the stand-ins count the bytes that move.

mod activation;
mod attention;
mod batch_norm;
mod bucket;
mod dropout;
mod embedding;
mod experts;
mod fused;
mod layer_norm;
mod loss;
mod norm;
mod optim;
mod pool;
mod product;
mod reduce;
mod rows;
mod split_loss;

pub use activation::{Function, activate, activate_back, add, add_wide, bias, bias_back};
pub use attention::{AttentionPart, Dropped, Heads, attention, attention_back, attention_merge};
pub use batch_norm::{BatchNormLaunch, Saved, TensorLayout};
pub use bucket::{BucketLaunch, cast, found_inf, transpose, unscale};
pub use dropout::{DropoutLaunch, dropout};
pub use embedding::{EmbeddingLaunch, embedding, embedding_back};
pub use experts::MixtureLaunch;
pub use fused::{BufferTree, Trees, Uploaded, fused, fused_balanced};
pub use layer_norm::{InputGradient, LayerNormLaunch, layer_norm, layer_norm_back};
pub use loss::{correct, cross_entropy, mean, mse};
pub use norm::{clip, squares};
pub use optim::{
    AdamRule, LarsNorms, LarsRule, Param, Params, SgdRule, StepReads, adam, lars, lars_norms, sgd,
};
pub use pool::{PoolLaunch, max_pool, max_pool_back, mean_pool, mean_pool_back, plane_mean, plane_mean_back};
pub(crate) use product::bias_size;
pub use product::{Conv, DeviceMatrix, ProductOutput, conv, conv_input, conv_weight, matmul, restride};
pub use reduce::{divide, reduce};
pub use rows::{RowStrides, RowsLaunch, rows, rows_round, rows_sum};
pub use split_loss::{ClassPart, class_hits};

use super::machine::{Arguments, Launch, THREADS};
use super::{Error, Kernel, Queue, Result, Slice};

/// The number of blocks for `work` items with `per_thread` items per thread and step: at most eight per multiprocessor, since
/// kernels stride over their grid.
fn blocks(queue: &Queue, work: u64, per_thread: u64) -> u32 {
    let wanted = work.div_ceil(u64::from(THREADS) * per_thread.max(1));
    let most = u64::from(queue.machine().multiprocessors(queue.device())) * 8;
    wanted.clamp(1, most) as u32
}

/// Launches a kernel. The functions of this module call it after they have checked every length against the kernel's formula.
///
/// The arguments name all memory that the kernel reads and writes, by which the shim checks concurrent streams for races.
fn run(queue: &Queue, kernel: Kernel, grid: [u32; 3], arguments: Arguments) -> Result<()> {
    // SAFETY: the arguments are the kernel's, in its order and types (the tests run every kernel), and lengths have been checked.
    unsafe { queue.launch(&Launch { kernel, grid, arguments }) }
}

/// Adds the address of a slice that is read, or 0 for `None`.
fn reads_if(arguments: Arguments, part: Option<Slice<'_>>) -> Arguments {
    match part {
        Some(part) => arguments.reads(part),
        None => arguments.with(0u64),
    }
}

/// Adds the address of a slice that is written, or 0 for `None`.
fn writes_if(arguments: Arguments, part: Option<Slice<'_>>) -> Arguments {
    match part {
        Some(part) => arguments.writes(part),
        None => arguments.with(0u64),
    }
}

/// Checks that a slice holds `count` elements of `size` bytes.
pub(super) fn holds(what: &str, part: Slice<'_>, count: u64, size: usize) -> Result<()> {
    match part.elements(size)? {
        have if have == count => Ok(()),
        have => {
            Err(Error::Argument(format!("{what} has {have} elements of {size} bytes, {count} are needed")))
        }
    }
}

/// Checks that a count fits the kernel's 32-bit argument.
fn small(what: &str, count: usize) -> Result<u32> {
    u32::try_from(count).map_err(|_| Error::Argument(format!("{what} of {count} is more than 32 bits hold")))
}

/// Checks that a type is one of the types that models are trained in.
fn trained(dtype: allfold_kernels::DType) -> Result<()> {
    use allfold_kernels::DType;
    match dtype {
        DType::F32 | DType::F16 | DType::Bf16 => Ok(()),
        other => {
            Err(Error::Argument(format!("networks are trained in f32, f16 and bf16 here, not in {other}")))
        }
    }
}
