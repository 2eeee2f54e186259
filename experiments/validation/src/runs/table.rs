//! Tables of nccl-tests, RCCL-tests and OSU's benchmarks in a log of any launcher or collector.
//!
//! ```text
//! line --> row of a table?     its stream's open table, by the header's columns; put together from its parts
//!      --> header?             a new table
//!      --> anything else       a fact on the job: test, ranks, version, settings; or the end of a table
//! ```
//!
//! A log is read line by line and never held. Two jobs that ran at the same time are told apart by the labels of their lines.

use super::contradiction;
use super::facts::{Facts, ListedLine, Test, listed, test};
use super::flaw::Flaw;
use super::header::Header;
use super::left_out::RowsLeftOut;
use super::line::{clean, label, more, row};
use super::reading::Reading;
use super::run::{Run, RunRow, named_in, numbered};
use allfold_schedules::Collective;

/// The most rows of all tables of a log.
const ROWS: usize = 1 << 20;

/// A table whose rows follow.
#[derive(Default)]
struct Open {
    header: Header,
    /// The line at which the table begins.
    line: usize,
    rows: Vec<RunRow>,
    /// Rows of one side, each with its line, under a header of two: in place, unless the table has rows of both sides.
    single: Vec<(usize, RunRow)>,
    left_out: RowsLeftOut,
    dtype: String,
    /// Whether the rows name an operator.
    reduces: Option<bool>,
    /// The row that lacks words: its line, its label and the words so far.
    partial: Option<(usize, String, Vec<String>)>,
    failed: bool,
}

/// The lines of one job, by the label before them.
#[derive(Default)]
struct Stream {
    label: String,
    facts: Facts,
    open: Option<Open>,
    /// Whether the rows that follow are under a header that was refused.
    refused: bool,
}

/// Reads a log line by line.
#[derive(Default)]
pub(super) struct Reader<'a> {
    name: &'a str,
    given: Option<u32>,
    streams: Vec<Stream>,
    tables: usize,
    rows: usize,
    reading: Reading,
}

impl<'a> Reader<'a> {
    /// A reader of runs called `name`, of `given` ranks where the log does not say.
    pub(super) fn new(name: &'a str, given: Option<u32>) -> Reader<'a> {
        Reader { name, given, streams: vec![Stream::default()], ..Reader::default() }
    }

    /// Takes line `number`, counted from 1.
    ///
    /// # Errors
    /// More rows than are read.
    pub(super) fn line(&mut self, number: usize, raw: &str) -> Result<(), Flaw> {
        let line = clean(raw);
        if let Some((label, words)) = row(&line) {
            self.rows += 1;
            self.row(number, label, words);
        } else if self.goes_on(&line) {
            self.rows += 1;
        } else if line.contains("NCCL INFO") {
            self.streams.iter_mut().for_each(|stream| stream.facts.learn(&line));
        } else if line.contains("busbw") || line.contains("Latency") && line.contains("Size") {
            self.header(number, &line);
        } else {
            self.fact(&line);
        }
        if self.rows > ROWS {
            return Err(Flaw::at(
                number,
                1,
                format!("expected at most {ROWS} rows in a log; split the file"),
            ));
        }
        Ok(())
    }

    /// The runs of the log.
    ///
    /// # Errors
    /// A log without any; of several reasons the first.
    pub(super) fn finish(mut self) -> Result<Reading, Flaw> {
        (0..self.streams.len()).for_each(|at| self.close(at));
        match (self.reading.runs.is_empty(), self.reading.left_out.is_empty()) {
            (true, false) => Err(self.reading.left_out.swap_remove(0)),
            (true, true) => Err(Flaw::whole(
                "expected nccl-tests' table: a line `#  size  count  type ... time  algbw  busbw` and rows under it",
            )),
            _ => Ok(self.reading),
        }
    }

    /// The stream of the lines with this label; the last one where no stream has it.
    fn stream(&self, label: &str) -> usize {
        let found = self.streams.iter().position(|stream| stream.label == key(label));
        found.unwrap_or(self.streams.len() - 1)
    }

    fn header(&mut self, number: usize, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = self.stream(label(before_hash(line)));
        match Header::of(&words) {
            Ok(Some(header)) => {
                self.close(at);
                (self.streams[at].open, self.streams[at].refused) = (Some(Open::new(header, number)), false);
            }
            Ok(None) => self.fact(line),
            Err(what) => {
                self.close(at);
                self.streams[at].refused = true;
                self.reading.left_out.push(Flaw::at(number, 1, what));
            }
        }
    }

    fn row(&mut self, number: usize, label: String, words: Vec<String>) {
        let at = self.stream(&label);
        let stream = &mut self.streams[at];
        if stream.open.is_none() && !stream.refused {
            let Some(header) = Header::implied(&words) else { return };
            stream.open = Some(Open::new(header, number));
        }
        if let Some(open) = &mut stream.open {
            open.end_row();
            open.partial = Some((number, label, words));
            open.end_full_row();
        }
    }

    /// Takes a line that goes on with a row; returns whether it is one.
    fn goes_on(&mut self, line: &str) -> bool {
        self.streams.iter_mut().filter_map(|stream| stream.open.as_mut()).any(|open| open.goes_on(line))
    }

    fn fact(&mut self, line: &str) {
        let listed = listed(line);
        let label = label(listed.as_ref().map_or(before_hash(line), |line| line.before));
        let at = self.stream(label);
        let stream = &mut self.streams[at];
        if line.contains("Out of bounds values") && line.contains("FAILED") {
            stream.open.iter_mut().for_each(|open| open.failed = true);
        } else if line.contains("Avg bus bandwidth") || line.contains("concluded:") {
            self.close(at);
            self.streams[at].facts.test = None;
        } else if let Some(line) = &listed {
            self.list(at, label, line);
        } else {
            if test(line).is_some() || line.contains("nThread ") {
                self.start(at);
            }
            self.streams.iter_mut().for_each(|stream| stream.facts.learn(line));
        }
    }

    /// Takes a line that lists a rank. Rank 0 of a job beside another one begins a stream where its lines have another label.
    fn list(&mut self, at: usize, label: &str, line: &ListedLine<'_>) {
        let known = self.streams.iter().any(|stream| stream.label == key(label));
        if self.streams[at].facts.is_other_job(line) && !known {
            let mut facts = Facts::of(self.streams[at].facts.test.clone());
            facts.list(line);
            return self.streams.push(Stream { label: key(label), facts, ..Stream::default() });
        }
        self.start(at);
        self.streams[at].facts.list(line);
        self.streams[at].label = key(label);
    }

    /// What follows is of a new job, if the stream has had a table.
    fn start(&mut self, at: usize) {
        self.close(at);
        let stream = &mut self.streams[at];
        if stream.facts.done {
            stream.refused = false;
            stream.facts.next_job();
        }
    }

    /// Ends the open table of a stream.
    fn close(&mut self, at: usize) {
        let stream = &mut self.streams[at];
        let Some(mut open) = stream.open.take() else { return };
        open.end_row();
        stream.facts.done = true;
        if open.is_empty() {
            return;
        }
        self.tables += 1;
        match open.run(numbered(self.name, self.tables), self.name, &stream.facts, self.given) {
            Ok(run) => self.reading.runs.push(run),
            Err(flaw) => self.reading.left_out.push(flaw),
        }
    }
}

/// What stands before a line's own text, which begins with a `#`.
fn before_hash(line: &str) -> &str {
    line.split_once('#').map_or("", |(before, _)| before)
}

/// A label by which lines of a job are known; of one with a time only the letters, since the time differs from line to line.
fn key(label: &str) -> String {
    let digits = |part: &str| part.ends_with(|c: char| c.is_ascii_digit());
    let timed = label.split(':').filter(|part| digits(part)).count() > 1;
    label.chars().filter(|letter| !timed || letter.is_alphabetic()).collect()
}

impl Open {
    fn new(header: Header, line: usize) -> Open {
        Open { header, line, ..Open::default() }
    }

    fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.single.is_empty() && self.left_out.is_empty() && self.partial.is_none()
    }

    fn goes_on(&mut self, line: &str) -> bool {
        if self.header.osu {
            let mut words = line.split_whitespace();
            let (size, time) = (words.next().map(str::parse::<u64>), words.next().map(str::parse::<f64>));
            let (Some(Ok(bytes)), Some(Ok(time_us))) = (size, time) else { return false };
            let row = RunRow { bytes, in_place: false, time_us, algbw_gbps: f64::NAN, busbw_gbps: f64::NAN };
            self.rows.push(row);
            return true;
        }
        let Some((_, label, words)) = &mut self.partial else { return false };
        let found = more(line, label);
        let goes_on = !found.is_empty();
        words.extend(found);
        self.end_full_row();
        goes_on
    }

    fn end_full_row(&mut self) {
        if self.partial.as_ref().is_some_and(|(_, _, words)| self.header.is_full(words)) {
            self.end_row();
        }
    }

    /// Takes the row whose words were gathered, or counts it as broken.
    fn end_row(&mut self) {
        let Some((line, _, words)) = self.partial.take() else { return };
        let Some(sides) = self.header.sides(&words) else { return self.left_out.broken.push(line) };
        if self.dtype.is_empty() {
            self.dtype.clone_from(&words[2]);
            let operator = words.get(3).filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic()));
            self.reduces = operator.map(|word| word != "none");
        }
        let greatest = if self.header.has_errors() { rounding(&words[2]) } else { 0.0 };
        let both = sides.len() == 2;
        for (row, wrong) in sides {
            match (wrong > greatest, both || !row.in_place) {
                (true, _) => self.left_out.wrong.push(row.bytes),
                (false, true) => self.rows.push(row),
                (false, false) => self.single.push((line, row)),
            }
        }
    }

    /// The run of the table.
    ///
    /// # Errors
    /// A test that is no collective or not named, an unknown number of ranks, jobs that cannot be told apart, wrong results,
    /// figures that contradict each other.
    fn run(mut self, name: String, file: &str, facts: &Facts, given: Option<u32>) -> Result<Run, Flaw> {
        let refuse = |what: String| Err(Flaw::at(self.line, 1, what));
        let known = match &facts.test {
            Some(Test::Unknown(test)) => {
                return refuse(format!("`{test}` is no test of a known collective: its table is left out"));
            }
            Some(Test::Known(collective)) => Some(*collective),
            None => named_in(file),
        };
        if facts.jobs() > 1 {
            let (jobs, each) = (facts.jobs(), facts.ranks().unwrap_or(1));
            let plural = if each == 1 { "" } else { "s" };
            return refuse(format!(
                "the lines of {jobs} jobs of {each} rank{plural} are mixed ({jobs} lines `Rank  0`), as where nccl-tests was built \
                 without MPI=1; give the log of one job"
            ));
        }
        match self.rows.is_empty() {
            true => self.rows = std::mem::take(&mut self.single).into_iter().map(|(_, row)| row).collect(),
            false => self.left_out.broken.extend(self.single.iter().map(|(line, _)| line)),
        }
        if self.failed && self.left_out.wrong.is_empty() {
            return refuse("the test says FAILED and not in which rows: none of its times counts".into());
        }
        let ranks = facts.ranks().or(given);
        let Some(collective) = known.or_else(|| self.inferred(ranks)) else {
            return refuse(
                "which collective was it? expected a line with `all_reduce_perf` or the like before the table; or name the file after it"
                    .into(),
            );
        };
        if facts.test.is_none() && self.reduces.is_some_and(|reduces| reduces != collective.reduces()) {
            return refuse(format!(
                "the column `redop` of this table is not that of {collective}; expected its own test's name before it"
            ));
        }
        let ranks = self.ranks(collective, ranks)?;
        let mut remarks = Vec::new();
        if self.header.osu {
            self.rows.iter_mut().for_each(|row| row.complete(collective, ranks));
            remarks.push("a benchmark of MPI by OSU, predicted as if NCCL had done it".into());
        }
        let run = Run {
            dtype: self.dtype,
            listed: facts.listed(),
            nccl_version: facts.nccl_version.clone(),
            env: facts.env(),
            driven: facts.driven,
            rows: self.rows,
            left_out: self.left_out,
            remarks,
            ..Run::new(name, collective, ranks)
        };
        contradiction::checked(run, self.header.unit_us).map_err(|what| Flaw::at(self.line, 1, what))
    }

    /// The number of ranks: `said`, or where nothing says it, the only one that busbw / algbw allows.
    fn ranks(&self, collective: Collective, said: Option<u32>) -> Result<u32, Flaw> {
        let refuse = |what: String| Err(Flaw::at(self.line, 1, what));
        let possible = contradiction::possible_ranks(&self.rows, collective);
        let between = match (possible.first(), possible.last()) {
            (Some(first), Some(last)) if first == last => format!("busbw / algbw says {first}"),
            (Some(first), Some(last)) => format!("busbw / algbw allows {first} to {last}"),
            _ => "busbw / algbw does not tell".into(),
        };
        match (said, &*possible) {
            (Some(1), _) => {
                refuse("a job of 1 rank exchanges nothing: its times are none of a collective".into())
            }
            (Some(ranks), [_, ..]) if !possible.contains(&ranks) => {
                refuse(format!("{ranks} ranks are said, and {between}"))
            }
            (Some(ranks), _) => Ok(ranks),
            (None, [ranks]) => Ok(*ranks),
            (None, _) => refuse(format!(
                "how many ranks? expected lines `#  Rank  0 ... device ...` before the table, or --ranks N; {between}"
            )),
        }
    }

    /// The only collective whose operator and busbw are those of the rows.
    fn inferred(&self, ranks: Option<u32>) -> Option<Collective> {
        let (ranks, reduces) = (ranks?, self.reduces?);
        let fits = |collective: &Collective| {
            collective.reduces() == reduces
                && contradiction::possible_ranks(&self.rows, *collective).contains(&ranks)
        };
        let mut fitting = Collective::ALL.into_iter().filter(fits);
        fitting.next().filter(|_| fitting.next().is_none())
    }
}

/// The greatest error that rounding causes in a sum over the ranks, by which tests before 2022 judged a result.
fn rounding(dtype: &str) -> f64 {
    match dtype {
        "half" | "bfloat16" | "float16" | "bf16" | "fp16" => 0.1,
        "float" | "float32" => 1e-4,
        "double" | "float64" => 1e-10,
        _ => 0.0,
    }
}
