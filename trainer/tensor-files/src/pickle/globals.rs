//! The names of Python that a state dict may contain. No other name is accepted, and none is called.

use safetensors::tensor::Dtype;

/// The meaning of a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Global {
    /// `collections.OrderedDict`, without arguments an empty dict.
    OrderedDict,
    /// A tensor from storage, offset, shape and strides.
    RebuildTensor,
    /// The same with the type as an argument, for types that storages have no class for.
    RebuildTypedTensor,
    /// A parameter from its tensor.
    RebuildParameter,
    /// The class of storages of a type; `U8` for storages without a type.
    Storage(Dtype),
    /// A type of elements.
    Dtype(Dtype),
}

/// PyTorch's names of the types of elements, after `torch.`.
const DTYPES: &[(&str, Dtype)] = &[
    ("float64", Dtype::F64),
    ("float32", Dtype::F32),
    ("float16", Dtype::F16),
    ("bfloat16", Dtype::BF16),
    ("float8_e4m3fn", Dtype::F8_E4M3),
    ("float8_e5m2", Dtype::F8_E5M2),
    ("int64", Dtype::I64),
    ("int32", Dtype::I32),
    ("int16", Dtype::I16),
    ("int8", Dtype::I8),
    ("uint64", Dtype::U64),
    ("uint32", Dtype::U32),
    ("uint16", Dtype::U16),
    ("uint8", Dtype::U8),
    ("bool", Dtype::BOOL),
    ("complex64", Dtype::C64),
];

/// The classes of storages by type.
const STORAGES: &[(&str, Dtype)] = &[
    ("DoubleStorage", Dtype::F64),
    ("FloatStorage", Dtype::F32),
    ("HalfStorage", Dtype::F16),
    ("BFloat16Storage", Dtype::BF16),
    ("LongStorage", Dtype::I64),
    ("IntStorage", Dtype::I32),
    ("ShortStorage", Dtype::I16),
    ("CharStorage", Dtype::I8),
    ("ByteStorage", Dtype::U8),
    ("BoolStorage", Dtype::BOOL),
    ("ComplexFloatStorage", Dtype::C64),
];

/// The meaning of `module.name`.
///
/// # Errors
/// A name that no state dict needs.
pub(super) fn named(module: &str, name: &str) -> Result<Global, String> {
    let among = |table: &[(&str, Dtype)]| {
        table.iter().find(|(known, _)| module == "torch" && *known == name).map(|(_, dtype)| *dtype)
    };
    match (module, name) {
        ("collections", "OrderedDict") => Ok(Global::OrderedDict),
        ("torch._utils", "_rebuild_tensor_v2") => Ok(Global::RebuildTensor),
        ("torch._utils", "_rebuild_tensor_v3") => Ok(Global::RebuildTypedTensor),
        ("torch._utils", "_rebuild_parameter") => Ok(Global::RebuildParameter),
        ("torch.storage", "UntypedStorage") => Ok(Global::Storage(Dtype::U8)),
        _ => {
            let storage = among(STORAGES).map(Global::Storage);
            let known = storage.or_else(|| among(DTYPES).map(Global::Dtype));
            known.ok_or_else(|| {
                let (module, name) = (super::shown(module), super::shown(name));
                format!(
                    "names {module}.{name}, which is no part of weights; Allfold executes nothing from a file: save the tensors alone, \
                     by `torch.save(model.state_dict(), \"x.pt\")`"
                )
            })
        }
    }
}
