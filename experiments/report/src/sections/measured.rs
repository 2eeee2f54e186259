//! Collectives in real time, separately for each backend and device; threads are compared with the machine's memory bandwidth.

use super::part::{Part, commands, distinct, fact};
use crate::format;
use crate::page::{Headline, Plot, Question, ReportTable, Section};
use crate::plots::{Axis, Better, Curves, DrawError, Ideal, Origin, Point, Series};
use crate::records::{Limit, MeasuredCollective, Records};

pub fn part(records: &Records) -> Result<Option<Part>, DrawError> {
    let all = records.stamped::<MeasuredCollective>();
    if all.is_empty() {
        return Ok(None);
    }
    let limits = records.all::<Limit>();
    let rows: Vec<&MeasuredCollective> = all.iter().map(|(record, _)| record).collect();
    let wrong: u64 = rows.iter().filter_map(|record| record.wrong_elements).sum();
    let checked = rows.iter().filter(|record| record.wrong_elements.is_some()).count();

    let mut facts = vec![fact(
        Question::Trust,
        if wrong == 0 { "0 wrong".into() } else { format!("{wrong} wrong") },
        format!("elements in {checked} measured calls, each compared with the exact reference"),
        Some(wrong == 0),
    )];
    let on_threads: Vec<&MeasuredCollective> =
        rows.iter().copied().filter(|record| record.backend == THREADS).collect();
    let best = best(&on_threads, &limits);
    let answer = best.as_ref().map(|best| format!("{} {} on this machine", best.value, best.text));
    facts.extend(best.map(|best| (Question::Here, best)));
    let mut tables = Vec::new();
    if !limits.is_empty() {
        tables.push(limit_table(&limits));
    }
    for (place, of) in places(&rows) {
        tables.push(table(&place, &of));
    }
    let section = Section {
        id: "measured",
        title: "Measured collectives".into(),
        text: vec![
            "Ranks exchange real data; on threads the ranks are threads of one process. Every result is checked, element \
             by element, against a reference that reduces in exactly the order of the algorithm's tree."
                .into(),
            "The reference line of an all_reduce is its limit: each byte of all buffers but one must be added once, so \
             that no algorithm is faster than a += b over all cores."
                .into(),
        ],
        plots: with_limits(&rows, &limits)?,
        tables,
        commands: commands(all.iter().map(|(_, stamp)| stamp)),
        ..Section::default()
    };
    let cpu = rows.iter().all(|record| record.device == "cpu");
    let limits = cpu.then(|| "No collective was measured on a GPU in these records.".to_string());
    Ok(Some(Part { answer, facts, limits: limits.into_iter().collect(), section }))
}

/// A plot of each collective on each backend and device.
///
/// # Errors
/// A plot cannot be drawn.
pub fn plots(rows: &[&MeasuredCollective]) -> Result<Vec<Plot>, DrawError> {
    with_limits(rows, &[])
}

fn with_limits(rows: &[&MeasuredCollective], limits: &[Limit]) -> Result<Vec<Plot>, DrawError> {
    let mut plots = Vec::new();
    for (place, of) in places(rows) {
        for collective in distinct(of.iter().map(|record| record.call.collective.clone())) {
            // In-place calls are drawn; for a collective that has none, the out-of-place calls.
            let of = || of.iter().copied().filter(|r| r.call.collective == collective);
            let in_place = of().any(|r| r.in_place);
            let of: Vec<&MeasuredCollective> = of().filter(|r| r.in_place == in_place).collect();
            // The limit is of this machine's memory, which only ranks that are threads share.
            let threads = of.iter().all(|record| record.backend == THREADS);
            plots.extend(plot(&collective, &place, &of, if threads { limits } else { &[] })?);
        }
    }
    Ok(plots)
}

/// The records of each backend and device, by its name in words.
fn places<'a>(rows: &[&'a MeasuredCollective]) -> Vec<(String, Vec<&'a MeasuredCollective>)> {
    let kinds = distinct(rows.iter().map(|record| (record.backend.clone(), record.device.clone())));
    let of = |(backend, device): (String, String)| {
        let of = rows.iter().copied().filter(|r| (&r.backend, &r.device) == (&backend, &device)).collect();
        (place(&backend, &device), of)
    };
    kinds.into_iter().map(of).collect()
}

/// The backend whose ranks are threads. The machine's limits are measured on threads, too.
const THREADS: &str = "threads";

/// The place of a backend's ranks in words.
fn place(backend: &str, device: &str) -> String {
    if device == "cpu" { format!("{backend}, CPU cores") } else { format!("{backend}, {device}") }
}

/// The greatest bus bandwidth of an all-reduce on threads, and its share of the limit.
fn best(on_threads: &[&MeasuredCollective], limits: &[Limit]) -> Option<Headline> {
    let all_reduce = on_threads.iter().filter(|r| r.call.collective == "all_reduce");
    let best = all_reduce.max_by(|a, b| a.busbw_gbps.total_cmp(&b.busbw_gbps))?;
    let limit = limits.iter().min_by_key(|limit| limit.bytes.abs_diff(best.call.bytes));
    let share = limit.map(|limit| best.busbw_gbps / ceiling(limit, best.call.ranks));
    let of = share.map_or(String::new(), |share| match share > 1.0 {
        true => ", above the limit that was measured in the same run, which is therefore too low".into(),
        false => format!(", {} of what adding alone would allow", format::percent(share)),
    });
    Some(Headline {
        value: format!("{:.1} GB/s", best.busbw_gbps),
        text: format!(
            "bus bandwidth of all_reduce of {} over {} threads{of}",
            format::bytes(best.call.bytes),
            best.call.ranks
        ),
        ok: None,
    })
}

/// The greatest bus bandwidth of an all-reduce over threads: n - 1 additions of the buffer, shared by all cores.
fn ceiling(limit: &Limit, ranks: u32) -> f64 {
    2.0 / f64::from(ranks) * limit.reduce_gbps
}

fn plot(
    collective: &str,
    place: &str,
    rows: &[&MeasuredCollective],
    limits: &[Limit],
) -> Result<Option<Plot>, DrawError> {
    let kinds = distinct(rows.iter().map(|r| (r.call.algorithm.clone(), r.call.ranks)));
    let series: Vec<Series> = kinds
        .iter()
        .map(|(algorithm, ranks)| {
            let of = rows.iter().filter(|r| r.call.algorithm == *algorithm && r.call.ranks == *ranks);
            let points = of.map(|r| Point {
                x: r.call.bytes as f64,
                y: r.busbw_gbps,
                // To first order the relative error of the bandwidth is that of the time.
                error: r.busbw_gbps * r.time_error_us / r.time_us.max(1e-9),
            });
            Series {
                name: format!("{algorithm}, {}", format::counted(*ranks as usize, "rank")),
                origin: Origin::measured_on(rows.first().map_or("cpu", |row| &row.device)),
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
    let ideal = (collective == "all_reduce" && points.len() > 1).then(|| Ideal {
        name: format!("limit of a += b, {}", format::counted(ranks as usize, "rank")),
        points,
    });
    let curves = Curves {
        label: format!("Bus bandwidth of {collective} on {place} over size"),
        x: Axis { label: "size", log: Some(2), format: format::bytes_axis },
        y: Axis { label: "busbw (GB/s)", log: Some(10), format: format::number },
        series,
        ideal,
    };
    let caption = format!("{collective} on {place}, measured in place; bars are standard errors");
    let plot = Plot::new(caption, curves.finding(Better::Higher), curves.draw()?);
    Ok(Some(plot.among(vec![("collective", collective.into()), ("ranks are", place.into())])))
}

fn limit_table(limits: &[Limit]) -> ReportTable {
    ReportTable::new(
        "Measured limit of this machine's memory, in the same run",
        limits,
        &[
            ("threads", |limit| limit.threads.to_string()),
            ("buffer", |limit| format::bytes(limit.bytes)),
            ("copy (GB/s)", |limit| format!("{:.2}", limit.copy_gbps)),
            ("a += b (GB/s)", |limit| format!("{:.2}", limit.reduce_gbps)),
        ],
    )
    .folded(limits.len() > 3)
}

fn table(place: &str, rows: &[&MeasuredCollective]) -> ReportTable {
    ReportTable::new(
        format!("Measured on {place}"),
        rows,
        &[
            ("collective", |r| r.call.collective.clone()),
            ("algorithm", |r| r.call.algorithm.clone()),
            ("ranks", |r| r.call.ranks.to_string()),
            ("size", |r| format::bytes(r.call.bytes)),
            ("buffers", |r| if r.in_place { "in place" } else { "out of place" }.into()),
            ("time (us)", |r| format!("{:.2}", r.time_us)),
            ("std error (us)", |r| format!("{:.2}", r.time_error_us)),
            ("algbw (GB/s)", |r| format!("{:.2}", r.algbw_gbps)),
            ("busbw (GB/s)", |r| format!("{:.2}", r.busbw_gbps)),
            ("wrong", |r| r.wrong_elements.map(|wrong| wrong.to_string()).unwrap_or_default()),
            ("checksum", |r| format::short(r.checksum.as_deref().unwrap_or_default())),
            ("order class", |r| r.call.order_class.clone().unwrap_or_default()),
        ],
    )
    .folded(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{CollectiveCall, Stamp, line};

    fn records(of: &[(&str, &str)]) -> Records {
        let stamp = Stamp { commit: String::new(), host: String::new(), seed: None, command: String::new() };
        let call = |bytes| CollectiveCall {
            collective: "all_reduce".into(),
            algorithm: "ring".into(),
            ranks: 2,
            dtype: "f32".into(),
            count: bytes / 4,
            bytes,
            ..CollectiveCall::default()
        };
        let lines =
            of.iter().flat_map(|(backend, device)| [1024, 4096].map(|bytes| (backend, device, bytes)));
        let lines = lines.map(|(backend, device, bytes)| {
            let record = MeasuredCollective {
                backend: backend.to_string(),
                device: device.to_string(),
                call: call(bytes),
                in_place: true,
                iterations: 1,
                time_us: 1.0,
                algbw_gbps: 1.0,
                busbw_gbps: 1.0,
                ..MeasuredCollective::default()
            };
            line(&record, &stamp).unwrap()
        });
        Records::parse(&lines.collect::<Vec<_>>().join("\n")).unwrap()
    }

    #[test]
    fn what_ran_elsewhere_is_not_shown_as_measured_on_threads() {
        let Part { facts, section, .. } =
            part(&records(&[("threads", "cpu"), ("nccl", "H100"), ("tcp", "cpu")])).unwrap().unwrap();
        let captions: Vec<&str> = section.tables.iter().map(|table| &*table.caption).collect();
        assert_eq!(
            captions,
            ["Measured on threads, CPU cores", "Measured on nccl, H100", "Measured on tcp, CPU cores"]
        );
        assert!(section.tables.iter().all(|table| table.rows.len() == 2));
        assert_eq!(section.plots.len(), 3);
        assert!(facts.iter().any(|(_, fact)| fact.text.contains("over 2 threads")));
        let markers: Vec<&str> = section.plots.iter().map(|plot| plot.figure.legend[0].marker).collect();
        assert_eq!(markers, ["cpu", "gpu", "cpu"]);
        let Part { facts, limits, .. } = part(&records(&[("nccl", "H100")])).unwrap().unwrap();
        assert!(facts.iter().all(|(_, fact)| !fact.text.contains("threads")) && limits.is_empty());
    }
}
