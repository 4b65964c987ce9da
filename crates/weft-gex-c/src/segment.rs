//! `gex_Segment_…`: memory that other ranks access.

use std::ffi::{c_int, c_void};

use weft_gex::endpoint::{self, Segment};
use weft_gex::job::Job;

use crate::handles::{ClientHandle, ERR_BAD_ARG, ERR_RESOURCE, OK, SegmentHandle, Tm, export, failed, job, put};

type Hook = unsafe extern "C" fn(*mut c_void, usize);

/// Called on a segment before it is published, if the client has set it.
// SAFETY: the name is one of the API.
#[unsafe(no_mangle)]
static mut gasnet_client_attach_hook: Option<Hook> = None;

fn hook(segment: &Segment) {
    // SAFETY: the client sets the variable before the call that attaches, or never.
    let hook = unsafe { gasnet_client_attach_hook };
    if let Some(hook) = hook {
        // SAFETY: the function is the client's, for a segment's address and length.
        unsafe { hook(pointer(segment.addr()), segment.bytes()) };
    }
}

fn pointer(addr: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(addr)
}

/// Makes the primordial segment. Collective.
pub(crate) fn attach(job: &'static Job, bytes: usize) -> Result<&'static Segment, c_int> {
    const CALL: &str = "gex_Segment_Attach";
    let (page, most) = (4096, job.max_segment());
    if bytes == 0 || !bytes.is_multiple_of(page) || bytes as u64 > most {
        let why = format!("a segment of {bytes} bytes; pass a multiple of {page}, at most {most} (GASNET_MAX_SEGSIZE)");
        return Err(failed(ERR_BAD_ARG, CALL, &why));
    }
    if job.endpoint().segment().is_some() {
        return Err(failed(ERR_RESOURCE, CALL, &"the segment exists; attach once"));
    }
    let segment = job.make_segment(bytes, 0).map_err(|error| failed(ERR_RESOURCE, CALL, &error))?;
    hook(segment);
    let bound = job.endpoint().bind(segment);
    debug_assert!(bound);
    job.publish_all(job.world(), &[job.endpoint()]);
    Ok(segment)
}

export! {
    fn gex_Segment_Attach(segment: *mut SegmentHandle, _tm: Tm, bytes: usize) -> c_int {
        match attach(job(), bytes) {
            Ok(made) => {
                // SAFETY: the client's pointer is null or writable.
                unsafe { put(segment, SegmentHandle::of(made)) };
                OK
            }
            Err(code) => code,
        }
    }

    fn gex_Segment_Create(segment: *mut SegmentHandle, _client: ClientHandle, addr: *mut c_void, bytes: usize, _kind: *const c_void, flags: u32) -> c_int {
        const CALL: &str = "gex_Segment_Create";
        if bytes == 0 {
            return failed(ERR_BAD_ARG, CALL, &"a segment of 0 bytes; pass a length");
        }
        let made = if addr.is_null() {
            match job().make_segment(bytes, flags) {
                Ok(made) => made,
                Err(error) => return failed(ERR_RESOURCE, CALL, &error),
            }
        } else {
            Box::leak(Box::new(Segment::new(addr.expose_provenance(), bytes, None, flags)))
        };
        // SAFETY: the client's pointer is writable.
        unsafe { put(segment, SegmentHandle::of(made)) };
        OK
    }

    fn gex_Segment_Destroy(segment: SegmentHandle, _flags: u32) {
        job().destroy_segment(segment.get());
    }

    fn gex_Segment_QueryClient(_segment: SegmentHandle) -> ClientHandle {
        ClientHandle::of(job().client())
    }

    fn gex_Segment_QueryFlags(segment: SegmentHandle) -> u32 {
        segment.get().flags()
    }

    fn gex_Segment_QueryAddr(segment: SegmentHandle) -> *mut c_void {
        pointer(segment.get().addr())
    }

    fn gex_Segment_QuerySize(segment: SegmentHandle) -> usize {
        segment.get().bytes()
    }

    fn gex_Segment_SetCData(segment: SegmentHandle, value: *mut c_void) {
        endpoint::set_cdata(segment.get().cdata(), value);
    }

    fn gex_Segment_QueryCData(segment: SegmentHandle) -> *mut c_void {
        endpoint::cdata(segment.get().cdata())
    }

    fn gex_Segment_QueryBound(tm: Tm, rank: u32, owner: *mut *mut c_void, local: *mut *mut c_void, bytes: *mut usize) -> c_int {
        let job = job();
        let Some([there, here, len]) = job.published(tm.at(job, rank)) else { return 1 };
        // SAFETY: the client's pointers are null or writable.
        unsafe { put(owner, pointer(there)) };
        // SAFETY: as above.
        unsafe { put(local, pointer(here)) };
        // SAFETY: as above.
        unsafe { put(bytes, len) };
        OK
    }

    fn gasnet_getMaxLocalSegmentSize() -> usize {
        usize::try_from(job().max_segment()).unwrap_or(usize::MAX)
    }

    fn gasnet_getMaxGlobalSegmentSize() -> usize {
        usize::try_from(job().max_segment()).unwrap_or(usize::MAX)
    }
}
