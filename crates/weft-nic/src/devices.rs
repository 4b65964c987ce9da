//! [`Devices`]: all devices of one endpoint behind one [`Nic`], peer by peer.
//!
//! Place in the data flow: the engine drives it; it drives [`Shm`] and [`Tcp`]. A peer of this host is called over shared memory
//! first; if that fails for any reason (another user, another container, no descriptors left) it is called over TCP under the same
//! link number, and the engine learns only the outcome.
//!
//! Invariants: an outer link number belongs to at most one inner link of one device at a time; the tables that translate are
//! plain vectors, so a message costs two indexed loads here. Errors: [`NicError`] at set-up, `LinkError` for a link.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use weft_engine::mem::{Iov, IovList};
use weft_engine::name::{EpName, NameParts};
use weft_engine::nic::{Full, LinkError, LinkId, LinkUp, Nic, RemoteIov, Sink};

use crate::NicError;
use crate::host;
use crate::shm::{Shm, ShmConfig};
use crate::tcp::{Tcp, TcpConfig};

/// For so long an endpoint whose process lives may leave a caller unanswered, in milliseconds: it may be computing.
const ANSWER_TIMEOUT_MS: u64 = 3_600_000;

/// Settings of an endpoint's devices.
#[derive(Clone, Debug)]
pub struct Config {
    /// Use the addresses of this interface.
    pub iface: Option<String>,
    /// Listen at this address (port 0: any) instead of one chosen by routability.
    pub listen: Option<SocketAddr>,
    /// Whoever knows only address and port may connect.
    pub open: bool,
    /// Both sides of every connection must know it, if set.
    pub job_key: Option<Vec<u8>>,
    /// Use shared memory.
    pub shm: bool,
    /// Use TCP.
    pub tcp: bool,
    /// Use cross-memory attach where the system allows it.
    pub cma: bool,
    /// Longest time in milliseconds for a connection to be made.
    pub connect_timeout_ms: u64,
    /// For so long in milliseconds a refused TCP connection is tried again.
    pub connect_retry_ms: u64,
    /// Longest eager payload over shared memory in bytes, if not the device's own.
    pub shm_eager_bytes: Option<usize>,
    /// Longest eager payload over TCP in bytes, if not the device's own.
    pub tcp_eager_bytes: Option<usize>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            iface: None,
            listen: None,
            open: false,
            job_key: None,
            shm: true,
            tcp: true,
            cma: true,
            connect_timeout_ms: 10_000,
            connect_retry_ms: 1000,
            shm_eager_bytes: None,
            tcp_eager_bytes: None,
        }
    }
}

/// Which device carries a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// The number is in the free list.
    Free,
    /// Shared memory.
    Shm(LinkId),
    /// Shared memory, and TCP if that comes to nothing.
    TryShm(LinkId),
    /// TCP.
    Tcp(LinkId),
}

const UNKNOWN: u32 = u32::MAX;

/// Translates link numbers.
#[derive(Default)]
struct Tables {
    paths: Vec<Path>,
    peers: Vec<Option<EpName>>,
    free: Vec<u32>,
    /// Inner number → outer number.
    shm: Vec<u32>,
    tcp: Vec<u32>,
}

impl Tables {
    fn enter(&mut self, path: Path, peer: Option<EpName>) -> LinkId {
        let outer = self.free.pop().unwrap_or_else(|| {
            self.paths.push(Path::Free);
            self.peers.push(None);
            u32::try_from(self.paths.len() - 1).unwrap_or(UNKNOWN)
        });
        self.redirect(outer, path);
        self.peers[outer as usize] = peer;
        LinkId(outer)
    }

    fn redirect(&mut self, outer: u32, path: Path) {
        self.paths[outer as usize] = path;
        let (map, inner) = match path {
            Path::Shm(inner) | Path::TryShm(inner) => (&mut self.shm, inner),
            Path::Tcp(inner) => (&mut self.tcp, inner),
            Path::Free => return,
        };
        let index = inner.0 as usize;
        if map.len() <= index {
            map.resize(index + 1, UNKNOWN);
        }
        map[index] = outer;
    }

    /// Forgets where the outer link leads.
    fn detach(&mut self, outer: u32) -> Path {
        let path = std::mem::replace(&mut self.paths[outer as usize], Path::Free);
        match path {
            Path::Shm(inner) | Path::TryShm(inner) => self.shm[inner.0 as usize] = UNKNOWN,
            Path::Tcp(inner) => self.tcp[inner.0 as usize] = UNKNOWN,
            Path::Free => {}
        }
        path
    }

    fn leave(&mut self, outer: u32) -> Path {
        let path = self.detach(outer);
        if path != Path::Free {
            self.peers[outer as usize] = None;
            self.free.push(outer);
        }
        path
    }

    #[inline]
    fn path(&self, outer: LinkId) -> Path {
        self.paths.get(outer.0 as usize).copied().unwrap_or(Path::Free)
    }
}

/// Stands between a device and the engine's sink, and translates.
struct Translator<'a, S: Sink, const SHM: bool> {
    sink: &'a mut S,
    tables: &'a mut Tables,
    /// Outer links whose shared-memory attempt has failed, and why.
    failed: &'a mut Vec<(u32, LinkError)>,
}

impl<S: Sink, const SHM: bool> Translator<'_, S, SHM> {
    #[inline]
    fn outer(&self, inner: LinkId) -> LinkId {
        let map = if SHM { &self.tables.shm } else { &self.tables.tcp };
        LinkId(map.get(inner.0 as usize).copied().unwrap_or(UNKNOWN))
    }
}

impl<S: Sink, const SHM: bool> Sink for Translator<'_, S, SHM> {
    fn up(&mut self, link: LinkId, info: LinkUp) {
        let path = if SHM { Path::Shm(link) } else { Path::Tcp(link) };
        let mut outer = self.outer(link);
        if outer.0 == UNKNOWN {
            outer = self.tables.enter(path, Some(info.peer));
        } else {
            self.tables.redirect(outer.0, path);
        }
        let direction = if info.initiator { "to" } else { "from" };
        log::info!("link {direction} {} over {}", info.peer, info.caps.device);
        self.sink.up(outer, info);
    }

    fn down(&mut self, link: LinkId, why: LinkError) {
        let outer = self.outer(link);
        if outer.0 == UNKNOWN {
            return;
        }
        if let Path::TryShm(_) = self.tables.path(outer) {
            self.tables.detach(outer.0);
            self.failed.push((outer.0, why));
            return;
        }
        match (why, self.tables.peers[outer.0 as usize]) {
            (LinkError::Closed, _) | (_, None) => {}
            (_, Some(peer)) => log::warn!("link with {peer} over {} ended: {why}", if SHM { "shm" } else { "tcp" }),
        }
        self.tables.leave(outer.0);
        self.sink.down(outer, why);
    }

    #[inline]
    fn message(&mut self, link: LinkId, bytes: &[u8]) {
        self.sink.message(self.outer(link), bytes);
    }

    #[inline]
    fn place(&mut self, link: LinkId, window: u64, offset: u64, len: usize) -> Option<IovList> {
        self.sink.place(self.outer(link), window, offset, len)
    }

    #[inline]
    fn placed(&mut self, link: LinkId, window: u64, offset: u64, len: usize) {
        self.sink.placed(self.outer(link), window, offset, len);
    }

    #[inline]
    fn done(&mut self, link: LinkId, ctx: u64, result: Result<(), LinkError>) {
        self.sink.done(self.outer(link), ctx, result);
    }
}

/// The devices of one endpoint.
pub struct Devices {
    shm: Option<Shm>,
    tcp: Option<Tcp>,
    tables: Tables,
    failed: Vec<(u32, LinkError)>,
    name: EpName,
    epoll: OwnedFd,
}

impl Devices {
    /// Opens the devices that `config` allows, under a fresh name.
    ///
    /// # Errors
    /// [`NicError`]: no device, no such interface, no such address, port taken, out of descriptors.
    pub fn new(config: &Config) -> Result<Self, NicError> {
        if !config.shm && !config.tcp {
            return Err(NicError::NoDevice);
        }
        let mut parts = NameParts {
            socket: host::choose_address(config.iface.as_deref(), config.listen)?,
            host_id: host::host_id(),
            ep_id: random()?,
            capability: random()?,
            shm: config.shm,
            tcp: config.tcp,
        };
        let job_key = config.job_key.as_deref().map(|key| blake3::derive_key("weft 1 job key", key));
        let tcp = if config.tcp { Some(Tcp::new(&tcp_config(config, job_key), &parts)?) } else { None };
        if let Some(tcp) = &tcp {
            parts.socket = tcp.name().socket();
        }
        let shm = if config.shm { open_shm(config, job_key, &mut parts)? } else { None };
        let name = EpName::full(&parts);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(NicError::system("epoll_create1"))?;
        let fds = [shm.as_ref().map(Shm::wait_fd), tcp.as_ref().map(Tcp::wait_fd)];
        for (token, fd) in (0..).zip(fds.into_iter().flatten()) {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
                .map_err(NicError::system("epoll_ctl"))?;
        }
        Ok(Self { shm, tcp, tables: Tables::default(), failed: Vec::new(), name, epoll })
    }

    /// Readable when there is something to do, provided that [`Self::park`] said `true`.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Prepares for the caller to sleep on [`Self::wait_fd`]. `false`: there is something to do now.
    pub fn park(&mut self) -> bool {
        if !self.failed.is_empty() {
            return false;
        }
        if self.shm.as_mut().is_some_and(|shm| !shm.park()) {
            return false;
        }
        if self.tcp.as_mut().is_some_and(|tcp| !tcp.park()) {
            if let Some(shm) = &mut self.shm {
                shm.unpark();
            }
            return false;
        }
        true
    }

    /// The caller is awake again.
    pub fn unpark(&mut self) {
        if let Some(shm) = &mut self.shm {
            shm.unpark();
        }
        if let Some(tcp) = &mut self.tcp {
            tcp.unpark();
        }
    }

    /// Which device carries a link, for diagnosis: `shm` or `tcp`.
    #[must_use]
    pub fn device(&self, link: LinkId) -> Option<&'static str> {
        match self.tables.path(link) {
            Path::Free => None,
            Path::Shm(_) | Path::TryShm(_) => Some("shm"),
            Path::Tcp(_) => Some("tcp"),
        }
    }

    /// Whether shared memory may reach the peer: it says so, and is on this host as far as can be told.
    fn is_near(&self, peer: &EpName) -> bool {
        let known = if peer.is_full() {
            peer.host_id() != 0 && peer.host_id() == self.name.host_id()
        } else {
            host::is_local(peer.socket().ip())
        };
        known && peer.shm() && self.shm.is_some()
    }

    fn connect_tcp(&mut self, peer: &EpName) -> Result<LinkId, LinkError> {
        match &mut self.tcp {
            Some(tcp) if peer.tcp() => tcp.connect(peer),
            _ => Err(LinkError::Unreachable),
        }
    }

    /// Calls those over TCP whom shared memory could not reach.
    #[cold]
    fn fall_back<S: Sink>(&mut self, sink: &mut S) -> usize {
        let failed = std::mem::take(&mut self.failed);
        let mut calls = 0;
        for (outer, why) in failed {
            let Some(peer) = self.tables.peers[outer as usize] else { continue };
            match self.connect_tcp(&peer) {
                Ok(inner) => {
                    log::debug!("no shared memory with {peer} ({why}): trying tcp");
                    self.tables.redirect(outer, Path::Tcp(inner));
                }
                Err(tcp_why) => {
                    let why = if self.tcp.is_some() && peer.tcp() { tcp_why } else { why };
                    log::warn!("cannot reach {peer}: {why}");
                    self.tables.peers[outer as usize] = None;
                    self.tables.free.push(outer);
                    sink.down(LinkId(outer), why);
                    calls += 1;
                }
            }
        }
        calls
    }
}

fn random() -> Result<[u8; 16], NicError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| NicError::Entropy)?;
    Ok(bytes)
}

fn tcp_config(config: &Config, job_key: Option<[u8; 32]>) -> TcpConfig {
    let defaults = TcpConfig::default();
    TcpConfig {
        bind: config.listen.filter(|socket| socket.port() != 0),
        open: config.open,
        job_key,
        connect_timeout_ms: config.connect_timeout_ms,
        connect_retry_ms: config.connect_retry_ms,
        answer_timeout_ms: ANSWER_TIMEOUT_MS,
        eager_bytes: config.tcp_eager_bytes.unwrap_or(defaults.eager_bytes),
        ..defaults
    }
}

/// Shared memory, or none where the system refuses it and TCP can do its work.
fn open_shm(config: &Config, job_key: Option<[u8; 32]>, parts: &mut NameParts) -> Result<Option<Shm>, NicError> {
    let defaults = ShmConfig::default();
    let settings = ShmConfig {
        service: (config.open && parts.socket.port() != 0).then(|| parts.socket.port()),
        cma: config.cma,
        connect_timeout_ms: ANSWER_TIMEOUT_MS,
        eager_bytes: config.shm_eager_bytes.unwrap_or(defaults.eager_bytes),
        job_key: job_key.unwrap_or_default(),
        ..defaults
    };
    match Shm::new(&settings, EpName::full(parts)) {
        Ok(shm) => Ok(Some(shm)),
        Err(why) if config.tcp => {
            log::warn!("no shared memory, peers on this host are reached over tcp: {why}");
            parts.shm = false;
            Ok(None)
        }
        Err(why) => Err(NicError::Shm(why)),
    }
}

impl Nic for Devices {
    fn name(&self) -> EpName {
        self.name
    }

    fn connect(&mut self, peer: &EpName) -> Result<LinkId, LinkError> {
        let may_use_tcp = self.tcp.is_some() && peer.tcp();
        if self.is_near(peer)
            && let Some(shm) = &mut self.shm
        {
            match shm.connect(peer) {
                Ok(inner) => {
                    let path = if may_use_tcp { Path::TryShm(inner) } else { Path::Shm(inner) };
                    return Ok(self.tables.enter(path, Some(*peer)));
                }
                Err(why) if !may_use_tcp => return Err(why),
                Err(why) => log::debug!("no shared memory with {peer} ({why}): trying tcp"),
            }
        }
        let inner = self.connect_tcp(peer)?;
        Ok(self.tables.enter(Path::Tcp(inner), Some(*peer)))
    }

    #[inline]
    fn send(&mut self, link: LinkId, head: &[u8], body: &[Iov]) -> Result<(), Full> {
        match (self.tables.path(link), &mut self.shm, &mut self.tcp) {
            (Path::Shm(inner), Some(shm), _) => shm.send(inner, head, body),
            (Path::Tcp(inner), _, Some(tcp)) => tcp.send(inner, head, body),
            _ => Err(Full),
        }
    }

    fn push(&mut self, link: LinkId, window: u64, offset: u64, src: &[Iov], ctx: u64) -> Result<(), Full> {
        match (self.tables.path(link), &mut self.shm, &mut self.tcp) {
            (Path::Shm(inner), Some(shm), _) => shm.push(inner, window, offset, src, ctx),
            (Path::Tcp(inner), _, Some(tcp)) => tcp.push(inner, window, offset, src, ctx),
            _ => Err(Full),
        }
    }

    fn get(&mut self, link: LinkId, local: &[Iov], remote: &[RemoteIov], ctx: u64) -> Result<(), Full> {
        match (self.tables.path(link), &mut self.shm) {
            (Path::Shm(inner), Some(shm)) => shm.get(inner, local, remote, ctx),
            _ => Err(Full),
        }
    }

    fn put(&mut self, link: LinkId, local: &[Iov], remote: &[RemoteIov], ctx: u64) -> Result<(), Full> {
        match (self.tables.path(link), &mut self.shm) {
            (Path::Shm(inner), Some(shm)) => shm.put(inner, local, remote, ctx),
            _ => Err(Full),
        }
    }

    #[inline]
    fn flush(&mut self) {
        if let Some(tcp) = &mut self.tcp {
            tcp.flush();
        }
    }

    #[inline]
    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize {
        let Self { shm, tcp, tables, failed, .. } = self;
        let mut calls = 0;
        if let Some(shm) = shm {
            calls += shm.poll(&mut Translator::<S, true> { sink, tables, failed });
        }
        if let Some(tcp) = tcp {
            if calls > 0 {
                tcp.elsewhere();
            }
            calls += tcp.poll(&mut Translator::<S, false> { sink, tables, failed });
        }
        if !self.failed.is_empty() {
            calls += self.fall_back(sink);
        }
        calls
    }

    fn close(&mut self, link: LinkId) {
        self.failed.retain(|(outer, _)| *outer != link.0);
        match (self.tables.leave(link.0), &mut self.shm, &mut self.tcp) {
            (Path::Shm(inner) | Path::TryShm(inner), Some(shm), _) => shm.close(inner),
            (Path::Tcp(inner), _, Some(tcp)) => tcp.close(inner),
            _ => {}
        }
    }

    fn drained(&self) -> bool {
        self.shm.as_ref().is_none_or(Shm::drained) && self.tcp.as_ref().is_none_or(Tcp::drained)
    }
}
