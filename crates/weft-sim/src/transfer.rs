//! Bulk transfers: pushes, gets and puts, moved segment by segment in virtual time.
//!
//! Place in the data flow: started by [`SimNic`](crate::SimNic), moved by the fabric's events. The bytes of a
//! segment are read when it leaves, as a real device does it: a client's memory that changes before `done`
//! changes what arrives, and memory that is no longer there is noticed.
//!
//! Invariant: a transfer stays in the table until its `done` has been handed over (or `close` let it go),
//! so `done` comes exactly once and, where the link ends, before `down`.

use weft_engine::mem::{self, IovList};
use weft_engine::nic::{Full, LinkError, LinkId, RemoteIov};

use crate::event::Event;
use crate::fabric::State;
use crate::trace::What;
use crate::wire::{EndId, Phase, Side};

/// What a transfer moves, and where to.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Push { window: u64, offset: u64 },
    Get { remote: Vec<RemoteIov> },
    Put { remote: Vec<RemoteIov> },
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
    /// Bytes that have reached where they go (get and put).
    pub(crate) landed: usize,
    /// Set when the last byte has moved: the memory is not touched any more.
    pub(crate) result: Option<Result<(), LinkError>>,
}

impl State {
    /// Accepts a transfer, or not.
    pub(crate) fn start(
        &mut self,
        ep: usize,
        link: LinkId,
        kind: Kind,
        local: &[mem::Iov],
        ctx: u64,
    ) -> Result<(), Full> {
        let Some(id) = self.usable(ep, link) else { return Ok(()) };
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
            Kind::Push { .. } => What::Push,
            Kind::Get { .. } => What::Get,
            Kind::Put { .. } => What::Put,
        };
        self.record(what, ep, u64::from(link.0), len as u64, &[]);
        let asks_first = matches!(kind, Kind::Get { .. });
        let local = IovList::from_slice(local);
        let transfer = Transfer { end: id, link, ctx, kind, local, len, sent: 0, landed: 0, result: None };
        self.transfers.insert(number, transfer);
        self.endpoints[ep].busy += 1;
        let Self { config, wires, now_ns, .. } = self;
        let end = &mut wires[id.wire].ends[id.side.index()];
        let first_ns = if asks_first { *now_ns + end.flight_ns(config) } else { *now_ns };
        self.agenda.schedule(first_ns, Event::Step { transfer: number });
        Ok(())
    }

    fn check_transfer(&mut self, ep: usize, kind: &Kind, len: usize) {
        let caps = self.config.caps;
        let (allowed, remote) = match kind {
            Kind::Push { .. } => return,
            Kind::Get { remote } => (caps.get, remote),
            Kind::Put { remote } => (caps.put, remote),
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
        if transfer.result.is_some() || self.end(id).ending.is_some() || self.wires[id.wire].cut {
            // The `down` that is on its way takes the transfer with it.
            return;
        }
        let (segment_bytes, access_fail) = (self.config.segment_bytes, self.config.faults.access_fail_permille);
        let end = self.end(id);
        let want = if end.rng.chance(200) { end.rng.between(1, segment_bytes) } else { segment_bytes };
        let portion = want.min(len - sent);
        let fails = sent == 0 && end.rng.chance(access_fail);
        let Some(bytes) = self.fetch(number, portion, fails) else { return };
        self.send_on(number, bytes);
        if sent + portion < len {
            let Self { config, wires, now_ns, .. } = self;
            let next_ns = wires[id.wire].ends[id.side.index()].depart(config, *now_ns, 0);
            self.agenda.schedule(next_ns, Event::Step { transfer: number });
        }
    }

    /// The next `portion` bytes of a transfer from where they come; `None` if that failed.
    fn fetch(&mut self, number: u64, portion: usize, fails: bool) -> Option<Vec<u8>> {
        let transfer = self.transfers.get(&number)?;
        let peer = transfer.end.other();
        let source = match &transfer.kind {
            Kind::Push { .. } => Some(transfer.local.clone()),
            Kind::Put { .. } if !fails => Some(transfer.local.clone()),
            Kind::Get { remote } if !fails => {
                let owner = self.wires[peer.wire].ends[peer.side.index()].ep;
                if !self.endpoints.get(owner).is_some_and(|endpoint| endpoint.alive) {
                    // Nobody is there to answer; the link's end will tell.
                    return None;
                }
                self.memory.resolve(owner, remote)
            }
            Kind::Get { .. } | Kind::Put { .. } => None,
        };
        let Some(source) = source else {
            self.finish(number, Err(LinkError::Access));
            return None;
        };
        let mut bytes = vec![0; portion];
        mem::gather(&mem::slice(&source, transfer.sent, portion), &mut bytes);
        Some(bytes)
    }

    /// A segment leaves.
    fn send_on(&mut self, number: u64, bytes: Vec<u8>) {
        let Self { config, wires, transfers, agenda, now_ns, .. } = self;
        let Some(transfer) = transfers.get_mut(&number) else { return };
        let id = transfer.end;
        let at = transfer.sent;
        transfer.sent += bytes.len();
        let all = transfer.sent == transfer.len;
        let end = &mut wires[id.wire].ends[id.side.index()];
        match transfer.kind {
            Kind::Push { window, offset } => {
                if !bytes.is_empty() {
                    // Segments of one push keep their order because they take their turns on the wire and
                    // share its latency; messages may overtake them or be overtaken.
                    let arrival_ns = end.depart(config, *now_ns, bytes.len()) + config.latency_ns;
                    let offset = offset.wrapping_add(at as u64);
                    let event = Event::Segment { to: id.other(), window, offset, bytes };
                    agenda.schedule(arrival_ns.max(end.not_before_ns), event);
                }
                if all {
                    self.finish(number, Ok(()));
                }
            }
            Kind::Get { .. } | Kind::Put { .. } => {
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
        let Some(transfer) = self.transfers.get(&number) else { return };
        let target = match &transfer.kind {
            Kind::Put { remote } => {
                let end = &self.wires[peer.wire].ends[peer.side.index()];
                if self.endpoints.get(end.ep).is_some_and(|endpoint| endpoint.alive) {
                    self.memory.resolve(end.ep, remote)
                } else {
                    // Nobody is there to answer; the link's end will tell.
                    return;
                }
            }
            Kind::Get { .. } | Kind::Push { .. } => Some(transfer.local.clone()),
        };
        let Some(target) = target else {
            self.finish(number, Err(LinkError::Access));
            return;
        };
        mem::scatter(&target, offset, bytes);
        let Some(transfer) = self.transfers.get_mut(&number) else { return };
        transfer.landed += bytes.len();
        if transfer.landed == transfer.len {
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
            }
        }
        transfer.result = Some(result);
        let end = &mut wires[transfer.end.wire].ends[transfer.end.side.index()];
        endpoints[end.ep].busy -= 1;
        let after_ns = match transfer.kind {
            Kind::Put { .. } => end.flight_ns(config),
            Kind::Get { .. } | Kind::Push { .. } => end.rng.below(config.latency_ns + 1),
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
