//! Tests of the function table, with NVIDIA's header and with real libraries of NCCL.

mod abi;
mod real;

use super::*;

#[test]
fn without_the_library_the_error_contains_a_remedy() {
    let error = open(None).err().unwrap().to_string();
    assert!(error.contains("NCCL is missing") && error.contains("pip install"), "{error}");
    assert!(error.contains("no libnccl.so.2") && !error.contains('\n'), "{error}");
    // If NCCL is present, its version is supported; otherwise the error explains how to install it.
    match version() {
        Ok((major, minor, _)) => assert!(major == 2 && minor >= 18, "{major}.{minor}"),
        Err(error) => assert!(error.to_string().contains("pip install"), "{error}"),
    }
}

/// Structures have the sizes of nccl.h on 64-bit Linux.
#[test]
fn structures_have_nccls_sizes() {
    assert_eq!((size_of::<Config>(), size_of::<SimInfo>(), size_of::<RawId>()), (48, 24, 128));
}
