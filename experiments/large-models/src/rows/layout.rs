//! The layout of a row: what it states, what follows, and what the software does where neither says.

use super::fields::Fields;
use super::recipe;
use super::unusable::Unusable;
use super::words::{has, number_after};
use crate::job::Framework;
use crate::layout::{Layout, Sharding};
use crate::model::LargeModel;

/// Whether a row cuts layers or experts over ranks.
pub(super) fn is_model_parallel(row: &Fields<'_>) -> Result<bool, String> {
    for key in ["tp", "pp", "ep"] {
        if row.count(key)?.is_some_and(|size| size > 1) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The layout of a row of `model`.
pub(super) fn read(
    row: &Fields<'_>,
    model: &LargeModel,
    notes: &str,
    sharding: Sharding,
    framework: Framework,
) -> Result<Layout, Unusable> {
    let silent = |what: &str| Unusable::Silent(format!("{what} not stated"));
    let of_nodes = row.count("nodes")?.zip(row.count("gpus_per_node")?);
    let gpus = row.count("gpus")?.or(of_nodes.and_then(|(nodes, each)| nodes.checked_mul(each)));
    let gpus = gpus.ok_or_else(|| silent("number of GPUs"))?;
    let sequence = row.count("sequence_length")?.ok_or_else(|| silent("sequence length"))?;
    let size = |key: &str| row.count(key).map(|size| size.unwrap_or(1));
    let (tensor, pipeline, context, expert) = (size("tp")?, size("pp")?, size("cp")?, size("ep")?);
    let group = u64::from(tensor) * u64::from(pipeline) * u64::from(context);
    if !u64::from(gpus).is_multiple_of(group) {
        return Err(format!(
            "{gpus} GPUs are no multiple of tp {tensor} x pp {pipeline} x cp {context} = {group}"
        )
        .into());
    }
    let data = (u64::from(gpus) / group) as u32;
    check_data(row, data, context, expert)?;
    let accumulate = row.count("accumulate")?;
    let stated = row.count("micro_batch")?.or(row.count("micro_batch_secondhand")?);
    let of_tokens = row.positive("global_batch_tokens")?.or(row.positive("tokens_per_step")?);
    let sequences = |tokens: f64| (tokens / f64::from(sequence)).round().max(1.0) as u32;
    let global_batch = match (row.count("global_batch")?.or(of_tokens.map(sequences)), stated) {
        (Some(batch), _) => batch,
        // A batch that is not stated is one micro-batch of every rank, or as many as are accumulated.
        (None, Some(micro)) if accumulate.is_some() || pipeline == 1 => {
            micro.saturating_mul(data).saturating_mul(accumulate.unwrap_or(1))
        }
        _ => return Err(silent("batch")),
    };
    let most = (global_batch / data).max(1);
    let micro_batch = match (stated, accumulate) {
        (Some(micro), _) => micro,
        (None, Some(steps)) => (most / steps).max(1),
        (None, None) => {
            number_after(notes, &["gives ", "give "]).map_or(1, |micro| micro as u32).clamp(1, most)
        }
    };
    let mut layout = Layout {
        gpus,
        tensor,
        pipeline,
        chunks: 1,
        context,
        expert,
        sharding,
        sequence_parallel: row.flag("sequence_parallel")?.unwrap_or(tensor > 1),
        recompute: recipe::recompute(row.text("recompute")?),
        micro_batch,
        global_batch,
        sequence,
    };
    layout.chunks = row.count("vp")?.unwrap_or_else(|| chunks(&layout, model, notes, framework));
    Ok(layout)
}

/// Refuses a stated number of data-parallel ranks that is not the rest of the layout. Sources also count the ranks of the context axis
/// in, or those of the expert axis out.
fn check_data(row: &Fields<'_>, data: u32, context: u32, expert: u32) -> Result<(), String> {
    let Some(stated) = row.count("dp")? else { return Ok(()) };
    let (stated, data) = (u64::from(stated), u64::from(data));
    let counted = [data, data * u64::from(context)].contains(&stated) || stated * u64::from(expert) == data;
    match counted {
        true => Ok(()),
        false => Err(format!(
            "`dp` is {stated}, and the GPUs over tp x pp x cp are {data}; equal numbers are right"
        )),
    }
}

/// Chunks of a stage that are not stated. Megatron-core's recipes interleave where few micro-batches fill the pipeline, with about four
/// layers in a chunk.
fn chunks(layout: &Layout, model: &LargeModel, notes: &str, framework: Framework) -> u32 {
    if layout.pipeline == 1 {
        return 1;
    }
    let per_stage = model.layers / layout.pipeline;
    let few = layout.micro_batches() < 8.0 * f64::from(layout.pipeline);
    if framework == Framework::MegatronBridge && few {
        return (f64::from(per_stage) / 4.0).round().max(1.0) as u32;
    }
    let interleaved = notes.contains("interleaved") && !has(notes, &["not interleaved", "without interleav"]);
    if interleaved && per_stage >= 2 { 2 } else { 1 }
}
