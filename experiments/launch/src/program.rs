//! The command that starts another process of this program: its executable, or what [`start_by`] was given (Python and its
//! arguments). Also the check that a rank's program exists.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

static PROGRAM: OnceLock<Vec<OsString>> = OnceLock::new();

/// Sets the command that starts this program, if it is not its own executable: an interpreter and its first arguments. Only the
/// first call has an effect.
pub fn start_by(program: Vec<OsString>) {
    // A later call in this process would set the same command.
    let _ = PROGRAM.set(program);
}

/// A program and its first arguments that start this program again.
///
/// # Errors
/// The system does not say which executable this is.
pub fn program() -> std::io::Result<Vec<OsString>> {
    match PROGRAM.get() {
        Some(program) => Ok(program.clone()),
        None => Ok(vec![std::env::current_exe()?.into()]),
    }
}

/// Looks for a rank's program as a shell does. For a program that cannot be run: a shell's exit code, 126 or 127, and the reason.
pub(crate) fn find(program: &OsStr, path: Option<&OsStr>) -> Result<(), (u8, String)> {
    let name = program.to_string_lossy();
    let runs = |file: &Path| {
        std::fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if program.as_encoded_bytes().contains(&b'/') {
        return match std::fs::metadata(program) {
            Err(error) => Err((127, format!("{name}: {error}"))),
            Ok(_) if runs(Path::new(program)) => Ok(()),
            Ok(_) => Err((126, format!("{name}: is no program that may be run"))),
        };
    }
    let mut folders = path.map(std::env::split_paths).into_iter().flatten();
    match path.is_none() || folders.any(|folder| runs(&folder.join(program))) {
        true => Ok(()),
        false => Err((
            127,
            format!("{name}: there is no such command of allfold, and no such program on the PATH"),
        )),
    }
}

/// A command that starts this program again, without arguments of its own.
pub(crate) fn command() -> std::io::Result<Command> {
    let words = program()?;
    let (first, others) = words.split_first().ok_or(std::io::ErrorKind::NotFound)?;
    let mut command = Command::new(first);
    command.args(others);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_as_shells_find_it() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, mode: u32| {
            let path = folder.path().join(name);
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path.into_os_string()
        };
        let (runs, text) = (put("runs", 0o755), put("text", 0o644));
        let path = Some(folder.path().as_os_str());
        let code = |program: &OsStr| find(program, path).map_err(|(code, _)| code);
        assert_eq!(code(&runs), Ok(()));
        assert_eq!(code(OsStr::new("runs")), Ok(()));
        assert_eq!(code(&text), Err(126));
        assert_eq!(code(folder.path().as_os_str()), Err(126));
        assert_eq!(code(OsStr::new("text")), Err(127));
        assert_eq!(code(OsStr::new("./no/such")), Err(127));
        assert_eq!(find(OsStr::new("anything"), None), Ok(()), "the system has a path of its own then");
    }
}
