//! The groups of communicators, which all members agree upon.
//!
//! Place in the data flow: [`Runtime::communicator`] returns the group of a communicator. A communicator that is new
//! gets one in a blocking call, which all members make: they agree on a name, join, check that all are in the same
//! group, and agree that each has joined. If one member cannot, the MPI library runs the collectives of all.
//!
//! The group of a communicator that was freed is kept. A later communicator of the same members gets it if all of them
//! propose it, so that programs that duplicate communicators often do not join each time.
//!
//! A non-blocking call must not wait for other members. It leaves a communicator without group to the MPI library.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use weft_client::{Address, Collective, Error, Operation};
use weft_fi_sys::{FI_EAGAIN, FI_INT64, FI_MIN};

use crate::mpi::{Handle, SUCCESS};
use crate::plan::{Member, Staged};
use crate::run::{Communicator, Joined, Op, Runtime, runtime};

/// A join that takes longer has failed.
const JOIN_LIMIT: Duration = Duration::from_secs(30);
/// The most members of a group. Larger communicators are left to the MPI library.
const MAX_MEMBERS: usize = 1024;

impl Runtime {
    /// The group of a communicator, or `None` if the MPI library runs its collectives. A blocking call makes the group.
    pub(crate) fn communicator(&self, comm: Handle, blocking: bool) -> Option<Communicator> {
        let known = self.state.lock().communicators.get(&comm).copied();
        match known {
            Some(known) => known,
            None if blocking => self.agree(comm),
            None => None,
        }
    }

    /// Agrees with the other members on the group of a communicator, or that it has none.
    fn agree(&self, comm: Handle) -> Option<Communicator> {
        let group = self.form(comm);
        // The attribute tells that the communicator is freed: its handle may then be used for another one.
        let kept = self.pmpi.set_attribute(comm, self.keyval);
        self.state.lock().communicators.insert(comm, group);
        debug_assert!(kept, "attributes of a valid communicator can be set");
        group
    }

    /// Forms the group. All members get one, or none.
    fn form(&self, comm: Handle) -> Option<Communicator> {
        static NEXT: AtomicI64 = AtomicI64::new(0);
        let pmpi = &self.pmpi;
        // These answers are the same at all members. A member outside the world may even run without this library.
        if pmpi.is_inter(comm)? || !(2..=MAX_MEMBERS).contains(&pmpi.size(comm)?) {
            return None;
        }
        let member = Member { rank: pmpi.rank(comm)?, size: pmpi.size(comm)? };
        let ranks = self.ranks(comm, member.size)?;
        let own_rank = i64::try_from(pmpi.rank(self.own)?).unwrap_or(0);
        let name = own_rank << 40 | NEXT.fetch_add(1, Ordering::Relaxed);
        let idle = self.state.lock().take_idle(&ranks);
        let proposal = idle.map_or(NO_NAME, |(_, name)| name);
        let [name, lowest, highest] = pmpi.smallest(comm, [name, proposal, -proposal])?;
        if let Some((group, _)) = idle {
            if lowest == -highest {
                return Some(Communicator { group, member });
            }
            self.state.lock().keep_idle(group);
        }
        let group = self.join(ranks, name).filter(|&group| self.is_same(group, name));
        if !pmpi.all_agree(comm, group.is_some()) {
            if let Some(group) = group {
                self.state.lock().leave(group);
            }
            return None;
        }
        group.map(|group| Communicator { group, member })
    }

    /// The ranks of a communicator's members in the world, unless one of them is not there.
    fn ranks(&self, comm: Handle, size: usize) -> Option<Vec<usize>> {
        let group = self.pmpi.group(comm)?;
        let ranks = self.pmpi.translate(group, size, self.world);
        self.pmpi.free_group(group);
        ranks
    }

    fn join(&self, ranks: Vec<usize>, name: i64) -> Option<usize> {
        let members: Vec<Address> =
            ranks.iter().map(|&rank| self.addresses.get(rank).copied()).collect::<Option<_>>()?;
        let ranks: Arc<[usize]> = ranks.into();
        let end = Instant::now() + JOIN_LIMIT;
        let mut number = None;
        self.wait(|| match self.start_join(&members, &ranks, name) {
            Err(Error::Call { code: FI_EAGAIN_CODE, .. }) => Instant::now() > end,
            started => {
                number = started.ok();
                true
            }
        });
        let number = number?;
        let mut success = None;
        self.wait(|| {
            success = self.join_end(number);
            success.is_some() || Instant::now() > end
        });
        if success != Some(true) {
            self.state.lock().leave(number);
            return None;
        }
        Some(number)
    }

    fn start_join(&self, members: &[Address], ranks: &Arc<[usize]>, name: i64) -> Result<usize, Error> {
        let mut state = self.state.lock();
        let endpoint = state.endpoint.as_mut().ok_or(Error::Misuse("the endpoint is closed"))?;
        let group = endpoint.join(members)?;
        let number = group.number();
        state.groups.insert(number, Joined::new(group, Arc::clone(ranks), name));
        Ok(number)
    }

    /// Whether a join has succeeded, once it has ended.
    fn join_end(&self, number: usize) -> Option<bool> {
        let mut state = self.state.lock();
        let state = &mut *state;
        while let Ok(Some((ended, failure))) = state.endpoint.as_mut()?.joined() {
            state.joins.insert(ended, failure.is_none());
        }
        state.joins.remove(&number)
    }

    /// Whether all members of a group have the same name for it. Two threads may have joined groups of the same
    /// members in opposite orders.
    fn is_same(&self, group: usize, name: i64) -> bool {
        let input = [name, !name];
        let mut result = [0_i64; 2];
        let call = Collective {
            operation: Operation::AllReduce,
            input: input.as_ptr().cast(),
            result: result.as_mut_ptr().cast(),
            count: input.len(),
            root: 0,
            datatype: FI_INT64,
            op: FI_MIN,
        };
        let op = Arc::new(Op::new(call, group, self.own, Staged::default()));
        self.submit(&op);
        self.wait(|| op.is_complete());
        !op.has_failed() && result == input
    }
}

/// The proposal of a member that has kept no group. Names are not negative.
const NO_NAME: i64 = -1;

/// The error of a call that found no room.
const FI_EAGAIN_CODE: c_int = FI_EAGAIN as c_int;

/// The attribute of a communicator is deleted: the communicator is freed.
pub(crate) unsafe extern "C" fn freed(
    comm: Handle,
    _keyval: c_int,
    _attribute: *mut c_void,
    _extra: *mut c_void,
) -> c_int {
    if let Some(runtime) = runtime() {
        let comm = runtime.pmpi.mpi.handle(comm);
        let mut state = runtime.state.lock();
        if let Some(Some(Communicator { group, .. })) = state.communicators.remove(&comm) {
            state.keep_idle(group);
        }
    }
    SUCCESS
}
