//! Address vector sets (`fi_av_set`, fi_collective(3)): an ordered selection of addresses.
//!
//! Place in the data flow: clients build a set from addresses of one vector and join a group with it. An address's
//! position in the set is its rank in the group.
//!
//! Sets are local to the process; no operation on them communicates. All operations keep the order: union appends
//! new addresses, and intersection and difference close the gaps.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use weft_engine::api::Addr;
use weft_fi_sys as sys;

use crate::abi::errno::Errno;
use crate::abi::noop;
use crate::abi::object::{self, Head, Hold, Object, Uses};
use crate::av::Av;

/// Flags that name the operations for which the set is meant. They are hints: every set serves all operations.
const OPERATIONS: u64 = sys::FI_BARRIER_SET
    | sys::FI_BROADCAST_SET
    | sys::FI_ALLTOALL_SET
    | sys::FI_ALLREDUCE_SET
    | sys::FI_ALLGATHER_SET
    | sys::FI_REDUCE_SCATTER_SET
    | sys::FI_REDUCE_SET
    | sys::FI_SCATTER_SET
    | sys::FI_GATHER_SET;

/// The longest key of a group, in bytes.
const MAX_KEY_BYTES: usize = 64;

/// The next set's address. Addresses of sets have the highest bit set, so that none is an index of a vector.
static NEXT_ADDRESS: AtomicU64 = AtomicU64::new(1 << 63);

/// A set of addresses.
#[repr(C)]
pub(crate) struct AvSet {
    head: Head<sys::fid_av_set>,
    /// In rank order, without duplicates.
    members: Mutex<Vec<Addr>>,
    /// The address for `fi_join_collective`.
    address: u64,
    /// The key by which all members know the group (`comm_key`); empty without one.
    key: Box<[u8]>,
    uses: Uses,
    av: Hold<Av>,
}

// SAFETY: `repr(C)`, the first field is a `Head` of the fid, whose class is set in `create`.
unsafe impl Object for AvSet {
    type Fid = sys::fid_av_set;
    const CLASSES: &'static [u32] = &[sys::FI_CLASS_AV_SET];

    fn uses(&self) -> &Uses {
        &self.uses
    }
}

impl AvSet {
    /// The members in rank order.
    pub(crate) fn members(&self) -> Vec<Addr> {
        self.members.lock().clone()
    }

    /// The address vector.
    pub(crate) const fn av(&self) -> &Hold<Av> {
        &self.av
    }

    /// The address for `fi_join_collective`.
    pub(crate) const fn address(&self) -> u64 {
        self.address
    }

    /// The key by which all members know the group; empty without one.
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Replaces the members by those that `change` makes of them and of the members of `other`.
    fn combine(&self, other: &Self, change: impl FnOnce(&mut Vec<Addr>, Vec<Addr>)) -> Result<c_int, Errno> {
        if !self.av.same(&other.av) {
            return Err(Errno::INVAL);
        }
        // Both may be one set, so the locks are taken one after the other.
        let theirs = other.members();
        change(&mut self.members.lock(), theirs);
        Ok(0)
    }
}

/// `fi_av_set`.
pub(crate) unsafe extern "C" fn open(
    av: *mut sys::fid_av,
    attr: *mut sys::fi_av_set_attr,
    set: *mut *mut sys::fid_av_set,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_av_set", || {
        let place = object::place(set)?;
        // SAFETY: the client's vector.
        let av = unsafe { Hold::<Av>::of(av) }?;
        // SAFETY: null, or the client's attributes.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
        let set = create(av, attr, context)?;
        // SAFETY: the client's place for the new pointer.
        Ok(unsafe { object::give(set, place) })
    })
}

fn create(av: Hold<Av>, attr: &sys::fi_av_set_attr, context: *mut c_void) -> Result<Arc<AvSet>, Errno> {
    if attr.flags & !(OPERATIONS | sys::FI_UNIVERSE) != 0 {
        return Err(Errno::BADFLAGS);
    }
    let members = if attr.flags & sys::FI_UNIVERSE != 0 { av.addresses() } else { range(&av, attr)? };
    let key: Box<[u8]> = match (attr.comm_key.is_null(), attr.comm_key_size) {
        (_, 0) => Box::default(),
        // SAFETY: the client's key has the length that the client names.
        (false, len @ ..=MAX_KEY_BYTES) => unsafe { std::slice::from_raw_parts(attr.comm_key, len) }.into(),
        _ => return Err(Errno::INVAL),
    };
    let fid = object::new_fid(sys::FI_CLASS_AV_SET, context, &FID_OPS);
    Ok(Arc::new(AvSet {
        head: Head::new(sys::fid_av_set { fid, ops: object::table(&SET_OPS) }),
        members: Mutex::new(members),
        address: NEXT_ADDRESS.fetch_add(1, Ordering::Relaxed),
        key,
        uses: Uses::new(),
        av,
    }))
}

/// The addresses from `start_addr` to `end_addr`, both included, in steps of `stride`. Without a start the set is
/// empty.
fn range(av: &Av, attr: &sys::fi_av_set_attr) -> Result<Vec<Addr>, Errno> {
    if attr.start_addr == sys::FI_ADDR_NOTAVAIL {
        return if attr.end_addr == sys::FI_ADDR_NOTAVAIL { Ok(Vec::new()) } else { Err(Errno::INVAL) };
    }
    if attr.end_addr < attr.start_addr {
        return Err(Errno::INVAL);
    }
    let stride = usize::try_from(attr.stride.max(1)).map_err(|_| Errno::INVAL)?;
    // Both ends are checked first: a range over missing addresses must not be walked through.
    if !av.has_address(attr.start_addr) || attr.end_addr - attr.start_addr > u64::from(u32::MAX) {
        return Err(Errno::INVAL);
    }
    let mut members = Vec::new();
    for addr in (attr.start_addr..=attr.end_addr).step_by(stride) {
        if !av.has_address(addr) {
            return Err(Errno::INVAL);
        }
        members.push(addr);
    }
    Ok(members)
}

static FID_OPS: sys::fi_ops = sys::fi_ops { close: Some(close), ..noop::FID };

static SET_OPS: sys::fi_ops_av_set = sys::fi_ops_av_set {
    size: size_of::<sys::fi_ops_av_set>(),
    set_union: Some(set_union),
    intersect: Some(intersect),
    diff: Some(diff),
    insert: Some(insert),
    remove: Some(remove),
    addr: Some(address),
};

unsafe extern "C" fn close(fid: *mut sys::fid) -> c_int {
    object::guard("fi_close(av_set)", || {
        // SAFETY: the client's set.
        unsafe { object::close::<AvSet>(fid) }.map(|()| 0)
    })
}

/// `fi_av_set_union`: appends the addresses of `src` that are new.
unsafe extern "C" fn set_union(dst: *mut sys::fid_av_set, src: *const sys::fid_av_set) -> c_int {
    object::guard("fi_av_set_union", || {
        // SAFETY: the client's sets.
        let (dst, src) = unsafe { both(dst, src) }?;
        dst.combine(src, |members, theirs| {
            let known: FxHashSet<Addr> = members.iter().copied().collect();
            members.extend(theirs.into_iter().filter(|addr| !known.contains(addr)));
        })
    })
}

/// `fi_av_set_intersect`: keeps the addresses that are also in `src`.
unsafe extern "C" fn intersect(dst: *mut sys::fid_av_set, src: *const sys::fid_av_set) -> c_int {
    object::guard("fi_av_set_intersect", || {
        // SAFETY: the client's sets.
        let (dst, src) = unsafe { both(dst, src) }?;
        dst.combine(src, |members, theirs| {
            let theirs: FxHashSet<Addr> = theirs.into_iter().collect();
            members.retain(|addr| theirs.contains(addr));
        })
    })
}

/// `fi_av_set_diff`: keeps the addresses that are not in `src`.
unsafe extern "C" fn diff(dst: *mut sys::fid_av_set, src: *const sys::fid_av_set) -> c_int {
    object::guard("fi_av_set_diff", || {
        // SAFETY: the client's sets.
        let (dst, src) = unsafe { both(dst, src) }?;
        dst.combine(src, |members, theirs| {
            let theirs: FxHashSet<Addr> = theirs.into_iter().collect();
            members.retain(|addr| !theirs.contains(addr));
        })
    })
}

/// Two sets behind a client's pointers.
///
/// # Safety
/// As for [`object::borrow`].
unsafe fn both<'a>(dst: *mut sys::fid_av_set, src: *const sys::fid_av_set) -> Result<(&'a AvSet, &'a AvSet), Errno> {
    // SAFETY: passed on to the caller.
    let dst = unsafe { object::borrow::<AvSet>(dst) }?;
    // SAFETY: passed on to the caller. The set is not written through the pointer.
    let src = unsafe { object::borrow::<AvSet>(src.cast_mut()) }?;
    Ok((dst, src))
}

/// `fi_av_set_insert`: appends an address.
unsafe extern "C" fn insert(set: *mut sys::fid_av_set, addr: sys::fi_addr_t) -> c_int {
    object::guard("fi_av_set_insert", || {
        // SAFETY: the client's set.
        let set = unsafe { object::borrow::<AvSet>(set) }?;
        let mut members = set.members.lock();
        if !set.av.has_address(addr) || members.contains(&addr) {
            return Err(Errno::INVAL);
        }
        members.push(addr);
        Ok(0)
    })
}

/// `fi_av_set_remove`: removes an address; the others keep their order.
unsafe extern "C" fn remove(set: *mut sys::fid_av_set, addr: sys::fi_addr_t) -> c_int {
    object::guard("fi_av_set_remove", || {
        // SAFETY: the client's set.
        let set = unsafe { object::borrow::<AvSet>(set) }?;
        let mut members = set.members.lock();
        let at = members.iter().position(|&member| member == addr).ok_or(Errno::INVAL)?;
        members.remove(at);
        Ok(0)
    })
}

/// `fi_av_set_addr`: the set's address, for `fi_join_collective` only.
unsafe extern "C" fn address(set: *mut sys::fid_av_set, coll_addr: *mut sys::fi_addr_t) -> c_int {
    object::guard("fi_av_set_addr", || {
        // SAFETY: the client's set.
        let set = unsafe { object::borrow::<AvSet>(set) }?;
        // SAFETY: null, or the client's place for the address.
        *unsafe { coll_addr.as_mut() }.ok_or(Errno::INVAL)? = set.address;
        Ok(0)
    })
}
