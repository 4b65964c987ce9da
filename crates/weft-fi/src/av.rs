//! Address vectors (fi_av(3)).
//!
//! Place in the data flow: clients insert addresses and get numbers, by which operations refer to peers.
//! Engines consult the [`table`] when they meet a peer for the first time, and are notified of later
//! insertions and removals. Changes that other processes make to a shared vector are not notified; engines
//! check for them.
//!
//! FI_AV_MAP behaves as FI_AV_TABLE: numbers are indices in the order of insertion. Insertion is immediate;
//! with FI_EVENT its result is also reported to the event queue. Authorization keys per address are refused.
//! User identifiers are looked up when completions are delivered (`endpoint/route/deliver.rs`). Named vectors are
//! shared between processes ([`shared`]).

mod shared;
pub(crate) mod symmetric;
pub(crate) mod table;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use weft_engine::api::{Addr, AddressBook, Book};
use weft_engine::name::EpName;
use weft_fi_sys as sys;
use weft_fi_sys::v2::fi_ops_av_1_20;

use crate::abi::errno::Errno;
use crate::abi::noop;
use crate::abi::object::{self, Head, Hold, Object, Uses};
use crate::addr::{self, Format, Query};
use crate::av::shared::Shared;
use crate::av::symmetric::Range;
use crate::av::table::Table;
use crate::collective::av_set;
use crate::domain::Domain;
use crate::endpoint::cell::{AnyCell, CellRef};
use crate::eq::{Eq, Failure};

/// The accepted flags of insertions. FI_MORE is a hint.
const INSERT_FLAGS: u64 = sys::FI_MORE | sys::FI_SYNC_ERR;
/// The accepted flags of `fi_av_open`. FI_SYMMETRIC is a hint.
const OPEN_FLAGS: u64 = sys::FI_EVENT | sys::FI_SYMMETRIC | sys::FI_READ | sys::FI_AV_USER_ID;
/// The first API version in which clients can choose the numbers by which completions refer to addresses
/// (`fi_av_set_user_id`).
pub(crate) const USER_IDS_SINCE: u32 = sys::version(1, 20);
/// The minimum number of addresses for which a shared vector provides an array of numbers (`map_addr`).
const MAPPED: usize = 1 << 12;

/// The maximum number of new addresses in one notification of the endpoints.
const ANNOUNCED_AT_ONCE: usize = 1024;

/// An address vector.
#[repr(C)]
pub(crate) struct Av {
    head: Head<sys::fid_av>,
    table: Arc<Table>,
    /// The numbers in order, for clients of a shared vector (`map_addr`).
    _numbers: Vec<u64>,
    format: Format,
    /// Whether results are reported to the event queue (FI_EVENT).
    events: bool,
    eq: Mutex<Option<Hold<Eq>>>,
    /// Locked from a change of the table until the endpoints are notified. Otherwise a number could be
    /// assigned again before an endpoint has released the old peer. This lock is taken before all others.
    changing: Mutex<()>,
    /// The enabled endpoints that use this vector.
    cells: Mutex<Vec<Weak<dyn AnyCell>>>,
    uses: Uses,
    domain: Hold<Domain>,
}

// SAFETY: `repr(C)`, the first field is a `Head` of the fid, whose class is set in `open_vector`.
unsafe impl Object for Av {
    type Fid = sys::fid_av;
    const CLASSES: &'static [u32] = &[sys::FI_CLASS_AV];

    fn uses(&self) -> &Uses {
        &self.uses
    }
}

/// Implements `fi_av_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut sys::fid_domain,
    attr: *mut sys::fi_av_attr,
    av: *mut *mut sys::fid_av,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_av_open", || {
        let place = object::place(av)?;
        // SAFETY: the client's domain.
        let domain = unsafe { Hold::<Domain>::of(domain) }?;
        // SAFETY: the client's attributes, which are also written to.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::INVAL)?;
        let vector = open_vector(domain, attr, context)?;
        // SAFETY: the client's place for the new pointer.
        Ok(unsafe { object::give(vector, place) })
    })
}

fn open_vector(domain: Hold<Domain>, attr: &mut sys::fi_av_attr, context: *mut c_void) -> Result<Arc<Av>, Errno> {
    let user_ids = attr.flags & sys::FI_AV_USER_ID != 0;
    if user_ids && domain.api_version() < USER_IDS_SINCE {
        log::info!(
            "fi_av_open: user identifiers need API 1.20; request that version from fi_getinfo, or omit FI_AV_USER_ID"
        );
        return Err(Errno::NOSYS);
    }
    let context_bits = u32::try_from(attr.rx_ctx_bits).ok().filter(|&bits| bits <= u8::BITS).ok_or(Errno::INVAL)?;
    if attr.flags & !OPEN_FLAGS != 0 {
        return Err(Errno::BADFLAGS);
    }
    match attr.type_ {
        sys::FI_AV_UNSPEC if domain.av_type() == sys::FI_AV_UNSPEC => attr.type_ = sys::FI_AV_TABLE,
        sys::FI_AV_UNSPEC => attr.type_ = domain.av_type(),
        sys::FI_AV_MAP | sys::FI_AV_TABLE => {}
        _ => return Err(Errno::INVAL),
    }
    let mut table = Table::with_capacity(attr.count, context_bits);
    if user_ids {
        table = table.with_user_ids();
    }
    let mut numbers = Vec::new();
    // SAFETY: null, or the client's string.
    if let Some(name) = unsafe { string(attr.name) } {
        table = table.with_shared(Shared::open(name, attr.flags & sys::FI_READ != 0)?);
        numbers = (0..MAPPED.max(attr.count) as u64).collect();
        attr.map_addr = numbers.as_ptr().cast_mut().cast();
    } else if attr.flags & sys::FI_READ != 0 {
        return Err(Errno::INVAL);
    }
    let fid = object::new_fid(sys::FI_CLASS_AV, context, &FID_OPS);
    Ok(Arc::new(Av {
        head: Head::new(sys::fid_av { fid, ops: object::table(&AV_OPS.base) }),
        table: Arc::new(table),
        _numbers: numbers,
        format: domain.format(),
        events: attr.flags & sys::FI_EVENT != 0,
        eq: Mutex::new(None),
        changing: Mutex::new(()),
        cells: Mutex::new(Vec::new()),
        uses: Uses::new(),
        domain,
    }))
}

/// The results of one insertion call.
struct Results<'a> {
    /// Held from the first change until the endpoints are notified.
    changing: Option<MutexGuard<'a, ()>>,
    /// Null, or an array with an element for each number.
    numbers: *mut sys::fi_addr_t,
    /// Null, or an array with an element for each error (FI_SYNC_ERR).
    errors: *mut c_int,
    /// The call's context, for events.
    context: usize,
    done: usize,
    inserted_count: usize,
    /// New addresses of which the endpoints are not notified yet.
    unannounced: Vec<(Addr, EpName)>,
}

impl<'a> Results<'a> {
    /// # Safety
    /// `numbers`, and with FI_SYNC_ERR also `context`, are null or arrays with an element for every address
    /// of the call.
    unsafe fn new(av: &'a Av, numbers: *mut sys::fi_addr_t, flags: u64, context: *mut c_void) -> Result<Self, Errno> {
        if flags & !INSERT_FLAGS != 0 {
            return Err(Errno::BADFLAGS);
        }
        if av.table.is_read_only() {
            return Err(Errno::ACCES);
        }
        let synchronous = flags & sys::FI_SYNC_ERR != 0;
        if av.events && (synchronous || av.eq.lock().is_none()) {
            return Err(if synchronous { Errno::BADFLAGS } else { Errno::NOEQ });
        }
        let errors = if synchronous { context.cast() } else { std::ptr::null_mut() };
        Ok(Self {
            changing: None,
            numbers,
            errors,
            context: context as usize,
            done: 0,
            inserted_count: 0,
            unannounced: Vec::new(),
        })
    }

    /// Inserts the next address, unless it was invalid.
    fn insert(&mut self, av: &'a Av, name: Result<EpName, Errno>) {
        let inserted = name.and_then(|name| {
            self.changing.get_or_insert_with(|| av.changing.lock());
            let inserted = av.table.insert(&name).ok_or(Errno::NOSPC)?;
            if inserted.is_new {
                self.unannounced.push((inserted.addr, name));
            }
            Ok(inserted.addr)
        });
        self.record(av, inserted);
        if self.unannounced.len() >= ANNOUNCED_AT_ONCE {
            av.announce(&self.unannounced);
            self.unannounced.clear();
        }
    }

    /// Records the result for the next address.
    fn record(&mut self, av: &Av, result: Result<Addr, Errno>) {
        let number = result.unwrap_or(sys::FI_ADDR_NOTAVAIL);
        if !self.numbers.is_null() {
            // SAFETY: one element per address, by the promise of `new`.
            unsafe { self.numbers.wrapping_add(self.done).write(number) };
        }
        if !self.errors.is_null() {
            // SAFETY: as above.
            unsafe { self.errors.wrapping_add(self.done).write(result.map_or_else(Errno::get, |_| 0)) };
        }
        match result {
            Ok(_) => self.inserted_count += 1,
            Err(errno) => av.report_failure(self.context, self.done, errno),
        }
        self.done += 1;
    }

    /// The result of the call: the number of insertions, or 0 if an event reports it.
    fn finish(self, av: &Av) -> Result<c_int, Errno> {
        av.announce(&self.unannounced);
        if av.events {
            if let Some(eq) = &*av.eq.lock() {
                let fid = std::ptr::from_ref(av) as usize;
                eq.report(sys::FI_AV_COMPLETE, fid, self.context, self.inserted_count as u64);
            }
            return Ok(0);
        }
        c_int::try_from(self.inserted_count).map_err(|_| Errno::OVERFLOW)
    }
}

impl Av {
    /// The domain.
    pub(crate) const fn domain(&self) -> &Hold<Domain> {
        &self.domain
    }

    /// The bits of an address that select the endpoint. The others select its receive context.
    pub(crate) fn endpoint_mask(&self) -> Addr {
        self.table.endpoint_mask()
    }

    /// The table that maps addresses to user identifiers, if completions use them.
    pub(crate) fn user_ids(&self) -> Option<Arc<Table>> {
        self.table.has_user_ids().then(|| Arc::clone(&self.table))
    }

    /// The address book for the engine of an endpoint.
    pub(crate) fn book(&self) -> Book {
        Arc::clone(&self.table) as Book
    }

    /// Adds an enabled endpoint, which is notified of later changes. Existing addresses are in its address
    /// book.
    pub(crate) fn attach(&self, cell: &CellRef) {
        self.cells.lock().push(Arc::downgrade(cell));
    }

    /// Removes a closing endpoint.
    pub(crate) fn detach(&self, cell: &CellRef) {
        self.cells.lock().retain(|known| !std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(cell)));
    }

    /// All addresses, in ascending order.
    pub(crate) fn addresses(&self) -> Vec<Addr> {
        self.table.addresses()
    }

    /// Whether the number is in use.
    pub(crate) fn has_address(&self, addr: Addr) -> bool {
        self.table.has(addr)
    }

    fn each_cell(&self, mut notify: impl FnMut(&CellRef)) {
        // The lock of the list is not held while waiting for an endpoint's lock.
        let cells: Vec<CellRef> = self.cells.lock().iter().filter_map(Weak::upgrade).collect();
        cells.iter().for_each(&mut notify);
    }

    /// Notifies the endpoints of new addresses. Addresses are collected, because entering an endpoint from
    /// outside is expensive.
    fn announce(&self, added: &[(Addr, EpName)]) {
        if added.is_empty() {
            return;
        }
        self.each_cell(|cell| cell.addresses_added(added));
    }

    fn remove(&self, addr: Addr) -> Result<(), Errno> {
        let _changing = self.changing.lock();
        if self.table.remove(addr).ok_or(Errno::INVAL)? {
            self.each_cell(|cell| cell.address_removed(addr));
        }
        Ok(())
    }

    fn report_failure(&self, context: usize, index: usize, errno: Errno) {
        log::info!(
            "address {index} of fi_av_insert is not a weft address, or the vector is full (errno {}); pass the result of fi_getname",
            errno.get()
        );
        if let Some(eq) = self.eq.lock().as_ref().filter(|_| self.events) {
            let fid = std::ptr::from_ref(self) as usize;
            eq.report_failure(Failure { fid, context, data: index as u64, errno, why: None, more: Box::default() });
        }
    }

    fn resolve(&self, node: Option<&CStr>, service: Option<&CStr>) -> Result<EpName, Errno> {
        addr::resolve(&Query { node, service, numeric: false, passive: false, format: self.format })
    }
}

static FID_OPS: sys::fi_ops = sys::fi_ops { close: Some(close), bind: Some(bind), ..noop::FID };

static AV_OPS: fi_ops_av_1_20 = fi_ops_av_1_20 {
    base: sys::fi_ops_av {
        insert: Some(insert),
        insertsvc: Some(insertsvc),
        insertsym: Some(insertsym),
        remove: Some(remove),
        lookup: Some(lookup),
        straddr: Some(straddr),
        av_set: Some(av_set::open),
        ..noop::AV_1_20.base
    },
    set_user_id: Some(set_user_id),
    ..noop::AV_1_20
};

unsafe extern "C" fn close(fid: *mut sys::fid) -> c_int {
    object::guard("fi_close(av)", || {
        // SAFETY: the client's vector.
        unsafe { object::close::<Av>(fid) }.map(|()| 0)
    })
}

/// Implements `fi_av_bind` with an event queue.
unsafe extern "C" fn bind(fid: *mut sys::fid, bfid: *mut sys::fid, flags: u64) -> c_int {
    object::guard("fi_av_bind", || {
        // SAFETY: the client's vector.
        let av = unsafe { object::borrow_fid::<Av>(fid) }?;
        if flags != 0 {
            return Err(Errno::BADFLAGS);
        }
        // SAFETY: an object of the client. Objects of another class than event queues are refused.
        let eq = unsafe { Hold::<Eq>::of_fid(bfid) }?;
        let mut bound = av.eq.lock();
        if bound.is_some() {
            return Err(Errno::INVAL);
        }
        *bound = Some(eq);
        Ok(0)
    })
}

unsafe extern "C" fn insert(
    av: *mut sys::fid_av,
    addr: *const c_void,
    count: usize,
    fi_addr: *mut sys::fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_av_insert", || {
        // SAFETY: the client's vector.
        let av = unsafe { object::borrow::<Av>(av) }?;
        // SAFETY: the client's arrays for `count` results.
        let mut results = unsafe { Results::new(av, fi_addr, flags, context) }?;
        if addr.is_null() && count > 0 {
            return Err(Errno::INVAL);
        }
        let mut next = addr.cast::<u8>();
        for index in 0..count {
            // Strings are passed as an array of pointers, other addresses as one contiguous array.
            let at = match av.format {
                // SAFETY: the client's array has `count` elements.
                Format::Text => unsafe { addr.cast::<*const u8>().wrapping_add(index).read() },
                _ => next,
            };
            if at.is_null() {
                results.insert(av, Err(Errno::INVAL));
                continue;
            }
            // SAFETY: the client's address, in the domain's format.
            let name = unsafe { av.format.decode_at(at) };
            results.insert(av, name);
            if av.format != Format::Text {
                // SAFETY: the client's address, in the domain's format.
                let Some(length) = (unsafe { av.format.length_at(at) }) else {
                    // The address has an unknown family, so the start of the next one is unknown.
                    (index + 1..count).for_each(|_| results.insert(av, Err(Errno::INVAL)));
                    break;
                };
                next = next.wrapping_add(length);
            }
        }
        results.finish(av)
    })
}

/// A C string of the client.
///
/// # Safety
/// `text` is null or a C string that is valid during the call.
unsafe fn string<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

unsafe extern "C" fn insertsvc(
    av: *mut sys::fid_av,
    node: *const c_char,
    service: *const c_char,
    fi_addr: *mut sys::fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_av_insertsvc", || {
        // SAFETY: the client's vector.
        let av = unsafe { object::borrow::<Av>(av) }?;
        // SAFETY: the client's variable for one result.
        let mut results = unsafe { Results::new(av, fi_addr, flags, context) }?;
        // SAFETY: the client's string.
        let node = unsafe { string(node) };
        // SAFETY: as above.
        let service = unsafe { string(service) };
        if node.is_none() && service.is_none() {
            return Err(Errno::INVAL);
        }
        results.insert(av, av.resolve(node, service));
        results.finish(av)
    })
}

unsafe extern "C" fn insertsym(
    av: *mut sys::fid_av,
    node: *const c_char,
    nodecnt: usize,
    service: *const c_char,
    svccnt: usize,
    fi_addr: *mut sys::fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_av_insertsym", || {
        // SAFETY: the client's vector.
        let av = unsafe { object::borrow::<Av>(av) }?;
        // SAFETY: the client's arrays for all results.
        let mut results = unsafe { Results::new(av, fi_addr, flags, context) }?;
        // SAFETY: the client's string.
        let node = unsafe { string(node) }.ok_or(Errno::INVAL)?;
        // SAFETY: as above.
        let service = unsafe { string(service) }.ok_or(Errno::INVAL)?;
        let range = Range::new(node, service)?;
        let name = |node_index, service_index| {
            let (node, service) = range.at(node_index, service_index)?;
            av.resolve(Some(&node), Some(&service))
        };
        // Name resolution may take long, and other threads may change the vector meanwhile.
        let places = (0..nodecnt).flat_map(|node| (0..svccnt).map(move |service| (node, service)));
        let names: Vec<_> = places.map(|(node, service)| name(node, service)).collect();
        names.into_iter().for_each(|name| results.insert(av, name));
        results.finish(av)
    })
}

unsafe extern "C" fn remove(av: *mut sys::fid_av, fi_addr: *mut sys::fi_addr_t, count: usize, flags: u64) -> c_int {
    object::guard("fi_av_remove", || {
        // SAFETY: the client's vector.
        let av = unsafe { object::borrow::<Av>(av) }?;
        if flags != 0 {
            return Err(Errno::BADFLAGS);
        }
        if fi_addr.is_null() && count > 0 {
            return Err(Errno::INVAL);
        }
        if av.table.is_read_only() {
            return Err(Errno::ACCES);
        }
        for index in 0..count {
            // SAFETY: the client's array has `count` elements.
            av.remove(unsafe { fi_addr.wrapping_add(index).read() })?;
        }
        Ok(0)
    })
}

unsafe extern "C" fn set_user_id(
    av: *mut sys::fid_av,
    fi_addr: sys::fi_addr_t,
    user_id: sys::fi_addr_t,
    flags: u64,
) -> c_int {
    object::guard("fi_av_set_user_id", || {
        // SAFETY: the client's vector.
        let av = unsafe { object::borrow::<Av>(av) }?;
        // FI_AUTH_KEY is refused: addresses have no keys.
        if flags != 0 {
            return Err(Errno::BADFLAGS);
        }
        if !av.table.has_user_ids() {
            return Err(Errno::INVAL);
        }
        av.table.set_user_id(fi_addr, user_id).ok_or(Errno::INVAL).map(|()| 0)
    })
}

unsafe extern "C" fn lookup(
    av: *mut sys::fid_av,
    fi_addr: sys::fi_addr_t,
    addr: *mut c_void,
    addrlen: *mut usize,
) -> c_int {
    object::guard("fi_av_lookup", || {
        // SAFETY: the client's vector.
        let av = unsafe { object::borrow::<Av>(av) }?;
        let length = NonNull::new(addrlen).ok_or(Errno::INVAL)?;
        let name = av.table.name(fi_addr & av.endpoint_mask()).ok_or(Errno::INVAL)?;
        let bytes = av.format.encode(&name)?;
        // SAFETY: the client's buffer and its length.
        unsafe { copy_out(&bytes, addr.cast(), length) };
        Ok(0)
    })
}

/// Copies bytes into a client's buffer, truncated to its length, and stores the full length.
///
/// # Safety
/// `buffer` is null or valid for the number of bytes in `length`.
unsafe fn copy_out(bytes: &[u8], buffer: *mut u8, length: NonNull<usize>) {
    // SAFETY: the caller's promise.
    let room = unsafe { length.read() };
    if !buffer.is_null() {
        // SAFETY: the caller's promise; the length is limited to the buffer's.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, bytes.len().min(room)) };
    }
    // SAFETY: the caller's promise.
    unsafe { length.write(bytes.len()) };
}

unsafe extern "C" fn straddr(
    av: *mut sys::fid_av,
    addr: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    object::guard("fi_av_straddr", || {
        // SAFETY: the client's vector.
        let av = unsafe { object::borrow::<Av>(av) }?;
        let length = NonNull::new(len).ok_or(Errno::INVAL)?;
        let address = NonNull::new(addr.cast_mut()).ok_or(Errno::INVAL)?;
        // SAFETY: the client's address, in the domain's format.
        let text = match unsafe { av.format.decode_at(address.as_ptr().cast()) } {
            Ok(name) => addr::describe(&name),
            Err(_) => "not an address".to_owned(),
        };
        let mut bytes = text.into_bytes();
        bytes.push(0);
        // SAFETY: the client's length of its buffer.
        let room = unsafe { length.read() };
        // SAFETY: the client's buffer.
        unsafe { copy_out(&bytes, buf.cast(), length) };
        if !buf.is_null() && room > 0 && room < bytes.len() {
            // SAFETY: the last byte of the client's buffer, which terminates a truncated text.
            unsafe { buf.wrapping_add(room - 1).write(0) };
        }
        Ok(0)
    });
    buf
}
