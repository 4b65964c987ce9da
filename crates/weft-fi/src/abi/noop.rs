//! Operation tables in which every slot returns -FI_ENOSYS: the base of each object's tables.
//!
//! Place in the data flow: older libfabric headers call most slots without a check for null (fi_send, fi_bind,
//! fi_control, cq->signal, …). Therefore no table of weft has an empty slot. The table of an object is written as
//! `fi_ops_cm { getname: Some(getname), ..noop::CM }`.

use std::ffi::{c_char, c_int};

use weft_fi_sys::v2::fi_ops_av_1_20;
use weft_fi_sys::{
    FI_ENOSYS, fi_ops, fi_ops_atomic, fi_ops_av, fi_ops_cm, fi_ops_collective, fi_ops_ep, fi_ops_eq, fi_ops_fabric,
    fi_ops_msg, fi_ops_rma, fi_ops_tagged,
};

/// The value for "not supported" in each return type of the slots.
trait Unsupported {
    const ANSWER: Self;
}

impl Unsupported for c_int {
    const ANSWER: Self = -FI_ENOSYS;
}

impl Unsupported for isize {
    const ANSWER: Self = -(FI_ENOSYS as isize);
}

/// The value of a counter, which cannot express an error.
impl Unsupported for u64 {
    const ANSWER: Self = 0;
}

impl Unsupported for *const c_char {
    const ANSWER: Self = c"".as_ptr();
}

impl Unsupported for *mut c_char {
    const ANSWER: Self = std::ptr::null_mut();
}

/// A function of any signature that ignores its arguments and returns "not supported".
trait Slot {
    const NOSYS: Self;
}

/// Implements [`Slot`] for functions with as many arguments as there are names.
macro_rules! slot {
    ($($arg:ident)*) => {
        impl<R: Unsupported, $($arg),*> Slot for Option<unsafe extern "C" fn($($arg),*) -> R> {
            const NOSYS: Self = {
                unsafe extern "C" fn nosys<R: Unsupported, $($arg),*>($(_: $arg),*) -> R {
                    R::ANSWER
                }
                Some(nosys::<R, $($arg),*>)
            };
        }
    };
}

slot!(A);
slot!(A B);
slot!(A B C);
slot!(A B C D);
slot!(A B C D E);
slot!(A B C D E F);
slot!(A B C D E F G);
slot!(A B C D E F G H);
slot!(A B C D E F G H I);
slot!(A B C D E F G H I J);
slot!(A B C D E F G H I J K);
slot!(A B C D E F G H I J K L);
slot!(A B C D E F G H I J K L M);
slot!(A B C D E F G H I J K L M N);
slot!(A B C D E F G H I J K L M N O);
slot!(A B C D E F G H I J K L M N O P);

/// Declares a table. A missing slot is a compile error.
macro_rules! table {
    ($(#[$doc:meta])* $name:ident: $table:ident { $($slot:ident)* }) => {
        $(#[$doc])*
        pub(crate) const $name: $table = $table { size: size_of::<$table>(), $($slot: Slot::NOSYS),* };
    };
}

table! {
    /// The operations of any object: close, bind, control, …
    FID: fi_ops { close bind control ops_open tostr ops_set }
}
table! {
    /// The operations of a fabric.
    FABRIC: fi_ops_fabric { domain passive_ep eq_open wait_open trywait domain2 }
}
table! {
    /// The operations of an address vector, up to API 1.19.
    AV: fi_ops_av { insert insertsvc insertsym remove lookup straddr av_set }
}
table! {
    /// The operations of an event queue.
    EQ: fi_ops_eq { read readerr write sread strerror }
}
table! {
    /// The operations of an endpoint.
    EP: fi_ops_ep { cancel getopt setopt tx_ctx rx_ctx rx_size_left tx_size_left }
}
table! {
    /// The operations of connection management.
    CM: fi_ops_cm { setname getname getpeer connect listen accept reject shutdown join }
}
table! {
    /// The operations on messages.
    MSG: fi_ops_msg { recv recvv recvmsg send sendv sendmsg inject senddata injectdata }
}
table! {
    /// The operations on tagged messages.
    TAGGED: fi_ops_tagged { recv recvv recvmsg send sendv sendmsg inject senddata injectdata }
}
table! {
    /// The operations on remote memory.
    RMA: fi_ops_rma { read readv readmsg write writev writemsg inject writedata injectdata }
}
table! {
    /// The atomic operations.
    ATOMIC: fi_ops_atomic {
        write writev writemsg inject readwrite readwritev readwritemsg compwrite compwritev compwritemsg
        writevalid readwritevalid compwritevalid
    }
}
table! {
    /// The collective operations.
    COLLECTIVE: fi_ops_collective {
        barrier broadcast alltoall allreduce allgather reduce_scatter reduce scatter gather msg barrier2
    }
}

/// The operations of an address vector from API 1.20 on. Callers check `base.size` before they use the slots
/// after `base`.
pub(crate) const AV_1_20: fi_ops_av_1_20 = fi_ops_av_1_20 {
    base: fi_ops_av { size: size_of::<fi_ops_av_1_20>(), ..AV },
    insert_auth_key: Slot::NOSYS,
    lookup_auth_key: Slot::NOSYS,
    set_user_id: Slot::NOSYS,
};
