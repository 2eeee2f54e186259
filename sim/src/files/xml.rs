//! A parser that turns a small XML text into a tree, with the position of every element.

use crate::{Error, Result};
use roxmltree::{Document, Node};

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
        let document = Document::parse(self.text).map_err(|error| {
            let (line, column) = (error.pos().row as usize, error.pos().col as usize);
            Error::Parse { path: self.path.into(), line, column, what: format!("no XML: {error}") }
        })?;
        let element = self.element(document.root_element(), 0)?;
        match element.name == root {
            true => Ok(element),
            false => Err(self.wrong(element.at, format!("<{}>; expected <{root}>", element.name))),
        }
    }

    /// An element inside of `depth` others.
    fn element(self, node: Node<'_, '_>, depth: usize) -> Result<Element> {
        let at = node.range().start;
        if depth >= DEEPEST {
            return Err(self.wrong(at, format!("elements are nested more than {DEEPEST} deep")));
        }
        let children = node.children().filter(Node::is_element).map(|child| self.element(child, depth + 1));
        let attributes = node.attributes().map(|one| (one.name().to_string(), one.value().to_string()));
        let name = node.tag_name().name().to_string();
        Ok(Element { name, attributes: attributes.collect(), children: children.collect::<Result<_>>()?, at })
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
