//! The steps of a rank, and the source of them.
//!
//! Place in the data flow: [`crate::schedule`] makes steps from the schedules of collectives. [`crate::machine`]
//! performs them. A recorded job is a further source.

/// One step of a rank's program. Steps are performed in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Starts to send `bytes` to a rank. It belongs to the receive of that rank with the same number.
    Send {
        /// The receiver.
        to: u32,
        /// The message's number among those from this rank to the receiver, within one iteration.
        number: u32,
        /// The length of the payload.
        bytes: u64,
    },
    /// Has a unit of another rank answer, in the order of requests. The answer is an arrival from that rank with the
    /// same number.
    Ask {
        /// The rank whose device answers.
        to: u32,
        /// The answer's number among the arrivals from that rank, within one iteration.
        number: u32,
        /// The part of the device that answers.
        unit: Unit,
    },
    /// Continues when the arrival with this ordinal has been delivered.
    Wait {
        /// The sender, or the rank that was asked.
        from: u32,
        /// The place of the arrival among those of this rank and iteration, see [`Arrival::ordinal`].
        ordinal: u32,
    },
    /// Continues when the payloads sent so far have left the memory of this rank.
    Drain,
    /// Uses the processor for a number of picoseconds.
    Compute {
        /// The duration.
        ps: u64,
    },
    /// Copies bytes from memory to memory.
    Copy {
        /// The length.
        bytes: u64,
    },
    /// Combines two ranges of this length.
    Reduce {
        /// The length of one of them.
        bytes: u64,
    },
    /// Begins a collective: the work of the layer that performs schedules.
    Call,
    /// Reports on the board of the host that this rank has arrived. When all have, each gets an arrival from itself
    /// with this number ([`Programs::meeting`]).
    Meet {
        /// The meeting's number among those of this rank, within one iteration.
        number: u32,
    },
    /// Accesses slots on the board that other members have used last.
    Slots {
        /// How many.
        count: u32,
    },
    /// Starts or stops the clock of the rank, which runs from the first of two marks to the second.
    Mark,
}

/// The unit that answers an [`Step::Ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// The device reads memory and returns the bytes that the arrival names.
    Memory,
    /// The device performs atomic operations, one after the other.
    Atomic,
    /// The processor of the rank, which runs a handler for each request, one after the other.
    Handler,
}

/// A message that a rank receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The place among the arrivals of this rank and iteration, from 0 without gaps.
    pub ordinal: u32,
    /// The length of the payload.
    pub bytes: u64,
}

/// A meeting of ranks on the board of their host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// The number of ranks.
    pub members: u32,
    /// Slots that the last rank accesses before the others go on.
    pub combines: u32,
    /// The rank whose arrival lets the others go on. `None`: all must have arrived.
    pub source: Option<u32>,
}

/// The programs of all ranks. All answers are functions of the arguments.
pub trait Programs {
    /// The number of ranks.
    fn ranks(&self) -> u32;

    /// The step of a rank at an index; `None` behind the last one.
    fn step(&self, rank: u32, index: u32) -> Option<Step>;

    /// The arrival that belongs to message `number` from another rank. `None`: the rank does not expect it.
    fn arrival(&self, rank: u32, from: u32, number: u32) -> Option<Arrival>;

    /// The most arrivals of any rank in one iteration.
    fn most_arrivals(&self) -> u32;

    /// The meeting with this number. `None`: there is none.
    fn meeting(&self, rank: u32, number: u32) -> Option<Meeting> {
        let _ = (rank, number);
        None
    }
}
