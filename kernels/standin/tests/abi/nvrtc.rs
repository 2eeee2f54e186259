//! Comparison of the NVRTC declarations that `compile.rs` uses with NVIDIA's headers.

use crate::{enumerators, functions};
use allfold_standin::abi::Assertions;
use cudarc::nvrtc::sys;

#[test]
fn nvrtc_is_called_as_nvrtc_h_declares_it() {
    let mut all = Assertions::over(&["climits", "nvrtc.h"], &[]);
    functions!(
        all,
        nvrtcVersion(_, _),
        nvrtcGetNumSupportedArchs(_),
        nvrtcGetSupportedArchs(_),
        nvrtcCreateProgram(_, _, _, _, _, _),
        nvrtcDestroyProgram(_),
        nvrtcCompileProgram(_, _, _),
        nvrtcGetProgramLogSize(_, _),
        nvrtcGetProgramLog(_, _),
        nvrtcGetPTXSize(_, _),
        nvrtcGetPTX(_, _),
        nvrtcGetCUBINSize(_, _),
        nvrtcGetCUBIN(_, _),
    );
    enumerators!(all, nvrtcResult::NVRTC_SUCCESS);
    crate::hold("NVRTC", all);
}
