//! Groups (`fi_join_collective`, fi_collective(3)): the handle that a client gets for a joined set.
//!
//! Place in the data flow: `fi_join_collective` → [`join`] → [`Ep::join_group`] → `Engine::join_group`. The group's
//! address (`fi_mc_addr`) names it in operations. It is an index of the endpoint's groups, and is checked there.
//!
//! A group holds its endpoint and its set: both answer -FI_EBUSY to `fi_close` until the group is closed. A group with
//! operations under way answers so, too.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use weft_engine::GroupId;
use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::abi::noop;
use crate::abi::object::{self, Head, Hold, Object, Uses};
use crate::collective::av_set::AvSet;
use crate::endpoint::Ep;

/// Bit of every group's address, so that it is not mistaken for an index of an address vector.
const GROUP_ADDRESS: u64 = 1 << 62;

/// A group that has been joined, or is being joined.
#[repr(C)]
pub(crate) struct Group<D: Device> {
    head: Head<sys::fid_mc>,
    /// The engine's id of the group.
    id: AtomicU32,
    uses: Uses,
    _set: Hold<AvSet>,
    ep: Hold<Ep<D>>,
}

// SAFETY: `repr(C)`, the first field is a `Head` of the fid, whose class is set in `join`.
unsafe impl<D: Device> Object for Group<D> {
    type Fid = sys::fid_mc;
    const CLASSES: &'static [u32] = &[sys::FI_CLASS_MC];

    fn uses(&self) -> &Uses {
        &self.uses
    }

    fn closing(&self) -> Result<(), Errno> {
        self.ep.leave_group(GroupId::from_number(self.id.load(Ordering::Relaxed)))
    }
}

/// The group that an address names.
pub(crate) fn named(coll_addr: sys::fi_addr_t) -> Result<GroupId, Errno> {
    let number = coll_addr ^ GROUP_ADDRESS;
    u32::try_from(number).map(GroupId::from_number).map_err(|_| Errno::INVAL)
}

/// `fi_join_collective`: `fi_join` with FI_COLLECTIVE.
pub(crate) unsafe extern "C" fn join<D: Device>(
    ep: *mut sys::fid_ep,
    addr: *const c_void,
    flags: u64,
    mc: *mut *mut sys::fid_mc,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_join", || {
        if flags & sys::FI_COLLECTIVE == 0 {
            // Multicast.
            return Err(Errno::NOSYS);
        }
        if flags != sys::FI_COLLECTIVE {
            return Err(Errno::BADFLAGS);
        }
        let place = object::place(mc)?;
        // SAFETY: an endpoint of the client.
        let ep = unsafe { Hold::<Ep<D>>::of(ep) }?;
        // SAFETY: null, or the client's set and address, as the flag says.
        let addr = unsafe { addr.cast::<sys::fi_collective_addr>().as_ref() }.ok_or(Errno::INVAL)?;
        // SAFETY: the client's set, which is not written through the pointer.
        let set = unsafe { Hold::<AvSet>::of(addr.set.cast_mut()) }?;
        // The set decides, whatever parent the client names (some name none, some the set itself).
        let parent = addr.coll_addr;
        if parent != sys::FI_ADDR_NOTAVAIL && parent != set.address() && !ep.has_group(named(parent)?) {
            return Err(Errno::INVAL);
        }
        let (members, key): (_, Box<[u8]>) = (set.members(), set.key().into());
        let vector = set.av().clone();
        let fid =
            object::new_fid(sys::FI_CLASS_MC, context, const { &sys::fi_ops { close: Some(close::<D>), ..noop::FID } });
        let head = Head::new(sys::fid_mc { fid, fi_addr: sys::FI_ADDR_NOTAVAIL });
        let group = Arc::new(Group { head, id: AtomicU32::new(u32::MAX), uses: Uses::new(), _set: set, ep });
        let fid = object::raw(&group);
        let id = group.ep.join_group(&vector, &members, &key, [context.addr(), fid.addr()])?;
        group.id.store(id.to_number(), Ordering::Relaxed);
        // SAFETY: the group has not been handed out, so the client does not access it yet.
        unsafe { (*group.head.get()).fi_addr = GROUP_ADDRESS | u64::from(id.to_number()) };
        // SAFETY: the client's place for the new pointer.
        Ok(unsafe { object::give(group, place) })
    })
}

unsafe extern "C" fn close<D: Device>(fid: *mut sys::fid) -> c_int {
    object::guard("fi_close(mc)", || {
        // SAFETY: the client's group.
        unsafe { object::close::<Group<D>>(fid) }.map(|()| 0)
    })
}
