//! The result of a section, and the functions that sections share.

use crate::page::{Headline, Question, Section};
use crate::records::Stamp;
use std::collections::BTreeSet;

/// What one part adds to the page.
pub(super) struct Part {
    /// The part's most important result in one sentence, if the page may begin with it.
    pub answer: Option<String>,
    /// Facts for the cards on top.
    pub facts: Vec<(Question, Headline)>,
    /// Sentences about what the part's numbers do not cover.
    pub limits: Vec<String>,
    /// The part itself.
    pub section: Section,
}

/// A fact for a card.
pub fn fact(question: Question, value: String, text: String, ok: Option<bool>) -> (Question, Headline) {
    (question, Headline { value, text, ok })
}

/// The commands of records, each once, in order of appearance.
pub fn commands<'a>(stamps: impl IntoIterator<Item = &'a Stamp>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let each = stamps.into_iter().map(|stamp| stamp.command.clone());
    each.filter(|command| !command.is_empty() && seen.insert(command.clone())).collect()
}

/// Values in order of appearance, each once.
pub fn distinct<T: Ord + Clone>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = BTreeSet::new();
    values.into_iter().filter(|value| seen.insert(value.clone())).collect()
}

/// The head of a table.
pub fn head(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}
