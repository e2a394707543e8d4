//! Loads `libibverbs.so.1` at run time and resolves its functions.
#![allow(non_snake_case)]

use crate::abi::*;
use crate::error::VerbsError;
use std::ffi::{c_char, c_int, c_void, CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::ptr::NonNull;

/// A library that stays loaded until the process ends, since the providers that it loads register handlers.
struct Handle(NonNull<c_void>);

impl Handle {
    fn open(path: &OsStr) -> Result<Self, String> {
        let path = CString::new(path.as_bytes()).map_err(|_| "its name has a NUL".to_owned())?;
        // SAFETY: the path is a C string. Loading runs the library's initialisers, which is what the user asks
        // for by installing it or naming it in the environment.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Self).ok_or_else(|| {
            // SAFETY: dlerror gives null or a C string that is valid until this thread's next dl call.
            unsafe {
                match libc::dlerror() {
                    text if text.is_null() => "no reason given".to_owned(),
                    text => CStr::from_ptr(text).to_string_lossy().into_owned(),
                }
            }
        })
    }

    fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle is of a library that `open` loaded and that is never closed.
        let address = unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }
}

macro_rules! table {
    (
        required { $($name:ident($($argument:ty),*) -> $result:ty;)* }
        newer { $($newer:ident($($newer_argument:ty),*) -> $newer_result:ty;)* }
    ) => {
        /// Functions of the loaded library.
        pub(crate) struct Table {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            $(pub(crate) $newer: Option<unsafe extern "C" fn($($newer_argument),*) -> $newer_result>,)*
        }

        impl Table {
            fn resolve(library: &Handle) -> Result<Self, &'static str> {
                let symbol = |name: &'static str| {
                    library.symbol(&CString::new(name).expect("our names have no NUL"))
                };
                Ok(Self {
                    $($name: {
                        let address = symbol(stringify!($name)).ok_or(stringify!($name))?;
                        // SAFETY: the library's function of this name, with the signature that verbs.h declares.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>(address)
                        }
                    },)*
                    $($newer: symbol(stringify!($newer)).map(|address| {
                        // SAFETY: the library's function of this name, with the signature that verbs.h declares.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($newer_argument),*) -> $newer_result>(address)
                        }
                    }),)*
                })
            }
        }
    };
}

table! {
    required {
        ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
        ibv_free_device_list(*mut *mut ibv_device) -> ();
        ibv_get_device_name(*mut ibv_device) -> *const c_char;
        ibv_open_device(*mut ibv_device) -> *mut ibv_context;
        ibv_close_device(*mut ibv_context) -> c_int;
        ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        ibv_query_gid(*mut ibv_context, u8, c_int, *mut [u8; 16]) -> c_int;
        ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ibv_ack_async_event(*mut ibv_async_event) -> ();
        ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd(*mut ibv_pd) -> c_int;
        ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        ibv_dereg_mr(*mut ibv_mr) -> c_int;
        ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
        ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        ibv_destroy_cq(*mut ibv_cq) -> c_int;
        ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events(*mut ibv_cq, u32) -> ();
        ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        ibv_destroy_qp(*mut ibv_qp) -> c_int;
    }
    newer {
        // rdma-core 34.
        ibv_reg_dmabuf_mr(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
    }
}

/// Loads the library at `path`; the system's loader searches for a name without a slash.
pub(crate) fn load(path: &OsStr) -> Result<Table, VerbsError> {
    let library = path.to_string_lossy().into_owned();
    let handle = Handle::open(path).map_err(|reason| VerbsError::LibraryMissing {
        library: library.clone(),
        reason,
    })?;
    Table::resolve(&handle).map_err(|symbol| VerbsError::TooOld { library, symbol })
}
