//! The columns of a table, by its header or, where that was lost, by the arithmetic of a row.
//!
//! ```text
//!      bytes      N    type  op       time  algbw  busbw     res  ..          until 2018, times in ms
//!       size  count    type  redop    time  algbw  busbw   error  ..          from 2019, in us
//!       size  count    type  redop  root  time  algbw  busbw  #wrong  ..      from 2022
//!       Size  Avg Latency(us)  Min Latency(us) ..                             OSU's benchmarks
//! ```

use super::run::RunRow;

/// The columns of a table.
#[derive(Clone, Debug, Default)]
pub(super) struct Header {
    names: Vec<String>,
    /// The columns of `time`: out of place first, then in place.
    times: Vec<usize>,
    /// Microseconds of the unit of the times.
    pub(super) unit_us: f64,
    /// Whether the rows are those of OSU's benchmarks: a size and a time.
    pub(super) osu: bool,
}

/// A row as it was read: its sides, each with the number of wrong elements or the greatest error.
pub(super) type Sides = Vec<(RunRow, f64)>;

impl Header {
    /// The columns, where a line is a header.
    ///
    /// # Errors
    /// A header that is not complete, or whose times are not those of the collective.
    pub(super) fn of(words: &[&str]) -> Result<Option<Header>, String> {
        let is = |name: &str| words.iter().any(|word| word.eq_ignore_ascii_case(name));
        let size = words.iter().position(|word| ["size", "bytes", "Size"].contains(word));
        let Some(size) = size else { return Ok(None) };
        if words[size] == "Size" && words.iter().any(|word| word.starts_with("Latency")) {
            return Ok(Some(Header { unit_us: 1.0, osu: true, ..Header::default() }));
        }
        if !(is("busbw") && is("type")) {
            return Ok(None);
        }
        if is("cputime") {
            return Err("expected `time`; `cputime` (-C) is not how long the collective took".into());
        }
        let names: Vec<String> = words[size..].iter().map(|word| word.to_lowercase()).collect();
        let times: Vec<usize> = (0..names.len()).filter(|&at| names[at] == "time").collect();
        let complete = (1..=2).contains(&times.len())
            && times.iter().all(|&at| names[at + 1..].starts_with(&["algbw".into(), "busbw".into()]));
        let unit_us = if names[0] == "bytes" { 1e3 } else { 1.0 };
        match complete {
            true => Ok(Some(Header { names, times, unit_us, osu: false })),
            false => Err("expected `size` first and `time algbw busbw` once or twice in the header".into()),
        }
    }

    /// The columns that make a row's bytes, time and algbw agree; `None` where no layout does.
    pub(super) fn implied(row: &[String]) -> Option<Header> {
        let layout = |(each, sides, before): (usize, usize, usize)| {
            let side = ["time", "algbw", "busbw", "#wrong"].iter().take(each);
            let names = ["size", "count", "type", "redop", "root"].iter().take(before);
            let names: Vec<String> =
                names.chain(side.cycle().take(each * sides)).map(|name| name.to_string()).collect();
            let times: Vec<usize> = (0..sides).map(|side| before + side * each).collect();
            Header { names, times, unit_us: 1.0, osu: false }
        };
        let layouts = [4, 3].into_iter().flat_map(|each| {
            [2, 1].into_iter().flat_map(move |sides| [5, 4, 3].map(|before| (each, sides, before)))
        });
        layouts.map(layout).find(|header| {
            let right = |(row, _): &(RunRow, f64)| {
                let algbw = row.bytes as f64 / row.time_us / 1e3;
                (row.algbw_gbps - algbw).abs() <= 0.006 + 0.01 * algbw
            };
            header.names.len() == row.len() && header.sides(row).is_some_and(|sides| sides.iter().all(right))
        })
    }

    /// Whether a row has all its words.
    pub(super) fn is_full(&self, row: &[String]) -> bool {
        row.len() >= self.columns()
    }

    /// Whether the last column of a side is the greatest error, not the number of wrong elements.
    pub(super) fn has_errors(&self) -> bool {
        self.names.iter().any(|name| ["error", "res"].contains(&&**name))
    }

    /// The number of columns without a time stamp, which is one word in the header and one or two in a row.
    fn columns(&self) -> usize {
        self.names.len() - usize::from(self.names.last().is_some_and(|name| name == "timestamp"))
    }

    /// The sides of a row; `None` where its words do not fit the columns.
    pub(super) fn sides(&self, row: &[String]) -> Option<Sides> {
        let columns = self.columns();
        let row = &row[..row.len().min(columns)];
        let both: Vec<(usize, usize)> = self.times.iter().copied().enumerate().collect();
        // A collective without an operator leaves `redop` blank in older layouts.
        let operator = self.names.iter().position(|name| name == "redop" || name == "op");
        let blank = operator.is_some_and(|at| row.get(at).is_some_and(|word| word.parse::<f64>().is_ok()));
        let (missing, sides) = match (columns - row.len(), &*self.times) {
            (0, _) => (0, both),
            (1, _) if blank => (1, both),
            // A collective that only works in place leaves the first side blank.
            (missing, &[first, second]) if missing == second - first => (missing, vec![(1, second)]),
            _ => return None,
        };
        let bytes = row.first()?.parse().ok()?;
        let side = |(side, at): (usize, usize)| {
            let number = |after: usize| row[at + after - missing].parse::<f64>().ok();
            let wrong = row
                .get(at + 3 - missing)
                .filter(|_| self.names.get(at + 3).is_some_and(|name| name != "time"));
            let (time_us, algbw_gbps, busbw_gbps) = (number(0)? * self.unit_us, number(1)?, number(2)?);
            let row = RunRow { bytes, in_place: side == 1, time_us, algbw_gbps, busbw_gbps };
            Some((row, wrong.and_then(|wrong| wrong.parse().ok()).unwrap_or(0.0)))
        };
        sides.into_iter().map(side).collect()
    }
}
