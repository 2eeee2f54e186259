//! The thread backend, measured beside the memory bandwidth of the same machine in the same run.

use super::part::{Part, commands, distinct, head};
use crate::format;
use crate::page::{Finding, Section, Table};
use crate::plots::{Axis, Curves, DrawError, Figure, Ideal, Origin, Point, Series};
use crate::records::{Limit, MeasuredCollective, Records};

pub fn part(records: &Records) -> Result<Option<Part>, DrawError> {
    let all = records.stamped::<MeasuredCollective>();
    if all.is_empty() {
        return Ok(None);
    }
    let limits = records.all::<Limit>();
    let rows: Vec<&MeasuredCollective> = all.iter().map(|(record, _)| record).collect();
    let wrong: u64 = rows.iter().filter_map(|record| record.wrong).sum();
    let checked = rows.iter().filter(|record| record.wrong.is_some()).count();

    let mut findings = vec![Finding {
        value: if wrong == 0 { "0 wrong".into() } else { format!("{wrong} wrong") },
        text: format!("elements in {checked} measured calls, each held against the exact reference"),
        ok: Some(wrong == 0),
    }];
    let best = rows
        .iter()
        .filter(|r| r.call.collective == "all_reduce")
        .max_by(|a, b| a.busbw_gbps.total_cmp(&b.busbw_gbps));
    if let Some(best) = best {
        let limit = limits.iter().min_by_key(|limit| limit.bytes.abs_diff(best.call.bytes));
        let share = limit.map(|limit| best.busbw_gbps / ceiling(limit, best.call.ranks));
        let of = share.map_or(String::new(), |share| {
            format!(", {} of what adding alone would allow", format::percent(share))
        });
        findings.push(Finding {
            value: format!("{:.1} GB/s", best.busbw_gbps),
            text: format!(
                "bus bandwidth of all_reduce of {} over {} threads{of}",
                format::bytes(best.call.bytes),
                best.call.ranks
            ),
            ok: None,
        });
    }
    let mut figures = Vec::new();
    for collective in distinct(rows.iter().map(|record| record.call.collective.clone())) {
        let of: Vec<&MeasuredCollective> =
            rows.iter().copied().filter(|r| r.call.collective == collective && r.in_place).collect();
        figures.extend(figure(&collective, &of, &limits)?);
    }
    let mut tables = Vec::new();
    if !limits.is_empty() {
        tables.push(limit_table(&limits));
    }
    tables.push(table(&rows));
    let section = Section {
        id: "measured",
        title: "Measured on threads".into(),
        text: vec![
            "Ranks are threads of one process that hand real data to each other. Every result is checked, element by \
             element, against a reference that reduces in exactly the order of the algorithm's tree."
                .into(),
            "The line to compare an all_reduce with: each byte of all buffers but one must be added once, so that \
             no algorithm is faster than a += b over all cores allows."
                .into(),
        ],
        figures,
        tables,
        commands: commands(all.iter().map(|(_, stamp)| stamp)),
    };
    Ok(Some((findings, section)))
}

/// The greatest bus bandwidth of an all-reduce over threads: n - 1 additions of the buffer, shared by all cores.
fn ceiling(limit: &Limit, ranks: u32) -> f64 {
    2.0 / f64::from(ranks) * limit.reduce_gbps
}

fn figure(
    collective: &str,
    rows: &[&MeasuredCollective],
    limits: &[Limit],
) -> Result<Option<(String, Figure)>, DrawError> {
    let kinds = distinct(rows.iter().map(|r| (r.call.algorithm.clone(), r.call.ranks)));
    let series: Vec<Series> = kinds
        .iter()
        .map(|(algorithm, ranks)| {
            let of = rows.iter().filter(|r| r.call.algorithm == *algorithm && r.call.ranks == *ranks);
            let points = of.map(|r| Point {
                x: r.call.bytes as f64,
                y: r.busbw_gbps,
                // To first order the bandwidth's relative error is the time's.
                error: r.busbw_gbps * r.time_error_us / r.time_us.max(1e-9),
            });
            Series {
                name: format!("{algorithm}, {ranks} ranks"),
                origin: Origin::Measured,
                points: points.filter(|p| p.y > 0.0).collect(),
            }
        })
        .filter(|series: &Series| series.points.len() > 1)
        .collect();
    let xs = series.iter().flat_map(|s| &s.points).map(|p| p.x);
    let (low, high) = xs.fold((f64::INFINITY, 0.0f64), |(low, high), x| (low.min(x), high.max(x)));
    if low > high {
        return Ok(None);
    }
    let ranks = kinds.first().map_or(1, |kind| kind.1);
    let mut points: Vec<(f64, f64)> =
        limits.iter().map(|limit| (limit.bytes as f64, ceiling(limit, ranks))).collect();
    points.retain(|(bytes, _)| (low..=high).contains(bytes));
    let ideal = (collective == "all_reduce" && points.len() > 1)
        .then(|| Ideal { name: format!("limit of a += b, {ranks} ranks"), points });
    let curves = Curves {
        label: format!("Bus bandwidth of {collective} on threads over size"),
        x: Axis { label: "size", log: Some(2), format: format::bytes_axis },
        y: Axis { label: "busbw (GB/s)", log: Some(10), format: format::number },
        series,
        ideal,
    };
    Ok(Some((format!("{collective} on threads, in place; bars are standard errors"), curves.draw()?)))
}

fn limit_table(limits: &[Limit]) -> Table {
    let row = |limit: &Limit| {
        vec![
            limit.threads.to_string(),
            format::bytes(limit.bytes),
            format!("{:.2}", limit.copy_gbps),
            format!("{:.2}", limit.reduce_gbps),
        ]
    };
    Table {
        caption: "Measured limit of this machine's memory, in the same run".into(),
        head: head(&["threads", "buffer", "copy (GB/s)", "a += b (GB/s)"]),
        rows: limits.iter().map(row).collect(),
        folded: limits.len() > 3,
    }
}

fn table(rows: &[&MeasuredCollective]) -> Table {
    let row = |r: &&MeasuredCollective| {
        vec![
            r.call.collective.clone(),
            r.call.algorithm.clone(),
            r.call.ranks.to_string(),
            r.call.bytes.to_string(),
            if r.in_place { "in place" } else { "out of place" }.into(),
            format!("{:.2}", r.time_us),
            format!("{:.2}", r.time_error_us),
            format!("{:.2}", r.algbw_gbps),
            format!("{:.2}", r.busbw_gbps),
            r.wrong.map(|wrong| wrong.to_string()).unwrap_or_default(),
            format::short(r.checksum.as_deref().unwrap_or_default()),
            r.call.order.clone().unwrap_or_default(),
        ]
    };
    let names = [
        "collective",
        "algorithm",
        "ranks",
        "size (B)",
        "buffers",
        "time (us)",
        "std error (us)",
        "algbw (GB/s)",
        "busbw (GB/s)",
        "wrong",
        "checksum",
        "order class",
    ];
    Table {
        caption: "Measured on threads".into(),
        head: head(&names),
        rows: rows.iter().map(row).collect(),
        folded: true,
    }
}
