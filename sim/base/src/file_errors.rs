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

/// Whole messages of parsers of JSON and TOML, and the words that replace them.
const MESSAGES: [(&str, &str); 15] = [
    ("expected value", "here belongs a value, such as 1, \"text\", [..] or {..}"),
    ("expected ident", "here belongs a value, and this word is none of true, false and null"),
    ("expected `:`", "a key needs a `:` and a value after it"),
    ("expected `,` or `}`", "between two keys belongs a `,`, and at the end of an object a `}`"),
    ("expected `,` or `]`", "between two values belongs a `,`, and at the end of a list a `]`"),
    ("key must be a string", "a key must be in quotation marks"),
    ("trailing characters", "nothing may follow the end of the value"),
    ("trailing comma", "a value must follow a `,`"),
    ("invalid number", "this is no number"),
    ("number out of range", "the number is too large"),
    ("invalid escape", "after a `\\` in a string belongs one of \"\\/bfnrtu"),
    ("control character (\\u0000-\\u001F) found while parsing a string", "a string must end in its line"),
    ("recursion limit exceeded", "lists and objects are nested too deeply"),
    ("string values must be quoted, expected literal string", "text must be in quotation marks"),
    ("key with no value, expected `=`", "a key needs a `=` and a value after it"),
];

/// An error message of serde_json in words, with the place that it ends with put first. `line` is the line of the text in its file, if the
/// text is one line.
///
/// ```
/// use allfold_base::json_error;
///
/// assert_eq!(json_error("key must be a string at line 2 column 5", None), "line 2, column 5: a key must be in quotation marks");
/// assert_eq!(json_error("EOF while parsing an object at line 1 column 9", Some(7)), "line 7, column 9: the text ends within an object");
/// ```
pub fn json_error(message: &str, line: Option<usize>) -> String {
    let Some((what, place)) = message.rsplit_once(" at line ") else { return expected(message) };
    let (first, column) = place.split_once(" column ").unwrap_or((place, "1"));
    let line = line.map_or(first.into(), |line| line.to_string());
    format!("line {line}, column {column}: {}", expected(what))
}

/// An error message of serde or of a format's parser as one line, in words for the authors of files.
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
    if let Some((_, words)) = MESSAGES.iter().find(|(theirs, _)| *theirs == line) {
        return (*words).into();
    }
    if let Some(within) = line.strip_prefix("EOF while parsing ") {
        return format!("the text ends within {within}");
    }
    if let Some(what) = line.strip_suffix(", expected nothing") {
        return format!("{what}, which does not belong here");
    }
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
