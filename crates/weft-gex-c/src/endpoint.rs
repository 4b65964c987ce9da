//! `gex_EP_…`: endpoints, their handlers and segments.

use std::ffi::{c_int, c_void};

use weft_gex::endpoint;
use weft_gex::invoke::{self, Entry};

use crate::handles::{
    ClientHandle, ERR_BAD_ARG, ERR_RESOURCE, EpHandle, OK, SegmentHandle, Tm, export, failed, job, list, put,
};

/// The endpoint takes active messages.
const CAPABILITY_AM: u32 = 1 << 1;

export! {
    fn gex_EP_Create(ep: *mut EpHandle, _client: ClientHandle, caps: u32, flags: u32) -> c_int {
        if caps & CAPABILITY_AM != 0 {
            let why = "further endpoints take no active messages; ask for GEX_EP_CAPABILITY_RMA";
            return failed(ERR_BAD_ARG, "gex_EP_Create", &why);
        }
        match job().add_endpoint(caps, flags) {
            Some(made) => {
                // SAFETY: the client's pointer is writable.
                unsafe { put(ep, EpHandle::of(made)) };
                OK
            }
            None => failed(ERR_RESOURCE, "gex_EP_Create", &"no endpoint is left; make at most GASNET_MAXEPS"),
        }
    }

    fn gex_EP_RegisterHandlers(ep: EpHandle, table: *mut Entry, count: usize) -> c_int {
        // SAFETY: the client passes a table of that length, and does not use it meanwhile.
        let table = unsafe { invoke::entries(table, count) };
        match ep.get().register(table) {
            Ok(()) => OK,
            Err(why) => failed(ERR_BAD_ARG, "gex_EP_RegisterHandlers", &why),
        }
    }

    fn gex_EP_BindSegment(ep: EpHandle, segment: SegmentHandle, flags: u32) -> c_int {
        let refusal = if ep.is_invalid() || segment.is_invalid() {
            "no endpoint or no segment; pass objects that were returned by the library"
        } else if flags != 0 {
            "no flags are defined; pass 0"
        } else if ep.get().bind(segment.get()) {
            return OK;
        } else {
            "the endpoint has a segment; bind to another endpoint"
        };
        failed(ERR_BAD_ARG, "gex_EP_BindSegment", &refusal)
    }

    fn gex_EP_PublishBoundSegment(tm: Tm, eps: *const EpHandle, count: usize, _flags: u32) -> c_int {
        let (job, team) = (job(), tm.team());
        // SAFETY: the client passes a list of that length.
        let eps: Vec<_> = unsafe { list(eps, count) }.iter().map(|ep| ep.get()).collect();
        job.publish_all(team, &eps);
        OK
    }

    fn gex_EP_QueryBoundSegmentNB(tm: Tm, rank: u32, owner: *mut *mut c_void, local: *mut *mut c_void, bytes: *mut usize, _flags: u32) -> usize {
        let job = job();
        let [there, here, len] = job.published(tm.at(job, rank)).unwrap_or_default();
        if len > 0 {
            // SAFETY: the client's pointers are null or writable.
            unsafe { put(owner, std::ptr::with_exposed_provenance_mut(there)) };
            // SAFETY: as above.
            unsafe { put(local, std::ptr::with_exposed_provenance_mut(here)) };
        }
        // SAFETY: as above.
        unsafe { put(bytes, len) };
        0
    }

    fn gex_EP_QueryClient(_ep: EpHandle) -> ClientHandle {
        ClientHandle::of(job().client())
    }

    fn gex_EP_QueryFlags(ep: EpHandle) -> u32 {
        ep.get().flags()
    }

    fn gex_EP_QuerySegment(ep: EpHandle) -> SegmentHandle {
        ep.get().segment().map_or(SegmentHandle::INVALID, SegmentHandle::of)
    }

    fn gex_EP_QueryIndex(ep: EpHandle) -> u16 {
        ep.get().index()
    }

    fn gex_EP_SetCData(ep: EpHandle, value: *mut c_void) {
        endpoint::set_cdata(ep.get().cdata(), value);
    }

    fn gex_EP_QueryCData(ep: EpHandle) -> *mut c_void {
        endpoint::cdata(ep.get().cdata())
    }
}
