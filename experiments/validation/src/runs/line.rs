//! A line of a log as it was posted, and the row of a table in it, whatever stands before, between and behind the row's words.
//!
//! ```text
//! [1,0]<stdout>:   1048576  262144  float  sum  -1[1,0]<stdout>:  30.00 ..     a label of mpirun at each write
//! launcher-x7 mpi  1048576  262144  float  sum  -1  30.00 ..                   names before a collected line
//! > #  1048576  262144  float  sum  -1host7:71:90 [0] NCCL INFO ..             quoted mail; NCCL's log within a row
//! ```
//!
//! A row begins with two whole numbers and a type of elements. What stands before these is a label: it is removed wherever it occurs in
//! the line again, with other digits too. The row ends at the first word that is neither a number nor `N/A`.

use std::borrow::Cow;

/// The types of elements as nccl-tests, RCCL-tests and NCCL's first tests name them.
const TYPES: [&str; 22] = [
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16", "bf16",
    "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2", "char", "int", "uint", "float16", "float32", "float64",
    "fp16",
];

/// The most words of a label.
const LABEL: usize = 16;

/// A line without colours, carriage returns, byte order mark and the bars of a table in Markdown.
pub(super) fn clean(raw: &str) -> Cow<'_, str> {
    if !raw.contains(['\u{1b}', '\r', '|', '\u{feff}']) {
        return Cow::Borrowed(raw);
    }
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw.chars();
    while let Some(letter) = rest.next() {
        match letter {
            // `ESC [ .. letter` sets a colour or moves the cursor.
            '\u{1b}' => drop(rest.by_ref().find(char::is_ascii_alphabetic)),
            '\u{feff}' => {}
            '\r' | '|' => text.push(' '),
            _ => text.push(letter),
        }
    }
    Cow::Owned(text)
}

/// The words of a row, from its size on, and the label before it; `None` where the line holds no row.
pub(super) fn row(line: &str) -> Option<(String, Vec<String>)> {
    let words: Vec<&str> = line.split_whitespace().take(LABEL + 3).collect();
    let whole = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    let is_row = |of: &[&str]| whole(of[0]) && whole(of[1]) && TYPES.contains(&of[2]);
    let at = words.windows(3).position(is_row)?;
    let start = words[at].as_ptr() as usize - line.as_ptr() as usize;
    let label = label(&line[..start]);
    let rest = without_label(&line[start..], label);
    let mut words = rest.split_whitespace();
    let mut row: Vec<String> = words.by_ref().take(3).map(str::to_string).collect();
    // The operator: a word, or a type's number.
    let mut next = words.clone();
    if let Some(operator) = next.next().filter(|word| word.bytes().all(|byte| byte.is_ascii_lowercase())) {
        row.push(operator.to_string());
        words = next;
    }
    row.extend(values(words));
    Some((label.to_string(), row))
}

/// The values at the start of a line that goes on with a row, behind the row's label; none where the line is something else.
pub(super) fn more(line: &str, label: &str) -> Vec<String> {
    let line = without_label(line, label);
    match line.split_whitespace().next().is_some_and(is_value) {
        true => values(line.split_whitespace()).collect(),
        false => Vec::new(),
    }
}

/// What stands before a line's own text.
pub(super) fn label(before: &str) -> &str {
    before.trim_end_matches([' ', '\t', '#']).trim_start()
}

/// A text without the label, wherever it occurs; its digits may be others. A label of digits alone is a number of the row.
fn without_label<'a>(text: &'a str, label: &str) -> Cow<'a, str> {
    let (all, shape) = (text.as_bytes(), label.as_bytes());
    let same = |(a, b): (&u8, &u8)| a == b || a.is_ascii_digit() && b.is_ascii_digit();
    let here = |at: usize| all[at..].len() >= shape.len() && all[at..].iter().zip(shape).all(same);
    if shape.iter().all(u8::is_ascii_digit) || !(0..all.len()).any(here) {
        return Cow::Borrowed(text);
    }
    let (mut kept, mut at) = (Vec::with_capacity(all.len()), 0);
    while at < all.len() {
        let skip = here(at);
        kept.push(if skip { b' ' } else { all[at] });
        at += if skip { shape.len() } else { 1 };
    }
    Cow::Owned(String::from_utf8_lossy(&kept).into_owned())
}

/// The words that are values, up to the first that is none; of that one, the value that it begins with.
fn values<'a>(words: impl Iterator<Item = &'a str>) -> impl Iterator<Item = String> {
    let mut ended = false;
    words.map_while(move |word| {
        let value = if is_value(word) { word } else { leading(word)? };
        let before = std::mem::replace(&mut ended, value.len() < word.len());
        (!before).then(|| value.to_string())
    })
}

fn is_value(word: &str) -> bool {
    word == "N/A" || word.parse::<f64>().is_ok()
}

/// The longest value that a word begins with, where a name follows at once: `-1` of `-1host7:71:90`.
fn leading(word: &str) -> Option<&str> {
    let name = |rest: &str| rest.starts_with(|next: char| next.is_alphabetic() || next == '[' || next == '<');
    let ends = word.char_indices().map(|(at, _)| at).take_while(|at| *at < 24);
    let value = |at: &usize| {
        let (value, rest) = word.split_at(*at);
        is_value(value) && name(rest) && (value == "N/A" || !value.starts_with(char::is_alphabetic))
    };
    ends.filter(value).max().map(|at| &word[..at])
}
