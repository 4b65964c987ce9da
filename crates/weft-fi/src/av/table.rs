//! The addresses of an address vector, by number and by name.
//!
//! Place in the data flow: [`super::Av`] fills the table. Engines look addresses up (as [`AddressBook`]) when
//! they meet a peer for the first time, or when other processes have changed a shared vector.
//!
//! Size: a row has 68 bytes and an index entry 6 to 12, so a million addresses take about 80 MB. An insertion
//! is a hash and a push.
//!
//! Invariants: numbers are dense from 0 in the order of insertion. A removed number is assigned next, the
//! lowest first (fi_av(3)). A name occurs once: a second insertion returns the same number, and the name is
//! removed after as many removals. A name is identified by its endpoint id, or by its socket if it has no
//! endpoint id.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::BuildHasher;

use hashbrown::HashTable;
use parking_lot::RwLock;
use rustc_hash::FxBuildHasher;
use weft_engine::api::{ADDR_NONE, Addr, AddressBook, Changes};
use weft_engine::name::{EpName, Identity};

use super::shared::Shared;

/// The maximum number of rows that a client's `count` reserves. Further rows are allocated on demand.
const RESERVE_LIMIT: usize = 1 << 20;

/// A table, which the vector shares with the engines of its endpoints.
#[derive(Default)]
pub(crate) struct Table {
    rows: RwLock<Rows>,
    /// The number of high bits of an address that select a receive context (fi_rx_addr(3)).
    context_bits: u32,
    /// Whether completions refer to addresses by numbers of the client's choice (FI_AV_USER_ID).
    has_user_ids: bool,
    /// The rows shared with other processes. The local rows are a copy.
    shared: Option<Shared>,
}

#[derive(Default)]
struct Rows {
    rows: Vec<Row>,
    /// The numbers of rows in use, by the identity of their names.
    by_identity: HashTable<u32>,
    /// The numbers of removed rows.
    free: BinaryHeap<Reverse<u32>>,
    /// For a shared vector, the number of removals that the local rows contain.
    removals: u64,
    /// The user identifiers, up to the last one that was set.
    user_ids: Vec<Addr>,
}

struct Row {
    name: EpName,
    /// The number of insertions minus removals; 0: the row is free.
    uses: u32,
}

fn hash(identity: &Identity) -> u64 {
    FxBuildHasher.hash_one(identity)
}

/// The result of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inserted {
    pub(crate) addr: Addr,
    /// Whether the name is new.
    pub(crate) is_new: bool,
}

impl Table {
    /// Creates a table that reserves `count` rows. `context_bits`, less than 32, bits of an address select a
    /// receive context.
    pub(crate) fn with_capacity(count: usize, context_bits: u32) -> Self {
        let rows = Vec::with_capacity(count.min(RESERVE_LIMIT));
        Self { rows: RwLock::new(Rows { rows, ..Rows::default() }), context_bits, ..Self::default() }
    }

    /// Shares the table with other processes.
    pub(super) fn with_shared(self, shared: Shared) -> Self {
        Self { shared: Some(shared), ..self }
    }

    /// Enables user identifiers in completions.
    pub(super) fn with_user_ids(self) -> Self {
        Self { has_user_ids: true, ..self }
    }

    /// Whether completions refer to addresses by user identifiers.
    pub(super) const fn has_user_ids(&self) -> bool {
        self.has_user_ids
    }

    /// Sets the user identifier of an address. `None` if the number is not in use.
    pub(super) fn set_user_id(&self, addr: Addr, id: Addr) -> Option<()> {
        self.lookup(|rows| rows.row(addr).map(|_| ()))?;
        let at = usize::try_from(addr).ok()?;
        let ids = &mut self.rows.write().user_ids;
        if ids.len() <= at {
            ids.resize(at + 1, ADDR_NONE);
        }
        ids[at] = id;
        Some(())
    }

    /// The user identifier of an address; [`ADDR_NONE`] until it is set.
    pub(crate) fn user_id(&self, addr: Addr) -> Addr {
        let at = usize::try_from(addr).unwrap_or(usize::MAX);
        self.rows.read().user_ids.get(at).copied().unwrap_or(ADDR_NONE)
    }

    /// Whether insertions and removals are refused.
    pub(super) fn is_read_only(&self) -> bool {
        self.shared.as_ref().is_some_and(Shared::is_read_only)
    }

    /// Looks something up by `find`, after the local rows were updated from a shared vector.
    fn lookup<T>(&self, find: impl Fn(&Rows) -> Option<T>) -> Option<T> {
        let rows = self.rows.read();
        match &self.shared {
            Some(shared) if !rows.is_current(shared) => {
                drop(rows);
                let mut rows = self.rows.write();
                rows.refresh(shared);
                find(&rows)
            }
            _ => find(&rows),
        }
    }

    /// The bits of an address that select the endpoint.
    pub(crate) const fn endpoint_mask(&self) -> Addr {
        Addr::MAX >> self.context_bits
    }

    /// All numbers in use, in ascending order.
    pub(super) fn addresses(&self) -> Vec<Addr> {
        let used = |rows: &Rows| {
            let numbered = (0..).zip(&rows.rows);
            Some(numbered.filter(|(_, row)| row.uses > 0).map(|(addr, _)| addr).collect())
        };
        self.lookup(used).unwrap_or_default()
    }

    /// Whether the number is in use.
    pub(super) fn has(&self, addr: Addr) -> bool {
        self.lookup(|rows| rows.row(addr).map(|_| ())).is_some()
    }

    /// Inserts a name. `None` if the table is full (2³² rows). Only one thread at a time may insert into or
    /// remove from a shared table.
    pub(crate) fn insert(&self, name: &EpName) -> Option<Inserted> {
        let Some(shared) = &self.shared else { return self.rows.write().insert(name) };
        // Another process may block this thread, but the rows are not locked here, so lookups continue.
        let _writing = shared.writing()?;
        self.rows.write().insert_shared(shared, name)
    }

    /// Removes a name once. `None` if the number is not in use, otherwise whether the row is now free. As for
    /// [`Table::insert`], only one thread at a time may call this.
    pub(crate) fn remove(&self, addr: Addr) -> Option<bool> {
        let Some(shared) = &self.shared else { return self.rows.write().remove(addr) };
        let _writing = shared.writing()?;
        self.rows.write().remove_shared(shared, addr)
    }

    /// The number of addresses.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.rows.read().by_identity.len()
    }
}

impl Rows {
    fn row(&self, addr: Addr) -> Option<&Row> {
        usize::try_from(addr).ok().and_then(|at| self.rows.get(at)).filter(|row| row.uses > 0)
    }

    fn find(&self, identity: &Identity) -> Option<u32> {
        let same = |&at: &u32| self.rows.get(at as usize).is_some_and(|row| row.name.identity() == *identity);
        self.by_identity.find(hash(identity), same).copied()
    }

    fn insert(&mut self, name: &EpName) -> Option<Inserted> {
        let identity = name.identity();
        if let Some(at) = self.find(&identity) {
            let row = self.rows.get_mut(at as usize)?;
            row.uses = row.uses.saturating_add(1);
            return Some(Inserted { addr: Addr::from(at), is_new: false });
        }
        let row = Row { name: *name, uses: 1 };
        let at = match self.free.pop() {
            Some(Reverse(at)) => {
                *self.rows.get_mut(at as usize)? = row;
                at
            }
            None => {
                let at = u32::try_from(self.rows.len()).ok()?;
                self.rows.push(row);
                at
            }
        };
        self.index(&identity, at);
        Some(Inserted { addr: Addr::from(at), is_new: true })
    }

    /// Whether the local rows contain all changes of other processes.
    fn is_current(&self, shared: &Shared) -> bool {
        self.removals == shared.removals() && self.rows.len() as u64 == shared.len()
    }

    /// Applies the changes of other processes to the local rows.
    fn refresh(&mut self, shared: &Shared) {
        let removals = shared.removals();
        if removals != std::mem::replace(&mut self.removals, removals) {
            let mut shared_rows = shared.rows(0, self.rows.len() as u64);
            for at in 0..self.rows.len() {
                if shared_rows.next().is_none_or(|row| row.uses == 0) && self.rows[at].uses > 0 {
                    self.rows[at].uses = 0;
                    self.unindex(u32::try_from(at).unwrap_or(u32::MAX));
                }
            }
            self.reindex();
        }
        for row in shared.rows(self.rows.len() as u64, shared.len()) {
            let at = u32::try_from(self.rows.len()).unwrap_or(u32::MAX);
            // An invalid address leaves its number unused.
            let uses = row.name.map_or(0, |_| row.uses);
            let name = row.name.unwrap_or_else(|| EpName::service(([0; 4], 0).into()));
            self.rows.push(Row { name, uses });
            if uses > 0 && self.find(&name.identity()).is_none() {
                self.index(&name.identity(), at);
            }
        }
    }

    /// Inserts a name into the shared rows. The file's lock is held.
    fn insert_shared(&mut self, shared: &Shared, name: &EpName) -> Option<Inserted> {
        self.refresh(shared);
        if let Some(at) = self.find(&name.identity()) {
            let uses = shared.row(at.into())?.uses;
            shared.set_uses(at.into(), uses.saturating_add(1))?;
            return Some(Inserted { addr: at.into(), is_new: false });
        }
        // The file has fewer rows than known here, so another process has violated the rules. Numbers must
        // not be assigned again.
        if shared.len() < self.rows.len() as u64 {
            return None;
        }
        let addr = shared.append(name)?;
        self.refresh(shared);
        Some(Inserted { addr, is_new: true })
    }

    fn remove_shared(&mut self, shared: &Shared, addr: Addr) -> Option<bool> {
        self.refresh(shared);
        self.row(addr)?;
        let left = shared.row(addr)?.uses.checked_sub(1)?;
        shared.set_uses(addr, left)?;
        if left == 0 {
            // The lock is held, so no other process has changed the file. `refresh` would read every row.
            self.removals = self.removals.wrapping_add(1);
            self.rows.get_mut(usize::try_from(addr).ok()?)?.uses = 0;
            self.unindex(u32::try_from(addr).ok()?);
        }
        Some(left == 0)
    }

    fn index(&mut self, identity: &Identity, at: u32) {
        let rows = &self.rows;
        let rehash = |&at: &u32| rows.get(at as usize).map_or(0, |row| hash(&row.name.identity()));
        self.by_identity.insert_unique(hash(identity), at, rehash);
    }

    /// Removes a row's name and user identifier from the indexes.
    fn unindex(&mut self, at: u32) {
        let Some(row) = self.rows.get(at as usize) else { return };
        if let Some(id) = self.user_ids.get_mut(at as usize) {
            *id = ADDR_NONE;
        }
        let identity = row.name.identity();
        if let Ok(entry) = self.by_identity.find_entry(hash(&identity), |&other| other == at) {
            entry.remove();
        }
    }

    /// Restores index entries: other processes may have inserted a removed name again before this process saw
    /// the removal.
    fn reindex(&mut self) {
        for at in 0..u32::try_from(self.rows.len()).unwrap_or(u32::MAX) {
            let Some(row) = self.rows.get(at as usize).filter(|row| row.uses > 0) else { continue };
            let identity = row.name.identity();
            if self.find(&identity).is_none() {
                self.index(&identity, at);
            }
        }
    }

    fn remove(&mut self, addr: Addr) -> Option<bool> {
        let at = u32::try_from(addr).ok()?;
        let row = self.rows.get_mut(at as usize).filter(|row| row.uses > 0)?;
        row.uses -= 1;
        if row.uses > 0 {
            return Some(false);
        }
        self.unindex(at);
        self.free.push(Reverse(at));
        Some(true)
    }
}

impl AddressBook for Table {
    fn name(&self, addr: Addr) -> Option<EpName> {
        let name = self.lookup(|rows| rows.row(addr & self.endpoint_mask()).map(|row| row.name))?;
        // Without context bits the context is the first, which has the endpoint's name.
        let context = addr.checked_shr(Addr::BITS - self.context_bits).unwrap_or(0);
        name.context(u8::try_from(context).ok()?)
    }

    fn changes(&self) -> Option<Changes> {
        self.shared.as_ref().map(Shared::changes)
    }

    fn addr(&self, name: &EpName) -> Option<Addr> {
        // All contexts of a scalable endpoint belong to the inserted endpoint.
        let name = name.base();
        let find = |rows: &Rows| rows.find(&name.identity()).or_else(|| rows.find(&name.socket_identity()));
        self.lookup(find).map(Addr::from)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]
    use std::collections::HashMap;
    use std::time::{Duration, Instant};

    use proptest::prelude::*;
    use weft_engine::name::NameParts;

    use super::*;

    fn full(number: u64) -> EpName {
        EpName::full(&parts(number))
    }

    fn parts(number: u64) -> NameParts {
        let mut ep_id = [7; 16];
        ep_id[..8].copy_from_slice(&number.to_be_bytes());
        NameParts {
            socket: ([10, (number >> 16) as u8, (number >> 8) as u8, number as u8], 5000).into(),
            host_id: number,
            ep_id,
            capability: [9; 16],
            context: None,
            shm: true,
            tcp: true,
        }
    }

    fn service(number: u64) -> EpName {
        EpName::service(full(number).socket())
    }

    #[test]
    fn numbers_are_dense_and_names_are_found_by_id_or_socket() {
        let table = Table::default();
        assert_eq!(table.insert(&full(1)), Some(Inserted { addr: 0, is_new: true }));
        assert_eq!(table.insert(&service(2)), Some(Inserted { addr: 1, is_new: true }));
        assert_eq!(table.insert(&full(1)), Some(Inserted { addr: 0, is_new: false }));
        assert_eq!(table.addr(&full(1)), Some(0));
        assert_eq!(table.addr(&full(2)), Some(1), "a peer that was inserted by its socket only");
        assert_eq!(table.addr(&service(1)), None);
        assert_eq!(table.name(1), Some(service(2)));
        assert_eq!(table.name(2), None);
        assert_eq!(table.name(u64::MAX), None);
    }

    #[test]
    fn contexts_belong_to_their_endpoint() {
        let table = Table::with_capacity(0, 3);
        let base = EpName::full(&NameParts { context: Some(0), ..parts(1) });
        table.insert(&full(9)).unwrap();
        assert_eq!(table.insert(&base), Some(Inserted { addr: 1, is_new: true }));
        let second = base.context(2).unwrap();
        assert_eq!((table.name(1), table.name(1 | 2 << 61)), (Some(base), Some(second)));
        assert_eq!((table.addr(&second), table.addr(&base)), (Some(1), Some(1)));
        assert_eq!((table.name(1 << 61), table.name(5 << 61 | 2)), (None, None), "no contexts, no endpoint");
        assert_eq!(Table::default().name(1 << 61), None);
    }

    #[test]
    fn a_user_id_is_removed_with_its_address() {
        let table = Table::default().with_user_ids();
        table.insert(&full(1)).unwrap();
        table.insert(&full(2)).unwrap();
        assert_eq!((table.set_user_id(1, 77), table.set_user_id(2, 78)), (Some(()), None));
        assert_eq!([0, 1, 2, ADDR_NONE].map(|addr| table.user_id(addr)), [ADDR_NONE, 77, ADDR_NONE, ADDR_NONE]);
        table.remove(1).unwrap();
        assert_eq!(table.insert(&full(3)).unwrap().addr, 1);
        assert_eq!(table.user_id(1), ADDR_NONE);
    }

    #[test]
    fn removal_frees_the_lowest_number_first() {
        let table = Table::default();
        for number in 0..4 {
            table.insert(&full(number)).unwrap();
        }
        table.insert(&full(2)).unwrap();
        assert_eq!(table.remove(2), Some(false));
        assert_eq!(table.remove(2), Some(true));
        assert_eq!(table.remove(2), None);
        assert_eq!(table.remove(0), Some(true));
        assert_eq!(table.insert(&full(8)).unwrap().addr, 0);
        assert_eq!(table.insert(&full(2)).unwrap().addr, 2);
        assert_eq!(table.insert(&full(9)).unwrap().addr, 4);
        assert_eq!(table.len(), 5);
    }

    /// A million addresses take less than 128 MB by the sizes of the allocations, and less than a second in
    /// optimized builds.
    #[test]
    fn a_million_addresses_fit_their_limits() {
        const COUNT: u64 = 1_000_000;
        let table = Table::with_capacity(COUNT as usize, 0);
        let start = Instant::now();
        for number in 0..COUNT {
            assert_eq!(table.insert(&full(number)).unwrap().addr, number);
        }
        let taken = start.elapsed();
        let rows = table.rows.read();
        let bytes = rows.rows.capacity() * size_of::<Row>() + rows.by_identity.allocation_size();
        assert!(bytes < 128 << 20, "{bytes} bytes");
        let limit = if cfg!(debug_assertions) { Duration::from_secs(20) } else { Duration::from_secs(1) };
        assert!(taken < limit, "{taken:?}");
        assert_eq!(rows.find(&full(777_777).identity()), Some(777_777));
    }

    /// Thousands of addresses are removed from a shared vector. A removal must not read all other rows.
    #[test]
    fn removal_from_a_shared_table_reads_no_other_row() {
        const COUNT: u64 = 5000;
        let name = std::ffi::CString::new(format!("removal {}", std::process::id())).unwrap();
        let open = |read_only| Table::default().with_shared(Shared::open(&name, read_only).unwrap());
        let (table, other) = (open(false), open(true));
        for number in 0..COUNT {
            assert_eq!(table.insert(&full(number)), Some(Inserted { addr: number, is_new: true }));
        }
        assert_eq!(other.addr(&full(COUNT - 1)), Some(COUNT - 1));
        let start = Instant::now();
        for addr in 0..COUNT {
            assert_eq!(table.remove(addr), Some(true));
        }
        let taken = start.elapsed();
        assert!(taken < Duration::from_secs(1), "{taken:?}");
        assert_eq!((table.remove(0), table.addr(&full(0)), table.len()), (None, None, 0));
        assert_eq!(table.insert(&full(7)), Some(Inserted { addr: COUNT, is_new: true }));
        assert_eq!((other.addr(&full(7)), other.addr(&full(8)), other.len()), (Some(COUNT), None, 1));
    }

    /// Another process is stopped while it changes a shared vector. A thread that wants to change the vector
    /// waits, and lookups continue.
    #[test]
    fn a_waiting_writer_of_a_shared_table_blocks_no_lookup() {
        let name = std::ffi::CString::new(format!("waiting {}", std::process::id())).unwrap();
        let open = || Shared::open(&name, false).unwrap();
        let (table, other) = (Table::default().with_shared(open()), open());
        table.insert(&full(1)).unwrap();
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let writing = other.writing();
            let (table, inserted, found) = (&table, done.clone(), done);
            scope.spawn(move || inserted.send(("inserted", table.insert(&full(2)).is_some())));
            std::thread::sleep(Duration::from_millis(50));
            scope.spawn(move || found.send(("found", table.addr(&full(1)).is_some())));
            let first = is_done.recv_timeout(Duration::from_secs(10));
            drop(writing);
            assert_eq!(first, Ok(("found", true)));
        });
        assert_eq!(is_done.recv(), Ok(("inserted", true)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// Compares the table with a simple model: a map from names to uses and numbers.
        #[test]
        fn the_table_behaves_as_the_model(steps in prop::collection::vec((any::<bool>(), 0_u64..12), 0..200)) {
            let table = Table::default();
            let mut model: HashMap<u64, (u64, u32)> = HashMap::new();
            for (insert, number) in steps {
                if insert {
                    let next = (0..).find(|addr| model.values().all(|(known, _)| known != addr)).unwrap();
                    let entry = model.entry(number).or_insert((next, 0));
                    entry.1 += 1;
                    let expected = Inserted { addr: entry.0, is_new: entry.1 == 1 };
                    prop_assert_eq!(table.insert(&full(number)), Some(expected));
                } else if let Some(entry) = model.get_mut(&number) {
                    entry.1 -= 1;
                    let (addr, left) = *entry;
                    prop_assert_eq!(table.remove(addr), Some(left == 0));
                    if left == 0 {
                        model.remove(&number);
                    }
                }
                for (number, (addr, _)) in &model {
                    prop_assert_eq!(table.addr(&full(*number)), Some(*addr));
                    prop_assert_eq!(table.name(*addr), Some(full(*number)));
                }
                prop_assert_eq!(table.len(), model.len());
            }
        }
    }
}
