//! Collectives with a count for each member, for the recording: the messages of each member.
//!
//! Place in the data flow: as [`super`]. weft performs these calls as one message for each block, and no member knows
//! the blocks of all others. The messages have a tag that no program can use.

use std::ffi::c_int;

use smallvec::SmallVec;
use weft_client::Operation;
use weft_record::Event;

use super::{Message, Recorder};
use crate::plan::{Buffer, Call, Lengths};

/// The events of a collective.
pub(super) type Events = SmallVec<[Event; 8]>;

/// The tag of the messages. No program may use it.
pub(super) const TAG: c_int = c_int::MIN;

impl Recorder {
    /// The events of a call. All members have the same counts for a reduction.
    pub(super) fn exchange(&mut self, call: &Call, operation: Operation, sent: Lengths, received: Lengths) -> Events {
        // A communicator that joins two groups has no members here.
        let size = self.context(call.comm).ranks.len();
        let Some(own) = self.pmpi.rank(call.comm).filter(|own| *own < size) else { return Events::new() };
        if operation == Operation::ReduceScatter {
            let all: u64 = (0..size).map(|peer| self.block(&call.recv, received, peer)).sum();
            return Events::from_slice(&[self.even(call, operation, all / size as u64)]);
        }
        let (root, in_place) = (usize::try_from(call.root).ok(), self.pmpi.mpi.in_place());
        let is_root = root == Some(own);
        let mut events = Events::new();
        // A member needs no message from itself.
        for peer in (0..size).filter(|peer| *peer != own) {
            let (to, from) = match operation {
                Operation::AllGather => (Some((&call.recv, received, own)), Some((&call.recv, received, peer))),
                Operation::Gather if is_root => (None, Some((&call.recv, received, peer))),
                Operation::Gather => ((Some(peer) == root).then_some((&call.send, Lengths::NONE, 0)), None),
                Operation::Scatter if is_root => (Some((&call.send, sent, peer)), None),
                Operation::Scatter => (None, (Some(peer) == root).then_some((&call.recv, Lengths::NONE, 0))),
                _ if call.send.at.addr() == in_place => {
                    (Some((&call.recv, received, peer)), Some((&call.recv, received, peer)))
                }
                _ => (Some((&call.send, sent, peer)), Some((&call.recv, received, peer))),
            };
            let to = to.map(|(buffer, lengths, at)| self.block_count(buffer, lengths, at));
            let from = from.map(|(buffer, lengths, at)| self.block_count(buffer, lengths, at));
            for (block, is_sent) in [(to, true), (from, false)] {
                // Empty blocks are no messages.
                let Some((count, datatype)) = block.filter(|(count, _)| *count > 0) else { continue };
                let peer = i32::try_from(peer).unwrap_or(i32::MAX);
                let message = Message { count, datatype, peer, tag: TAG, comm: call.comm };
                let event = if is_sent { self.send_event(message) } else { self.receive_event(message, peer, TAG) };
                events.extend(event);
            }
        }
        // The blocks that a member sends do not wait for those that it receives.
        events.sort_by_key(|event| matches!(event, Event::Receive { .. }));
        events
    }

    /// The number of elements of a member's block, and their type.
    fn block_count(&self, buffer: &Buffer, lengths: Lengths, member: usize) -> (i64, usize) {
        let count = if lengths.counts.is_null() {
            buffer.count
        } else {
            // SAFETY: the program passes a count for each member.
            i64::from(unsafe { lengths.counts.wrapping_add(member).read() })
        };
        (count, buffer.datatype)
    }

    fn block(&mut self, buffer: &Buffer, lengths: Lengths, member: usize) -> u64 {
        let (count, datatype) = self.block_count(buffer, lengths, member);
        self.bytes(count, datatype)
    }
}
