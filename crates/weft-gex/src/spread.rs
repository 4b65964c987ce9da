//! Barriers, exchanges and collectives of teams whose members share no memory, by letters.
//!
//! Place in the data flow: `team` starts these where a team has members in several neighbourhoods, and polls of the
//! rank move them on. Each is a state machine that never waits: `run` returns whether it is complete here.
//!
//! Barriers and exchanges are disseminations: in round k a member informs the one at distance 2^k. Data passes along
//! binomial trees in pieces. A member sends data only when its receiver has said that it has begun the collective.
//!
//! Invariant: the members of a team begin its collectives in the same order, so numbers name the same one everywhere.

use crate::area::EXCHANGE_WORDS;
use crate::coll::Combine;
use crate::memory::{Piece, bytes_at, bytes_at_mut};
use crate::post::Mail;

/// Bytes of a piece of data.
const PIECE_BYTES: usize = 16 << 10;
/// Words of a member's message in an exchange.
pub const WORDS: usize = EXCHANGE_WORDS - 1;
/// Members whose messages a letter carries in an exchange.
const ENTRIES: usize = 256;

/// The use of a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Barrier = 1,
    Named = 2,
    Exchange = 3,
    /// The receiver has begun, and takes operands.
    ReadyUp = 4,
    Up = 5,
    /// The receiver has begun, and takes the result.
    ReadyDown = 6,
    Down = 7,
    /// The result of a reduction for its root.
    Result = 8,
}

/// The place of a letter in the life of its team.
fn place(what: Use, number: u64, at: usize) -> u64 {
    ((what as u64) << 60) | ((number & 0xf_ffff_ffff) << 24) | (at as u64 & 0xff_ffff)
}

/// A round of information from each member to all others.
#[derive(Clone, Copy, Debug)]
pub struct Dissemination {
    what: Use,
    number: u64,
    round: u32,
    is_sent: bool,
    value: u64,
}

impl Dissemination {
    /// A barrier of the team.
    #[must_use]
    pub fn barrier(number: u64) -> Self {
        Self { what: Use::Barrier, number, round: 0, is_sent: false, value: 0 }
    }

    /// A named barrier, to which this member brings a value.
    #[must_use]
    pub fn named(number: u64, value: u64) -> Self {
        Self { what: Use::Named, number, round: 0, is_sent: false, value }
    }

    /// The values of all members together, when the dissemination is complete.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.value
    }

    /// Moves on. Returns whether it is complete. `join` gives the same for any order and for repeated values.
    pub fn run(&mut self, mail: &impl Mail, join: fn(u64, u64) -> u64) -> bool {
        let (me, members) = (mail.me(), mail.members());
        loop {
            let reach = 1_u32.checked_shl(self.round).unwrap_or(u32::MAX);
            if reach >= members {
                return true;
            }
            let place = place(self.what, self.number, self.round as usize);
            if !self.is_sent && !mail.send((me + reach) % members, place, &self.value.to_ne_bytes()) {
                return false;
            }
            self.is_sent = true;
            let Some(letter) = mail.take((me + members - reach) % members, place) else { return false };
            let value = letter.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            self.value = join(self.value, value);
            self.round += 1;
            self.is_sent = false;
        }
    }
}

/// A short message of each member to all.
pub struct Exchange {
    number: u64,
    /// The messages of this member and of those that follow it, as far as they are known.
    known: Vec<[u64; WORDS]>,
    reach: usize,
    /// Letters of the round that have left.
    sent: usize,
    /// Messages of the round that have arrived.
    news: Vec<[u64; WORDS]>,
}

impl Exchange {
    /// The exchange of a number, to which this member brings a message.
    #[must_use]
    pub fn new(number: u64, message: [u64; WORDS]) -> Self {
        Self { number, known: vec![message], reach: 1, sent: 0, news: Vec::new() }
    }

    /// Moves on. Returns whether it is complete.
    pub fn run(&mut self, mail: &impl Mail) -> bool {
        let (me, members) = (mail.me() as usize, mail.members() as usize);
        #[expect(clippy::cast_possible_truncation, reason = "below the number of members")]
        let member = |at: usize| (at % members) as u32;
        while self.reach < members {
            // Each member tells the one before it what it knows.
            let count = self.reach.min(members - self.reach);
            let letters = count.div_ceil(ENTRIES);
            let name = |letter: usize| place(Use::Exchange, self.number, (self.reach.ilog2() as usize) << 16 | letter);
            while self.sent < letters {
                let first = self.sent * ENTRIES;
                let entries = &self.known[first..count.min(first + ENTRIES)];
                let bytes: Vec<u8> = entries.as_flattened().iter().flat_map(|word| word.to_ne_bytes()).collect();
                if !mail.send(member(me + members - self.reach), name(self.sent), &bytes) {
                    return false;
                }
                self.sent += 1;
            }
            while self.news.len() < count {
                let letter = self.news.len() / ENTRIES;
                let Some(bytes) = mail.take(member(me + self.reach), name(letter)) else { return false };
                let (words, _) = bytes.as_chunks::<8>();
                let (entries, _) = words.as_chunks::<WORDS>();
                let before = self.news.len();
                self.news.extend(entries.iter().map(|entry| entry.map(u64::from_ne_bytes)));
                if self.news.len() == before {
                    crate::fatal!("a member of a team has sent an empty message; start the same library in all ranks");
                }
            }
            self.known.append(&mut self.news);
            self.reach += count;
            self.sent = 0;
        }
        true
    }

    /// The messages of all members, in their order, of a complete exchange.
    #[must_use]
    pub fn messages(mut self, mail: &impl Mail) -> Vec<[u64; WORDS]> {
        let first = (mail.members() - mail.me()) % mail.members();
        self.known.rotate_left(first as usize);
        self.known
    }
}

/// The children of a member in the tree of `members` members below member 0, lowest first.
fn children(member: u32, members: u32) -> impl Iterator<Item = u32> {
    let lowest = if member == 0 { 0 } else { u32::BITS - member.leading_zeros() };
    (lowest..32)
        .map_while(move |bit| Some(u64::from(member) + (1_u64 << bit)).filter(|at| *at < u64::from(members)))
        .map(|at| u32::try_from(at).unwrap_or(u32::MAX))
}

/// The parent of a member in that tree.
fn parent(member: u32) -> Option<u32> {
    member.checked_ilog2().map(|bit| member - (1 << bit))
}

/// A broadcast along a binomial tree.
pub struct Broadcast {
    number: u64,
    root: u32,
    /// The address of the data: the source at the root, and the result elsewhere.
    data: usize,
    bytes: usize,
    has_begun: bool,
    /// The piece under way, whether it is here, and the number of children that have it.
    piece: usize,
    is_here: bool,
    served: usize,
    /// The children that are ready.
    ready: usize,
}

impl Broadcast {
    /// A broadcast of a number.
    #[must_use]
    pub fn new(number: u64, root: u32, data: usize, bytes: usize) -> Self {
        Self { number, root, data, bytes, has_begun: false, piece: 0, is_here: false, served: 0, ready: 0 }
    }

    /// Moves on. Returns whether it is complete.
    pub fn run(&mut self, mail: &impl Mail) -> bool {
        let members = mail.members();
        let me = (mail.me() + members - self.root) % members;
        let real = |member: u32| (member + self.root) % members;
        if let Some(parent) = parent(me)
            && !self.has_begun
            && self.bytes > 0
            && !mail.send(real(parent), place(Use::ReadyDown, self.number, 0), &[])
        {
            return false;
        }
        self.has_begun = true;
        let children: Vec<u32> = children(me, members).map(real).collect();
        while self.piece * PIECE_BYTES < self.bytes {
            let start = self.piece * PIECE_BYTES;
            let len = PIECE_BYTES.min(self.bytes - start);
            let name = place(Use::Down, self.number, self.piece);
            if let Some(parent) = parent(me).filter(|_| !self.is_here) {
                let Some(letter) = mail.take(real(parent), name) else { return false };
                store(self.data + start, &letter, len);
            }
            self.is_here = true;
            while let Some(&child) = children.get(self.served) {
                if self.ready <= self.served {
                    if mail.take(child, place(Use::ReadyDown, self.number, 0)).is_none() {
                        return false;
                    }
                    self.ready += 1;
                }
                if !mail.send(child, name, bytes_at(Piece { addr: self.data + start, bytes: len })) {
                    return false;
                }
                self.served += 1;
            }
            (self.piece, self.is_here, self.served) = (self.piece + 1, false, 0);
        }
        true
    }
}

/// Writes a piece that has arrived.
fn store(addr: usize, letter: &[u8], len: usize) {
    if letter.len() != len {
        crate::fatal!(
            "a member of a team has sent {} bytes instead of {len} to a collective; pass the same length in all members",
            letter.len()
        );
    }
    bytes_at_mut(Piece { addr, bytes: len }).copy_from_slice(letter);
}

/// The destination of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// One member.
    One(u32),
    /// All members.
    All,
}

/// A reduction: operands flow up a binomial tree whose subtrees are runs of members, so that the left operand always
/// comes first. The result goes to the root, or by a broadcast to all.
pub struct Reduction {
    number: u64,
    to: To,
    /// The address for the result; 0: none.
    result: usize,
    /// The operand, and later the result, of the own subtree. Words keep it aligned.
    sum: Vec<u64>,
    bytes: usize,
    piece_bytes: usize,
    combine: Combine,
    has_begun: bool,
    /// Members of the subtree so far, and the next piece to receive or to send.
    span: u32,
    piece: usize,
    is_ready: bool,
    down: Option<Broadcast>,
}

impl Reduction {
    /// A reduction of a number, of the operand of `bytes` bytes at an address.
    #[must_use]
    pub fn new(number: u64, to: To, source: usize, result: usize, bytes: usize, combine: Combine) -> Self {
        let element = combine.element_bytes().max(1);
        let mut sum = vec![0; bytes.div_ceil(8)];
        bytes_at_mut(Piece { addr: sum.as_mut_ptr().expose_provenance(), bytes })
            .copy_from_slice(bytes_at(Piece { addr: source, bytes }));
        Self {
            number,
            to,
            result,
            sum,
            bytes,
            piece_bytes: (PIECE_BYTES / element * element).max(element),
            combine,
            has_begun: false,
            span: 1,
            piece: 0,
            is_ready: false,
            down: None,
        }
    }

    fn addr(&mut self) -> usize {
        self.sum.as_mut_ptr().expose_provenance()
    }

    /// The address and the length of the piece under way; `None`: there are no more.
    fn part(&mut self) -> Option<(usize, usize)> {
        let start = self.piece * self.piece_bytes;
        (start < self.bytes).then(|| (self.addr() + start, self.piece_bytes.min(self.bytes - start)))
    }

    /// Moves on. Returns whether it is complete.
    pub fn run(&mut self, mail: &impl Mail) -> bool {
        if self.bytes == 0 {
            return true;
        }
        let (me, members) = (mail.me(), mail.members());
        while self.down.is_none() {
            let low = self.span;
            if me & low != 0 {
                return self.give(mail, me - low) && self.finish(mail);
            }
            if low >= members {
                return self.finish(mail);
            }
            if me + low < members && !self.take(mail, me + low) {
                return false;
            }
            (self.span, self.piece, self.has_begun) = (low << 1, 0, false);
        }
        self.finish(mail)
    }

    /// Combines the operand of a child.
    fn take(&mut self, mail: &impl Mail, child: u32) -> bool {
        if !self.has_begun && !mail.send(child, place(Use::ReadyUp, self.number, 0), &[]) {
            return false;
        }
        self.has_begun = true;
        while let Some((addr, len)) = self.part() {
            let name = place(Use::Up, self.number, self.piece);
            let Some(letter) = mail.take(child, name) else { return false };
            if letter.len() != len {
                crate::fatal!(
                    "a member of a team has sent operands of another length; pass the same count in all members"
                );
            }
            // The client's functions may need aligned operands.
            let mut right = vec![0_u64; len.div_ceil(8)];
            let right = bytes_at_mut(Piece { addr: right.as_mut_ptr().expose_provenance(), bytes: len });
            right.copy_from_slice(&letter);
            self.combine.apply(bytes_at(Piece { addr, bytes: len }), right);
            bytes_at_mut(Piece { addr, bytes: len }).copy_from_slice(right);
            self.piece += 1;
        }
        true
    }

    /// Sends the operand of the own subtree to the parent.
    fn give(&mut self, mail: &impl Mail, parent: u32) -> bool {
        if !self.is_ready && mail.take(parent, place(Use::ReadyUp, self.number, 0)).is_none() {
            return false;
        }
        self.is_ready = true;
        while let Some((addr, len)) = self.part() {
            if !mail.send(parent, place(Use::Up, self.number, self.piece), bytes_at(Piece { addr, bytes: len })) {
                return false;
            }
            self.piece += 1;
        }
        true
    }

    /// Brings the result to its destinations.
    fn finish(&mut self, mail: &impl Mail) -> bool {
        let (number, bytes, me) = (self.number, self.bytes, mail.me());
        let addr = self.addr();
        let root = match self.to {
            To::All => 0,
            To::One(root) => root,
        };
        if self.down.is_none() {
            self.piece = 0;
            self.down = Some(Broadcast::new(number, 0, addr, bytes));
        }
        if self.to == To::All {
            if !self.down.as_mut().is_none_or(|down| down.run(mail)) {
                return false;
            }
        } else if root != 0 && (me == 0 || me == root) {
            while let Some((addr, len)) = self.part() {
                let name = place(Use::Result, number, self.piece);
                if me == 0 && !mail.send(root, name, bytes_at(Piece { addr, bytes: len })) {
                    return false;
                }
                if me == root {
                    let Some(letter) = mail.take(0, name) else { return false };
                    store(addr, &letter, len);
                }
                self.piece += 1;
            }
        }
        if self.result != 0 && (self.to == To::All || me == root) {
            bytes_at_mut(Piece { addr: self.result, bytes }).copy_from_slice(bytes_at(Piece { addr, bytes }));
        }
        true
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::combine::{Op, Type};
    use crate::post::{Inbox, Tag};

    /// A member whose every third letter is refused at first.
    struct Member<'a> {
        me: u32,
        boxes: &'a [Inbox],
        refusals: RefCell<u32>,
    }

    impl Mail for Member<'_> {
        fn me(&self) -> u32 {
            self.me
        }

        fn members(&self) -> u32 {
            u32::try_from(self.boxes.len()).unwrap()
        }

        fn send(&self, member: u32, place: u64, bytes: &[u8]) -> bool {
            *self.refusals.borrow_mut() += 1;
            if self.refusals.borrow().is_multiple_of(3) {
                return false;
            }
            self.boxes[member as usize].put(self.me, Tag { team: 0, place }, bytes);
            true
        }

        fn take(&self, member: u32, place: u64) -> Option<Vec<u8>> {
            self.boxes[self.me as usize].take(member, Tag { team: 0, place })
        }
    }

    /// Runs the machines of all members in turns.
    fn run_all<T>(members: u32, make: impl Fn(u32) -> T, run: impl Fn(&mut T, &Member<'_>) -> bool) -> Vec<T> {
        let boxes: Vec<Inbox> = (0..members).map(|_| Inbox::default()).collect();
        let ends: Vec<_> = (0..members).map(|me| Member { me, boxes: &boxes, refusals: RefCell::new(0) }).collect();
        let mut machines: Vec<T> = (0..members).map(make).collect();
        let mut done = vec![false; members as usize];
        for _ in 0..1000 {
            for ((machine, end), done) in machines.iter_mut().zip(&ends).zip(&mut done) {
                *done = *done || run(machine, end);
            }
        }
        assert!(done.into_iter().all(|done| done), "{members} members");
        machines
    }

    #[test]
    fn a_dissemination_joins_all_values() {
        for members in 1..=9 {
            let make = |me: u32| Dissemination::named(5, 1_u64 << me);
            let all = run_all(members, make, |one, mail| one.run(mail, |a, b| a | b));
            assert!(all.iter().all(|one| one.value() == (1 << members) - 1), "{members}");
        }
    }

    #[test]
    fn a_barrier_waits_for_the_last() {
        let boxes = [Inbox::default(), Inbox::default()];
        let mail = Member { me: 0, boxes: &boxes, refusals: RefCell::new(0) };
        assert!(!Dissemination::barrier(1).run(&mail, |a, _| a));
    }

    #[test]
    fn an_exchange_has_the_order_of_members() {
        for members in [1, 2, 3, 5, 8, 600] {
            let boxes: Vec<Inbox> = (0..members).map(|_| Inbox::default()).collect();
            let all = run_all(members, |me| Exchange::new(3, [u64::from(me); WORDS]), |one, mail| one.run(mail));
            for (me, one) in (0..).zip(all) {
                let mail = Member { me, boxes: &boxes, refusals: RefCell::new(0) };
                let found: Vec<u64> = one.messages(&mail).into_iter().map(|message| message[6]).collect();
                assert_eq!(found, (0..u64::from(members)).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_broadcast_reaches_all_members() {
        for (members, bytes) in [(1, 5), (2, 0), (5, PIECE_BYTES * 2 + 7), (9, 100)] {
            let data: Vec<u8> = (0..=250).cycle().take(bytes).collect();
            for root in [0, members - 1] {
                let mut places = vec![vec![0_u8; bytes]; members as usize];
                places[root as usize].clone_from(&data);
                let addrs: Vec<usize> = places.iter_mut().map(|place| place.as_mut_ptr().expose_provenance()).collect();
                run_all(members, |me| Broadcast::new(2, root, addrs[me as usize], bytes), |one, mail| one.run(mail));
                assert!(places.iter().all(|place| *place == data), "{members} {bytes} {root}");
            }
        }
    }

    #[test]
    fn reductions_keep_the_order_of_operands() {
        for members in 1..=9_u32 {
            for to in [To::All, To::One(0), To::One(members - 1)] {
                let count = 5000_usize;
                let mut sources: Vec<Vec<u64>> =
                    (0..u64::from(members)).map(|me| (0..count as u64).map(|at| me * 7 + at).collect()).collect();
                let mut results = vec![vec![0_u64; count]; members as usize];
                let of = |all: &mut Vec<Vec<u64>>| -> Vec<usize> {
                    all.iter_mut().map(|one| one.as_mut_ptr().expose_provenance()).collect()
                };
                let (from, into) = (of(&mut sources), of(&mut results));
                let combine = Combine::Known(Type::U64, Op::Add);
                run_all(
                    members,
                    |me| Reduction::new(4, to, from[me as usize], into[me as usize], count * 8, combine),
                    |one, mail| one.run(mail),
                );
                let sum = |at: u64| (0..u64::from(members)).map(|me| me * 7 + at).sum::<u64>();
                let expected: Vec<u64> = (0..count as u64).map(sum).collect();
                for (me, result) in (0..members).zip(&results) {
                    let takes = to == To::All || to == To::One(me);
                    assert_eq!(*result == expected, takes, "{members} {to:?} {me}");
                }
            }
        }
    }

    #[test]
    fn trees_have_one_parent_for_each_member() {
        for members in 1..=20 {
            for member in 0..members {
                for child in children(member, members) {
                    assert_eq!(parent(child), Some(member));
                }
            }
            assert_eq!(
                (0..members).map(|member| children(member, members).count()).sum::<usize>() + 1,
                members as usize
            );
        }
    }
}
