//! How the command was called: from a command line, or by another program that passes the words and collects the output.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{self, Write};
use std::rc::Rc;

/// The output of a command that another program called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The text that the command would have printed.
    pub text: String,
    /// The command's records, as lines of JSON.
    pub records: String,
}

/// A call by a program: its words, and the output that is collected.
#[derive(Clone, Default)]
struct Called {
    words: Vec<OsString>,
    kept: Option<Rc<RefCell<Kept>>>,
}

thread_local! {
    static CALLED: RefCell<Option<Called>> = const { RefCell::new(None) };
}

/// Runs a function as if these words were the command line, without the program's name.
pub fn with_words<R>(words: Vec<OsString>, run: impl FnOnce() -> R) -> R {
    let before = CALLED.replace(Some(Called { words, kept: None }));
    let result = run();
    CALLED.set(before);
    result
}

/// [`with_words`], with the text and the records returned instead of printed.
pub fn keeping<R>(words: Vec<OsString>, run: impl FnOnce() -> R) -> (R, Kept) {
    let kept = Rc::new(RefCell::new(Kept::default()));
    let before = CALLED.replace(Some(Called { words, kept: Some(kept.clone()) }));
    let result = run();
    CALLED.set(before);
    (result, kept.take())
}

/// The words of the command line, without the program's name.
pub fn words() -> Vec<OsString> {
    let given = CALLED.with_borrow(|called| called.as_ref().map(|called| called.words.clone()));
    given.unwrap_or_else(|| std::env::args_os().skip(1).collect())
}

/// Whether another program has called the command. That program decides how many of its processes run it.
pub fn is_called() -> bool {
    CALLED.with_borrow(Option::is_some)
}

/// The collector of the output, if a program collects it.
pub fn keeper() -> Option<Keeper> {
    CALLED.with_borrow(|called| called.as_ref()?.kept.clone().map(Keeper))
}

/// Keeps the text and the records of a command.
pub struct Keeper(Rc<RefCell<Kept>>);

impl Keeper {
    /// Keeps records: lines of JSON.
    pub fn record(&self, lines: &str) {
        self.0.borrow_mut().records.push_str(lines);
    }
}

impl Write for Keeper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().text.push_str(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
