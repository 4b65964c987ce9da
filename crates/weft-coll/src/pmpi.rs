//! The functions of the MPI library that this library calls for itself, with Rust's types.
//!
//! Place in the data flow: between the modules of this crate and [`pmpi!`]. A function that fails returns `None`. The
//! MPI library has then called the error handler of the communicator.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::ptr::null_mut;

use crate::mpi::{Handle, Mpi, Named, SUCCESS, UNDEFINED, pmpi};

/// The most bytes of a communicator's name, in the library that allows most.
const MAX_OBJECT_NAME: usize = 256;

/// The handle constants that this library needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Constants {
    pub(crate) world: Handle,
    pub(crate) no_communicator: Handle,
    pub(crate) no_type: Handle,
    /// `MPI_OP_NULL`.
    pub(crate) no_op: Handle,
    pub(crate) itself: Handle,
    pub(crate) no_info: Handle,
    byte: Handle,
    long: Handle,
    min: Handle,
}

impl Constants {
    /// The constants, or `None` for an unknown ABI.
    pub(crate) fn of(mpi: &Mpi) -> Option<Self> {
        Some(Self {
            world: mpi.constant(&Named::new(0x4400_0000, c"ompi_mpi_comm_world", 0x101))?,
            no_communicator: mpi.constant(&Named::new(0x0400_0000, c"ompi_mpi_comm_null", 0x100))?,
            no_type: mpi.constant(&Named::new(0x0c00_0000, c"ompi_mpi_datatype_null", 0x200))?,
            no_op: mpi.constant(&Named::new(0x1800_0000, c"ompi_mpi_op_null", 0x20))?,
            no_info: mpi.constant(&Named::new(0x1c00_0000, c"ompi_mpi_info_null", 0x130))?,
            itself: mpi.constant(&Named::new(0x4400_0001, c"ompi_mpi_comm_self", 0x102))?,
            byte: mpi.constant(&Named::new(0x4c00_010d, c"ompi_mpi_byte", 0x247))?,
            long: mpi.constant(&Named::new(0x4c00_0807, c"ompi_mpi_long", 0x20a))?,
            min: mpi.constant(&Named::new(0x5800_0002, c"ompi_mpi_op_min", 0x22))?,
        })
    }
}

/// The MPI library with its constants.
#[derive(Clone, Copy)]
pub(crate) struct Pmpi {
    pub(crate) mpi: &'static Mpi,
    pub(crate) constants: Constants,
}

/// The tag of this library's messages in the world, before the program gets it.
const TAG: c_int = 32_766;

type ErrorFunction = unsafe extern "C" fn(*mut Handle, *mut c_int);

/// Handles errors by returning them to the caller. MPI libraries pass more arguments, which are of no use.
unsafe extern "C" fn pass_on(_comm: *mut Handle, _code: *mut c_int) {}

fn succeeded(code: c_int) -> Option<()> {
    (code == SUCCESS).then_some(())
}

impl Pmpi {
    fn number(code: c_int, number: c_int) -> Option<usize> {
        succeeded(code)?;
        usize::try_from(number).ok()
    }

    pub(crate) fn size(&self, comm: Handle) -> Option<usize> {
        let mut size: c_int = 0;
        Self::number(pmpi!("PMPI_Comm_size", comm => Handle, &raw mut size => *mut c_int), size)
    }

    pub(crate) fn rank(&self, comm: Handle) -> Option<usize> {
        let mut rank: c_int = 0;
        Self::number(pmpi!("PMPI_Comm_rank", comm => Handle, &raw mut rank => *mut c_int), rank)
    }

    pub(crate) fn is_inter(&self, comm: Handle) -> Option<bool> {
        let mut flag: c_int = 0;
        succeeded(pmpi!("PMPI_Comm_test_inter", comm => Handle, &raw mut flag => *mut c_int))?;
        Some(flag != 0)
    }

    /// A duplicate of a communicator on which errors do not end the program.
    pub(crate) fn duplicate(&self, comm: Handle) -> Option<Handle> {
        let mut new: Handle = 0;
        succeeded(pmpi!("PMPI_Comm_dup", comm => Handle, &raw mut new => *mut Handle))?;
        let new = self.mpi.handle(new);
        // A handler of this library: Intel MPI has another number for `MPI_ERRORS_RETURN` than the standard interface.
        let mut handler: Handle = 0;
        let into = &raw mut handler;
        succeeded(
            pmpi!("PMPI_Comm_create_errhandler", pass_on as ErrorFunction => ErrorFunction, into => *mut Handle),
        )?;
        let set = succeeded(pmpi!("PMPI_Comm_set_errhandler", new => Handle, handler => Handle));
        // The communicator keeps it.
        pmpi!("PMPI_Errhandler_free", into => *mut Handle);
        set.map(|()| new)
    }

    /// The part of a communicator with the members of the same color, in the order of their keys. A member whose color
    /// is [`UNDEFINED`] gets no communicator.
    pub(crate) fn split(&self, comm: Handle, color: c_int, key: c_int) -> Option<Option<Handle>> {
        let mut new: Handle = 0;
        let into = &raw mut new;
        let code = pmpi!("PMPI_Comm_split", comm => Handle, color => c_int, key => c_int, into => *mut Handle);
        succeeded(code)?;
        let new = self.mpi.handle(new);
        Some((new != self.constants.no_communicator).then_some(new))
    }

    /// The members of a communicator that share memory by the MPI library's own account: their number.
    pub(crate) fn sharing(&self, comm: Handle) -> Option<usize> {
        let mut new: Handle = 0;
        succeeded(pmpi!(
            "PMPI_Comm_split_type",
            comm => Handle,
            self.mpi.shared().split => c_int,
            0 => c_int,
            self.constants.no_info => Handle,
            &raw mut new => *mut Handle,
        ))?;
        let new = self.mpi.handle(new);
        let size = self.size(new);
        self.free_communicator(new);
        size
    }

    /// The value of a key, if an info object has it.
    pub(crate) fn info(&self, info: Handle, key: &CStr) -> Option<String> {
        if info == self.constants.no_info {
            return None;
        }
        let mut value = [0_u8; 64];
        let mut found: c_int = 0;
        succeeded(pmpi!(
            "PMPI_Info_get",
            info => Handle,
            key.as_ptr() => *const c_char,
            63 => c_int,
            value.as_mut_ptr() => *mut u8,
            &raw mut found => *mut c_int,
        ))?;
        let text = CStr::from_bytes_until_nul(&value).ok()?;
        (found != 0).then(|| text.to_string_lossy().into_owned())
    }

    /// Makes a window over memory, whose handle goes to `window`. Returns the library's code.
    pub(crate) fn window(
        &self,
        memory: *mut c_void,
        bytes: usize,
        unit: c_int,
        info: Handle,
        comm: Handle,
        window: *mut c_void,
    ) -> c_int {
        pmpi!(
            "PMPI_Win_create",
            memory => *mut c_void,
            bytes => usize,
            unit => c_int,
            info => Handle,
            comm => Handle,
            window => *mut c_void,
        )
    }

    /// Calls the error handler of a window.
    pub(crate) fn call_window_error_handler(&self, window: Handle, code: c_int) {
        pmpi!("PMPI_Win_call_errhandler", window => Handle, code => c_int);
    }

    pub(crate) fn free_communicator(&self, mut comm: Handle) {
        pmpi!("PMPI_Comm_free", &raw mut comm => *mut Handle);
    }

    /// The group of a communicator.
    pub(crate) fn group(&self, comm: Handle) -> Option<Handle> {
        let mut group: Handle = 0;
        succeeded(pmpi!("PMPI_Comm_group", comm => Handle, &raw mut group => *mut Handle))?;
        Some(self.mpi.handle(group))
    }

    pub(crate) fn free_group(&self, mut group: Handle) {
        pmpi!("PMPI_Group_free", &raw mut group => *mut Handle);
    }

    /// The ranks in `other` of the first `count` members of a group, or `None` if one of them is not in there.
    pub(crate) fn translate(&self, group: Handle, count: usize, other: Handle) -> Option<Vec<usize>> {
        let count = c_int::try_from(count).ok()?;
        let from: Vec<c_int> = (0..count).collect();
        let mut into = vec![UNDEFINED; from.len()];
        succeeded(pmpi!(
            "PMPI_Group_translate_ranks",
            group => Handle,
            count => c_int,
            from.as_ptr() => *const c_int,
            other => Handle,
            into.as_mut_ptr() => *mut c_int,
        ))?;
        into.into_iter().map(|rank| usize::try_from(rank).ok()).collect()
    }

    /// The smallest of all members' numbers, place by place.
    pub(crate) fn smallest<const N: usize>(&self, comm: Handle, numbers: [i64; N]) -> Option<[i64; N]> {
        let mut all = [0; N];
        let count = c_int::try_from(N).ok()?;
        succeeded(pmpi!(
            "PMPI_Allreduce",
            numbers.as_ptr() => *const i64,
            all.as_mut_ptr() => *mut i64,
            count => c_int,
            self.constants.long => Handle,
            self.constants.min => Handle,
            comm => Handle,
        ))?;
        Some(all)
    }

    /// Whether all members say yes.
    pub(crate) fn all_agree(&self, comm: Handle, yes: bool) -> bool {
        self.smallest(comm, [i64::from(yes)]) == Some([1])
    }

    /// The bytes of all members, in rank order.
    pub(crate) fn gather_bytes(&self, comm: Handle, own: &[u8], members: usize) -> Option<Vec<u8>> {
        let count = c_int::try_from(own.len()).ok()?;
        let mut all = vec![0; own.len() * members];
        succeeded(pmpi!(
            "PMPI_Allgather",
            own.as_ptr() => *const u8,
            count => c_int,
            self.constants.byte => Handle,
            all.as_mut_ptr() => *mut u8,
            count => c_int,
            self.constants.byte => Handle,
            comm => Handle,
        ))?;
        Some(all)
    }

    pub(crate) fn barrier(&self, comm: Handle) {
        pmpi!("PMPI_Barrier", comm => Handle);
    }

    /// Sends a number, or none, to a rank of the world that receives it.
    pub(crate) fn send_number(&self, number: Option<usize>, rank: usize) {
        let number = number.and_then(|number| i64::try_from(number).ok()).unwrap_or(-1);
        pmpi!(
            "PMPI_Send",
            &raw const number => *const i64,
            1 => c_int,
            self.constants.long => Handle,
            c_int::try_from(rank).unwrap_or(0) => c_int,
            TAG => c_int,
            self.constants.world => Handle,
        );
    }

    /// Receives what [`Pmpi::send_number`] sends.
    pub(crate) fn receive_number(&self, rank: usize) -> Option<usize> {
        let mut number: i64 = -1;
        pmpi!(
            "PMPI_Recv",
            &raw mut number => *mut i64,
            1 => c_int,
            self.constants.long => Handle,
            c_int::try_from(rank).unwrap_or(0) => c_int,
            TAG => c_int,
            self.constants.world => Handle,
            self.mpi.status_ignore() => usize,
        );
        usize::try_from(number).ok()
    }

    /// Bytes of one element's data.
    pub(crate) fn type_size(&self, datatype: Handle) -> Option<usize> {
        let mut size: c_int = 0;
        Self::number(pmpi!("PMPI_Type_size", datatype => Handle, &raw mut size => *mut c_int), size)
    }

    /// Bytes from one element to the next.
    pub(crate) fn type_extent(&self, datatype: Handle) -> Option<isize> {
        let (mut lower, mut extent): (isize, isize) = (0, 0);
        succeeded(pmpi!(
            "PMPI_Type_get_extent",
            datatype => Handle,
            &raw mut lower => *mut isize,
            &raw mut extent => *mut isize,
        ))?;
        Some(extent)
    }

    /// Whether data of a type can be moved: it exists, and is committed. Packs no element, which only checks it.
    pub(crate) fn is_committed(&self, datatype: Handle, comm: Handle) -> bool {
        let (mut from, mut into) = ([0; 8], [0; 8]);
        let mut place: c_int = 0;
        let code = pmpi!(
            "PMPI_Pack",
            from.as_mut_ptr() => *mut u8,
            0 => c_int,
            datatype => Handle,
            into.as_mut_ptr() => *mut u8,
            8 => c_int,
            &raw mut place => *mut c_int,
            comm => Handle,
        );
        code == SUCCESS
    }

    /// A handle of the type that stays valid when the program frees its own.
    pub(crate) fn duplicate_type(&self, datatype: Handle) -> Option<Handle> {
        let mut new: Handle = 0;
        succeeded(pmpi!("PMPI_Type_dup", datatype => Handle, &raw mut new => *mut Handle))?;
        Some(self.mpi.handle(new))
    }

    pub(crate) fn free_type(&self, mut datatype: Handle) {
        pmpi!("PMPI_Type_free", &raw mut datatype => *mut Handle);
    }

    /// Copies elements into contiguous memory, which they fill exactly.
    pub(crate) fn pack(
        &self,
        from: *const c_void,
        count: usize,
        datatype: Handle,
        into: &mut [u8],
        comm: Handle,
    ) -> bool {
        let (Ok(count), Ok(len)) = (c_int::try_from(count), c_int::try_from(into.len())) else { return false };
        let mut place: c_int = 0;
        let code = pmpi!(
            "PMPI_Pack",
            from => *const c_void,
            count => c_int,
            datatype => Handle,
            into.as_mut_ptr() => *mut u8,
            len => c_int,
            &raw mut place => *mut c_int,
            comm => Handle,
        );
        code == SUCCESS && place == len
    }

    /// Copies contiguous data into elements.
    pub(crate) fn unpack(&self, from: &[u8], into: *mut c_void, count: usize, datatype: Handle, comm: Handle) -> bool {
        let (Ok(count), Ok(len)) = (c_int::try_from(count), c_int::try_from(from.len())) else { return false };
        let mut place: c_int = 0;
        let code = pmpi!(
            "PMPI_Unpack",
            from.as_ptr() => *const u8,
            len => c_int,
            &raw mut place => *mut c_int,
            into => *mut c_void,
            count => c_int,
            datatype => Handle,
            comm => Handle,
        );
        code == SUCCESS
    }

    /// Bytes from the lowest byte of `count` elements to the highest, and the place of the lowest one. `None` also for
    /// elements that follow one another downwards.
    pub(crate) fn true_span(&self, datatype: Handle, count: usize) -> Option<(isize, usize)> {
        let (mut lower, mut length): (isize, isize) = (0, 0);
        succeeded(pmpi!(
            "PMPI_Type_get_true_extent",
            datatype => Handle,
            &raw mut lower => *mut isize,
            &raw mut length => *mut isize,
        ))?;
        let stride = usize::try_from(self.type_extent(datatype)?).ok()?;
        let length = stride.checked_mul(count.checked_sub(1)?)?.checked_add(usize::try_from(length).ok()?)?;
        Some((lower, length))
    }

    /// Combines `count` elements: `into` becomes the result, and `from` is the first operand.
    pub(crate) fn reduce_local(
        &self,
        from: *const c_void,
        into: *mut c_void,
        count: usize,
        datatype: Handle,
        op: Handle,
    ) -> bool {
        let Ok(count) = c_int::try_from(count) else { return false };
        let code = pmpi!(
            "PMPI_Reduce_local",
            from => *const c_void,
            into => *mut c_void,
            count => c_int,
            datatype => Handle,
            op => Handle,
        );
        code == SUCCESS
    }

    /// A persistent receive of no data from the rank itself in `alone`, a communicator of this rank alone.
    pub(crate) fn persistent_receive(&self, alone: Handle, tag: c_int) -> Option<Handle> {
        let mut request: Handle = 0;
        succeeded(pmpi!(
            "PMPI_Recv_init",
            null_mut::<c_void>() => *mut c_void,
            0 => c_int,
            self.constants.byte => Handle,
            0 => c_int,
            tag => c_int,
            alone => Handle,
            &raw mut request => *mut Handle,
        ))?;
        Some(self.mpi.handle(request))
    }

    /// Completes the receive that [`Pmpi::persistent_receive`] made and that has started.
    pub(crate) fn complete_receive(&self, alone: Handle, tag: c_int) {
        pmpi!(
            "PMPI_Send",
            null_mut::<c_void>() => *mut c_void,
            0 => c_int,
            self.constants.byte => Handle,
            0 => c_int,
            tag => c_int,
            alone => Handle,
        );
    }

    /// Whether packed data are the elements' bytes alone.
    pub(crate) fn packs_plainly(&self, comm: Handle) -> bool {
        let (from, mut into) = (0x0123_4567_89ab_cdef_i64, [0; 8]);
        self.pack((&raw const from).cast(), 1, self.constants.long, &mut into, comm) && into == from.to_ne_bytes()
    }

    /// Says in a status that nothing was received and nothing cancelled.
    pub(crate) fn clear_status(&self, status: *mut c_void) {
        pmpi!(
            "PMPI_Status_set_elements",
            status => *mut c_void,
            self.constants.byte => Handle,
            0 => c_int,
        );
        pmpi!("PMPI_Status_set_cancelled", status => *mut c_void, 0 => c_int);
    }

    /// Calls the error handler of a communicator.
    pub(crate) fn call_error_handler(&self, comm: Handle, code: c_int) {
        pmpi!("PMPI_Comm_call_errhandler", comm => Handle, code => c_int);
    }

    /// A new error code of a class.
    pub(crate) fn add_error_code(&self, class: c_int) -> Option<c_int> {
        let mut code: c_int = 0;
        succeeded(pmpi!("PMPI_Add_error_code", class => c_int, &raw mut code => *mut c_int))?;
        Some(code)
    }

    /// Sets the text of an error code.
    pub(crate) fn set_error_string(&self, code: c_int, text: &CStr) -> bool {
        pmpi!("PMPI_Add_error_string", code => c_int, text.as_ptr() => *const c_char) == SUCCESS
    }

    /// The name of a communicator; empty if it has none.
    pub(crate) fn name(&self, comm: Handle) -> String {
        let mut name = [0_u8; MAX_OBJECT_NAME];
        let mut len: c_int = 0;
        let code = pmpi!(
            "PMPI_Comm_get_name",
            comm => Handle,
            name.as_mut_ptr() => *mut u8,
            &raw mut len => *mut c_int,
        );
        let len = usize::try_from(len).unwrap_or(0).min(name.len());
        if code == SUCCESS { String::from_utf8_lossy(&name[..len]).into_owned() } else { String::new() }
    }

    /// Whether the MPI library refuses calls whose two buffers are the same, as MPICH does unless it is told otherwise.
    pub(crate) fn refuses_aliases(&self) -> bool {
        let Some(alone) = self.duplicate(self.constants.itself) else { return false };
        let mut number: c_long = 0;
        let at = &raw mut number;
        let code = pmpi!(
            "PMPI_Allreduce",
            at => *mut c_long,
            at => *mut c_long,
            1 => c_int,
            self.constants.long => Handle,
            self.constants.min => Handle,
            alone => Handle,
        );
        self.free_communicator(alone);
        code != SUCCESS
    }

    /// Creates a keyval whose attributes call `delete` when their communicator is freed.
    pub(crate) fn keyval(&self, delete: DeleteFunction) -> Option<c_int> {
        let mut keyval: c_int = 0;
        // MPI_COMM_NULL_COPY_FN: null in MPICH, a function in Open MPI. Ours does the same in both.
        succeeded(pmpi!(
            "PMPI_Comm_create_keyval",
            copy_nothing as CopyFunction => CopyFunction,
            delete => DeleteFunction,
            &raw mut keyval => *mut c_int,
            null_mut::<c_void>() => *mut c_void,
        ))?;
        Some(keyval)
    }

    pub(crate) fn free_keyval(&self, mut keyval: c_int) {
        pmpi!("PMPI_Comm_free_keyval", &raw mut keyval => *mut c_int);
    }

    /// Sets the attribute of a communicator.
    pub(crate) fn set_attribute(&self, comm: Handle, keyval: c_int) -> bool {
        let none = null_mut::<c_void>();
        pmpi!("PMPI_Comm_set_attr", comm => Handle, keyval => c_int, none => *mut c_void) == SUCCESS
    }
}

/// `MPI_Comm_delete_attr_function`.
pub(crate) type DeleteFunction = unsafe extern "C" fn(Handle, c_int, *mut c_void, *mut c_void) -> c_int;
type CopyFunction = unsafe extern "C" fn(Handle, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_int) -> c_int;

/// Says that a duplicate of the communicator has no such attribute.
unsafe extern "C" fn copy_nothing(
    _comm: Handle,
    _keyval: c_int,
    _extra: *mut c_void,
    _from: *mut c_void,
    _into: *mut c_void,
    flag: *mut c_int,
) -> c_int {
    // SAFETY: the MPI library passes a place for the answer.
    unsafe { *flag = 0 };
    SUCCESS
}
