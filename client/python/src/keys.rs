//! Keys: `str`, as UTF-8, or `bytes`. Both can't change, so a call reads them without the GIL.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyString};

/// A key.
pub enum Key {
    Text(PyBackedStr),
    Bytes(PyBackedBytes),
    /// Of no bytes: the prefix of all keys, and no key.
    None,
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        match self {
            Key::Text(text) => text.as_bytes(),
            Key::Bytes(bytes) => bytes,
            Key::None => &[],
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Key {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Key> {
        if object.is_instance_of::<PyString>() {
            return Ok(Key::Text(object.extract()?));
        }
        if object.is_instance_of::<PyBytes>() {
            return Ok(Key::Bytes(object.extract().map_err(PyErr::from)?));
        }
        Err(PyTypeError::new_err(format!("a key is str or bytes, not '{}'", object.get_type().name()?)))
    }
}

/// A list of keys. A single one, which is a sequence of characters, too, isn't meant.
pub fn keys_of(object: &Bound<'_, PyAny>) -> PyResult<Vec<Key>> {
    if object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>() {
        return Err(PyTypeError::new_err("keys are a list of str or bytes, and this is one key: give [key]"));
    }
    object.extract()
}

/// A list of buffers, one for each key.
pub fn buffers_of<'py>(object: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    if object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>() {
        return Err(PyTypeError::new_err(
            "buffers are a list, one for each key, and this is one: give [buffer]",
        ));
    }
    object.extract()
}

impl Key {
    /// The prefix of all keys.
    pub fn empty() -> Key {
        Key::None
    }
}
