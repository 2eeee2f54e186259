//! What several tests start from.

use crate::layout::{Layout, Recompute, Sharding};
use crate::rows::{RowsFile, is_rows_file, read};
use std::path::PathBuf;

/// The published files with rows of training, in order of their names; none without `ALLFOLD_DATA`.
pub(crate) fn published() -> Vec<RowsFile> {
    let folder = std::env::var_os("ALLFOLD_DATA").map(|data| PathBuf::from(data).join("llm-training"));
    let Some(folder) = folder.filter(|folder| folder.is_dir()) else {
        println!("SKIP: ALLFOLD_DATA names no folder with `llm-training` in it, the published rows");
        return Vec::new();
    };
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().filter(|file| is_rows_file(file)).filter_map(|file| read(file).ok()).collect()
}

/// So many ranks that share nothing but the batch, of which each has one sequence of 2,048 tokens.
pub(crate) fn layout(gpus: u32) -> Layout {
    Layout {
        gpus,
        tensor: 1,
        pipeline: 1,
        chunks: 1,
        context: 1,
        expert: 1,
        sharding: Sharding::None,
        sequence_parallel: false,
        recompute: Recompute::None,
        micro_batch: 1,
        global_batch: gpus,
        sequence: 2048,
    }
}
