//! Groups of endpoints, and the collectives that run in them (fi_collective(3)).
//!
//! Place in the data flow: [`Endpoint::join`] creates a set of addresses and joins the group of its members. The end of
//! the join is an event ([`Endpoint::joined`]). [`Endpoint::start`] starts an operation, whose completion
//! [`Endpoint::poll`] returns as any other.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use weft_fi_sys::*;

use crate::domain::{close, extension};
use crate::endpoint::{Address, Endpoint, Piece, Posted};
use crate::{Error, Library};

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// No member leaves before all have entered.
    Barrier,
    /// The root's block reaches all members; it is the result buffer.
    Broadcast,
    /// One block from each member to each.
    AllToAll,
    /// Every member gets the reduction of all inputs.
    AllReduce,
    /// Every member gets all inputs.
    AllGather,
    /// Each member gets one block of the reduction.
    ReduceScatter,
    /// The root gets the reduction.
    Reduce,
    /// Each member gets one block of the root's input.
    Scatter,
    /// The root gets all inputs.
    Gather,
}

/// Bytes of an element of [`Numbers`].
const ELEMENT_BYTES: usize = 8;

impl Operation {
    const fn number(self) -> fi_collective_op {
        match self {
            Self::Barrier => FI_BARRIER,
            Self::Broadcast => FI_BROADCAST,
            Self::AllToAll => FI_ALLTOALL,
            Self::AllReduce => FI_ALLREDUCE,
            Self::AllGather => FI_ALLGATHER,
            Self::ReduceScatter => FI_REDUCE_SCATTER,
            Self::Reduce => FI_REDUCE,
            Self::Scatter => FI_SCATTER,
            Self::Gather => FI_GATHER,
        }
    }

    const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Bytes of the input and of the result of [`Numbers`], at the member that needs most of them.
    ///
    /// A broadcast has no input. Its result has room for a multiple of the number of members, because libfabric's own
    /// implementation (`off_coll`) writes that much.
    #[must_use]
    pub const fn buffer_bytes(self, count: usize, members: usize) -> [usize; 2] {
        let block = count * ELEMENT_BYTES;
        let blocks = block * members;
        match self {
            Self::Barrier => [0, 0],
            Self::Broadcast => [0, count.next_multiple_of(if members == 0 { 1 } else { members }) * ELEMENT_BYTES],
            Self::AllToAll => [blocks, blocks],
            Self::AllReduce | Self::Reduce => [block, block],
            Self::AllGather | Self::Gather => [block, blocks],
            Self::ReduceScatter | Self::Scatter => [blocks, block],
        }
    }
}

/// The arguments of an operation on unsigned numbers of 8 bytes in the endpoint's memory. Reductions are sums.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// The operation.
    pub operation: Operation,
    /// Elements of one block.
    pub count: usize,
    /// The root's rank.
    pub root: u64,
    /// The input, see [`Operation::buffer_bytes`].
    pub input: Piece,
    /// The result.
    pub result: Piece,
}

/// The arguments of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Collective {
    /// The operation.
    pub operation: Operation,
    /// The input; null if this member has none.
    pub input: *const c_void,
    /// The result; null if this member has none.
    pub result: *mut c_void,
    /// Elements of one block.
    pub count: usize,
    /// The root's rank.
    pub root: u64,
    /// The elements' type.
    pub datatype: fi_datatype,
    /// The arithmetic operation of reductions.
    pub op: fi_op,
}

/// A block of a buffer: `struct weft_block` (fi_weft(7), "EXTENSIONS").
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins, in bytes.
    pub offset: usize,
    /// Its length in bytes.
    pub len: usize,
}

/// The arguments of an exchange of blocks of different lengths.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The memory of the blocks that this member gives; null if it has none.
    pub input: *const c_void,
    /// The block for each member.
    pub given: Box<[Extent]>,
    /// The memory of the blocks that it takes; null if it has none.
    pub result: *mut c_void,
    /// The block of each member.
    pub taken: Box<[Extent]>,
}

/// `struct weft_collective_ops` (fi_weft(7), "EXTENSIONS").
#[repr(C)]
pub(crate) struct CollectiveOps {
    size: usize,
    exchange: unsafe extern "C" fn(
        *mut fid_ep,
        fi_addr_t,
        *const c_void,
        *const Extent,
        *mut c_void,
        *const Extent,
        usize,
        *mut c_void,
    ) -> isize,
    perform: unsafe extern "C" fn(*mut fid_ep, fi_addr_t, *const Arguments, *mut c_void) -> isize,
}

/// `struct weft_collective_call`.
#[repr(C)]
pub(crate) struct Arguments {
    collective: fi_collective_op,
    datatype: fi_datatype,
    op: fi_op,
    looks: u32,
    input: *const c_void,
    result: *mut c_void,
    count: usize,
    root: fi_addr_t,
}

/// The result of [`Endpoint::perform`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Performed {
    /// The operation has ended. No completion follows.
    Ended,
    /// As after [`Endpoint::start`].
    Posted(Posted),
}

/// A group of endpoints. A group that is dropped stays open until the process ends: leave it.
#[derive(Debug)]
pub struct Group {
    set: *mut fid_av_set,
    mc: *mut fid_mc,
    members: usize,
}

// SAFETY: the objects belong to this group and are used through its endpoint only.
unsafe impl Send for Group {}

impl Group {
    /// The group's number, which [`Endpoint::joined`] returns.
    #[must_use]
    pub fn number(&self) -> usize {
        self.mc.addr()
    }

    fn address(&self) -> fi_addr_t {
        // SAFETY: the group is open; the provider does not change its address.
        unsafe { (*self.mc).fi_addr }
    }
}

impl Endpoint {
    /// Returns an error unless the provider offers the operation, on the elements of [`Numbers`], to this many members.
    pub fn collective_offered(&self, operation: Operation, members: usize) -> Result<(), Error> {
        let inner = self.inner();
        // SAFETY: the domain is open.
        let domain = unsafe { &*inner.domain };
        // SAFETY: an open domain has its table.
        let table = unsafe { &*domain.ops };
        let call = inner.library.has("fi_query_collective", table.query_collective)?;
        let barrier = operation == Operation::Barrier;
        let mut attr = fi_collective_attr {
            op: if operation.reduces() { FI_SUM } else { FI_NOOP },
            datatype: if barrier { FI_VOID } else { FI_UINT64 },
            datatype_attr: fi_atomic_attr { count: 0, size: 0 },
            max_members: 0,
            mode: 0,
        };
        // SAFETY: the domain is open, and the answer goes to a local.
        let result = unsafe { call(inner.domain, operation.number(), &mut attr, 0) };
        inner.library.check("fi_query_collective", result as isize)?;
        if members <= attr.max_members {
            return Ok(());
        }
        Err(Error::NotOffered(format!("the provider allows groups of {} members", attr.max_members)))
    }

    /// Starts an operation on the endpoint's memory. [`Endpoint::poll`] returns `slot` when it is complete.
    #[inline]
    pub fn start_numbers(&mut self, slot: u32, group: &Group, numbers: &Numbers) -> Result<Posted, Error> {
        let Numbers { operation, count, root, input, result } = *numbers;
        let [input_bytes, result_bytes] = operation.buffer_bytes(count, group.members);
        if input.len < input_bytes || result.len < result_bytes {
            return Err(Error::Misuse("the buffers are too short for the operation"));
        }
        let (input, result) = (self.at(input)?.cast_const(), self.at(result)?);
        let call = Collective { operation, input, result, count, root, datatype: FI_UINT64, op: FI_SUM };
        // SAFETY: the buffers are long enough, and inside the endpoint's memory, which outlives the operation.
        unsafe { self.start(slot, group, &call) }
    }

    /// Opens the event queue, which the ends of joins need.
    pub(crate) fn open_events(&mut self, domain: &crate::domain::Inner) -> Result<(), Error> {
        let library = domain.library;
        // SAFETY: the fabric is open as long as the domain.
        let parent = unsafe { &*domain.fabric };
        // SAFETY: an open fabric has its table.
        let table = unsafe { &*parent.ops };
        let mut attr =
            fi_eq_attr { size: 0, flags: 0, wait_obj: FI_WAIT_NONE, signaling_vector: 0, wait_set: null_mut() };
        let open = library.has("fi_eq_open", table.eq_open)?;
        // SAFETY: fabric and attributes are valid, and the result goes to a field of this structure.
        let result = unsafe { open(domain.fabric, &mut attr, &mut self.eq, null_mut()) };
        library.check("fi_eq_open", result as isize)?;
        self.bind(library, self.ep.cast(), self.eq.cast(), 0)?;
        // SAFETY: the endpoint is open, and its handle begins with a fid.
        self.extension = unsafe { extension(self.ep.cast(), c"weft_collective") }.map(NonNull::cast);
        Ok(())
    }

    /// Starts to join the group of these members, in this order. All of them must do so.
    pub fn join(&mut self, members: &[Address]) -> Result<Group, Error> {
        self.join_set(members, &[])
    }

    /// Starts to join the group of these members that all of them know by this name. No other group of theirs has the
    /// name. Operations may be started at once: they wait for the join. This is a feature of weft.
    pub fn join_named(&mut self, members: &[Address], name: u64) -> Result<Group, Error> {
        self.join_set(members, &name.to_le_bytes())
    }

    fn join_set(&mut self, members: &[Address], key: &[u8]) -> Result<Group, Error> {
        let library = self.inner().library;
        let set = self.open_set(library, members, key)?;
        // SAFETY: the endpoint is open.
        let head = unsafe { &*self.ep };
        // SAFETY: an enabled endpoint has this table.
        let table = unsafe { &*head.cm };
        // libfabric's own implementation (`off_coll`) crashes without the set's address.
        let mut coll_addr = FI_ADDR_NOTAVAIL;
        // SAFETY: the set was just opened.
        let opened = unsafe { &*set };
        // SAFETY: an open set has its table.
        if let Some(call) = unsafe { &*opened.ops }.addr {
            // SAFETY: the set is open, and the address goes to a local. It stays as it is if the call fails.
            unsafe { call(set, &mut coll_addr) };
        }
        let addr = fi_collective_addr { set, coll_addr };
        let mut mc = null_mut();
        let result = match library.has("fi_join_collective", table.join) {
            // SAFETY: endpoint and set are open, and the group goes to a local.
            Ok(call) => unsafe { call(self.ep, (&raw const addr).cast(), FI_COLLECTIVE, &mut mc, null_mut()) },
            Err(_) => -FI_ENOSYS,
        };
        if let Err(error) = library.check("fi_join_collective", result as isize) {
            // SAFETY: no group uses the set.
            unsafe { close(set) };
            return Err(error);
        }
        Ok(Group { set, mc, members: members.len() })
    }

    fn open_set(&self, library: &Library, members: &[Address], key: &[u8]) -> Result<*mut fid_av_set, Error> {
        // SAFETY: the vector is open.
        let head = unsafe { &*self.av };
        // SAFETY: an open vector has its table.
        let table = unsafe { &*head.ops };
        let mut attr = fi_av_set_attr {
            count: members.len(),
            start_addr: FI_ADDR_NOTAVAIL,
            end_addr: FI_ADDR_NOTAVAIL,
            stride: 1,
            comm_key_size: key.len(),
            // The provider only reads the key.
            comm_key: if key.is_empty() { null_mut() } else { key.as_ptr().cast_mut() },
            flags: 0,
        };
        let mut set = null_mut();
        let open = library.has("fi_av_set", table.av_set)?;
        // SAFETY: vector and attributes are valid, and the result goes to a local.
        let result = unsafe { open(self.av, &mut attr, &mut set, null_mut()) };
        library.check("fi_av_set", result as isize)?;
        // SAFETY: the set was just opened.
        let head = unsafe { &*set };
        // SAFETY: an open set has its table.
        let table = unsafe { &*head.ops };
        for member in members {
            let result = match table.insert {
                // SAFETY: the set is open.
                Some(call) => unsafe { call(set, member.0) },
                None => -FI_ENOSYS,
            };
            if let Err(error) = library.check("fi_av_set_insert", result as isize) {
                // SAFETY: no group uses the set.
                unsafe { close(set) };
                return Err(error);
            }
        }
        Ok(set)
    }

    /// The next join that has ended, by its group's number, and its failure if it failed. Makes progress.
    pub fn joined(&mut self) -> Result<Option<(usize, Option<Error>)>, Error> {
        let library = self.inner().library;
        // SAFETY: the queue is open if collectives were requested, else null.
        let head = unsafe { self.eq.as_ref() }.ok_or(Error::Misuse("the endpoint was opened without collectives"))?;
        // SAFETY: an open queue has its table.
        let table = unsafe { &*head.ops };
        let mut event = 0;
        let mut entry = fi_eq_entry { fid: null_mut(), context: null_mut(), data: 0 };
        let read = library.has("fi_eq_read", table.read)?;
        // SAFETY: the queue is open, and the entry has the given length.
        let result = unsafe { read(self.eq, &mut event, (&raw mut entry).cast(), size_of::<fi_eq_entry>(), 0) };
        match -result {
            again if again == FI_EAGAIN as isize => Ok(None),
            error if error == FI_EAVAIL as isize => self.join_error(table).map(Some),
            _ => {
                library.check("fi_eq_read", result)?;
                Ok((event == FI_JOIN_COMPLETE).then_some((entry.fid.addr(), None)))
            }
        }
    }

    /// Calls `fi_eq_readerr`.
    #[cold]
    fn join_error(&self, table: &fi_ops_eq) -> Result<(usize, Option<Error>), Error> {
        let library = self.inner().library;
        let readerr = library.has("fi_eq_readerr", table.readerr)?;
        let mut entry = fi_eq_err_entry {
            fid: null_mut(),
            context: null_mut(),
            data: 0,
            err: 0,
            prov_errno: 0,
            err_data: null_mut(),
            err_data_size: 0,
        };
        // SAFETY: the queue is open, and the entry has no buffer for error data.
        let result = unsafe { readerr(self.eq, &mut entry, 0) };
        library.check("fi_eq_readerr", result)?;
        let code = entry.err.saturating_abs();
        Ok((entry.fid.addr(), Some(Error::Call { what: "fi_join_collective", code, text: library.text(code) })))
    }

    /// Leaves a group, or returns it while operations are under way.
    pub fn leave(&mut self, group: Group) -> Result<(), Group> {
        let domain = self.domain().clone();
        let _serial = domain.inner().serialize();
        // SAFETY: the group is open, and is not used after it was closed.
        if unsafe { close(group.mc) } != 0 {
            return Err(group);
        }
        // SAFETY: as above; its group is closed.
        unsafe { close(group.set) };
        Ok(())
    }

    /// Starts an operation. [`Endpoint::poll`] returns `slot` when it is complete.
    ///
    /// # Safety
    /// The buffers are as long as the operation needs (fi_collective(3)), and are left to the provider until the
    /// operation is complete.
    pub unsafe fn start(&mut self, slot: u32, group: &Group, call: &Collective) -> Result<Posted, Error> {
        let context = self.claim(slot)?;
        // SAFETY: by the caller's promise.
        let result = unsafe { self.call(group.address(), call, context) }?;
        self.posted("fi_collective", slot, result)
    }

    /// Starts an operation, and waits a little for its end. `looks`: how often the provider looks for other members.
    /// Where a provider has no such call, the operation is started.
    ///
    /// # Safety
    /// As for [`Endpoint::start`].
    pub unsafe fn perform(
        &mut self,
        slot: u32,
        group: &Group,
        call: &Collective,
        looks: u32,
    ) -> Result<Performed, Error> {
        let context = self.claim(slot)?;
        // SAFETY: the table exists as long as the library, which is not unloaded, and begins with its size.
        let is_long = |ops: &NonNull<CollectiveOps>| unsafe { (*ops.as_ptr()).size } >= size_of::<CollectiveOps>();
        let Some(ops) = self.extension.filter(is_long) else {
            // SAFETY: by the caller's promise.
            return unsafe { self.start(slot, group, call) }.map(Performed::Posted);
        };
        // SAFETY: the table exists, and is long enough.
        let ops = unsafe { ops.as_ref() };
        let Collective { operation, input, result, count, root, datatype, op } = *call;
        let collective = operation.number();
        let arguments = Arguments { collective, datatype, op, looks, input, result, count, root };
        // SAFETY: the endpoint is open, and the rest is the caller's promise.
        let result = unsafe { (ops.perform)(self.ep, group.address(), &raw const arguments, context) };
        if result == 1 {
            return Ok(Performed::Ended);
        }
        self.posted("weft_collective.perform", slot, result).map(Performed::Posted)
    }

    /// Starts an exchange of blocks of different lengths. This is a feature of weft.
    ///
    /// # Safety
    /// The blocks lie in the caller's memory, and are left to the provider until the operation is complete.
    pub unsafe fn start_exchange(&mut self, slot: u32, group: &Group, call: &Exchange) -> Result<Posted, Error> {
        let ops = self.extension.ok_or(Error::Misuse("the provider has no exchange of blocks of different lengths"))?;
        if call.given.len() != group.members || call.taken.len() != group.members {
            return Err(Error::Misuse("an exchange has a block for each member, and one of each"));
        }
        let (context, addr) = (self.claim(slot)?, group.address());
        let Exchange { input, given, result, taken } = call;
        let (given, taken) = (given.as_ptr(), taken.as_ptr());
        // SAFETY: the table exists as long as the library, which is not unloaded. The rest of an old one may be
        // missing.
        let function = unsafe { (*ops.as_ptr()).exchange };
        // SAFETY: the endpoint is open, the lists are as long as the group, and the rest is the caller's promise.
        let result = unsafe { function(self.ep, addr, *input, given, *result, taken, group.members, context) };
        self.posted("weft_collective.exchange", slot, result)
    }

    /// # Safety
    /// As for [`Endpoint::start`]. The context is free.
    unsafe fn call(&self, addr: fi_addr_t, call: &Collective, context: *mut c_void) -> Result<isize, Error> {
        let library = self.inner().library;
        // SAFETY: the endpoint is open.
        let head = unsafe { &*self.ep };
        // SAFETY: a table of an open endpoint is valid, or null.
        let ops = unsafe { head.collective.as_ref() };
        let ops = ops.ok_or(Error::Misuse("the endpoint was opened without collectives"))?;
        let Collective { operation, input, result, count, root, datatype, op } = *call;
        let (ep, none): (_, *mut c_void) = (self.ep, null_mut());
        /// Calls the function with the promise of [`Endpoint::start`].
        macro_rules! call {
            ($name:ident $($argument:expr),*) => {{
                let function = library.has(concat!("fi_", stringify!($name)), ops.$name)?;
                // SAFETY: by the caller's promise.
                unsafe { function(ep, $($argument,)* context) }
            }};
        }
        Ok(match operation {
            Operation::Barrier => call!(barrier addr),
            Operation::Broadcast => call!(broadcast result, count, none, addr, root, datatype, 0),
            Operation::AllToAll => call!(alltoall input, count, none, result, none, addr, datatype, 0),
            Operation::AllReduce => call!(allreduce input, count, none, result, none, addr, datatype, op, 0),
            Operation::AllGather => call!(allgather input, count, none, result, none, addr, datatype, 0),
            Operation::ReduceScatter => call!(reduce_scatter input, count, none, result, none, addr, datatype, op, 0),
            Operation::Reduce => call!(reduce input, count, none, result, none, addr, root, datatype, op, 0),
            Operation::Scatter => call!(scatter input, count, none, result, none, addr, root, datatype, 0),
            Operation::Gather => call!(gather input, count, none, result, none, addr, root, datatype, 0),
        })
    }
}
