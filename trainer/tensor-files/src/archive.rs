//! Archives that `torch.save` writes: ZIP files whose members are not compressed.
//!
//! ```text
//! header, NAME/data.pkl | header, NAME/byteorder | header, NAME/data/0 | ... | directory | ZIP64 end | end
//! ```
//!
//! The end gives the place of the directory, and the directory the place of each member, whose bytes are then read where they lie.
//! Numbers are little-endian. ZIP64's end is read where a number does not fit into the end's own field. Checksums of members are
//! not compared: PyTorch can leave them out, and does not compare them either. Source: PKWARE, APPNOTE.TXT 6.3.10, section 4.3.

use crate::error::wrong;
use std::collections::BTreeMap;
use std::io::{Read, Result, Seek, SeekFrom};

/// The most bytes of a directory.
const DIRECTORY: u64 = 8 << 20;
/// Bytes of the end without its comment, and of the longest comment.
const END: usize = 22;
const COMMENT: u64 = u16::MAX as u64;
/// Bytes of the fixed part of a member's entry in the directory, and of its header.
const ENTRY: usize = 46;
const HEADER: u64 = 30;
/// Values of 16 and 32 bits that mean that the number is in a field of ZIP64.
const ELSEWHERE: (u64, u64) = (0xffff, 0xffff_ffff);

/// A member: where its header begins, and the length of its data in bytes.
#[derive(Clone, Copy, Debug)]
struct Member {
    header: u64,
    length: u64,
    /// Whether the data are compressed or encrypted.
    encoded: bool,
}

/// The members of an archive by name.
pub(super) struct Archive {
    members: BTreeMap<String, Member>,
    length: u64,
}

impl Archive {
    /// Reads the directory of an archive.
    ///
    /// # Errors
    /// The file cannot be read; or, as `InvalidData`, it has no end of an archive, or its directory is damaged or too long.
    pub(super) fn open(from: &mut (impl Read + Seek)) -> Result<Archive> {
        let length = from.seek(SeekFrom::End(0))?;
        let (offset, size) = directory(from, length)?;
        if size > DIRECTORY {
            let most = DIRECTORY >> 20;
            return Err(wrong(format!("has a directory of {size} bytes; {most} MiB are read at most")));
        }
        if offset.checked_add(size).is_none_or(|end| end > length) {
            return Err(wrong(format!(
                "has {length} bytes, and its directory would be {size} bytes from byte {offset} on"
            )));
        }
        let mut members = BTreeMap::new();
        let bytes = bytes_at(from, offset, size)?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (name, member, next) = entry(rest)?;
            if members.insert(name.to_string(), member).is_some() {
                return Err(wrong(format!("has two members `{}`", name.escape_debug())));
            }
            rest = next;
        }
        Ok(Archive { members, length })
    }

    /// The names of the members.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// Where a member's data lie: the position of the first byte in the file, and the length in bytes.
    ///
    /// # Errors
    /// The file cannot be read; or, as `InvalidData`, there is no such member, it is compressed or encrypted, or the file ends
    /// before it does.
    pub(super) fn place(&self, from: &mut (impl Read + Seek), name: &str) -> Result<(u64, u64)> {
        let shown = name.escape_debug();
        let member = self.members.get(name).ok_or_else(|| wrong(format!("has no member `{shown}`")))?;
        if member.encoded {
            return Err(wrong(format!(
                "has `{shown}` compressed or encrypted; leave the file as `torch.save` wrote it"
            )));
        }
        let beyond = || wrong(format!("has {} bytes, and `{shown}` ends after them", self.length));
        let within = |end: &u64| *end <= self.length;
        member.header.checked_add(HEADER).filter(within).ok_or_else(beyond)?;
        let header = bytes_at(from, member.header, HEADER)?;
        if !header.starts_with(b"PK\x03\x04") {
            return Err(wrong(format!("has no `{shown}` at byte {}, where it should be", member.header)));
        }
        let start = member.header + HEADER + number(&header, 26, 2)? + number(&header, 28, 2)?;
        start.checked_add(member.length).filter(within).ok_or_else(beyond)?;
        Ok((start, member.length))
    }

    /// A member of at most `most` bytes.
    ///
    /// # Errors
    /// As [`Archive::place`]; or, as `InvalidData`, the member is longer.
    pub(super) fn read(&self, from: &mut (impl Read + Seek), name: &str, most: u64) -> Result<Vec<u8>> {
        let (start, length) = self.place(from, name)?;
        if length > most {
            let shown = name.escape_debug();
            return Err(wrong(format!("has {length} bytes in `{shown}`; {most} are read at most")));
        }
        bytes_at(from, start, length)
    }
}

/// The position and the length in bytes of the directory of a file of `length` bytes.
fn directory(from: &mut (impl Read + Seek), length: u64) -> Result<(u64, u64)> {
    let tail_length = length.min(END as u64 + COMMENT);
    let tail = bytes_at(from, length - tail_length, tail_length)?;
    let is_end = |at: &usize| {
        let end = &tail[*at..];
        let comment = end.len() - END;
        end.starts_with(b"PK\x05\x06") && number(end, 20, 2).is_ok_and(|said| said == comment as u64)
    };
    let last = tail.len().checked_sub(END);
    let Some(at) = last.and_then(|last| (0..=last).rev().find(is_end)) else {
        let what = "has no directory at its end, as an archive of `torch.save` has; it may have been cut";
        return Err(wrong(what.into()));
    };
    let end = &tail[at..];
    let (count, size, offset) = (number(end, 10, 2)?, number(end, 12, 4)?, number(end, 16, 4)?);
    if count != ELSEWHERE.0 && size != ELSEWHERE.1 && offset != ELSEWHERE.1 {
        return Ok((offset, size));
    }
    // ZIP64: 20 bytes before the end give the place of another end.
    let locator = at.checked_sub(20).map(|at| &tail[at..]).filter(|bytes| bytes.starts_with(b"PK\x06\x07"));
    let Some(locator) = locator else { return Ok((offset, size)) };
    let place = number(locator, 8, 8)?;
    if place.checked_add(56).is_none_or(|end| end > length) {
        return Err(wrong(format!("has {length} bytes, and its ZIP64 end would be at byte {place}")));
    }
    let end = bytes_at(from, place, 56)?;
    match end.starts_with(b"PK\x06\x06") {
        true => Ok((number(&end, 48, 8)?, number(&end, 40, 8)?)),
        false => Err(wrong(format!("has no ZIP64 end at byte {place}, where it should be"))),
    }
}

/// The first entry of a directory: the member's name, the member, and the rest of the directory.
fn entry(bytes: &[u8]) -> Result<(&str, Member, &[u8])> {
    let damaged = || wrong("has a damaged directory".into());
    if !bytes.starts_with(b"PK\x01\x02") {
        return Err(damaged());
    }
    let (flags, method) = (number(bytes, 8, 2)?, number(bytes, 10, 2)?);
    let (stored, length, header) = (number(bytes, 20, 4)?, number(bytes, 24, 4)?, number(bytes, 42, 4)?);
    let mut rest = bytes.get(ENTRY..).ok_or_else(damaged)?;
    let mut part = |at| {
        let (part, after) = rest.split_at_checked(number(bytes, at, 2)? as usize).ok_or_else(damaged)?;
        rest = after;
        Ok::<_, std::io::Error>(part)
    };
    let (name, extra, _comment) = (part(28)?, part(30)?, part(32)?);
    let name = std::str::from_utf8(name).map_err(|_| damaged())?;
    let mut wide = zip64(extra);
    let mut whole = |value| match value == ELSEWHERE.1 {
        true => wide.split_off(..8).map_or(Ok(value), |value| number(value, 0, 8)),
        false => Ok(value),
    };
    let (length, stored, header) = (whole(length)?, whole(stored)?, whole(header)?);
    let encoded = method != 0 || flags & 1 != 0 || stored != length;
    Ok((name, Member { header, length, encoded }, rest))
}

/// The field of ZIP64 among an entry's extra fields; empty if there is none.
fn zip64(mut extra: &[u8]) -> &[u8] {
    while let (Ok(kind), Ok(length)) = (number(extra, 0, 2), number(extra, 2, 2)) {
        let Some((field, rest)) = extra[4..].split_at_checked(length as usize) else { break };
        if kind == 1 {
            return field;
        }
        extra = rest;
    }
    &[]
}

/// The little-endian number of `size` bytes at a position.
fn number(bytes: &[u8], at: usize, size: usize) -> Result<u64> {
    let digits = bytes.get(at..).and_then(|rest| rest.get(..size));
    let digits = digits.ok_or_else(|| wrong("has a damaged directory".into()))?;
    Ok(digits.iter().rev().fold(0, |sum, digit| sum << 8 | u64::from(*digit)))
}

/// `length` bytes of a file, which has been found to have them.
fn bytes_at(from: &mut (impl Read + Seek), at: u64, length: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.seek(SeekFrom::Start(at))?;
    from.by_ref().take(length).read_to_end(&mut bytes)?;
    match bytes.len() as u64 == length {
        true => Ok(bytes),
        false => Err(wrong(format!("has been cut at byte {} while it was read", at + bytes.len() as u64))),
    }
}

#[cfg(test)]
mod tests;
