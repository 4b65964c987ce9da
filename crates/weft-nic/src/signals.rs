//! Signals are the client's: its handlers do not run on threads of ours.
//!
//! Place in the data flow: the first thing that such a thread does.

/// None runs on this thread from now on.
pub fn block() {
    let mut all = std::mem::MaybeUninit::uninit();
    // SAFETY: initialises the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: an initialised set; the old mask is not wanted.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) };
}
