//! The groups of communicators, which all members agree upon.
//!
//! Place in the data flow: [`Runtime::communicator`] returns the group of a communicator. The members of a new
//! communicator agree on a name for its group in one blocking call ([`crate::communicators`], or the first blocking
//! collective). The first collective joins the group under this name ([`crate::run`]), and waits in the provider until
//! all members have called it. A communicator without collectives therefore costs the agreement alone.
//!
//! The group of a communicator that was freed is kept. A later communicator of the same members gets it if all of them
//! propose it, so that programs that duplicate communicators often do not join each time.
//!
//! A non-blocking call must not wait for other members. It leaves a communicator without a name to the MPI library.
//!
//! [`Runtime::reaches_all`] tries the group of the world at the start. If it fails, the MPI library runs everything.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use weft_client::{Collective, Operation};
use weft_fi_sys::{FI_NOOP, FI_VOID};

use crate::mpi::{Handle, SUCCESS};
use crate::plan::Member;
use crate::run::{Communicator, Joined, Op, Runtime, runtime};
use crate::shape::{Staged, Transfer};

/// If the first barrier of all ranks takes longer, the MPI library runs the collectives.
const REACH_LIMIT: Duration = Duration::from_secs(30);
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

    /// Names the group. All members get one, or none.
    fn form(&self, comm: Handle) -> Option<Communicator> {
        static NEXT: AtomicI64 = AtomicI64::new(0);
        let pmpi = &self.pmpi;
        // These answers are the same at all members. A member outside the world may even run without this library.
        if pmpi.is_inter(comm)? || !(2..=MAX_MEMBERS).contains(&pmpi.size(comm)?) {
            return None;
        }
        let member = Member { rank: pmpi.rank(comm)?, size: pmpi.size(comm)? };
        let ranks: Box<[usize]> = self.ranks(comm, member.size)?.into();
        // Each number is proposed once in the world, so that no other group has the name.
        let own_rank = i64::try_from(pmpi.rank(self.own)?).unwrap_or(0);
        let name = own_rank << 40 | NEXT.fetch_add(1, Ordering::Relaxed);
        let idle = self.state.lock().take_idle(&ranks);
        let proposal = idle.and_then(|name| i64::try_from(name).ok()).unwrap_or(NO_NAME);
        let [name, lowest, highest] = pmpi.smallest(comm, [name, proposal, -proposal])?;
        let mut state = self.state.lock();
        if let Some(group) = idle {
            if lowest == -highest {
                return Some(Communicator { group, member });
            }
            state.keep_idle(group);
        }
        let group = usize::try_from(name).ok()?;
        state.groups.insert(group, Joined::new(ranks));
        Some(Communicator { group, member })
    }

    /// The ranks of a communicator's members in the world, unless one of them is not there.
    pub(crate) fn ranks(&self, comm: Handle, size: usize) -> Option<Vec<usize>> {
        let group = self.pmpi.group(comm)?;
        let ranks = self.pmpi.translate(group, size, self.world);
        self.pmpi.free_group(group);
        ranks
    }

    /// Whether all ranks reach each other over weft: they join the group of the world, and perform a barrier. A world
    /// that is too large for a group is not tried.
    pub(crate) fn reaches_all(&self) -> bool {
        let group = self.communicator(self.pmpi.constants.world, true).map(|world| world.group);
        let reached = group.is_none_or(|group| {
            let call = Collective {
                operation: Operation::Barrier,
                input: null(),
                result: null_mut(),
                count: 0,
                root: 0,
                datatype: FI_VOID,
                op: FI_NOOP,
            };
            let op = Arc::new(Op::new(Transfer::Even(call), group, self.own, Staged::default()));
            let end = Instant::now() + REACH_LIMIT;
            self.submit(&op);
            self.wait(|| op.is_complete() || Instant::now() > end);
            op.is_complete() && !op.has_failed()
        });
        self.pmpi.all_agree(self.own, reached)
    }
}

/// The proposal of a member that has kept no group. Names are not negative.
const NO_NAME: i64 = -1;

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
