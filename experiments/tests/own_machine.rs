//! A machine of one's own: the GPUs that it may have.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{folder, said, says};
use std::fs;

/// The arguments of a simulation of NCCL on 16 ranks.
fn nccl(topology: &str) -> [&str; 12] {
    let [command, collective, size] = ["simulate", "all_reduce", "1M"];
    [command, collective, "--algo", "nccl", "--ranks", "16", "--topology", topology, "-b", size, "-e", size]
}

/// GPUs are named in the form factors in which they are made.
#[test]
fn a_gpu_in_a_form_factor_in_which_it_is_not_made_is_refused() {
    let folder = folder();
    let path = folder.path().join("own.json");
    let described = |gpu: &str| {
        let text =
            format!("{{\"gpu\": \"{gpu}\", \"gpus_per_node\": 16, \"nodes\": 1, \"intra_node\": \"PCIe\"}}");
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    says(&nccl(&described("T4 SXM")), &["`T4 SXM`", "write `T4` or `T4 PCIe`"]);
    said(&nccl(&described("T4 PCIe")));
    let scale = ["scale", "workload", "resnet18", "--topology", "pcie8", "--ranks", "1", "--accelerator"];
    says(&[&scale[..], &["T4 SXM"]].concat(), &["write `T4` or `T4 PCIe`"]);
    said(&[&scale[..], &["T4 PCIe"]].concat());
}
