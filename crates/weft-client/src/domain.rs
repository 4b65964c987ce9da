//! A provider opened: fabric and domain, by what is wanted of it.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_fi_sys::*;

use crate::library::{self, Info};
use crate::{Error, Library};

/// Which operations are wanted. Tagged messages always are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Messages without tags.
    pub msg: bool,
    /// Remote reads and writes.
    pub rma: bool,
    /// Remote atomics.
    pub atomic: bool,
}

/// Who moves data when the client does not call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The provider, by a thread or by hardware.
    Auto,
    /// Nobody.
    Manual,
}

/// What the client promises about its threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threading {
    /// One at a time in the domain.
    #[default]
    Domain,
    /// One at a time with an endpoint and its queue.
    Completion,
    /// Nothing.
    Safe,
}

/// What is asked of `fi_getinfo`, as hints.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The provider's name, exactly.
    pub provider: String,
    /// The operations.
    pub caps: Caps,
    /// `None`: the provider's default.
    pub progress: Option<Progress>,
    /// Promises.
    pub threading: Threading,
    /// Operations complete only when the peer has the data.
    pub delivery: bool,
    /// Queues must be able to sleep.
    pub can_sleep: bool,
    /// Receives that shall fit the receive queue. 0: the provider's default.
    pub receives: usize,
}

/// An opened provider. Endpoints keep it open.
#[derive(Clone)]
pub struct Domain(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) library: &'static Library,
    pub(crate) info: Info,
    pub(crate) can_sleep: bool,
    fabric: *mut fid_fabric,
    pub(crate) domain: *mut fid_domain,
    next_key: AtomicU64,
    /// Held while objects of the domain are opened or closed: weak threading levels ask for that.
    control: Mutex<()>,
}

// SAFETY: the pointers are used under `control` only, and the structure is not changed after it was made.
unsafe impl Send for Inner {}
// SAFETY: the same.
unsafe impl Sync for Inner {}

/// Modes of registration that we know how to honour.
const MR_MODES: i32 = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;

fn hints(library: &'static Library, wanted: &Wanted) -> Result<Info, Error> {
    let mut hints = library.allocate()?;
    hints.set_provider(&wanted.provider)?;
    let mut caps = FI_TAGGED;
    for (bit, want) in [(FI_MSG, wanted.caps.msg), (FI_RMA, wanted.caps.rma), (FI_ATOMIC, wanted.caps.atomic)] {
        caps |= if want { bit } else { 0 };
    }
    let info = hints.get_mut();
    info.caps = caps;
    info.mode = FI_CONTEXT | FI_CONTEXT2;
    hints.ep_mut().type_ = FI_EP_RDM;
    let domain = hints.domain_mut();
    domain.mr_mode = MR_MODES;
    domain.threading = match wanted.threading {
        Threading::Domain => FI_THREAD_DOMAIN,
        Threading::Completion => FI_THREAD_COMPLETION,
        Threading::Safe => FI_THREAD_SAFE,
    };
    domain.data_progress = match wanted.progress {
        None => FI_PROGRESS_UNSPEC,
        Some(Progress::Auto) => FI_PROGRESS_AUTO,
        Some(Progress::Manual) => FI_PROGRESS_MANUAL,
    };
    // What MPI needs; every provider here has it, and leaving it out would let some be quicker than MPI ever sees them.
    hints.tx_mut().msg_order = FI_ORDER_SAS;
    hints.rx_mut().msg_order = FI_ORDER_SAS;
    hints.rx_mut().size = wanted.receives;
    if wanted.delivery {
        hints.tx_mut().op_flags = FI_DELIVERY_COMPLETE;
    }
    Ok(hints)
}

/// libfabric gives no reasons; these are the likely ones.
fn not_offered(wanted: &Wanted) -> Error {
    let mut what = Vec::new();
    let Caps { msg, rma, atomic } = wanted.caps;
    for (name, want) in [("msg", msg), ("RMA", rma), ("atomics", atomic), ("delivery completion", wanted.delivery)] {
        if want {
            what.push(name);
        }
    }
    match (what.as_slice(), wanted.progress) {
        ([], None) => Error::NotOffered("no tagged messages between reliable-datagram endpoints".to_owned()),
        ([], Some(_)) => Error::NotOffered("no such progress".to_owned()),
        (names, _) => Error::NotOffered(format!("no {}", names.join(", or no "))),
    }
}

impl Domain {
    /// Opens a provider.
    pub fn open(library: &'static Library, wanted: &Wanted) -> Result<Self, Error> {
        let hints = hints(library, wanted)?;
        let found = match library.getinfo(0, Some(&hints)) {
            Err(Error::Call { code: FI_ENODATA, .. }) => return Err(not_offered(wanted)),
            other => other?,
        };
        // A layered provider ("tcp;ofi_rxm") may come first; it is another provider.
        let exact = found.iter().find(|info| library::provider(info) == wanted.provider);
        let info = exact.ok_or_else(|| not_offered(wanted))?;
        let info = library.copy(info)?;
        let fabric = library.open_fabric(&info)?;
        let mut inner = Inner {
            library,
            info,
            can_sleep: wanted.can_sleep,
            fabric,
            domain: null_mut(),
            next_key: AtomicU64::new(1),
            control: Mutex::new(()),
        };
        // SAFETY: it was just opened.
        let table = unsafe { &*fabric };
        // SAFETY: an open fabric has its table.
        let table = unsafe { &*table.ops };
        let open = table.domain.ok_or_else(|| Error::NotOffered("there are no domains".to_owned()))?;
        // SAFETY: fabric and structure are the library's own; the result goes to a field that nobody else sees yet.
        let result = unsafe { open(fabric, inner.info.raw, &mut inner.domain, null_mut()) };
        library.check("fi_domain", result as isize)?;
        Ok(Self(Arc::new(inner)))
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }

    /// What the provider counts inside, where it has weft's extension for that (fi_weft(7), "EXTENSIONS").
    #[must_use]
    pub fn stats(&self) -> Option<Stats> {
        // SAFETY: it is open.
        let domain = unsafe { &*self.0.domain };
        // SAFETY: an open domain has its table.
        let table = unsafe { &*domain.fid.ops };
        let open = table.ops_open?;
        let mut ops = null_mut();
        // SAFETY: it is open, the name is a string, the table goes to a local.
        let result = unsafe { open(self.0.domain.cast(), c"weft_stats".as_ptr(), 0, &mut ops, null_mut()) };
        if result != 0 {
            return None;
        }
        // SAFETY: this is what the table of that name begins with.
        let ops = unsafe { ops.cast::<StatsOps>().as_ref() }?;
        let mut stats = Stats::default();
        // SAFETY: the domain is open, the place has the length that is given along.
        let result = unsafe { (ops.read)(self.0.domain, &mut stats, size_of::<Stats>()) };
        (result == 0).then_some(stats)
    }

    /// The longest message that may be injected, in bytes.
    #[must_use]
    pub fn inject_bytes(&self) -> usize {
        self.0.info.tx().inject_size
    }

    /// The format of addresses, as libfabric numbers them (`FI_SOCKADDR_IN`, …).
    #[must_use]
    pub fn address_format(&self) -> u32 {
        self.0.info.get().addr_format
    }
}

/// What weft counts inside a domain: `struct weft_stats`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// How often a call had to wait at a lock for another thread.
    pub lock_waits: u64,
    /// Rounds in which the thread for automatic progress found something to do.
    pub thread_rounds: u64,
}

/// `struct weft_stats_ops`.
#[repr(C)]
struct StatsOps {
    size: usize,
    read: unsafe extern "C" fn(*mut fid_domain, *mut Stats, usize) -> i32,
}

impl Inner {
    pub(crate) fn serialize(&self) -> MutexGuard<'_, ()> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A key for a registration, where the client chooses them.
    pub(crate) fn next_key(&self) -> u64 {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether registration works in this mode.
    pub(crate) fn mr_mode(&self, bit: i32) -> bool {
        self.info.domain().mr_mode & bit != 0
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: endpoints hold this open, so none is left.
        let left_open = unsafe { close(self.domain) } != 0;
        // Without its domain closed, the fabric stays open too; the process is about to end anyhow.
        if !left_open {
            // SAFETY: the same.
            unsafe { close(self.fabric) };
        }
    }
}

/// Closes a libfabric object, or nothing for null.
///
/// # Safety
/// The object is open (or null), and not used any longer.
pub(crate) unsafe fn close<T>(object: *mut T) -> i32 {
    let object: *mut fid = object.cast();
    // SAFETY: every libfabric object begins with a fid, and it is open.
    let Some(head) = (unsafe { object.as_ref() }) else { return 0 };
    // SAFETY: an open object has its table.
    let table = unsafe { &*head.ops };
    let Some(call) = table.close else { return -FI_ENOSYS };
    // SAFETY: the caller's promise.
    unsafe { call(object) }
}
