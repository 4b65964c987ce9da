//! State of an endpoint that only control calls need, and the calls that adjust it.
//!
//! Place in the data flow: [`super::open`] makes the [`Setup`], [`mod@super::bind`] and [`super::options`] change it,
//! [`super::enable`] reads it. Here are `fi_control`, aliases, and local addresses.
//!
//! Errors: -FI_EOPBADSTATE for calls that come after enable, -FI_EINVAL for flags that do not go together.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use weft_engine::api::{Matching, RecvFlags};
use weft_engine::name::EpName;
use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::abi::object::{self, Head, Hold, Uses};
use crate::addr::Format;
use crate::av::Av;
use crate::endpoint::connection::OpenedFrom;
use crate::endpoint::entry::head_of;
use crate::endpoint::flags::Defaults;
use crate::endpoint::opening::decode_local;
use crate::endpoint::shared::{Receives, Stx};
use crate::endpoint::{Ep, Kind, Place};
use crate::eq::Eq;
use crate::info::network::Network;

/// State that only control calls need. Aliases share it.
pub(super) struct Setup<D: Device> {
    /// The address vector.
    pub(super) av: Option<Hold<Av>>,
    /// The event queue. An endpoint with connections reports there; others only keep it open.
    pub(super) eq: Option<Hold<Eq>>,
    /// The shared receive context.
    pub(super) srx: Option<Hold<Ep<D>>>,
    /// The shared transmit context.
    pub(super) stx: Option<Hold<Stx>>,
    /// The shared contexts that must be bound.
    pub(super) shares: Shares,
    /// The network attributes that were asked for.
    pub(super) network: Network,
    /// The format in which the client writes this endpoint's address.
    pub(super) format: Format,
    /// The local address that the client chose.
    pub(super) local: Option<EpName>,
    /// The object that the endpoint was opened from (`fi_info.handle`).
    pub(super) opened_from: OpenedFrom<D>,
    /// The address by which the client knows this endpoint in formats of socket addresses, if it is not the
    /// endpoint's own.
    pub(super) shown: Option<EpName>,
    /// The address that the endpoint has called.
    pub(super) called: Option<EpName>,
    /// A multi-receive buffer with fewer free bytes is released.
    pub(super) min_multi_recv: usize,
    /// Whether shared memory may be used (FI_OPT_SHARED_MEMORY_PERMITTED).
    pub(super) shm: bool,
    /// Whether accesses may be performed in mapped memory.
    pub(super) maps: bool,
    /// How the engine searches its queues.
    pub(super) matching: Matching,
    /// Whether `fi_enable` has succeeded.
    pub(super) enabled: bool,
}

/// The shared contexts that an endpoint's attributes ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shares {
    pub(super) transmit: bool,
    pub(super) receive: bool,
}

impl<D: Device> Setup<D> {
    /// Whether a shared context was asked for and is not bound.
    pub(super) fn lacks_shared_context(&self) -> bool {
        (self.shares.transmit && self.stx.is_none()) || (self.shares.receive && self.srx.is_none())
    }

    /// The receives of the shared receive context.
    pub(super) fn shared_receives(&self) -> Option<&Receives<D>> {
        self.srx.as_ref().and_then(|srx| srx.receives())
    }
}

impl<D: Device> Ep<D> {
    /// Executes a command: `fi_control`.
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
                let flags = self.default_flags(direction)?;
                // SAFETY: the client's flags.
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
            // FI_BACKLOG is for passive endpoints, the remaining commands are for other objects.
            _ => Err(Errno::NOSYS),
        }
    }

    /// The default flags of the direction that `word` names.
    fn default_flags(&self, word: u64) -> Result<u64, Errno> {
        match (word & sys::FI_TRANSMIT != 0, word & sys::FI_RECV != 0) {
            (true, false) => Ok(self.tx.word()),
            (false, true) => Ok(self.rx.word()),
            _ => Err(Errno::INVAL),
        }
    }

    fn set_defaults(&self, word: u64) -> Result<(), Errno> {
        let flags = word & !(sys::FI_TRANSMIT | sys::FI_RECV);
        match (word & sys::FI_TRANSMIT != 0, word & sys::FI_RECV != 0) {
            (true, false) => self.tx.set(&Defaults::transmit(flags)?),
            (false, true) => self.rx.set(&self.receive_defaults(flags)?),
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    fn receive_defaults(&self, flags: u64) -> Result<Defaults<RecvFlags>, Errno> {
        Defaults::receive(flags, self.caps, self.domain.api_version())
    }

    /// A second handle on this endpoint, with default flags of its own in the direction that `word` names.
    fn alias(self: &Arc<Self>, word: u64) -> Result<Arc<Self>, Errno> {
        if self.kind == Kind::Shared {
            return Err(Errno::INVAL);
        }
        let origin = self.parent.as_ref().map_or(self, Hold::arc);
        let alias = Self {
            head: Head::new(head_of::<D>(&self.domain, self.kind, self.ty, self.context())),
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

    /// The format in which the client writes addresses.
    pub(crate) fn format(&self) -> Format {
        self.setup.lock().format
    }

    /// The endpoint's address in the client's format.
    pub(crate) fn own_address(&self) -> Result<Vec<u8>, Errno> {
        let setup = self.setup.lock();
        let shown = setup.shown.filter(|_| setup.format.is_open());
        let own = || shown.or_else(|| self.cell.name()).or(setup.local);
        let name = self.place().map_or_else(own, Place::name).ok_or(Errno::OPBADSTATE)?;
        setup.format.encode(&name)
    }

    /// Sets the local address: `fi_setname`.
    pub(crate) fn set_local_address(&self, bytes: &[u8]) -> Result<(), Errno> {
        let mut setup = self.setup.lock();
        if setup.enabled || self.place().is_some() {
            return Err(Errno::OPBADSTATE);
        }
        setup.local = Some(decode_local(setup.format, bytes)?);
        Ok(())
    }
}
