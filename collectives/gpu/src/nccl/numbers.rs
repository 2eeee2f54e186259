//! NCCL's numbers for element types and operators, as in NCCL's public `nccl.h`.

use crate::{DType, ReduceOp};
use std::ffi::c_int;

/// The `ncclDataType_t` of a type; `None` for 16-bit integers, which NCCL lacks.
pub(super) fn number(dtype: DType) -> Option<c_int> {
    Some(match dtype {
        DType::I8 => 0,
        DType::U8 => 1,
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::Bf16 => 9,
        DType::I16 => return None,
    })
}

/// The `ncclRedOp_t` of an operator.
pub(super) fn operator(op: ReduceOp) -> c_int {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Prod => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        ReduceOp::Avg => 4,
    }
}
