//! The rails of a link are dialled, adopted, and dropped.
//!
//! Place in the data flow: the first long push of a link begins ([`Tcp::begin_rails`]). [`super::super::time`] calls
//! [`Tcp::time_rails`], and [`super::call`] adopts the rails that the peer has dialled.
//!
//! Invariants: of both sides of a link, the one that made it goes first if both dial. A rail is dialled again while its
//! link is up, with growing pauses, and a bounded number of times without success. A link whose pushes then have no
//! rail ends. A new rail with the number of an old one replaces it.

use std::os::fd::AsFd;

use rustix::event::epoll::{self, EventFlags};
use weft_engine::nic::{LinkError, LinkId};
use weft_os::ForkClosedFd;

use super::super::initiator::{Failure, Initiator};
use super::super::stream::Keys;
use super::super::{LinkState, Tcp, Token, sys, wire};
use super::call::Call;
use super::traffic::Flow;
use super::{Bundle, Path, RAILS_MAX, Rail, SECRET};

/// Time in milliseconds for which the peer's host may leave a rail's bytes unacknowledged.
const SILENT_MS: u64 = 1000;
/// Unanswered retransmissions before a rail is given up.
const UNANSWERED: u32 = 2;
/// The interval in milliseconds at which the timers of rails run.
const SCAN_MS: u64 = 250;
/// Time limit in milliseconds for the kernel to connect.
const CONNECT_MS: u64 = 1000;
/// The first and the longest pause in milliseconds before a rail is dialled again.
const PAUSE_MS: u64 = 50;
const PAUSE_MAX_MS: u64 = 10_000;
/// A rail that has been up for this time in milliseconds is dialled again without a long pause.
const LIVED_MS: u64 = 5000;
/// Time in milliseconds during which a peer that dialled rails may dial them again. After it, a side with pushes dials
/// itself.
const COURTESY_MS: u64 = 1000;

/// The pause after a number of failed dials.
fn pause_ms(tries: u32) -> u64 {
    (PAUSE_MS << tries.min(8)).min(PAUSE_MAX_MS)
}

impl Tcp {
    /// Begins to dial rails of a link, unless it has or dials some already, or cannot have any.
    pub(super) fn begin_rails(&mut self, id: u32) {
        let Some(session) = self.links.get(id).and_then(|link| link.session.as_ref()) else { return };
        let may = self.config.streams > 1 && (!session.is_near() || self.config.streams_within_host);
        if !may || !session.can_be_dialled() {
            return;
        }
        let bundle = self.rails.bundles.entry(id).or_default();
        if !bundle.rails.is_empty() || !bundle.paths.is_empty() || bundle.refused {
            return;
        }
        bundle.paths = vec![Path::default(); self.config.streams.min(RAILS_MAX)];
        self.dial_rails(id, sys::now_ms());
        self.plan_rail_scan();
    }

    /// Dials the rails of a link that are due.
    pub(super) fn dial_rails(&mut self, id: u32, now_ms: u64) {
        if !self.links.get(id).is_some_and(|link| matches!(link.state, LinkState::Up)) {
            return;
        }
        let Some(bundle) = self.rails.bundles.get(&id) else { return };
        let due = bundle.missing().filter(|(_, path)| now_ms >= path.dial_at_ms);
        let due: Vec<usize> = due.map(|(ordinal, _)| ordinal).collect();
        for ordinal in due {
            self.dial_rail(id, ordinal, now_ms);
        }
    }

    fn dial_rail(&mut self, id: u32, ordinal: usize, now_ms: u64) {
        // At most RAILS_MAX.
        #[allow(clippy::cast_possible_truncation)]
        let number = ordinal as u8;
        let Some(there) = self.address_of(id, number.into()) else { return };
        let Some(bundle) = self.rails.bundles.get_mut(&id) else { return };
        let ours = &self.config.addrs;
        let here = ours.get(ordinal % ours.len().max(1)).copied().filter(|_| ours.len() > 1);
        let here = here.filter(|here| here.is_ipv4() == there.is_ipv4());
        let Some(path) = bundle.paths.get_mut(ordinal) else { return };
        path.tries += 1;
        path.dial_at_ms = now_ms + pause_ms(path.tries);
        let mut initiator = Box::new(Initiator::new());
        let Ok(socket) = initiator.dial_from(here, &there, &self.config) else { return };
        let generation = self.next_generation();
        let watched = EventFlags::IN | EventFlags::OUT;
        let Some(index) = self.add_rail(Rail {
            link: id,
            ordinal: number,
            dialled: true,
            generation,
            socket,
            handshake: Some(initiator),
            since_ms: now_ms,
            watched,
            flow: Flow::START,
        }) else {
            return;
        };
        if let Some(path) = self.rails.bundles.get_mut(&id).and_then(|bundle| bundle.paths.get_mut(ordinal)) {
            path.rail = Some(index);
        }
        let watches = self.rails.all.get(index as usize);
        let watches = watches.map(|rail| self.watch(&rail.socket, Token::Rail(index, generation), watched));
        if !matches!(watches, Some(Ok(()))) {
            self.lose_rail(index, "its socket cannot be watched");
        }
    }

    /// Enters a rail into the tables.
    fn add_rail(&mut self, rail: Rail) -> Option<u32> {
        let bundle = self.rails.bundles.entry(rail.link).or_default();
        let index = u32::try_from(self.rails.all.vacant_key()).ok()?;
        self.rails.all.insert(rail);
        bundle.rails.push(index);
        self.focus.disturb();
        Some(index)
    }

    /// Continues a dialled rail whose socket reported an event.
    pub(super) fn continue_rail(&mut self, index: u32, now_ms: u64) {
        let Some(Rail { link: id, ordinal, socket, handshake: Some(initiator), .. }) =
            self.rails.all.get_mut(index as usize)
        else {
            return;
        };
        let (id, ordinal) = (*id, *ordinal);
        let Some(bundle) = self.rails.bundles.get_mut(&id) else { return };
        let Some(session) = self.links.get(id).and_then(|link| link.session.as_ref()) else { return };
        let (flag, number) = (wire::RAIL, ordinal.into());
        let mut call = Call { session, flag, number, further: &mut bundle.further };
        match initiator.advance(socket.as_fd(), &mut call, self.config.endpoint.encrypt) {
            Ok(_) if initiator.is_connecting() => {}
            Ok(None) => {
                // From now on the rail waits for the peer.
                let Some(rail) = self.rails.all.get_mut(index as usize) else { return };
                if rail.watched != EventFlags::IN {
                    rail.watched = EventFlags::IN;
                    let data = epoll::EventData::new_u64(Token::Rail(index, rail.generation).pack());
                    if let Err(errno) = epoll::modify(&self.epoll, &rail.socket, data, EventFlags::IN) {
                        sys::cannot_watch(errno);
                    }
                }
            }
            Ok(Some(keys)) => {
                self.rail_is_up(index, keys.as_ref());
                self.dial_rails(id, now_ms);
            }
            Err(Failure::Retry(why)) => {
                log::debug!("tcp: rail {ordinal} of link {id}: {why}");
                self.lose_rail(index, "the peer did not answer");
            }
            Err(Failure::Final(why)) => {
                log::debug!("tcp: rail {ordinal} of link {id}: {why}");
                bundle.refused = true;
                bundle.paths.clear();
                self.lose_rail(index, "the peer allows none");
            }
        }
    }

    fn rail_is_up(&mut self, index: u32, keys: Option<&Keys>) {
        let Some(rail) = self.rails.all.get_mut(index as usize) else { return };
        let id = rail.link;
        rail.handshake = None;
        sys::tune_within_host(rail.socket.as_fd());
        self.secrets.set(SECRET | index, keys);
        self.stats.rails_up += 1;
        log::debug!("tcp: rail {} of link {id} is up", rail.ordinal);
        self.pump_rails(id);
    }

    /// Makes a connection that the peer has dialled a rail of a link.
    pub(super) fn adopt_rail(&mut self, id: u32, ordinal: u8, socket: ForkClosedFd, keys: Option<&Keys>) {
        let same = |&index: &u32| {
            let rail = self.rails.all.get(index as usize);
            rail.is_some_and(|rail| !rail.dialled && rail.ordinal == ordinal)
        };
        let old = self.rails.bundles.get(&id).and_then(|bundle| bundle.rails.iter().copied().find(same));
        if let Some(old) = old {
            self.lose_rail(old, "the peer has replaced it");
        }
        let (generation, since_ms, watched) = (self.next_generation(), sys::now_ms(), EventFlags::IN);
        let (dialled, handshake, flow) = (false, None, Flow::START);
        let rail = Rail { link: id, ordinal, dialled, generation, socket, handshake, since_ms, watched, flow };
        let Some(index) = self.add_rail(rail) else { return };
        let data = epoll::EventData::new_u64(Token::Rail(index, generation).pack());
        let socket = self.rails.all.get(index as usize).map(|rail| &rail.socket);
        if let Some(Err(errno)) = socket.map(|socket| epoll::modify(&self.epoll, socket, data, watched)) {
            sys::cannot_watch(errno);
        }
        self.rail_is_up(index, keys);
    }

    /// Drops a rail. Its unacknowledged segments go to other rails, and it is dialled again later.
    pub(super) fn lose_rail(&mut self, index: u32, why: &str) {
        let now_ms = sys::now_ms();
        let Some(rail) = self.rails.all.get(index as usize) else { return };
        let (id, ordinal, dialled, was_up) = (rail.link, rail.ordinal, rail.dialled, rail.is_up());
        let taken = dialled && rail.handshake.as_ref().is_none_or(|initiator| initiator.awaits_peer());
        let lived = now_ms >= rail.since_ms + LIVED_MS;
        self.close_rail(index);
        self.stats.rails_lost += u64::from(was_up);
        let Some(bundle) = self.rails.bundles.get_mut(&id) else { return };
        bundle.rails.retain(|&other| other != index);
        let unfinished = bundle.out.outstanding(index);
        let level = if unfinished > 0 { log::Level::Info } else { log::Level::Debug };
        log::log!(
            level,
            "tcp: a connection for the long messages of link {id} has ended ({why}); others repeat {unfinished} bytes"
        );
        bundle.out.lost(index, |ctx| self.writer.report_done(LinkId(id), ctx));
        if let Some(path) = bundle.paths.get_mut(usize::from(ordinal)).filter(|_| dialled) {
            if was_up && lived {
                (path.tries, bundle.taken) = (0, 0);
            }
            bundle.taken += u32::from(taken);
            (path.rail, path.dial_at_ms) = (None, now_ms + pause_ms(path.tries));
        }
        // The rail may have lost a receipt.
        for &other in &bundle.rails {
            if let Some(rail) = self.rails.all.get_mut(other as usize) {
                rail.flow.receipt_due = true;
            }
        }
        self.plan_rail_scan();
        self.pump_rails(id);
    }

    /// Closes a rail's connection.
    pub(super) fn close_rail(&mut self, index: u32) {
        let Some(rail) = self.rails.all.try_remove(index as usize) else { return };
        self.rails.held -= usize::from(rail.flow.intake.held_until.is_some());
        self.secrets.set(SECRET | index, None);
        self.unwatch(&rail.socket);
    }

    /// Plans the next [`Self::time_rails`].
    pub(super) fn plan_rail_scan(&mut self) {
        if self.rails.next_scan_ms == u64::MAX {
            self.rails.next_scan_ms = sys::now_ms() + SCAN_MS;
        }
        self.set_timer(self.rails.next_scan_ms);
    }

    /// Dials rails that are due, and drops those whose peer's host is silent.
    pub(in super::super) fn time_rails(&mut self, now_ms: u64) {
        if now_ms < self.rails.next_scan_ms {
            return self.set_timer(self.rails.next_scan_ms);
        }
        self.rails.next_scan_ms = u64::MAX;
        let mut late = Vec::new();
        let mut again = false;
        for (index, rail) in &mut self.rails.all {
            let (fd, handshake) = (rail.socket.as_fd(), rail.handshake.as_ref());
            let connecting = handshake.is_some_and(|initiator| initiator.is_connecting());
            let watched = handshake.is_some() || rail.flow.unproven;
            let silent =
                |state: sys::Liveness| state.unanswered >= UNANSWERED && u64::from(state.silent_ms) >= SILENT_MS;
            if connecting {
                late.extend((now_ms >= rail.since_ms + CONNECT_MS).then_some(index));
            } else if watched && sys::unacknowledged(fd) == 0 {
                rail.flow.unproven = false;
            } else if watched && sys::liveness(fd).is_some_and(silent) {
                late.push(index);
            }
            again |= connecting || watched;
        }
        for index in late {
            // The number was made from 32 bits.
            #[allow(clippy::cast_possible_truncation)]
            self.lose_rail(index as u32, "its host is silent");
        }
        let mut ids: Vec<u32> = self.rails.bundles.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.dial_rails(id, now_ms);
            again |= self.dial_for_pushes(id, now_ms);
            let up = self.links.get(id).is_some_and(|link| matches!(link.state, LinkState::Up));
            if up && self.rails.bundles.get(&id).is_some_and(Bundle::is_stuck) {
                self.report_end(id, LinkError::Cut);
            }
        }
        if again {
            self.plan_rail_scan();
        }
    }

    /// Has this side dial rails of a link whose pushes wait for the peer to do so. Returns whether any rail is missing.
    fn dial_for_pushes(&mut self, id: u32, now_ms: u64) -> bool {
        let Some(bundle) = self.rails.bundles.get_mut(&id) else { return false };
        if !bundle.paths.is_empty() || !bundle.rails.is_empty() || bundle.out.is_empty() {
            bundle.alone_since_ms = None;
            return bundle.missing().next().is_some();
        }
        if now_ms >= *bundle.alone_since_ms.get_or_insert(now_ms) + COURTESY_MS {
            self.begin_rails(id);
        }
        true
    }
}
