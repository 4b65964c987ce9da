//! Checks the completions of sends, receives and peeks against the posted operations and the sent messages.

use weft_engine::api::{Completion, CompletionFlags, Fault, Kind, OpFlags, RecvFlags};

use super::lost::Loss;
use super::{
    CANARY, Got, ID_BYTES, Op, Oracle, PeekRecord, Record, RecvRecord, RecvState, SendRecord, describe, expect, payload,
};
use crate::memory::Buffer;

impl Oracle {
    pub(super) fn send_completed(
        &mut self,
        op: Op,
        send: &mut SendRecord,
        c: &Completion,
    ) -> Result<Option<Buffer>, String> {
        if send.end.is_some() {
            return Err("completed twice".into());
        }
        send.end = Some(c.fault.map_or(Ok(()), Err));
        match c.fault {
            None if send.flags.contains(OpFlags::QUIET) => return Err("a quiet send must report no success".into()),
            Some(fault) if self.datagrams => return Err(Self::datagram_failed(fault)),
            Some(Fault::Link(why)) if self.excuses(op, why, send.rank, send.dest) => return Ok(send.buffer),
            Some(fault) => return Err(format!("failed: {fault}")),
            None => {}
        }
        expect(c.kind == Kind::Send, "kind")?;
        expect(c.len == send.len, "length")?;
        expect(c.flags.contains(CompletionFlags::TAGGED) == send.tag.is_some(), "tagged flag")?;
        expect(send.tag.is_none_or(|tag| c.tag == tag), "tag")?;
        if !self.datagrams {
            self.check_target_alive(op, send.dest)?;
        }
        if send.flags.contains(OpFlags::DELIVERY) {
            self.to_confirm.push(op);
        }
        Ok(send.buffer)
    }

    /// Ends a batch of completions of one rank: the promises of the whole batch must hold now.
    pub fn batch_ended(&mut self) {
        for op in std::mem::take(&mut self.to_confirm) {
            let Record::Send(send) = &self.ops[op] else { continue };
            if send.len >= ID_BYTES && send.received_by.is_none() && self.can_confirm(send) {
                let text = describe(&self.ops[op]);
                self.complain(format!("operation {op}: delivery complete before its receive: {text}"));
            }
        }
    }

    /// Whether a delivered message would have been recognised: it was neither discarded nor cut too short.
    fn can_confirm(&self, send: &SendRecord) -> bool {
        !self.ops.iter().any(|record| match record {
            Record::Peek(peek) => {
                self.receiver(peek.rank) == self.receiver(send.dest)
                    && (peek.discarded || peek.discarding)
                    && peek.want.accept(self.known_as(send.rank), send.tag)
            }
            Record::Recv(recv) => {
                let short = recv.got.iter().any(|got| got.len < ID_BYTES && got.full_len == send.len);
                self.receiver(recv.rank) == self.receiver(send.dest)
                    && short
                    && recv.want.accept(self.known_as(send.rank), send.tag)
            }
            _ => false,
        })
    }

    pub(super) fn recv_completed(
        &mut self,
        op: Op,
        recv: &mut RecvRecord,
        c: &Completion,
        (src, dest): (Option<usize>, usize),
        at: u64,
    ) -> Result<Option<Buffer>, String> {
        if recv.state != RecvState::Posted {
            return Err("completed twice".into());
        }
        let multi = recv.flags.contains(RecvFlags::MULTI);
        let shared = multi && self.shares();
        let released = !multi || (!shared && c.flags.contains(CompletionFlags::RELEASED));
        expect(c.kind == Kind::Recv, "kind")?;
        expect(c.flags.contains(CompletionFlags::TAGGED) == recv.want.tag.is_some(), "tagged flag")?;
        expect(multi || !c.flags.contains(CompletionFlags::RELEASED), "a plain receive has the released flag")?;
        if shared {
            self.report_shared(dest, op, c.flags);
            recv.failed = c.fault.filter(|fault| !matches!(fault, Fault::Truncated(_))).map(|fault| (fault, at));
        }
        let excess = match c.fault {
            None => 0,
            Some(Fault::Truncated(excess)) => excess,
            Some(fault) => return self.recv_ended(op, recv, (src, dest), fault, released, at),
        };
        recv.state = if released { RecvState::Done } else { RecvState::Posted };
        let offset = if c.len == 0 && !multi { 0 } else { c.buf.wrapping_sub(recv.buffer.iov().as_ptr() as usize) };
        let end = offset.checked_add(c.len).filter(|end| *end <= recv.buffer.len());
        let end = end.ok_or("stored outside the buffer")?;
        expect(multi || offset == 0, "buffer address")?;
        let overlaps = |g: &Got| g.offset < end && offset < g.offset + g.len;
        expect(!recv.got.iter().any(overlaps), "two messages overlap in a multi-receive")?;
        if !multi {
            let beyond = recv.buffer.part(end, usize::MAX);
            expect(beyond.is_filled(CANARY), "written beyond what was received")?;
            expect(excess == 0 || beyond.is_empty(), "truncated although there was room")?;
        }
        let data = c.flags.contains(CompletionFlags::DATA).then_some(c.data);
        let tag = recv.want.tag.map(|_| c.tag);
        let stored = recv.buffer.part(offset, c.len);
        let mut head = [0; ID_BYTES];
        stored.iov().read(&mut head);
        let mut got = Got { src, dest, tag, data, len: c.len, head, full_len: c.len + excess, offset, send: None, at };
        let outcome = self.check_got(op, recv, &mut got, stored);
        recv.got.push(got);
        outcome?;
        if released {
            intact(recv)?;
        }
        Ok(released.then_some(recv.buffer))
    }

    /// A receive has ended without a message.
    fn recv_ended(
        &mut self,
        op: Op,
        recv: &mut RecvRecord,
        (src, rank): (Option<usize>, usize),
        fault: Fault,
        released: bool,
        at: u64,
    ) -> Result<Option<Buffer>, String> {
        let excusable = match fault {
            // A cancellation is always accepted: only the harness can request it.
            Fault::Canceled => true,
            // A datagram that has begun to arrive does not fail a receive, nor does a receive depend on one
            // peer.
            Fault::Link(_) if self.datagrams => false,
            Fault::Link(why) => match recv.want.src {
                Some(src) => self.contexts(src).any(|src| self.excuses(op, why, rank, src)),
                None => {
                    let mine = |(a, b): &&(usize, usize)| *a == rank || *b == rank;
                    self.broken.keys().filter(mine).any(|(a, b)| self.excuses(op, why, *a, *b))
                }
            },
            _ => false,
        };
        let excusable = excusable
            || match fault {
                Fault::Link(why) => self.excuses_loss(Loss { want: recv.want, src, rank, why }),
                _ => false,
            };
        recv.cut |= fault != Fault::Canceled;
        if released {
            recv.state = RecvState::Ended(fault, at);
            intact(recv)?;
        }
        if excusable { Ok(released.then_some(recv.buffer)) } else { Err(format!("failed: {fault}")) }
    }

    /// Checks a received message against the send that it names.
    fn check_got(&mut self, op: Op, recv: &RecvRecord, got: &mut Got, stored: Buffer) -> Result<(), String> {
        let src = got.src.ok_or("source unknown")?;
        if !recv.want.accept(src, got.tag) {
            return Err(format!("got a message that it does not match: from {src}, tag {:x?}", got.tag));
        }
        if let Some(claimed) = &recv.claimed {
            let same = (claimed.src, claimed.tag, claimed.data, claimed.full_len);
            expect(same == (got.src, got.tag, got.data, got.full_len), "not the message that was claimed")?;
        }
        if got.len < ID_BYTES {
            return Ok(());
        }
        let id = got.head.iter().rev().fold(0_usize, |id, byte| id << 8 | usize::from(*byte));
        let source = self.ops.get(id).and_then(Record::rank).map_or(0, |rank| self.known_as(rank));
        let Some(Record::Send(send)) = self.ops.get_mut(id) else {
            return Err(format!("received bytes of no send (they name operation {id:#x})"));
        };
        let same = (Some(source), send.dest, send.tag, send.data, send.len);
        if same != (got.src, got.dest, got.tag, got.data, got.full_len) {
            return Err(format!("differs from what was sent as operation {id}: {send:?}"));
        }
        if !stored.holds(&payload(id, send.len)[..got.len]) {
            return Err(format!("bytes differ from what was sent as operation {id}: {send:?}"));
        }
        if let Some(other) = send.received_by.replace(op) {
            return Err(format!("the message of operation {id} was received before, by operation {other}"));
        }
        got.send = Some(id);
        Ok(())
    }
}

/// Checks a receive's buffer at its release: all received bytes are still in place, and the rest was not
/// written.
pub(super) fn intact(recv: &RecvRecord) -> Result<(), String> {
    let mut all = recv.got.iter().filter(|got| got.len > 0).collect::<Vec<_>>();
    all.sort_by_key(|got| got.offset);
    let mut at = 0;
    for got in all {
        let stored = recv.buffer.part(got.offset, got.len);
        let head = got.head.get(..got.len.min(ID_BYTES)).unwrap_or_default();
        let same = match got.send {
            Some(send) => stored.holds(&payload(send, got.full_len)[..got.len]),
            None => stored.part(0, ID_BYTES).holds(head),
        };
        expect(same, "received bytes changed before the buffer was released")?;
        expect(recv.cut || recv.buffer.part(at, got.offset - at).is_filled(CANARY), "written between messages")?;
        at = got.offset + got.len;
    }
    expect(recv.cut || recv.buffer.part(at, usize::MAX).is_filled(CANARY), "written beyond the received bytes")
}

pub(super) fn peek_completed(
    peek: &mut PeekRecord,
    c: &Completion,
    (src, dest): (Option<usize>, usize),
    at: u64,
) -> Result<Option<Buffer>, String> {
    expect(c.kind == Kind::Recv, "kind")?;
    expect(c.flags.contains(CompletionFlags::TAGGED) == peek.want.tag.is_some(), "tagged flag")?;
    if peek.discarding {
        peek.discarding = false;
        peek.discarded = true;
        return c.fault.map_or(Ok(None), |fault| Err(format!("a discard failed: {fault}")));
    }
    if peek.found.is_some() {
        return Err("completed twice".into());
    }
    peek.found = Some(None);
    match c.fault {
        Some(Fault::NoMessage) => return Ok(None),
        Some(fault) => return Err(format!("a peek failed: {fault}")),
        None => {}
    }
    let (tag, data) = (peek.want.tag.map(|_| c.tag), c.flags.contains(CompletionFlags::DATA).then_some(c.data));
    let got = Got { src, dest, tag, data, len: 0, head: [0; ID_BYTES], full_len: c.len, offset: 0, send: None, at };
    peek.found = Some(Some(got));
    peek.discarded = peek.flags.contains(RecvFlags::DISCARD);
    let wanted = src.is_some_and(|src| peek.want.accept(src, tag));
    expect(wanted, "a peek reported a message that it does not match")?;
    Ok(None)
}
