//! Requests for collectives: the group, the elements, the operation.
//!
//! Place in the data flow: weft-fi builds a [`CollectiveOp`] from a call of the client and passes it to
//! `Engine::start_collective`.

use crate::amo::Reduction;
use crate::api::{Context, OpFlags};
use crate::collective::{Operation, Order};
use crate::ids;
use crate::mem::Iov;
use crate::table::Id;

/// Names a group of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId(u32);

impl GroupId {
    /// The id as a number, for the layer above to hand out.
    #[must_use]
    pub const fn to_number(self) -> u32 {
        self.0
    }

    /// The id with this number. Ids of no group are refused where they are used.
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }
}

impl Id for GroupId {
    fn at(place: usize) -> Self {
        Self(ids::number(place))
    }

    fn place(self) -> usize {
        self.0 as usize
    }
}

/// An operation of the client on elements of a length of its own.
#[derive(Clone, Copy, Debug)]
pub struct Custom {
    bytes: usize,
    combine: CustomFn,
    words: [usize; 2],
}

/// Combines the elements of two ranges of one length: `into` becomes the result, and `from` is only read. It runs while
/// the engine makes progress.
pub type CustomFn = fn(operation: &Custom, from: &Iov, into: &Iov, order: Order);

impl Custom {
    /// An operation on elements of a length, with two words for the function.
    #[must_use]
    pub const fn new(bytes: usize, combine: CustomFn, words: [usize; 2]) -> Self {
        Self { bytes, combine, words }
    }

    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The two words.
    #[must_use]
    pub const fn words(&self) -> [usize; 2] {
        self.words
    }

    /// Combines two ranges of one length.
    pub fn combine(&self, from: &Iov, into: &Iov, order: Order) {
        (self.combine)(self, from, into, order);
    }
}

/// The elements of a collective's blocks.
#[derive(Clone, Copy, Debug)]
pub enum Elements {
    /// Elements of this many bytes that are only moved.
    Bytes(usize),
    /// Numbers that are combined.
    Numbers(Reduction),
    /// Elements that the client combines.
    Custom(Custom),
}

impl Elements {
    /// The length of one element in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Bytes(size) => size,
            Self::Numbers(reduction) => reduction.element_bytes(),
            Self::Custom(custom) => custom.bytes,
        }
    }

    /// Whether elements are combined.
    pub(crate) const fn reduces(&self) -> bool {
        matches!(self, Self::Numbers(_) | Self::Custom(_))
    }

    /// Combines two ranges of one length.
    pub(crate) fn combine(&self, from: &Iov, into: &Iov, order: Order) {
        match self {
            Self::Numbers(reduction) => reduction.combine(from, into, order),
            Self::Custom(custom) => custom.combine(from, into, order),
            Self::Bytes(_) => debug_assert!(false, "a schedule of bytes has no reductions"),
        }
    }
}

/// A collective operation.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveOp {
    /// The group.
    pub group: GroupId,
    /// The operation, which determines the lengths of the buffers.
    pub operation: Operation,
    /// The root's rank, for operations that have a root.
    pub root: u32,
    /// Elements in one block.
    pub count: usize,
    /// The elements.
    pub elements: Elements,
    /// The client's input.
    pub input: Iov,
    /// The client's result.
    pub result: Iov,
    /// Returned with the completion.
    pub ctx: Context,
    /// Options.
    pub flags: OpFlags,
}
