//! Writer for a timeline in the trace format of Perfetto and `chrome://tracing`.
//!
//! ```text
//! {"traceEvents":[{"name":"process_name","ph":"M","pid":0,"tid":0,"args":{"name":"rank 0"}}, {"name":"thread_name","ph":"M",..},
//!                 {"name":"...","ph":"X","ts":1.5,"dur":2.25,"pid":0,"tid":3,"args":{"bytes":4096}}, ...]}
//! ```
//!
//! Events are written as they arrive, so that a trace of any length needs no memory; a rank and a row are named before their first event. Times are microseconds with six decimals:
//! exact to the picosecond. Format: "Trace Event Format", Google, public document.

use crate::Picos;
use std::collections::BTreeSet;
use std::io::{self, Write};

/// An activity with a start and an end.
#[derive(Clone, Copy, Debug)]
pub struct Stretch<'a> {
    /// The activity's name in the trace.
    pub name: &'a str,
    /// The activity's kind, by which viewers filter: `message`, `compute`, ...
    pub kind: &'a str,
    /// The group of rows that shows the activity: a rank.
    pub process: u32,
    /// The row that shows the activity: a stream, a lane or a link.
    pub thread: u32,
    /// When the activity starts.
    pub start: Picos,
    /// When the activity ends; not before `start`.
    pub end: Picos,
    /// Numbers that the viewer shows when the activity is clicked: bytes, round, ...
    pub args: &'a [(&'a str, u64)],
}

/// Writes a trace in JSON. [`ChromeTrace::finish`] completes the file; without that call it is not valid JSON.
#[derive(Debug)]
pub struct ChromeTrace<W: Write> {
    out: W,
    empty: bool,
    /// The name of a row by its number.
    row: fn(u32) -> String,
    /// The ranks and rows that have been named.
    named: BTreeSet<(u32, Option<u32>)>,
}

impl<W: Write> ChromeTrace<W> {
    /// Starts a trace on `out`, which should be buffered; `row` names the rows of a rank.
    ///
    /// # Errors
    /// Errors of the writer, as in all methods of this type.
    pub fn new(mut out: W, row: fn(u32) -> String) -> io::Result<ChromeTrace<W>> {
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        Ok(ChromeTrace { out, empty: true, row, named: BTreeSet::new() })
    }

    /// Adds an activity.
    pub fn stretch(&mut self, stretch: &Stretch<'_>) -> io::Result<()> {
        let (rank, row) = (stretch.process, stretch.thread);
        if self.named.insert((rank, None)) {
            self.name("process_name", rank, 0, &format!("rank {rank}"))?;
        }
        if self.named.insert((rank, Some(row))) {
            self.name("thread_name", rank, row, &(self.row)(row))?;
        }
        self.begin()?;
        self.out.write_all(b"{\"name\":")?;
        self.text(stretch.name)?;
        self.out.write_all(b",\"cat\":")?;
        self.text(stretch.kind)?;
        let (ts, dur) = (micros(stretch.start), micros(Picos(stretch.end.0.saturating_sub(stretch.start.0))));
        let (pid, tid) = (stretch.process, stretch.thread);
        write!(self.out, ",\"ph\":\"X\",\"ts\":{ts},\"dur\":{dur},\"pid\":{pid},\"tid\":{tid}")?;
        let mut before = ",\"args\":{";
        for (name, value) in stretch.args {
            self.out.write_all(before.as_bytes())?;
            self.text(name)?;
            write!(self.out, ":{value}")?;
            before = ",";
        }
        self.out.write_all(if stretch.args.is_empty() { b"}" } else { b"}}" })
    }

    fn name(&mut self, what: &str, rank: u32, row: u32, name: &str) -> io::Result<()> {
        self.begin()?;
        write!(
            self.out,
            "{{\"name\":\"{what}\",\"ph\":\"M\",\"pid\":{rank},\"tid\":{row},\"args\":{{\"name\":"
        )?;
        self.text(name)?;
        self.out.write_all(b"}}")
    }

    /// Completes the trace and returns the writer, flushed.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn begin(&mut self) -> io::Result<()> {
        let before: &[u8] = if std::mem::take(&mut self.empty) { b"\n" } else { b",\n" };
        self.out.write_all(before)
    }

    /// Writes a text as a JSON string, quoted and escaped.
    fn text(&mut self, text: &str) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, text).map_err(io::Error::from)
    }
}

/// A time in microseconds as text, exact to the picosecond.
fn micros(Picos(picos): Picos) -> String {
    format!("{}.{:06}", picos / 1_000_000, picos % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_json_that_says_when_where_and_what() {
        let mut trace = ChromeTrace::new(Vec::new(), |row| format!("lane \"{row}\"")).unwrap();
        let stretch = Stretch {
            name: "3 -> 4",
            kind: "message",
            process: 3,
            thread: 1,
            start: Picos(1_500_001),
            end: Picos(3_500_003),
            args: &[("bytes", 4_096), ("round", 7)],
        };
        trace.stretch(&stretch).unwrap();
        trace.stretch(&Stretch { args: &[], ..stretch }).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&trace.finish().unwrap()).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 4, "a rank and a row are named once");
        let named = |at: usize| ["name", "ph"].map(|key| events[at][key].as_str().unwrap());
        assert_eq!([named(0), named(1)], [["process_name", "M"], ["thread_name", "M"]]);
        assert_eq!(
            (&events[0]["args"]["name"], &events[1]["args"]["name"]),
            (&"rank 3".into(), &"lane \"1\"".into())
        );
        assert_eq!((events[2]["ts"].as_f64(), events[2]["dur"].as_f64()), (Some(1.500001), Some(2.000002)));
        assert_eq!(
            (&events[2]["pid"], &events[2]["tid"], &events[2]["args"]["round"]),
            (&3.into(), &1.into(), &7.into())
        );
    }

    #[test]
    fn an_empty_trace_is_valid_too() {
        let out = ChromeTrace::new(Vec::new(), |row| row.to_string()).unwrap().finish().unwrap();
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(json["traceEvents"], serde_json::json!([]));
    }
}
