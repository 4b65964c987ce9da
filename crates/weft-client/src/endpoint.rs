//! An endpoint with its completion queue, address vector, memory and contexts.
//!
//! This file opens and closes the endpoint and reads completions. The operations are in `operations.rs`.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use weft_fi_sys::v2::fi_cq_err_entry_1_20;
use weft_fi_sys::*;

use crate::block::Block;
use crate::collective::CollectiveOps;
use crate::domain::{Domain, Inner, Waiting, close};
use crate::{Error, Library};

/// The number of completions that one call reads.
const BATCH: usize = 16;

/// A peer's index in the address vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub(crate) fi_addr_t);

/// A range of an endpoint's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The offset from the start of the memory, in bytes.
    pub offset: usize,
    /// The length in bytes.
    pub len: usize,
}

/// The remote name of an endpoint's memory. It consists of plain numbers, which are exchanged out of band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The remote address of offset 0.
    pub base: u64,
    /// The registration's key.
    pub key: u64,
}

/// The outcome of a call that posts an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// The operation is posted.
    Done,
    /// The provider has no room now: read completions and try again.
    Again,
}

/// A completed operation.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The context of the operation. `None`: a peer's operation with remote completion data arrived.
    pub slot: Option<u32>,
    /// The received length in bytes.
    pub len: usize,
    /// The tag of a tagged receive.
    pub tag: u64,
    /// The completion data of a remote operation.
    pub data: u64,
}

/// A reliable-datagram endpoint.
pub struct Endpoint {
    pub(crate) ep: *mut fid_ep,
    cq: *mut fid_cq,
    pub(crate) av: *mut fid_av,
    /// Null unless collectives were requested.
    pub(crate) eq: *mut fid_eq,
    /// weft's table of further collectives.
    pub(crate) extension: Option<NonNull<CollectiveOps>>,
    mr: *mut fid_mr,
    pub(crate) desc: *mut c_void,
    name: Vec<u8>,
    /// `None` only while dropping.
    memory: Option<Block>,
    contexts: Option<Block>,
    /// Whether the provider holds the context, by slot.
    pub(crate) busy: Vec<bool>,
    domain: Domain,
}

// SAFETY: the objects belong to this endpoint alone, except for the domain, which is protected by a lock.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// Opens and enables an endpoint with `memory_bytes` of zeroed memory and at most `contexts` outstanding
    /// operations.
    pub fn open(domain: &Domain, memory_bytes: usize, contexts: u32, peers: usize) -> Result<Self, Error> {
        let no_memory = || Error::Misuse("the memory is larger than an address space");
        let slots = contexts as usize;
        let mut this = Self {
            ep: null_mut(),
            cq: null_mut(),
            av: null_mut(),
            eq: null_mut(),
            extension: None,
            mr: null_mut(),
            desc: null_mut(),
            name: Vec::new(),
            memory: Some(domain.inner().memory(memory_bytes).ok_or_else(no_memory)?),
            contexts: Some(Block::new(slots * size_of::<fi_context2>()).ok_or_else(no_memory)?),
            busy: vec![false; slots],
            domain: domain.clone(),
        };
        let domain = domain.inner();
        let serial = domain.serialize();
        this.open_queues(domain, slots, peers)?;
        if domain.info.get().caps & FI_COLLECTIVE != 0 {
            this.open_events(domain)?;
        }
        this.register(domain)?;
        this.enable(domain)?;
        this.name = this.read_name(domain.library)?;
        drop(serial);
        Ok(this)
    }

    fn open_queues(&mut self, domain: &Inner, slots: usize, peers: usize) -> Result<(), Error> {
        // SAFETY: the domain is open as long as `self.domain` exists.
        let parent = unsafe { &*domain.domain };
        // SAFETY: an open domain has its table.
        let table = unsafe { &*parent.ops };
        let library = domain.library;
        let mut attr = fi_cq_attr {
            size: slots.max(1024),
            flags: 0,
            format: FI_CQ_FORMAT_TAGGED,
            wait_obj: match domain.waiting {
                Waiting::Never => FI_WAIT_NONE,
                Waiting::InCalls => FI_WAIT_UNSPEC,
                Waiting::OnDescriptor => FI_WAIT_FD,
            },
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: null_mut(),
        };
        let open = library.has("fi_cq_open", table.cq_open)?;
        // SAFETY: domain and attributes are valid, and the result goes to a field of this structure.
        let result = unsafe { open(domain.domain, &mut attr, &mut self.cq, null_mut()) };
        library.check("fi_cq_open", result as isize)?;
        let mut attr = fi_av_attr {
            type_: domain.info.domain().av_type,
            rx_ctx_bits: 0,
            count: peers,
            ep_per_node: 0,
            name: std::ptr::null(),
            map_addr: null_mut(),
            flags: 0,
        };
        let open = library.has("fi_av_open", table.av_open)?;
        // SAFETY: as above.
        let mut result = unsafe { open(domain.domain, &mut attr, &mut self.av, null_mut()) };
        if result != 0 && peers > 0 {
            // The count is only a hint, but some providers refuse one that is too large. A later insert
            // reports a real limit.
            attr.count = 0;
            // SAFETY: as above.
            result = unsafe { open(domain.domain, &mut attr, &mut self.av, null_mut()) };
        }
        library.check("fi_av_open", result as isize)?;
        let open = library.has("fi_endpoint", table.endpoint)?;
        // SAFETY: as above; the library allocated the structure.
        let result = unsafe { open(domain.domain, domain.info.raw, &mut self.ep, null_mut()) };
        library.check("fi_endpoint", result as isize)?;
        self.bind(library, self.ep.cast(), self.av.cast(), 0)?;
        self.bind(library, self.ep.cast(), self.cq.cast(), FI_TRANSMIT | FI_RECV)
    }

    /// Binds two objects of this endpoint.
    pub(crate) fn bind(&self, library: &Library, object: *mut fid, other: *mut fid, flags: u64) -> Result<(), Error> {
        // SAFETY: the objects of this structure are open.
        let head = unsafe { &*object };
        // SAFETY: an open object has its table.
        let table = unsafe { &*head.ops };
        let call = library.has("fi_bind", table.bind)?;
        // SAFETY: both are open.
        let result = unsafe { call(object, other, flags) };
        library.check("fi_bind", result as isize).map(|_| ())
    }

    /// Enables an object of this endpoint.
    fn control_enable(&self, library: &Library, object: *mut fid) -> Result<(), Error> {
        // SAFETY: the objects of this structure are open.
        let head = unsafe { &*object };
        // SAFETY: an open object has its table.
        let table = unsafe { &*head.ops };
        let call = library.has("fi_enable", table.control)?;
        // SAFETY: the object is open; the command takes no argument.
        let result = unsafe { call(object, FI_ENABLE as c_int, null_mut()) };
        library.check("fi_enable", result as isize).map(|_| ())
    }

    /// Registers the memory, if remote access or the provider requires it.
    fn register(&mut self, domain: &Inner) -> Result<(), Error> {
        let caps = domain.info.get().caps;
        let remote = caps & (FI_RMA | FI_ATOMIC) != 0;
        let local = domain.mr_mode(FI_MR_LOCAL);
        if !remote && !local {
            return Ok(());
        }
        let mut access = FI_SEND | FI_RECV;
        if remote {
            access |= FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
        }
        let memory = self.memory();
        // SAFETY: the domain is open.
        let parent = unsafe { &*domain.domain };
        // SAFETY: an open domain has its table.
        let table = unsafe { &*parent.mr };
        let library = domain.library;
        let call = library.has("fi_mr_reg", table.reg)?;
        let (start, len, key) = (memory.start().cast_const().cast(), memory.len(), domain.next_key());
        let parent: *mut fid = domain.domain.cast();
        // SAFETY: the memory outlives the registration, as ensured by `drop`.
        let result = unsafe { call(parent, start, len, access, 0, key, 0, &mut self.mr, null_mut()) };
        library.check("fi_mr_reg", result as isize)?;
        if domain.mr_mode(FI_MR_ENDPOINT) {
            self.bind(library, self.mr.cast(), self.ep.cast(), 0)?;
            self.control_enable(library, self.mr.cast())?;
        }
        if local {
            // SAFETY: the registration is open.
            self.desc = unsafe { (*self.mr).mem_desc };
        }
        Ok(())
    }

    fn enable(&mut self, domain: &Inner) -> Result<(), Error> {
        self.control_enable(domain.library, self.ep.cast())
    }

    /// Calls `fi_getname`.
    fn read_name(&self, library: &Library) -> Result<Vec<u8>, Error> {
        // SAFETY: the endpoint is open.
        let head = unsafe { &*self.ep };
        // SAFETY: an enabled endpoint has this table.
        let table = unsafe { &*head.cm };
        let call = library.has("fi_getname", table.getname)?;
        let mut name = vec![0_u8; 256];
        loop {
            let mut len = name.len();
            // SAFETY: the endpoint is open; the buffer has `len` bytes.
            let result = unsafe { call(self.ep.cast(), name.as_mut_ptr().cast(), &mut len) };
            if result == -(FI_ETOOSMALL as c_int) && len > name.len() && len < 1 << 16 {
                name.resize(len, 0);
                continue;
            }
            library.check("fi_getname", result as isize)?;
            name.truncate(len);
            return Ok(name);
        }
    }

    /// The address that peers insert into their address vectors.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The remote name of the memory.
    #[must_use]
    pub fn region(&self) -> Region {
        let base = if self.inner().mr_mode(FI_MR_VIRT_ADDR) { self.memory().start() as u64 } else { 0 };
        // SAFETY: open; or null without remote access, and then the key is never used.
        let key = unsafe { self.mr.as_ref() }.map_or(0, |mr| mr.key);
        Region { base, key }
    }

    /// The domain of this endpoint.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    pub(crate) fn inner(&self) -> &Inner {
        self.domain.inner()
    }

    pub(crate) fn memory(&self) -> &Block {
        self.memory.as_ref().unwrap_or_else(|| unreachable!("taken only while dropping"))
    }

    /// The address of a context.
    pub(crate) fn context(&self, slot: u32) -> Option<*mut c_void> {
        let contexts = self.contexts.as_ref()?;
        contexts.at(slot as usize * size_of::<fi_context2>(), size_of::<fi_context2>()).map(<*mut u8>::cast)
    }

    /// The slot of a context's address.
    fn slot(&self, context: *mut c_void) -> Option<u32> {
        let start = self.contexts.as_ref()?.start() as usize;
        let slot = (context as usize).checked_sub(start)? / size_of::<fi_context2>();
        (slot < self.busy.len()).then(|| u32::try_from(slot).ok()).flatten()
    }

    /// Loads the number at `offset` atomically.
    pub fn load(&self, offset: usize) -> Result<u64, Error> {
        let cell = self.cell(offset)?;
        // SAFETY: 8 aligned bytes of our memory, which this crate accesses only atomically.
        let cell = unsafe { AtomicU64::from_ptr(cell) };
        Ok(cell.load(Ordering::Acquire))
    }

    /// Stores a number at `offset` atomically.
    pub fn store(&mut self, offset: usize, value: u64) -> Result<(), Error> {
        let cell = self.cell(offset)?;
        // SAFETY: as in `load`.
        let cell = unsafe { AtomicU64::from_ptr(cell) };
        cell.store(value, Ordering::Release);
        Ok(())
    }

    fn cell(&self, offset: usize) -> Result<*mut u64, Error> {
        if !offset.is_multiple_of(8) {
            return Err(Error::Misuse("the number is not aligned to 8 bytes"));
        }
        self.memory().at(offset, 8).map(<*mut u8>::cast).ok_or(Error::Misuse("the number is outside the memory"))
    }

    /// Inserts `count` addresses, which are concatenated in `names`, into the address vector.
    pub fn insert(&mut self, names: &[u8], count: usize) -> Result<Vec<Address>, Error> {
        let strings = self.inner().info.get().addr_format == FI_ADDR_STR;
        let whole = if strings {
            names.last() == Some(&0) && names.iter().filter(|&&byte| byte == 0).count() >= count
        } else {
            names.len() == self.name.len() * count
        };
        if !whole || count == 0 {
            return Err(Error::Misuse("the addresses have another format or count"));
        }
        let library = self.inner().library;
        // SAFETY: the vector is open.
        let head = unsafe { &*self.av };
        // SAFETY: an open vector has its table.
        let table = unsafe { &*head.ops };
        let call = library.has("fi_av_insert", table.insert)?;
        let mut numbers = vec![FI_ADDR_NOTAVAIL; count];
        // SAFETY: `names` holds `count` addresses in the provider's format, and `numbers` has room for as
        // many.
        let result = unsafe { call(self.av, names.as_ptr().cast(), count, numbers.as_mut_ptr(), 0, null_mut()) };
        let inserted = library.check("fi_av_insert", result as isize)?;
        if inserted.unsigned_abs() != count {
            return Err(Error::NotOffered(format!("the provider inserted {inserted} of {count} addresses")));
        }
        Ok(numbers.into_iter().map(Address).collect())
    }

    /// Reads some completions, which also makes progress. Calls `each` in order and returns the count.
    #[inline]
    pub fn poll(&mut self, each: impl FnMut(Completion)) -> Result<usize, Error> {
        // SAFETY: the queue is open.
        let head = unsafe { &*self.cq };
        // SAFETY: an open queue has its table.
        let table = unsafe { &*head.ops };
        let Some(call) = table.read else { return Err(self.inner().library.missing("fi_cq_read")) };
        let mut entries = [const { MaybeUninit::uninit() }; BATCH];
        // SAFETY: `entries` has room for `BATCH` entries of the queue's format.
        let result = unsafe { call(self.cq, entries.as_mut_ptr().cast(), BATCH) };
        self.deliver("fi_cq_read", result, &entries, each)
    }

    /// Like [`Endpoint::poll`], but sleeps up to `timeout_ms` while no completion is available.
    pub fn wait(&mut self, timeout_ms: i32, each: impl FnMut(Completion)) -> Result<usize, Error> {
        // SAFETY: the queue is open.
        let head = unsafe { &*self.cq };
        // SAFETY: an open queue has its table.
        let table = unsafe { &*head.ops };
        let Some(call) = table.sread else { return Err(self.inner().library.missing("fi_cq_sread")) };
        let mut entries = [const { MaybeUninit::uninit() }; BATCH];
        // SAFETY: as in `poll`.
        let result = unsafe { call(self.cq, entries.as_mut_ptr().cast(), BATCH, std::ptr::null(), timeout_ms) };
        // Some providers return EINTR after a signal.
        let result = if result == -(libc::EINTR as isize) { -(FI_EAGAIN as isize) } else { result };
        self.deliver("fi_cq_sread", result, &entries, each)
    }

    /// Tells the provider that no call follows for a while (fi_trywait(3)). Returns whether the calling thread may now
    /// sleep on [`Endpoint::descriptor`], until its next poll. A provider with automatic progress takes over at once.
    pub fn park(&mut self) -> bool {
        let fabric = self.inner().fabric;
        // SAFETY: the fabric is open as long as the domain.
        let head = unsafe { &*fabric };
        // SAFETY: an open fabric has its table.
        let table = unsafe { &*head.ops };
        let Some(call) = table.trywait else { return false };
        let mut queues: [*mut fid; 1] = [self.cq.cast()];
        // SAFETY: fabric and queue are open.
        unsafe { call(fabric, queues.as_mut_ptr(), 1) == 0 }
    }

    /// The descriptor that is readable when a parked thread must poll ([`Waiting::OnDescriptor`]). It is valid as long
    /// as the endpoint.
    #[must_use]
    pub fn descriptor(&self) -> Option<c_int> {
        // SAFETY: the queue is open.
        let head = unsafe { &(*self.cq).fid };
        // SAFETY: an open queue has its table.
        let table = unsafe { &*head.ops };
        let mut descriptor: c_int = -1;
        // SAFETY: the command writes one descriptor.
        let result = unsafe { (table.control?)(self.cq.cast(), FI_GETWAIT as c_int, (&raw mut descriptor).cast()) };
        (result == 0 && descriptor >= 0).then_some(descriptor)
    }

    #[inline]
    fn deliver(
        &mut self,
        what: &'static str,
        result: isize,
        entries: &[MaybeUninit<fi_cq_tagged_entry>; BATCH],
        mut each: impl FnMut(Completion),
    ) -> Result<usize, Error> {
        if result < 0 {
            return match -result {
                again if again == FI_EAGAIN as isize => Ok(0),
                error if error == FI_EAVAIL as isize => Err(self.completion_error()),
                _ => Err(self.inner().library.failure(what, result)),
            };
        }
        let count = result.unsigned_abs();
        for entry in &entries[..count.min(BATCH)] {
            // SAFETY: the library has filled `count` entries.
            let entry = unsafe { entry.assume_init_ref() };
            // The context of an operation that a peer started is undefined.
            let ours = entry.flags & (FI_REMOTE_WRITE | FI_REMOTE_READ) == 0;
            let slot = if ours { self.slot(entry.op_context) } else { None };
            if let Some(slot) = slot {
                self.busy[slot as usize] = false;
            }
            each(Completion { slot, len: entry.len, tag: entry.tag, data: entry.data });
        }
        Ok(count)
    }

    /// Calls `fi_cq_readerr`.
    #[cold]
    fn completion_error(&mut self) -> Error {
        let library = self.inner().library;
        // SAFETY: the queue is open.
        let head = unsafe { &*self.cq };
        // SAFETY: an open queue has its table.
        let table = unsafe { &*head.ops };
        let Some(call) = table.readerr else { return library.missing("fi_cq_readerr") };
        // The newest layout is the longest; older libraries fill only its beginning.
        // SAFETY: numbers and pointers, for which zero is valid.
        let mut entry: fi_cq_err_entry_1_20 = unsafe { std::mem::zeroed() };
        // SAFETY: the entry is large enough for every API version that this crate requests; it has no buffer
        // for error data.
        let result = unsafe { call(self.cq, (&raw mut entry).cast(), 0) };
        if result < 0 {
            return library.failure("fi_cq_readerr", result);
        }
        let slot = self.slot(entry.base.op_context);
        if let Some(slot) = slot {
            self.busy[slot as usize] = false;
        }
        let code = entry.base.err.saturating_abs();
        let (provider_code, data) = (entry.base.prov_errno, entry.base.data);
        Error::Completion { slot, code, provider_code, data, text: library.text(code) }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let domain = self.domain.clone();
        let _serial = domain.inner().serialize();
        // SAFETY: the registration is open or null, belongs to this endpoint, and is not used afterwards.
        let region_left = unsafe { close(self.mr) } != 0;
        // SAFETY: as above, of the endpoint.
        let endpoint_left = unsafe { close(self.ep) } != 0;
        if region_left || endpoint_left {
            // A provider whose objects did not close may still write to this memory, so it is leaked.
            std::mem::forget((self.memory.take(), self.contexts.take()));
            return;
        }
        // SAFETY: as above, of the queue.
        unsafe { close(self.cq) };
        // SAFETY: as above, of the vector.
        unsafe { close(self.av) };
        // SAFETY: as above, of the event queue, or null.
        unsafe { close(self.eq) };
    }
}
