//! Bulk transfers: pushes, gets and puts, moved segment by segment in virtual time.
//!
//! Place in the data flow: [`SimNic`](crate::SimNic) starts a transfer, the fabric's events move it. As in a
//! real device, the bytes of a segment are read when it leaves. A client that changes memory before `done`
//! changes the arriving bytes, and an access to freed memory is noticed.
//!
//! A get or put may be shared: the helper's transfer takes bytes from the end of the assisted one, and moves
//! them with its own device's timing.
//!
//! Invariant: a transfer stays in the table until its `done` has been delivered or `close` has dropped it.
//! `done` therefore comes exactly once and, where the link ends, before `down`.

use weft_engine::mem::{self, IovList};
use weft_engine::nic::{Full, LinkError, LinkId, RemoteIov, Share, Sharing};

use crate::card::{Movement, Place};
use crate::event::Event;
use crate::fabric::FabricState;
use crate::trace::TraceEvent;
use crate::wire::{EndId, Phase, Side};

/// The kind of a transfer.
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
    /// Assists the peer's transfer `of` from its end; `put` means towards the peer.
    Assist {
        of: u64,
        put: bool,
        remote: Vec<RemoteIov>,
    },
}

#[derive(Debug)]
pub(crate) struct SimTransfer {
    /// The end that started the transfer.
    pub(crate) end: EndId,
    pub(crate) link: LinkId,
    pub(crate) ctx: u64,
    pub(crate) kind: Kind,
    pub(crate) local: IovList,
    pub(crate) len: usize,
    /// Bytes that have left their source.
    pub(crate) sent: usize,
    /// Bytes at the end of the transfer that the peer has taken over.
    pub(crate) given: usize,
    /// Bytes that have reached their destination (get, put and assist), moved by either side.
    pub(crate) landed: usize,
    /// No byte of a push arrives before the messages sent earlier, where the fabric promises that.
    not_before_ns: u64,
    /// Set when the last byte has moved: the memory is not touched any more.
    pub(crate) result: Option<Result<(), LinkError>>,
}

impl FabricState {
    /// Starts a get or put if there is room, and returns whether the peer may assist.
    pub(crate) fn start_shared(
        &mut self,
        ep: usize,
        link: LinkId,
        kind: Kind,
        local: &[mem::Iov],
        sharing: Sharing,
        ctx: u64,
    ) -> Result<Option<Share>, Full> {
        let Some(number) = self.start(ep, link, kind, local, ctx)? else { return Ok(None) };
        let share_permille = self.config.share_permille;
        let shared = self.lookup(ep, link).is_some_and(|id| self.end(id).rng.chance(share_permille));
        Ok((shared && sharing == Sharing::Allowed).then(|| Share(u32::try_from(number).unwrap_or(0))))
    }

    /// Starts a transfer if there is room. Returns its number unless the user broke the contract.
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
        if self.end(id).transfers >= depth || self.is_full_by_chance(id) {
            self.stats.full += 1;
            return Err(Full);
        }
        self.end(id).transfers += 1;
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
        let transfer = SimTransfer { end: id, link, ctx, kind, local, len, sent, given, landed, not_before_ns, result };
        self.transfers.insert(number, transfer);
        self.endpoints[ep].busy += 1;
        let is_copy = self.config.card.is_some() && what != TraceEvent::Push;
        let started_ns = if is_copy { self.busy_with_copy(ep, true) } else { self.now_ns };
        let Self { config, wires, .. } = self;
        let end = &mut wires[id.wire].ends[id.side.index()];
        let first_ns = if asks_first { started_ns + end.flight_ns(config) } else { started_ns };
        self.agenda.schedule(first_ns, Event::Step { transfer: number });
        Ok(Some(number))
    }

    /// The arrival time of everything that an end has sent so far; gathered messages leave first.
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
            // The pending `down` ends the transfer.
            return;
        }
        if !self.check_registered(number) {
            return self.refuse_access(number);
        }
        if self.config.card.is_some() && is_push && len > 0 {
            if let Some(piece) = self.claim(number, self.config.piece_bytes()) {
                self.push_piece(number, piece);
            }
            return;
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
            let next_ns = end.depart(config, *now_ns, 0);
            self.agenda.schedule(next_ns, Event::Step { transfer: number });
        }
    }

    /// Claims the next bytes of a transfer, at most `want`: their offset and length. `None`: no more.
    fn claim(&mut self, number: u64, want: usize) -> Option<(usize, usize)> {
        let transfer = self.transfers.get(&number)?;
        let Kind::Assist { of, .. } = transfer.kind else {
            let (at, left) = (transfer.sent, transfer.len - transfer.given - transfer.sent);
            // An empty transfer moves one empty segment. Where the helper has taken the remaining bytes,
            // their arrival ends the transfer.
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

    /// Ends an assist when no bytes are left to take and all taken ones have landed.
    fn finish_help(&mut self, number: u64) {
        let landed = self.transfers.get(&number).is_some_and(|help| help.landed == help.sent && help.result.is_none());
        if landed {
            self.finish(number, Ok(()));
        }
    }

    /// Fails an assist: the assisted transfer fails too, and its owner chooses another way.
    fn fail_help(&mut self, number: u64) -> bool {
        let Some(SimTransfer { kind: Kind::Assist { of, .. }, .. }) = self.transfers.get(&number) else { return false };
        let of = *of;
        if self.transfers.get(&of).is_some_and(|helped| helped.result.is_none()) {
            self.finish(of, Err(LinkError::Access));
        }
        self.finish(number, Ok(()));
        true
    }

    /// Fails a transfer whose memory must not be accessed.
    fn refuse_access(&mut self, number: u64) {
        if !self.fail_help(number) {
            self.finish(number, Err(LinkError::Access));
        }
    }

    /// Reads `portion` bytes of a transfer from offset `at` of their source; `None` if that failed.
    fn fetch(&mut self, number: u64, at: usize, portion: usize, fails: bool) -> Option<Vec<u8>> {
        let transfer = self.transfers.get(&number)?;
        let peer = transfer.end.other();
        let source = match &transfer.kind {
            Kind::Push { .. } => Some(transfer.local.clone()),
            Kind::Put { .. } | Kind::Assist { put: true, .. } if !fails => Some(transfer.local.clone()),
            Kind::Get { remote } | Kind::Assist { remote, .. } if !fails => {
                let owner = self.wires[peer.wire].ends[peer.side.index()].ep;
                if !self.endpoints.get(owner).is_some_and(|endpoint| endpoint.alive) {
                    // The peer has exited and does not answer; the end of the link will report that.
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
        let mut bytes = self.blank(portion);
        mem::gather(&mem::slice(&source, at, portion), &mut bytes);
        Some(bytes)
    }

    /// Sends a segment.
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
                    // Segments of one push keep their order because they take turns on the wire and share its
                    // latency. Messages that are sent after its start may overtake them or be overtaken.
                    let left_ns = end.pass_piece(*now_ns);
                    let arrival_ns = end.depart(config, left_ns, bytes.len()) + config.latency_ns;
                    let arrival_ns = arrival_ns.max(end.not_before_ns).max(transfer.not_before_ns);
                    let peer = id.other();
                    let arrival_ns = wires[peer.wire].ends[peer.side.index()].pass_piece(arrival_ns);
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

    /// Stores a segment of a get or put in its destination memory.
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
                    // The peer has exited and does not answer; the end of the link will report that.
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
        // If the assisted transfer has failed, its owner moves the bytes by other means.
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

    /// A piece of a push has left this side's memory.
    pub(crate) fn piece_left(&mut self, number: u64, len: usize) {
        if let Some(transfer) = self.transfers.get_mut(&number).filter(|transfer| transfer.result.is_none()) {
            transfer.landed += len;
            self.finish_if_landed(number);
        }
    }

    fn finish_if_landed(&mut self, number: u64) {
        if self.transfers.get(&number).is_some_and(|transfer| transfer.landed == transfer.len) {
            self.finish(number, Ok(()));
        }
    }

    /// Ends a transfer; its initiator learns of it a little later.
    fn finish(&mut self, number: u64, result: Result<(), LinkError>) {
        let Self { config, wires, transfers, now_ns, stats, endpoints, .. } = self;
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
        let (ep, len) = (end.ep, transfer.len as u64);
        let is_copy = config.card.is_some() && !matches!(transfer.kind, Kind::Push { .. });
        let mut at_ns = *now_ns + after_ns;
        if is_copy {
            self.note(ep, Movement::Dma(Place::Special, Place::Special), len);
            at_ns = self.busy_with_copy(ep, false);
        }
        self.agenda.schedule(at_ns, Event::Finish { transfer: number, result });
    }

    /// Stops a transfer whose link was ended by the other side. Its own `down` tells the initiator.
    pub(crate) fn stop(&mut self, number: u64, why: LinkError) {
        let Some(transfer) = self.transfers.get_mut(&number).filter(|t| t.result.is_none()) else { return };
        transfer.result = Some(Err(why));
        let end = transfer.end;
        let ep = self.end(end).ep;
        self.endpoints[ep].busy -= 1;
    }

    /// Removes a transfer whose initiator knows of its end or need not know.
    pub(crate) fn forget(&mut self, number: u64) -> Option<SimTransfer> {
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

    /// Removes the transfers of a process that has exited.
    pub(crate) fn drop_transfers_of(&mut self, ep: usize) {
        let numbers = self.transfers.iter().filter(|(_, transfer)| {
            let id = transfer.end;
            self.wires[id.wire].ends[id.side.index()].ep == ep
        });
        for number in numbers.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.forget(number);
        }
    }

    /// The end behind a link on which a new operation may start. The peer may already be lost while our user
    /// does not know yet. `None` if our user broke the contract.
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
