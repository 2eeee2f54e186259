//! Comparison of the driver declarations that `gpu/` and `probe.rs` use, directly or by cudarc, with NVIDIA's headers.

use crate::{enumerators, functions, structure};
use allfold_standin::abi::Assertions;
use cudarc::driver::sys;

#[test]
fn the_driver_is_called_as_cuda_h_declares_it() {
    let mut all = Assertions::over(&["climits", "cuda.h"], &[]);
    functions!(
        all,
        cuInit(_),
        cuDriverGetVersion(_),
        cuDeviceGet(_, _),
        cuDeviceGetCount(_),
        cuDeviceGetAttribute(_, _, _),
        cuDeviceGetName(_, _, _),
        cuDeviceTotalMem_v2(_, _),
        cuDeviceGetUuid_v2(_, _),
        cuDeviceCanAccessPeer(_, _, _),
        cuDeviceGetP2PAttribute(_, _, _, _),
        cuDevicePrimaryCtxRetain(_, _),
        cuDevicePrimaryCtxRelease_v2(_),
        cuCtxSetCurrent(_),
        cuCtxEnablePeerAccess(_, _),
        cuModuleLoadData(_, _),
        cuModuleGetFunction(_, _, _),
        cuModuleUnload(_),
        cuFuncLoad(_),
        cuLaunchKernel(_, _, _, _, _, _, _, _, _, _, _),
    );
    functions!(
        all,
        cuMemGetInfo_v2(_, _),
        cuMemAlloc_v2(_, _),
        cuMemFree_v2(_),
        cuMemHostAlloc(_, _, _),
        cuMemFreeHost(_),
        cuMemcpyAsync(_, _, _, _),
        cuMemcpyHtoDAsync_v2(_, _, _, _),
        cuMemcpyDtoHAsync_v2(_, _, _, _),
        cuMemsetD8Async(_, _, _, _),
        cuIpcGetMemHandle(_, _),
        cuIpcOpenMemHandle_v2(_, _, _),
        cuIpcCloseMemHandle(_),
        cuIpcGetEventHandle(_, _),
        cuIpcOpenEventHandle(_, _),
    );
    functions!(
        all,
        cuStreamCreate(_, _),
        cuStreamCreateWithPriority(_, _, _),
        cuCtxGetStreamPriorityRange(_, _),
        cuStreamDestroy_v2(_),
        cuStreamSynchronize(_),
        cuStreamQuery(_),
        cuStreamWaitEvent(_, _, _),
        cuStreamIsCapturing(_, _),
        cuStreamBeginCapture_v2(_, _),
        cuStreamEndCapture(_, _),
        cuEventCreate(_, _),
        cuEventDestroy_v2(_),
        cuEventRecord(_, _),
        cuEventSynchronize(_),
        cuEventElapsedTime_v2(_, _, _),
        cuGraphInstantiateWithFlags(_, _, _),
        cuGraphLaunch(_, _),
        cuGraphDestroy(_),
        cuGraphExecDestroy(_),
    );
    enumerators(&mut all);
    all.value("CU_MEMHOSTALLOC_PORTABLE", i64::from(sys::CU_MEMHOSTALLOC_PORTABLE));
    // A UUID identifies a device; no function takes one by value.
    structure!(all, CUuuid as "CUuuid" { bytes: 16 });
    crate::hold("driver", all);
}

/// The values of the constants that Allfold passes, queries and receives.
fn enumerators(all: &mut Assertions) {
    enumerators!(
        all,
        CUresult::CUDA_SUCCESS,
        CUresult::CUDA_ERROR_INVALID_VALUE,
        CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        CUresult::CUDA_ERROR_NO_DEVICE,
        CUresult::CUDA_ERROR_NOT_READY,
        CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
        CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
        CUresult::CUDA_ERROR_TOO_MANY_PEERS,
        CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE,
        CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        CUresult::CUDA_ERROR_SYSTEM_NOT_READY,
        CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE,
        CUstream_flags::CU_STREAM_NON_BLOCKING,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
        CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        CUevent_flags::CU_EVENT_DEFAULT,
        CUevent_flags::CU_EVENT_DISABLE_TIMING,
        CUevent_flags::CU_EVENT_INTERPROCESS,
        CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS,
        CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT,
    );
}
