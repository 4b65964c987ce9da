//! The events of a recording, and their form in a file.

/// No rank, or any rank.
pub const ANY: u32 = u32::MAX;

/// The bit of numbers that name endpoints of the process itself, in recordings of the provider.
pub const OWN: u32 = 1 << 31;

/// The bytes of a record.
pub(crate) const RECORD_BYTES: usize = 32;

/// The library that wrote a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The profiling library: calls of MPI.
    Mpi,
    /// The provider: calls of libfabric.
    Provider,
}

/// Calls that are not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Omitted {
    /// A window of memory, whose accesses by other processes are not recorded.
    Window,
    /// A scan.
    Scan,
}

impl Omitted {
    const ALL: [Self; 2] = [Self::Window, Self::Scan];
}

/// An event of a process. Requests have numbers above 0 that are used again after their end; 0 stands for a call that
/// waits itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The begin of the file: the rank of this process, and the number of ranks. The provider does not know them, and
    /// names its endpoints by [`Event::Name`].
    Start {
        /// The library that writes the file.
        source: Source,
        /// The rank.
        rank: u32,
        /// The number of ranks.
        ranks: u32,
    },
    /// Members of a context (of a communicator): up to four ranks in the world. Context 0 is the world.
    Members {
        /// The number of the context in this file.
        context: u32,
        /// The ranks. [`ANY`] stands for none.
        ranks: [u32; 4],
    },
    /// A part of the name of a peer, or of the process's own endpoint, for recordings of the provider.
    Name {
        /// The number of the peer in this file, or that of an own endpoint with [`OWN`].
        peer: u32,
        /// Sixteen bytes of the name. Parts follow one another.
        part: [u8; 16],
    },
    /// The start of a send.
    Send {
        /// The receiver's rank in the world.
        to: u32,
        /// The request.
        id: u32,
        /// The length.
        bytes: u64,
        /// The context of the message.
        context: u32,
        /// The tag, or its hash.
        tag: u32,
    },
    /// The start of a receive.
    Receive {
        /// The sender's rank in the world, or [`ANY`].
        from: u32,
        /// The request.
        id: u32,
        /// The length of the room.
        bytes: u64,
        /// The context of the message.
        context: u32,
        /// The tag, or [`ANY`].
        tag: u32,
    },
    /// The end of a request, for which the process has waited or asked. A receive tells the message.
    Wait {
        /// The sender of the received message, or [`ANY`] where the request tells it.
        from: u32,
        /// The request.
        id: u32,
        /// The tag of the received message, or [`ANY`] where the request tells it.
        tag: u32,
    },
    /// The start of a collective.
    Collective {
        /// The operation's number in `weft_engine::collective::Operation::ALL`.
        operation: u32,
        /// The request.
        id: u32,
        /// The bytes of a block.
        bytes: u64,
        /// The context.
        context: u32,
        /// The root's rank in the context.
        root: u32,
    },
    /// The process has accessed a peer's memory. The access ends like a send.
    Access {
        /// The peer.
        to: u32,
        /// The request.
        id: u32,
        /// The length.
        bytes: u64,
        /// Whether the bytes move to this process.
        reads: bool,
    },
    /// A call is not recorded.
    Omitted {
        /// The kind of the call.
        call: Omitted,
    },
    /// The time since the start by both clocks: the duration of the ticks in front of events.
    Rate {
        /// Ticks of the processor's clock.
        ticks: u64,
        /// Nanoseconds.
        ns: u64,
    },
    /// The end of the process, with the nanoseconds since the start.
    End {
        /// The duration.
        lasted_ns: u64,
    },
}

const fn high(low: u32, high: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

#[allow(clippy::cast_possible_truncation)] // The halves of the number.
const fn halves(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

impl Event {
    /// The record, with the computation in front of the event.
    #[must_use]
    pub(crate) fn encode(&self, gap: u64) -> [u8; RECORD_BYTES] {
        let (kind, a, b, c, d) = match *self {
            Self::Start { source, rank, ranks } => {
                (1, rank, ranks, crate::VERSION, u64::from(source == Source::Provider))
            }
            Self::Members { context, ranks: [p, q, r, s] } => (2, context, 0, high(p, q), high(r, s)),
            Self::Name { peer, part } => {
                let number = u128::from_le_bytes(part);
                #[allow(clippy::cast_possible_truncation)] // The two halves.
                let (low, rest) = (number as u64, (number >> 64) as u64);
                (3, peer, 0, low, rest)
            }
            Self::Send { to, id, bytes, context, tag } => (4, to, id, bytes, high(tag, context)),
            Self::Receive { from, id, bytes, context, tag } => (5, from, id, bytes, high(tag, context)),
            Self::Wait { from, id, tag } => (6, from, id, 0, high(tag, 0)),
            Self::Collective { operation, id, bytes, context, root } => {
                (7 | u64::from(operation) << 4, root, id, bytes, high(0, context))
            }
            Self::Access { to, id, bytes, reads } => (8, to, id, bytes, u64::from(reads)),
            Self::End { lasted_ns } => (9, 0, 0, lasted_ns, 0),
            Self::Rate { ticks, ns } => (10, 0, 0, ticks, ns),
            Self::Omitted { call } => (11, 0, 0, call as u64, 0),
        };
        let words = [kind | gap << 8, high(a, b), c, d];
        let mut record = [0; RECORD_BYTES];
        for (part, word) in record.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *part = word.to_le_bytes();
        }
        record
    }

    /// This start of an operation, with a request.
    #[must_use]
    pub const fn with_request(mut self, request: u32) -> Self {
        if let Self::Send { id, .. }
        | Self::Receive { id, .. }
        | Self::Collective { id, .. }
        | Self::Access { id, .. } = &mut self
        {
            *id = request;
        }
        self
    }

    /// The event of a record, with the computation in front of it.
    pub(crate) fn decode(record: &[u8; RECORD_BYTES]) -> Option<(u64, Self)> {
        let mut words = record.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let (first, second) = (words.next()?, words.next()?);
        let (c, d) = (words.next()?, words.next()?);
        let ([a, b], [tag, context]) = (halves(second), halves(d));
        let kind = first & 0xff;
        let event = match kind & 0xf {
            1 if c == crate::VERSION => {
                let source = if d == 0 { Source::Mpi } else { Source::Provider };
                Self::Start { source, rank: a, ranks: b }
            }
            2 => {
                let ([p, q], [r, s]) = (halves(c), halves(d));
                Self::Members { context: a, ranks: [p, q, r, s] }
            }
            3 => Self::Name { peer: a, part: (u128::from(d) << 64 | u128::from(c)).to_le_bytes() },
            4 => Self::Send { to: a, id: b, bytes: c, context, tag },
            5 => Self::Receive { from: a, id: b, bytes: c, context, tag },
            6 => Self::Wait { from: a, id: b, tag },
            7 => Self::Collective { operation: u32::try_from(kind >> 4).ok()?, id: b, bytes: c, context, root: a },
            8 => Self::Access { to: a, id: b, bytes: c, reads: d != 0 },
            9 => Self::End { lasted_ns: c },
            10 => Self::Rate { ticks: c, ns: d },
            11 => Self::Omitted { call: *Omitted::ALL.get(usize::try_from(c).ok()?)? },
            _ => return None,
        };
        Some((first >> 8, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_is_read_as_it_was_written() {
        let events = [
            Event::Start { source: Source::Mpi, rank: 3, ranks: 7 },
            Event::Start { source: Source::Provider, rank: ANY, ranks: 0 },
            Event::Members { context: 9, ranks: [1, 2, ANY, ANY] },
            Event::Name { peer: 4, part: *b"\xf0sixteen\xffbytes\0!" },
            Event::Send { to: 1, id: 2, bytes: 1 << 40, context: 5, tag: 6 },
            Event::Receive { from: ANY, id: 2, bytes: 8, context: 5, tag: ANY },
            Event::Wait { from: 1, id: 2, tag: 77 },
            Event::Collective { operation: 8, id: 0, bytes: 4096, context: 3, root: 2 },
            Event::Access { to: 1, id: 2, bytes: 9, reads: true },
            Event::Omitted { call: Omitted::Scan },
            Event::Rate { ticks: 1 << 50, ns: 3 },
            Event::End { lasted_ns: u64::MAX },
        ];
        for (gap, event) in (0..).map(|at| at * 1_000_000_007).zip(events) {
            assert_eq!(Event::decode(&event.encode(gap)), Some((gap, event)));
        }
        assert_eq!(Event::decode(&[0; RECORD_BYTES]), None);
        assert_eq!(Event::decode(&[0xff; RECORD_BYTES]), None);
    }
}
