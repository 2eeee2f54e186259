//! Files that a run writes: refused before the work starts where they cannot be written, and written completely or not at all.

use crate::error::{CommandError, CommandResult};
use clap::builder::{PathBufValueParser, TypedValueParser, ValueParser};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The error of a write to a standard stream.
pub fn unsaid(error: &io::Error) -> CommandError {
    if error.kind() == ErrorKind::BrokenPipe {
        return CommandError::Closed;
    }
    CommandError::run(format!("the output cannot be written: {error}"))
}

/// The parser of a plot's file name, for clap: it refuses name endings of other picture formats.
pub fn svg() -> ValueParser {
    ValueParser::new(PathBufValueParser::new().try_map(svg_name))
}

/// The name of an SVG file. A name without an ending is accepted.
fn svg_name(path: PathBuf) -> Result<PathBuf, String> {
    match path.extension() {
        Some(kind) if !kind.eq_ignore_ascii_case("svg") => Err(format!(
            "plots are SVG files, which browsers open; write {}",
            path.with_extension("svg").display()
        )),
        _ => Ok(path),
    }
}

/// Refuses a file that [`replace`] could not write.
pub fn writable(path: &Path) -> CommandResult {
    if path == Path::new("-") {
        return Err(CommandError::usage("-: standard output is for text and records; name a file"));
    }
    if path.is_dir() {
        return Err(CommandError::usage(format!("{}: is a folder; name a file", path.display())));
    }
    if special(path) {
        return Ok(());
    }
    let probe = beside(&led_to(path));
    let tried = create_new(&probe).map(drop);
    let _ = fs::remove_file(&probe);
    tried.map_err(|error| cannot_write(path, &error))
}

/// Makes a folder. Refuses a folder in which no file can be created.
pub fn folder(path: &Path) -> CommandResult {
    let probe = beside(&path.join("file"));
    let tried = fs::create_dir_all(path).and_then(|()| create_new(&probe)).map(drop);
    let _ = fs::remove_file(&probe);
    tried.map_err(|error| {
        CommandError::usage(format!(
            "{}: no files can be written there: {error}; name a folder",
            path.display()
        ))
    })
}

/// Refuses a folder in which [`folder`] could not create a file. Leaves no new folder behind.
pub fn can_make_folder(path: &Path) -> CommandResult {
    let missing: Vec<&Path> =
        path.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists()).collect();
    let made = folder(path);
    // Only empty folders are removed, and only those that were missing before.
    missing.into_iter().for_each(|folder| drop(fs::remove_dir(folder)));
    made
}

/// Refuses a file to which no record can be appended.
pub fn appendable(path: &Path) -> CommandResult {
    if !path.is_file() {
        return writable(path);
    }
    open_to_append(path).map(drop).map_err(|error| cannot_write(path, &error))
}

/// Writes files into a folder, each with its name and text, as [`replace`] does.
pub fn replace_all(folder: &Path, files: &[(String, String)]) -> CommandResult {
    files.iter().try_for_each(|(name, text)| replace(&folder.join(name), text.as_bytes()))
}

/// Writes a file completely or not at all: writes a temporary file in the same folder, and renames it. Links to the file and
/// its permissions are kept.
///
/// # Errors
/// The file cannot be written.
pub fn replace(path: &Path, content: &[u8]) -> CommandResult {
    if special(path) {
        return fs::write(path, content).map_err(|error| cannot_write(path, &error));
    }
    let path = led_to(path);
    let temporary = beside(&path);
    let write = || {
        let mut file = create_new(&temporary)?;
        if let Ok(about) = fs::metadata(&path) {
            file.set_permissions(about.permissions())?;
        }
        file.write_all(content)?;
        fs::rename(&temporary, &path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        cannot_write(&path, &error)
    })
}

/// Creates a temporary file. Removes a file or a link of its name first, which an earlier process of the same number, or another user, has
/// left, and never opens what such a link leads to.
fn create_new(path: &Path) -> io::Result<File> {
    let _ = fs::remove_file(path);
    File::create_new(path)
}

/// The file that `path` leads to through symbolic links, whether or not the file exists.
fn led_to(path: &Path) -> PathBuf {
    // Linux follows at most this many links.
    const LINKS: usize = 40;
    let mut at = path.to_path_buf();
    for _ in 0..LINKS {
        let Ok(next) = fs::read_link(&at) else { break };
        at = at.with_file_name(next);
    }
    at
}

/// Whether `path` is a device or a pipe, which cannot be replaced by renaming and is written to instead.
pub fn special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|about| !about.is_file() && !about.is_dir())
}

fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.part", std::process::id()))
}

/// The error of a file that cannot be written, in one line.
pub fn cannot_write(path: &Path, error: &io::Error) -> CommandError {
    let what = format!("{}: cannot be written: {error}", path.display());
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            CommandError::run(what)
        }
        _ => CommandError::usage(format!("{what}; name a file in a folder that exists")),
    }
}

/// Opens a file to append records.
pub fn open_to_append(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_a_folder_that_is_tried_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.html");
        fs::write(&path, "old").unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file stays");
        can_make_folder(&folder.path().join("a/b")).unwrap();
        assert!(!folder.path().join("a").exists(), "a folder that was only tried stays");
        can_make_folder(folder.path()).unwrap();
        assert!(folder.path().exists());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_and_the_permissions_of_a_file_stay() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::create_dir(folder.path().join("other")).unwrap();
        let (new, to_new) = (folder.path().join("other/new"), folder.path().join("to_new"));
        fs::write(&file, "old\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        symlink("file", &link).unwrap();
        symlink("other/new", &to_new).unwrap();
        for (link, file) in [(&link, &file), (&to_new, &new)] {
            writable(link).unwrap();
            replace(link, b"whole").unwrap();
            assert!(link.is_symlink() && !file.is_symlink());
            assert_eq!(fs::read_to_string(file).unwrap(), "whole");
        }
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_in_the_place_of_a_temporary_file_is_not_followed() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let (mine, page) = (folder.path().join("mine"), folder.path().join("page.html"));
        let ways: [&dyn Fn() -> CommandResult; 3] =
            [&|| writable(&page), &|| replace(&page, b"page"), &|| super::folder(folder.path())];
        for (temporary, way) in
            [beside(&page), beside(&page), beside(&folder.path().join("file"))].iter().zip(ways)
        {
            fs::write(&mine, "mine").unwrap();
            symlink(&mine, temporary).unwrap();
            way().unwrap();
            assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
            assert!(!temporary.is_symlink(), "{}", temporary.display());
        }
        assert!(!page.is_symlink() && fs::read_to_string(&page).unwrap() == "page");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_told_with_the_name_of_the_file() {
        let full = Path::new("/dev/full");
        let written = replace(full, b"whole");
        let Err(CommandError::Run(said)) = written else { panic!("{written:?}") };
        assert!(said.contains("/dev/full") && said.contains("No space left"), "{said}");
    }

    #[test]
    fn what_cannot_be_written_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().to_path_buf(), folder.path().join("no/such/file")] {
            assert!(matches!(writable(&path), Err(CommandError::Usage(_))), "{}", path.display());
        }
        assert_eq!(writable(&folder.path().join("fine")), Ok(()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
