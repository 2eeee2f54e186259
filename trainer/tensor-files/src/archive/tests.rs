use super::*;
use crate::testing::archive;
use std::io::Cursor;

fn read(bytes: &[u8], name: &str) -> std::result::Result<Vec<u8>, String> {
    let mut from = Cursor::new(bytes);
    let archive = Archive::open(&mut from).map_err(|error| error.to_string())?;
    archive.read(&mut from, name, 10).map_err(|error| error.to_string())
}

#[test]
fn members_are_read_where_they_lie() {
    for zip64 in [false, true] {
        let bytes = archive(&[("a/data.pkl", b"pickle", 0), ("a/data/0", b"", 0), ("b", b"bytes", 0)], zip64);
        let archive = Archive::open(&mut Cursor::new(&bytes)).unwrap();
        assert_eq!(archive.names().collect::<Vec<_>>(), ["a/data.pkl", "a/data/0", "b"]);
        assert_eq!(read(&bytes, "a/data.pkl").unwrap(), b"pickle");
        assert_eq!(read(&bytes, "a/data/0").unwrap(), b"");
        assert_eq!(read(&bytes, "b").unwrap(), b"bytes");
        assert_eq!(read(&bytes, "c").unwrap_err(), "has no member `c`");
    }
}

#[test]
fn members_that_cannot_be_used_as_they_are_are_refused() {
    let refused = |members: &[(&str, &[u8], u16)]| read(&archive(members, false), "a").unwrap_err();
    assert_eq!(
        refused(&[("a", b"x", 8)]),
        "has `a` compressed or encrypted; leave the file as `torch.save` wrote it"
    );
    assert_eq!(refused(&[("a", b"0123456789x", 0)]), "has 11 bytes in `a`; 10 are read at most");
    assert_eq!(refused(&[("a", b"x", 0), ("a", b"y", 0)]), "has two members `a`");
}

#[test]
fn places_outside_of_the_file_are_refused() {
    let good = archive(&[("a", b"bytes", 0)], false);
    // The end record has 22 bytes and the comment 7; the entry of `a` ends with its name and two bytes of comment.
    let (end, entry) = (good.len() - 29, good.len() - 29 - 49);
    let refused = |at: usize, value: u32| {
        let mut bytes = good.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        read(&bytes, "a").unwrap_err()
    };
    let length = good.len();
    assert_eq!(refused(end + 12, 9 << 20), "has a directory of 9437184 bytes; 8 MiB are read at most");
    assert_eq!(
        refused(end + 16, 1000),
        format!("has {length} bytes, and its directory would be 49 bytes from byte 1000 on")
    );
    assert_eq!(refused(end + 12, 40), "has a damaged directory");
    assert_eq!(refused(entry + 42, 1000), format!("has {length} bytes, and `a` ends after them"));
    assert_eq!(refused(entry + 42, 2), "has no `a` at byte 2, where it should be");
    assert_eq!(refused(entry, 7), "has a damaged directory");
    // A length that no file has: nothing is allocated by it.
    let mut wide = archive(&[("a", b"bytes", 0)], true);
    let at = wide.windows(8).rposition(|bytes| bytes == 5u64.to_le_bytes()).unwrap();
    for at in [at - 8, at] {
        wide[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    }
    assert_eq!(read(&wide, "a").unwrap_err(), format!("has {} bytes, and `a` ends after them", wide.len()));
}

#[test]
fn an_archive_that_was_cut_or_damaged_is_refused_or_read_but_never_panics() {
    for zip64 in [false, true] {
        let good = archive(&[("a", b"bytes", 0), ("b", b"more", 0)], zip64);
        for length in 0..good.len() {
            let error = read(&good[..length], "a").unwrap_err();
            assert!(error.starts_with("has no directory at its end"), "{length}: {error}");
        }
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bytes = good.clone();
                bytes[at] ^= 1 << bit;
                let _ = (read(&bytes, "a"), read(&bytes, "b"));
            }
        }
    }
}
