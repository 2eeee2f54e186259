//! Names and units of other tables, made into those of this schema before a file is read.
//!
//! ```text
//! "num_attention_heads": 32    -->  "heads": 32                  underscores, `num` in front and `size` behind make no difference
//! "step_time_ms": "1,250"      -->  "measured": {"seconds_per_step": 1.25}
//! "model": "Llama 3 8B"        -->  "model": {"name": "Llama 3 8B"}
//! [{..}, {..}]                 -->  {"rows": [{..}, {..}]}
//! ```

use serde_json::{Map, Value, json};

/// Numbers: the field, the factor of its unit, and its names.
const NUMBERS: [(&str, f64, &str); 33] = [
    ("gpus", 1.0, "gpus ngpus gpucount world devices ranks"),
    ("gpus_per_node", 1.0, "gpuspernode devicespernode"),
    ("sequence_length", 1.0, "sequencelength seqlen seqlength contextlength maxseqlen"),
    ("global_batch", 1.0, "globalbatch gbs batch trainbatch"),
    ("global_batch_tokens", 1.0, "globalbatchtokens batchtokens tokensperbatch"),
    ("micro_batch", 1.0, "microbatch mbs localbatch perdevicebatch perdevicetrainbatch"),
    ("accumulate", 1.0, "accumulate ga gradaccum gradientaccumulation gradientaccumulationsteps"),
    ("tp", 1.0, "tp tensorparallel tensormodelparallel"),
    ("pp", 1.0, "pp pipelineparallel pipelinemodelparallel"),
    ("vp", 1.0, "vp vpp virtualpipeline virtualpipelinemodelparallel"),
    ("cp", 1.0, "cp contextparallel"),
    ("ep", 1.0, "ep expertparallel expertmodelparallel"),
    ("dp", 1.0, "dp dataparallel"),
    ("memory_gb", 1.0, "memorygb peakmemorygb maxmemorygb"),
    ("memory_gb", 1.073_741_824, "memorygib peakmemorygib maxmemorygib"),
    ("seconds_per_step", 1.0, "secondsperstep steptime steptimes iterationtime iterationtimes"),
    ("seconds_per_step", 1e-3, "steptimems iterationtimems msperstep"),
    ("tokens_per_s_per_gpu", 1.0, "tokenspersecondpergpu tokenspergpupersecond tokenspersecpergpu"),
    ("tokens_per_s", 1.0, "tokenspersecond tokenspersec tokenspers"),
    ("samples_per_s", 1.0, "samplespersecond samplespersec sequencespersecond"),
    ("tflops_per_gpu", 1.0, "tflopspergpu tflops"),
    ("layers", 1.0, "layers hiddenlayers nlayer nlayers"),
    ("hidden", 1.0, "hidden dmodel nembd"),
    ("ffn", 1.0, "ffn intermediate ffnhidden dff"),
    ("heads", 1.0, "heads attentionheads nhead nheads"),
    ("kv_heads", 1.0, "kvheads keyvalueheads querygroups"),
    ("head_dim", 1.0, "headdim kvchannels"),
    ("vocab", 1.0, "vocab paddedvocab"),
    ("experts", 1.0, "experts localexperts routedexperts nroutedexperts"),
    ("top_k", 1.0, "topk expertspertok moeroutertopk"),
    ("moe_ffn", 1.0, "moeffn moeintermediate moeffnhidden"),
    ("params", 1.0, "params parameters"),
    ("nodes", 1.0, "nodes nnodes"),
];

/// Texts and objects, and their names.
const TEXTS: [(&str, &str); 8] = [
    ("model", "modelname"),
    ("gpu", "gputype gpumodel gpuname accelerator"),
    ("system", "cluster machine"),
    ("software", "framework"),
    ("precision", "dtype datatype"),
    ("sharding", "zero zerostage shardingstrategy"),
    ("recompute", "recomputation activationcheckpointing gradientcheckpointing recomputegranularity"),
    ("interconnect", "network internode"),
];

/// What a row measured.
const MEASURED: [&str; 5] =
    ["seconds_per_step", "tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s", "tflops_per_gpu"];

/// A file whose fields have the names and units of this schema.
pub(super) fn usual(value: Value) -> Value {
    let mut file = match value {
        Value::Object(file) => file,
        Value::Array(rows) => Map::from_iter([("rows".to_string(), Value::Array(rows))]),
        other => return other,
    };
    rename(&mut file);
    for row in file.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten() {
        let Value::Object(row) = row else { continue };
        rename(row);
        for key in MEASURED {
            let Some(value) = row.remove(key) else { continue };
            let measured = row.entry("measured").or_insert_with(|| json!({}));
            if measured.is_null() {
                *measured = json!({});
            }
            if let Value::Object(measured) = measured {
                measured.entry(key).or_insert(value);
            }
        }
    }
    Value::Object(file)
}

/// Gives the fields of an object, and of its model and measurements, the names of this schema. A field that has its name already stays.
fn rename(fields: &mut Map<String, Value>) {
    // From the last one on: `global_batch_size` comes before `batch_size`.
    for key in fields.keys().rev().cloned().collect::<Vec<String>>() {
        let flat: String = key.to_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
        let flat = flat.strip_prefix("num").unwrap_or(&flat);
        let flat = flat.strip_suffix("size").unwrap_or(flat);
        let is = |names: &str| names.split(' ').any(|name| name == flat);
        let number = NUMBERS.iter().find(|(.., names)| is(names)).map(|(field, factor, _)| (*field, *factor));
        let text = || TEXTS.iter().find(|(_, names)| is(names)).map(|(field, _)| (*field, f64::NAN));
        let Some((field, factor)) = number.or_else(text) else { continue };
        if key != field && fields.get(field).is_some_and(|value| !value.is_null()) {
            continue;
        }
        if let Some(value) = fields.remove(&key) {
            fields.insert(field.into(), in_unit(value, field, factor));
        }
    }
    if let Some(Value::String(name)) = fields.get("model") {
        let name = json!({ "name": name });
        fields.insert("model".into(), name);
    }
    for inner in ["model", "measured"] {
        if let Some(Value::Object(inner)) = fields.get_mut(inner) {
            rename(inner);
        }
    }
}

/// A value of a field; numbers may be written as texts. `factor`: of the unit, not a number for texts.
fn in_unit(value: Value, field: &str, factor: f64) -> Value {
    match &value {
        Value::Number(stage) if field == "sharding" => json!(format!("zero{stage}")),
        _ if factor.is_nan() => value,
        Value::String(text) => match text.trim().replace([',', '_', ' '], "").parse::<f64>() {
            Ok(number) => json!(number * factor),
            Err(_) if ["", "-", "n/a", "null"].contains(&&*text.trim().to_lowercase()) => Value::Null,
            Err(_) => value,
        },
        Value::Number(number) if factor != 1.0 => json!(number.as_f64().map(|number| number * factor)),
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Recompute, Sharding};
    use crate::rows::{TrainingRow, is_rows, parse};

    fn one(file: &Value) -> TrainingRow {
        let text = file.to_string();
        assert!(is_rows(&text), "{text}");
        let read = parse("run", &text).unwrap();
        assert_eq!(read.left_out, [], "{text}");
        read.rows.into_iter().next().unwrap()
    }

    #[test]
    fn a_row_in_words_of_other_tables_is_read() {
        let row = one(
            &json!([{"model_name": "Llama 2 7B", "GPU_type": "A100-SXM4-80GB", "num_gpus": "16", "seq_len": "4,096",
            "global-batch-size": 64, "micro_batch_size": 2, "tensor_model_parallel_size": 2, "zero_stage": 1, "dtype": "bf16",
            "activation_checkpointing": true, "step_time_ms": "2,500", "peak_memory_gib": 60}]),
        );
        let layout = &row.job.layout;
        assert_eq!(
            (layout.gpus, layout.sequence, layout.global_batch, layout.micro_batch),
            (16, 4096, 64, 2)
        );
        assert_eq!((layout.tensor, layout.sharding, layout.recompute), (2, Sharding::Zero1, Recompute::Full));
        assert_eq!((row.step_s, row.memory_gb), (Some(2.5), Some(60.0 * 1.073_741_824)));
        assert_eq!(&*row.job.cluster.gpu, "A100 SXM");
    }

    #[test]
    fn a_configuration_of_hugging_face_is_a_model() {
        let model = json!({"num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
            "num_key_value_heads": 8, "vocab_size": 32000});
        let file = json!({"model": model, "gpu": "H100", "gpus_per_node": 8, "nodes": 2, "context_length": 2048, "gbs": 32,
            "rows": [{"tokens_per_second": 100_000, "gbs": null}, {"tflops": 400, "gbs": 64}]});
        let model = one(&file).job.model;
        assert_eq!((model.layers, model.hidden, model.ffn, model.heads), (32, 4096, 11008, 32));
        assert_eq!((model.kv_heads, model.vocab), (Some(8), 32000));
        let rows = parse("run", &file.to_string()).unwrap().rows;
        // What a row leaves out the file states; tokens of all GPUs.
        assert_eq!(rows[0].job.layout.gpus, 16);
        assert!((rows[0].step_s.unwrap() - 32.0 * 2048.0 / 1e5).abs() < 1e-12);
        assert_eq!(rows[1].job.layout.global_batch, 64);
        assert!(rows[1].step_s.is_some());
    }

    #[test]
    fn every_common_spelling_gives_a_row() {
        for (name, fields) in [
            ("per GPU", json!({"batch_size": 8, "tokens_per_sec_per_gpu": 900, "world_size": 8})),
            (
                "samples",
                json!({"train_batch_size": 16, "samples_per_second": 4, "devices": 8, "framework": "PyTorch FSDP"}),
            ),
            ("tokens", json!({"tokens_per_batch": 262_144, "iteration_time": 3.5, "n_gpus": 8})),
            (
                "DeepSpeed",
                json!({"gbs": 8, "sequences_per_second": 2, "ranks": 8, "zero": "stage 3", "zero_stage": 3}),
            ),
            (
                "accumulated",
                json!({"mbs": 1, "gradient_accumulation_steps": 4, "ms_per_step": 900, "gpu_count": 8}),
            ),
            ("measured", json!({"gbs": 8, "measured": {"step_time_s": "1.5"}, "gpus": 8})),
            (
                "blanks",
                json!({"gbs": 8, "step_time_s": 1.5, "gpus": 8, "pp": "", "cp": "n/a", "memory_gb": "-"}),
            ),
            (
                "axes",
                json!({"gbs": 8, "step_time_s": 1, "gpus": 8, "pipeline_parallel_size": 2, "context_parallel_size": 2}),
            ),
        ] {
            let file = json!({"model": "Llama 3 8B", "gpu": "H100", "machine": "ours", "seqlen": 8192, "rows": [fields]});
            let row = one(&file);
            assert!(row.step_s.is_some_and(|seconds| seconds > 0.0), "{name}");
            assert_eq!(row.job.layout.gpus, 8, "{name}");
        }
    }

    #[test]
    fn a_field_with_its_own_name_stays_and_words_are_no_numbers() {
        let row = |fields: Value| usual(json!([fields]))["rows"][0].clone();
        assert_eq!(
            row(json!({"memory_gb": 61.5, "memory_gib": 1})),
            json!({"memory_gb": 61.5, "memory_gib": 1})
        );
        assert_eq!(row(json!({"tp": "two"})), json!({"tp": "two"}));
        assert_eq!(row(json!({"batch_size": 2, "global_batch_size": 64}))["global_batch"], json!(64));
        assert_eq!(
            row(json!({"step_time_s": 1, "measured": null})),
            json!({"measured": {"seconds_per_step": 1}})
        );
        assert_eq!(row(json!({"step_time_s": 1, "measured": 7})), json!({"measured": 7}));
        assert_eq!(usual(json!("text")), json!("text"));
    }
}
