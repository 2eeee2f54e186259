//! Reductions of GPU buffers over the host.

use super::shared::SharedCall;
use crate::driver::failed;
use crate::{Collective, Communicator, DType, Error, Result};
use allfold_cuda::{Queue, Slice};

/// Reduces `data` by copies to host memory: a reduce to its root; a reduce-scatter into `block`.
pub(super) fn over_host(
    comm: &Communicator,
    queue: &Queue,
    call: SharedCall,
    (data, block): (Slice<'_>, Slice<'_>),
) -> Result<()> {
    fn of<T: crate::Element>(
        comm: &Communicator,
        queue: &Queue,
        call: SharedCall,
        (data, block): (Slice<'_>, Slice<'_>),
    ) -> Result<()> {
        let mut values: Vec<T> = queue.download(data).map_err(failed)?;
        match call.collective {
            Collective::AllReduce => comm.all_reduce(&mut values, call.op)?,
            Collective::Reduce => comm.reduce(&mut values, call.op, call.root)?,
            _ => {
                let mut own = values[..values.len() / comm.size() as usize].to_vec();
                comm.reduce_scatter(&values, &mut own, call.op)?;
                return queue.write(block, &own).map_err(failed);
            }
        }
        queue.write(data, &values).map_err(failed)
    }
    match call.dtype {
        DType::F32 => of::<f32>(comm, queue, call, (data, block)),
        DType::F64 => of::<f64>(comm, queue, call, (data, block)),
        DType::F16 => of::<allfold_kernels::f16>(comm, queue, call, (data, block)),
        DType::Bf16 => of::<allfold_kernels::bf16>(comm, queue, call, (data, block)),
        DType::I32 => of::<i32>(comm, queue, call, (data, block)),
        DType::I64 => of::<i64>(comm, queue, call, (data, block)),
        other => Err(Error::Argument(format!(
            "GPUs cannot reduce {other} over the host; use f64, f32, f16, bf16, i32 or i64"
        ))),
    }
}
