//! Error messages of file readers, in words for the authors of the files.

/// Rust's type names in error messages of serde, and the words that replace them.
const KINDS: [(&str, &str); 8] = [
    ("usize", "a whole number, 0 or more"),
    ("u64", "a whole number, 0 or more"),
    ("u32", "a whole number, 0 or more"),
    ("u16", "a whole number, 0 or more"),
    ("f64", "a number"),
    ("f32", "a number"),
    ("a boolean", "true or false"),
    ("a sequence", "a list"),
];

/// An error message of serde or of a format's parser as one line, in which words replace Rust's type names.
///
/// ```
/// use allfold_base::expected;
///
/// let message = "invalid type: string \"many\", expected usize";
/// assert_eq!(expected(message), "invalid type: string \"many\", expected a whole number, 0 or more");
/// assert_eq!(expected("invalid boolean\nexpected `true`"), "invalid boolean; expected `true`");
/// ```
pub fn expected(message: &str) -> String {
    let line = message.lines().collect::<Vec<_>>().join("; ");
    let Some((before, kind)) = line.rsplit_once("expected ") else { return line };
    match KINDS.iter().find(|(name, _)| *name == kind) {
        Some((_, words)) => format!("{before}expected {words}"),
        None => line,
    }
}

/// `file:line:column: message`, with the place of byte `at` of the file's text.
///
/// ```
/// assert_eq!(allfold_base::located("a.toml", "a = 1\nb = x\n", 10, "no value"), "a.toml:2:5: no value");
/// ```
pub fn located(name: &str, text: &str, at: usize, message: &str) -> String {
    let (line, column) = line_and_column(text, at);
    format!("{name}:{line}:{column}: {message}")
}

/// The line and the column, both counted from 1, of byte `at` of a text, or of its end if the text is
/// shorter.
///
/// ```
/// assert_eq!(allfold_base::line_and_column("a = 1\nb = x\n", 10), (2, 5));
/// ```
pub fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    (line, before.chars().rev().take_while(|&c| c != '\n').count() + 1)
}
