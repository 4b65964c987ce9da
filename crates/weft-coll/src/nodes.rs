//! `MPI_Comm_split_type`: the members of a node communicator by host, where the MPI library does not find them.
//!
//! Place in the data flow: the MPI library splits first. If its result lacks members of the host, a communicator with
//! all of them takes its place. MPICH whose own shared memory is off regards each rank as alone on its host.
//!
//! A host here is a host of weft: processes of one running system and one network namespace ([`crate::places`]). Its
//! members try whether memory passes between them before they replace the library's result. Containers may forbid it.
//!
//! Sources: MPI 4.1, section 7.4.2; the info key `shmem_topo` of MPICH.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::communicators::made;
use crate::exports::{export, weft_coll_nodes};
use crate::mpi::{Handle, SUCCESS, UNDEFINED};
use crate::run::{Runtime, runtime};
use crate::segment::Segment;

/// Bytes of the memory by which members try whether they share it.
const TRIAL_BYTES: usize = 1 << 12;

export! {
    [c_int] MPI_Comm_split_type(comm: handle, kind: int, key: int, info: handle, new: pointer)
    |library| {
        let code = library();
        if let (SUCCESS, Some(runtime)) = (code, runtime()) {
            let pmpi = &runtime.pmpi;
            let (comm, info) = (pmpi.mpi.handle(comm), pmpi.mpi.handle(info));
            // MPICH splits further by this key.
            let is_wanted = kind == pmpi.mpi.shared().split && pmpi.info(info, c"shmem_topo").is_none();
            complete(runtime, comm, is_wanted, key, new);
        }
        made(code, new)
    }
}

impl Runtime {
    /// The numbers of the nodes of a communicator's members. `None`, at all members: one is outside the world, or it
    /// is an inter-communicator.
    pub(crate) fn nodes_of(&self, comm: Handle) -> Option<Vec<u64>> {
        if self.pmpi.is_inter(comm)? {
            return None;
        }
        let ranks = self.ranks(comm, self.pmpi.size(comm)?)?;
        Some(ranks.into_iter().map(|rank| self.nodes[rank]).collect())
    }
}

/// The first member on the node of a member. A member whose node is unknown is alone.
fn first_on_node(nodes: &[u64], member: usize) -> usize {
    let first = nodes.iter().position(|node| *node == nodes[member]);
    first.filter(|_| nodes[member] != 0).unwrap_or(member)
}

/// Replaces the result of the MPI library at `new` if members of the host are missing. Members that do not want a node
/// communicator take part in the agreements: they cannot know of the others.
fn complete(runtime: &Runtime, comm: Handle, is_wanted: bool, key: c_int, new: *mut c_void) -> Option<()> {
    let pmpi = &runtime.pmpi;
    let nodes = runtime.nodes_of(comm).filter(|nodes| nodes.len() > 1)?;
    let rank = pmpi.rank(comm)?;
    // SAFETY: the library has written the program's handle.
    let own = pmpi.mpi.handle(unsafe { pmpi.mpi.read(new, 0) });
    let first = first_on_node(&nodes, rank);
    let beside = nodes.iter().filter(|node| **node == nodes[rank]).count();
    let lacks = is_wanted && nodes[rank] != 0 && pmpi.size(own)? < beside;
    let [anyone] = pmpi.smallest(comm, [-i64::from(lacks)])?;
    if anyone == 0 {
        return Some(());
    }
    let color = if is_wanted { c_int::try_from(first).ok()? } else { UNDEFINED };
    let whole = pmpi.split(comm, color, key)??;
    match fits(runtime, own, whole) {
        Ok(()) => {
            pmpi.free_communicator(own);
            // SAFETY: the program's place for the handle.
            unsafe { pmpi.mpi.write(new, whole) };
        }
        Err(reason) => {
            let is_first = pmpi.rank(whole) == Some(0);
            pmpi.free_communicator(whole);
            if let Some(reason) = reason {
                stays_small(&reason, pmpi.rank(own) == Some(0), is_first);
            }
        }
    }
    Some(())
}

/// Counts a communicator that stays small, by its first member. The first member of the host names the reason, once.
fn stays_small(reason: &str, is_first: bool, is_first_of_host: bool) {
    static SAID: AtomicBool = AtomicBool::new(false);
    weft_coll_nodes[1].fetch_add(is_first.into(), Ordering::Relaxed);
    if is_first_of_host && !SAID.swap(true, Ordering::Relaxed) {
        eprintln!("weft-coll: node communicators are left to the MPI library: {reason}");
    }
}

/// Whether the members of a host can replace the library's communicator. All of them decide alike. No reason: theirs
/// has no more members.
fn fits(runtime: &Runtime, own: Handle, whole: Handle) -> Result<(), Option<String>> {
    let pmpi = &runtime.pmpi;
    let (have, count) = (pmpi.size(own).unwrap_or(0), pmpi.size(whole).unwrap_or(0));
    let holds = || {
        let [own, whole] = [own, whole].map(|comm| pmpi.group(comm));
        let (own, whole) = (own?, whole?);
        let translated = pmpi.translate(own, have, whole);
        [own, whole].into_iter().for_each(|group| pmpi.free_group(group));
        translated.map(drop)
    };
    let holds = holds().is_some();
    match pmpi.smallest(whole, [i64::from(holds), -i64::from(have < count)]) {
        Some([_, 0]) => return Err(None),
        Some([1, _]) => {}
        _ => return Err(Some("its own ones have members of several hosts".to_owned())),
    }
    let shared = Segment::share(pmpi, whole, TRIAL_BYTES);
    shared.map(drop).map_err(|(rank, reason)| Some(format!("rank {rank} of the node: {reason}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_sorted_by_node() {
        let nodes = [7, 0, 9, 7, 0, 9];
        let first: Vec<usize> = (0..6).map(|member| first_on_node(&nodes, member)).collect();
        assert_eq!(first, [0, 1, 2, 0, 4, 2]);
    }
}
