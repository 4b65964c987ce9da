//! `gex_EP_…`: endpoints, their handlers and segments.

use std::ffi::{c_int, c_void};

use weft_gex::endpoint;
use weft_gex::invoke::{self, Entry};
use weft_gex::own::FLAG_SERIAL;
use weft_gex::wait::Pause;

use crate::handles::{
    ClientHandle, ERR_BAD_ARG, ERR_RESOURCE, EpHandle, OK, SegmentHandle, Tm, export, failed, job, list, put,
};

/// All capabilities.
const CAPABILITIES: u32 = 31;
/// Hints for accelerators, which there are none of.
const FLAG_HINT_ACCEL: u32 = 3;

export! {
    fn gex_EP_Create(ep: *mut EpHandle, _client: ClientHandle, caps: u32, flags: u32) -> c_int {
        let unknown = flags & !(FLAG_HINT_ACCEL | FLAG_SERIAL);
        if caps == 0 || caps & !CAPABILITIES != 0 || unknown != 0 {
            let why = "no capability or an unknown one, or an unknown flag; pass GEX_EP_CAPABILITY_… and GEXW_FLAG_EP_SERIAL";
            return failed(ERR_BAD_ARG, "gex_EP_Create", &why);
        }
        match job().add_endpoint(caps, flags) {
            Ok(made) => {
                // SAFETY: the client's pointer is writable.
                unsafe { put(ep, EpHandle::of(made)) };
                OK
            }
            Err(why) => failed(ERR_RESOURCE, "gex_EP_Create", &why),
        }
    }

    fn gexw_EP_Poll(ep: EpHandle, _flags: u32) -> c_int {
        job().poll_by(ep.get().index());
        OK
    }

    fn gexw_EP_WaitStep(ep: EpHandle, idle: u32) -> u32 {
        let mut pause = Pause::after(idle);
        pause.step_by(job(), ep.get().index());
        pause.idle()
    }

    fn gexw_EP_Destroy(ep: EpHandle, flags: u32) -> c_int {
        let refusal = if ep.is_invalid() || flags != 0 {
            "no endpoint, or flags, of which none is defined; pass an endpoint and 0"
        } else if ep.get().index() == 0 {
            "the first endpoint lives as long as the job; destroy those of gex_EP_Create"
        } else {
            job().destroy(ep.get());
            // SAFETY: the endpoint was leaked when it was made. No table has it, and the client uses it no more.
            drop(unsafe { Box::from_raw(ep.as_ptr().cast_mut()) });
            return OK;
        };
        failed(ERR_BAD_ARG, "gexw_EP_Destroy", &refusal)
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
