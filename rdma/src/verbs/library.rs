//! The control functions of libibverbs, loaded once for the process when they are first asked for.

use super::VerbsError;
use rdma_sys::{
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_mr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_srq, ibv_srq_init_attr,
};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// The name that every version since 2010 has.
const NAME: &str = "libibverbs.so.1";

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, and the library that they lie in.
        pub(super) struct Library {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Keeps the functions in place.
            _library: libloading::Library,
        }

        impl Library {
            fn load() -> Result<Library, libloading::Error> {
                // SAFETY: loading runs the initialisers of libibverbs and of its providers, which only register themselves.
                let library = unsafe { libloading::Library::new(NAME) }?;
                $(
                    // SAFETY: the function has this signature in <infiniband/verbs.h>, whose ABI is versioned and stable.
                    let $name = *unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                            concat!("ibv_", stringify!($name)).as_bytes(),
                        )
                    }?;
                )*
                Ok(Library { $($name,)* _library: library })
            }
        }
    };
}

functions! {
    get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
    free_device_list: fn(*mut *mut ibv_device);
    get_device_name: fn(*mut ibv_device) -> *const c_char;
    open_device: fn(*mut ibv_device) -> *mut ibv_context;
    close_device: fn(*mut ibv_context) -> c_int;
    query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ack_async_event: fn(*mut ibv_async_event);
    alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
    dealloc_pd: fn(*mut ibv_pd) -> c_int;
    reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    dereg_mr: fn(*mut ibv_mr) -> c_int;
    create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
    destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
    create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    destroy_cq: fn(*mut ibv_cq) -> c_int;
    get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ack_cq_events: fn(*mut ibv_cq, c_uint);
    create_srq: fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    destroy_srq: fn(*mut ibv_srq) -> c_int;
    create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    destroy_qp: fn(*mut ibv_qp) -> c_int;
}

/// The library; loads it when called first. Blocks while it does.
pub(super) fn library() -> Result<&'static Library, VerbsError> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let loaded = LIBRARY.get_or_init(|| Library::load().map_err(|error| told(&error)));
    loaded.as_ref().map_err(|reason| VerbsError::NoLibrary { reason: reason.clone() })
}

/// What the loader says, which libloading keeps apart from that it failed.
fn told(error: &(dyn std::error::Error + 'static)) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaders_reason_is_told() {
        // SAFETY: there is no such library, so nothing of it runs.
        let error = unsafe { libloading::Library::new("libof-nobody.so.7") }.expect_err("it isn't there");
        let text = told(&error);
        assert!(text.contains("libof-nobody.so.7: cannot open shared object file"), "{text}");
    }
}
