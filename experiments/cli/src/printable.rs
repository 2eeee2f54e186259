//! Text for a terminal. Text of files and names of files may hold characters that a terminal obeys, and may be long.

use std::borrow::Cow;

/// The most characters of an error or of a line of the log.
const LONGEST: usize = 4_000;

/// The most characters of a line of output, which may hold a row of a wide table.
const LONGEST_LINE: usize = 100_000;

/// Whether a terminal obeys this character instead of showing it: controls, and marks of the direction of writing.
fn is_obeyed(c: char) -> bool {
    c.is_control() && c != '\n' && c != '\t'
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Text in which characters that a terminal obeys are replaced by their codes, such as `\u{1b}`; the middle of a line that is too long is
/// left out.
pub fn printable(text: &str) -> Cow<'_, str> {
    shown(text, LONGEST_LINE)
}

/// As [`printable`], for an error or a line of the log, which is shorter.
pub fn message(text: &str) -> Cow<'_, str> {
    shown(text, LONGEST)
}

fn shown(text: &str, most: usize) -> Cow<'_, str> {
    let cut: Cow<'_, str> = match text.lines().any(|line| line.len() > most) {
        true => text.split('\n').map(|line| shortened(line, most)).collect::<Vec<_>>().join("\n").into(),
        false => text.into(),
    };
    if !cut.contains(is_obeyed) {
        return cut;
    }
    let escaped = |c: char| match is_obeyed(c) {
        true => c.escape_unicode().to_string(),
        false => c.to_string(),
    };
    cut.chars().map(escaped).collect::<String>().into()
}

/// A line without its middle, if it has more than `most` characters.
fn shortened(line: &str, most: usize) -> Cow<'_, str> {
    let count = line.chars().count();
    let Some(left_out) = count.checked_sub(most).filter(|more| *more > 0) else { return line.into() };
    let at = |nth| line.char_indices().nth(nth).map_or(line.len(), |(at, _)| at);
    let (start, end) = (&line[..at(most / 2)], &line[at(count - most / 2)..]);
    format!("{start} [{left_out} characters left out] {end}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_a_terminal_obeys_are_printed_as_their_codes() {
        assert_eq!(printable("a\n\tb \u{2192} é"), "a\n\tb \u{2192} é");
        let hostile = "\u{1b}[2J\u{7}\u{9b}31m\r\u{202e}txt\u{2066}\u{7f}";
        assert_eq!(message(hostile), r"\u{1b}[2J\u{7}\u{9b}31m\u{d}\u{202e}txt\u{2066}\u{7f}");
        assert!(matches!(printable("plain"), Cow::Borrowed("plain")));
    }

    #[test]
    fn a_long_line_loses_its_middle() {
        let long = format!("begin {} end", "é".repeat(1_300_000));
        let cut = message(&long);
        assert!(cut.starts_with("begin é") && cut.ends_with("é end"), "{cut}");
        assert!(
            cut.contains(" [1296010 characters left out] ") && cut.chars().count() < LONGEST + 50,
            "{cut}"
        );
        assert_eq!(message(&format!("short\n{long}")), format!("short\n{cut}"));
    }
}
