//! nccl-tests' table, in any layout of recent years: the header names the columns.
//!
//! ```text
//! #  Rank  0 Group  0 Pid 71 on node1 device  0 [0x07] NVIDIA H100 80GB HBM3        who took part
//! #       size  count   type  redop  root   time  algbw  busbw #wrong   time  algbw  busbw #wrong
//! #        (B)  (elements)                  (us)  (GB/s) (GB/s)         (us)  (GB/s) (GB/s)
//!           8       2  float    sum    -1  13.02   0.00   0.00      0  12.95   0.00   0.00      0
//! ```
//!
//! Older layouts have no `root`, or leave `redop` blank, and call the last column `error`; newer ones add columns to
//! each side. The labels that launchers put before a line (`[1,0]<stdout>:`, `0: `) are removed; NCCL's log is skipped.

use super::flaw::Flaw;
use super::report::version;
use super::run::{Run, RunRow, collective, named_in};
use allfold_schedules::Collective;
use std::collections::BTreeMap;

/// The columns of a table.
struct Header {
    names: Vec<String>,
    /// The columns of `time`: out of place first, then in place.
    times: Vec<usize>,
}

/// The facts that a file gives before a table's rows.
#[derive(Default)]
struct Preamble {
    collective: Option<Collective>,
    nccl_version: Option<String>,
    /// (group, rank) of the devices listed, each with its host and its GPU's name.
    ranks: BTreeMap<(u32, u32), (String, String)>,
    /// Settings of NCCL that its log names.
    env: BTreeMap<String, String>,
}

pub(super) fn parse(name: &str, text: &str) -> Result<Vec<Run>, Flaw> {
    let mut runs: Vec<Run> = Vec::new();
    let mut known = Preamble::default();
    let mut open: Option<(Header, Run)> = None;
    for (number, whole) in text.lines().enumerate() {
        let line = without_label(whole);
        let words = words(line, number + 1, whole.len() - line.len() + 1);
        known.learn(line);
        if let Some(header) = Header::of(&words)? {
            runs.extend(open.take().map(|(_, run)| run));
            open = Some((header, known.run(name, runs.len(), number + 1)?));
        } else if let Some((header, run)) = &mut open {
            if words.first().is_some_and(|word| word.text.bytes().all(|b| b.is_ascii_digit())) {
                header.read(&words, run)?;
            } else if line.contains("Avg bus bandwidth") {
                runs.extend(open.take().map(|(_, run)| run));
                known = Preamble { collective: None, ranks: BTreeMap::new(), ..known };
            }
        }
    }
    runs.extend(open.map(|(_, run)| run));
    runs.retain(|run| !run.rows.is_empty());
    if runs.is_empty() {
        return Err(Flaw::whole(
            "expected nccl-tests' table: a line `#  size  count  type ... time  algbw  busbw` and rows under it",
        ));
    }
    Ok(runs)
}

/// A word of a line, and its column.
struct Word<'a> {
    text: &'a str,
    line: usize,
    column: usize,
}

impl Word<'_> {
    fn number(&self, what: &str) -> Result<f64, Flaw> {
        self.text.parse().map_err(|_| self.flaw(format!("expected {what}, found `{}`", self.text)))
    }

    fn flaw(&self, what: String) -> Flaw {
        Flaw::at(self.line, self.column, what)
    }
}

/// The words of line `number`, of which `line` begins at column `first`.
fn words(line: &str, number: usize, first: usize) -> Vec<Word<'_>> {
    let mut next = first;
    let placed = line.split([' ', '\t']).map(|text| {
        let column = next;
        next += text.len() + 1;
        Word { text, line: number, column }
    });
    placed.filter(|word| !word.text.is_empty()).collect()
}

/// A line without the label that `mpirun --tag-output` or `srun -l` puts before it.
fn without_label(line: &str) -> &str {
    if line.starts_with('[') {
        return line.split_once("<stdout>:").map_or(line, |(_, rest)| rest);
    }
    match line.trim_start().split_once(": ") {
        Some((label, rest)) if !label.is_empty() && label.bytes().all(|b| b.is_ascii_digit()) => rest,
        _ => line,
    }
}

impl Preamble {
    fn learn(&mut self, line: &str) {
        if let Some(word) = line.split_whitespace().find(|word| word.ends_with("_perf")) {
            self.collective = collective(word).or(self.collective);
        }
        if let Some(version) = line.split_once("NCCL version ") {
            self.nccl_version = version.1.split_whitespace().next().map(str::to_string);
        }
        let library = line.split_once("nccl-library=").map(|(_, code)| code.split_whitespace().next());
        if let Some(code) = library.flatten().and_then(|code| code.parse().ok()) {
            self.nccl_version = Some(version(code));
        }
        if let Some((before, value)) = line.split_once(" set by environment to ") {
            let key = before.rsplit(' ').next().filter(|key| key.starts_with("NCCL_"));
            self.env.extend(key.map(|key| (key.into(), value.trim().trim_end_matches('.').into())));
        }
        let words: Vec<&str> = line.trim_start_matches(['#', ' ']).split_whitespace().collect();
        if let ["Rank", rank, rest @ ..] = &*words {
            let group = match rest {
                ["Group", group, ..] => group.parse().unwrap_or(0),
                _ => 0,
            };
            let host = words.iter().skip_while(|word| **word != "on").nth(1);
            let gpu = line.split_once(']').map_or("", |(_, gpu)| gpu.trim());
            let place = (host.map_or(String::new(), |host| host.to_string()), gpu.to_string());
            self.ranks.extend(rank.parse().ok().map(|rank| ((group, rank), place)));
        }
    }

    /// A run without rows, with the facts known so far. Bandwidths are those of a group, so the ranks of the first group count.
    fn run(&self, name: &str, before: usize, line: usize) -> Result<Run, Flaw> {
        let collective = self.collective.or_else(|| named_in(name)).ok_or_else(|| {
            Flaw::at(line, 1, "which collective was it? expected a line with `all_reduce_perf` or the like before the table; or name the file after it")
        })?;
        let first = self.ranks.keys().next().map(|&(group, _)| group);
        let of_first = |&(&(group, _), _): &(&(u32, u32), &(String, String))| Some(group) == first;
        let ranks = self.ranks.iter().filter(of_first).count();
        if ranks == 0 {
            return Err(Flaw::at(
                line,
                1,
                "how many ranks? expected lines `#  Rank  0 ... device ...` before the table",
            ));
        }
        Ok(Run {
            name: if before == 0 { name.into() } else { format!("{name}#{}", before + 1) },
            collective,
            dtype: String::new(),
            ranks: ranks as u32,
            hardware: None,
            listed: self
                .ranks
                .iter()
                .filter(of_first)
                .map(|((_, rank), (host, gpu))| (*rank, host.clone(), gpu.clone()))
                .filter(|(_, host, _)| !host.is_empty())
                .collect(),
            source: None,
            nccl_version: self.nccl_version.clone(),
            env: self.env.clone(),
            notes: String::new(),
            system: None,
            suspect: false,
            rows: Vec::new(),
            left_out: Vec::new(),
        })
    }
}

impl Header {
    /// The columns, where a line is a header.
    fn of(words: &[Word<'_>]) -> Result<Option<Header>, Flaw> {
        let [hash, rest @ ..] = words else { return Ok(None) };
        let is = |name: &str| rest.iter().any(|word| word.text == name);
        if hash.text != "#" || !(is("size") && is("busbw")) {
            return Ok(None);
        }
        if let Some(word) = rest.iter().find(|word| word.text == "cputime") {
            return Err(
                word.flaw("expected `time`; `cputime` (-C) is not how long the collective took".into())
            );
        }
        let names: Vec<String> = rest.iter().map(|word| word.text.to_string()).collect();
        let times: Vec<usize> = (0..names.len()).filter(|&at| names[at] == "time").collect();
        let complete = names[0] == "size"
            && (1..=2).contains(&times.len())
            && times.iter().all(|&at| names[at + 1..].starts_with(&["algbw".into(), "busbw".into()]));
        if !complete {
            let what = "expected `size` first and `time algbw busbw` once or twice in the header";
            return Err(rest[0].flaw(what.into()));
        }
        Ok(Some(Header { names, times }))
    }

    /// Adds the rows of one line of the table.
    fn read(&self, words: &[Word<'_>], run: &mut Run) -> Result<(), Flaw> {
        let Some(size) = words.first() else { return Ok(()) };
        let bytes =
            size.text.parse().map_err(|_| size.flaw(format!("`{}` bytes overflow 64 bits", size.text)))?;
        let (skipped, sides) = self.sides(words)?;
        if let (Some(dtype), true) = (words.get(2), run.dtype.is_empty()) {
            run.dtype = dtype.text.to_string();
        }
        for (side, at) in sides {
            let [time, algbw, busbw] = [0, 1, 2].map(|i| &words[at + i - skipped]);
            run.rows.push(RunRow {
                bytes,
                in_place: side == 1,
                time_us: time.number("a time in microseconds")?,
                algbw_gbps: algbw.number("an algbw in GB/s")?,
                busbw_gbps: busbw.number("a busbw in GB/s")?,
            });
        }
        Ok(())
    }

    /// Which sides a line has and at which column each begins; and how many columns are blank before them.
    fn sides(&self, words: &[Word<'_>]) -> Result<(usize, Vec<(usize, usize)>), Flaw> {
        // A time stamp is a column of one word in the header, and of one or two in a row.
        let stamped = self.names.last().is_some_and(|name| name == "timestamp");
        let columns = self.names.len() - usize::from(stamped);
        let has = if stamped { words.len().min(columns) } else { words.len() };
        let both: Vec<(usize, usize)> = self.times.iter().copied().enumerate().collect();
        // A collective without an operator leaves `redop` blank in older layouts.
        let operator = self.names.iter().position(|name| name == "redop").and_then(|at| words.get(at));
        let blank = operator.is_some_and(|word| word.text.parse::<f64>().is_ok());
        if has == columns {
            return Ok((0, both));
        }
        if has + 1 == columns && blank {
            return Ok((1, both));
        }
        // A collective that only works in place leaves the first side blank.
        if let [first, second] = *self.times
            && has + (second - first) == columns
        {
            return Ok((second - first, vec![(1, second)]));
        }
        let last = words.last();
        let (line, column) = last.map_or((0, 0), |word| (word.line, word.column));
        Err(Flaw::at(
            line,
            column,
            format!("expected {columns} columns as in the header, found {}", words.len()),
        ))
    }
}
