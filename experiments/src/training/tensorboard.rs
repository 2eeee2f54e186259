//! TensorBoard's event files: one number per tag and step.
//!
//! ```text
//! record  length, u64 | checksum of length | event | checksum of event            TFRecord, little-endian
//! event   1: time, f64 | 2: step | 3: "brain.Event:2", in the first | 5: summary { 1: value { 1: tag | 2: f32 } }
//! ```
//!
//! The messages are those of TensorFlow's `event.proto` and `summary.proto`; checksums are CRC-32C, masked as in TFRecord.

use allfold_cli::error::{CommandError, CommandResult};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// An event file that is being written.
pub struct Events {
    file: BufWriter<File>,
    path: PathBuf,
}

impl Events {
    /// Creates an event file in this directory under a name that TensorBoard finds and no other run uses.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(directory: &Path) -> CommandResult<Events> {
        let path =
            directory.join(format!("events.out.tfevents.{}.{}.allfold", now() as u64, std::process::id()));
        let open = || {
            std::fs::create_dir_all(directory)?;
            let mut events = Events { file: BufWriter::new(File::create_new(&path)?), path: path.clone() };
            let mut event = header(0);
            bytes(&mut event, 3, b"brain.Event:2");
            events.record(&event)?;
            Ok::<_, std::io::Error>(events)
        };
        open().map_err(|error| CommandError::usage(format!("{}: {error}; name a folder", path.display())))
    }

    /// Writes values of one step, by tag.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> CommandResult {
        let mut summary = Vec::new();
        for (tag, value) in values {
            let mut scalar = Vec::new();
            bytes(&mut scalar, 1, tag.as_bytes());
            scalar.push(2 << 3 | 5);
            scalar.extend((*value as f32).to_le_bytes());
            bytes(&mut summary, 1, &scalar);
        }
        let mut event = header(step);
        bytes(&mut event, 5, &summary);
        self.record(&event).map_err(|error| CommandError::run(format!("{}: {error}", self.path.display())))
    }

    fn record(&mut self, event: &[u8]) -> std::io::Result<()> {
        let length = (event.len() as u64).to_le_bytes();
        self.file.write_all(&length)?;
        self.file.write_all(&masked(&length).to_le_bytes())?;
        self.file.write_all(event)?;
        self.file.write_all(&masked(event).to_le_bytes())?;
        self.file.flush()
    }
}

/// The fields that every event has: time and step.
fn header(step: u64) -> Vec<u8> {
    let mut event = vec![1 << 3 | 1];
    event.extend(now().to_le_bytes());
    event.push(2 << 3);
    varint(&mut event, step);
    event
}

fn bytes(message: &mut Vec<u8>, field: u8, content: &[u8]) {
    message.push(field << 3 | 2);
    varint(message, content.len() as u64);
    message.extend(content);
}

fn varint(message: &mut Vec<u8>, mut value: u64) {
    while value > 127 {
        message.push(value as u8 | 128);
        value >>= 7;
    }
    message.push(value as u8);
}

fn masked(bytes: &[u8]) -> u32 {
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The time in seconds since 1970, because TensorBoard can show values over time.
#[allow(clippy::disallowed_types, reason = "events carry the time of day")]
fn now() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records have the right lengths and checksums. The first ends like one that TensorBoard 2.20 wrote; the second holds the step
    /// and the values.
    #[test]
    fn records_are_framed_and_checked() {
        assert_eq!(masked(b"123456789"), 0xe306_9283u32.rotate_right(15).wrapping_add(0xa282_ead8));
        let directory = tempfile::tempdir().unwrap();
        let mut events = Events::create(directory.path()).unwrap();
        events.scalars(300, &[("loss", 0.5), ("lr", 0.25)]).unwrap();
        let path = std::fs::read_dir(directory.path()).unwrap().next().unwrap().unwrap().path();
        assert!(path.to_str().unwrap().ends_with(&format!(".{}.allfold", std::process::id())));
        let file = std::fs::read(path).unwrap();
        let mut rest = &file[..];
        let mut records = Vec::new();
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            assert_eq!(u32::from_le_bytes(rest[8..12].try_into().unwrap()), masked(&rest[..8]));
            let event = &rest[12..12 + length];
            assert_eq!(u32::from_le_bytes(rest[12 + length..16 + length].try_into().unwrap()), masked(event));
            records.push(event.to_vec());
            rest = &rest[16 + length..];
        }
        assert_eq!(records.len(), 2);
        assert!(records[0].ends_with(b"\x1a\x0dbrain.Event:2"));
        assert_eq!(records[1][9..12], [16, 0xac, 2]);
        assert!(records[1].ends_with(b"\x0a\x09\x0a\x02lr\x15\x00\x00\x80\x3e"));
    }
}
