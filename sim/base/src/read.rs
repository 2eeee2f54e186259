//! Reading of input files up to a limit: a wrong path may lead to a device without an end, or to a file larger than memory.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// The greatest number of bytes read from a file that is not regular, such as a pipe, whose length is not known in advance.
const STREAM: u64 = 16 << 20;

/// Reads a whole input file of at most `limit` bytes. `kind` names what it should be, for the error: `a topology`.
///
/// A longer regular file is refused before any byte is read. At most 16 MiB of a pipe or a device are read, whatever the
/// limit. A named pipe is refused, because opening it waits for a writer; a shell's `<(..)` is an open pipe below `/dev`.
///
/// # Errors
/// The file cannot be read; or, as [`ErrorKind::FileTooLarge`], it is longer than `limit`.
pub fn read_at_most(path: &Path, limit: u64, kind: &str) -> Result<Vec<u8>> {
    if waits(path) {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "is a named pipe, which may have no writer: give a file, or <(..)",
        ));
    }
    let file = File::open(path)?;
    let about = file.metadata()?;
    let limit = if about.is_file() { limit } else { limit.min(STREAM) };
    if about.len() > limit {
        return Err(too_large(&format!("has {} bytes", about.len()), limit, kind));
    }
    let mut bytes = Vec::with_capacity(if about.is_file() { about.len() as usize } else { 0 });
    file.take(limit + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => Err(too_large("does not end", limit, kind)),
        false => Ok(bytes),
    }
}

/// [`read_at_most`] as text.
///
/// # Errors
/// As [`read_at_most`]; or, as [`ErrorKind::InvalidData`], it is not UTF-8.
pub fn read_text_at_most(path: &Path, limit: u64, kind: &str) -> Result<String> {
    let bytes = read_at_most(path, limit, kind)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::new(ErrorKind::InvalidData, format!("is no text: the byte at {at} is not UTF-8"))
    })
}

/// Whether opening the file may wait for another process.
#[cfg(unix)]
fn waits(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let is_open = ["/dev", "/proc"].iter().any(|folder| path.starts_with(folder));
    !is_open && path.metadata().is_ok_and(|about| about.file_type().is_fifo())
}

#[cfg(not(unix))]
fn waits(_: &Path) -> bool {
    false
}

fn too_large(how: &str, limit: u64, kind: &str) -> Error {
    let limit = match limit {
        of if of >= 1 << 20 => format!("{} MiB", of >> 20),
        of => format!("{of} bytes"),
    };
    Error::new(ErrorKind::FileTooLarge, format!("{how}, and {kind} may have {limit}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    #[test]
    fn a_file_is_read_up_to_its_limit_and_refused_beyond_it() {
        let path = std::env::temp_dir().join(format!("allfold-read-{}", std::process::id()));
        std::fs::write(&path, b"twelve bytes").unwrap();
        assert_eq!(read_at_most(&path, 12, "a word").unwrap(), b"twelve bytes");
        assert_eq!(read_text_at_most(&path, 100, "a word").unwrap(), "twelve bytes");
        let error = read_at_most(&path, 11, "a word").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert_eq!(error.to_string(), "has 12 bytes, and a word may have 11 bytes");
        // The file is sparse: it takes no space on the disk, but reading it whole would take a gigabyte of memory.
        OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 30).unwrap();
        let error = read_at_most(&path, 32 << 20, "a table").unwrap_err().to_string();
        assert_eq!(error, "has 1073741824 bytes, and a table may have 32 MiB");
        std::fs::write(&path, b"caf\xe9").unwrap();
        let error = read_text_at_most(&path, 100, "a word").unwrap_err().to_string();
        assert_eq!(error, "is no text: the byte at 3 is not UTF-8");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read_at_most(&path, 100, "a word").unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[cfg(unix)]
    #[test]
    fn of_a_device_without_an_end_a_little_is_read() {
        let read = |limit| read_at_most(Path::new("/dev/zero"), limit, "a text").unwrap_err();
        assert_eq!(read(1 << 20).to_string(), "does not end, and a text may have 1 MiB");
        assert_eq!(read(u64::MAX).to_string(), "does not end, and a text may have 16 MiB");
        assert_eq!(read_at_most(Path::new("/dev/null"), 0, "a text").unwrap(), b"");
    }

    /// Regression: the reader waited for a writer for ever.
    #[cfg(unix)]
    #[test]
    fn a_named_pipe_is_refused_and_an_open_one_is_read() {
        use std::os::fd::AsRawFd;
        let path = std::env::temp_dir().join(format!("allfold-pipe-{}", std::process::id()));
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = read_at_most(&path, 12, "a word").unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(error.starts_with("is a named pipe"), "{error}");
        let (reader, mut writer) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut writer, b"twelve bytes").unwrap();
        drop(writer);
        let open = format!("/dev/fd/{}", reader.as_raw_fd());
        assert_eq!(read_at_most(Path::new(&open), 12, "a word").unwrap(), b"twelve bytes");
    }
}
