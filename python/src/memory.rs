//! Memory that Python objects lend for the time of an operation, without a copy.
//!
//! An object lends its memory by an address that its own library gives (`Span::at`), by the buffer protocol (NumPy arrays,
//! `array`, `bytearray`, `memoryview`), or by DLPack (PyTorch, JAX, CuPy and others; memory of the CPU only).

#![allow(unsafe_code, reason = "the memory belongs to Python objects, which are kept alive meanwhile")]

use allfold_collectives::{DType, Element};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyCapsule, PyMemoryView};
use std::ffi::{CStr, c_void};

/// A piece of memory: contiguous elements of one type. It does not keep the memory alive.
#[derive(Clone, Copy)]
pub struct Span {
    address: usize,
    pub count: usize,
    pub dtype: DType,
}

impl Span {
    /// The elements at this address. Refuses an address that is 0 or not aligned.
    pub fn at(address: usize, count: usize, dtype: DType) -> PyResult<Span> {
        if count > 0 && (address == 0 || !address.is_multiple_of(dtype.size())) {
            return Err(PyValueError::new_err(format!(
                "{count} elements of {dtype} cannot be at address {address:#x}: it is 0, or not aligned"
            )));
        }
        Ok(Span { address, count, dtype })
    }

    /// No elements.
    pub fn none(dtype: DType) -> Span {
        Span { address: 0, count: 0, dtype }
    }

    pub fn address(&self) -> usize {
        self.address
    }

    /// Whether two pieces of memory share bytes.
    pub fn overlaps(&self, other: &Span) -> bool {
        self.address < other.end() && other.address < self.end()
    }

    /// Whether this begins where block `block` of `whole` begins, if all blocks are as long as this.
    pub fn is_block_of(&self, whole: &Span, block: usize) -> bool {
        self.address == whole.address + block * self.bytes()
    }

    fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    fn end(&self) -> usize {
        self.address + self.bytes()
    }

    /// The elements to be read.
    ///
    /// # Safety
    /// The elements stay valid, and nobody writes them, for as long as the slice is used.
    pub unsafe fn read<'a, T: Element>(self) -> &'a [T] {
        if self.count == 0 {
            return &[];
        }
        // SAFETY: the caller's promise; `at` has checked the alignment.
        unsafe { std::slice::from_raw_parts(self.address as *const T, self.count) }
    }

    /// The elements to be written.
    ///
    /// # Safety
    /// The elements stay valid, and nobody else reads or writes them, for as long as the slice is used.
    pub unsafe fn write<'a, T: Element>(self) -> &'a mut [T] {
        if self.count == 0 {
            return &mut [];
        }
        // SAFETY: the caller's promise; `at` has checked the alignment.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut T, self.count) }
    }
}

/// The type of this name: `f32`, `bf16`, ...
fn dtype(name: &str) -> PyResult<DType> {
    DType::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| {
        let names = DType::ALL.map(DType::name).join(", ");
        PyTypeError::new_err(format!("Allfold has no elements of type {name}; it has {names}"))
    })
}

/// Elements in memory and the Python object that owns them. The memory stays valid until this value is dropped, so an operation holds
/// the places that it reads and writes until it is done. Python passes address, count, type and owner.
pub struct Place {
    pub span: Span,
    pub owner: Option<Py<PyAny>>,
}

impl Place {
    /// No elements.
    pub fn none(dtype: DType) -> Place {
        Place { span: Span::none(dtype), owner: None }
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Place {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Place> {
        let (address, count, of, owner): (usize, usize, &str, Option<Py<PyAny>>) = object.extract()?;
        Ok(Place { span: Span::at(address, count, dtype(of)?)?, owner })
    }
}

/// Borrows the memory of an object. `writes`: whether the memory is to be written to. Raises a `TypeError` for an object without memory
/// or with elements that Allfold does not have, a `BufferError` for memory that is read-only or not contiguous.
pub fn lend(object: &Bound<'_, PyAny>, writes: bool) -> PyResult<Place> {
    let what = || object.get_type().name().map_or_else(|_| "object".to_string(), |name| name.to_string());
    // The view keeps the object's memory where it is, and adds the strides that some objects leave out, `ctypes` arrays for example.
    match PyMemoryView::from(object) {
        Ok(view) => by_buffer(&view, writes, &what()),
        Err(_) if object.hasattr("__dlpack__")? => by_dlpack(object, writes, &what()),
        Err(_) => Err(PyTypeError::new_err(format!(
            "a {} lends no memory: give an array with the buffer protocol or DLPack, such as NumPy's or PyTorch's",
            what()
        ))),
    }
}

fn read_only(what: &str) -> PyErr {
    PyBufferError::new_err(format!("this {what} is read-only, and the result is written to it"))
}

fn by_buffer(view: &Bound<'_, PyMemoryView>, writes: bool, what: &str) -> PyResult<Place> {
    let buffer = PyUntypedBuffer::get(view)?;
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err(format!(
            "the memory of this {what} is not contiguous; give numpy.ascontiguousarray of it"
        )));
    }
    if writes && buffer.readonly() {
        return Err(read_only(what));
    }
    let dtype = of_format(buffer.format(), buffer.item_size())?;
    let span = Span::at(buffer.buf_ptr() as usize, buffer.item_count(), dtype)?;
    Ok(Place { span, owner: Some(view.clone().into_any().unbind()) })
}

/// The type for a format code of Python's `struct` module and a size in bytes.
fn of_format(format: &CStr, size: usize) -> PyResult<DType> {
    let text = format.to_string_lossy();
    let code = text.trim_start_matches(['@', '=', '<']);
    let found = match (code, size) {
        ("d", 8) => DType::F64,
        ("f", 4) => DType::F32,
        ("e", 2) => DType::F16,
        ("b", 1) => DType::I8,
        ("h", 2) => DType::I16,
        ("i" | "l", 4) => DType::I32,
        ("l" | "q" | "n", 8) => DType::I64,
        ("B" | "c" | "?", 1) => DType::U8,
        _ => {
            let names = DType::ALL.map(DType::name).join(", ");
            return Err(PyTypeError::new_err(format!(
                "Allfold has no elements of format `{text}` and {size} bytes; it has {names}"
            )));
        }
    };
    Ok(found)
}

/// `DLDataType` of DLPack.
#[repr(C)]
struct DlType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor` of DLPack; the first field of `DLManagedTensor`, which a capsule named `dltensor` points to.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    dtype: DlType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// `DLManagedTensorVersioned` of DLPack, which a capsule named `dltensor_versioned` points to.
#[repr(C)]
struct DlVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: *mut c_void,
    flags: u64,
    tensor: DlTensor,
}

const CPU: i32 = 1;
const READ_ONLY: u64 = 1;
const VERSIONED: &CStr = c"dltensor_versioned";

/// A DLPack capsule, of the versioned kind if the object can make one: only this kind has a flag for read-only memory.
fn capsule<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyCapsule>> {
    let py = object.py();
    let newest = [("max_version", (1, 0))].into_py_dict(py)?;
    let given = match object.call_method("__dlpack__", (), Some(&newest)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => object.call_method0("__dlpack__"),
        given => given,
    };
    Ok(given?.cast_into::<PyCapsule>()?)
}

fn by_dlpack(object: &Bound<'_, PyAny>, writes: bool, what: &str) -> PyResult<Place> {
    let capsule = capsule(object)?;
    let tensor = if capsule.is_valid_checked(Some(VERSIONED)) {
        let pointer = capsule.pointer_checked(Some(VERSIONED))?.cast::<DlVersioned>();
        // SAFETY: a capsule of this name points to a tensor of this layout, which it owns for as long as it lives.
        let versioned = unsafe { pointer.as_ref() };
        if versioned.major != 1 {
            return Err(PyTypeError::new_err(format!(
                "this {what} uses version {}.{} of DLPack, and Allfold reads version 1",
                versioned.major, versioned.minor
            )));
        }
        if writes && versioned.flags & READ_ONLY != 0 {
            return Err(read_only(what));
        }
        &versioned.tensor
    } else {
        let pointer = capsule.pointer_checked(Some(c"dltensor"))?.cast::<DlTensor>();
        // SAFETY: as above; `DLManagedTensor` begins with its tensor.
        unsafe { pointer.as_ref() }
    };
    if tensor.device_type != CPU {
        return Err(PyTypeError::new_err(format!(
            "this {what} is on device type {} of DLPack, and a communicator takes memory of the CPU only",
            tensor.device_type
        )));
    }
    let ndim = usize::try_from(tensor.ndim).unwrap_or(0);
    // SAFETY: DLPack gives `ndim` extents, and as many strides unless there are none.
    let list =
        |at: *const i64| (!at.is_null() && ndim > 0).then(|| unsafe { std::slice::from_raw_parts(at, ndim) });
    let shape = list(tensor.shape).unwrap_or_default();
    let count = shape.iter().product::<i64>();
    let mut dense = 1;
    let contiguous = list(tensor.strides).is_none_or(|strides| {
        shape.iter().zip(strides).rev().all(|(extent, stride)| {
            let fits = *extent == 1 || *stride == dense;
            dense *= extent;
            fits
        })
    });
    if !contiguous && count > 0 {
        return Err(PyBufferError::new_err(format!(
            "the memory of this {what} is not contiguous; copy it first"
        )));
    }
    let dtype = match (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) {
        (2, 64, 1) => DType::F64,
        (2, 32, 1) => DType::F32,
        (2, 16, 1) => DType::F16,
        (4, 16, 1) => DType::Bf16,
        (0, 8, 1) => DType::I8,
        (0, 16, 1) => DType::I16,
        (0, 32, 1) => DType::I32,
        (0, 64, 1) => DType::I64,
        (1 | 6, 8, 1) => DType::U8,
        (code, bits, lanes) => {
            return Err(PyTypeError::new_err(format!(
                "Allfold has no elements of DLPack's type code {code} with {bits} bits and {lanes} lanes"
            )));
        }
    };
    let address = tensor.data as usize + tensor.byte_offset as usize;
    let span = Span::at(address, usize::try_from(count).unwrap_or(0), dtype)?;
    Ok(Place { span, owner: Some(capsule.into_any().unbind()) })
}
