//! Collectives of GPU buffers over the host.

use super::shared::SharedCall;
use crate::driver::failed;
use crate::meaning::{On, Side};
use crate::{Buffer, Communicator, DType, Element, Error, Result};
use allfold_cuda::{Queue, Slice};

/// Runs a collective by copies to host memory and the communicator's own collective, from the part `input` of a rank's buffer to the
/// part `output`.
pub(super) fn over_host(
    comm: &Communicator,
    queue: &Queue,
    call: SharedCall,
    parts: (Slice<'_>, Slice<'_>),
) -> Result<()> {
    match call.dtype {
        _ if !call.collective.reduces() => by_copies::<u8>(comm, queue, call, parts),
        DType::F32 => by_copies::<f32>(comm, queue, call, parts),
        DType::F64 => by_copies::<f64>(comm, queue, call, parts),
        DType::F16 => by_copies::<allfold_kernels::f16>(comm, queue, call, parts),
        DType::Bf16 => by_copies::<allfold_kernels::bf16>(comm, queue, call, parts),
        DType::I32 => by_copies::<i32>(comm, queue, call, parts),
        DType::I64 => by_copies::<i64>(comm, queue, call, parts),
        other => Err(Error::Argument(format!(
            "GPUs cannot reduce {other} over the host; use f64, f32, f16, bf16, i32 or i64"
        ))),
    }
}

fn by_copies<T: Element>(
    comm: &Communicator,
    queue: &Queue,
    SharedCall { collective, op, root, .. }: SharedCall,
    (input, output): (Slice<'_>, Slice<'_>),
) -> Result<()> {
    let holds = |side: Side| side.on == On::All || comm.rank() == root;
    let meaning = collective.meaning();
    // Without blocks the result takes the place of the input.
    let given = match !collective.blocked() || holds(meaning.input) {
        true => queue.download::<T>(input).map_err(failed)?,
        false => Vec::new(),
    };
    let (given, mut result) = match collective.blocked() {
        true => (given, Buffer::zeroed(output.len() / size_of::<T>())),
        false => (Vec::new(), given.into()),
    };
    comm.collective(collective, &given, &mut result, op, root)?;
    if holds(meaning.output) { queue.write(output, &result).map_err(failed) } else { Ok(()) }
}
