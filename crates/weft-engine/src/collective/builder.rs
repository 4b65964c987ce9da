//! Assembles a schedule: numbers the messages of each pair, and lays out the scratch memory.
//!
//! Place in the data flow: the algorithm files call it; [`super::compile`] takes the result.

use rustc_hash::FxHashMap;

use super::{Buffer, MAX_TASKS, Order, Overlap, Refusal, Request, Schedule, Span, Task};

/// The alignment of every range of scratch memory, in bytes.
const ALIGN: usize = 64;

/// A transfer that a schedule has started; `None` inside where it has no bytes and does not take place.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(super) struct TransferStep(Option<u32>);

/// A schedule under construction.
pub(super) struct Builder {
    request: Request,
    tasks: Vec<Task>,
    scratch: usize,
    /// Sends so far, by receiver.
    sent: FxHashMap<u32, u32>,
    /// Receives so far, by sender.
    received: FxHashMap<u32, u32>,
}

impl Builder {
    /// No tasks yet.
    pub(super) fn new(request: Request) -> Self {
        Self { request, tasks: Vec::new(), scratch: 0, sent: FxHashMap::default(), received: FxHashMap::default() }
    }

    /// The request that is compiled.
    pub(super) const fn request(&self) -> Request {
        self.request
    }

    /// The schedule, unless it has become too long.
    pub(super) fn finish(self) -> Result<Schedule, Refusal> {
        if self.tasks.len() > MAX_TASKS {
            return Err(Refusal::TooManyTasks);
        }
        Ok(Schedule { tasks: self.tasks, scratch: self.scratch })
    }

    /// The caller's input of `len` bytes. It is copied to scratch memory first if writing the result would
    /// destroy it.
    pub(super) fn input(&mut self, len: usize) -> Span {
        let input = Span { buffer: Buffer::Input, offset: 0, len };
        if self.request.overlap == Overlap::None {
            return input;
        }
        let staged = self.scratch(len);
        self.copy(input, staged);
        staged
    }

    /// The caller's result of `len` bytes.
    pub(super) const fn result(&self, len: usize) -> Span {
        Span { buffer: Buffer::Result, offset: 0, len }
    }

    /// A range of scratch memory.
    pub(super) fn scratch(&mut self, len: usize) -> Span {
        let offset = self.scratch;
        self.scratch += len.next_multiple_of(ALIGN);
        Span { buffer: Buffer::Scratch, offset, len }
    }

    /// Copies one block of the input to `into`, where a reduction accumulates.
    pub(super) fn load_input(&mut self, into: Span) {
        let in_place = self.request.overlap == Overlap::Same && into.buffer == Buffer::Result;
        if !in_place {
            let input = Span { buffer: Buffer::Input, offset: 0, len: into.len };
            self.copy(input, into);
        }
    }

    /// Starts to send a range; nothing is sent if it is empty.
    pub(super) fn send(&mut self, to: u32, at: Span) -> TransferStep {
        if at.len == 0 { TransferStep(None) } else { self.signal(to, at) }
    }

    /// Starts to send a range, even an empty one.
    pub(super) fn signal(&mut self, to: u32, at: Span) -> TransferStep {
        let number = next(&mut self.sent, to);
        self.start(Task::Send { to, number, at })
    }

    /// Starts to receive a range; nothing is received if it is empty.
    pub(super) fn receive(&mut self, from: u32, at: Span) -> TransferStep {
        if at.len == 0 { TransferStep(None) } else { self.expect(from, at) }
    }

    /// Starts to receive a range, even an empty one.
    pub(super) fn expect(&mut self, from: u32, at: Span) -> TransferStep {
        let number = next(&mut self.received, from);
        self.start(Task::Receive { from, number, at })
    }

    /// Waits for a transfer.
    pub(super) fn wait(&mut self, transfer: TransferStep) {
        if let Some(task) = transfer.0 {
            self.push(Task::Wait { task });
        }
    }

    /// Sends a range to one member, receives another from the same one or from another, and waits for both.
    pub(super) fn exchange(&mut self, to: u32, out: Span, from: u32, into: Span) {
        let arrival = self.receive(from, into);
        let departure = self.send(to, out);
        self.wait(arrival);
        self.wait(departure);
    }

    /// Copies a range; nothing is copied if it is empty or would be copied onto itself.
    pub(super) fn copy(&mut self, from: Span, into: Span) {
        debug_assert_eq!(from.len, into.len, "a copy has one length");
        if from.len > 0 && from != into {
            self.push(Task::Copy { from, into });
        }
    }

    /// Combines a range of another member with one of this member: the lower rank's is the first operand.
    pub(super) fn reduce(&mut self, from: Span, into: Span, from_is_lower: bool) {
        debug_assert_eq!(from.len, into.len, "a reduction has one length");
        if from.len > 0 {
            let order = if from_is_lower { Order::FromFirst } else { Order::IntoFirst };
            self.push(Task::Reduce { from, into, order });
        }
    }

    fn start(&mut self, task: Task) -> TransferStep {
        self.push(task);
        TransferStep(u32::try_from(self.tasks.len() - 1).ok())
    }

    /// Adds a task; those beyond the limit are dropped, as [`Builder::finish`] refuses the schedule anyway.
    fn push(&mut self, task: Task) {
        if self.tasks.len() <= MAX_TASKS {
            self.tasks.push(task);
        }
    }
}

fn next(counts: &mut FxHashMap<u32, u32>, peer: u32) -> u32 {
    let count = counts.entry(peer).or_insert(0);
    *count += 1;
    *count - 1
}
