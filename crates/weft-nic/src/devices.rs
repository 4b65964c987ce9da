//! Both devices of one endpoint behind one [`Nic`]: shared memory if possible, TCP otherwise.
//!
//! Place in the data flow: the engine drives [`Devices`], which passes each call to [`Shm`] or [`Tcp`] by a table of
//! links. The engine uses the link numbers of this module. The devices' own link numbers stay inside it.
//!
//! The device is chosen for each peer when a link is made. A peer of the same host (equal host identities, or a service
//! name with a local address) is called over shared memory first. If that fails for any reason and both sides allow
//! TCP, the same link is called again over TCP. The engine does not notice. A container with its own user, or a host
//! identity that two hosts share by accident, therefore costs a detour and never a connection.
//!
//! Invariants: each link of a device that is up belongs to exactly one link of this module, and vice versa, except
//! while an attempt changes the device. Every poll looks at what peers have published in shared memory. After a poll
//! that found nothing, some polls look at nothing else. TCP decides by itself how often it polls the kernel, and is
//! notified when shared memory delivered something.
//!
//! Errors: [`NicError`] from [`Devices::new`]. If one device cannot be set up, the endpoint works with the other one,
//! and a warning is logged. If a service was requested, TCP is required.

mod contract;
mod routes;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use weft_engine::board::Board;
use weft_engine::mapped::{Guard, PeerRegion, RegionOffer};
use weft_engine::mem::{Iov, IovList};
use weft_engine::name::{EpName, NameParts, endpoint_id};
use weft_engine::nic::{
    ChainEnd, ChainId, ChainState, ChainStep, Chaining, DirectCopy, Full, LinkError, LinkId, LinkUp, Nic, Notice,
    Registrar, Share, Sink,
};
use weft_os::{Checker, ForkClosedFd};

use routes::{Attempt, Route, Stage, Table, UNMAPPED, Via};

use crate::config::{Config, Extras, Identity, Uring};
use crate::host;
use crate::shm::Shm;
use crate::tcp::{Tcp, TcpLinkInfo, TcpStats};
use crate::{Device, NicError};

/// Translates the link numbers in a device's reports.
struct Relay<'a, S> {
    table: &'a mut Table,
    via: Via,
    sink: &'a mut S,
}

impl<S: Sink> Sink for Relay<'_, S> {
    fn up(&mut self, link: LinkId, info: LinkUp) {
        let mut id = self.table.ours(self.via, link).0;
        if id == UNMAPPED {
            debug_assert!(!info.initiator);
            id = self.table.insert(false);
            self.table.map(id, self.via, link);
        } else {
            self.table.succeed(id);
        }
        let direction = if info.initiator { "to" } else { "from" };
        log::info!("link {direction} {} over {}", info.peer, info.caps.device);
        self.sink.up(LinkId(id), info);
    }

    fn down(&mut self, link: LinkId, why: LinkError) {
        let id = self.table.ours(self.via, link).0;
        if id == UNMAPPED {
            return;
        }
        let attempt = self.table.attempt(id);
        if self.via == Via::Shm && attempt.is_some_and(|attempt| attempt.may_fall_back) {
            return self.table.defer_to_tcp(id, why);
        }
        match (attempt, why) {
            (Some(attempt), _) => log_unreachable(&attempt.peer, why),
            (None, LinkError::Closed) => log::debug!("link with {}: {why}", shown(self.sink.peer(LinkId(id)))),
            (None, _) => {
                log::warn!("link with {} over {} ended: {why}", shown(self.sink.peer(LinkId(id))), self.via.name());
            }
        }
        self.table.remove(id);
        self.sink.down(LinkId(id), why);
    }

    #[inline(always)]
    fn message(&mut self, link: LinkId, bytes: &[u8]) {
        self.sink.message(self.table.ours(self.via, link), bytes);
    }

    #[inline]
    fn confirmed(&mut self, link: LinkId, number: u32) {
        self.sink.confirmed(self.table.ours(self.via, link), number);
    }

    #[inline]
    fn place(&mut self, link: LinkId, window: u64, offset: u64, len: usize) -> Option<IovList> {
        self.sink.place(self.table.ours(self.via, link), window, offset, len)
    }

    #[inline]
    fn placed(&mut self, link: LinkId, window: u64, offset: u64, len: usize) {
        self.sink.placed(self.table.ours(self.via, link), window, offset, len);
    }

    fn hindered(&mut self, link: LinkId) {
        self.sink.hindered(self.table.ours(self.via, link));
    }

    fn peer(&self, link: LinkId) -> Option<EpName> {
        self.sink.peer(self.table.ours(self.via, link))
    }

    fn holds_more(&mut self, link: LinkId) {
        self.sink.holds_more(self.table.ours(self.via, link));
    }

    fn region(&mut self, link: LinkId, key: u64, region: Option<PeerRegion>) {
        self.sink.region(self.table.ours(self.via, link), key, region);
    }

    fn board(&mut self, link: LinkId, key: u64, board: Option<Board>) {
        self.sink.board(self.table.ours(self.via, link), key, board);
    }

    fn spare_link(&mut self, candidates: &dyn Fn(LinkId) -> bool) -> Option<LinkId> {
        let (table, via) = (&*self.table, self.via);
        let theirs = |link| {
            let (on, inner) = table.way(link);
            on as usize == via as usize && candidates(inner)
        };
        let link = self.sink.spare_link(&theirs)?;
        Some(self.table.remove(link.0).inner)
    }

    fn done(&mut self, link: LinkId, ctx: u64, result: Result<(), LinkError>) {
        self.sink.done(self.table.ours(self.via, link), ctx, result);
    }
}

/// A peer in a log message.
fn shown(peer: Option<EpName>) -> String {
    peer.map_or_else(|| "a peer".to_owned(), |peer| peer.to_string())
}

/// A description of one link, for diagnosis.
#[derive(Clone, Copy, Debug)]
pub struct LinkInfo {
    /// The device of the link; `None` while an attempt changes the device.
    pub device: Option<&'static str>,
    /// Whether our side connected.
    pub initiator: bool,
    /// Whether it is up.
    pub up: bool,
    /// The error with which shared memory failed before TCP took over.
    pub shm_failed: Option<LinkError>,
    /// Details of a link over TCP.
    pub tcp: Option<TcpLinkInfo>,
}

/// Counters of the devices.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Counters of TCP.
    pub tcp: Option<TcpStats>,
    /// Attempts that continued over TCP because shared memory failed.
    pub fallbacks: u64,
    /// Bytes that the process has allocated for peers to map.
    pub mapped_bytes: u64,
}

/// The devices of one endpoint.
pub struct Devices {
    shm: Option<Shm>,
    tcp: Option<Tcp>,
    table: Table,
    name: EpName,
    /// Watches both devices' descriptors. A watch ends only when all copies of the epoll descriptor are closed, so a
    /// forked child must not have one.
    epoll: ForkClosedFd,
    fallbacks: u64,
    /// Number of next polls that look only at what peers have published in shared memory. A call that may give the
    /// devices other work sets it to 0.
    quiet_polls: u32,
}

impl Devices {
    /// Sets up the devices of a new endpoint, with a fresh name.
    ///
    /// # Errors
    /// See [`NicError`], for example: the interface does not exist, the service is taken, or no device is left.
    pub fn new(config: &Config) -> Result<Self, NicError> {
        Self::open(config).map(|devices| *devices)
    }

    /// Opens the devices on the heap: they take 2 KB, and the client's stack may be small.
    fn open_boxed(config: &Config) -> Result<Box<Self>, NicError> {
        if !config.shm && !config.tcp {
            return Err(NicError::NoDevice);
        }
        weft_os::descriptors::make_room();
        let Identity { capability, context } = config.identity.map_or_else(Identity::random, Ok)?;
        let mut me = NameParts {
            socket: host::choose_address(config.iface.as_deref(), config.listen)?,
            host_id: host::host_id(),
            ep_id: endpoint_id(&capability),
            capability,
            context,
            shm: config.shm,
            tcp: config.tcp,
        };
        let checker = Checker::found();
        me.shm &= !config.tcp || checker.is_none_or(Checker::sees_shared_memory);
        if let Some(checker) = checker {
            log::info!("{checker:?} follows this process: peers cannot access its memory; shm {}", on_off(me.shm));
        }
        let addrs = host::choose_addresses(config.iface.as_deref(), me.socket)?;
        let uring = if checker.is_some() && config.uring == Uring::Yes { Uring::No } else { config.uring };
        let second = host::second_address(config.iface.as_deref(), config.listen, me.socket);
        if config.tcp {
            log_choice(&addrs, second);
        }
        let networks = host::Networks::of_this_host();
        let extras = Extras { streams: config.tcp_streams(&addrs), second, networks, uring };
        let tcp = if config.tcp { open_tcp(config, addrs, extras, &mut me)? } else { None };
        let second = second.filter(|_| tcp.is_some());
        me.socket = config.named_socket.unwrap_or(me.socket);
        // The name that peers see must state the devices that were opened. Only shared memory can still fail here.
        let shm = if me.shm { open_shm(config, &mut me, second, tcp.is_some())? } else { None };
        let tcp = match tcp {
            Some(mut tcp) => {
                tcp.rename(named(&me, second));
                Some(tcp)
            }
            None => None,
        };
        let create = || epoll::create(epoll::CreateFlags::CLOEXEC);
        let epoll = ForkClosedFd::new(create).map_err(NicError::system("epoll_create1"))?;
        let parts = [shm.as_deref().map(Shm::wait_fd), tcp.as_deref().map(Tcp::wait_fd)];
        for (data, fd) in (0..).zip(parts.into_iter().flatten()) {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(data), epoll::EventFlags::IN)
                .map_err(NicError::system("epoll_ctl"))?;
        }
        let name = named(&me, second);
        log::debug!("endpoint {name}: shm {}, tcp {}", on_off(shm.is_some()), on_off(tcp.is_some()));
        Ok(Self::join(shm, tcp, name, epoll))
    }

    #[inline(never)] // The devices, before they are boxed again, are on the stack.
    fn join(shm: Option<Box<Shm>>, tcp: Option<Box<Tcp>>, name: EpName, epoll: ForkClosedFd) -> Box<Self> {
        let (shm, tcp) = (shm.map(|shm| *shm), tcp.map(|tcp| *tcp));
        Box::new(Self { shm, tcp, table: Table::default(), name, epoll, fallbacks: 0, quiet_polls: 0 })
    }

    /// The socket at which TCP listens. If TCP is disabled, the socket at which it would.
    #[must_use]
    pub fn socket(&self) -> SocketAddr {
        self.name.socket()
    }

    /// Sleeps until a poll has work, or for `timeout` (`None`: without limit). Returns whether a poll has work.
    ///
    /// # Errors
    /// Those of poll(2). An interruption by a signal ends the sleep without an error.
    pub fn wait(&mut self, timeout: Option<Duration>) -> std::io::Result<bool> {
        if !self.park() {
            self.wake();
            return Ok(true);
        }
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let outcome = rustix::event::poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], timeout.as_ref());
        self.wake();
        match outcome {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// A description of a link; `None` if it does not exist.
    #[must_use]
    pub fn describe(&self, link: LinkId) -> Option<LinkInfo> {
        let route = self.table.route(link)?;
        let tcp = self.tcp.as_ref().filter(|_| route.via == Via::Tcp).and_then(|tcp| tcp.describe(route.inner));
        Some(LinkInfo {
            device: self.device_of(link),
            initiator: route.initiator,
            up: route.stage == Stage::Up,
            shm_failed: self.table.shm_failed(link.0),
            tcp,
        })
    }

    /// Whether shared memory is worth trying.
    fn is_near(&self, peer: &EpName) -> bool {
        if peer.is_full() { peer.same_host(&self.name) } else { host::is_local(peer.socket().ip()) }
    }

    /// Confines the next polls to what peers publish in shared memory, while all else has no work.
    #[inline(never)]
    fn confine_polls(&mut self) {
        let Some(shm) = &mut self.shm else { return };
        let polls = shm.quiet_polls().min(self.tcp.as_ref().map_or(u32::MAX, Tcp::quiet_polls));
        if polls > 0 {
            shm.skip(polls);
            self.tcp.iter_mut().for_each(|tcp| tcp.skip(polls));
            self.quiet_polls = polls;
        }
    }

    /// A poll of everything.
    #[inline(always)] // A frame of its own would be on the client's stack.
    fn poll_all<S: Sink>(&mut self, sink: &mut S) -> usize {
        let mut calls = 0;
        if let Some(shm) = &mut self.shm {
            calls = shm.poll(&mut Relay { table: &mut self.table, via: Via::Shm, sink });
            if calls > 0
                && let Some(tcp) = &mut self.tcp
            {
                tcp.other_device_delivered();
            }
            if self.table.has_fallbacks() {
                self.fall_back(sink);
            }
        }
        if let Some(tcp) = &mut self.tcp {
            calls += tcp.poll(&mut Relay { table: &mut self.table, via: Via::Tcp, sink });
        }
        if calls == 0 {
            self.confine_polls();
        }
        calls
    }

    #[inline(never)]
    fn send_by_tcp(&mut self, via: Via, inner: LinkId, head: &[u8], body: &[Iov]) -> Result<(), Full> {
        self.quiet_polls = 0;
        match &mut self.tcp {
            Some(tcp) if via == Via::Tcp => tcp.send(inner, head, body),
            _ => Err(Full),
        }
    }

    /// Continues over TCP the attempts that failed over shared memory.
    #[cold]
    fn fall_back<S: Sink>(&mut self, sink: &mut S) {
        for (id, why) in self.table.take_fallbacks() {
            let Some(peer) = self.table.attempt(id).map(|attempt| attempt.peer) else { continue };
            log_fallback(&peer, why);
            self.fallbacks += 1;
            let attempt = self.tcp.as_mut().map_or(Err(why), |tcp| tcp.connect(&peer));
            match attempt {
                Ok(inner) => self.table.map(id, Via::Tcp, inner),
                Err(why) => {
                    log_unreachable(&peer, why);
                    self.table.remove(id);
                    sink.down(LinkId(id), why);
                }
            }
        }
    }
}

/// Shared memory and TCP reach any memory.
impl Registrar for Devices {}

impl Chaining for Devices {
    fn offers_chains(&mut self, try_it: bool) -> bool {
        self.tcp.as_mut().is_some_and(|tcp| tcp.offers_chains(try_it))
    }

    fn open_chain(&mut self, ends: &[ChainEnd]) -> Option<ChainId> {
        let theirs = |end: &ChainEnd| match self.table.way(end.link) {
            (Via::Tcp, link) => Some(ChainEnd { link, ..*end }),
            _ => None,
        };
        let ends = ends.iter().map(theirs).collect::<Option<Vec<_>>>()?;
        self.tcp.as_mut()?.open_chain(ends)
    }

    fn start_chain(&mut self, chain: ChainId, steps: &[ChainStep]) -> bool {
        self.tcp.as_mut().is_some_and(|tcp| tcp.start_chain(chain, steps))
    }

    fn poll_chain(&mut self, chain: ChainId) -> ChainState {
        self.tcp.as_mut().map_or(ChainState::Broken, |tcp| tcp.poll_chain(chain))
    }

    fn has_ended_chain(&self, chain: ChainId) -> bool {
        self.tcp.as_ref().is_some_and(|tcp| tcp.has_ended_chain(chain))
    }

    fn chain_arrivals(&self, chain: ChainId) -> u64 {
        self.tcp.as_ref().map_or(0, |tcp| tcp.chain_arrivals(chain))
    }

    fn break_chain(&mut self, chain: ChainId) {
        if let Some(tcp) = &mut self.tcp {
            tcp.break_chain(chain);
        }
    }

    fn close_chain(&mut self, chain: ChainId) -> u64 {
        self.tcp.as_mut().map_or(0, |tcp| tcp.close_chain(chain))
    }
}

impl Nic for Devices {
    fn name(&self) -> EpName {
        self.name
    }

    fn connect(&mut self, peer: &EpName) -> Result<LinkId, LinkError> {
        self.quiet_polls = 0;
        let may_tcp = peer.tcp() && self.tcp.is_some();
        let near = peer.shm() && self.shm.is_some() && self.is_near(peer);
        let attempt = Attempt { peer: *peer, may_fall_back: may_tcp };
        let mut shm_failed = None;
        if let Some(shm) = self.shm.as_mut().filter(|_| near) {
            match shm.connect(peer) {
                Ok(inner) => {
                    let id = self.table.begin(attempt, None);
                    self.table.map(id, Via::Shm, inner);
                    return Ok(LinkId(id));
                }
                Err(why) if !may_tcp => return Err(why),
                Err(why) => {
                    log_fallback(peer, why);
                    self.fallbacks += 1;
                    shm_failed = Some(why);
                }
            }
        }
        let Some(tcp) = self.tcp.as_mut().filter(|_| may_tcp) else {
            log::error!(
                target: PEER_ERRORS,
                "no path to {peer}: it is on another host, and TCP is disabled here or there; allow it (FI_WEFT_TCP)"
            );
            return Err(LinkError::Unreachable);
        };
        let inner = tcp.connect(peer).inspect_err(|&why| log_unreachable(peer, why))?;
        let id = self.table.begin(attempt, shm_failed);
        self.table.map(id, Via::Tcp, inner);
        Ok(LinkId(id))
    }

    #[inline]
    fn send(&mut self, link: LinkId, head: &[u8], body: &[Iov]) -> Result<(), Full> {
        let (via, inner) = self.table.way(link);
        match (via, &mut self.shm) {
            (Via::Shm, Some(shm)) => {
                let result = shm.send(inner, head, body);
                if result.is_err() {
                    self.quiet_polls = 0;
                }
                result
            }
            // A function of its own, because its stack frame would otherwise be set up for shared memory, too.
            _ => self.send_by_tcp(via, inner, head, body),
        }
    }

    #[inline]
    fn confirm(&mut self, link: LinkId, number: u32) {
        let (via, inner) = self.table.way(link);
        if let Some(shm) = self.shm.as_mut().filter(|_| via == Via::Shm) {
            shm.confirm(inner, number);
        }
    }

    fn push(&mut self, link: LinkId, window: u64, offset: u64, src: &[Iov], ctx: u64) -> Result<(), Full> {
        self.quiet_polls = 0;
        let (via, inner) = self.table.way(link);
        match (via, &mut self.shm, &mut self.tcp) {
            (Via::Shm, Some(shm), _) => shm.push(inner, window, offset, src, ctx),
            (Via::Tcp, _, Some(tcp)) => tcp.push(inner, window, offset, src, ctx),
            _ => Err(Full),
        }
    }

    fn announce(&mut self, link: LinkId, head: &[u8], window: u64, src: &[Iov], ctx: u64) -> Result<bool, Full> {
        self.quiet_polls = 0;
        let (via, inner) = self.table.way(link);
        match (via, &mut self.shm, &mut self.tcp) {
            (Via::Shm, Some(shm), _) => shm.announce(inner, head, window, src, ctx),
            (Via::Tcp, _, Some(tcp)) => tcp.announce(inner, head, window, src, ctx),
            _ => Err(Full),
        }
    }

    fn copy(&mut self, link: LinkId, copy: &DirectCopy<'_>) -> Result<Option<Share>, Full> {
        self.quiet_polls = 0;
        let (via, inner) = self.table.way(link);
        match (via, &mut self.shm, &mut self.tcp) {
            (Via::Shm, Some(shm), _) => shm.copy(inner, copy),
            (Via::Tcp, _, Some(tcp)) => tcp.copy(inner, copy),
            _ => Err(Full),
        }
    }

    #[inline]
    fn flush(&mut self) {
        if self.quiet_polls > 0 {
            return;
        }
        if let Some(shm) = &mut self.shm {
            shm.flush();
        }
        if let Some(tcp) = &mut self.tcp {
            tcp.flush();
        }
    }

    #[inline(always)]
    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize {
        if self.quiet_polls > 0
            && let Some(shm) = &mut self.shm
        {
            let calls = shm.poll_published(&mut Relay { table: &mut self.table, via: Via::Shm, sink });
            if calls == 0 {
                self.quiet_polls -= 1;
                return 0;
            }
            self.quiet_polls = 0;
            if let Some(tcp) = &mut self.tcp {
                tcp.other_device_delivered();
            }
            return calls;
        }
        self.poll_all(sink)
    }

    fn make_board(&mut self, bytes: usize) -> Option<Board> {
        self.shm.as_mut()?.make_board(bytes)
    }

    fn shares_boards(&self, link: LinkId) -> bool {
        let (via, inner) = self.table.way(link);
        via == Via::Shm && self.shm.as_ref().is_some_and(|shm| shm.shares_boards(inner))
    }

    fn share_board(&mut self, link: LinkId, key: u64, board: Option<&Board>) -> Result<(), Full> {
        let (via, inner) = self.table.way(link);
        match &mut self.shm {
            Some(shm) if via == Via::Shm => shm.share_board(inner, key, board),
            _ => Ok(()),
        }
    }

    fn share_region(&mut self, link: LinkId, key: u64, offer: Option<RegionOffer<'_>>) -> Result<Option<Guard>, Full> {
        let (via, inner) = self.table.way(link);
        match &mut self.shm {
            Some(shm) if via == Via::Shm => shm.share_region(inner, key, offer),
            _ => Ok(None),
        }
    }

    fn wake_peer(&mut self, link: LinkId) {
        let (via, inner) = self.table.way(link);
        if let Some(shm) = self.shm.as_mut().filter(|_| via == Via::Shm) {
            shm.wake_peer(inner);
        }
    }

    fn close(&mut self, link: LinkId) {
        self.quiet_polls = 0;
        let Route { via, inner, .. } = self.table.remove(link.0);
        match (via, &mut self.shm, &mut self.tcp) {
            (Via::Shm, Some(shm), _) => shm.close(inner),
            (Via::Tcp, _, Some(tcp)) => tcp.close(inner),
            _ => {}
        }
    }

    fn discard(&mut self, link: LinkId) {
        self.quiet_polls = 0;
        match (self.table.way(link), &mut self.tcp) {
            ((Via::Tcp, inner), Some(tcp)) => {
                self.table.remove(link.0);
                tcp.discard(inner);
            }
            _ => self.close(link),
        }
    }

    fn held_bytes(&self, link: LinkId) -> usize {
        let (via, inner) = self.table.way(link);
        match (via, &self.shm, &self.tcp) {
            (Via::Shm, Some(shm), _) => shm.held_bytes(inner),
            (Via::Tcp, _, Some(tcp)) => tcp.held_bytes(inner),
            _ => 0,
        }
    }

    fn notice(&mut self, peer: &EpName, notice: Notice) {
        log_notice(peer, notice);
    }

    fn drained(&self) -> bool {
        self.shm.as_ref().is_none_or(Shm::drained) && self.tcp.as_ref().is_none_or(Tcp::drained)
    }
}

impl std::fmt::Debug for Devices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Devices").field("name", &self.name).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// The target of log lines about single peers, which differ from process to process.
pub const PEER_ERRORS: &str = "weft_nic::peers";

/// Logs the failure of an attempt to connect. It is an error unless the peer has ended or lacks resources, which the
/// configuration of this process does not change.
fn log_unreachable(peer: &EpName, why: LinkError) {
    let level = match why {
        LinkError::Refused | LinkError::Timeout | LinkError::Unreachable => log::Level::Error,
        LinkError::Denied | LinkError::Encryption | LinkError::Protocol => log::Level::Error,
        LinkError::Version(_) | LinkError::Crowded => log::Level::Error,
        LinkError::Closed | LinkError::Gone | LinkError::Cut | LinkError::Access => log::Level::Warn,
        LinkError::Unanswered | LinkError::Evicted => log::Level::Warn,
        LinkError::Descriptors | LinkError::Resources | LinkError::PeerResources => log::Level::Warn,
    };
    let second = peer.second_socket().map(|second| format!(" or {second}")).unwrap_or_default();
    let limit = weft_os::descriptors::most().filter(|_| why == LinkError::Descriptors);
    let limit = limit.map(|limit| format!("; this process may have {limit}")).unwrap_or_default();
    log::log!(target: PEER_ERRORS, level, "cannot reach {peer}{second}: {why}{limit}");
}

/// The endpoint's name.
fn named(me: &NameParts, second: Option<Ipv4Addr>) -> EpName {
    let name = EpName::full(me);
    second.map_or(name, |second| name.with_second(second))
}

/// Logs that a peer of this host cannot be reached by shared memory. Links are slower over TCP, and only the user can
/// install one version for both sides.
fn log_fallback(peer: &EpName, why: LinkError) {
    let level = if matches!(why, LinkError::Version(_)) { log::Level::Error } else { log::Level::Info };
    log::log!(target: PEER_ERRORS, level, "no shared memory with {peer}, using TCP: {why}");
}

/// Logs an act of the engine. Only a change of the configuration prevents that endpoints are refused.
#[cold]
fn log_notice(peer: &EpName, notice: Notice) {
    match notice {
        Notice::RefusedBy(why) => log_unreachable(peer, why),
        Notice::Refuses(why @ LinkError::Version(_)) => {
            log::error!(target: PEER_ERRORS, "a link with {peer} is refused: {why}");
        }
        Notice::Refuses(LinkError::Crowded) => log::error!(
            target: PEER_ERRORS,
            "a link with {peer} is refused: as many endpoints are connected that are in no address vector as may be; \
             raise FI_WEFT_MAX_UNKNOWN_PEERS and `ulimit -n`, or insert the addresses of peers"
        ),
        Notice::Refuses(_) => log::warn!(
            "the link with {peer} has ended: it is in no address vector, and others need its place, its memory or its \
             descriptors; raise FI_WEFT_MAX_UNKNOWN_PEERS, FI_WEFT_UNKNOWN_PEERS_BYTES or `ulimit -n`, or insert the \
             addresses of peers"
        ),
        Notice::Forgets => log::warn!(
            "messages that {peer} has left are dropped: it is in no address vector, and others need its place; receive \
             such messages sooner, or raise FI_WEFT_MAX_UNKNOWN_PEERS and `ulimit -n`"
        ),
    }
}

/// Logs the interfaces at which peers reach the endpoint, and why others are left out.
fn log_choice(addrs: &[SocketAddr], second: Option<Ipv4Addr>) {
    if log::log_enabled!(log::Level::Info) {
        let all = host::interfaces().unwrap_or_default();
        let second = second.map(std::net::IpAddr::V4);
        log::info!("interfaces for other hosts: {}", host::describe_choice(&all, addrs, second));
    }
}

const fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Opens TCP and completes the name's socket. If that fails and TCP is optional, returns `None` and logs a warning.
#[inline(never)] // The device, before it is boxed, is on the stack.
fn open_tcp(
    config: &Config,
    addrs: Vec<SocketAddr>,
    extras: Extras,
    me: &mut NameParts,
) -> Result<Option<Box<Tcp>>, NicError> {
    match Tcp::new(&config.tcp_config(addrs, extras), me).map(Box::new) {
        Ok(tcp) => {
            me.socket = weft_engine::nic::Nic::name(&*tcp).socket();
            Ok(Some(tcp))
        }
        Err(error) if me.shm && config.listen.is_none_or(|at| at.port() == 0) => {
            log::warn!("TCP is not available, only peers on this host can be reached: {error}");
            me.tcp = false;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Opens shared memory. If that fails and TCP is open, returns `None` and logs a warning.
#[inline(never)] // The device, before it is boxed, is on the stack.
fn open_shm(
    config: &Config,
    me: &mut NameParts,
    second: Option<Ipv4Addr>,
    tcp: bool,
) -> Result<Option<Box<Shm>>, NicError> {
    let port = me.socket.port();
    let service = (config.open && port != 0).then_some(port);
    let name = named(me, second);
    let open = |service| Shm::new(&config.shm_config(service), name).map(Box::new);
    let opened = match open(service) {
        Err(error) if service.is_some() && error.raw_os_error() == libc::EADDRINUSE => {
            // Over shared memory, port numbers are one space for all addresses of the host.
            log::warn!(
                "another endpoint serves port {port} by shared memory: clients that know only the port use TCP; choose another port for \
                 shared memory"
            );
            open(None)
        }
        opened => opened,
    };
    match opened {
        Ok(shm) => Ok(Some(shm)),
        Err(error) if tcp => {
            log::warn!("shared memory is not available, peers on this host are reached by TCP: {error}");
            me.shm = false;
            Ok(None)
        }
        Err(error) => Err(NicError::Shm(Box::new(error))),
    }
}
