//! The addresses of one address vector: by number, by name, and who has to know of changes.
//!
//! Place in the data flow: [`super::Av`] fills it, engines look in it (as [`AddressBook`]) when they meet a peer
//! for the first time, or when other processes have changed a vector that they share.
//!
//! Size: a row is 68 bytes, an index entry 6 to 12, so a million addresses take about 80 MB. Insertion is a hash
//! and a push.
//!
//! Invariants: numbers are dense from 0 in the order of insertion; a number that was removed is the next one to be
//! given out, the lowest first (fi_av(3)). A name is there once: inserted again it has the same number, and is gone
//! when it has been removed as often. A name's identity is its endpoint id, or, of a name that says only where to
//! ask, its socket.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::BuildHasher;

use hashbrown::HashTable;
use parking_lot::RwLock;
use rustc_hash::FxBuildHasher;
use weft_engine::api::{ADDR_NONE, Addr, AddressBook, Changes};
use weft_engine::name::{EpName, Identity};

use super::shared::Shared;

/// Most rows that a client's `count` reserves: more are allocated as they come.
const RESERVE_LIMIT: usize = 1 << 20;

/// The table, shared by the vector and the engines of its endpoints.
#[derive(Default)]
pub(crate) struct Table {
    rows: RwLock<Rows>,
    /// So many of an address's highest bits say which receive context is meant (fi_rx_addr(3)).
    context_bits: u32,
    /// Completions name addresses by numbers of the client's choice (FI_AV_USER_ID).
    has_user_ids: bool,
    /// Where the rows are that other processes see, too; those here follow them.
    shared: Option<Shared>,
}

#[derive(Default)]
struct Rows {
    rows: Vec<Row>,
    /// Numbers of rows in use, by the identity of their names.
    by_identity: HashTable<u32>,
    /// Numbers of rows that were removed.
    free: BinaryHeap<Reverse<u32>>,
    /// How many removals have been followed, of a shared vector.
    removals: u64,
    /// What completions name addresses by, up to the last one for which that was said.
    user_ids: Vec<Addr>,
}

struct Row {
    name: EpName,
    /// How often it has been inserted; 0: free.
    uses: u32,
}

fn hash(identity: &Identity) -> u64 {
    FxBuildHasher.hash_one(identity)
}

/// What an insertion did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inserted {
    pub(crate) addr: Addr,
    /// The name was not there before.
    pub(crate) fresh: bool,
}

impl Table {
    /// Room for so many addresses, of which `context_bits` bits name receive contexts: fewer than 32.
    pub(crate) fn with_room(count: usize, context_bits: u32) -> Self {
        let rows = Vec::with_capacity(count.min(RESERVE_LIMIT));
        Self { rows: RwLock::new(Rows { rows, ..Rows::default() }), context_bits, ..Self::default() }
    }

    /// The same, shared with other processes.
    pub(super) fn with_shared(self, shared: Shared) -> Self {
        Self { shared: Some(shared), ..self }
    }

    /// The same, with numbers of the client's choice in completions.
    pub(super) fn with_user_ids(self) -> Self {
        Self { has_user_ids: true, ..self }
    }

    /// Whether completions name addresses by numbers of the client's choice.
    pub(super) const fn has_user_ids(&self) -> bool {
        self.has_user_ids
    }

    /// Chooses what completions name an address by. `None` if the number is not in use.
    pub(super) fn set_user_id(&self, addr: Addr, id: Addr) -> Option<()> {
        self.look(|rows| rows.row(addr).map(|_| ()))?;
        let at = usize::try_from(addr).ok()?;
        let ids = &mut self.rows.write().user_ids;
        if ids.len() <= at {
            ids.resize(at + 1, ADDR_NONE);
        }
        ids[at] = id;
        Some(())
    }

    /// What completions name an address by: [`ADDR_NONE`] until that is said.
    pub(crate) fn user_id(&self, addr: Addr) -> Addr {
        let at = usize::try_from(addr).unwrap_or(usize::MAX);
        self.rows.read().user_ids.get(at).copied().unwrap_or(ADDR_NONE)
    }

    /// Whether nothing may be inserted or removed.
    pub(super) fn is_read_only(&self) -> bool {
        self.shared.as_ref().is_some_and(Shared::is_read_only)
    }

    /// What a look finds, once all is known that other processes have done.
    fn look<T>(&self, find: impl Fn(&Rows) -> Option<T>) -> Option<T> {
        let rows = self.rows.read();
        match &self.shared {
            Some(shared) if !rows.has_followed(shared) => {
                drop(rows);
                let mut rows = self.rows.write();
                rows.follow(shared);
                find(&rows)
            }
            _ => find(&rows),
        }
    }

    /// The bits of an address that say which endpoint is meant.
    pub(crate) const fn endpoint_mask(&self) -> Addr {
        Addr::MAX >> self.context_bits
    }

    /// Enters names, in order. `None` where the table is full (2³² rows). Of a shared table, one thread at a
    /// time enters names or takes them out.
    pub(crate) fn insert(&self, name: &EpName) -> Option<Inserted> {
        let Some(shared) = &self.shared else { return self.rows.write().insert(name) };
        // Another process may keep this one waiting, but not whoever looks something up.
        let _writing = shared.writing()?;
        self.rows.write().insert_shared(shared, name)
    }

    /// Takes a name out, once. `None` if the number is not in use, else whether the name is gone. As for
    /// [`Table::insert`], one thread at a time.
    pub(crate) fn remove(&self, addr: Addr) -> Option<bool> {
        let Some(shared) = &self.shared else { return self.rows.write().remove(addr) };
        let _writing = shared.writing()?;
        self.rows.write().remove_shared(shared, addr)
    }

    /// How many addresses there are.
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
            return Some(Inserted { addr: Addr::from(at), fresh: false });
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
        self.remember(&identity, at);
        Some(Inserted { addr: Addr::from(at), fresh: true })
    }

    /// Whether nothing is to be done here that other processes have done.
    fn has_followed(&self, shared: &Shared) -> bool {
        self.removals == shared.removals() && self.rows.len() as u64 == shared.len()
    }

    /// Does what other processes have done.
    fn follow(&mut self, shared: &Shared) {
        let removals = shared.removals();
        if removals != std::mem::replace(&mut self.removals, removals) {
            let mut theirs = shared.rows(0, self.rows.len() as u64);
            for at in 0..self.rows.len() {
                if theirs.next().is_none_or(|row| row.uses == 0) && self.rows[at].uses > 0 {
                    self.rows[at].uses = 0;
                    self.forget(u32::try_from(at).unwrap_or(u32::MAX));
                }
            }
            self.find_again();
        }
        for row in shared.rows(self.rows.len() as u64, shared.len()) {
            let at = u32::try_from(self.rows.len()).unwrap_or(u32::MAX);
            // What is no address keeps its number from being used.
            let uses = row.name.map_or(0, |_| row.uses);
            let name = row.name.unwrap_or_else(|| EpName::service(([0; 4], 0).into()));
            self.rows.push(Row { name, uses });
            if uses > 0 && self.find(&name.identity()).is_none() {
                self.remember(&name.identity(), at);
            }
        }
    }

    /// Under the lock, as [`Rows::remove_shared`].
    fn insert_shared(&mut self, shared: &Shared, name: &EpName) -> Option<Inserted> {
        self.follow(shared);
        if let Some(at) = self.find(&name.identity()) {
            let uses = shared.row(at.into())?.uses;
            shared.set_uses(at.into(), uses.saturating_add(1))?;
            return Some(Inserted { addr: at.into(), fresh: false });
        }
        // Rows that are known here have gone from the file: another process broke the rules, and their
        // numbers must not be given again.
        if shared.len() < self.rows.len() as u64 {
            return None;
        }
        let addr = shared.append(name)?;
        self.follow(shared);
        Some(Inserted { addr, fresh: true })
    }

    fn remove_shared(&mut self, shared: &Shared, addr: Addr) -> Option<bool> {
        self.follow(shared);
        self.row(addr)?;
        let left = shared.row(addr)?.uses.checked_sub(1)?;
        shared.set_uses(addr, left)?;
        if left == 0 {
            // Under the lock nobody else has changed anything: to follow would be to read every row for this one.
            self.removals = self.removals.wrapping_add(1);
            self.rows.get_mut(usize::try_from(addr).ok()?)?.uses = 0;
            self.forget(u32::try_from(addr).ok()?);
        }
        Some(left == 0)
    }

    fn remember(&mut self, identity: &Identity, at: u32) {
        let rows = &self.rows;
        let rehash = |&at: &u32| rows.get(at as usize).map_or(0, |row| hash(&row.name.identity()));
        self.by_identity.insert_unique(hash(identity), at, rehash);
    }

    /// Takes a row's name out of the index.
    fn forget(&mut self, at: u32) {
        let Some(row) = self.rows.get(at as usize) else { return };
        if let Some(id) = self.user_ids.get_mut(at as usize) {
            *id = ADDR_NONE;
        }
        let identity = row.name.identity();
        if let Ok(entry) = self.by_identity.find_entry(hash(&identity), |&other| other == at) {
            entry.remove();
        }
    }

    /// Other processes have removed rows, and may have inserted their names once more before that was seen here.
    fn find_again(&mut self) {
        for at in 0..u32::try_from(self.rows.len()).unwrap_or(u32::MAX) {
            let Some(row) = self.rows.get(at as usize).filter(|row| row.uses > 0) else { continue };
            let identity = row.name.identity();
            if self.find(&identity).is_none() {
                self.remember(&identity, at);
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
        self.forget(at);
        self.free.push(Reverse(at));
        Some(true)
    }
}

impl AddressBook for Table {
    fn name(&self, addr: Addr) -> Option<EpName> {
        let name = self.look(|rows| rows.row(addr & self.endpoint_mask()).map(|row| row.name))?;
        // Without such bits the context is the first, which has the endpoint's name.
        let context = addr.checked_shr(Addr::BITS - self.context_bits).unwrap_or(0);
        name.context(u8::try_from(context).ok()?)
    }

    fn changes(&self) -> Option<Changes> {
        self.shared.as_ref().map(Shared::changes)
    }

    fn addr(&self, name: &EpName) -> Option<Addr> {
        // Whatever context of a scalable endpoint it is, the endpoint is what was inserted.
        let name = name.base();
        let find = |rows: &Rows| rows.find(&name.identity()).or_else(|| rows.find(&name.socket_identity()));
        self.look(find).map(Addr::from)
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
        assert_eq!(table.insert(&full(1)), Some(Inserted { addr: 0, fresh: true }));
        assert_eq!(table.insert(&service(2)), Some(Inserted { addr: 1, fresh: true }));
        assert_eq!(table.insert(&full(1)), Some(Inserted { addr: 0, fresh: false }));
        assert_eq!(table.addr(&full(1)), Some(0));
        assert_eq!(table.addr(&full(2)), Some(1), "a peer that was inserted by its socket only");
        assert_eq!(table.addr(&service(1)), None);
        assert_eq!(table.name(1), Some(service(2)));
        assert_eq!(table.name(2), None);
        assert_eq!(table.name(u64::MAX), None);
    }

    #[test]
    fn contexts_belong_to_their_endpoint() {
        let table = Table::with_room(0, 3);
        let base = EpName::full(&NameParts { context: Some(0), ..parts(1) });
        table.insert(&full(9)).unwrap();
        assert_eq!(table.insert(&base), Some(Inserted { addr: 1, fresh: true }));
        let second = base.context(2).unwrap();
        assert_eq!((table.name(1), table.name(1 | 2 << 61)), (Some(base), Some(second)));
        assert_eq!((table.addr(&second), table.addr(&base)), (Some(1), Some(1)));
        assert_eq!((table.name(1 << 61), table.name(5 << 61 | 2)), (None, None), "no contexts, no endpoint");
        assert_eq!(Table::default().name(1 << 61), None);
    }

    #[test]
    fn user_ids_go_with_their_addresses() {
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

    /// A million addresses: under 128 MB by the sizes of what is allocated, and under a second where the code is
    /// optimized.
    #[test]
    fn a_million_addresses() {
        const COUNT: u64 = 1_000_000;
        let table = Table::with_room(COUNT as usize, 0);
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

    /// Thousands of addresses leave a shared vector without each of them having all others read once more.
    #[test]
    fn removal_from_a_shared_table_reads_no_other_row() {
        const COUNT: u64 = 5000;
        let name = std::ffi::CString::new(format!("removal {}", std::process::id())).unwrap();
        let open = |read_only| Table::default().with_shared(Shared::open(&name, read_only).unwrap());
        let (table, other) = (open(false), open(true));
        for number in 0..COUNT {
            assert_eq!(table.insert(&full(number)), Some(Inserted { addr: number, fresh: true }));
        }
        assert_eq!(other.addr(&full(COUNT - 1)), Some(COUNT - 1));
        let start = Instant::now();
        for addr in 0..COUNT {
            assert_eq!(table.remove(addr), Some(true));
        }
        let taken = start.elapsed();
        assert!(taken < Duration::from_secs(1), "{taken:?}");
        assert_eq!((table.remove(0), table.addr(&full(0)), table.len()), (None, None, 0));
        assert_eq!(table.insert(&full(7)), Some(Inserted { addr: COUNT, fresh: true }));
        assert_eq!((other.addr(&full(7)), other.addr(&full(8)), other.len()), (Some(COUNT), None, 1));
    }

    /// Another process is stopped while it changes a shared vector: who is about to change it waits, and
    /// nobody who looks something up.
    #[test]
    fn who_waits_to_change_a_shared_table_keeps_nobody_waiting() {
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
        /// Against the plainest model: a map from names to uses and numbers.
        #[test]
        fn like_the_model(steps in prop::collection::vec((any::<bool>(), 0_u64..12), 0..200)) {
            let table = Table::default();
            let mut model: HashMap<u64, (u64, u32)> = HashMap::new();
            for (insert, number) in steps {
                if insert {
                    let next = (0..).find(|addr| model.values().all(|(known, _)| known != addr)).unwrap();
                    let entry = model.entry(number).or_insert((next, 0));
                    entry.1 += 1;
                    let expected = Inserted { addr: entry.0, fresh: entry.1 == 1 };
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
