use super::*;

/// A text of a pickle.
fn text(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

/// An integer of a pickle.
fn int(value: i64) -> Vec<u8> {
    [b"\x8a\x08", &value.to_le_bytes()[..]].concat()
}

fn tuple(items: &[i64]) -> Vec<u8> {
    [b"(".to_vec(), items.iter().flat_map(|item| int(*item)).collect(), b"t".to_vec()].concat()
}

/// A tensor of a storage with 12 elements of f32.
fn tensor(offset: i64, shape: &[i64], strides: &[i64]) -> Vec<u8> {
    let storage = [text("storage"), b"ctorch\nFloatStorage\n".to_vec(), text("0"), text("cpu"), int(12)];
    let parts: [&[u8]; 9] = [
        b"ctorch._utils\n_rebuild_tensor_v2\n((",
        &storage.concat(),
        b"tQ",
        &int(offset),
        &tuple(shape),
        &tuple(strides),
        b"\x89",
        b"ccollections\nOrderedDict\n)R",
        b"tR",
    ];
    parts.concat()
}

/// The pickle of a dict with one entry.
fn one(name: &str, value: &[u8]) -> Vec<u8> {
    [b"\x80\x02}", &text(name)[..], value, b"s."].concat()
}

fn refused(pickle: &[u8]) -> String {
    state_dict(pickle).unwrap_err()
}

#[test]
fn a_tensor_is_described_by_storage_offset_shape_and_strides() {
    let pickle = one("a", &tensor(1, &[3, 1, 2], &[1, 77, 4]));
    let want = PickledTensor {
        storage: "0",
        bytes: 48,
        dtype: Dtype::F32,
        offset: 1,
        shape: vec![3, 1, 2],
        strides: vec![1, 0, 4],
    };
    assert_eq!(state_dict(&pickle).unwrap(), [("a", want)].into());
    let scalar = one("a", &tensor(11, &[], &[]));
    assert_eq!(state_dict(&scalar).unwrap()["a"].shape, [0; 0]);
    // An empty tensor has no first element, wherever it is said to be.
    let empty = one("a", &tensor(i64::MAX, &[0, 5], &[5, 1]));
    let empty = state_dict(&empty).unwrap().remove("a").unwrap();
    assert_eq!((empty.offset, empty.shape), (0, vec![0, 5]));
}

#[test]
fn a_tensor_outside_of_its_storage_is_refused() {
    let outside = "has `a` with elements outside of its storage `0`";
    let most = i64::MAX;
    for (offset, shape, strides) in [
        (1, &[3, 4][..], &[4, 1][..]),
        (12, &[], &[]),
        (0, &[13], &[1]),
        (0, &[most], &[1]),
        (0, &[most, most], &[most, most]),
        (most, &[2], &[1]),
        (4, &[3], &[most]),
    ] {
        assert_eq!(refused(&one("a", &tensor(offset, shape, strides))), outside, "{offset} {shape:?}");
    }
    assert_eq!(
        refused(&one("a", &tensor(0, &[3, 4], &[-4, 1]))),
        "has `a` with a size or a stride that is no number of elements"
    );
    assert_eq!(
        refused(&one("a", &tensor(0, &[3, 4], &[1]))),
        "has `a` of 2 dimensions and 1 strides; 8 of each are read at most"
    );
    assert_eq!(
        refused(&one("a", &tensor(0, &[1; 9], &[1; 9]))),
        "has `a` of 9 dimensions and 9 strides; 8 of each are read at most"
    );
    assert!(refused(&one("a", &tensor(-1, &[1], &[1]))).starts_with("has a pickle that is damaged"));
}

#[test]
fn names_that_are_no_part_of_weights_are_refused_and_nothing_is_executed() {
    let end = "which is no part of weights; Allfold executes nothing from a file: save the tensors alone, by \
               `torch.save(model.state_dict(), \"x.pt\")`";
    let command = one("a", &[b"cos\nsystem\n(", &text("exit 1")[..], b"tR"].concat());
    assert_eq!(refused(&command), format!("names os.system, {end}"));
    // By protocol 4's opcode, in a name with a line break, and as a class that would be called.
    let stacked = [b"\x80\x04", &text("torch")[..], &text("lo\nad"), b"\x93."].concat();
    assert_eq!(refused(&stacked), format!("names torch.lo\\nad, {end}"));
    let class = one("a", b"ctorch.nn.modules.linear\nLinear\n)\x81");
    assert_eq!(refused(&class), format!("names torch.nn.modules.linear.Linear, {end}"));
    assert_eq!(refused(b"\x80\x02c__builtin__\neval\n."), format!("names __builtin__.eval, {end}"));
    // A name that is known, called with what it does not take.
    let called = one("a", b"ccollections\nOrderedDict\n}\x85R");
    assert!(refused(&called).starts_with("has a pickle that is damaged"), "{}", refused(&called));
    let long = [b"\x80\x02c", &[b'a'; 300][..], b"\nb\n."].concat();
    assert_eq!(refused(&long), "has no name at byte 3 of its pickle, where one should be");
}

#[test]
fn what_is_no_state_dict_is_refused_with_what_would_be_right() {
    assert_eq!(refused(b"\x80\x02K\x01."), "holds no dict of tensors; save `model.state_dict()`");
    assert_eq!(refused(b"\x80\x02}."), "holds no tensors; save `model.state_dict()`");
    assert_eq!(
        refused(&one("epoch", b"K\x03")),
        "holds `epoch`, which is no tensor; save `model.state_dict()` alone, or as the entry `state_dict`"
    );
    // A dict that holds itself.
    let own = [b"\x80\x02}q\0", &text("state_dict")[..], b"h\0s."].concat();
    assert_eq!(
        refused(&own),
        "holds `state_dict`, which is no tensor; save `model.state_dict()` alone, or as the entry `state_dict`"
    );
    let twice =
        [&b"\x80\x02}("[..], &text("a"), &tensor(0, &[1], &[1]), &text("a"), &tensor(0, &[1], &[1]), b"u."];
    assert_eq!(refused(&twice.concat()), "has `a` twice");
    assert_eq!(refused(b"\x80\x07."), "has a pickle of protocol 7; protocols 2 to 5 are read");
    assert_eq!(
        refused(b"\x80\x02\x81."),
        "has the opcode 0x81 at byte 2 of its pickle, which no state dict needs; save `model.state_dict()` by \
         PyTorch 1.6 or newer"
    );
    assert_eq!(refused(b"\x80\x02h\x05."), "uses value 5 of its pickle before it is there");
    assert_eq!(refused(b"\x80\x02X\xff\xff\xff\xff."), "ends early: at byte 8 of its pickle");
    assert_eq!(refused(b"\x80\x02X\x01\0\0\0\xff."), "has a text at byte 3 of its pickle that is not UTF-8");
    for unfit in [
        &b"\x80\x02R."[..],
        b"\x80\x02t.",
        b"\x80\x02(s.",
        b"\x80\x02}K\x01u.",
        b"\x80\x02).)",
        b"\x80\x02b.",
    ] {
        let _ = refused(unfit);
    }
}

#[test]
fn a_pickle_that_was_cut_or_damaged_is_refused_or_read_but_never_panics() {
    let tensors = [tensor(0, &[3, 4], &[4, 1]), tensor(2, &[2, 2], &[1, 4])];
    let good = [b"\x80\x02}(", &text("a")[..], &tensors[0], &text("b"), &tensors[1], b"u."].concat();
    assert_eq!(state_dict(&good).unwrap().len(), 2);
    for length in 0..good.len() {
        assert_eq!(refused(&good[..length]), format!("ends early: at byte {length} of its pickle"));
    }
    for at in 0..good.len() {
        for value in 0..=255 {
            let mut bytes = good.clone();
            bytes[at] = value;
            let _ = state_dict(&bytes);
        }
    }
}

#[test]
fn values_are_limited_whatever_they_are_made_of() {
    let many = |part: &[u8]| [b"\x80\x02", &part.repeat(600_000)[..], b"."].concat();
    let too_many = "has more than 524288 values in its pickle; no state dict needs so many";
    for part in [&b"("[..], b")", b"}", b"K\x01", b"N\x85", b"N\x94"] {
        assert_eq!(refused(&many(part)), too_many, "{part:?}");
    }
    // Values that are dropped again are not counted.
    let dropped = [b"\x80\x02]", &b"K\x01a".repeat(600_000)[..], b"."].concat();
    assert_eq!(refused(&dropped), "holds no dict of tensors; save `model.state_dict()`");
}
