//! Bulk transfers: pushes, gets and puts, moved segment by segment in virtual time.
//!
//! Place in the data flow: started by [`SimNic`](crate::SimNic), moved by the fabric's events. The bytes of a
//! segment are read when it leaves, as a real device does it: a client's memory that changes before `done`
//! changes what arrives, and memory that is no longer there is noticed.
//!
//! A get or put may be shared: the helper's transfer takes bytes off the end of the one it helps with, and
//! moves them with its own device's timing.
//!
//! Invariant: a transfer stays in the table until its `done` has been handed over (or `close` let it go),
//! so `done` comes exactly once and, where the link ends, before `down`.

use weft_engine::mem::{self, IovList};
use weft_engine::nic::{Full, LinkError, LinkId, RemoteIov, Share};

use crate::event::Event;
use crate::fabric::State;
use crate::trace::TraceEvent;
use crate::wire::{EndId, Phase, Side};

/// What a transfer moves, and where to.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Push {
        window: u64,
        offset: u64,
    },
    Get {
        remote: Vec<RemoteIov>,
    },
    Put {
        remote: Vec<RemoteIov>,
    },
    /// Help with the peer's transfer `of`, from its end; `put`: towards the peer.
    Assist {
        of: u64,
        put: bool,
        remote: Vec<RemoteIov>,
    },
}

#[derive(Debug)]
pub(crate) struct Transfer {
    /// The end that started it.
    pub(crate) end: EndId,
    pub(crate) link: LinkId,
    pub(crate) ctx: u64,
    pub(crate) kind: Kind,
    pub(crate) local: IovList,
    pub(crate) len: usize,
    /// Bytes that have left where they come from.
    pub(crate) sent: usize,
    /// Bytes at its end that the peer has taken upon itself.
    pub(crate) given: usize,
    /// Bytes that have reached where they go (get, put and assist), whoever moved them.
    pub(crate) landed: usize,
    /// Nothing of a push arrives before the messages that were sent before it, where the fabric promises that.
    not_before_ns: u64,
    /// Set when the last byte has moved: the memory is not touched any more.
    pub(crate) result: Option<Result<(), LinkError>>,
}

impl State {
    /// Accepts a get or put, or not, and says whether the peer may help.
    pub(crate) fn start_shared(
        &mut self,
        ep: usize,
        link: LinkId,
        kind: Kind,
        local: &[mem::Iov],
        ctx: u64,
    ) -> Result<Option<Share>, Full> {
        let Some(number) = self.start(ep, link, kind, local, ctx)? else { return Ok(None) };
        let share_permille = self.config.share_permille;
        let shared = self.lookup(ep, link).is_some_and(|id| self.end(id).rng.chance(share_permille));
        Ok(shared.then(|| Share(u32::try_from(number).unwrap_or(0))))
    }

    /// Accepts a transfer, or not. Its number comes back, unless the user broke the contract.
    pub(crate) fn start(
        &mut self,
        ep: usize,
        link: LinkId,
        kind: Kind,
        local: &[mem::Iov],
        ctx: u64,
    ) -> Result<Option<u64>, Full> {
        let Some(id) = self.usable(ep, link) else { return Ok(None) };
        let len = mem::total_len(local);
        self.check_transfer(ep, &kind, len);
        let depth = self.config.transfer_depth;
        let full_permille = self.config.faults.full_permille;
        let end = self.end(id);
        if end.transfers >= depth || end.rng.chance(full_permille) {
            self.stats.full += 1;
            return Err(Full);
        }
        end.transfers += 1;
        self.next_transfer += 1;
        let number = self.next_transfer;
        let what = match kind {
            Kind::Push { .. } => TraceEvent::Push,
            Kind::Get { .. } => TraceEvent::Get,
            Kind::Put { .. } => TraceEvent::Put,
            Kind::Assist { .. } => TraceEvent::Assist,
        };
        self.record(what, ep, u64::from(link.0), len as u64, &[]);
        let asks_first = matches!(kind, Kind::Get { .. });
        let follows = self.config.caps.push_follows && matches!(kind, Kind::Push { .. });
        let overtakes_permille = self.config.faults.push_overtakes_permille;
        let not_before_ns =
            if follows && !self.end(id).rng.chance(overtakes_permille) { self.messages_arrived_ns(id) } else { 0 };
        let local = IovList::from_slice(local);
        let (sent, given, landed, result) = (0, 0, 0, None);
        let transfer = Transfer { end: id, link, ctx, kind, local, len, sent, given, landed, not_before_ns, result };
        self.transfers.insert(number, transfer);
        self.endpoints[ep].busy += 1;
        let Self { config, wires, now_ns, .. } = self;
        let end = &mut wires[id.wire].ends[id.side.index()];
        let first_ns = if asks_first { *now_ns + end.flight_ns(config) } else { *now_ns };
        self.agenda.schedule(first_ns, Event::Step { transfer: number });
        Ok(Some(number))
    }

    /// When everything that an end has sent so far has arrived; what has been gathered leaves for that.
    fn messages_arrived_ns(&mut self, id: EndId) -> u64 {
        for bytes in std::mem::take(&mut self.end(id).gathered) {
            self.depart(id, bytes);
        }
        self.end(id).last_arrival_ns()
    }

    fn check_transfer(&mut self, ep: usize, kind: &Kind, len: usize) {
        let caps = self.config.caps;
        let (allowed, remote) = match kind {
            Kind::Push { .. } => return,
            Kind::Get { remote } => (caps.get, remote),
            Kind::Put { remote } => (caps.put, remote),
            Kind::Assist { put, remote, .. } => (if *put { caps.put } else { caps.get }, remote),
        };
        if !allowed {
            self.violation(ep, "a get or put where the capabilities have none");
        }
        if remote.iter().map(|piece| piece.len).sum::<u64>() != len as u64 {
            self.violation(ep, "a get or put whose two sides differ in length");
        }
    }

    /// Moves a transfer's next segment.
    pub(crate) fn step(&mut self, number: u64) {
        let Some(transfer) = self.transfers.get(&number) else { return };
        let (id, sent, len) = (transfer.end, transfer.sent, transfer.len);
        let is_push = matches!(transfer.kind, Kind::Push { .. });
        if transfer.result.is_some() || self.end(id).ending.is_some() || self.wires[id.wire].cut {
            // The `down` that is on its way takes the transfer with it.
            return;
        }
        if !self.check_registered(number) {
            return self.refuse_access(number);
        }
        let segment_bytes = self.config.segment_bytes.max(len.div_ceil(self.config.max_segments));
        let access_fail = self.config.faults.access_fail_permille;
        let end = self.end(id);
        let want = if end.rng.chance(200) { end.rng.between(1, segment_bytes) } else { segment_bytes };
        let fails = sent == 0 && end.rng.chance(access_fail);
        let Some((at, portion)) = self.claim(number, want) else { return };
        let Some(bytes) = self.fetch(number, at, portion, fails) else { return };
        self.send_on(number, at, bytes);
        if sent + portion < len {
            let Self { config, wires, now_ns, .. } = self;
            let end = &mut wires[id.wire].ends[id.side.index()];
            // A segment is copied while the one before it is on its way.
            let copied = config.copy_ps_per_byte > 0 && is_push;
            let next_ns = if copied { end.copy(config, *now_ns, 0) } else { end.depart(config, *now_ns, 0) };
            self.agenda.schedule(next_ns, Event::Step { transfer: number });
        }
    }

    /// Which bytes a transfer moves next, at most `want`: from where to how many. `None`: no more.
    fn claim(&mut self, number: u64, want: usize) -> Option<(usize, usize)> {
        let transfer = self.transfers.get(&number)?;
        let Kind::Assist { of, .. } = transfer.kind else {
            let (at, left) = (transfer.sent, transfer.len - transfer.given - transfer.sent);
            // Of an empty transfer, the nothing is moved; where the helper has taken the rest, its landing ends it.
            return (left > 0 || transfer.len == 0).then(|| (at, want.min(left)));
        };
        let (id, len) = (transfer.end, transfer.len);
        let helped = self.transfers.get_mut(&of).filter(|helped| {
            let theirs = !matches!(helped.kind, Kind::Push { .. } | Kind::Assist { .. });
            theirs && helped.end == id.other() && helped.result.is_none() && helped.len == len
        });
        let left = helped.as_ref().map_or(0, |helped| helped.len - helped.given - helped.sent);
        match helped {
            Some(helped) if left > 0 => {
                let portion = want.min(left);
                helped.given += portion;
                Some((helped.len - helped.given, portion))
            }
            _ => {
                self.finish_help(number);
                None
            }
        }
    }

    /// A help ends when nothing is left to take and what it took has landed.
    fn finish_help(&mut self, number: u64) {
        let landed = self.transfers.get(&number).is_some_and(|help| help.landed == help.sent && help.result.is_none());
        if landed {
            self.finish(number, Ok(()));
        }
    }

    /// Help could not be given: the transfer that it was for fails, and its owner finds another way.
    fn fail_help(&mut self, number: u64) -> bool {
        let Some(Transfer { kind: Kind::Assist { of, .. }, .. }) = self.transfers.get(&number) else { return false };
        let of = *of;
        if self.transfers.get(&of).is_some_and(|helped| helped.result.is_none()) {
            self.finish(of, Err(LinkError::Access));
        }
        self.finish(number, Ok(()));
        true
    }

    /// The transfer touches memory that it must not.
    fn refuse_access(&mut self, number: u64) {
        if !self.fail_help(number) {
            self.finish(number, Err(LinkError::Access));
        }
    }

    /// The `portion` bytes of a transfer from `at` on, from where they come; `None` if that failed.
    fn fetch(&mut self, number: u64, at: usize, portion: usize, fails: bool) -> Option<Vec<u8>> {
        let transfer = self.transfers.get(&number)?;
        let peer = transfer.end.other();
        let source = match &transfer.kind {
            Kind::Push { .. } => Some(transfer.local.clone()),
            Kind::Put { .. } | Kind::Assist { put: true, .. } if !fails => Some(transfer.local.clone()),
            Kind::Get { remote } | Kind::Assist { remote, .. } if !fails => {
                let owner = self.wires[peer.wire].ends[peer.side.index()].ep;
                if !self.endpoints.get(owner).is_some_and(|endpoint| endpoint.alive) {
                    // Nobody is there to answer; the link's end will tell.
                    return None;
                }
                self.memory.resolve(owner, remote)
            }
            Kind::Get { .. } | Kind::Put { .. } | Kind::Assist { .. } => None,
        };
        let Some(source) = source else {
            self.refuse_access(number);
            return None;
        };
        let mut bytes = vec![0; portion];
        mem::gather(&mem::slice(&source, at, portion), &mut bytes);
        Some(bytes)
    }

    /// A segment leaves.
    fn send_on(&mut self, number: u64, at: usize, bytes: Vec<u8>) {
        let Self { config, wires, transfers, agenda, now_ns, .. } = self;
        let Some(transfer) = transfers.get_mut(&number) else { return };
        let id = transfer.end;
        transfer.sent += bytes.len();
        let all = transfer.sent == transfer.len;
        let end = &mut wires[id.wire].ends[id.side.index()];
        match transfer.kind {
            Kind::Push { window, offset } => {
                if !bytes.is_empty() {
                    // Segments of one push keep their order because they take their turns on the wire and
                    // share its latency; messages that are sent after its start may overtake them or be overtaken.
                    let copied_ns = end.copy(config, *now_ns, bytes.len());
                    let arrival_ns = end.depart(config, copied_ns, bytes.len()) + config.latency_ns;
                    let arrival_ns = arrival_ns.max(end.not_before_ns).max(transfer.not_before_ns);
                    let peer = id.other();
                    let arrival_ns = wires[peer.wire].ends[peer.side.index()].copy(config, arrival_ns, bytes.len());
                    let offset = offset.wrapping_add(at as u64);
                    let event = Event::Segment { to: id.other(), window, offset, bytes };
                    agenda.schedule(arrival_ns, event);
                }
                if all {
                    self.finish(number, Ok(()));
                }
            }
            Kind::Get { .. } | Kind::Put { .. } | Kind::Assist { .. } => {
                let land_ns = end.depart(config, *now_ns, bytes.len()) + end.flight_ns(config);
                agenda.schedule(land_ns, Event::Land { transfer: number, offset: at, bytes });
            }
        }
    }

    /// A segment of a get or put reaches the memory it is for.
    pub(crate) fn land(&mut self, number: u64, offset: usize, bytes: &[u8]) {
        let Some(transfer) = self.transfers.get(&number) else { return };
        let peer = transfer.end.other();
        let cut = self.wires[peer.wire].cut;
        if transfer.result.is_some() || self.end(transfer.end).ending.is_some() || cut {
            return;
        }
        if !self.check_registered(number) {
            return self.refuse_access(number);
        }
        let Some(transfer) = self.transfers.get(&number) else { return };
        let target = match &transfer.kind {
            Kind::Put { remote } | Kind::Assist { put: true, remote, .. } => {
                let end = &self.wires[peer.wire].ends[peer.side.index()];
                if self.endpoints.get(end.ep).is_some_and(|endpoint| endpoint.alive) {
                    self.memory.resolve(end.ep, remote)
                } else {
                    // Nobody is there to answer; the link's end will tell.
                    return;
                }
            }
            Kind::Get { .. } | Kind::Push { .. } | Kind::Assist { .. } => Some(transfer.local.clone()),
        };
        let Some(target) = target else { return self.refuse_access(number) };
        let Some(transfer) = self.transfers.get_mut(&number) else { return };
        transfer.landed += bytes.len();
        let Kind::Assist { of, .. } = transfer.kind else {
            mem::scatter(&target, offset, bytes);
            return self.finish_if_landed(number);
        };
        // Where the transfer has failed meanwhile, its owner is moving the bytes by other means.
        if let Some(helped) = self.transfers.get_mut(&of).filter(|helped| helped.result.is_none()) {
            helped.landed += bytes.len();
            mem::scatter(&target, offset, bytes);
            self.finish_if_landed(of);
        }
        let over = self.transfers.get(&of).is_none_or(|t| t.result.is_some() || t.given + t.sent == t.len);
        if over {
            self.finish_help(number);
        }
    }

    fn finish_if_landed(&mut self, number: u64) {
        if self.transfers.get(&number).is_some_and(|transfer| transfer.landed == transfer.len) {
            self.finish(number, Ok(()));
        }
    }

    /// The transfer is over; its initiator learns of it a little later.
    fn finish(&mut self, number: u64, result: Result<(), LinkError>) {
        let Self { config, wires, transfers, agenda, now_ns, stats, endpoints, .. } = self;
        let Some(transfer) = transfers.get_mut(&number) else { return };
        if result.is_ok() {
            match transfer.kind {
                Kind::Push { .. } => stats.pushes += 1,
                Kind::Get { .. } => stats.gets += 1,
                Kind::Put { .. } => stats.puts += 1,
                Kind::Assist { .. } => stats.assists += 1,
            }
        }
        transfer.result = Some(result);
        let end = &mut wires[transfer.end.wire].ends[transfer.end.side.index()];
        endpoints[end.ep].busy -= 1;
        let after_ns = match transfer.kind {
            Kind::Put { .. } => end.flight_ns(config),
            Kind::Get { .. } | Kind::Push { .. } | Kind::Assist { .. } => end.rng.below(config.latency_ns + 1),
        };
        agenda.schedule(*now_ns + after_ns, Event::Finish { transfer: number, result });
    }

    /// Ends a transfer whose link has ended at the other side. Its initiator learns of it with its own `down`.
    pub(crate) fn stop(&mut self, number: u64, why: LinkError) {
        let Some(transfer) = self.transfers.get_mut(&number).filter(|t| t.result.is_none()) else { return };
        transfer.result = Some(Err(why));
        let end = transfer.end;
        let ep = self.end(end).ep;
        self.endpoints[ep].busy -= 1;
    }

    /// The initiator has been told, or need not be: forgets the transfer.
    pub(crate) fn forget(&mut self, number: u64) -> Option<Transfer> {
        let transfer = self.transfers.remove(&number)?;
        let end = self.end(transfer.end);
        end.transfers -= 1;
        let ep = end.ep;
        if transfer.result.is_none() {
            self.endpoints[ep].busy -= 1;
        }
        Some(transfer)
    }

    /// All transfers that an end has started, oldest first.
    pub(crate) fn transfers_of(&self, id: EndId) -> Vec<u64> {
        self.transfers.iter().filter(|(_, transfer)| transfer.end == id).map(|(number, _)| *number).collect()
    }

    /// A process is gone, and its transfers with it.
    pub(crate) fn drop_transfers_of(&mut self, ep: usize) {
        let numbers = self.transfers.iter().filter(|(_, transfer)| {
            let id = transfer.end;
            self.wires[id.wire].ends[id.side.index()].ep == ep
        });
        for number in numbers.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.forget(number);
        }
    }

    /// The end behind a link on which something may be started now. The peer may be lost already as long as our user
    /// has not been told. `None` where our user breaks the contract.
    pub(crate) fn usable(&mut self, ep: usize, link: LinkId) -> Option<EndId> {
        let Some(id) = self.lookup(ep, link) else {
            self.violation(ep, "use of a link that does not exist");
            return None;
        };
        let end = self.end(id);
        let (phase, silent) = (end.phase, id.side == Side::Acceptor && !end.spoken_to);
        if phase != Phase::Up {
            self.violation(ep, "use of a link that is not up");
            return None;
        }
        if silent {
            self.violation(ep, "use of a link that the peer made before the peer has spoken");
        }
        Some(id)
    }
}
