//! Where peers live whose address is known as host and port only: an endpoint is there if it answers there.
//!
//! Place in the data flow: the name that a caller has proven says where it listens, which is the caller's own
//! word. Where the address book has that socket and no more, [`crate::engine::links`] holds the call, and the engine
//! calls the socket itself. The endpoint that answers proves its id by its capability; only the calls of that
//! endpoint get the address. Other calls are served as those of strangers, and so are all calls if no
//! endpoint answers.
//!
//! Invariants: one endpoint at a time lives at a socket (with its contexts, if it is scalable). When another
//! one answers there, the first has gone. A link that asks carries nothing, and is closed as soon as it is
//! up.

use smallvec::SmallVec;

use crate::api::{ADDR_NONE, Addr};
use crate::engine::Engine;
use crate::engine::links::{LinkState, LinkWork, MAX_SILENT, MAX_SILENT_OF_PEER};
use crate::engine::state::Core;
use crate::name::EpName;
use crate::nic::{LinkError, LinkId, Nic};

/// How often an address is asked at most for strangers that claim it, before another call of theirs, if it
/// does not answer.
const TRIES: u8 = 8;

/// State of a peer's claim that it lives at an address.
enum Claim {
    /// It has answered there.
    Proven(Addr),
    Unproven(Addr),
}

/// A search for the endpoint that lives at an address.
pub(crate) struct Ask {
    addr: Addr,
    /// Our link there, once it has been begun.
    probe: Option<LinkId>,
    /// Peers' links that wait for the answer.
    callers: SmallVec<[LinkId; 2]>,
    tries: u8,
}

impl<N: Nic> Engine<N> {
    /// Calls the addresses that have not been called yet.
    pub(crate) fn run_asks(&mut self) {
        while let Some(at) = self.core.asks.iter().position(|ask| ask.probe.is_none()) {
            let service = self.core.book.name(self.core.asks[at].addr);
            let Some(service) = service.filter(|row| !row.is_full()) else {
                let ask = self.core.asks.swap_remove(at);
                self.core.settle_ask(&ask, None);
                continue;
            };
            match self.nic.connect(&service) {
                Ok(probe) => {
                    self.core.asks[at].probe = Some(probe);
                    self.core.link_mut(probe).state = LinkState::Asking;
                }
                Err(_) => {
                    let ask = self.core.asks.swap_remove(at);
                    self.core.settle_ask(&ask, None);
                }
            }
        }
    }
}

impl Core {
    /// Where a peer is by its own word, if the book has no more than the socket there.
    fn claim(&self, name: &EpName) -> Option<Claim> {
        let addr = self.book.addr(name)?;
        let row = self.book.name(addr).filter(|row| !row.is_full())?;
        let lives = |vci: u32| self.vcs[vci as usize].name.base().same_endpoint(&name.base());
        let proven = name.same_endpoint(&self.me) || self.index.behind(&row).is_some_and(lives);
        Some(if proven { Claim::Proven(addr) } else { Claim::Unproven(addr) })
    }

    /// A peer calls. The call waits if it is not known who lives where the peer says that it does.
    pub(crate) fn called(&mut self, link: LinkId, name: &EpName) {
        self.follow_book();
        match self.claim(name) {
            Some(Claim::Unproven(addr)) if self.hold_call(link, name, addr) => {}
            Some(Claim::Proven(addr)) => self.take_call(link, Some(addr)),
            _ => self.take_call(link, None),
        }
    }

    /// Has a call wait. False: as many wait as may, and it is served as that of a stranger. (One that knows
    /// us by several names calls under each.)
    fn hold_call(&mut self, link: LinkId, name: &EpName, addr: Addr) -> bool {
        let held: SmallVec<[LinkId; 8]> = self.asks.iter().flat_map(|ask| &ask.callers).copied().collect();
        let of_peer = |link: &LinkId| self.rising_peer(*link).is_some_and(|peer| peer.same_endpoint(name));
        let mut of_peer = held.iter().copied().filter(of_peer);
        let oldest = of_peer.next().filter(|_| of_peer.count() + 1 >= MAX_SILENT_OF_PEER);
        if let Some(oldest) = oldest {
            self.forget_caller(oldest);
            self.link_drop(oldest);
        } else if held.len() >= MAX_SILENT {
            return false;
        }
        self.link_mut(link).state = LinkState::Held;
        let at = self.ask(addr);
        self.asks[at].callers.push(link);
        true
    }

    /// Has a stranger's address found out, if it may have one.
    pub(crate) fn seek(&mut self, vci: u32) {
        let vc = &self.vcs[vci as usize];
        if vc.addr != ADDR_NONE || !vc.is_in_use() {
            return;
        }
        match self.claim(&vc.name) {
            Some(Claim::Proven(addr)) => self.is_at(vci, addr),
            Some(Claim::Unproven(addr)) => {
                self.ask(addr);
            }
            None => {}
        }
    }

    /// Has it found out who lives at an address. Returns where that is noted.
    fn ask(&mut self, addr: Addr) -> usize {
        if let Some(at) = self.asks.iter().position(|ask| ask.addr == addr) {
            return at;
        }
        self.asks.push(Ask { addr, probe: None, callers: SmallVec::new(), tries: 0 });
        self.link_work.push(LinkWork::ASK);
        self.asks.len() - 1
    }

    /// The link of a caller that waits has ended.
    pub(crate) fn forget_caller(&mut self, link: LinkId) {
        for ask in &mut self.asks {
            ask.callers.retain(|other| *other != link);
        }
    }

    /// This endpoint closes.
    pub(crate) fn ask_no_more(&mut self) {
        for ask in std::mem::take(&mut self.asks) {
            ask.callers.into_iter().chain(ask.probe).for_each(|link| self.link_drop(link));
        }
    }

    /// A call of ours has been answered.
    pub(crate) fn answered(&mut self, probe: LinkId, peer: &EpName) {
        self.link_drop(probe);
        if let Some(at) = self.asks.iter().position(|ask| ask.probe == Some(probe)) {
            let ask = self.asks.swap_remove(at);
            self.settle_ask(&ask, Some(peer));
        }
    }

    /// A call of ours has failed. Of a peer that may be busy, or out of reach for the moment, it is tried
    /// again while a stranger claims the address; no operation waits for that.
    pub(crate) fn unanswered(&mut self, probe: LinkId, why: LinkError) {
        let Some(at) = self.asks.iter().position(|ask| ask.probe == Some(probe)) else { return };
        let ask = self.asks.swap_remove(at);
        self.settle_ask(&ask, None);
        let claims = |core: &Self| {
            let mut strangers = core.vcs.iter().filter(|vc| vc.addr == ADDR_NONE && vc.is_in_use());
            strangers.any(|vc| matches!(core.claim(&vc.name), Some(Claim::Unproven(addr)) if addr == ask.addr))
        };
        let tries = ask.tries + u8::from(why != LinkError::Timeout);
        if tries < TRIES && claims(self) {
            let at = self.ask(ask.addr);
            self.asks[at].tries = tries;
        }
    }

    /// The endpoint that lives at an address is known, or no endpoint claims it.
    fn settle_ask(&mut self, ask: &Ask, lives: Option<&EpName>) {
        let addr = ask.addr;
        let lives = lives.filter(|_| self.book.name(addr).is_some_and(|row| !row.is_full()));
        if let Some(peer) = lives {
            self.move_out(addr, peer);
        }
        for &link in &ask.callers {
            let Some(name) = self.rising_peer(link).filter(|_| self.link_mut(link).state == LinkState::Held) else {
                continue;
            };
            self.link_mut(link).state = LinkState::Incoming;
            let proven = lives.is_some_and(|peer| peer.base().same_endpoint(&name.base()));
            if let Some(vci) = self.index.find(&self.vcs, &name)
                && lives.is_some()
                && !proven
                && self.vcs[vci as usize].addr == addr
            {
                // It was there once, and comes back from somewhere else.
                self.lose_address(vci);
            }
            self.take_call(link, proven.then_some(addr));
        }
        if let Some(peer) = lives {
            self.move_in(addr, peer);
        }
    }

    /// Another endpoint answers at an address: what was there has gone.
    fn move_out(&mut self, addr: Addr, peer: &EpName) {
        for vci in 0..u32::try_from(self.vcs.len()).unwrap_or(u32::MAX) {
            let vc = &self.vcs[vci as usize];
            let other = vc.name.is_full() && !vc.name.base().same_endpoint(&peer.base());
            if vc.addr == addr && other && vc.is_in_use() {
                self.vc_fail(vci, LinkError::Gone);
            }
        }
    }

    /// An endpoint has answered at an address. What it has said as a stranger may be what receives from there wait for.
    fn move_in(&mut self, addr: Addr, peer: &EpName) {
        let Some(row) = self.book.name(addr) else { return };
        for vci in 0..u32::try_from(self.vcs.len()).unwrap_or(u32::MAX) {
            let vc = &self.vcs[vci as usize];
            if !vc.is_in_use() || !vc.name.is_full() || !vc.name.base().same_endpoint(&peer.base()) {
                continue;
            }
            self.is_at(vci, addr);
            // Operations to the address use the link that there is, unless others wait for one that is being made.
            let vc = &self.vcs[vci as usize];
            if vc.addr == addr
                && vc.name.context_index().is_none_or(|index| index == 0)
                && self.known_vc(addr).is_none()
            {
                self.leads_to(addr, vci);
                self.index.found_behind(&row, vci);
            }
        }
    }
}
