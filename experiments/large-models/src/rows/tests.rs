use super::*;

#[test]
#[ignore = "writes what is read, for a comparison by hand"]
fn dump() {
    let folder = std::env::var("ALLFOLD_DATA").unwrap();
    let mut files: Vec<_> = std::fs::read_dir(Path::new(&folder).join("llm-training"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    files.sort();
    let mut out = String::new();
    for file in files {
        let read = match read(&file) {
            Ok(read) => read,
            Err(error) => {
                println!("{error}");
                continue;
            }
        };
        for row in read.rows {
            let (j, l) = (&row.job, &row.job.layout);
            let m = &j.model;
            let v = serde_json::json!({"run": row.run, "row": row.row, "sys": row.system, "step": row.step_s, "suspect": row.suspect, "mem": row.memory_gb, "oom": row.out_of_memory,
              "fw": format!("{:?}", j.framework), "prec": format!("{:?}", j.precision), "gpu": j.cluster.gpu, "nic": j.cluster.nic, "domain": j.cluster.domain, "opa": j.cluster.omni_path, "lim": j.cluster.limited_power,
              "tp": l.tensor, "pp": l.pipeline, "vp": l.chunks, "cp": l.context, "ep": l.expert, "mb": l.micro_batch, "gb": l.global_batch, "s": l.sequence, "n": l.gpus, "sp": l.sequence_parallel, "rc": format!("{:?}", l.recompute), "sh": format!("{:?}", l.sharding)});
            let w = serde_json::json!({              "L": m.layers, "h": m.hidden, "f": m.ffn, "V": m.vocab, "heads": m.heads, "kv": m.kv(), "hd": m.head_width(), "gated": m.gated, "E": m.experts.map_or(0, |e| e.count), "topk": m.experts.map_or(0, |e| e.top_k), "moe_ffn": m.experts.map_or(0, |e| e.ffn), "shared": m.experts.map_or(0, |e| e.shared_ffn), "dense_layers": m.experts.map_or(0, |e| e.dense_layers), "mla": m.latent.is_some(), "mtp": m.extra_predictions, "hyb": m.hybrid.is_some(),
              "P": m.stated_parameters, "Pc": m.parameters().total(), "lora": j.lora, "packed": j.packed, "release": j.release, "details": format!("{:?}", j.details), "noisy": row.noisy});
            out.push_str(&format!("[{v},{w}]\n"));
        }
        for left in read.left_out {
            println!("{left:?}");
        }
    }
    std::fs::write("/tmp/dump.jsonl", out).unwrap();
}
