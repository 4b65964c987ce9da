//! Poll sets (fi_poll(3)): one call that finds the queues and counters with events.
//!
//! Place in the data flow: `fi_poll` → a round of progress on every member, as a read of each would make → the contexts
//! of the members with events. A set refers to its members weakly, and drops closed ones. Members do not know their
//! sets.
//!
//! A queue is reported while it has entries. A counter is reported once after each change that the client did not make
//! itself.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::abi::noop;
use crate::abi::object::{self, Head, Hold, Object, Uses};
use crate::cntr::{Changes, Cntr};
use crate::cq::Cq;
use crate::domain::Domain;
use crate::sleep::poll::Sources;

/// A poll set.
#[repr(C)]
pub(crate) struct PollSet {
    head: Head<sys::fid_poll>,
    members: Mutex<Vec<Member>>,
    uses: Uses,
    domain: Hold<Domain>,
}

// SAFETY: `repr(C)`, the first field is a `Head` of the fid, whose class is set in `open`.
unsafe impl Object for PollSet {
    type Fid = sys::fid_poll;
    const CLASSES: &'static [u32] = &[sys::FI_CLASS_POLL];

    fn uses(&self) -> &Uses {
        &self.uses
    }

    fn closing(&self) -> Result<(), Errno> {
        if self.members.lock().iter().any(|member| member.watched.open().is_some()) { Err(Errno::BUSY) } else { Ok(()) }
    }
}

/// A member, and its context as a number.
struct Member {
    watched: Watched,
    context: usize,
}

enum Watched {
    Queue(Weak<Cq>),
    /// A counter, and its changes at the last report.
    Counter(Weak<Cntr>, Changes),
}

/// A member that is open.
enum Open {
    Queue(Arc<Cq>),
    Counter(Arc<Cntr>),
}

impl Watched {
    fn open(&self) -> Option<Open> {
        match self {
            Self::Queue(queue) => queue.upgrade().map(Open::Queue),
            Self::Counter(counter, _) => counter.upgrade().map(Open::Counter),
        }
    }

    /// The client's pointer to the object, as a number.
    fn address(&self) -> usize {
        match self {
            Self::Queue(queue) => queue.as_ptr().addr(),
            Self::Counter(counter, _) => counter.as_ptr().addr(),
        }
    }
}

impl Open {
    fn sources(&self) -> &Sources {
        match self {
            Self::Queue(queue) => queue.sources(),
            Self::Counter(counter) => counter.sources(),
        }
    }

    /// The whole set has no event after a round of progress that returned `done` here.
    fn note_empty_read(&self, done: usize) {
        match self {
            Self::Queue(queue) => _ = queue.sources().note_empty_read(done, || queue.waker()),
            Self::Counter(counter) => _ = counter.sources().note_empty_read(done, || counter.waker()),
        }
    }
}

impl Member {
    /// Whether the member has an event that was not reported yet. The caller reports it.
    fn take_news(&mut self) -> bool {
        match &mut self.watched {
            Watched::Queue(queue) => queue.upgrade().is_some_and(|queue| {
                let found = !queue.is_empty();
                if found {
                    queue.sources().note_read();
                }
                found
            }),
            Watched::Counter(counter, reported) => counter.upgrade().is_some_and(|counter| {
                let found = std::mem::replace(reported, counter.changes()) != *reported;
                if found {
                    counter.sources().note_read();
                }
                found
            }),
        }
    }
}

impl PollSet {
    fn add(&self, watched: Watched, context: *mut c_void) -> Result<(), Errno> {
        let mut members = self.members.lock();
        members.retain(|member| member.watched.open().is_some());
        if members.iter().any(|member| member.watched.address() == watched.address()) {
            return Err(Errno::ALREADY);
        }
        members.push(Member { watched, context: context.expose_provenance() });
        Ok(())
    }

    fn remove(&self, address: usize) -> Result<(), Errno> {
        let mut members = self.members.lock();
        let before = members.len();
        members.retain(|member| member.watched.address() != address);
        if members.len() < before { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// Makes progress, and reports the contexts of up to `count` members with events by `name`.
    ///
    /// # Safety
    /// The domain was opened by the functions for `D`.
    unsafe fn poll<D: Device>(&self, count: usize, mut name: impl FnMut(usize, *mut c_void)) -> usize {
        let mut members = self.members.lock();
        let mut rounds = Vec::with_capacity(members.len());
        members.retain(|member| {
            let open = member.watched.open();
            let is_open = open.is_some();
            // SAFETY: the caller's promise.
            rounds.extend(open.map(|open| (unsafe { open.sources().progress_on::<D>(None) }, open)));
            is_open
        });
        let mut named = 0;
        for at in 0..members.len() {
            if named == count {
                // The next call starts with the members that this call did not check.
                members.rotate_left(at);
                break;
            }
            let member = &mut members[at];
            if member.take_news() {
                name(named, std::ptr::with_exposed_provenance_mut(member.context));
                named += 1;
            }
        }
        if named == 0 {
            rounds.iter().for_each(|(done, open)| open.note_empty_read(*done));
        }
        named
    }
}

/// Opens a poll set: `fi_poll_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut sys::fid_domain,
    attr: *mut sys::fi_poll_attr,
    set: *mut *mut sys::fid_poll,
) -> c_int {
    object::guard("fi_poll_open", || {
        let place = object::place(set)?;
        // SAFETY: the client's domain.
        let domain = unsafe { Hold::<Domain>::of(domain) }?;
        // SAFETY: null, or the client's attributes.
        if unsafe { attr.as_ref() }.is_some_and(|attr| attr.flags != 0) {
            return Err(Errno::BADFLAGS);
        }
        let fid = object::new_fid(sys::FI_CLASS_POLL, std::ptr::null_mut(), &FID_OPS);
        let head = Head::new(sys::fid_poll { fid, ops: object::table(domain.tables().poll) });
        let set = Arc::new(PollSet { head, members: Mutex::default(), uses: Uses::new(), domain });
        // SAFETY: the client's place for the new pointer.
        Ok(unsafe { object::give(set, place) })
    })
}

static FID_OPS: sys::fi_ops = sys::fi_ops { close: Some(close), ..noop::FID };

/// The operations of a poll set whose endpoints are on devices of type `D`.
pub(crate) const fn ops<D: Device>() -> &'static sys::fi_ops_poll {
    const {
        &sys::fi_ops_poll {
            size: size_of::<sys::fi_ops_poll>(),
            poll: Some(poll::<D>),
            poll_add: Some(add),
            poll_del: Some(del),
        }
    }
}

unsafe extern "C" fn poll<D: Device>(set: *mut sys::fid_poll, contexts: *mut *mut c_void, count: c_int) -> c_int {
    object::guard("fi_poll", || {
        // SAFETY: the client's poll set.
        let set = unsafe { object::borrow::<PollSet>(set) }?;
        let room = usize::try_from(count).map_err(|_| Errno::INVAL)?;
        if contexts.is_null() && room > 0 {
            return Err(Errno::INVAL);
        }
        let name = |at, context| {
            // SAFETY: the client's array has room for `count` contexts.
            unsafe { contexts.wrapping_add(at).write(context) };
        };
        // SAFETY: the domain of a set with this function was opened by those for `D`.
        let named = unsafe { set.poll::<D>(room, name) };
        // The set names at most `count` members.
        Ok(c_int::try_from(named).unwrap_or(count))
    })
}

unsafe extern "C" fn add(set: *mut sys::fid_poll, fid: *mut sys::fid, flags: u64) -> c_int {
    object::guard("fi_poll_add", || {
        // SAFETY: the client's poll set.
        let set = unsafe { object::borrow::<PollSet>(set) }?;
        if flags != 0 {
            return Err(Errno::BADFLAGS);
        }
        // SAFETY: null, or an object of the client.
        let class = unsafe { object::class_of(fid) }?;
        let (watched, domain) = if class == sys::FI_CLASS_CQ as usize {
            // SAFETY: an object of the client, whose class was checked.
            let queue = unsafe { object::share_fid::<Cq>(fid) }?;
            (Watched::Queue(Arc::downgrade(&queue)), queue.domain().clone())
        } else {
            // SAFETY: an object of the client. Objects that are not counters are refused by their class.
            let counter = unsafe { object::share_fid::<Cntr>(fid) }?;
            (Watched::Counter(Arc::downgrade(&counter), Changes::default()), counter.domain().clone())
        };
        if !domain.same(&set.domain) {
            return Err(Errno::INVAL);
        }
        // SAFETY: an object of the client, which does not change the context during this call.
        let context = unsafe { (*fid).context };
        set.add(watched, context).map(|()| 0)
    })
}

unsafe extern "C" fn del(set: *mut sys::fid_poll, fid: *mut sys::fid, flags: u64) -> c_int {
    object::guard("fi_poll_del", || {
        // SAFETY: the client's poll set.
        let set = unsafe { object::borrow::<PollSet>(set) }?;
        if flags != 0 {
            return Err(Errno::BADFLAGS);
        }
        set.remove(fid.addr()).map(|()| 0)
    })
}

unsafe extern "C" fn close(fid: *mut sys::fid) -> c_int {
    object::guard("fi_close(poll set)", || {
        // SAFETY: the client closes its poll set.
        unsafe { object::close::<PollSet>(fid) }.map(|()| 0)
    })
}
