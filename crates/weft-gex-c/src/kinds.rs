//! `gex_MK_…`: kinds of memory. There is that of the host alone, which needs no creation.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicPtr;

use weft_gex::endpoint;

use crate::handles::{ClientHandle, ERR_BAD_ARG, OK, export, failed, job, put};

/// The kind of the host's memory.
const HOST: usize = 1;
/// Its class.
const CLASS_HOST: c_int = 0;

static CDATA: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The head of `gex_MK_Create_args_t`.
#[repr(C)]
struct Arguments {
    flags: u64,
    class: c_int,
}

export! {
    fn gex_MK_Create(kind: *mut usize, _client: ClientHandle, arguments: *const Arguments, _flags: u32) -> c_int {
        // SAFETY: the client passes the address of a structure.
        let arguments = unsafe { &*arguments };
        if arguments.class != CLASS_HOST || arguments.flags != 0 {
            return failed(ERR_BAD_ARG, "gex_MK_Create", &"a kind of memory that does not exist here; use GEX_MK_HOST");
        }
        // SAFETY: the client's pointer is writable.
        unsafe { put(kind, HOST) };
        OK
    }

    fn gex_MK_Destroy(_kind: usize, _flags: u32) {}

    fn gex_MK_QueryClient(_kind: usize) -> ClientHandle {
        ClientHandle::of(job().client())
    }

    fn gex_MK_QueryFlags(_kind: usize) -> u32 {
        0
    }

    fn gex_MK_QueryClass(_kind: usize) -> c_int {
        CLASS_HOST
    }

    fn gex_MK_SetCData(_kind: usize, value: *mut c_void) {
        endpoint::set_cdata(&CDATA, value);
    }

    fn gex_MK_QueryCData(_kind: usize) -> *mut c_void {
        endpoint::cdata(&CDATA)
    }
}
