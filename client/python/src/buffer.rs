//! The memory of Python objects: anything with the buffer protocol, torch tensors in main memory, anything with DLPack.
//!
//! An [`Export`] keeps its object alive and its memory where it is, for as long as the export lasts: `bytearray` and numpy refuse to be
//! resized meanwhile, and torch refuses once a numpy view was made. It must be dropped by a thread that holds the GIL, which its
//! not being `Send` sees to.
//!
//! The buffer protocol is part of the limited C interface from Python 3.11 on only. Its functions and the layout of `Py_buffer` have been
//! the same since 3.0, so they are declared here, and one wheel serves 3.10, too.

use pyo3::exceptions::{PyBufferError, PyException, PyImportError, PyTypeError, PyValueError};
use pyo3::ffi::{Py_ssize_t, PyObject};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;

/// Python's `Py_buffer`.
#[repr(C)]
struct View {
    start: *mut c_void,
    exporter: *mut PyObject,
    bytes: Py_ssize_t,
    item_bytes: Py_ssize_t,
    read_only: c_int,
    dimensions: c_int,
    format: *mut c_char,
    shape: *mut Py_ssize_t,
    strides: *mut Py_ssize_t,
    suboffsets: *mut Py_ssize_t,
    internal: *mut c_void,
}

const WRITABLE: c_int = 0x1;
const FORMAT: c_int = 0x4;
const C_CONTIGUOUS: c_int = 0x20 | 0x10 | 0x8;

unsafe extern "C" {
    fn PyObject_CheckBuffer(object: *mut PyObject) -> c_int;
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut View, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut View);
}

/// The memory of a Python object, exported.
pub struct Export<'py> {
    /// On the heap, for exporters may let `shape` point into the view itself.
    view: Box<View>,
    held: PhantomData<Bound<'py, PyAny>>,
}

impl Drop for Export<'_> {
    fn drop(&mut self) {
        // SAFETY: filled by PyObject_GetBuffer and released once; the GIL is held, as `'py` says.
        unsafe { PyBuffer_Release(&mut *self.view) }
    }
}

impl<'py> Export<'py> {
    /// The memory of what may hold anything but addresses: others that read those use them, and end in a crash.
    fn with_flags(object: &Bound<'py, PyAny>, flags: c_int) -> PyResult<Export<'py>> {
        let exporter = exporter_of(object)?;
        let export = match Export::exported(&exporter, flags | FORMAT) {
            Err(error) if flags & FORMAT == 0 && is_refusal(&error, object.py()) => {
                // Types that formats have no letter for, such as numpy's dates, which says itself whether they hold addresses.
                let dtype = exporter.getattr_opt(intern!(object.py(), "dtype"))?;
                let has_objects =
                    dtype.map(|dtype| dtype.getattr(intern!(object.py(), "hasobject"))?.is_truthy());
                if has_objects.transpose()?.unwrap_or(false) {
                    return Err(addresses(object));
                }
                Export::exported(&exporter, flags)
            }
            outcome => outcome,
        };
        let export = export.map_err(|error| match is_refusal(&error, object.py()) {
            true => refused(object, flags, error),
            false => error,
        })?;
        if holds_addresses(export.format()) {
            return Err(addresses(object));
        }
        if export.view.start.is_null() && export.len() > 0 {
            return Err(PyBufferError::new_err(format!("there are no {} bytes at address 0", export.len())));
        }
        Ok(export)
    }

    fn exported(exporter: &Bound<'py, PyAny>, flags: c_int) -> PyResult<Export<'py>> {
        let mut view = Box::new(View {
            start: std::ptr::null_mut(),
            exporter: std::ptr::null_mut(),
            bytes: 0,
            item_bytes: 0,
            read_only: 0,
            dimensions: 0,
            format: std::ptr::null_mut(),
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            suboffsets: std::ptr::null_mut(),
            internal: std::ptr::null_mut(),
        });
        // SAFETY: a live object, a view of Python's layout, and the GIL is held.
        match unsafe { PyObject_GetBuffer(exporter.as_ptr(), &mut *view, flags) } {
            0 => Ok(Export { view, held: PhantomData }),
            _ => Err(PyErr::fetch(exporter.py())),
        }
    }

    /// What the elements are, in the letters of Python's `struct` and those that PEP 3118 adds; bytes if nothing is said.
    fn format(&self) -> &[u8] {
        if self.view.format.is_null() {
            return b"B";
        }
        // SAFETY: a format is a string that ends in a zero and lives as long as the view.
        unsafe { CStr::from_ptr(self.view.format) }.to_bytes()
    }

    /// A memory view of the object, which keeps its memory where it is for as long as it lives.
    pub fn view_of(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyMemoryView>> {
        PyMemoryView::from(&exporter_of(object)?)
    }

    /// For reading.
    pub fn of(object: &Bound<'py, PyAny>) -> PyResult<Export<'py>> {
        Export::with_flags(object, C_CONTIGUOUS)
    }

    /// For writing; an object that is read-only or not contiguous is refused.
    pub fn writable(object: &Bound<'py, PyAny>) -> PyResult<Export<'py>> {
        Export::with_flags(object, C_CONTIGUOUS | WRITABLE)
    }

    /// For reading as integers of 64 bits.
    pub fn of_integers(object: &Bound<'py, PyAny>) -> PyResult<Export<'py>> {
        let export = Export::with_flags(object, C_CONTIGUOUS | FORMAT)?;
        let format = String::from_utf8_lossy(export.format());
        let is_integer = matches!(format.trim_start_matches(['@', '=', '<']), "l" | "q" | "n");
        if !is_integer || export.view.item_bytes != 8 {
            return Err(PyTypeError::new_err(format!(
                "elements are of format '{format}' with {} bytes, int64 is needed; convert them with .astype(\"int64\") or .long()",
                export.view.item_bytes
            )));
        }
        if !(export.view.start as usize).is_multiple_of(8) {
            return Err(PyValueError::new_err(
                "the array of integers isn't aligned to 8 bytes; copy it first",
            ));
        }
        Ok(export)
    }

    pub fn len(&self) -> usize {
        self.view.bytes as usize
    }

    pub fn address(&self) -> usize {
        self.view.start as usize
    }

    pub fn shape(&self) -> Vec<usize> {
        if self.view.shape.is_null() {
            return vec![self.len()];
        }
        // SAFETY: asked for with the shape, a view has as many lengths there as dimensions.
        let shape = unsafe { std::slice::from_raw_parts(self.view.shape, self.view.dimensions as usize) };
        shape.iter().map(|length| *length as usize).collect()
    }

    /// The memory, to be read.
    pub fn bytes(&self) -> &[u8] {
        if self.len() == 0 {
            return &[];
        }
        // SAFETY: contiguous and exported for as long as `self` lives. Python code that writes to it meanwhile changes what is read,
        // as with every call of Python that takes a buffer and releases the GIL.
        unsafe { std::slice::from_raw_parts(self.view.start.cast(), self.len()) }
    }

    /// The memory as integers; only of an export made for that.
    pub fn integers(&self) -> &[i64] {
        if self.len() == 0 {
            return &[];
        }
        // SAFETY: as for `bytes`; `of_integers` has looked at the type and the alignment.
        unsafe { std::slice::from_raw_parts(self.view.start.cast(), self.len() / 8) }
    }

    /// The memory, to be written; only of an export made for that.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if self.len() == 0 {
            return &mut [];
        }
        debug_assert_eq!(self.view.read_only, 0);
        // SAFETY: contiguous, writable and exported for as long as `self` lives; that no other export overlaps is `check_apart`'s part.
        unsafe { std::slice::from_raw_parts_mut(self.view.start.cast(), self.len()) }
    }
}

/// The object itself if it has the buffer protocol, else an array of numpy over the same memory.
fn exporter_of<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    // SAFETY: a live object, and the GIL is held.
    if unsafe { PyObject_CheckBuffer(object.as_ptr()) } == 1 {
        return Ok(object.clone());
    }
    if object.hasattr(intern!(py, "untyped_storage"))? {
        return view_of_tensor(object);
    }
    if object.hasattr(intern!(py, "__dlpack__"))? {
        return numpy(py)?.call_method1(intern!(py, "from_dlpack"), (object,));
    }
    Err(PyTypeError::new_err(format!(
        "'{}' has no memory to read or write: give a numpy array, a torch tensor in main memory, a memoryview, or whatever has the buffer protocol or DLPack",
        object.get_type().name()?
    )))
}

/// The memory of a tensor of torch, through numpy: from then on torch refuses to resize it.
fn view_of_tensor<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = tensor.py();
    if !tensor.getattr(intern!(py, "is_cpu"))?.is_truthy()? {
        return Err(PyTypeError::new_err(format!(
            "the tensor is on {}, and Lanner reads and writes main memory: use a tensor in (pinned) main memory and copy",
            tensor.getattr(intern!(py, "device"))?
        )));
    }
    if !tensor.call_method0(intern!(py, "is_contiguous"))?.is_truthy()? {
        return Err(PyBufferError::new_err(
            "the tensor isn't contiguous; give one that is, such as tensor.contiguous()",
        ));
    }
    let detached = tensor.call_method0(intern!(py, "detach"))?;
    detached.call_method0(intern!(py, "numpy")).or_else(|error| {
        if !error.is_instance_of::<PyException>(py) {
            return Err(error); // a signal's, for one
        }
        numpy(py)?;
        if tensor.getattr(intern!(py, "is_quantized"))?.is_truthy()? {
            return Err(PyBufferError::new_err(
                "the tensor's memory holds integers without their scale; give tensor.int_repr() and keep the scale, or tensor.dequantize()",
            ));
        }
        for lazily in ["is_conj", "is_neg"] {
            if tensor.call_method0(lazily)?.is_truthy()? {
                return Err(PyBufferError::new_err(
                    "the tensor's memory doesn't hold its values but what they are the conjugates or negatives of; give tensor.resolve_conj().resolve_neg()",
                ));
            }
        }
        // A type that numpy doesn't have, such as bfloat16.
        let bytes = py.import(intern!(py, "torch"))?.getattr(intern!(py, "uint8"))?;
        detached
            .call_method1(intern!(py, "reshape"), (-1,))?
            .call_method1(intern!(py, "view"), (bytes,))?
            .call_method0(intern!(py, "numpy"))
    })
}

fn numpy(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import(intern!(py, "numpy")).map_err(|error| match error.is_instance_of::<PyImportError>(py) {
        true => PyImportError::new_err(
            "numpy isn't installed, and tensors of torch and DLPack are read and written through it: pip install numpy (or lanner[numpy])",
        ),
        false => error,
    })
}

/// Whether an exporter says with this error that it has no such memory.
fn is_refusal(error: &PyErr, py: Python<'_>) -> bool {
    error.is_instance_of::<PyBufferError>(py)
        || error.is_instance_of::<PyValueError>(py)
        || error.is_instance_of::<PyTypeError>(py)
}

/// Whether elements of this format hold addresses of this process: of Python's objects (`O`), of functions, of anything else.
fn holds_addresses(format: &[u8]) -> bool {
    // Every other section is the name of a field.
    let mut types = format.split(|byte| *byte == b':').step_by(2);
    let is_address = |(at, letter): (usize, &u8), types: &[u8]| match letter {
        // `Zf`, `Zd` and `Zg` are complex numbers.
        b'Z' => !types.get(at + 1).is_some_and(|next| b"fdg".contains(next)),
        letter => b"OPXz&".contains(letter),
    };
    types.any(|types| types.iter().enumerate().any(|each| is_address(each, types)))
}

/// Memory that holds addresses is refused.
fn addresses(object: &Bound<'_, PyAny>) -> PyErr {
    let name = object.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
    PyTypeError::new_err(format!(
        "memory of '{name}' holds addresses of Python's objects or the like, which mean nothing outside this process: give their contents, such as \
         an array of numbers"
    ))
}

/// Why an object gives no such memory, in words that say what would do.
fn refused(object: &Bound<'_, PyAny>, flags: c_int, reason: PyErr) -> PyErr {
    let name = object.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
    let needed = if flags & WRITABLE != 0 { "contiguous and writable" } else { "contiguous" };
    PyBufferError::new_err(format!("memory of '{name}' can't be used ({reason}); it must be {needed}"))
}

/// Checks that no two pieces of memory to be written, as (address, bytes), overlap.
pub fn check_apart(pieces: impl Iterator<Item = (usize, usize)>) -> PyResult<()> {
    let mut pieces: Vec<(usize, usize, usize)> = pieces
        .enumerate()
        .filter(|(_, (_, bytes))| *bytes > 0)
        .map(|(index, (address, bytes))| (address, bytes, index))
        .collect();
    pieces.sort_unstable();
    for pair in pieces.windows(2) {
        let ((address, bytes, index), (next, _, other)) = (pair[0], pair[1]);
        if address.saturating_add(bytes) > next {
            return Err(PyValueError::new_err(format!(
                "buffers {} and {} overlap; give each value its own bytes",
                index.min(other),
                index.max(other)
            )));
        }
    }
    Ok(())
}
