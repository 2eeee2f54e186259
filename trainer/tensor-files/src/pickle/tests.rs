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

/// The tensors of a pickle with one dict of them.
fn state_dict(pickle: &[u8]) -> Result<BTreeMap<&str, PickledTensor<'_>>, String> {
    let mut all = dicts(pickle)?;
    let tensors = all.remove(0).tensors.into_iter();
    assert!(all.is_empty());
    Ok(tensors.map(|(name, tensor)| (name, tensor.unwrap())).collect())
}

fn refused(pickle: &[u8]) -> String {
    dicts(pickle).err().unwrap()
}

/// The paths of the dicts of a pickle.
fn paths(pickle: &[u8]) -> Vec<String> {
    dicts(pickle).unwrap().into_iter().map(|dict| dict.path).collect()
}

#[test]
fn a_tensor_is_described_by_storage_offset_shape_and_strides() {
    let pickle = one("a", &tensor(1, &[3, 1, 2], &[1, 77, 4]));
    let want = PickledTensor {
        storage: "0",
        bytes: 48,
        dtype: Dtype::F32,
        offset: 4,
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
    assert_eq!(refused(&one("epoch", b"K\x03")), "holds `epoch` and no tensors; save `model.state_dict()`");
    // A dict that holds itself.
    let own = [b"\x80\x02}q\0", &text("state_dict")[..], b"h\0s."].concat();
    assert_eq!(refused(&own), "holds `state_dict` and no tensors; save `model.state_dict()`");
    let twice =
        [&b"\x80\x02}("[..], &text("a"), &tensor(0, &[1], &[1]), &text("a"), &tensor(0, &[1], &[1]), b"u."];
    assert_eq!(refused(&twice.concat()), "has `a` twice");
    assert_eq!(refused(b"\x80\x07."), "has a pickle of protocol 7; protocols 2 to 5 are read");
    assert_eq!(
        refused(b"\x80\x02i."),
        "has the opcode 0x69 at byte 2 of its pickle, which no state dict needs; save `model.state_dict()` with \
         `torch.save`"
    );
    assert_eq!(refused(b"\x80\x02h\x05."), "uses value 5 of its pickle before it is there");
    assert_eq!(refused(b"\x80\x02X\xff\xff\xff\xff."), "ends early: at byte 8 of its pickle");
    let long = one(&"a".repeat(1025), &tensor(0, &[1], &[1]));
    assert_eq!(refused(&long), "has a tensor with a name of 1025 bytes; 1024 are read at most");
    for unfit in [
        &b"\x80\x02R."[..],
        b"\x80\x02t.",
        b"\x80\x02(s.",
        b"\x80\x02}K\x01u.",
        b"\x80\x02).)",
        b"\x80\x02b.",
        b"\x80\x02\x81.",
        b"\x80\x02a.",
        b"\x80\x02(e.",
    ] {
        let _ = refused(unfit);
    }
}

#[test]
fn what_pytorch_reads_beside_tensors_is_read_and_what_it_refuses_is_refused_by_name() {
    let call = |name: &str, arguments: &[u8]| [b"c", name.as_bytes(), b"\n", arguments, b"R"].concat();
    let beside = |value: &[u8]| {
        let (weights, name) = (tensor(0, &[1], &[1]), text("beside"));
        [b"\x80\x02}(", &text("a")[..], &weights, &name, value, b"u."].concat()
    };
    let two = [text("abc"), text("latin1"), b"\x86".to_vec()].concat();
    for value in [
        call("torch\ndevice", &[&text("cpu")[..], b"\x85"].concat()),
        call("torch\nSize", b"K\x01K\x02\x86\x85"),
        call("_codecs\nencode", &two),
        call("__builtin__\nbytearray", b")"),
        call("__builtin__\nset", b"](K\x01e\x85"),
        call("builtins\ncomplex", &[&b"G"[..], &[0; 8], b"K\x02\x86"].concat()),
        call("collections\nCounter", b"}(K\x01K\x02u\x85"),
        call("torch.serialization\n_get_layout", &[&text("torch.strided")[..], b"\x85"].concat()),
        b"ctorch\nFloatTensor\n".to_vec(),
        b"ctorch\nint3\n".to_vec(),
        b"ctorch\nper_tensor_affine\n".to_vec(),
        b"X\x01\0\0\0\xff".to_vec(),
        b"\x8f(K\x01\x90".to_vec(),
        b"}(K\x01N\x88K\x02u".to_vec(),
        b"B\x01\0\0\0a".to_vec(),
        b"\x96\x01\0\0\0\0\0\0\0a".to_vec(),
        b"N".to_vec(),
    ] {
        assert_eq!(paths(&beside(&value)), [""], "{}", String::from_utf8_lossy(&value));
    }
    for name in ["__builtin__\nfrozenset", "collections\ndefaultdict", "__builtin__\neval", "builtins\nbytes"]
    {
        let error = refused(&beside(&call(name, b")")));
        assert!(error.starts_with(&format!("names {}, which", name.replace('\n', "."))), "{error}");
    }
}

#[test]
fn dicts_of_tensors_are_found_in_dicts_and_lists_once_each() {
    let own = [b"}", &text("a")[..], &tensor(0, &[1], &[1]), b"s"].concat();
    let held =
        [b"\x80\x02}(", &text("net")[..], &own, b"q\x01", &text("ema"), b"h\x01", &text("epoch"), b"K\x03u."];
    assert_eq!(paths(&held.concat()), ["net"]);
    let list = [b"\x80\x02}", &text("models")[..], b"](", &own, &own, b"es."].concat();
    assert_eq!(paths(&list), ["models.0", "models.1"]);
    assert_eq!(paths(&[b"\x80\x02", &own[..], b"K\x03\x86."].concat()), ["0"]);
    let deep = |depth: usize| {
        let open = [b"}", &text("x")[..]].concat().repeat(depth);
        [b"\x80\x02", &open[..], &own, &b"s".repeat(depth), b"."].concat()
    };
    assert_eq!(paths(&deep(5)), ["x.x.x.x.x"]);
    assert_eq!(refused(&deep(9)), "holds `x` and no tensors; save `model.state_dict()`");
    // Python 2 writes an ordered dict as a list of pairs, and texts as bytes.
    let pair = [&b"](U\x01a"[..], &tensor(0, &[1], &[1]), b"e"].concat();
    let old = [b"\x80\x02ccollections\nOrderedDict\n](", &pair[..], b"](U\x05epochK\x03ee\x85R."].concat();
    assert_eq!(state_dict(&old).unwrap().keys().collect::<Vec<_>>(), [&"a"]);
    // The same list of pairs in many dicts is many values.
    let pairs =
        [b"\x80\x02](", &b"K\x01K\x01\x86".repeat(1000)[..], b"eq\0](", b"ccollections\nOrderedDict\nq\x01"]
            .concat();
    let many = [&pairs[..], &b"h\x01h\0\x85R".repeat(2000), b"e."].concat();
    assert!(refused(&many).starts_with("has more than 524288 values"));
}

#[test]
fn tensors_that_cannot_be_weights_are_named_with_what_would_be_right() {
    let kind = |value: &[u8]| {
        let all = one("a", value);
        dicts(&all).unwrap().remove(0).tensors["a"].clone().unwrap_err()
    };
    let made = |name: &str| [b"ctorch._utils\n", name.as_bytes(), b"\n(NNtR"].concat();
    assert!(kind(&made("_rebuild_sparse_tensor")).starts_with("is sparse"));
    assert!(kind(&made("_rebuild_qtensor")).starts_with("is quantised"));
    assert!(kind(&made("_rebuild_meta_tensor_no_storage")).starts_with("has no values"));
    // The last argument says that the values are negated.
    let plain = tensor(0, &[1], &[1]);
    let negated = [&plain[..plain.len() - 2], b"}", &text("neg"), b"\x88stR"].concat();
    assert!(kind(&negated).starts_with("is a negated view"));
    let storage = b"FloatStorage".as_slice();
    let at = plain.windows(storage.len()).position(|part| part == storage).unwrap();
    let complex = [&plain[..at], b"ComplexDoubleStorage", &plain[at + storage.len()..]].concat();
    assert!(kind(&complex).starts_with("has a type that safetensors does not have"));
    // Parameters and tensors with attributes are their tensors.
    let parameter = [b"ctorch.nn.parameter\nParameter\n", &plain[..], b"\x85R\x88\x89N\x87b"].concat();
    assert_eq!(state_dict(&one("a", &parameter)).unwrap(), state_dict(&one("a", &plain)).unwrap());
    let start = b"ctorch._utils\n_rebuild_tensor_v2\n".len();
    let typed = [
        b"ctorch._tensor\n_rebuild_from_type_v2\n(",
        &plain[..start],
        b"ctorch\nTensor\n",
        &plain[start..plain.len() - 1],
        b"}tR",
    ];
    assert_eq!(state_dict(&one("a", &typed.concat())).unwrap(), state_dict(&one("a", &plain)).unwrap());
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
            let _ = dicts(&bytes);
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
