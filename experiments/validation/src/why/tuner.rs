//! A file for NCCL's example of a tuner plug-in, where another algorithm or protocol alone would make a run faster.
//!
//! ```text
//! collective,min bytes,max bytes,algorithm,protocol,channels,nodes,ranks      -1: as NCCL chooses, or any
//! ```
//!
//! Source: NVIDIA/nccl, `ext-tuner/example/README.md`. The plug-in's file has a line for every size: for a size without one, the
//! plug-in takes rings with Simple.

use crate::prepare::Prepared;
use crate::spread::{Spread, spread_of};
use allfold_nccl_model::physics::{Parameters, Terms, closed};
use allfold_nccl_model::{NcclAlgorithm, Protocol, TUNED, estimate};

/// The largest size of a line that is for all larger sizes.
const ALL: u64 = 4_294_967_295;

/// The file for a healthy run whose calls took `measured_us`, with the number of sizes that gain; `None` if no choice is faster
/// with 95 % probability, or NCCL does not tune the collective.
pub fn tuner_file(
    healthy: &Prepared,
    measured_us: &[f64],
    parameters: &Parameters,
    spreads: &[Spread],
) -> Option<(String, usize)> {
    let setting = &healthy.setting;
    let collective = healthy.rows.first()?.case.collective;
    if !TUNED.contains(&collective) {
        return None;
    }
    let mut lines: Vec<(u64, NcclAlgorithm, Protocol)> = Vec::new();
    let mut gains = 0;
    let mut rows: Vec<_> = healthy.rows.iter().zip(measured_us).collect();
    rows.sort_by_key(|(row, _)| row.bytes);
    for (row, &measured) in rows {
        let candidates = NcclAlgorithm::ALL
            .into_iter()
            .flat_map(|algorithm| Protocol::ALL.into_iter().map(move |protocol| (algorithm, protocol)));
        let possible = candidates.filter(|&(algorithm, protocol)| {
            let trusted = protocol != Protocol::Ll128 || setting.platform.ll128;
            trusted && estimate(&setting.platform, collective, row.bytes, algorithm, protocol).is_some()
        });
        let timed = possible.map(|(algorithm, protocol)| {
            let case = setting.with(collective, row.bytes, false, algorithm, protocol);
            (closed(&case, parameters, Terms::default()), algorithm, protocol)
        });
        let best = timed.min_by(|a, b| a.0.total_cmp(&b.0));
        // Above the end of the 95 % interval are 2.5 % of times.
        let sure = best.filter(|(time, ..)| {
            spread_of(spreads, &setting.machine, row.bytes)
                .is_some_and(|spread| spread.around(*time).high95_us < measured)
        });
        gains += usize::from(sure.is_some());
        let (algorithm, protocol) = sure
            .map_or((row.case.algorithm, row.case.protocol), |(_, algorithm, protocol)| {
                (algorithm, protocol)
            });
        match lines.last_mut() {
            Some(last) if (last.1, last.2) == (algorithm, protocol) => last.0 = row.bytes,
            _ => lines.push((row.bytes, algorithm, protocol)),
        }
    }
    let last = lines.last_mut()?;
    last.0 = last.0.max(ALL);
    let (nodes, ranks) = (setting.platform.nodes, setting.platform.ranks);
    let mut text = String::from("# collective,min bytes,max bytes,algorithm,protocol,channels,nodes,ranks\n");
    let mut from = 0;
    for (to, algorithm, protocol) in lines {
        let name = collective.name().replace('_', "");
        let (algorithm, protocol) = (word(algorithm), protocol.name().to_lowercase());
        text += &format!("{name},{from},{to},{algorithm},{protocol},-1,{nodes},{ranks}\n");
        from = to + 1;
    }
    (gains > 0).then_some((text, gains))
}

/// An algorithm as the plug-in's file names it.
const fn word(algorithm: NcclAlgorithm) -> &'static str {
    match algorithm {
        NcclAlgorithm::Tree => "tree",
        NcclAlgorithm::Ring => "ring",
        NcclAlgorithm::CollNetDirect => "collnet_direct",
        NcclAlgorithm::CollNetChain => "collnet_chain",
        NcclAlgorithm::Nvls => "nvls",
        NcclAlgorithm::NvlsTree => "nvls_tree",
        NcclAlgorithm::Pat => "pat",
    }
}
