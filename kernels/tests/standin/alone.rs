//! A test in a process of its own: a process has one CUDA, and one stand-in for it.

use allfold_kernels::cuda::standin::{StandinOptions, install, standin_violations};
use std::process::Command;

const NAME: &str = "ALLFOLD_STANDIN_TEST";

/// Runs a body in a new process that has such a stand-in, and gives what it printed. The test's name is its path in this
/// binary. Fails where the body does, or where the stand-in has noted a violation that the body has not taken.
pub fn alone(test: &str, options: StandinOptions, body: impl FnOnce()) {
    if std::env::var(NAME).as_deref() == Ok(test) {
        install(options).unwrap();
        body();
        let violations = standin_violations();
        return assert!(violations.is_empty(), "{violations:#?}");
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args([test, "--exact", "--nocapture"]).env(NAME, test).output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|part| String::from_utf8_lossy(&part).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{}\n{text}", output.status);
    print!("{text}");
}
