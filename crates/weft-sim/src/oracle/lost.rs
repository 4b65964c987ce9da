//! Messages that were announced when their link ended, and the receives that fail because of them.
//!
//! Place in the data flow: `messages` passes a receive here that failed although it was posted after the
//! link's end. `matching` looks at the end for messages that were passed over.

use std::collections::BTreeSet;

use weft_engine::api::{Fault, RecvFlags};
use weft_engine::nic::LinkError;

use super::matching::Message;
use super::{Criteria, Op, Oracle, Record, RecvState, SendRecord, describe};

/// A receive that failed because of a message of an earlier link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    pub(super) want: Criteria,
    /// The source it wanted, and the rank that reported the failure.
    pub(super) src: Option<usize>,
    pub(super) rank: usize,
    pub(super) why: LinkError,
}

impl Oracle {
    /// Whether there is a lost message for each receive that failed for one, including this one.
    pub(super) fn excuses_loss(&mut self, loss: Loss) -> bool {
        self.losses.push(loss);
        !self.datagrams && self.assign(self.losses.len() - 1, &mut BTreeSet::new())
    }

    /// Kuhn's algorithm: a message that excuses another receive is free if that receive finds another
    /// message.
    fn assign(&mut self, loss: usize, tried: &mut BTreeSet<Op>) -> bool {
        let Loss { want, src, rank, why } = self.losses[loss];
        let may_be = |(message, send): &(Op, &SendRecord)| {
            let source = self.known_as(send.rank);
            let meant = send.dest == rank && src == Some(source) && want.accept(source, send.tag);
            meant && send.received_by.is_none() && self.excuses(*message, why, send.rank, rank)
        };
        let messages: Vec<Op> = self.sent_to(rank).filter(may_be).map(|(message, _)| message).collect();
        for message in messages {
            if tried.insert(message) && self.lost.get(&message).copied().is_none_or(|other| self.assign(other, tried)) {
                self.lost.insert(message, loss);
                return true;
            }
        }
        false
    }

    /// Of two messages over one link the second cannot arrive without the first. If the first was lost, an
    /// older receive must have failed for it, or a receive that wanted it must not take the second.
    /// `messages` holds all messages to a receiver, by sender and then in their order.
    pub(super) fn passed_over(&self, receiver: usize, messages: &[Message<'_>], out: &mut Vec<String>) {
        if self.datagrams || self.refused_ns.is_some() {
            return;
        }
        let posted_ns = |m: &Message<'_>| self.posted_ns.get(m.op).copied().unwrap_or(0);
        for (i, lost) in messages.iter().enumerate().filter(|(_, m)| m.place.is_none()) {
            let (sender, dest) = (lost.send.rank, lost.send.dest);
            let accepts = |want: &Criteria| want.accept(self.known_as(sender), lost.send.tag);
            let breaks = self.breaks.get(&(sender.min(dest), sender.max(dest))).map_or(&[][..], Vec::as_slice);
            // Operations posted before both ends know of a break may never leave.
            if breaks.iter().rfind(|(at, _)| *at <= posted_ns(lost)).is_some_and(|(_, broke)| *broke) {
                continue;
            }
            let later = messages[i + 1..].iter().take_while(|m| (m.send.rank, m.send.dest) == (sender, dest));
            for m in later {
                let between = posted_ns(lost)..=posted_ns(m);
                if breaks.iter().any(|(at, _)| between.contains(at)) {
                    break;
                }
                let Some(place) = m.place else { continue };
                let Record::Recv(taker) = self.record(place.op) else { continue };
                if !accepts(&taker.want) {
                    continue;
                }
                if !self.wanted_by(receiver).any(|(_, record)| self.lost_one(record, taker.order).is_some_and(accepts))
                {
                    out.push(format!(
                        "operation {} was passed over by operation {}: {}\n    {}\n    {}",
                        lost.op,
                        m.op,
                        describe(&self.ops[lost.op]),
                        describe(&self.ops[m.op]),
                        describe(self.record(place.op)),
                    ));
                    return;
                }
            }
        }
    }

    /// The criteria of a receive that matched and lost a message, or of a peek that claimed or discarded one.
    /// `None` if the receive is younger than `order`.
    fn lost_one<'a>(&self, record: &'a Record, order: u64) -> Option<&'a Criteria> {
        match record {
            Record::Recv(recv) => {
                let ended = match recv.state {
                    RecvState::Ended(Fault::Link(_), _) => true,
                    // An endpoint that closes cancels its pending receives.
                    RecvState::Ended(Fault::Canceled, _) => self.shares(),
                    _ => false,
                };
                let lost = ended || recv.cut || recv.failed.is_some();
                (lost && recv.order <= order).then_some(&recv.want)
            }
            Record::Peek(peek) => {
                let claimed = peek.flags.contains(RecvFlags::CLAIM) && matches!(peek.found, Some(Some(_)));
                (claimed || peek.discarded).then_some(&peek.want)
            }
            _ => None,
        }
    }
}
