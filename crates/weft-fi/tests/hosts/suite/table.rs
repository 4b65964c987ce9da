//! The test cases: the operations, the axes, and the cases made of them.

use std::fmt;
use std::sync::OnceLock;

use weft_engine::amo;

use crate::atomics::calls::{FORMS, Way, ways};
use crate::client::Lib;
use crate::side::{CALLS, Call, Form};

use super::memory::Cut;

/// The effect of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Message,
    Tagged,
    Write,
    Read,
    Atomic(amo::Form),
}

/// The way to call a function.
#[derive(Clone, Copy)]
pub(super) enum How {
    Call(&'static Call),
    Atomic(Way),
}

/// A function that starts a transfer.
#[derive(Clone, Copy)]
pub(super) struct Operation {
    pub(super) name: &'static str,
    pub(super) family: Family,
    pub(super) form: Form,
    /// Whether the operation carries data for the target's queue.
    pub(super) data: bool,
    pub(super) how: How,
}

impl Operation {
    pub(super) fn is_message(&self) -> bool {
        matches!(self.family, Family::Message | Family::Tagged)
    }

    pub(super) fn is_atomic(&self) -> bool {
        matches!(self.family, Family::Atomic(_))
    }

    fn of(call: &'static Call) -> Self {
        let name = call.name.trim_start_matches("fi_");
        let family = match name {
            _ if name.contains("write") => Family::Write,
            _ if name.contains("read") => Family::Read,
            _ if name.starts_with('t') => Family::Tagged,
            _ => Family::Message,
        };
        Self { name: call.name, family, form: call.form, data: name.ends_with("data"), how: How::Call(call) }
    }

    fn atomic(form: amo::Form, way: Way) -> Self {
        let name = match (form, way) {
            (amo::Form::Base, Way::Plain) => "fi_atomic",
            (amo::Form::Base, Way::Vector) => "fi_atomicv",
            (amo::Form::Base, Way::Message) => "fi_atomicmsg",
            (amo::Form::Base, Way::Inject) => "fi_inject_atomic",
            (amo::Form::Fetch, Way::Vector) => "fi_fetch_atomicv",
            (amo::Form::Fetch, Way::Message) => "fi_fetch_atomicmsg",
            (amo::Form::Fetch, _) => "fi_fetch_atomic",
            (amo::Form::Compare, Way::Vector) => "fi_compare_atomicv",
            (amo::Form::Compare, Way::Message) => "fi_compare_atomicmsg",
            (amo::Form::Compare, _) => "fi_compare_atomic",
        };
        let call = match way {
            Way::Plain => Form::Plain,
            Way::Vector => Form::Vector,
            Way::Message => Form::Message,
            Way::Inject => Form::Inject,
        };
        Self { name, family: Family::Atomic(form), form: call, data: false, how: How::Atomic(way) }
    }
}

/// All functions that start a transfer.
pub(super) fn operations() -> &'static [Operation] {
    static LIST: OnceLock<Vec<Operation>> = OnceLock::new();
    LIST.get_or_init(|| {
        let calls = CALLS.iter().filter(|call| !call.recv).map(Operation::of);
        let atomics = FORMS.iter().flat_map(|&form| ways(form).iter().map(move |&way| Operation::atomic(form, way)));
        calls.chain(atomics).collect()
    })
}

// The value is constant.
unsafe impl Sync for Operation {}
unsafe impl Send for Operation {}

/// Declares the axes: the name, the number of values, and the operations to which it applies.
macro_rules! axes {
    ($($name:ident $count:literal |$op:ident| $applies:expr;)*) => {
        /// A parameter that varies from case to case, beside operation, progress model and length.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Axis { $($name),* }

        impl Axis {
            const ALL: &'static [Self] = &[$(Self::$name),*];
            const COUNT: usize = Self::ALL.len();

            /// The number of values for an operation; 1 if the axis does not apply.
            fn values(self, op: &Operation) -> u8 {
                match self {
                    $(Self::$name => {
                        let $op = op;
                        if $applies { $count } else { 1 }
                    })*
                }
            }
        }
    };
}

axes! {
    // Axes of endpoints and queues.
    Format 4 |_op| true;
    Selective 2 |_op| true;
    Counters 2 |_op| true;
    // From a to b, from b to a, and from a to itself.
    Direction 3 |_op| true;
    // Axes of buffers.
    SourceAlign 8 |_op| true;
    TargetAlign 8 |_op| true;
    SourceCut 4 |op| matches!(op.form, Form::Vector | Form::Message);
    RemoteCut 4 |op| matches!(op.family, Family::Read | Family::Write) && op.form == Form::Message;
    Region 3 |op| !op.is_message();
    Size 4 |op| op.is_atomic();
    // Axes of the operation. Order is none, FI_FENCE, or FI_MORE.
    Level 5 |_op| true;
    Order 3 |_op| true;
    Completion 2 |_op| true;
    Inject 2 |op| op.form == Form::Message && !matches!(op.family, Family::Read | Family::Atomic(amo::Form::Fetch | amo::Form::Compare));
    Data 2 |op| op.form == Form::Message && (op.is_message() || op.family == Family::Write);
    // Axes of the receive. Room is the length of the message, more, one byte less, or half.
    Late 2 |op| op.is_message();
    Into 5 |op| op.is_message();
    Room 4 |op| op.is_message();
    Directed 2 |op| op.is_message();
    Ignore 2 |op| op.family == Family::Tagged;
    ReceiveCompletion 2 |op| op.is_message();
    // Axes of reading: fi_cq_read, readfrom, sread or sreadfrom; one or several entries.
    Reader 4 |_op| true;
    Batch 2 |_op| true;
}

impl Axis {
    /// The number of pairs of values of two axes that meet, over all operations.
    pub(super) fn pairs() -> usize {
        let of = |op: &Operation| {
            let values: Vec<usize> = Self::ALL.iter().map(|axis| usize::from(axis.values(op))).collect();
            (0..values.len())
                .flat_map(|a| (0..a).map(move |b| (a, b)))
                .map(|(a, b)| values[a] * values[b])
                .sum::<usize>()
        };
        operations().iter().map(of).sum()
    }
}

/// The lengths in bytes at which a protocol changes.
pub(super) struct Limits {
    inject: usize,
    ordered: usize,
    pub(super) longest: usize,
}

/// The longest transfer. It is odd, so that no unit of any protocol divides it.
const LONGEST_BYTES: usize = (1 << 20) + 3;
/// The longest atomic operation.
const LONGEST_ATOMIC_BYTES: usize = 1 << 20;
/// All lengths up to this one are tested in turn, since headers and messages share lines and small buffers.
const SWEPT_BYTES: usize = 200;

impl Limits {
    pub(super) fn of(lib: &Lib) -> Self {
        let info = lib.ask(lib.newest(), None).unwrap();
        Self { inject: info.tx().inject_size, ordered: info.ep().max_order_waw_size, longest: LONGEST_BYTES }
    }

    /// One length of each class.
    pub(super) fn edges(&self) -> Vec<usize> {
        self.classes().iter().map(|(lengths, _)| *lengths.last().unwrap()).collect()
    }

    /// The classes of lengths. Each has the lengths that take turns in it, and the number of turns.
    fn classes(&self) -> Vec<(Vec<usize>, usize)> {
        let around = |edge: usize| vec![edge - 1, edge, edge + 1];
        let tcp = weft_nic::TcpConfig::default();
        vec![
            (vec![0], 6),
            (vec![1], 3),
            (vec![7], 3),
            (vec![8], 3),
            ((9..=SWEPT_BYTES).collect(), 16),
            (around(self.ordered), 6),
            (around(self.inject), 6),
            (around(weft_nic::shm::EAGER_BYTES), 6),
            (around(tcp.eager_bytes), 6),
            (around(tcp.segment_bytes), 3),
            (vec![self.longest], 2),
        ]
    }
}

/// A case: an operation, a progress model, a length, and a value on each axis.
#[derive(Clone)]
pub(super) struct Case {
    pub(super) op: &'static Operation,
    pub(super) auto: bool,
    pub(super) len: usize,
    /// A number that is unique over all operations.
    pub(super) number: usize,
    values: [u8; Axis::COUNT],
}

impl Case {
    pub(super) fn name(&self) -> String {
        format!("{}/{}/{}/{}", self.op.name, if self.auto { "auto" } else { "manual" }, self.len, self.number)
    }

    pub(super) fn get(&self, axis: Axis) -> usize {
        usize::from(self.values[axis as usize])
    }

    pub(super) fn is(&self, axis: Axis) -> bool {
        self.get(axis) != 0
    }

    pub(super) fn cut(&self, axis: Axis) -> Cut {
        Cut::ALL[self.get(axis)]
    }

    /// Replaces values that exclude each other.
    fn settle(&mut self, limits: &Limits) {
        if self.len > limits.inject {
            self.values[Axis::Inject as usize] = 0;
        }
        if self.len == 0 && self.get(Axis::Room) > 1 {
            self.values[Axis::Room as usize] -= 2;
        }
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for axis in Axis::ALL.iter().filter(|axis| axis.values(self.op) > 1) {
            write!(f, "{axis:?}={} ", self.get(*axis))?;
        }
        Ok(())
    }
}

/// The pairs of values that have met.
struct Met {
    /// The index of each axis' first value.
    starts: [usize; Axis::COUNT],
    total: usize,
    pairs: Vec<bool>,
}

impl Met {
    fn new(op: &Operation) -> Self {
        let mut starts = [0; Axis::COUNT];
        let mut total = 0;
        for axis in Axis::ALL {
            starts[*axis as usize] = total;
            total += usize::from(axis.values(op));
        }
        Self { starts, total, pairs: vec![false; total * total] }
    }

    fn of(&self, values: &[u8; Axis::COUNT]) -> impl Iterator<Item = usize> {
        let at: [usize; Axis::COUNT] = std::array::from_fn(|axis| self.starts[axis] + usize::from(values[axis]));
        let total = self.total;
        (0..Axis::COUNT).flat_map(move |a| (0..a).map(move |b| at[a] * total + at[b]))
    }

    fn fresh(&self, values: &[u8; Axis::COUNT]) -> usize {
        self.of(values).filter(|&pair| !self.pairs[pair]).count()
    }

    fn add(&mut self, values: &[u8; Axis::COUNT]) {
        let pairs: Vec<_> = self.of(values).collect();
        pairs.into_iter().for_each(|pair| self.pairs[pair] = true);
    }

    /// Finds two values that have not met.
    fn missing(&self, op: &Operation) -> Option<[(usize, u8); 2]> {
        for a in 0..Axis::COUNT {
            for b in 0..a {
                for (v, w) in
                    (0..Axis::ALL[a].values(op)).flat_map(|v| (0..Axis::ALL[b].values(op)).map(move |w| (v, w)))
                {
                    if !self.pairs[(self.starts[a] + usize::from(v)) * self.total + self.starts[b] + usize::from(w)] {
                        return Some([(a, v), (b, w)]);
                    }
                }
            }
        }
        None
    }
}

/// Marsaglia's xorshift generator. It returns the same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u8) -> u8 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 32) % u64::from(bound)) as u8
    }
}

/// The number of candidates. The candidate with the most new pairs is taken.
const CANDIDATES: usize = 12;

/// Makes the cases of an operation: each progress model with each class of lengths, and more until all pairs
/// have met.
pub(super) fn deal(op: &'static Operation, limits: &Limits) -> Vec<Case> {
    let first = operations().iter().position(|other| other.name == op.name).unwrap() * 10_000;
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (first as u64 + 1));
    let mut met = Met::new(op);
    let mut cases = Vec::new();
    let mut add = |auto: bool, len: usize, fixed: &[(usize, u8)], met: &mut Met| {
        let number = first + cases.len();
        let mut candidate = || {
            let values = std::array::from_fn(|axis| random.below(Axis::ALL[axis].values(op)));
            let mut case = Case { op, auto, len, number, values };
            fixed.iter().for_each(|&(axis, value)| case.values[axis] = value);
            case.settle(limits);
            case
        };
        let best = (0..CANDIDATES).map(|_| candidate()).max_by_key(|case| met.fresh(&case.values)).unwrap();
        met.add(&best.values);
        cases.push(best);
    };
    let mut turn = 0;
    for (lengths, times) in limits.classes() {
        for at in 0..2 * times {
            let len = lengths[turn % lengths.len()];
            // Both models get every length eventually.
            turn += at % 2;
            if op.form == Form::Inject && len > limits.inject || op.is_atomic() && len == 0 {
                continue;
            }
            let len = if op.is_atomic() { len.min(LONGEST_ATOMIC_BYTES) } else { len };
            add(at % 2 == 1, len, &[], &mut met);
        }
    }
    while let Some(fixed) = met.missing(op) {
        turn += 1;
        add(turn % 2 == 1, 9 + turn % (SWEPT_BYTES - 9), &fixed, &mut met);
    }
    cases
}
