use super::*;
use crate::fixtures::published;
use crate::job::{Framework, Offload, OperandPrecision};
use crate::layout::{Recompute, Sharding};
use allfold_sim::machines::Generation;
use serde_json::json;

/// A file with one row: the fields of `head` and `row` over those of a plain run of Llama 2 7B on 16 H100.
fn file(head: Value, rows: &[Value]) -> String {
    let mut file = json!({
        "source": "https://github.com/someone/somewhere README.md",
        "system": "Somewhere",
        "gpu": "H100 80GB HBM3",
        "gpus_per_node": 8,
        "interconnect": "8x 400 Gb/s InfiniBand a node",
        "software": "Megatron-LM, core 0.9",
        "task": "train",
        "model": {"name": "Llama 2 7B", "layers": 32, "hidden": 4096, "ffn": 11008, "heads": 32, "kv_heads": 32, "vocab": 32000},
    });
    over(&mut file, head);
    let plain = json!({"gpus": 16, "sequence_length": 4096, "global_batch": 64, "micro_batch": 1, "tp": 2, "precision": "bf16",
        "measured": {"seconds_per_step": 2.0}, "suspect": false});
    let rows = rows.iter().map(|row| {
        let mut whole = plain.clone();
        over(&mut whole, row.clone());
        whole
    });
    file["rows"] = rows.collect();
    file.to_string()
}

fn over(fields: &mut Value, others: Value) {
    for (key, value) in others.as_object().unwrap() {
        fields[key] = value.clone();
    }
}

fn one(head: Value, row: Value) -> TrainingRow {
    let read = parse("run", &file(head, &[row])).unwrap();
    assert_eq!(read.left_out, []);
    read.rows.into_iter().next().unwrap()
}

/// The reason why a row is left out, and whether it is wrong.
fn refused(head: Value, row: Value) -> (String, bool) {
    let read = parse("run", &file(head, &[row, json!({})])).unwrap();
    assert_eq!(read.left_out.len() + read.rows.len(), 2);
    let left_out = read.left_out.into_iter().next().expect("a row that is left out");
    (left_out.why, left_out.wrong)
}

#[test]
fn a_plain_row_becomes_the_job_that_it_states() {
    let row = one(json!({}), json!({"pp": 2, "recompute": "full", "memory_gb": 61.5, "sharding": "zero1"}));
    let (layout, job) = (&row.job.layout, &row.job);
    assert_eq!(
        (layout.gpus, layout.tensor, layout.pipeline, layout.context, layout.data()),
        (16, 2, 2, 1, 4)
    );
    assert_eq!((layout.micro_batches(), layout.sequence_parallel), (16.0, true));
    assert_eq!((layout.recompute, layout.sharding), (Recompute::Full, Sharding::Zero1));
    assert_eq!((job.framework, job.precision), (Framework::MegatronCore, OperandPrecision::Bf16));
    assert!(job.model.gated && !job.model.tied && !job.lora && !job.packed);
    assert_eq!((job.cluster.nic, job.cluster.node), (50e9, 8));
    assert_eq!((row.step_s, row.memory_gb, row.out_of_memory), (Some(2.0), Some(61.5), None));
    assert_eq!((&*row.system, row.row), ("somewhere-h100", 0));
}

#[test]
fn frameworks_are_known_by_their_words() {
    use Framework as F;
    for (software, gpu, row, framework) in [
        ("Megatron-LM 2021 (PyTorch, NCCL)", "A100 80GB", json!({}), F::Megatron2021),
        ("Megatron-LM 2.4", "V100 32GB", json!({"precision": "fp16"}), F::Megatron2021),
        ("Megatron-LM 2022", "A100 80GB", json!({}), F::Megatron2022),
        ("Megatron-LM 23e00ed (0.14), Transformer Engine 2.11", "B200", json!({}), F::MegatronCore),
        ("Megatron-LM (version of 2025 not stated)", "A100-PCIE", json!({}), F::MegatronCore),
        (
            "Megatron-DeepSpeed (a fork), ZeRO stage 1; February 2022",
            "A100 80GB",
            json!({}),
            F::MegatronDeepspeed,
        ),
        ("Megatron-LM 2.4 + DeepSpeed 3D", "V100 32GB", json!({"precision": "fp16"}), F::MegatronDeepspeed),
        (
            "Megatron-LM 2021; DeepSpeed ZeRO-3",
            "A100 80GB",
            json!({"sharding": "zero3"}),
            F::MegatronDeepspeed,
        ),
        ("Megatron-LM 2021; DeepSpeed ZeRO-3", "A100 80GB", json!({"sharding": "none"}), F::Megatron2021),
        (
            "Hugging Face Trainer + DeepSpeed",
            "V100",
            json!({"tp": 1, "precision": "fp16"}),
            F::HuggingfaceDeepspeed,
        ),
        ("DeepSpeed 0.12", "A100", json!({"tp": 1}), F::HuggingfaceDeepspeed),
        ("Megatron-Bridge in the NeMo container", "B200", json!({}), F::MegatronBridge),
        ("NeMo 24.07 container", "H100", json!({}), F::MegatronBridge),
        ("NeMo AutoModel (PyTorch FSDP2)", "H100", json!({"tp": 1}), F::Automodel),
        ("Primus (Megatron-LM backend)", "MI300X", json!({}), F::MegatronBridge),
        ("Primus (torchtitan backend)", "MI300X", json!({}), F::Torchtitan),
        ("llm-foundry/Composer with PyTorch FSDP", "A100 40GB", json!({"tp": 1}), F::Foundry),
        ("torchtitan, December 2024", "H100", json!({"notes": "Table 1; torch.compile"}), F::Torchtitan),
        ("torchtitan, December 2024", "H100", json!({"notes": "Table 1"}), F::TorchtitanEager),
        ("Paxml/JAX (containers), 2023-2024", "A100", json!({}), F::Xla),
        (
            "Paxml/JAX (containers), 2023-2024",
            "A100",
            json!({"precision": "TE bf16"}),
            F::XlaTransformerEngine,
        ),
        ("MaxText/JAX 24.04", "H100", json!({}), F::Xla),
        ("a program of our own", "H100", json!({"tp": 1, "sharding": "fsdp"}), F::Foundry),
        ("a program of our own", "H100", json!({"tp": 1, "sharding": "zero3"}), F::HuggingfaceDeepspeed),
        ("a program of our own", "H100", json!({"tp": 8}), F::MegatronCore),
        ("a program of our own", "H100", json!({"tp": 1, "sharding": "none"}), F::Foundry),
    ] {
        let found = one(json!({"software": software, "gpu": gpu}), row).job.framework;
        assert_eq!(found, framework, "{software} on {gpu}");
    }
    // What the row says comes before what the file says.
    let row = one(json!({"software": "per row"}), json!({"software": "torchtitan, June 2025"}));
    assert_eq!(row.job.framework, Framework::Torchtitan);
}

#[test]
fn precisions_are_known_by_their_words_and_others_are_refused() {
    use OperandPrecision as O;
    for (text, precision) in [
        ("FP8", O::Fp8),
        ("FP8-CS", O::Fp8),
        ("float8 tensorwise", O::Fp8),
        ("float8 rowwise", O::Fp8Rows),
        ("FP8 128x128/1x128", O::Fp8Rows),
        ("FP8-MX", O::Mxfp8),
        ("MXFP8", O::Mxfp8),
        ("NVFP4", O::Nvfp4),
        ("amp_bf16", O::Bf16),
        ("fp16", O::F16),
        ("TF32", O::F32),
        ("single", O::F32),
        ("e4m3", O::Fp8),
        ("16-mixed", O::Bf16),
        ("TE", O::Bf16),
    ] {
        assert_eq!(recipe::precision(text, Generation::Hopper), Ok(precision), "{text}");
    }
    assert_eq!(recipe::precision("", Generation::Volta), Ok(O::F16));
    let (why, wrong) = refused(json!({}), json!({"precision": "posit9"}));
    assert!(wrong && why.contains("`precision` is \"posit9\"") && why.contains("bf16"), "{why}");
}

#[test]
fn a_share_of_the_network_follows_from_its_description() {
    for (gpu, node, words, gb) in [
        ("A100 80GB", 8, "8x 200 Gb/s HDR InfiniBand a node for training, fat tree; NVLink3 NVSwitch", 25.0),
        ("A100 40GB", 8, "1600 Gb/s a node (RoCE), stated", 25.0),
        ("A100", 8, "800 Gb/s a node and 8 GPUs a node by the configs; HDR InfiniBand (not checked)", 12.5),
        ("H100", 8, "RDMA, 400 Gb/s a GPU, stated; NVLink in the node", 50.0),
        ("H800", 8, "NVLink about 160 GB/s; ConnectX-7 InfiniBand 400 Gb/s a GPU (about 50 GB/s)", 50.0),
        ("A100 80GB", 8, "4x 200 Gb/s RDMA a node, stated", 12.5),
        ("A100 80GB", 8, "4 Omni-Path links a node, NVLink (link rate not stated there)", 6.25),
        ("V100 32GB", 4, "not stated in this file (the site's notes name Omni-Path between nodes)", 12.5),
        ("V100 16GB", 8, "100 Gb/s InfiniBand (EDR) a node", 1.5625),
        ("A100 80GB", 4, "4x HDR InfiniBand", 25.0),
        ("H100", 8, "NVLink4 NVSwitch in the node; network not stated", 50.0),
        ("A100 80GB", 8, "", 25.0),
        ("H100", 8, "EFA, 3200 Gbps per instance", 50.0),
        ("MI250X", 8, "4x 25 GB/s Slingshot 11 a node", 12.5),
        ("A800", 8, "RoCE, 200 Gb/s a GPU", 25.0),
        ("GB200", 4, "NVLink5 domain of 72 (NVL72); network between racks not stated", 50.0),
    ] {
        let head = json!({"gpu": gpu, "gpus_per_node": node, "interconnect": words});
        assert_eq!(one(head, json!({})).job.cluster.nic, gb * 1e9, "{words}");
    }
    let head = json!({"gpu": "V100", "interconnect": "4 Omni-Path links a node"});
    assert!(one(head, json!({})).job.cluster.omni_path);
    let head = json!({"gpu": "H100 96GB HBM2e 500W", "system": "Teton, H100 at 500 W"});
    assert!(one(head, json!({})).job.cluster.limited_power);
}

#[test]
fn a_site_is_one_system_and_a_product_one_for_each_source() {
    let system = |system: &str, gpu: &str, repository: &str| {
        let source = format!("https://github.com/{repository} docs/table.md (commit 1234567)");
        one(json!({"system": system, "gpu": gpu, "source": source}), json!({})).system
    };
    let selene = "Selene (NVIDIA DGX A100 SuperPOD)";
    assert_eq!(system(selene, "A100 80GB", "a/one"), system(selene, "A100 80GB", "b/two"));
    assert_ne!(
        system("Jean Zay (IDRIS), A100", "A100 80GB", "a/one"),
        system("Jean Zay", "V100 32GB", "a/one")
    );
    assert_eq!(system("Jean Zay, V100 16GB", "V100 16GB", "a/one"), system("Jean Zay", "V100 32GB", "a/one"));
    let dgx = "NVIDIA DGX-H100 (NVIDIA's own benchmark cluster)";
    assert_ne!(system(dgx, "H100", "NVIDIA-NeMo/NeMo"), system(dgx, "H100", "NVIDIA-NeMo/Automodel"));
    assert_eq!(
        system(dgx, "H100", "NVIDIA-NeMo/NeMo"),
        system("NVIDIA DGX H100", "H100 80GB", "NVIDIA-NeMo/NeMo")
    );
}

#[test]
fn seconds_follow_from_each_unit() {
    let step = |measured: Value| one(json!({}), json!({"measured": measured})).step_s.unwrap();
    // 64 sequences of 4,096 tokens on 16 GPUs.
    assert_eq!(step(json!({"seconds_per_step": 3.5})), 3.5);
    assert_eq!(step(json!({"tokens_per_s_per_gpu": 8192})), 2.0);
    assert_eq!(step(json!({"samples_per_s": 128})), 0.5);
    // Figures of one row within 20 % agree; the first of them counts.
    assert_eq!(step(json!({"tokens_per_s_per_gpu": 8192, "samples_per_s": 29})), 2.0);
}

#[test]
fn flop_are_counted_as_the_source_counts_them() {
    let gpt = json!({"name": "GPT 18.4B", "layers": 40, "hidden": 6144, "ffn": 24576, "heads": 48, "kv_heads": 48,
        "vocab": 51200, "params": 18.4e9});
    let flop = |counts: &str, notes: &str, row: Value| {
        let head = json!({"model": gpt.clone(), "tflops_counts": counts, "notes": notes});
        let mut fields =
            json!({"sequence_length": 2048, "global_batch": 1024, "measured": {"tflops_per_gpu": 100}});
        over(&mut fields, row);
        one(head, fields).step_s.unwrap() * 100e12 * 16.0
    };
    let [b, s, l, h, v] = [1024.0, 2048.0, 40.0, 6144.0, 51200.0];
    let near = |found: f64, right: f64| assert!((found / right - 1.0).abs() < 1e-9, "{found:e} {right:e}");
    // Narayanan et al., SC 2021, with recomputation; and without, as Korthikanti et al., 2022.
    let recomputed = 96.0 * b * s * l * h * h * (1.0 + s / (6.0 * h) + v / (16.0 * l * h));
    let formula = "TFLOP/s count recomputation: F = 96*B*s*l*h^2*(1+s/(6h)+V/(16lh)) an iteration.";
    near(flop("with recomputation", formula, json!({})), recomputed);
    near(flop("", "", json!({})), 72.0 * b * s * l * h * h * (1.0 + s / (6.0 * h) + v / (12.0 * l * h)));
    // bigscience: passes times parameters.
    let notes = "TFLOP/s count recomputation (8 x params x tokens)";
    near(flop("with recomputation", notes, json!({})), 8.0 * 18.4e9 * b * s);
    let counts = "with recomputation where recompute is full";
    let notes = "8*params*tokens/time with recomputation, 6*params*tokens/time without";
    near(flop(counts, notes, json!({"recompute": "full"})), 8.0 * 18.4e9 * b * s);
    near(flop(counts, notes, json!({"recompute": "none"})), 6.0 * 18.4e9 * b * s);
    // Megatron-core of 2025 counts the half of attention's pairs that a causal mask leaves.
    let causal = 72.0 * b * s * l * h * h * (1.0 + s / (12.0 * h) + v / (12.0 * l * h));
    near(flop("Megatron-LM --log-throughput (model FLOP)", "", json!({})), causal);
}

#[test]
fn grouped_queries_and_gates_count_by_their_own_shapes() {
    let llama = json!({"name": "Llama 3 70B", "layers": 80, "hidden": 8192, "ffn": 28672, "heads": 64, "kv_heads": 8,
        "vocab": 128256});
    let row =
        one(json!({"model": llama, "software": "NeMo 25.04"}), json!({"measured": {"tflops_per_gpu": 500}}));
    let [t, s, l, h] = [64.0 * 4096.0, 4096.0, 80.0, 8192.0];
    // NeMo's formula: 12 + 12 kv/heads + 18 ffn/h + 12 s/h + 6 V/(l h).
    let right =
        t * l * h * h * (12.0 + 12.0 / 8.0 + 18.0 * 28672.0 / h + 12.0 * s / h + 6.0 * 128256.0 / (l * h));
    assert!((row.step_s.unwrap() * 500e12 * 16.0 / right - 1.0).abs() < 1e-9);
    assert_eq!(row.job.release, Some(2025 * 12 + 4));
}

#[test]
fn what_a_row_leaves_open_is_what_the_software_does() {
    let bridge = json!({"software": "NeMo (Megatron-core)"});
    let row = one(bridge.clone(), json!({"gpus": 64, "pp": 4, "tp": 2, "precision": null}));
    assert_eq!((row.job.layout.chunks, row.job.precision), (2, OperandPrecision::Bf16));
    assert_eq!(one(bridge, json!({"gpus": 16, "pp": 4, "vp": 4})).job.layout.chunks, 4);
    assert_eq!(one(json!({}), json!({"pp": 4})).job.layout.chunks, 1);
    assert_eq!(one(json!({}), json!({"pp": 4, "notes": "interleaved schedule"})).job.layout.chunks, 2);
    let micro = |row: Value| one(json!({}), row).job.layout.micro_batch;
    assert_eq!(micro(json!({"micro_batch": null})), 1);
    assert_eq!(micro(json!({"micro_batch": null, "accumulate": 2})), 4);
    assert_eq!(micro(json!({"micro_batch": null, "micro_batch_secondhand": 2})), 2);
    assert_eq!(micro(json!({"micro_batch": null, "notes": "the notes give 4"})), 4);
    let tokens = json!({"global_batch": null, "global_batch_tokens": 4096 * 48});
    assert_eq!(one(json!({}), tokens).job.layout.global_batch, 48);
    assert_eq!(one(json!({}), json!({"recompute": true})).job.layout.recompute, Recompute::Full);
    // A batch that is not stated is one micro-batch of every rank.
    assert_eq!(one(json!({}), json!({"global_batch": null, "micro_batch": 2})).job.layout.global_batch, 16);
    let row =
        one(json!({}), json!({"offload": "optimizer+parameters", "notes": "without flash attention; PURE"}));
    assert_eq!(row.job.details.offload, Offload::Parameters);
    assert!(row.job.details.unfused_attention && !row.job.details.token_drop);
}

#[test]
fn shapes_come_from_the_file_then_the_catalog_then_the_size() {
    let model = |model: Value, row: Value| one(json!({"model": model}), row).job.model;
    let cut = model(json!({"name": "Llama 3 70B", "params": 70.6e9}), json!({"model_layers": 12}));
    assert_eq!((cut.layers, cut.hidden, cut.kv(), cut.stated_parameters), (12, 8192, 8, None));
    let gpt = model(json!({"name": "GPT 52B", "params": 52e9}), json!({}));
    assert_eq!((gpt.hidden, gpt.ffn, gpt.heads, gpt.gated, gpt.tied), (8192, 32768, 64, false, true));
    assert!((gpt.parameters().total() / 52e9 - 1.0).abs() < 0.02);
    let by_name = model(json!({"name": "GPT 1.3B"}), json!({"heads": 32}));
    assert_eq!((by_name.hidden, by_name.layers, by_name.heads), (2048, 24, 32));
    let experts = model(
        json!({"name": "Someone's mixture", "layers": 4, "hidden": 5120, "ffn": 12288, "heads": 128, "experts": 160, "top_k": 6,
            "moe_ffn": 1536, "shared_experts": 2, "dense_layers": 1, "attention": "MLA", "vocab": 102400}),
        json!({}),
    );
    let routed = experts.experts.unwrap();
    assert_eq!((routed.ffn, routed.shared_ffn, routed.dense_layers, experts.ffn), (1536, 3072, 1, 12288));
    assert_eq!(experts.latent.map(|latent| latent.kv_rank), Some(512));
    // Of an unknown family, the gate follows from the number of parameters.
    let unknown = |params: f64| {
        let shapes = json!({"name": "Nobody 7B", "layers": 32, "hidden": 4096, "ffn": 11008, "heads": 32, "vocab": 32000,
            "params": params});
        model(shapes, json!({})).gated
    };
    assert_eq!((unknown(6.74e9), unknown(5.2e9)), (true, false));
    // Sizes that a name alone implies make as many parameters as it says, with a gate and without.
    for (name, params) in [("LLM 7B", 7e9), ("Qwen9 40B", 40e9), ("OPT 9B", 9e9), ("OPT-9B", 9e9)] {
        let implied = model(json!({"name": name}), json!({}));
        assert!((implied.parameters().total() / params - 1.0).abs() < 0.04, "{name}");
        assert_eq!(implied.gated, !name.starts_with("OPT"), "{name}");
    }
    // A tied output layer and a gate follow from the number of parameters together.
    let tied = json!({"name": "Nobody 3B", "layers": 26, "hidden": 2304, "ffn": 9216, "heads": 8, "kv_heads": 4, "head_dim": 256,
        "vocab": 256000, "params": 2.61e9});
    let tied = model(tied, json!({}));
    assert!(tied.gated && tied.tied);
    // The width of dense blocks is not that of experts; a model without a name has its sizes.
    let experts = json!({"name": "Qwen3-30B-A3B", "hidden": 2048, "ffn": 6144, "experts": 128});
    assert_eq!(model(experts, json!({})).experts.map(|experts| experts.ffn), Some(768));
    let nameless =
        json!({"name": null, "layers": 32, "hidden": 4096, "ffn": 11008, "heads": 32, "vocab": 32000});
    assert_eq!(model(nameless, json!({})).hidden, 4096);
    for name in ["Some-Mixture 80B-A3B", "Unheard of"] {
        let (why, wrong) = refused(json!({"model": {"name": name}}), json!({}));
        assert!(!wrong && why.contains("sizes of the model are not stated"), "{why}");
    }
}

#[test]
fn sharding_is_known_by_its_words() {
    for (words, kind) in [
        ("FSDP (ZeRO-3)", Sharding::Fsdp),
        ("hybrid shard", Sharding::Hsdp),
        ("ZeRO stage 2", Sharding::Zero2),
        ("Megatron distributed optimizer", Sharding::Zero1),
        ("DDP", Sharding::None),
        ("SHARD_GRAD_OP", Sharding::Zero2),
        ("data parallel", Sharding::None),
    ] {
        assert_eq!(super::recipe::sharding(words), Ok(kind), "{words}");
    }
}

#[test]
fn rows_that_contradict_themselves_say_what_would_be_right() {
    let right = |head: Value, row: Value, words: &[&str]| {
        let (why, wrong) = refused(head, row);
        assert!(wrong && words.iter().all(|word| why.contains(word)) && !why.contains('\n'), "{why}");
    };
    let plain = || json!({});
    right(plain(), json!({"gpus": 63}), &["63 GPUs are no multiple of tp 2 x pp 1 x cp 1 = 2"]);
    right(plain(), json!({"dp": 5}), &["`dp` is 5", "are 8"]);
    let twice = json!({"measured": {"seconds_per_step": 2.0, "tokens_per_s_per_gpu": 6000}});
    right(plain(), twice, &["`seconds_per_step` gives 2.0000", "`tokens_per_s_per_gpu` 2.7307", "20 %"]);
    right(plain(), json!({"tp": "two"}), &["`tp` is \"two\"", "whole number of 1 or more"]);
    right(plain(), json!({"tp": -2}), &["`tp` is -2"]);
    right(plain(), json!({"gpus": 1e30}), &["`gpus` is 1e+30"]);
    right(plain(), json!({"sharding": "zero9"}), &["`sharding` is \"zero9\"", "fsdp"]);
    right(plain(), json!({"measured": {"seconds_per_step": -1}}), &["`seconds_per_step` is -1"]);
    right(plain(), json!({"measured": 7}), &["`measured` is 7; an object"]);
    right(plain(), json!({"suspect": "no"}), &["`suspect` is \"no\"; true or false"]);
    right(json!({"gpu": "Voodoo 2"}), plain(), &["Voodoo 2"]);
    let model = json!({"name": "Llama 2 7B", "layers": 32, "hidden": 4096, "ffn": 11008, "heads": 32, "params": 70e9});
    right(json!({"model": model}), plain(), &["`params` is 7.000e10", "agree"]);
    // Ranks of the context axis counted in, or of the expert axis out, are no contradiction.
    assert_eq!(one(plain(), json!({"cp": 2, "dp": 8})).job.layout.data(), 4);
    for (row, words) in [
        (json!({"sequence_length": null}), "sequence length not stated"),
        (json!({"gpus": null}), "number of GPUs not stated"),
        (json!({"measured": {}}), "nothing measured"),
        (json!({"global_batch": null, "micro_batch": null}), "batch not stated"),
    ] {
        assert_eq!(refused(plain(), row), (words.to_string(), false));
    }
    // A job that ran out of memory is a row without a time.
    let row = one(plain(), json!({"measured": {}, "out_of_memory": true}));
    assert_eq!((row.step_s, row.out_of_memory), (None, Some(true)));
}

#[test]
fn other_files_are_told_apart() {
    for (text, words) in [
        ("{", "EOF"),
        ("7", "an object with `model` and `rows`"),
        ("[]", "there is no `model`"),
        (r#"{"rows": []}"#, "there is no `model`"),
        (r#"{"model": {"name": "x"}}"#, "`rows` is no list"),
        (r#"{"model": 7, "rows": []}"#, "`model` is 7; an object"),
        (r#"{"kind": "expert-parallel all-to-all", "model": {}, "rows": []}"#, "not of training"),
    ] {
        let error = parse("run", text).unwrap_err();
        assert!(error.contains(words) && !error.contains('\n'), "{text}: {error}");
    }
    assert!(is_rows(&file(json!({}), &[])));
    for other in [
        r#"{"model": "ResNet-50", "rows": [{"gpus": 1}]}"#,
        r#"{"collective": "all_reduce", "rows": []}"#,
        "x",
    ] {
        assert!(!is_rows(other), "{other}");
    }
}

/// A text with a few of its bytes replaced, left out or repeated, by a seed.
fn mutated(text: &str, seed: u64) -> String {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below.max(1) as u64) as usize
    };
    let mut bytes = text.as_bytes().to_vec();
    let insertions: [&[u8]; 8] = [b"-", b"0", b"null", b"1e99", b"\"", b"[", b"999999999", b"."];
    for _ in 0..1 + next(4) {
        let at = next(bytes.len());
        match next(3) {
            0 => bytes[at] = b"0123456789-.xn\"{}[]:, "[next(22)],
            1 => drop(bytes.remove(at)),
            _ => drop(bytes.splice(at..at, insertions[next(8)].iter().copied())),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn no_mutation_of_a_file_makes_the_reader_panic() {
    let row = json!({"gpus": 256, "tp": 4, "pp": 4, "cp": 2, "ep": 8, "vp": null, "notes": "release 25.09; gives 4", "accumulate": 8,
        "measured": {"tflops_per_gpu": 400.5}, "memory_gb": 70, "micro_batch": null});
    let moe = json!({"name": "Qwen3 30B A3B", "layers": 48, "hidden": 2048, "ffn": 768, "heads": 32, "experts": 128, "top_k": 8,
        "params": 30.5e9});
    let text = file(json!({"model": moe, "software": "Megatron-Bridge"}), &[row]);
    assert_eq!(parse("run", &text).unwrap().left_out, []);
    let mut read = 0;
    for seed in 0..6000 {
        let mutated = mutated(&text, seed);
        is_rows(&mutated);
        match parse("run", &mutated) {
            Ok(file) => {
                read += file.rows.len();
                for row in &file.rows {
                    let step = row.step_s.unwrap_or(1.0);
                    assert!(step > 0.0 && step.is_finite(), "{mutated}");
                }
            }
            Err(error) => assert!(!error.contains('\n'), "{error}"),
        }
    }
    assert!(read > 500, "{read}");
}

#[test]
fn every_published_row_that_states_enough_is_read() {
    let read = published();
    if read.is_empty() {
        return;
    }
    let rows: Vec<&TrainingRow> = read.iter().flat_map(|file| &file.rows).collect();
    let systems: std::collections::BTreeSet<&str> = rows.iter().map(|row| &*row.system).collect();
    assert!(rows.len() >= 931, "{}", rows.len());
    let usable = rows.iter().filter(|row| !row.suspect && row.step_s.is_some()).count();
    assert!(usable >= 900, "{usable}");
    assert!((20..=22).contains(&systems.len()), "{systems:?}");
    // No row that its collector trusts is called wrong.
    let wrong: Vec<_> =
        read.iter().flat_map(|file| &file.left_out).filter(|row| row.wrong && !row.suspect).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}
