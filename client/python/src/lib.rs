//! The Python module `lanner._lanner`: Lanner's client for Python. What users import is the package around it (`client/python/lanner`).
//!
//! | file | what |
//! |---|---|
//! | `buffer.rs` | the memory of Python objects, read from and written to without a copy |
//! | `keys.rs`, `ids.rs`, `ranges.rs` | arguments |
//! | `client.rs`, `addresses.rs`, `snapshot.rs`, `engram.rs`, `tensor.rs` | the classes |
//! | `fork.rs` | what happens to all of them in the child of a fork |
//! | `errors.rs` | exceptions |
//!
//! What always holds: a call that may wait has released the GIL; the memory that it reads or writes is held by its exporter until it
//! has returned, so it can be neither freed nor resized meanwhile.

mod addresses;
mod buffer;
mod client;
mod engram;
mod errors;
mod fork;
mod ids;
mod interrupt;
mod keys;
mod outcomes;
mod ranges;
mod registered;
mod snapshot;
mod tensor;

use pyo3::prelude::*;

#[pymodule]
fn _lanner(module: &Bound<'_, PyModule>) -> PyResult<()> {
    fork::watch()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<client::Client>()?;
    module.add_class::<snapshot::Snapshot>()?;
    module.add_class::<registered::Registered>()?;
    module.add_class::<engram::EngramStore>()?;
    module.add_class::<engram::EngramSet>()?;
    module.add_class::<tensor::ShardedTensor>()?;
    module.add_class::<tensor::TensorSlice>()?;
    module.add_function(wrap_pyfunction!(client::stored_keys, module)?)
}
