//! The simulated fabric (weft-sim) as a [`Device`] of the provider.
//!
//! Place in the data flow: `Engine` → [`SimDevice`] → `SimNic` → fabric. Only tests load the provider library over this
//! device (weft-fi-sim). It gives clients' calls devices that reorder messages, can neither get nor put, have tiny
//! mailboxes, or are always full. The ranks of weft-gex's simulated runs use it, too.
//!
//! The variable `FI_WEFT_SIM` names the kind of the fabric on which [`Device::open`] opens devices. Others have a
//! [`World`] of their own. All endpoints are in this process, so a peer's addresses are valid here.
//!
//! Virtual time advances when a poll finds nothing, or by its owner. Therefore only manual progress is possible: no
//! thread can sleep.
//!
//! Invariant: a fabric is made for one thread. It is accessed only under the lock of its [`World`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, LazyLock};

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};
use rustix::event::{EventfdFlags, eventfd};
use weft_engine::mem::Iov;
use weft_engine::name::EpName;
use weft_engine::nic::{
    Chaining, Demands, DirectCopy, Full, LinkError, LinkId, Nic, Notice, Refused, Registrar, RemoteIov, Share, Sink,
    Span,
};
use weft_nic::{Config, Device, NicError, Stats, Unsent};
use weft_os::UnmapWatch;
use weft_sim::{Fabric, FabricConfig, Registration, SimNic};

/// The fabric of [`Device::open`]; `None` if its kind is unknown.
static WORLD: LazyLock<Option<World>> = LazyLock::new(|| {
    let config = config(&std::env::var("FI_WEFT_SIM").unwrap_or_default())?;
    Some(World::new(config, Clock::Polls))
});

/// The cause by which virtual time advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// A poll that finds nothing.
    Polls,
    /// The owner of the fabric.
    Owner,
}

/// A fabric whose devices several threads use in turn.
#[derive(Clone)]
pub struct World(Arc<ReentrantMutex<Shared>>);

struct Shared {
    fabric: Fabric,
    clock: Clock,
}

// SAFETY: the fabric is accessed only under the lock, and so are the devices that share its state.
unsafe impl Send for Shared {}

impl World {
    /// A fabric without endpoints.
    #[must_use]
    pub fn new(config: FabricConfig, clock: Clock) -> Self {
        let fabric = Fabric::new(config);
        fabric.set_resolver(resolve);
        Self(Arc::new(ReentrantMutex::new(Shared { fabric, clock })))
    }

    /// Uses the fabric. The call may come from inside a poll.
    pub fn with<R>(&self, work: impl FnOnce(&Fabric) -> R) -> R {
        work(&self.0.lock().fabric)
    }

    /// Makes a device. `reserved` is the number of its endpoint if that has a name already.
    ///
    /// # Errors
    /// The system refuses a descriptor.
    pub fn device(&self, reserved: Option<usize>, observes: bool) -> Result<Box<SimDevice>, NicError> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC).map_err(NicError::system("eventfd"))?;
        let nic = self.with(|fabric| match reserved {
            Some(ep) => fabric.start(ep),
            None => fabric.nic(),
        });
        let unmaps = if observes && nic.demands().is_some() { UnmapWatch::new() } else { None };
        Ok(Box::new(SimDevice { nic: Some(nic), world: self.clone(), fd, unmaps }))
    }

    /// Lets other threads use the fabric although this one is in a poll. It must never go on.
    pub fn abandon(&self) {
        while self.0.is_owned_by_current_thread() {
            // SAFETY: this thread holds the lock, and does not go on to the code that would release it.
            unsafe { self.0.force_unlock() };
        }
    }
}

/// An endpoint's device.
pub struct SimDevice {
    /// `None` while the device is dropped.
    nic: Option<SimNic>,
    world: World,
    /// Never readable.
    fd: OwnedFd,
    /// Reports of unmapped client memory, if the device demands registration.
    unmaps: Option<UnmapWatch>,
}

// SAFETY: the device is accessed only under the fabric's lock.
unsafe impl Send for SimDevice {}

/// The configuration of a kind of fabric; `None` if the kind is unknown.
fn config(name: &str) -> Option<FabricConfig> {
    let mut config = FabricConfig::new(1);
    // Virtual time advances fast, so a peer that is not polled for long must not count as gone.
    config.connect_timeout_ns = u64::MAX / 4;
    let (caps, faults) = (&mut config.caps, &mut config.faults);
    match name {
        // Gets and puts reach the peer's memory, and messages keep their order.
        "direct" => {}
        // Neither gets nor puts; pushes do not follow.
        "push" => (caps.get, caps.put, caps.push_follows) = (false, false, false),
        // Messages overtake each other, and some gets fail.
        "unordered" => {
            (caps.ordered, caps.push_follows, caps.put) = (false, false, false);
            (faults.reorder_permille, faults.reorder_ns, faults.access_fail_permille) = (500, 20_000, 100);
        }
        // The smallest sizes that the contract allows.
        "tiny" => {
            (caps.mailbox_bytes, caps.inline_bytes, caps.eager_bytes) = (256, 0, 100);
            (caps.get, caps.push_follows) = (false, false);
            (config.queue_depth, config.transfer_depth, config.segment_bytes, config.poll_budget) = (1, 1, 333, 1);
        }
        // The device is often full, late, and transfers small parts.
        "rough" => {
            (caps.ordered, caps.get, caps.put, caps.push_follows) = (false, false, false, false);
            (faults.full_permille, faults.gather_permille, faults.short_place_permille) = (300, 500, 500);
            (faults.stall_permille, faults.stall_ns, faults.idle_poll_permille) = (50, 200_000, 300);
            (faults.reorder_permille, faults.reorder_ns) = (300, 20_000);
        }
        // Gets and puts access only registered memory. Registration takes long, and the amount is limited.
        "registered" => {
            let demands = Demands { cost_ns: 10_000, align_bytes: 4096, regions: 16, bytes: 1 << 20 };
            config.registration = Some(Registration { demands, end_ns: 5_000, observed: true });
        }
        _ => return None,
    }
    Some(config)
}

/// A peer's memory, which is in this process's address space.
fn resolve(piece: RemoteIov) -> Iov {
    let (addr, len) = (usize::try_from(piece.addr).unwrap_or(0), usize::try_from(piece.len).unwrap_or(0));
    // SAFETY: the engine names only memory that its client has lent to it.
    unsafe { Iov::new(std::ptr::with_exposed_provenance_mut(addr), len) }
}

impl SimDevice {
    /// The device, and the lock that guards it.
    fn nic(&mut self) -> (&mut SimNic, ReentrantMutexGuard<'_, Shared>) {
        let guard = self.world.0.lock();
        match &mut self.nic {
            Some(nic) => (nic, guard),
            None => unreachable!("only `drop` takes it"),
        }
    }
}

impl Drop for SimDevice {
    fn drop(&mut self) {
        let world = self.world.0.lock();
        drop(self.nic.take());
        let broken = world.fabric.violations();
        assert!(broken.is_empty(), "the engine has broken the contract of devices: {broken:?}");
    }
}

impl Registrar for SimDevice {
    const REGISTERS: bool = true;

    fn demands(&self) -> Option<Demands> {
        let _guard = self.world.0.lock();
        self.nic.as_ref().and_then(SimNic::demands)
    }

    fn span(&mut self, memory: &Iov) -> Span {
        let (nic, _guard) = self.nic();
        nic.span(memory)
    }

    fn register(&mut self, span: Span) -> Result<u64, Refused> {
        let (nic, _guard) = self.nic();
        nic.register(span)
    }

    fn deregister(&mut self, number: u64) {
        let (nic, _guard) = self.nic();
        nic.deregister(number);
    }

    fn watch(&mut self, span: Span) -> bool {
        self.unmaps.as_ref().is_some_and(|unmaps| unmaps.watch(span))
    }

    fn unmapped(&mut self) -> Option<Span> {
        self.unmaps.as_mut()?.unmapped()
    }
}

impl Device for SimDevice {
    /// Only `observe_unmap` of the configuration has an effect.
    fn open(config: &Config) -> Result<Box<Self>, NicError> {
        WORLD.as_ref().ok_or(NicError::NoDevice)?.device(None, config.observe_unmap)
    }

    fn least_mailbox_bytes() -> usize {
        config(&std::env::var("FI_WEFT_SIM").unwrap_or_default()).map_or(usize::MAX, |config| config.caps.mailbox_bytes)
    }

    /// Never readable.
    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// No thread may sleep, because virtual time does not advance between polls.
    fn park(&mut self) -> bool {
        false
    }

    fn arm(&mut self) -> bool {
        false
    }

    fn wake_listener(&mut self) {}

    fn wake(&mut self) {}

    fn is_armed(&self) -> bool {
        false
    }

    fn is_idle(&self) -> bool {
        false
    }

    fn unsent(&self) -> Option<&Arc<Unsent>> {
        None
    }

    fn drain(&mut self) -> bool {
        true
    }

    /// The fabric is memory. A forked child has a copy of its own.
    fn is_ours(&self) -> bool {
        true
    }

    fn device_of(&self, _link: LinkId) -> Option<&'static str> {
        Some("sim")
    }

    /// The fabric has no counters.
    fn stats(&self) -> Stats {
        Stats::default()
    }
}

impl Chaining for SimDevice {}

impl Nic for SimDevice {
    // Without boards, the conformance suite tries collectives by messages.
    weft_engine::decline!(held_bytes, boards);

    fn name(&self) -> EpName {
        let _guard = self.world.0.lock();
        match &self.nic {
            Some(nic) => nic.name(),
            None => unreachable!("only `drop` takes it"),
        }
    }

    fn connect(&mut self, peer: &EpName) -> Result<LinkId, LinkError> {
        let (nic, _guard) = self.nic();
        nic.connect(peer)
    }

    fn send(&mut self, link: LinkId, head: &[u8], body: &[Iov]) -> Result<(), Full> {
        let (nic, _guard) = self.nic();
        nic.send(link, head, body)
    }

    fn push(&mut self, link: LinkId, window: u64, offset: u64, src: &[Iov], ctx: u64) -> Result<(), Full> {
        let (nic, _guard) = self.nic();
        nic.push(link, window, offset, src, ctx)
    }

    fn copy(&mut self, link: LinkId, copy: &DirectCopy<'_>) -> Result<Option<Share>, Full> {
        let (nic, _guard) = self.nic();
        nic.copy(link, copy)
    }

    fn confirm(&mut self, link: LinkId, number: u32) {
        let (nic, _guard) = self.nic();
        nic.confirm(link, number);
    }

    fn notice(&mut self, peer: &EpName, notice: Notice) {
        let (nic, _guard) = self.nic();
        nic.notice(peer, notice);
    }

    fn flush(&mut self) {
        let (nic, _guard) = self.nic();
        nic.flush();
    }

    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize {
        let (nic, shared) = self.nic();
        let calls = nic.poll(sink);
        if calls == 0 && shared.clock == Clock::Polls {
            shared.fabric.advance();
        }
        calls
    }

    fn close(&mut self, link: LinkId) {
        let (nic, _guard) = self.nic();
        nic.close(link);
    }

    fn drained(&self) -> bool {
        let _guard = self.world.0.lock();
        self.nic.as_ref().is_none_or(SimNic::drained)
    }
}
