//! Chains: frames that are exchanged with several peers, step by step.
//!
//! Place in the data flow: the engine opens a chain over links that are up, and starts its steps
//! ([`Chaining::start_chain`](weft_engine::nic::Chaining::start_chain)). The executor is that of the configuration
//! ([`Uring`]):
//!
//! - The system performs the steps while this process computes. [`ring`] submits them as linked requests. The engine
//!   looks for their end in each round of progress, and a sleeper is woken by the ring's descriptor.
//! - Each poll of the chain performs the steps up to one whose frame is not there. A sleeper is woken by each frame.
//!
//! The frames are the same, so each end of a connection may have either executor.
//!
//! Each end of a chain is a connection of its own, because a link's connection carries other bytes. The side that made
//! the link dials it, with the handshake of a rail ([`super::rails::call`]). Only the two ends of the link know its
//! key. An end carries frames of fixed size and nothing else, and it is never resumed.
//!
//! Invariants:
//!
//! - Encrypted links have no chains, since the system would send plain bytes.
//! - A chain that has failed once is broken. The engine repeats its steps by messages.
//! - A chain is removed only when no request of it is left in the system.
//! - The device has no ring before the first call of [`Tcp::offers_chains`], and none at all if it polls its chains.
//!
//! Errors: a chain that cannot be opened in time, and any unexpected byte, makes it [`ChainState::Broken`].

mod ring;

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use slab::Slab;
use smallvec::SmallVec;
use weft_engine::nic::{CHAIN_STEPS, ChainEnd, ChainId, ChainState, ChainStep};
use weft_os::ForkClosedFd;
use zerocopy::{FromZeros, IntoBytes};

use super::initiator::{Initiator, send_handshake};
use super::rails::call::Call;
use super::resume::ResumeDialogue;
use super::wire::{self, Finish, ReturnVerdict};
use super::{Tcp, Token, sys};
use crate::Uring;
use ring::{FRAME_BYTES, Frames, Request, Ring, frame};

/// Limit of the chains of a device. The ring has room for a completion of each.
const CHAINS_MAX: usize = 64;
/// Limit of connections that wait for their chain to be opened here, of all peers and of one. The oldest gives way.
const EARLY_MAX: usize = 256;
const EARLY_OF_LINK: usize = 16;
/// Time limit in milliseconds for all ends of a chain to be connected. The peers may join later than this side.
const OPEN_MS: u64 = 5000;
/// Sleeps of 10 ms in which the last requests of a device must end.
const WAITS: u32 = 20;

/// The progress of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Ends are being connected, until this time.
    Opening(u64),
    Ready,
    /// The system performs the steps.
    Running,
    /// Polls perform the steps. The one of this index awaits a frame.
    Polled(usize),
    Broken,
}

#[derive(Debug)]
struct Chain {
    phase: Phase,
    ends: Vec<ChainEnd>,
    sockets: Vec<Option<ForkClosedFd>>,
    /// The steps that were started last, with their frames.
    steps: SmallVec<[ChainStep; 16]>,
    frames: Frames,
}

impl Chain {
    /// A bit for each awaited frame that is here.
    fn arrivals(&self) -> u64 {
        let is_here = |(at, step): &(usize, &ChainStep)| !step.sends && self.frames.get(*at) == frame(step.tag);
        self.steps.iter().enumerate().filter(is_here).fold(0, |bits, (at, _)| bits | 1 << at)
    }

    fn has_all(&self) -> bool {
        self.arrivals().count_ones() as usize == self.steps.iter().filter(|step| !step.sends).count()
    }

    /// Performs steps until a frame is not there. Returns the phase after them.
    fn perform(&mut self, mut next: usize) -> Phase {
        while let Some(step) = self.steps.get(next) {
            let Some(Some(socket)) = self.sockets.get(step.end as usize) else { return Phase::Broken };
            let mut bytes = if step.sends { frame(step.tag) } else { [0; FRAME_BYTES] };
            let moved = if step.sends {
                rustix::net::send(socket, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            } else {
                rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT).map(|(len, _)| len)
            };
            match moved {
                Err(Errno::AGAIN) if !step.sends => return Phase::Polled(next),
                Ok(FRAME_BYTES) if bytes == frame(step.tag) => self.frames.set(next, bytes),
                // A part of a frame ends the chain, too. A connection never carries as much as its buffers hold.
                _ => return Phase::Broken,
            }
            next += 1;
        }
        Phase::Ready
    }

    /// Ends both directions of all connections, and thereby the requests that wait for them.
    fn shut(&self) {
        for socket in self.sockets.iter().flatten() {
            // The call fails if the peer has hung up.
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
        }
    }

    /// Takes frames that have arrived since the requests ended.
    fn look_again(&mut self) {
        let mut dry = vec![false; self.sockets.len()];
        for (at, step) in self.steps.iter().enumerate().filter(|(_, step)| !step.sends) {
            let end = step.end as usize;
            let (Some(Some(socket)), Some(dry)) = (self.sockets.get(end), dry.get_mut(end)) else { continue };
            if *dry || self.frames.get(at) == frame(step.tag) {
                continue;
            }
            let mut bytes = [0; FRAME_BYTES];
            match rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((FRAME_BYTES, _)) => self.frames.set(at, bytes),
                _ => *dry = true,
            }
        }
    }
}

/// A connection that this side makes for an end.
#[derive(Debug)]
struct Dial {
    chain: u32,
    end: usize,
    generation: u32,
    socket: ForkClosedFd,
    initiator: Box<Initiator>,
}

/// A connection of a peer for an end that is not open here.
#[derive(Debug)]
struct Early {
    link: u32,
    number: u32,
    socket: ForkClosedFd,
    until_ms: u64,
}

/// The chains of a device.
#[derive(Debug)]
pub(super) struct Chains {
    /// The executor. `No` if the system has refused the ring.
    uring: Uring,
    ring: Option<Ring>,
    chains: Slab<Chain>,
    dials: Slab<Dial>,
    early: Vec<Early>,
    /// Runs of chains that have ended well.
    completed: u64,
}

impl Chains {
    pub(super) fn new(uring: Uring) -> Self {
        Self { uring, ring: None, chains: Slab::new(), dials: Slab::new(), early: Vec::new(), completed: 0 }
    }

    pub(super) fn may_open(&self) -> bool {
        self.uring != Uring::No
    }

    /// The number of connections under way.
    pub(super) fn pending(&self) -> usize {
        self.dials.len()
    }

    pub(super) fn completed(&self) -> u64 {
        self.completed
    }

    /// Notes which chains have ended.
    fn reap(&mut self) {
        let Self { ring: Some(ring), chains, completed, .. } = self else { return };
        ring.reap(|number, outcome| {
            let chain = usize::try_from(number).ok().and_then(|number| chains.get_mut(number));
            let Some(chain) = chain.filter(|chain| chain.phase == Phase::Running) else { return };
            let good = usize::try_from(outcome) == Ok(FRAME_BYTES) && chain.has_all();
            chain.phase = if good { Phase::Ready } else { Phase::Broken };
            *completed += u64::from(good);
        });
    }

    /// Performs steps of a chain whose steps are polled.
    fn perform(&mut self, id: ChainId) {
        let Some(chain) = self.chains.get_mut(id.0 as usize) else { return };
        if let Phase::Polled(next) = chain.phase {
            chain.phase = chain.perform(next);
            self.completed += u64::from(chain.phase == Phase::Ready);
        }
    }

    /// Gives an end its connection. The error returns the connection if no chain waits for it.
    fn fill(
        &mut self,
        epoll: &OwnedFd,
        wanted: impl Fn(u32, &ChainEnd) -> bool,
        socket: ForkClosedFd,
    ) -> Result<(), ForkClosedFd> {
        for (number, chain) in &mut self.chains {
            let Ok(number) = u32::try_from(number) else { continue };
            let Phase::Opening(_) = chain.phase else { continue };
            let place =
                (0..chain.ends.len()).find(|&at| chain.sockets[at].is_none() && wanted(number, &chain.ends[at]));
            let Some(place) = place else { continue };
            let prepared = if self.uring == Uring::Polled {
                // An event for each arrival: a frame may be there before its step.
                let data = epoll::EventData::new_u64(Token::Ring.pack());
                epoll::add(epoll, &socket, data, EventFlags::IN | EventFlags::ET)
            } else {
                // The requests wait in the kernel. A socket that does not block would fail them.
                rustix::io::ioctl_fionbio(&socket, false)
            };
            if prepared.is_err() {
                chain.phase = Phase::Broken;
                return Ok(());
            }
            chain.sockets[place] = Some(socket);
            if chain.sockets.iter().all(Option::is_some) {
                chain.phase = Phase::Ready;
            }
            return Ok(());
        }
        Err(socket)
    }
}

impl Drop for Chains {
    /// Ends the requests that refer to the frames. They end soon after their connections.
    fn drop(&mut self) {
        let Some(ring) = self.ring.take() else { return };
        self.chains.iter().for_each(|(_, chain)| chain.shut());
        self.ring = Some(ring);
        for _ in 0..WAITS {
            self.reap();
            let Some(ring) = self.ring.as_ref().filter(|_| self.is_running()) else { return };
            ring.wait();
        }
        self.chains.iter_mut().filter(|(_, chain)| chain.phase == Phase::Running).for_each(|(_, it)| it.frames.leak());
    }
}

impl Chains {
    fn is_running(&self) -> bool {
        self.chains.iter().any(|(_, chain)| chain.phase == Phase::Running)
    }

    /// Forgets the ring in a forked child, whose parent has the requests.
    pub(super) fn abandon(&mut self) {
        self.ring = None;
    }
}

impl Tcp {
    /// See [`Chaining::offers_chains`](weft_engine::nic::Chaining::offers_chains).
    pub(crate) fn offers_chains(&mut self, try_it: bool) -> bool {
        if try_it && self.chains.uring == Uring::Yes && self.chains.ring.is_none() {
            let opened = Ring::open().and_then(|ring| {
                let data = epoll::EventData::new_u64(Token::Ring.pack());
                epoll::add(&self.epoll, ring.fd(), data, EventFlags::IN)?;
                Ok(ring)
            });
            match opened {
                Ok(ring) => self.chains.ring = Some(ring),
                Err(why) => {
                    self.chains.uring = Uring::No;
                    log::info!(
                        "tcp: io_uring is not available ({why}), so barriers between hosts need progress of this \
                         process; allow it in the sandbox, or set FI_WEFT_COLL_URING=polled, so that the other members \
                         can use it"
                    );
                }
            }
        }
        self.chains.may_open()
    }

    /// See [`Chaining::open_chain`](weft_engine::nic::Chaining::open_chain).
    pub(crate) fn open_chain(&mut self, ends: Vec<ChainEnd>) -> Option<ChainId> {
        if ends.is_empty() || self.chains.chains.len() >= CHAINS_MAX || !self.offers_chains(true) {
            return None;
        }
        let deadline_ms = sys::now_ms() + OPEN_MS;
        let (phase, sockets) = (Phase::Opening(deadline_ms), ends.iter().map(|_| None).collect());
        let frames = Frames::new();
        let chain = Chain { phase, ends: ends.clone(), sockets, steps: SmallVec::new(), frames };
        let id = u32::try_from(self.chains.chains.insert(chain)).ok()?;
        for (at, end) in ends.iter().enumerate() {
            let session = self.links.get(end.link.0).and_then(|link| link.session.as_ref());
            let connects = match session {
                Some(session) if session.is_initiator() => self.dial_chain_end(id, at, end).is_some(),
                Some(_) => {
                    self.take_early(end);
                    true
                }
                None => false,
            };
            if !connects {
                self.break_chain(ChainId(id));
                break;
            }
        }
        self.set_timer(deadline_ms);
        Some(ChainId(id))
    }

    /// Uses the connection of a peer that was faster.
    fn take_early(&mut self, end: &ChainEnd) {
        let early = &mut self.chains.early;
        let Some(at) = early.iter().position(|one| one.link == end.link.0 && one.number == end.ours) else { return };
        let socket = early.swap_remove(at).socket;
        // Only an end that has just been opened is asked for, so that one is there.
        let _ = self.chains.fill(&self.epoll, |_, other| other == end, socket);
    }

    fn dial_chain_end(&mut self, chain: u32, at: usize, end: &ChainEnd) -> Option<()> {
        let there = self.address_of(end.link.0, 0)?;
        let mut initiator = Box::new(Initiator::new());
        let socket = initiator.dial(&there, &self.config).ok()?;
        let generation = self.next_generation();
        let index = u32::try_from(self.chains.dials.vacant_key()).ok()?;
        self.watch(&socket, Token::Chain(index, generation), EventFlags::IN | EventFlags::OUT).ok()?;
        self.chains.dials.insert(Dial { chain, end: at, generation, socket, initiator });
        self.pace.wake();
        self.focus.disturb();
        Some(())
    }

    /// Continues a dialled connection whose socket reported an event.
    pub(super) fn chain_event(&mut self, index: u32, generation: u32) {
        let at = index as usize;
        let Some(dial) = self.chains.dials.get_mut(at).filter(|dial| dial.generation == generation) else { return };
        let (id, place) = (dial.chain, dial.end);
        let Some(end) = self.chains.chains.get(id as usize).and_then(|chain| chain.ends.get(place)).copied() else {
            return;
        };
        let session = self.links.get(end.link.0).and_then(|link| link.session.as_ref());
        let mut further = None;
        let outcome = session.map(|session| {
            let mut call = Call { session, flag: wire::CHAIN, number: end.theirs, further: &mut further };
            dial.initiator.advance(dial.socket.as_fd(), &mut call, false)
        });
        match outcome {
            Some(Ok(None)) if dial.initiator.is_connecting() => {}
            Some(Ok(None)) => {
                let data = epoll::EventData::new_u64(Token::Chain(index, generation).pack());
                if let Err(errno) = epoll::modify(&self.epoll, &dial.socket, data, EventFlags::IN) {
                    sys::cannot_watch(errno);
                }
            }
            Some(Ok(Some(_))) => {
                let socket = self.chains.dials.remove(at).socket;
                self.unwatch(&socket);
                // If the chain has broken meanwhile, the connection ends here.
                let _ = self.chains.fill(&self.epoll, |number, other| number == id && *other == end, socket);
            }
            Some(Err(_)) | None => {
                log::debug!("tcp: a connection for collectives over link {} cannot be made", end.link.0);
                self.break_chain(ChainId(id));
            }
        }
    }

    /// Handles the finish of a half-open connection that becomes an end of a chain, if the proof is right.
    #[inline(never)]
    pub(super) fn judge_chain_end(&mut self, index: usize, dialogue: &ResumeDialogue, finish: &Finish) {
        let number = match self.check_joining(dialogue, finish) {
            Ok(number) => number,
            Err(status) => return self.refuse_finish(index, status),
        };
        let socket = self.halves.remove(index).socket;
        self.unwatch(&socket);
        let link = dialogue.link;
        if send_handshake(socket.as_fd(), ReturnVerdict::new_zeroed().as_bytes()).is_err() {
            return;
        }
        let wanted = |_, end: &ChainEnd| (end.link.0, end.ours) == (link, number);
        if let Err(socket) = self.chains.fill(&self.epoll, wanted, socket) {
            let until_ms = sys::now_ms() + OPEN_MS;
            let of_link = |early: &Early| early.link == link;
            let early = &mut self.chains.early;
            let is_too_much = early.iter().filter(|early| of_link(early)).count() >= EARLY_OF_LINK;
            let oldest = if is_too_much { early.iter().position(of_link) } else { None };
            if let Some(oldest) = oldest.or((early.len() >= EARLY_MAX).then_some(0)) {
                early.remove(oldest);
            }
            self.chains.early.push(Early { link, number, socket, until_ms });
            self.set_timer(until_ms);
        }
    }

    /// See [`Chaining::start_chain`](weft_engine::nic::Chaining::start_chain).
    pub(crate) fn start_chain(&mut self, id: ChainId, steps: &[ChainStep]) -> bool {
        let Chains { ring, chains, uring, .. } = &mut *self.chains;
        let Some(chain) = chains.get_mut(id.0 as usize).filter(|chain| chain.phase == Phase::Ready) else {
            return false;
        };
        if steps.is_empty() || steps.len() > CHAIN_STEPS {
            return false;
        }
        chain.steps.clear();
        chain.steps.extend_from_slice(steps);
        for (at, step) in steps.iter().enumerate() {
            // Every byte that has not arrived differs from the awaited one.
            let bytes = frame(step.tag);
            chain.frames.set(at, if step.sends { bytes } else { bytes.map(|byte| !byte) });
        }
        if *uring == Uring::Polled {
            chain.phase = Phase::Polled(0);
            self.chains.perform(id);
            return true;
        }
        let Some(ring) = ring else { return false };
        let request = |step: &ChainStep| {
            let socket = chain.sockets.get(step.end as usize)?.as_ref()?.as_fd();
            Some(Request { socket, sends: step.sends })
        };
        let Some(requests) = steps.iter().map(request).collect::<Option<SmallVec<[Request<'_>; 16]>>>() else {
            return false;
        };
        if let Err(why) = ring.start(id.0, &requests, &chain.frames) {
            log::info!(
                "tcp: io_uring has failed ({why}): barriers between hosts need progress of this process from now on"
            );
            (*uring, chain.phase) = (Uring::No, Phase::Broken);
            chain.shut();
            chain.frames.leak();
            return false;
        }
        chain.phase = Phase::Running;
        true
    }

    /// See [`Chaining::poll_chain`](weft_engine::nic::Chaining::poll_chain).
    pub(crate) fn poll_chain(&mut self, id: ChainId) -> ChainState {
        self.chains.reap();
        self.chains.perform(id);
        match self.chains.chains.get(id.0 as usize).map(|chain| chain.phase) {
            Some(Phase::Opening(_) | Phase::Running | Phase::Polled(_)) => ChainState::Busy,
            Some(Phase::Ready) => ChainState::Ready,
            Some(Phase::Broken) | None => ChainState::Broken,
        }
    }

    /// See [`Chaining::has_ended_chain`](weft_engine::nic::Chaining::has_ended_chain).
    pub(crate) fn has_ended_chain(&self, id: ChainId) -> bool {
        let phase = self.chains.chains.get(id.0 as usize).map(|chain| chain.phase);
        !matches!(phase, Some(Phase::Opening(_) | Phase::Running | Phase::Polled(_)))
    }

    /// See [`Chaining::chain_arrivals`](weft_engine::nic::Chaining::chain_arrivals).
    pub(crate) fn chain_arrivals(&self, id: ChainId) -> u64 {
        self.chains.chains.get(id.0 as usize).map_or(0, Chain::arrivals)
    }

    /// See [`Chaining::break_chain`](weft_engine::nic::Chaining::break_chain).
    pub(crate) fn break_chain(&mut self, id: ChainId) {
        let Some(chain) = self.chains.chains.get_mut(id.0 as usize) else { return };
        chain.shut();
        if chain.phase != Phase::Running {
            chain.phase = Phase::Broken;
        }
        let dials = self.chains.dials.iter().filter(|(_, dial)| dial.chain == id.0).map(|(index, _)| index);
        for index in dials.collect::<Vec<_>>() {
            let dial = self.chains.dials.remove(index);
            self.unwatch(&dial.socket);
        }
    }

    /// See [`Chaining::close_chain`](weft_engine::nic::Chaining::close_chain).
    pub(crate) fn close_chain(&mut self, id: ChainId) -> u64 {
        let Some(chain) = self.chains.chains.get_mut(id.0 as usize) else { return 0 };
        if chain.phase == Phase::Running {
            debug_assert!(false, "steps of the chain are under way");
            chain.frames.leak();
        }
        if matches!(chain.phase, Phase::Opening(_)) {
            self.break_chain(id);
        }
        let Some(mut chain) = self.chains.chains.try_remove(id.0 as usize) else { return 0 };
        chain.look_again();
        chain.arrivals()
    }

    /// A link has ended: connections that belong to it cannot become ends any more.
    pub(super) fn forget_chain_ends(&mut self, link: u32) {
        self.chains.early.retain(|early| early.link != link);
        let opening = |chain: &Chain| matches!(chain.phase, Phase::Opening(_));
        let has_link = |chain: &Chain| chain.ends.iter().any(|end| end.link.0 == link);
        let broken = self.chains.chains.iter().filter(|(_, chain)| opening(chain) && has_link(chain));
        for index in broken.map(|(index, _)| index).collect::<Vec<_>>() {
            self.break_chain(ChainId(u32::try_from(index).unwrap_or(u32::MAX)));
        }
    }

    /// Gives up chains that cannot be opened in time, and connections for which no chain was opened.
    pub(super) fn time_chains(&mut self, now_ms: u64) {
        self.chains.early.retain(|early| now_ms < early.until_ms);
        let mut next_ms = self.chains.early.iter().map(|early| early.until_ms).min().unwrap_or(u64::MAX);
        let mut late = Vec::new();
        for (index, chain) in &self.chains.chains {
            match chain.phase {
                Phase::Opening(until_ms) if now_ms >= until_ms => late.extend(u32::try_from(index)),
                Phase::Opening(until_ms) => next_ms = next_ms.min(until_ms),
                _ => {}
            }
        }
        late.into_iter().for_each(|id| self.break_chain(ChainId(id)));
        self.set_timer(next_ms);
    }
}
