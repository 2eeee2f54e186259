//! Compares the function table with `nccl.h` of the oldest and the newest supported NCCL: layouts, enumerators and signatures.

use super::super::super::numbers::{number, operator};
use super::super::*;
use crate::{DType, ReduceOp};
use allfold_standin::abi::{Assertions, wheels};
use std::mem::offset_of;

const NAMES: &[(&str, &str)] =
    &[("RawId", "ncclUniqueId"), ("Config", "ncclConfig_t"), ("SimInfo", "ncclSimInfo_t")];

fn layouts(all: &mut Assertions) {
    all.size("ncclUniqueId", size_of::<RawId>());
    let int = size_of::<c_int>();
    for (field, at, bytes) in [
        ("size", offset_of!(Config, size), 8),
        ("magic", offset_of!(Config, magic), 4),
        ("version", offset_of!(Config, version), 4),
        ("blocking", offset_of!(Config, blocking), int),
        ("cgaClusterSize", offset_of!(Config, cga_cluster_size), int),
        ("minCTAs", offset_of!(Config, min_ctas), int),
        ("maxCTAs", offset_of!(Config, max_ctas), int),
        ("netName", offset_of!(Config, net_name), 8),
        ("splitShare", offset_of!(Config, split_share), int),
    ] {
        all.field("ncclConfig_t", field, at, bytes);
    }
    // Our struct is the struct of NCCL 2.18; later versions append fields to it.
    all.only_if("NCCL_VERSION_CODE < NCCL_VERSION(2, 19, 0)", |all| {
        all.size("ncclConfig_t", size_of::<Config>());
    });
    let ours = Config::new(false, None);
    all.given("constexpr ncclConfig_t config = NCCL_CONFIG_INITIALIZER;");
    all.value("config.magic", i64::from(ours.magic));
    all.value("config.minCTAs", i64::from(ours.min_ctas));
    all.value("NCCL_VERSION(2, 18, 0)", i64::from(ours.version));
}

fn simulated(all: &mut Assertions) {
    let ours = SimInfo::new();
    all.size("ncclSimInfo_t", ours.size);
    all.field("ncclSimInfo_t", "size", offset_of!(SimInfo, size), 8);
    all.field("ncclSimInfo_t", "magic", offset_of!(SimInfo, magic), 4);
    all.field("ncclSimInfo_t", "version", offset_of!(SimInfo, version), 4);
    all.field("ncclSimInfo_t", "estimatedTime", offset_of!(SimInfo, estimated_us), 4);
    all.given("constexpr ncclSimInfo_t simulated = NCCL_SIM_INFO_INITIALIZER;");
    all.value("simulated.magic", i64::from(ours.magic));
    all.value("NCCL_VERSION(2, 22, 0)", i64::from(ours.version));
}

fn enumerators(all: &mut Assertions) {
    // An answer's value is its index in this list of names.
    let answers = [
        "ncclSuccess",
        "ncclUnhandledCudaError",
        "ncclSystemError",
        "ncclInternalError",
        "ncclInvalidArgument",
        "ncclInvalidUsage",
        "ncclRemoteError",
        "ncclInProgress",
    ];
    for (code, answer) in (0..).zip(answers) {
        all.value(answer, code);
        let said = name(code as Answer);
        let plain = ["success", "in progress"].iter().any(|word| said.contains(word));
        assert!(plain || said.contains(answer), "{answer} is called {said}");
    }
    all.value("ncclSuccess", SUCCESS.into());
    all.value("ncclInProgress", IN_PROGRESS.into());
    let types = [
        ("ncclInt8", DType::I8),
        ("ncclUint8", DType::U8),
        ("ncclInt32", DType::I32),
        ("ncclInt64", DType::I64),
        ("ncclFloat16", DType::F16),
        ("ncclFloat32", DType::F32),
        ("ncclFloat64", DType::F64),
        ("ncclBfloat16", DType::Bf16),
    ];
    types.iter().for_each(|(name, dtype)| all.value(name, number(*dtype).unwrap().into()));
    for (name, op) in [
        ("ncclSum", ReduceOp::Sum),
        ("ncclProd", ReduceOp::Prod),
        ("ncclMax", ReduceOp::Max),
        ("ncclMin", ReduceOp::Min),
        ("ncclAvg", ReduceOp::Avg),
    ] {
        all.value(name, operator(op).into());
    }
    for (kind, ours) in [("ncclResult_t", size_of::<Answer>()), ("ncclDataType_t", 4), ("ncclRedOp_t", 4)] {
        all.size(kind, ours);
    }
}

fn table() -> Assertions {
    // Up to 2.20, nccl.h declares bf16 only for CUDA compilers.
    let mut all = Assertions::over(&["cuda_bf16.h", "nccl.h"], NAMES);
    layouts(&mut all);
    enumerators(&mut all);
    let [always, later] = signatures();
    always.iter().for_each(|(name, signature)| all.function(name, signature).unwrap());
    for (name, signature) in later {
        let since = match name {
            "ncclMemAlloc" | "ncclMemFree" | "ncclCommRegister" | "ncclCommDeregister" => "2, 19, 0",
            "ncclGroupSimulateEnd" => "2, 22, 0",
            _ => "2, 27, 0",
        };
        all.only_if(&format!("NCCL_VERSION_CODE >= NCCL_VERSION({since})"), |all| {
            all.function(name, signature).unwrap();
        });
    }
    all.only_if("NCCL_VERSION_CODE >= NCCL_VERSION(2, 22, 0)", simulated);
    all
}

#[test]
fn nccl_is_called_as_its_header_declares_it() {
    let all = table();
    let mut wrong = all.clone();
    wrong.field("ncclConfig_t", "blocking", offset_of!(Config, cga_cluster_size), 4);
    for cuda in [12, 13] {
        match wheels(cuda) {
            Ok(folder) => {
                all.check(&folder).unwrap_or_else(|flaws| panic!("NCCL, CUDA {cuda}:\n{flaws}"));
                let flaws = wrong.check(&folder).unwrap_err();
                assert_eq!(flaws, "static assertion failed: ncclConfig_t.blocking is bytes 20 .. 20 + 4");
                println!("NCCL: {} assertions hold over the header of CUDA {cuda}", all.len());
            }
            Err(why) => println!("SKIP NCCL, CUDA {cuda}: {why}"),
        }
    }
}
