//! An opened provider: a fabric and a domain that meet the client's [`Requirements`].

use std::ffi::{CStr, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_fi_sys::*;

use crate::block::Block;
use crate::library::{self, Info};
use crate::{Error, Library};

/// The requested kinds of operations. Tagged messages are always requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Messages without tags.
    pub msg: bool,
    /// Remote reads and writes.
    pub rma: bool,
    /// Remote atomics.
    pub atomic: bool,
    /// Collectives. Endpoints then have an event queue.
    pub collective: bool,
}

/// The agent that moves data while the client makes no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The provider makes progress, by a thread or by hardware.
    Auto,
    /// Only calls of the client make progress.
    Manual,
}

/// The client's promise about its threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threading {
    /// One thread at a time uses the domain.
    #[default]
    Domain,
    /// One thread at a time uses an endpoint and its queue.
    Completion,
    /// No promise.
    Safe,
}

/// The ways in which a caller sleeps while a queue is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// It never sleeps.
    #[default]
    Never,
    /// In [`crate::Endpoint::wait`].
    InCalls,
    /// On the queue's descriptor ([`crate::Endpoint::park`]), or in calls.
    OnDescriptor,
}

/// The requirements, which become the hints of `fi_getinfo`.
#[derive(Clone, Debug, Default)]
pub struct Requirements {
    /// The exact name of the provider.
    pub provider: String,
    /// The requested operations.
    pub caps: Caps,
    /// The requested progress; `None` accepts the provider's default.
    pub progress: Option<Progress>,
    /// The client's promise about its threads.
    pub threading: Threading,
    /// Operations complete only when the data has arrived at the peer.
    pub delivery: bool,
    /// Endpoints have memory that peers may map, if the provider has such memory (weft).
    pub mapped: bool,
    /// The way in which callers sleep.
    pub waiting: Waiting,
    /// The number of receives that must fit the receive queue; 0 accepts the provider's default.
    pub receives: usize,
}

/// An opened provider. Its endpoints keep it open.
#[derive(Clone)]
pub struct Domain(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) library: &'static Library,
    pub(crate) info: Info,
    pub(crate) waiting: Waiting,
    pub(crate) mapped: bool,
    pub(crate) fabric: *mut fid_fabric,
    pub(crate) domain: *mut fid_domain,
    next_key: AtomicU64,
    /// Held while objects of the domain are opened or closed, as weak threading levels require.
    control: Mutex<()>,
}

// SAFETY: the pointers are used under `control` only, and the structure is not changed after its creation.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// The registration modes that this crate supports.
const MR_MODES: i32 = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;

fn hints(library: &'static Library, requirements: &Requirements) -> Result<Info, Error> {
    let mut hints = library.allocate()?;
    hints.set_provider(&requirements.provider)?;
    let mut caps = FI_TAGGED;
    let Caps { msg, rma, atomic, collective } = requirements.caps;
    for (bit, want) in [(FI_MSG, msg), (FI_RMA, rma), (FI_ATOMIC, atomic), (FI_COLLECTIVE, collective)] {
        caps |= if want { bit } else { 0 };
    }
    let info = hints.get_mut();
    info.caps = caps;
    info.mode = FI_CONTEXT | FI_CONTEXT2;
    hints.ep_mut().type_ = FI_EP_RDM;
    let domain = hints.domain_mut();
    domain.mr_mode = MR_MODES;
    domain.threading = match requirements.threading {
        Threading::Domain => FI_THREAD_DOMAIN,
        Threading::Completion => FI_THREAD_COMPLETION,
        Threading::Safe => FI_THREAD_SAFE,
    };
    domain.data_progress = match requirements.progress {
        None => FI_PROGRESS_UNSPEC,
        Some(Progress::Auto) => FI_PROGRESS_AUTO,
        Some(Progress::Manual) => FI_PROGRESS_MANUAL,
    };
    if collective {
        domain.control_progress = domain.data_progress;
    }
    // MPI needs this order. Every measured provider offers it, and without it some would take a shorter path
    // than in MPI.
    hints.tx_mut().msg_order = FI_ORDER_SAS;
    hints.rx_mut().msg_order = FI_ORDER_SAS;
    hints.rx_mut().size = requirements.receives;
    if requirements.delivery {
        hints.tx_mut().op_flags = FI_DELIVERY_COMPLETE;
    }
    Ok(hints)
}

/// The likely reason: libfabric reports none.
fn not_offered(requirements: &Requirements) -> Error {
    let mut what = Vec::new();
    let Caps { msg, rma, atomic, collective } = requirements.caps;
    let delivery = requirements.delivery;
    for (name, want) in [
        ("msg", msg),
        ("RMA", rma),
        ("atomics", atomic),
        ("collectives", collective),
        ("delivery completion", delivery),
    ] {
        if want {
            what.push(name);
        }
    }
    match (what.as_slice(), requirements.progress) {
        ([], None) => {
            Error::NotOffered("the provider offers no tagged messages between reliable-datagram endpoints".to_owned())
        }
        ([], Some(_)) => Error::NotOffered("the provider does not offer the requested progress".to_owned()),
        (names, _) => Error::NotOffered(format!("the provider does not offer {}", names.join(" or "))),
    }
}

impl Domain {
    /// Opens a provider.
    pub fn open(library: &'static Library, requirements: &Requirements) -> Result<Self, Error> {
        let hints = hints(library, requirements)?;
        let found = match library.getinfo(0, Some(&hints)) {
            Err(Error::Call { code: FI_ENODATA, .. }) => return Err(not_offered(requirements)),
            other => other?,
        };
        // A layered provider such as "tcp;ofi_rxm" may come first; it is a different provider.
        let exact = found.iter().find(|info| library::provider(info) == requirements.provider);
        let info = exact.ok_or_else(|| not_offered(requirements))?;
        let info = library.copy(info)?;
        let fabric = library.open_fabric(&info)?;
        let mut inner = Inner {
            library,
            info,
            waiting: requirements.waiting,
            mapped: requirements.mapped,
            fabric,
            domain: null_mut(),
            next_key: AtomicU64::new(1),
            control: Mutex::new(()),
        };
        // SAFETY: the fabric was just opened.
        let table = unsafe { &*fabric };
        // SAFETY: an open fabric has its table.
        let table = unsafe { &*table.ops };
        let open = table
            .domain
            .ok_or_else(|| Error::NotOffered("the provider has no function to open a domain".to_owned()))?;
        // SAFETY: fabric and structure belong to the library; the result goes to a field that no other thread
        // sees yet.
        let result = unsafe { open(fabric, inner.info.raw, &mut inner.domain, null_mut()) };
        library.check("fi_domain", result as isize)?;
        Ok(Self(Arc::new(inner)))
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }

    /// The provider's internal counters, if it has weft's extension for them (fi_weft(7), "EXTENSIONS").
    #[must_use]
    pub fn stats(&self) -> Option<Stats> {
        // SAFETY: a table of that name begins with these fields.
        let ops = unsafe { self.0.extension(c"weft_stats")?.cast::<StatsOps>().as_ref() };
        let mut stats = Stats::default();
        // SAFETY: the domain is open, and the destination has the given length.
        let result = unsafe { (ops.read)(self.0.domain, &mut stats, size_of::<Stats>()) };
        (result == 0).then_some(stats)
    }

    /// Memory that peers may map. `None`: the provider has none (fi_weft(7), "EXTENSIONS").
    #[must_use]
    pub fn mapped_block(&self, bytes: usize) -> Option<MappedBlock> {
        let ops = self.0.extension(c"weft_memory")?;
        // SAFETY: the block keeps the domain open.
        let block = unsafe { Block::mapped(self.0.domain, ops.cast(), bytes) }?;
        Some(MappedBlock { block, _domain: self.clone() })
    }

    /// The longest message that may be injected, in bytes.
    #[must_use]
    pub fn inject_bytes(&self) -> usize {
        self.0.info.tx().inject_size
    }

    /// The address format, as libfabric numbers it (`FI_SOCKADDR_IN`, …).
    #[must_use]
    pub fn address_format(&self) -> u32 {
        self.0.info.get().addr_format
    }
}

/// The table of a provider's extension.
///
/// # Safety
/// The object is open.
pub(crate) unsafe fn extension(object: *mut fid, name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: by the caller's promise.
    let head = unsafe { &*object };
    // SAFETY: an open object has its table.
    let table = unsafe { &*head.ops };
    let open = table.ops_open?;
    let mut ops = null_mut();
    // SAFETY: the object is open, the name is a C string, and the table goes to a local.
    let result = unsafe { open(object, name.as_ptr(), 0, &mut ops, null_mut()) };
    NonNull::new(ops).filter(|_| result == 0)
}

/// weft's counters of a domain: `struct weft_stats`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The number of calls that waited at a lock for another thread.
    pub lock_waits: u64,
    /// The number of rounds in which the thread for automatic progress found work.
    pub thread_rounds: u64,
    /// The number of dropped datagrams.
    pub datagrams_dropped: u64,
    /// The number of short sleeps in reads that do not block.
    pub naps: u64,
    /// The number of those that ended without an event.
    pub fruitless_naps: u64,
    /// The number of successive reads in vain of the queues that this thread reads: the least of them.
    pub idle_reads: u64,
}

/// `struct weft_stats_ops`.
#[repr(C)]
struct StatsOps {
    size: usize,
    read: unsafe extern "C" fn(*mut fid_domain, *mut Stats, usize) -> i32,
}

/// Memory that peers may map, of the provider's allocator. It is freed when it is dropped, unless a region is still
/// registered on it.
pub struct MappedBlock {
    block: Block,
    /// Keeps the domain open.
    _domain: Domain,
}

impl MappedBlock {
    /// The first byte.
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        self.block.start()
    }
}

impl Inner {
    /// The table of one of weft's extensions.
    fn extension(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the domain is open, and its handle begins with a fid.
        unsafe { extension(self.domain.cast(), name) }
    }

    /// Memory of an endpoint. `None`: it is longer than an address space.
    pub(crate) fn memory(&self, bytes: usize) -> Option<Block> {
        let ops = if self.mapped { self.extension(c"weft_memory") } else { None };
        // SAFETY: an endpoint keeps its domain open, and drops the memory before.
        let mapped = ops.and_then(|ops| unsafe { Block::mapped(self.domain, ops.cast(), bytes) });
        mapped.or_else(|| Block::new(bytes))
    }

    pub(crate) fn serialize(&self) -> MutexGuard<'_, ()> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next key for a registration, for providers that let the client choose keys.
    pub(crate) fn next_key(&self) -> u64 {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether the provider requires the registration mode `bit`.
    pub(crate) fn mr_mode(&self, bit: i32) -> bool {
        self.info.domain().mr_mode & bit != 0
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: every endpoint keeps this structure alive, so no object of the domain is open.
        let left_open = unsafe { close(self.domain) } != 0;
        // A fabric cannot be closed while its domain is open. Both then stay open.
        if !left_open {
            // SAFETY: as above.
            unsafe { close(self.fabric) };
        }
    }
}

/// Closes a libfabric object; ignores null.
///
/// # Safety
/// The object is open or null, and is not used afterwards.
pub(crate) unsafe fn close<T>(object: *mut T) -> i32 {
    let object: *mut fid = object.cast();
    // SAFETY: every libfabric object begins with a fid, and the object is open.
    let Some(head) = (unsafe { object.as_ref() }) else { return 0 };
    // SAFETY: an open object has its table.
    let table = unsafe { &*head.ops };
    let Some(call) = table.close else { return -FI_ENOSYS };
    // SAFETY: the caller's promise.
    unsafe { call(object) }
}
