//! Configurations that strategies refuse before anything runs, with one line that gives what would be right.

use crate::digits;
use allfold_collectives::World;

/// Checks that a run on `ranks` ranks with these keys ends with an error of one line that contains all of `says`.
fn refused(ranks: u32, keys: &[(&str, &str)], says: &[&str]) {
    let mut config = digits();
    let said = match keys.iter().find_map(|(key, value)| config.set(key, value).err()) {
        Some(wrong) => wrong.to_string(),
        None => {
            let run = World::threads(ranks).run(|comm| allfold_trainer::train(&config, &comm, &mut ()));
            run.unwrap_err().to_string()
        }
    };
    assert!(!said.contains('\n') && says.iter().all(|says| said.contains(says)), "{keys:?}: {said}");
}

/// A small gpt.
const GPT: [(&str, &str); 6] = [
    ("model.name", "gpt"),
    ("data.name", "synthetic"),
    ("model.hidden", "[]"),
    ("model.width", "12"),
    ("model.heads", "3"),
    ("data.positions", "6"),
];

#[test]
fn what_a_strategy_cannot_take_is_refused_in_one_line() {
    let pipeline = ("strategy", "pipeline");
    refused(4, &[pipeline, ("parallel.stages", "3")], &["`parallel.stages` is 3", "divisor of 4"]);
    refused(
        4,
        &[pipeline, ("model.name", "mlp"), ("model.hidden", "[8]")],
        &["3 parts", "4 chunks", "use 1 to 3"],
    );
    refused(
        2,
        &[pipeline, ("parallel.schedule", "interleaved"), ("training.accumulate", "3")],
        &["3 micro-batches", "must be a multiple of 2"],
    );
    refused(2, &[pipeline, ("parallel.split", "[\"fc9\", \"fc8\"]")], &["names 2 layers", "name 1"]);
    refused(2, &[pipeline, ("parallel.split", "[\"nowhere\"]")], &["unknown layer `nowhere`"]);
    refused(4, &[("strategy", "zero2"), ("parallel.shard", "3")], &["`parallel.shard` is 3", "divisor of 4"]);
    refused(2, &[("strategy", "data_parallel"), ("parallel.shard", "2")], &["`parallel.shard`", "zero1"]);
    let servers = [("strategy", "parameter_server"), ("parallel.servers", "2"), ("optimiser.name", "lars")];
    let stale = [&servers[..], &[("parallel.staleness", "1")]].concat();
    refused(4, &stale, &["`lars`", "use staleness 0, `parallel.servers` 1, or another optimiser"]);
    refused(2, &[("strategy", "zero3"), ("ddp.hook", "fp16")], &["`ddp.hook`", "none", "`ddp` takes"]);
    refused(2, &[("strategy", "data_parallel"), ("data.uneven", "true")], &["`data.uneven`", "false"]);
    let ddp = ("strategy", "ddp");
    refused(4, &[ddp, ("parallel.shares", "[3, 1]")], &["`parallel.shares` has 2 numbers", "4 ranks"]);
    refused(
        2,
        &[ddp, ("parallel.shares", "[99, 1]"), ("training.batch", "8")],
        &["rank 1 of 2 none of the 16 samples"],
    );
    refused(2, &[ddp, ("parallel.shares", "[3, -1]")], &["`parallel.shares`", "integer `-1`"]);
    refused(
        2,
        &[ddp, ("parallel.shares", "[3, 1]"), ("data.uneven", "true")],
        &["`parallel.shares`", "`data.uneven`"],
    );
    refused(2, &[("strategy", "data_parallel"), ("parallel.shares", "[3, 1]")], &["must be empty"]);
    let server = ("strategy", "parameter_server");
    refused(1, &[server], &["`parallel.servers` is 1", "at least one worker", "use 2 ranks or more"]);
    refused(4, &[server, ("parallel.servers", "4")], &["`parallel.servers` is 4", "use 1 to 3"]);
    refused(
        4,
        &[server, ("parallel.staleness", "2"), ("optimiser.clip_norm", "1.0")],
        &["`optimiser.clip_norm` is set", "`parallel.staleness` is 2", "no clipping"],
    );
    refused(4, &[server, ("parallel.staleness", "-1")], &["parallel.staleness"]);
    let tensor = ("strategy", "tensor");
    refused(4, &[tensor, ("parallel.tensor", "3")], &["`parallel.tensor` is 3", "divisor of 4"]);
    refused(
        2,
        &[("strategy", "ddp"), ("parallel.tensor", "2")],
        &["`ddp` gives every rank whole layers", "use `tensor`"],
    );
    refused(
        4,
        &[pipeline, ("parallel.tensor", "2"), ("parallel.stages", "3")],
        &["`parallel.stages` is 3", "2 ranks that `parallel.tensor` leaves", "divisor of 2"],
    );
}

#[test]
fn networks_that_ranks_cannot_share_are_refused_in_one_line() {
    let with = |keys: &[(&'static str, &'static str)]| [&GPT[..], keys].concat();
    refused(2, &with(&[("strategy", "context")]), &["2 ranks cannot share 6 positions", "multiple of 4"]);
    refused(2, &[("strategy", "context")], &["layer `fc1` has none", "use it for a gpt"]);
    refused(
        4,
        &[("strategy", "context"), ("parallel.tensor", "2"), ("parallel.context", "2")],
        &["`parallel.tensor` 2", "`parallel.context` 2", "one of the two"],
    );
    refused(2, &[("strategy", "ddp"), ("parallel.context", "2")], &["whole positions", "use `context`"]);
    let tensor = with(&[("strategy", "tensor")]);
    refused(
        2,
        &tensor,
        &[
            "2 ranks cannot share the 3 heads",
            "let `parallel.tensor` divide 3, which no divisor of 2 but 1 does",
        ],
    );
}

#[test]
fn positions_that_ranks_of_a_tensor_axis_cannot_share_are_refused_in_one_line() {
    let (on, tensor) = (("parallel.sequence_parallel", "true"), ("strategy", "tensor"));
    let with = |keys: &[(&'static str, &'static str)]| [&GPT[..], &[on], keys].concat();
    let alone = ["`parallel.sequence_parallel`", "none do here", "use `tensor`, or `parallel.tensor` 2"];
    for strategy in ["ddp", "single", "zero2", "pipeline", "context", "parameter_server"] {
        let ranks = if strategy == "single" { 1 } else { 2 };
        refused(ranks, &with(&[("strategy", strategy)]), &[&alone[..], &[strategy]].concat());
    }
    let uneven = with(&[tensor, ("data.positions", "7"), ("model.heads", "2")]);
    refused(2, &uneven, &["2 ranks cannot share 7 positions", "let `parallel.tensor` divide 7"]);
    refused(2, &[on, tensor], &["layer `fc1` has none", "use it for a gpt"]);
    let mixture = with(&[tensor, ("model.heads", "2"), ("model.experts", "4")]);
    refused(2, &mixture, &["tokens over a whole sample", "leave out `model.experts`"]);
}

#[test]
fn experts_that_ranks_cannot_share_are_refused_in_one_line() {
    let expert = ("strategy", "expert");
    refused(2, &[expert], &["the network has none", "`gpt` with `model.experts`"]);
    let mixture =
        |keys: &[(&'static str, &'static str)]| [&GPT[..], &[expert, ("model.experts", "6")], keys].concat();
    refused(4, &mixture(&[]), &["4 ranks cannot share the 6 experts", "let `parallel.expert` divide 6"]);
    refused(4, &mixture(&[("parallel.expert", "3")]), &["`parallel.expert` is 3", "divisor of 4"]);
    refused(
        4,
        &mixture(&[("parallel.tensor", "2")]),
        &["share experts", "share layers too", "one of the two"],
    );
    refused(2, &mixture(&[("strategy", "context")]), &["tokens over a whole sample", "`expert`"]);
    refused(2, &mixture(&[("model.experts_per_token", "7")]), &["7 of 6 experts; use 1 to 6"]);
    let shards = [("parallel.expert", "2"), ("parallel.sharding", "zero1"), ("parallel.shard", "2")];
    refused(
        4,
        &mixture(&shards),
        &["`parallel.shard` is 2 and `parallel.expert` 2", "leave `parallel.shard` out"],
    );
    refused(2, &[("model.experts", "4")], &["`model.experts` are for model `gpt`"]);
    refused(
        2,
        &[("strategy", "ddp"), ("parallel.expert", "2")],
        &["whole mixtures of experts", "use `expert`"],
    );
}
