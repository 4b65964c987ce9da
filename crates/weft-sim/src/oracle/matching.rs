//! The final check of matching: the message that each receive got, and whether a simple matcher could have
//! produced this matching.
//!
//! The reference matcher: a message takes the oldest posted receive that wants it, otherwise it waits; a
//! receive takes the oldest waiting message that it wants, otherwise it waits. The outcome depends on two
//! orders. The order in which receives were posted is known. The order in which messages arrived is known per
//! sender only. Given both, the outcome is the unique stable matching in which every participant prefers the
//! oldest partner. Consider each case "m could have had an older receive r". It must be explained by "r had
//! been taken by m', which arrived before m". The reference matcher produces the observed matching for some
//! order of arrival under two conditions. All cases are explained, and these "before" relations have no cycle
//! together with the order per sender.

use std::collections::BTreeMap;

use weft_engine::api::{Fault, OpFlags};

use super::{Got, ID_BYTES, Op, Oracle, PeekRecord, Record, RecvRecord, RecvState, SendRecord, describe};

/// The receive in which a message ended up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// When the receive was posted.
    pub(super) order: u64,
    /// The index among a multi-receive's messages.
    position: usize,
    pub(super) op: Op,
}

/// Messages that matching cannot distinguish: their sender, destination endpoint and tag.
type Stream = (Option<usize>, usize, Option<u64>);

/// A message of one receiver.
#[derive(Clone, Copy)]
pub(super) struct Message<'a> {
    pub(super) op: Op,
    pub(super) send: &'a SendRecord,
    pub(super) place: Option<Place>,
    /// When its receive was reported.
    at: u64,
}

impl Oracle {
    /// Checks the whole run. `is_alive` returns whether a rank is alive.
    #[must_use]
    pub fn verdict(&self, is_alive: impl Fn(usize) -> bool) -> Vec<String> {
        let mut out = self.complaints.clone();
        out.extend(self.pending(&is_alive));
        let ranks = self.ops.iter().map(|record| match record {
            Record::Send(send) => send.dest.max(send.rank) + 1,
            _ => 0,
        });
        let receivers = (0..ranks.max().unwrap_or(0)).filter(|rank| self.receiver(*rank) == *rank);
        for rank in receivers.filter(|rank| self.receives(*rank, &is_alive)) {
            self.judge_receiver(rank, &is_alive, &mut out);
        }
        self.judge_memory(&is_alive, &mut out);
        out
    }

    fn judge_receiver(&self, rank: usize, is_alive: &impl Fn(usize) -> bool, out: &mut Vec<String>) {
        let mut messages = self.messages(rank);
        self.place(rank, &mut messages, out);
        let sure = |op: Op, send: &SendRecord| {
            let failed = matches!(send.end, Some(Err(_)));
            !self.datagrams && !failed && !self.may_be_lost(op, send.rank, send.dest) && is_alive(send.rank)
        };
        for m in messages.iter().filter(|m| m.place.is_none()) {
            let promised = m.send.end == Some(Ok(())) && m.send.flags.contains(OpFlags::DELIVERY);
            if sure(m.op, m.send) || promised {
                out.push(format!("operation {} was never received: {}", m.op, describe(&self.ops[m.op])));
            }
        }
        self.passed_over(rank, &messages, out);
        let all = messages.clone();
        messages.retain(|m| m.place.is_some());
        let edges = self.explain(rank, &messages, out);
        if let Some(stuck) = cycle(messages.len(), &edges) {
            let names =
                stuck.iter().map(|i| format!("\n    {} {}", messages[*i].op, describe(&self.ops[messages[*i].op])));
            out.push(format!(
                "rank {rank}: no order of arrival explains the matching of{}",
                names.collect::<Vec<_>>().concat()
            ));
        }
        for (_, record) in self.wanted_by(rank) {
            if let Record::Peek(peek) = record {
                self.judge_peek(peek, &all, out);
            }
        }
    }

    /// All messages sent to a receiver, by sender and endpoint, and then in the order of sending.
    fn messages(&self, rank: usize) -> Vec<Message<'_>> {
        let message = |(op, send)| Message { op, send, place: None, at: 0 };
        let mut messages = self.sent_to(rank).map(message).collect::<Vec<_>>();
        messages.sort_by_key(|m| (m.send.rank, m.send.dest, m.op));
        messages
    }

    /// Finds the receive of each message by the number in its bytes. Without a number, the message's position
    /// among those of the same sender and tag decides.
    fn place(&self, rank: usize, messages: &mut [Message<'_>], out: &mut Vec<String>) {
        let mut by_turn: BTreeMap<Stream, Vec<(Place, &Got)>> = BTreeMap::new();
        for (op, record) in self.wanted_by(rank) {
            let (order, all) = match record {
                Record::Recv(recv) => (recv.order, in_buffer_order(recv)),
                Record::Peek(peek) if peek.discarded => (peek.order, peek.found.iter().flatten().collect()),
                _ => continue,
            };
            for (position, got) in all.into_iter().enumerate() {
                let place = Place { order, position, op };
                match got.send.and_then(|send| messages.iter_mut().find(|m| m.op == send)) {
                    Some(message) => (message.place, message.at) = (Some(place), got.at),
                    None => by_turn.entry((got.src, got.dest, got.tag)).or_default().push((place, got)),
                }
            }
        }
        for ((src, dest, tag), mut places) in by_turn {
            places.sort_by_key(|(place, _)| *place);
            let mut waiting = messages.iter_mut().filter(|m| {
                m.place.is_none() && (Some(self.known_as(m.send.rank)), m.send.dest, m.send.tag) == (src, dest, tag)
            });
            for (place, got) in places {
                let Some(message) = waiting.next() else {
                    out.push(format!("operation {} received an unknown message: {got:?}", place.op));
                    continue;
                };
                let bytes = super::payload(message.op, message.send.len.min(ID_BYTES));
                let stored = got.len.min(ID_BYTES);
                let same = bytes.get(..stored) == Some(&got.head[..stored]);
                if (message.send.data, message.send.len) != (got.data, got.full_len) || !same {
                    let sent = describe(&self.ops[message.op]);
                    out.push(format!("operation {} got {got:?}\n    instead of {} {sent}", place.op, message.op));
                }
                (message.place, message.at) = (Some(place), got.at);
            }
        }
    }

    /// Checks that every older receive that a message could have had was taken by a message that arrived
    /// before.
    fn explain(&self, rank: usize, messages: &[Message<'_>], out: &mut Vec<String>) -> Vec<(usize, usize)> {
        let index: BTreeMap<Place, usize> =
            messages.iter().enumerate().filter_map(|(i, m)| m.place.map(|place| (place, i))).collect();
        let mut edges = Vec::new();
        for (i, pair) in messages.windows(2).enumerate() {
            let same = (pair[0].send.rank, pair[0].send.dest) == (pair[1].send.rank, pair[1].send.dest);
            if same && !self.datagrams {
                edges.push((i, i + 1));
            }
        }
        // Per endpoint: the preceding message of the same multi-receive.
        let mut before = BTreeMap::new();
        for (place, i) in &index {
            if let Some((op, earlier)) = before.insert(messages[*i].send.dest, (place.op, *i))
                && op == place.op
            {
                edges.push((earlier, *i));
            }
        }
        for (op, record) in self.wanted_by(rank) {
            let Record::Recv(recv) = record else { continue };
            let of_recv =
                Place { order: recv.order, position: 0, op }..=Place { order: recv.order, position: usize::MAX, op };
            // Per endpoint: the last message that the receive got.
            let last = index.range(of_recv).map(|(_, i)| (messages[*i].send.dest, *i)).collect::<BTreeMap<_, _>>();
            for (i, m) in messages.iter().enumerate() {
                let Some(place) = m.place else { continue };
                if place.op == op
                    || recv.order > place.order
                    || !recv.want.accept(self.known_as(m.send.rank), m.send.tag)
                {
                    continue;
                }
                match recv.state {
                    RecvState::Done if !last.is_empty() => {
                        edges.extend(last.get(&m.send.dest).map(|last| (*last, i)));
                    }
                    RecvState::Ended(Fault::Canceled, ended) if m.at > ended => {}
                    RecvState::Ended(Fault::Link(_), _) => {}
                    _ => out.push(format!(
                        "operation {} should have been received by operation {op}, not by {}: {}\n    {}\n    {}",
                        m.op,
                        place.op,
                        describe(&self.ops[m.op]),
                        describe(record),
                        describe(&self.ops[place.op]),
                    )),
                }
            }
        }
        edges
    }

    /// Checks that a peek reports, per sender, the first wanted message that no earlier receive took and that
    /// was not lost.
    fn judge_peek(&self, peek: &PeekRecord, messages: &[Message<'_>], out: &mut Vec<String>) {
        let Some(Some(found)) = &peek.found else { return };
        let wanted = |m: &&Message<'_>| {
            let later = m.place.is_none_or(|place| place.order >= peek.order);
            let source = self.known_as(m.send.rank);
            (Some(source), m.send.dest) == (found.src, found.dest) && later && peek.want.accept(source, m.send.tag)
        };
        // Messages are sorted by sender: this collects the first one of each, and those that were lost before
        // it.
        let mut first = messages.iter().filter(wanted).collect::<Vec<_>>();
        let mut barred = None;
        first.retain(|m| {
            let behind = barred == Some(m.send.rank);
            if m.place.is_some() {
                barred = Some(m.send.rank);
            }
            !behind
        });
        let same =
            first.iter().any(|m| (m.send.tag, m.send.data, m.send.len) == (found.tag, found.data, found.full_len));
        if !same {
            out.push(format!(
                "{peek:?}\n    should have found {:?}",
                first.iter().map(|m| describe(&self.ops[m.op])).collect::<Vec<_>>()
            ));
        }
    }
}

/// A receive's messages in the order of matching: by address, an empty message before the one that starts
/// there.
fn in_buffer_order(recv: &RecvRecord) -> Vec<&Got> {
    let mut all = recv.got.iter().collect::<Vec<_>>();
    all.sort_by_key(|got| (got.offset, got.len > 0, got.at));
    all
}

/// The nodes that no topological order can contain, if there are any.
fn cycle(nodes: usize, edges: &[(usize, usize)]) -> Option<Vec<usize>> {
    let mut blocked_by = vec![0_usize; nodes];
    let mut after = vec![Vec::new(); nodes];
    for (a, b) in edges {
        blocked_by[*b] += 1;
        after[*a].push(*b);
    }
    let mut free = (0..nodes).filter(|n| blocked_by[*n] == 0).collect::<Vec<_>>();
    let mut placed = 0;
    while let Some(n) = free.pop() {
        placed += 1;
        for next in &after[n] {
            blocked_by[*next] -= 1;
            if blocked_by[*next] == 0 {
                free.push(*next);
            }
        }
    }
    (placed < nodes).then(|| (0..nodes).filter(|n| blocked_by[*n] > 0).collect())
}

#[cfg(test)]
mod tests {
    use super::cycle;

    #[test]
    fn cycles_are_found() {
        assert_eq!(cycle(3, &[(0, 1), (1, 2), (0, 2)]), None);
        assert_eq!(cycle(4, &[(0, 1), (1, 2), (2, 1), (2, 3)]), Some(vec![1, 2, 3]));
        assert_eq!(cycle(1, &[(0, 0)]), Some(vec![0]));
    }
}
