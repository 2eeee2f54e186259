//! A YAML file whose top level is a mapping of names to lists of scalars; other entries are skipped.

use crate::files::xml::short;
use saphyr_parser::{Event, Marker, Parser, ScanError};
use std::collections::BTreeMap;

/// A place in a file: line and column, from 1.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

/// A scalar and its place.
pub struct Value<T> {
    pub at: Place,
    pub is: T,
}

/// A list and its place.
pub struct Entry<T> {
    pub at: Place,
    pub values: Vec<Value<T>>,
}

/// What is wrong, and where.
type Wrong = (Place, String);

/// The lists of a file by name.
pub struct Lists(BTreeMap<&'static str, Entry<String>>);

impl Lists {
    /// The list of this name, each scalar read by `read`; `of` describes such a scalar in errors.
    pub fn get<T>(&self, name: &str, of: &str, read: impl Fn(&str) -> Option<T>) -> Result<Entry<T>, Wrong> {
        let first = Place { line: 1, column: 1 };
        let list = self.0.get(name).ok_or_else(|| (first, format!("has no list `{name}`; {WANTED}")))?;
        let value = |value: &Value<String>| match read(&value.is) {
            Some(is) => Ok(Value { at: value.at, is }),
            None => Err((value.at, format!("`{}` in `{name}` is not {of}", short(&value.is)))),
        };
        Ok(Entry { at: list.at, values: list.values.iter().map(value).collect::<Result<_, _>>()? })
    }
}

/// The end of error messages: the lists that a file should have.
const WANTED: &str = "expected topology, npus_count, bandwidth and latency";

/// Reads the lists with these names.
///
/// # Errors
/// If the text is no YAML, its top level is no mapping, an entry occurs twice, or the value of one of the names is no list of
/// scalars.
pub fn lists(text: &str, names: &[&'static str]) -> Result<Lists, Wrong> {
    let mut events = Events(Parser::new_from_str(text));
    let mut lists = BTreeMap::new();
    let (mut first, mut at) = events.next()?;
    while matches!(first, Event::StreamStart | Event::DocumentStart(_)) {
        (first, at) = events.next()?;
    }
    if !matches!(first, Event::MappingStart(..)) {
        return Err((at, format!("is no mapping of names to lists; {WANTED}")));
    }
    loop {
        let (event, at) = events.next()?;
        let key = match event {
            Event::MappingEnd => return events.end().map(|()| Lists(lists)),
            Event::Scalar(key, ..) => key,
            _ => return Err((at, "has an entry without a name".into())),
        };
        match names.iter().find(|name| **name == key) {
            None => events.pass_over()?,
            Some(name) => {
                let list = events.list(name)?;
                if lists.insert(*name, list).is_some() {
                    return Err((at, format!("has `{name}` twice")));
                }
            }
        }
    }
}

/// The parser's events; the end of the file is an error.
struct Events<'a>(Parser<'a, saphyr_parser::StrInput<'a>>);

impl<'a> Events<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Place), Wrong> {
        match self.0.next_event() {
            Some(Ok((Event::StreamEnd, span))) => Err((place(&span.start), format!("ends early; {WANTED}"))),
            Some(Ok((event, span))) => Ok((event, place(&span.start))),
            Some(Err(error)) => Err(of(&error)),
            None => Err((Place { line: 1, column: 1 }, format!("ends early; {WANTED}"))),
        }
    }

    /// Checks that the file ends after its mapping.
    fn end(&mut self) -> Result<(), Wrong> {
        loop {
            match self.0.next_event() {
                None | Some(Ok((Event::StreamEnd, _))) => return Ok(()),
                Some(Ok((Event::DocumentEnd, _))) => {}
                Some(Ok((_, span))) => return Err((place(&span.start), "goes on after its mapping".into())),
                Some(Err(error)) => return Err(of(&error)),
            }
        }
    }

    /// A list of scalars.
    fn list(&mut self, name: &str) -> Result<Entry<String>, Wrong> {
        let (event, start) = self.next()?;
        if !matches!(event, Event::SequenceStart(..)) {
            return Err((start, format!("`{name}` is no list")));
        }
        let mut values = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Entry { at: start, values }),
                (Event::Scalar(text, ..), at) => values.push(Value { at, is: text.into_owned() }),
                (_, at) => return Err((at, format!("`{name}` has an entry that is no single value"))),
            }
        }
    }

    /// Skips a value of any form.
    fn pass_over(&mut self) -> Result<(), Wrong> {
        let mut open = 0u64;
        loop {
            match self.next()?.0 {
                Event::SequenceStart(..) | Event::MappingStart(..) => open += 1,
                Event::SequenceEnd | Event::MappingEnd => open = open.saturating_sub(1),
                _ => {}
            }
            if open == 0 {
                return Ok(());
            }
        }
    }
}

fn place(marker: &Marker) -> Place {
    Place { line: marker.line().max(1), column: marker.col() + 1 }
}

fn of(error: &ScanError) -> Wrong {
    (place(error.marker()), format!("is no YAML: {}", short(error.info())))
}
