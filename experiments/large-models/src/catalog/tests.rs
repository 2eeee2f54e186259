use super::*;

#[test]
fn every_row_counts_the_published_parameters() {
    let rows = toml::from_str::<Table>(include_str!("../models.toml")).unwrap().row;
    assert!(rows.len() >= 60);
    for row in rows {
        let (model, counted) = (&row.model, row.model.parameters().total());
        let stated = model.stated_parameters.unwrap();
        assert!((counted / stated - 1.0).abs() < 0.018, "{}: {counted:e} of {stated:e}", model.name);
        assert_eq!(model.check(), Ok(()), "{}", model.name);
        assert!(row.source.len() > 15, "{}", model.name);
    }
}

#[test]
fn names_are_unique_and_found_as_people_write_them() {
    for row in models() {
        for name in std::iter::once(&row.model.name).chain(&row.also) {
            assert_eq!(LargeModel::named(name).unwrap(), &row.model, "{name}");
        }
    }
    for (text, name) in [
        ("llama3-70b", "Llama 3 70B"),
        ("LLAMA3.1_405B", "Llama 3 405B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama 3 8B"),
        ("llama31 8b", "Llama 3 8B"),
        ("Qwen3_30B_a3B", "Qwen3 30B-A3B"),
        ("qwen2.5-7b", "Qwen2.5 7B"),
        ("DeepSeekV3", "DeepSeek-V3"),
        ("deepseek-v2-lite", "DeepSeek-V2 Lite"),
        ("GPT OSS 120B", "GPT-OSS 120B"),
        ("gpt18.4b", "GPT 18.4B"),
        ("Nemotron_3_Super", "Nemotron 3 Super"),
        ("Nemotron_3_Ultra", "Nemotron 3 Ultra"),
        ("Nemotron_3_5_Lightning", "Nemotron 3 Nano"),
        ("DeepSeekV4 Flash", "DeepSeek-V4 Flash"),
        ("mpt-7b", "MPT 7B"),
        ("Llama-2-13b-hf", "Llama 2 13B"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "Mixtral 8x7B"),
        ("Phi-3-mini-4k-instruct", "Phi-3 mini"),
        ("bloom-7b1", "BLOOM 7.1B"),
        ("deepseek-v3 proxy", "DeepSeek-V3"),
    ] {
        assert_eq!(LargeModel::named(text).map(|model| &*model.name), Ok(name), "{text}");
    }
    let refused = LargeModel::named("lama 3 70B").unwrap_err();
    assert!(refused.contains("the nearest is `Llama 3 70B`"), "{refused}");
    assert!(LargeModel::named("GPT 184B").is_err(), "18.4 is not 184");
    assert!(LargeModel::named("").is_err());
}

#[test]
fn sizes_that_do_not_fit_are_refused_with_what_would_be_right() {
    let good = LargeModel::named("mixtral 8x7b").unwrap();
    let refused = |change: fn(&mut LargeModel)| {
        let mut model = good.clone();
        model.stated_parameters = None;
        change(&mut model);
        model.check().unwrap_err()
    };
    let heads = refused(|model| model.heads = 30);
    assert_eq!(heads, "hidden = 4096 is no multiple of heads = 30; give head_dim, or heads = 32");
    let kv = refused(|model| model.kv_heads = Some(7));
    assert_eq!(kv, "heads = 32 is no multiple of kv_heads = 7; kv_heads = 8 would be right");
    assert!(refused(|model| model.layers = 0).contains("layers = 0"));
    assert!(refused(|model| model.kv_heads = Some(0)).contains("kv_heads = 0"));
    assert!(refused(|model| model.experts.as_mut().unwrap().top_k = 9).contains("1 to experts.count = 8"));
    assert!(refused(|model| model.experts.as_mut().unwrap().dense_layers = 33).contains("0 to 32"));
    assert!(refused(|model| model.stated_parameters = Some(7e9)).contains("the shapes count 4.6"));
    let mix = refused(|model| model.hybrid = Some(crate::model::Hybrid { attention: 6, mamba: 20, ffn: 5 }));
    assert!(mix.contains("layers = 31 would be right"), "{mix}");
}

#[test]
fn a_file_of_shapes_is_read_and_its_mistakes_are_told_in_one_line() {
    let folder = std::env::temp_dir().join(format!("allfold-models-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let read = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        LargeModel::find(path.to_str().unwrap())
    };
    let text = "name = \"own\"\nlayers = 2\nhidden = 256\nffn = 1024\nheads = 4\nvocab = 1000\n";
    let own = read("own.toml", text).unwrap();
    assert_eq!(own.parameters().total(), 2.0 * 12.0 * 256.0 * 256.0 + 2.0 * 256_000.0);
    for (name, change, said) in [
        ("typo.toml", text.replace("heads", "haeds"), "line 5: unknown field `haeds`"),
        ("odd.toml", text.replace("heads = 4", "heads = 5"), "give head_dim, or heads = 4"),
        ("sign.toml", text.replace("256", "-256"), "line 3:"),
    ] {
        let error = read(name, &change).unwrap_err();
        assert!(error.contains(said) && !error.contains('\n'), "{error}");
    }
    assert!(LargeModel::find("/nowhere/model.toml").unwrap_err().starts_with("/nowhere/model.toml: "));
    std::fs::remove_dir_all(&folder).unwrap();
}
