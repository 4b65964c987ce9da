//! Operations of ranks with datagrams: untagged sends and receives, and some operations that datagrams do not
//! support.

use weft_engine::api::{Error, OpFlags};

use super::{ROOM_BYTES, Workload};
use crate::harness::{Recv, Send, random_pieces};
use crate::oracle::ID_BYTES;
use crate::plan::Act;

impl Workload {
    /// The datagram operation that replaces `act`.
    pub(super) const fn datagram_act(act: Act) -> Act {
        match act {
            Act::Send | Act::Write | Act::Read => Act::Send,
            Act::Recv | Act::Peek | Act::Atomic | Act::Program | Act::Collective => Act::Recv,
            Act::Cancel => Act::Cancel,
        }
    }

    pub(super) fn send_datagram(&mut self, rank: usize) -> Result<(), Error> {
        let longest = self.longest_datagram();
        let (mut len, data) = (self.len(rank), self.data(rank));
        let rng = &mut self.rngs[rank];
        let dest = *rng.pick(&self.begun);
        len = if rng.chance(20) { longest + 1 + rng.index(100) } else { len.min(longest) };
        let mut flags = OpFlags::empty();
        for (flag, permille) in [
            (OpFlags::INJECT, 200),
            (OpFlags::TRANSMIT, 200),
            (OpFlags::QUIET, 100),
            (OpFlags::DELIVERY, 20),
            (OpFlags::FENCE, 20),
        ] {
            flags.set(flag, rng.chance(permille));
        }
        if len <= longest && len > self.engine.inject_bytes {
            flags -= OpFlags::INJECT;
        }
        let refusal = if flags.intersects(OpFlags::DELIVERY | OpFlags::FENCE) {
            Some(Error::Invalid)
        } else {
            (len > longest).then_some(Error::TooLong)
        };
        let send = Send { tag: None, data, len, flags, pieces: random_pieces(rng, len) };
        let sent = self.harness.send(rank, dest, &send).err();
        if sent != refusal {
            // It must not wait either: a datagram without room is dropped.
            self.harness.oracle_mut().complain(format!(
                "rank {rank}: a datagram of {len} bytes (of {longest}), {flags:?}: answered {sent:?}, not {refusal:?}"
            ));
        }
        Ok(())
    }

    pub(super) fn recv_datagram(&mut self, rank: usize) -> Result<(), Error> {
        let short = self.len(rank);
        let rng = &mut self.rngs[rank];
        let src = rng.chance(300).then(|| *rng.pick(&self.begun));
        let multi = rng.chance(150);
        let len = if rng.chance(150) { short } else { ROOM_BYTES };
        let pieces = if multi { Vec::new() } else { random_pieces(rng, len) };
        self.harness.recv(rank, &Recv { src, tag: None, len: len.max(ID_BYTES), multi, pieces }).map(drop)
    }

    fn longest_datagram(&self) -> usize {
        usize::try_from(self.engine.max_msg_bytes).unwrap_or(usize::MAX)
    }
}
