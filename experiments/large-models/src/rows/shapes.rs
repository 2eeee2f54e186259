//! The shapes of a row's model: those that the file states, then those of the catalog, then those that its name and size imply.

use super::fields::Fields;
use super::words::{has, numbers};
use crate::model::{LargeModel, LatentAttention, RoutedExperts};

/// Families whose feed-forward networks have no gate, by words of their names.
const PLAIN: [&str; 9] = ["gpt", "mpt", "bloom", "opt-", "falcon", "nemotron", "bert", "pythia", "turing"];

/// Widths of GPT models that are known by their size alone: billions of parameters, hidden width (SC21, table 1; GPT-3, table 2.1;
/// bigscience's runs of 24B and 52B have 8192, of 97B 12288).
const WIDTHS: [(f64, u32); 12] = [
    (0.125, 768),
    (0.35, 1024),
    (0.76, 1536),
    (1.3, 2048),
    (2.7, 2560),
    (5.0, 4096),
    (6.7, 4096),
    (13.0, 5120),
    (18.4, 6144),
    (24.5, 8192),
    (52.0, 8192),
    (97.0, 12288),
];

/// DeepSeek-V2's and -V3's latent attention, by their public configurations.
const DEEPSEEK: LatentAttention =
    LatentAttention { query_rank: 1536, kv_rank: 512, plain_dim: 128, rotary_dim: 64, value_dim: 128 };

/// The model of a row: `file` has the file's fields of its model, `row` those that differ in the row.
pub(super) fn model(file: &Fields<'_>, row: &Fields<'_>, notes: &str) -> Result<LargeModel, String> {
    let name = file.text("name")?;
    let hidden = file.count("hidden")?;
    if name.is_empty() && hidden.is_none() {
        return Err("`model` has no `name`; the model's name is right".into());
    }
    let words = name.to_lowercase().replace(['_', ' '], "-");
    let cut = row.count("model_layers")?;
    let known =
        LargeModel::named(name).ok().filter(|known| hidden.is_none_or(|hidden| hidden == known.hidden));
    let mut model = match known {
        Some(known) => known.clone(),
        None => implied(file, row, &words)?,
    };
    model.name = name.to_string();
    let whole = model.layers;
    set(&mut model.hidden, hidden);
    set(&mut model.layers, cut.or(file.count("layers")?));
    set(&mut model.heads, row.count("heads")?.or(file.count("heads")?));
    set(&mut model.vocab, file.count("vocab")?);
    model.kv_heads = file.count("kv_heads")?.or(model.kv_heads).filter(|kv| *kv <= model.heads);
    model.head_dim = file.count("head_dim")?.or(model.head_dim);
    experts(&mut model, file, &words)?;
    if model.experts.is_none_or(|experts| experts.dense_layers > 0) {
        set(&mut model.ffn, file.count("ffn")?);
    }
    if file.text("attention")?.eq_ignore_ascii_case("mla") {
        model.latent = model.latent.or(Some(DEEPSEEK));
    }
    if notes.contains("w/o mtp") || notes.contains("without mtp") {
        model.extra_predictions = 0;
    }
    model.stated_parameters =
        row.positive("params")?.or(file.positive("params")?).or(model.stated_parameters);
    if cut.is_some() || (known.is_some() && model.layers != whole) {
        model.stated_parameters = None;
    }
    check(&model)?;
    Ok(model)
}

fn set(value: &mut u32, stated: Option<u32>) {
    *value = stated.unwrap_or(*value);
}

/// Refuses sizes that no network has together.
fn check(model: &LargeModel) -> Result<(), String> {
    let experts = model.experts;
    if let Some(experts) = experts.filter(|experts| experts.top_k > experts.count) {
        return Err(format!(
            "each token goes to {} of {} experts; at most all is right",
            experts.top_k, experts.count
        ));
    }
    // Below one part in four of the stated number or above four times, shapes and number are of two models.
    let counted = model.parameters().total();
    match model.stated_parameters {
        Some(stated) if !(0.25..=4.0).contains(&(counted / stated)) => Err(format!(
            "`params` is {stated:.3e}, and the sizes of the model give {counted:.3e}; sizes that agree are right"
        )),
        _ => Ok(()),
    }
}

/// The experts by the file, over those of the catalog.
fn experts(model: &mut LargeModel, file: &Fields<'_>, words: &str) -> Result<(), String> {
    let Some(count) = file.count("experts")?.or(model.experts.map(|experts| experts.count)) else {
        return Ok(());
    };
    if count < 2 {
        return Ok(());
    }
    let known = model.experts;
    // The width of the dense blocks of a model of the catalog is not that of its experts.
    let of_dense = |ffn: &u32| *ffn == model.ffn && known.is_some();
    let stated = file.count("moe_ffn")?.or(file.count("ffn")?.filter(|ffn| !of_dense(ffn)));
    let ffn = stated.or(known.map(|known| known.ffn)).unwrap_or(model.ffn);
    let shared = match (file.count("shared_experts_ffn")?, file.count("shared_experts")?) {
        (Some(width), _) => Some(width),
        (None, Some(shared)) => Some(shared.saturating_mul(ffn)),
        (None, None) => known.map(|known| known.shared_ffn),
    };
    let sparse = if words.contains("maverick") { model.layers / 2 } else { 0 };
    model.experts = Some(RoutedExperts {
        count,
        top_k: file.count("top_k")?.or(known.map(|known| known.top_k)).unwrap_or(2),
        ffn,
        shared_ffn: shared.unwrap_or(0),
        dense_layers: file
            .count("dense_layers")?
            .or(known.map(|known| known.dense_layers))
            .unwrap_or(sparse)
            .min(model.layers),
        input: known.and_then(|known| known.input),
        most_nodes: known.map_or(words.contains("deepseek").then_some(4), |known| known.most_nodes),
    });
    Ok(())
}

/// The model that a file's sizes, or else the model's name and number of parameters imply.
fn implied(file: &Fields<'_>, row: &Fields<'_>, words: &str) -> Result<LargeModel, String> {
    let parameters = file.positive("params")?.or(row.positive("params")?).or_else(|| size_in_name(words));
    let plain = has(words, &PLAIN) && !words.contains("oss");
    let vocab = file.count("vocab")?.unwrap_or(if plain { 51_200 } else { 32_000 });
    let hidden = match (file.count("hidden")?, parameters) {
        (Some(hidden), _) => hidden,
        (None, Some(parameters)) if file.count("experts")?.is_none() && !is_sparse(words) => {
            width(parameters)
        }
        _ => {
            return Err(
                "the sizes of the model are not stated, and no catalog has a model of this name".into()
            );
        }
    };
    let wide = f64::from(hidden);
    let layers = match (file.count("layers")?.or(row.count("model_layers")?), parameters) {
        (Some(layers), _) => layers,
        (None, Some(parameters)) => {
            let ends = f64::from(vocab) * wide * if plain { 1.0 } else { 2.0 };
            ((parameters - ends) / (12.0 * wide * wide)).round().clamp(1.0, 1000.0) as u32
        }
        (None, None) => return Err("the number of layers is not stated, nor the number of parameters".into()),
    };
    let heads = row.count("heads")?.or(file.count("heads")?).unwrap_or((hidden / 128).max(1));
    // Families whose heads are no even share of the width.
    let head_dim = if words.contains("oss") { Some(64) } else { None };
    let head_dim = head_dim.or(has(words, &["qwen3", "deepseek", "kimi"]).then_some(128));
    let ffn = file.count("ffn")?;
    let mut model = LargeModel {
        name: words.into(),
        layers: if is_encoder_decoder(words) { layers.saturating_mul(2) } else { layers },
        hidden,
        ffn: ffn.unwrap_or_else(|| usual_ffn(hidden, !plain)),
        gated: !plain,
        heads,
        kv_heads: file.count("kv_heads")?,
        head_dim,
        vocab,
        tied: plain,
        latent: None,
        experts: None,
        hybrid: None,
        extra_predictions: u32::from(has(words, &["deepseekv3", "deepseek-v3"])),
        stated_parameters: None,
    };
    // With all sizes of a dense model, the number of parameters tells more than the name.
    let all_stated = !plain && ffn.is_some() && file.count("experts")?.is_none_or(|count| count < 2);
    if let Some(stated) = file.positive("params")?.filter(|_| all_stated) {
        (model.gated, model.tied) = closest(&model, stated);
    }
    Ok(model)
}

/// The inner width of a feed-forward network that is not stated: with a gate 8/3 of `hidden` (Touvron et al., LLaMA, 2023), else four
/// times; eight times the square of `hidden` parameters either way.
fn usual_ffn(hidden: u32, gated: bool) -> u32 {
    match gated {
        true => (hidden.saturating_mul(8) / 3).next_multiple_of(256),
        false => hidden.saturating_mul(4),
    }
}

/// Whether a name says that the model has a mixture of experts: `30B-A3B`, `8x7B`.
fn is_sparse(words: &str) -> bool {
    let active = words.match_indices("-a").any(|(at, _)| {
        words.get(at + 2..).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    });
    active || has(words, &["moe", "8x"])
}

/// Whether the model encodes one sequence and decodes another.
pub(super) fn is_encoder_decoder(words: &str) -> bool {
    let words = words.to_lowercase().replace([' ', '_'], "-");
    words.starts_with("t5") || has(&words, &["-t5", "mt5", "ul2", "bart"])
}

/// The width of a GPT of so many parameters.
fn width(parameters: f64) -> u32 {
    let billions = parameters / 1e9;
    let known = WIDTHS.iter().find(|(size, _)| (billions / size - 1.0).abs() < 0.04);
    // 12 x layers x hidden^2 with layers = hidden / 165: between the rows of SC21's table 1.
    known.map_or_else(
        || ((parameters * 165.0 / 12.0).cbrt() / 128.0).round().clamp(1.0, 1e4) as u32 * 128,
        |(_, width)| *width,
    )
}

/// The number of parameters that a name states: `52b`, `1.3b`, `350m`, `1t`.
fn size_in_name(words: &str) -> Option<f64> {
    numbers(words).into_iter().find_map(|(number, _, end)| {
        let rest = words.get(end..)?;
        let unit = match rest.chars().next()? {
            't' => 1e12,
            'b' => 1e9,
            'm' => 1e6,
            _ => return None,
        };
        let ends = !rest.get(1..)?.starts_with(|c: char| c.is_ascii_alphanumeric());
        (ends && number > 0.0).then_some(number * unit)
    })
}

/// Whether the model has a gate, and whether its output layer is tied, by the number of parameters that is nearest to the stated one.
fn closest(model: &LargeModel, stated: f64) -> (bool, bool) {
    let off = |(gated, tied): &(bool, bool)| {
        let model = LargeModel { gated: *gated, tied: *tied, ..model.clone() };
        (model.parameters().total() / stated).ln().abs()
    };
    let kinds = [(true, false), (false, true), (true, true), (false, false)];
    kinds.into_iter().min_by(|one, other| off(one).total_cmp(&off(other))).unwrap_or((true, false))
}
