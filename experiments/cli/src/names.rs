//! Names that the user types. An unknown name is refused with the nearest known name.

use crate::error::{CommandError, CommandResult};
use allfold_collectives::{Collective, DType, ReduceOp};
use allfold_report::format::counted;
use allfold_report::sizes::MOST_RANKS;
use allfold_sim::suggest::{nearest, unknown};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::fmt::Display;

// The report is made of records alone, so that its crate has the limit too.
const _: () = assert!(MOST_RANKS == allfold_collectives::Rank::MOST);

fn find<T: Copy>(kind: &str, word: &str, all: &[T], name: impl Fn(T) -> &'static str) -> Result<T, String> {
    let wanted = word.to_lowercase().replace('-', "_");
    all.iter().copied().find(|&item| name(item) == wanted).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|&item| name(item)).collect();
        unknown(kind, word, &names)
    })
}

/// Finds a collective by its name, for clap. The error for an unknown name lists the names.
pub fn collective(word: &str) -> Result<Collective, String> {
    find("collective", word, &Collective::ALL, Collective::name)
}

/// Finds a reduction operator by its name, for clap.
pub fn op(word: &str) -> Result<ReduceOp, String> {
    find("operator", word, &ReduceOp::ALL, ReduceOp::name)
}

/// Finds an element type by Allfold's name (`f32`), nccl-tests' (`float`) or PyTorch's (`float32`), for clap.
pub fn dtype(word: &str) -> Result<DType, String> {
    let wanted = word.to_lowercase();
    let ours = wanted.replace("float", "f").replace("fp", "f");
    DType::ALL
        .into_iter()
        .find(|&dtype| nccl_dtype(dtype) == wanted || dtype.name() == ours)
        .map_or_else(|| find("element type", word, &DType::ALL, DType::name), Ok)
        .map_err(|error| match nearest(word, DType::ALL.map(nccl_dtype)) {
            Some(name) if !error.contains("did you mean") => {
                error.replace(" (there", &format!("; did you mean `{name}`? (there"))
            }
            _ => error,
        })
}

/// The name of an element type in nccl-tests' tables.
pub fn nccl_dtype(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "double",
        DType::F32 => "float",
        DType::F16 => "half",
        DType::Bf16 => "bfloat16",
        DType::I8 => "int8",
        DType::I16 => "int16",
        DType::I32 => "int32",
        DType::I64 => "int64",
        DType::U8 => "uint8",
    }
}

/// Refuses a root rank outside the group.
pub fn root_inside(root: u32, ranks: u32) -> CommandResult {
    if root < ranks {
        return Ok(());
    }
    Err(CommandError::usage(format!(
        "root {root} is outside the group of {}; give 0 to {}",
        counted(ranks as usize, "rank"),
        ranks.saturating_sub(1)
    )))
}

/// Refuses a `--ranks` that is not the number of ranks that `launcher` has started.
pub fn other_ranks(ranks: u32, launcher: impl Display, started: u32) -> CommandError {
    let instead = if started == 1 { ", or run threads of this process: --backend threads" } else { "" };
    let started = counted(started as usize, "rank");
    CommandError::usage(format!(
        "--ranks is {ranks}, but {launcher} has started {started}; leave --ranks out{instead}"
    ))
}

/// The value of one of these names.
pub fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    values: [(&'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    let value = move |name: String| values.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    PossibleValuesParser::new(values.map(|(name, _)| name))
        .try_map(move |name| value(name).ok_or("there is no such value"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_suggested() {
        let error = collective("allreduce").unwrap_err();
        assert!(error.contains("did you mean `all_reduce`?"), "{error}");
        let error = dtype("flot").unwrap_err();
        assert!(error.starts_with("no element type is called `flot`; did you mean `float`?"), "{error}");
    }

    #[test]
    fn both_spellings_of_a_type_are_known() {
        for dtype in DType::ALL {
            assert_eq!(super::dtype(dtype.name()), Ok(dtype));
            assert_eq!(super::dtype(nccl_dtype(dtype)), Ok(dtype));
        }
        for (theirs, ours) in [("float16", DType::F16), ("fp32", DType::F32), ("bfloat16", DType::Bf16)] {
            assert_eq!(super::dtype(theirs), Ok(ours));
        }
        assert_eq!(collective("all-reduce"), Ok(Collective::AllReduce));
    }
}
