//! Runs a test in a process of its own, since a process has one CUDA and one stand-in for it.

use allfold_standin::{StandinOptions, install, standin_violations};
use std::path::Path;
use std::process::Command;

const NAME: &str = "ALLFOLD_STANDIN_TEST";
const CACHE: &str = "ALLFOLD_CACHE_DIR";
/// The prefix of a line in which a child process reports an error.
const WRONG: &str = "WRONG ";

/// The result of a test body: the error that the body found.
pub type Found = Result<(), Box<dyn std::error::Error>>;

/// Whether this is the child process of one body; calls that start other bodies then do nothing.
pub fn is_child() -> bool {
    std::env::var(NAME).is_ok()
}

/// Runs a body in a new process with this stand-in, and returns the errors that the body found and those that the stand-in
/// recorded, with the output. `test` is the test's path in this binary; `variant` distinguishes its processes; `cache` is their folder
/// of compiled kernels, if they have one.
fn child(
    test: &str,
    variant: &str,
    options: StandinOptions,
    cache: Option<&Path>,
    body: impl FnOnce() -> Found,
) -> (Vec<String>, String) {
    let name = format!("{test} {variant}");
    if let Ok(this) = std::env::var(NAME) {
        if this == name {
            install(options).unwrap();
            body().err().iter().for_each(|error| println!("{WRONG}{error}"));
            standin_violations().iter().for_each(|violation| println!("{WRONG}{violation}"));
            println!("DONE");
            std::process::exit(0);
        }
        return (Vec::new(), String::new());
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(NAME, name).envs(cache.map(|path| (CACHE, path)));
    let output = command.output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|part| String::from_utf8_lossy(&part).into_owned()).concat();
    assert!(output.status.success() && text.contains("DONE"), "{}\n{text}", output.status);
    let wrong = text.lines().filter_map(|line| line.split_once(WRONG)).map(|(_, what)| what.into()).collect();
    (wrong, text)
}

/// Runs a body in a new process with a stand-in of these options. Panics if the body fails or the stand-in has recorded a violation that
/// the body has not taken. Returns the process's output.
pub fn alone(test: &str, variant: &str, options: StandinOptions, body: impl FnOnce() -> Found) -> String {
    alone_with(None, (test, variant), options, body)
}

/// [`alone`], with a folder of compiled kernels.
pub fn alone_with(
    cache: Option<&Path>,
    (test, variant): (&str, &str),
    options: StandinOptions,
    body: impl FnOnce() -> Found,
) -> String {
    let (wrong, text) = child(test, variant, options, cache, body);
    assert!(wrong.is_empty(), "{test} {variant}: {wrong:#?}");
    text
}

/// Runs a body twice: unchanged, when it must find no error, and with a defect put back, when it must find one.
pub fn seeded(test: &str, defect: &'static [u8], options: StandinOptions, body: impl Fn() -> Found) {
    alone(test, "mended", options.clone(), &body);
    let (wrong, text) = child(test, "seeded", StandinOptions { seeded: defect, ..options }, None, &body);
    if is_child() {
        return;
    }
    assert!(!wrong.is_empty(), "{test}: defect {defect:?} is not caught\n{text}");
    println!("| {} | {} | {} | caught | mended |", defect[0], test.rsplit("::").next().unwrap(), wrong[0]);
}

/// An error if a condition does not hold.
pub fn ensure(holds: bool, what: impl std::fmt::Debug) -> Found {
    if holds { Ok(()) } else { Err(format!("{what:?}").into()) }
}
