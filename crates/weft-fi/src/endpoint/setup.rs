//! Opening, enabling and adjusting endpoints: everything before the first operation but what [`mod@super::bind`] does.
//!
//! Place in the data flow: `fi_endpoint` → [`open`]; `fi_enable` → [`Ep::enable`],
//! which makes the devices and the engine and introduces the endpoint to its domain, address vector and progress
//! thread.
//!
//! Errors, as fi_endpoint(3) names them: -FI_ENOCQ and -FI_ENOAV for missing bindings, -FI_EOPBADSTATE for what
//! comes too late, -FI_EINVAL for objects or flags that do not go together.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use weft_engine::Pool;
use weft_engine::api::{Access, Book, Config, Matching, NoBook, OpFlags};
use weft_engine::name::EpName;
use weft_fi_sys as sys;
use weft_nic::{Device, NicError};

use crate::Devices;
use crate::abi::errno::{self, Errno};
use crate::abi::object::{self, Head, Hold, Uses};
use crate::addr::Format;
use crate::av::Av;
use crate::domain::Domain;
use crate::endpoint::cell::{EndpointCell, Eng};
use crate::endpoint::connection::{Origin, Reports};
use crate::endpoint::entry::head_of;
use crate::endpoint::flags::Defaults;
use crate::endpoint::route::Routes;
use crate::endpoint::shared::{Receives, Stx};
use crate::endpoint::tables::includes;
use crate::endpoint::{Ep, Kind, Limits, Place, Sources};
use crate::eq::Eq;
use crate::info::EpType;
use crate::info::hints::Hints;
use crate::info::network::Network;
use crate::info::offer::{self, IOV_LIMIT, MAX_INJECT_BYTES, SHARED_CONTEXT};
use crate::info::order;
use crate::observe::publish::{INTERVAL, Publisher};
use crate::params::Params;
use crate::pep::Request;
use crate::sleep::flusher;
use crate::sleep::lock::Callers;

/// Default of FI_OPT_MIN_MULTI_RECV, in bytes.
const MIN_MULTI_RECV_BYTES: usize = 64;

/// What only control calls need.
pub(crate) struct Setup {
    /// The address vector.
    pub(crate) av: Option<Hold<Av>>,
    /// The event queue: an endpoint with connections reports there, others only hold it so that it cannot be
    /// closed first.
    pub(crate) eq: Option<Hold<Eq>>,
    /// The shared contexts.
    pub(crate) srx: Option<Hold<Ep>>,
    pub(crate) stx: Option<Hold<Stx>>,
    /// Which of them must be bound: for transmitting, for receiving.
    pub(crate) shares: (bool, bool),
    /// What is asked of the network.
    pub(crate) network: Network,
    /// In which format the client writes this endpoint's address.
    pub(crate) format: Format,
    /// The local address that the client chose.
    pub(crate) local: Option<EpName>,
    /// The call that is to be answered (`fi_info.handle`), until it is.
    pub(crate) request: Option<Arc<Request>>,
    /// The address under which the client knows this endpoint in formats of socket addresses, if it is not
    /// the endpoint's own.
    pub(crate) shown: Option<EpName>,
    /// The address that was called.
    pub(crate) called: Option<EpName>,
    /// Devices that a passive endpoint had before.
    pub(crate) devices: Option<Box<Devices>>,
    /// Below how many free bytes a multi-receive buffer is released.
    pub(crate) min_multi_recv: usize,
    /// Whether shared memory may be used (FI_OPT_SHARED_MEMORY_PERMITTED).
    pub(crate) shm: bool,
    /// How queues are searched.
    pub(crate) matching: Matching,
    /// Whether fi_enable has succeeded.
    pub(crate) enabled: bool,
}

/// Whether an endpoint with these capabilities is expected to start operations, and needs a queue for them.
fn transmits(caps: u64) -> bool {
    includes(caps, sys::FI_MSG | sys::FI_TAGGED, sys::FI_SEND | sys::FI_RECV, sys::FI_SEND)
        || includes(
            caps,
            sys::FI_RMA | sys::FI_ATOMIC,
            sys::FI_READ | sys::FI_WRITE | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE,
            sys::FI_READ | sys::FI_WRITE,
        )
}

/// Whether it is expected to receive messages.
fn receives(caps: u64) -> bool {
    includes(caps, sys::FI_MSG | sys::FI_TAGGED, sys::FI_SEND | sys::FI_RECV, sys::FI_RECV)
}

/// What peers may do at an endpoint with these capabilities. Where they may not, they are told that they lack
/// the right, as at a region that does not grant it.
fn open_to(caps: u64) -> Access {
    let role = |role| {
        let all = sys::FI_READ | sys::FI_WRITE | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;
        includes(caps, sys::FI_RMA | sys::FI_ATOMIC, all, role)
    };
    Access { read: role(sys::FI_REMOTE_READ), write: role(sys::FI_REMOTE_WRITE) }
}

/// Checks the attributes and makes a handle that is not enabled yet.
pub(super) fn open(
    domain: Hold<Domain>,
    info: &Hints,
    kind: Kind,
    place: Option<Place>,
    context: *mut c_void,
) -> Result<Arc<Ep>, Errno> {
    let ty = EpType::from_raw(info.ep.map_or(sys::FI_EP_UNSPEC, |attr| attr.type_)).ok_or(Errno::NOSYS)?;
    if ty == EpType::Msg && domain.callers() == Callers::One {
        log::info!(
            "fi_endpoint: the domain was opened for another type than FI_EP_MSG; open one with an fi_info of that type"
        );
        return Err(Errno::INVAL);
    }
    let shares =
        info.ep.map_or((false, false), |attr| (attr.tx_ctx_cnt == SHARED_CONTEXT, attr.rx_ctx_cnt == SHARED_CONTEXT));
    // An endpoint as such has one of each.
    if info.ep.is_some_and(|attr| [attr.tx_ctx_cnt, attr.rx_ctx_cnt].iter().any(|&n| n > 1 && n != SHARED_CONTEXT)) {
        return Err(Errno::INVAL);
    }
    let (format, local) = local(info)?;
    let caps = kind.caps(info.caps);
    let sources = Sources::of(caps, domain.api_version(), kind);
    let triggers = caps & domain.caps() & sys::FI_TRIGGER != 0;
    let routes = Routes { format, context: context.addr(), ..Routes::default() };
    let limits = limits_of(domain.params(), ty, info)?;
    let matching = domain.params().matching;
    let shared =
        (kind == Kind::Shared).then(|| Receives::new(Pool::new(matching, limits.receives(), MIN_MULTI_RECV_BYTES)));
    // No threading level covers a context that several endpoints share.
    let callers = if shared.is_some() { Callers::Any } else { domain.callers() };
    // SAFETY: what the client promised for its domain, passed on.
    let mut cell = unsafe { EndpointCell::new(&domain, callers, triggers, open_to(caps), routes, shared) };
    let network = domain.network().of_endpoint(domain.api_version(), info)?;
    cell.auth_key.clone_from(&network.auth_key);
    if kind == Kind::Shared {
        // Whether successes make entries is up to the endpoints.
        cell.bound.set_rx_selective();
    }
    let tx = Defaults::transmit(info.tx.map_or(0, |attr| attr.op_flags))?;
    let rx = Defaults::receive(info.rx.map_or(0, |attr| attr.op_flags), caps, domain.api_version())?;
    // Last of what may fail: a passive endpoint keeps its address until there is an endpoint that takes it over.
    let origin = Origin::of(info, ty, local)?;
    Ok(Arc::new(Ep {
        head: Head::new(head_of(kind, ty, context)),
        cell: Arc::new(cell),
        tx,
        rx,
        send_order: info
            .tx
            .filter(|attr| attr.msg_order & order::AFTER_ACCESSES != 0)
            .map_or(OpFlags::empty(), |_| OpFlags::AFTER_ACCESSES),
        limits,
        sources,
        context: context.addr(),
        kind,
        place,
        endpoint_mask: AtomicU64::new(u64::MAX),
        ty,
        caps,
        setup: Arc::new(Mutex::new(Setup {
            av: None,
            eq: None,
            srx: None,
            stx: None,
            shares,
            network,
            format,
            local: origin.local,
            shown: origin.request.as_ref().map(|request| request.listens_at),
            request: origin.request,
            called: None,
            devices: origin.devices,
            min_multi_recv: MIN_MULTI_RECV_BYTES,
            shm: true,
            matching,
            // A shared context is ready as it is.
            enabled: kind == Kind::Shared,
        })),
        uses: Uses::new(),
        parent: None,
        domain,
    }))
}

/// The bounds that the attributes ask for: zero is the default.
fn limits_of(params: &Params, ty: EpType, info: &Hints) -> Result<Limits, Errno> {
    let choose = |asked: usize, default: usize| if asked == 0 { default } else { asked };
    let inject_asked = info.tx.map_or(0, |attr| attr.inject_size);
    let limits = Limits {
        iov: IOV_LIMIT,
        rma_iov: IOV_LIMIT,
        inject_bytes: inject_asked.max(params.inject_bytes),
        max_msg_bytes: choose(info.ep.map_or(0, |attr| attr.max_msg_size), ty.max_msg_bytes()),
        tx_depth: choose(info.tx.map_or(0, |attr| attr.size), params.tx_size),
        rx_depth: choose(info.rx.map_or(0, |attr| attr.size), params.rx_size),
    };
    let iov_asked = info.tx.map_or(0, |attr| attr.iov_limit.max(attr.rma_iov_limit));
    let iov_asked = iov_asked.max(info.rx.map_or(0, |attr| attr.iov_limit));
    let queue_asked = info.tx.map_or(0, |attr| attr.size).max(info.rx.map_or(0, |attr| attr.size));
    if iov_asked > IOV_LIMIT
        || limits.max_msg_bytes > ty.max_msg_bytes()
        || inject_asked > MAX_INJECT_BYTES.max(params.inject_bytes)
        || queue_asked > offer::longest_queue(params)
    {
        return Err(Errno::INVAL);
    }
    Ok(limits)
}

/// Why there are no devices.
#[allow(clippy::needless_pass_by_value)] // For `map_err`.
pub(crate) fn refused(error: NicError) -> Errno {
    errno::told("fi_enable", &error)
}

/// The address that the client has chosen, and in which format it writes addresses.
pub(super) fn local(info: &Hints) -> Result<(Format, Option<EpName>), Errno> {
    let format = Format::from_raw(info.addr_format).ok_or(Errno::INVAL)?;
    let local = info.src.as_deref().map(|bytes| decode_local(format, bytes)).transpose()?;
    Ok((format, local))
}

pub(crate) fn decode_local(format: Format, bytes: &[u8]) -> Result<EpName, Errno> {
    // Strings may come with their terminator.
    let bytes = if format == Format::Text { bytes.strip_suffix(b"\0").unwrap_or(bytes) } else { bytes };
    format.decode(bytes)
}

impl Ep {
    /// `fi_enable`.
    pub(crate) fn enable(&self) -> Result<(), Errno> {
        if self.parent.is_some() {
            return Err(Errno::INVAL);
        }
        if self.kind == Kind::Shared {
            return Ok(());
        }
        let mut setup = self.setup.lock();
        let (sends, receives_shared) = setup.shares;
        if setup.enabled || (sends && setup.stx.is_none()) || (receives_shared && setup.srx.is_none()) {
            return Err(Errno::OPBADSTATE);
        }
        let place = self.place();
        if let Some(place) = place {
            setup.av = place.av();
        }
        let book = match (&setup.av, self.ty) {
            (Some(av), _) => av.book(),
            (None, EpType::Msg) => Arc::new(NoBook) as Book,
            (None, EpType::Rdm | EpType::Dgram) => return Err(Errno::NOAV),
        };
        let reports = self.reports(&setup)?;
        let mut state = self.cell.state();
        let routes = &state.routes;
        let without = if transmits(self.caps) {
            routes.tx.is_none()
        } else {
            // One that also transmits may never receive: fi_recv is refused then, and the other queue makes
            // it progress.
            receives(self.caps) && routes.rx.is_none()
        };
        // Receives that are shared complete here, too.
        if without || (setup.srx.is_some() && routes.rx.is_none()) {
            return Err(Errno::NOCQ);
        }
        let devices = self.devices(&mut setup)?;
        let mut engine = Eng::boxed(self.engine_config(&setup), devices);
        engine.set_min_multi_recv(setup.min_multi_recv);
        engine.set_remote_events(routes.counts_remote());
        engine.set_source_errors(self.caps & sys::FI_SOURCE_ERR != 0);
        let shared = setup.srx.as_ref().and_then(|srx| srx.receives());
        if let Some(shared) = shared {
            shared.attach(&self.cell, setup.av.as_ref())?;
            engine.bind_pool(Arc::clone(&shared.pool), self.cell.pool_user());
        }
        if let Some(av) = &setup.av {
            // The receives that are shared are for endpoints with the same vector.
            for ep in std::iter::once(self).chain(setup.srx.as_deref()) {
                ep.endpoint_mask.store(av.endpoint_mask(), Ordering::Relaxed);
            }
        }
        let publisher = if self.domain.params().stats { Publisher::new() } else { None };
        state.install(engine, book, publisher);
        self.cell.publish(&mut state, INTERVAL);
        state.routes.reports = reports;
        if let Some(table) = setup.av.as_ref().and_then(|av| av.user_ids()) {
            state.routes.set_user_ids(table);
        }
        drop(state);
        if let Some(av) = &setup.av {
            av.attach(&self.cell);
        }
        let joined = self.domain.attach(&self.cell).and_then(|()| match self.domain.auto_progress() {
            Some(auto) => auto.join(&self.cell),
            None => Ok(()),
        });
        if let Err(errno) = joined {
            if let Some(av) = &setup.av {
                av.detach(&self.cell);
            }
            self.domain.detach(&self.cell);
            shared.inspect(|shared| shared.detach(&self.cell));
            self.cell.control().engine = None;
            return Err(errno);
        }
        if let Some(eq) = setup.eq.as_ref().filter(|_| self.ty == EpType::Msg) {
            eq.drive(Arc::clone(&self.cell) as _);
        }
        place.inspect(|place| place.join(&self.cell));
        flusher::join(&self.cell);
        // Who sleeps on a queue or counter already has not parked these devices.
        self.cell.state().routes.notify();
        setup.enabled = true;
        Ok(())
    }

    #[inline(never)] // Little of the stack is taken when it is called.
    fn devices(&self, setup: &mut Setup) -> Result<Box<Devices>, Errno> {
        match (setup.devices.take(), self.place()) {
            (Some(devices), _) => Ok(devices),
            (None, Some(place)) => place.devices(&setup.network, setup.shm),
            (None, None) => {
                // The peer that a connected endpoint calls back has a full name.
                let open = self.ty != EpType::Msg && setup.format.is_open();
                let config = self.domain.devices_config(&setup.network, setup.local, open, setup.shm);
                Devices::open(&config).map_err(refused)
            }
        }
    }

    /// Where connections are reported.
    fn reports(&self, setup: &Setup) -> Result<Option<Reports>, Errno> {
        if self.ty != EpType::Msg {
            return Ok(None);
        }
        let eq = setup.eq.clone().ok_or(Errno::NOEQ)?;
        Ok(Some(Reports { eq, fid: std::ptr::from_ref(self).addr(), request: RefCell::default() }))
    }

    fn engine_config(&self, setup: &Setup) -> Config {
        let params = self.domain.params();
        Config {
            inject_bytes: self.limits.inject_bytes,
            tx_depth: self.limits.tx_depth,
            rx_depth: self.limits.receives(),
            window_bytes: params.unexpected_window_bytes.max(self.ty.least_window_bytes()),
            // A datagram goes at once or not at all.
            eager_bytes: if self.ty == EpType::Dgram { Some(self.limits.max_msg_bytes) } else { params.eager_bytes },
            max_msg_bytes: self.limits.max_msg_bytes as u64,
            max_strangers: most_strangers(params.max_unknown_peers),
            stranger_bytes: params.unknown_peers_bytes,
            matching: setup.matching,
            mr_cache: params.mr_cache_limits(),
            probe: Some(weft_os::accessible),
            role: self.ty.role(),
        }
    }

    /// `fi_control`.
    ///
    /// # Safety
    /// `arg` is the client's argument for `command`.
    pub(super) unsafe fn control(self: &Arc<Self>, command: u32, arg: *mut c_void) -> Result<(), Errno> {
        match command {
            sys::FI_ENABLE => self.enable(),
            sys::FI_GETOPSFLAG => {
                let word = NonNull::new(arg.cast::<u64>()).ok_or(Errno::INVAL)?;
                // SAFETY: the client's flags.
                let direction = unsafe { word.read() };
                let flags = self.defaults(direction)?.word();
                // SAFETY: as above.
                unsafe { word.write(flags) };
                Ok(())
            }
            sys::FI_SETOPSFLAG => {
                let word = NonNull::new(arg.cast::<u64>()).ok_or(Errno::INVAL)?;
                // SAFETY: the client's flags.
                self.set_defaults(unsafe { word.read() })
            }
            sys::FI_ALIAS => {
                let alias = NonNull::new(arg.cast::<sys::fi_alias>()).ok_or(Errno::INVAL)?;
                // SAFETY: the client's request.
                let request = unsafe { alias.read() };
                let out = NonNull::new(request.fid).ok_or(Errno::INVAL)?;
                let handle = self.alias(request.flags)?;
                // SAFETY: the client's place for the new pointer.
                unsafe { out.write(object::into_raw(handle).cast()) };
                Ok(())
            }
            // FI_BACKLOG is for passive endpoints, the rest for other objects.
            _ => Err(Errno::NOSYS),
        }
    }

    /// The default flags of the direction that a word names.
    fn defaults(&self, word: u64) -> Result<&Defaults, Errno> {
        match (word & sys::FI_TRANSMIT != 0, word & sys::FI_RECV != 0) {
            (true, false) => Ok(&self.tx),
            (false, true) => Ok(&self.rx),
            _ => Err(Errno::INVAL),
        }
    }

    fn set_defaults(&self, word: u64) -> Result<(), Errno> {
        let flags = word & !(sys::FI_TRANSMIT | sys::FI_RECV);
        let defaults = self.defaults(word)?;
        let new = if word & sys::FI_TRANSMIT != 0 { Defaults::transmit(flags) } else { self.receive_defaults(flags) }?;
        defaults.set(&new);
        Ok(())
    }

    fn receive_defaults(&self, flags: u64) -> Result<Defaults, Errno> {
        Defaults::receive(flags, self.caps, self.domain.api_version())
    }

    /// A second handle on this endpoint, with default flags of its own in one direction.
    fn alias(self: &Arc<Self>, word: u64) -> Result<Arc<Self>, Errno> {
        if self.kind == Kind::Shared {
            return Err(Errno::INVAL);
        }
        let origin = self.parent.as_ref().map_or(self, Hold::arc);
        let alias = Self {
            head: Head::new(head_of(self.kind, self.ty, self.context())),
            cell: Arc::clone(&self.cell),
            tx: Defaults::transmit(self.tx.word())?,
            rx: self.receive_defaults(self.rx.word())?,
            send_order: self.send_order,
            limits: self.limits,
            sources: self.sources,
            context: self.context,
            kind: self.kind,
            ty: self.ty,
            place: None,
            endpoint_mask: AtomicU64::new(u64::MAX),
            caps: self.caps,
            setup: Arc::clone(&self.setup),
            uses: Uses::new(),
            parent: Some(Hold::new(Arc::clone(origin))),
            domain: self.domain.clone(),
        };
        alias.set_defaults(word)?;
        Ok(Arc::new(alias))
    }

    /// The endpoint's address in the client's format.
    pub(crate) fn own_address(&self) -> Result<Vec<u8>, Errno> {
        let setup = self.setup.lock();
        let shown = setup.shown.filter(|_| setup.format.is_open());
        let own = || shown.or_else(|| self.cell.name()).or(setup.local);
        let name = self.place().map_or_else(own, Place::name).ok_or(Errno::OPBADSTATE)?;
        setup.format.encode(&name)
    }

    /// Chooses the local address: `fi_setname`.
    pub(crate) fn set_local_address(&self, bytes: &[u8]) -> Result<(), Errno> {
        let mut setup = self.setup.lock();
        if setup.enabled || self.place().is_some() {
            return Err(Errno::OPBADSTATE);
        }
        setup.local = Some(decode_local(setup.format, bytes)?);
        Ok(())
    }
}

/// Of `asked` peers in no address vector so many may be connected: they leave half of the descriptors to others.
fn most_strangers(asked: usize) -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let half = limit.and_then(|limit| usize::try_from(limit / 2).ok());
    asked.min(half.unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_say_which_queues_are_needed() {
        let both = sys::FI_MSG | sys::FI_TAGGED;
        assert!(transmits(both) && receives(both));
        assert!(transmits(both | sys::FI_SEND) && !receives(both | sys::FI_SEND));
        assert!(!transmits(both | sys::FI_RECV) && receives(both | sys::FI_RECV));
        assert!(transmits(sys::FI_RMA) && !receives(sys::FI_RMA));
        assert!(!transmits(sys::FI_RMA | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE));
        assert!(transmits(sys::FI_ATOMIC | sys::FI_WRITE));
        assert!(!transmits(0) && !receives(0));
    }

    #[test]
    fn capabilities_say_what_peers_may_do() {
        let access = |read, write| Access { read, write };
        assert_eq!(open_to(sys::FI_RMA), access(true, true));
        assert_eq!(open_to(sys::FI_RMA | sys::FI_READ | sys::FI_WRITE), access(false, false));
        assert_eq!(open_to(sys::FI_RMA | sys::FI_WRITE | sys::FI_REMOTE_WRITE), access(false, true));
        assert_eq!(open_to(sys::FI_ATOMIC | sys::FI_REMOTE_READ), access(true, false));
        assert_eq!(open_to(sys::FI_MSG), access(false, false));
    }
}
