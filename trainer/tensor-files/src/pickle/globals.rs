//! The names of Python that a state dict may contain. No other name is accepted, and none is called.

use super::shown::shown;
use safetensors::tensor::Dtype;

/// A type of elements: one of the types of safetensors, or the bytes of an element of a type that safetensors does not have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Element {
    Known(Dtype),
    Unknown(u64),
}

impl Element {
    /// Bytes of an element.
    pub(super) fn size(self) -> u64 {
        match self {
            Element::Known(dtype) => dtype.bitsize() as u64 / 8,
            Element::Unknown(size) => size,
        }
    }
}

/// The meaning of a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Global {
    /// `collections.OrderedDict`, without arguments an empty dict; Python 2 gives it a list of pairs.
    OrderedDict,
    /// A tensor from storage, offset, shape and strides.
    RebuildTensor,
    /// The same with the type as an argument, for types that storages have no class for.
    RebuildTypedTensor,
    /// A tensor from a function, a class, the function's arguments and attributes, which are ignored.
    RebuildFromType,
    /// What makes a value from its first argument that counts as this argument: a parameter, a size, a counter.
    First,
    /// What makes a tensor that cannot be weights, and why it cannot.
    Unread(&'static str),
    /// What makes a value that no tensor needs.
    Beside,
    /// The class of storages of a type; `U8` for storages without a type.
    Storage(Element),
    /// A type of elements.
    Dtype(Element),
}

/// PyTorch's types of elements: their names after `torch.`, and those of their storages without `Storage`.
const TYPES: &[(&str, &str, Element)] = &[
    ("float64", "Double", Element::Known(Dtype::F64)),
    ("float32", "Float", Element::Known(Dtype::F32)),
    ("float16", "Half", Element::Known(Dtype::F16)),
    ("bfloat16", "BFloat16", Element::Known(Dtype::BF16)),
    ("float8_e4m3fn", "", Element::Known(Dtype::F8_E4M3)),
    ("float8_e5m2", "", Element::Known(Dtype::F8_E5M2)),
    ("int64", "Long", Element::Known(Dtype::I64)),
    ("int32", "Int", Element::Known(Dtype::I32)),
    ("int16", "Short", Element::Known(Dtype::I16)),
    ("int8", "Char", Element::Known(Dtype::I8)),
    ("uint64", "", Element::Known(Dtype::U64)),
    ("uint32", "", Element::Known(Dtype::U32)),
    ("uint16", "", Element::Known(Dtype::U16)),
    ("uint8", "Byte", Element::Known(Dtype::U8)),
    ("bool", "Bool", Element::Known(Dtype::BOOL)),
    ("complex64", "ComplexFloat", Element::Known(Dtype::C64)),
    ("complex128", "ComplexDouble", Element::Unknown(16)),
    ("complex32", "", Element::Unknown(4)),
    ("quint8", "QUInt8", Element::Unknown(1)),
    ("qint8", "QInt8", Element::Unknown(1)),
    ("qint32", "QInt32", Element::Unknown(4)),
    ("quint4x2", "QUInt4x2", Element::Unknown(1)),
    ("quint2x4", "QUInt2x4", Element::Unknown(1)),
    ("float8_e4m3fnuz", "", Element::Unknown(1)),
    ("float8_e5m2fnuz", "", Element::Unknown(1)),
    ("float8_e8m0fnu", "", Element::Unknown(1)),
    ("float4_e2m1fn_x2", "", Element::Unknown(1)),
    ("bits8", "", Element::Unknown(1)),
    ("bits16", "", Element::Unknown(2)),
    ("bits1x8", "", Element::Unknown(1)),
    ("bits2x4", "", Element::Unknown(1)),
    ("bits4x2", "", Element::Unknown(1)),
];

/// What [`Global::Unread`] says of tensors.
pub(super) const SPARSE: &str = "is sparse; save it after `.to_dense()`";
pub(super) const QUANTISED: &str = "is quantised; save it after `.dequantize()`";
pub(super) const META: &str = "has no values: it was saved from the device `meta`";
pub(super) const NEGATED: &str = "is a negated view; save it after `.resolve_neg()`";
pub(super) const NO_FLOAT: &str =
    "has a type that safetensors does not have; F16, BF16, F32 and F64 are read";

/// The meaning of `module.name`.
///
/// # Errors
/// A name that no state dict needs.
pub(super) fn named(module: &str, name: &str) -> Result<Global, String> {
    let known = match module {
        "collections" | "builtins" | "__builtin__" | "_codecs" => of_python(module, name),
        "torch" | "torch.cuda" | "torch.sparse" | "torch.cuda.sparse" => of_torch(name),
        "torch._utils" => rebuilt(name),
        "torch.storage" => (name == "UntypedStorage").then_some(Global::Storage(Element::Known(Dtype::U8))),
        "torch.serialization" => (name == "_get_layout").then_some(Global::Beside),
        "torch.nn.parameter" => (name == "Parameter").then_some(Global::First),
        "torch._tensor" => (name == "_rebuild_from_type_v2").then_some(Global::RebuildFromType),
        _ => None,
    };
    known.ok_or_else(|| {
        let (module, name) = (shown(module), shown(name));
        format!(
            "names {module}.{name}, which is no part of weights; Allfold executes nothing from a file: save the tensors alone, \
             by `torch.save(model.state_dict(), \"x.pt\")`"
        )
    })
}

fn of_python(module: &str, name: &str) -> Option<Global> {
    match (module, name) {
        ("collections", "OrderedDict") => Some(Global::OrderedDict),
        ("collections", "Counter") => Some(Global::First),
        ("_codecs", "encode") => Some(Global::Beside),
        ("builtins" | "__builtin__", "set" | "bytearray" | "complex") => Some(Global::Beside),
        _ => None,
    }
}

/// Types, and classes of storages and tensors.
fn of_torch(name: &str) -> Option<Global> {
    if let Some(kind) = name.strip_suffix("Storage") {
        let of = TYPES.iter().find(|(_, storage, _)| *storage == kind && !kind.is_empty());
        return of.map(|(.., element)| Global::Storage(*element));
    }
    if let Some(kind) = name.strip_suffix("Tensor") {
        let class = kind.is_empty() || TYPES.iter().any(|(_, storage, _)| *storage == kind);
        return class.then_some(Global::Beside);
    }
    let small = name.strip_prefix("uint").or(name.strip_prefix("int"));
    let small = small.is_some_and(|bits| matches!(bits.as_bytes(), [b'1'..=b'7']));
    match name {
        "Size" => Some(Global::First),
        "device" => Some(Global::Beside),
        _ if small || name.starts_with("per_tensor_") || name.starts_with("per_channel_") => {
            Some(Global::Beside)
        }
        _ => TYPES.iter().find(|(dtype, ..)| *dtype == name).map(|(.., element)| Global::Dtype(*element)),
    }
}

/// The functions that make tensors.
fn rebuilt(name: &str) -> Option<Global> {
    Some(match name {
        "_rebuild_tensor" | "_rebuild_tensor_v2" => Global::RebuildTensor,
        "_rebuild_tensor_v3" => Global::RebuildTypedTensor,
        "_rebuild_parameter" | "_rebuild_parameter_with_state" | "_rebuild_device_tensor_from_cpu_tensor" => {
            Global::First
        }
        "_rebuild_sparse_tensor" => Global::Unread(SPARSE),
        "_rebuild_qtensor" => Global::Unread(QUANTISED),
        "_rebuild_meta_tensor_no_storage" => Global::Unread(META),
        _ => return None,
    })
}
