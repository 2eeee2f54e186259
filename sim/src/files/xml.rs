//! A parser that turns a small XML text into a tree, with the position of every element.

use crate::{Error, Result};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// The deepest nesting of elements that is accepted; a deeper file is an attack, not a machine.
const DEEPEST: usize = 64;

/// An XML element.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Element {
    pub name: String,
    pub attributes: Vec<(String, String)>,
    pub children: Vec<Element>,
    /// The element's byte offset in the text.
    pub at: usize,
}

/// An XML text and the path that error messages give for it.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub path: &'a str,
    pub text: &'a str,
}

impl<'a> Source<'a> {
    /// An error at byte offset `at` of the text.
    pub fn wrong(self, at: usize, what: impl Into<String>) -> Error {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let column = 1 + before.iter().rev().take_while(|byte| **byte != b'\n').count();
        Error::Parse { path: self.path.into(), line, column, what: what.into() }
    }

    /// Parses the text, which must have one root element, called `root`.
    pub fn parse(self, root: &str) -> Result<Element> {
        let mut reader = Reader::from_str(self.text);
        let mut open: Vec<Element> = Vec::new();
        let mut done: Option<Element> = None;
        loop {
            let at = usize::try_from(reader.buffer_position()).unwrap_or(0);
            let event = reader.read_event().map_err(|error| {
                let at = usize::try_from(reader.error_position()).unwrap_or(at);
                self.wrong(at, format!("no XML: {error}"))
            })?;
            let closed = match event {
                Event::Eof => break,
                Event::Start(start) => {
                    if open.len() >= DEEPEST {
                        return Err(self.wrong(at, format!("elements are nested more than {DEEPEST} deep")));
                    }
                    open.push(self.element(&start, at)?);
                    None
                }
                Event::Empty(start) => Some(self.element(&start, at)?),
                Event::End(_) => open.pop(),
                Event::Text(text) if open.is_empty() && !text.trim().is_empty() => {
                    return Err(self.wrong(at, format!("text outside of <{root}>; expected an XML file")));
                }
                _ => None,
            };
            let Some(closed) = closed else { continue };
            match open.last_mut() {
                Some(parent) => parent.children.push(closed),
                None if done.is_some() => {
                    return Err(self.wrong(closed.at, format!("a second <{}>", closed.name)));
                }
                None => done = Some(closed),
            }
        }
        if let Some(left) = open.last() {
            return Err(self.wrong(left.at, format!("<{}> is never closed", left.name)));
        }
        match done {
            Some(element) if element.name == root => Ok(element),
            Some(element) => Err(self.wrong(element.at, format!("<{}>; expected <{root}>", element.name))),
            None => Err(self.wrong(0, format!("no element; expected <{root}>"))),
        }
    }

    fn element(self, start: &BytesStart<'_>, at: usize) -> Result<Element> {
        let mut attributes = Vec::new();
        for attribute in start.attributes() {
            let attribute = attribute.map_err(|error| self.wrong(at, format!("attributes: {error}")))?;
            attributes.push((attribute.key.as_ref().to_string(), attribute.value.to_string()));
        }
        Ok(Element { name: start.name().as_ref().to_string(), attributes, children: Vec::new(), at })
    }

    /// A number that an element must have, within the given limits.
    pub fn number<T: std::str::FromStr + PartialOrd + std::fmt::Display>(
        self,
        element: &Element,
        key: &str,
        least: T,
        most: T,
    ) -> Result<T> {
        let text = element.get(key).ok_or_else(|| {
            self.wrong(
                element.at,
                format!("<{}> has no `{key}`; expected {key}=\"{least}\" to \"{most}\"", element.name),
            )
        })?;
        let number = text.trim().parse::<T>().ok().filter(|number| (&least..=&most).contains(&number));
        number.ok_or_else(|| {
            let what =
                format!("<{}> has {key}=\"{}\"; expected {least} to {most}", element.name, short(text));
            self.wrong(element.at, what)
        })
    }

    /// A number from an attribute that may be missing or empty, within the given limits.
    pub fn option<T: std::str::FromStr + PartialOrd + std::fmt::Display>(
        self,
        element: &Element,
        key: &str,
        least: T,
        most: T,
    ) -> Result<Option<T>> {
        match element.get(key).map(str::trim) {
            None | Some("") => Ok(None),
            Some(_) => self.number(element, key, least, most).map(Some),
        }
    }
}

impl Element {
    /// The text of attribute `key`; `None` if the element lacks it.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.attributes.iter().find(|(name, _)| name == key).map(|(_, text)| text.as_str())
    }

    /// The children called `name`.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> {
        self.children.iter().filter(move |child| child.name == name)
    }
}

/// The first 40 characters of a text, and ".." if the text is longer.
pub(super) fn short(text: &str) -> String {
    let mut chars = text.chars();
    let start: String = chars.by_ref().take(40).collect();
    if chars.next().is_some() { format!("{start}..") } else { start }
}
