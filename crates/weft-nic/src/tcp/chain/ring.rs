//! The io_uring(7) by which the system performs chains: linked requests, of which each starts when the previous one
//! has ended.
//!
//! Place in the data flow: [`super`] opens one [`Ring`] for a device, submits the steps of a chain, and reaps their
//! end.
//!
//! All requests of a chain but the last report only failure, and a failure ends the chain. Each chain therefore makes
//! exactly one completion. The queues have room for one completion of each chain.
//!
//! The requests run in the context of the thread that submitted them, also while it computes. The ring has the default
//! mode for this: others leave the work until the thread calls the kernel.
//!
//! Invariant: the frames of a chain outlive its requests ([`Frames::leak`]).
//!
//! Errors: those of the system calls, which a sandbox may refuse one by one.

use std::cell::UnsafeCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode};
use rustix::io::Errno;
use weft_engine::nic::CHAIN_STEPS;
use weft_os::ForkClosedFd;

/// The bytes of a frame: a mark, then the tag.
pub(super) const FRAME_BYTES: usize = 16;
/// The first bytes of each frame.
const MARK: [u8; 8] = *b"weft-chn";

/// Submissions that the ring holds: one chain at a time.
#[allow(clippy::cast_possible_truncation)] // A small constant.
const ENTRIES: u32 = CHAIN_STEPS as u32;

/// One frame on the wire.
pub(super) type Frame = [u8; FRAME_BYTES];

/// The frame with a tag.
pub(super) fn frame(tag: u64) -> Frame {
    let mut frame = [0; FRAME_BYTES];
    frame[..8].copy_from_slice(&MARK);
    frame[8..].copy_from_slice(&tag.to_le_bytes());
    frame
}

/// The frames of a chain by step, which the system reads and writes while the chain runs.
#[derive(Debug)]
pub(super) struct Frames(Box<[UnsafeCell<Frame>]>);

impl Frames {
    pub(super) fn new() -> Self {
        Self((0..CHAIN_STEPS).map(|_| UnsafeCell::new([0; FRAME_BYTES])).collect())
    }

    /// Sets a frame. No chain runs.
    pub(super) fn set(&mut self, step: usize, frame: Frame) {
        if let Some(slot) = self.0.get_mut(step) {
            *slot.get_mut() = frame;
        }
    }

    /// The present bytes of a frame.
    pub(super) fn get(&self, step: usize) -> Frame {
        let Some(slot) = self.0.get(step) else { return [0; FRAME_BYTES] };
        // SAFETY: the bytes are initialised and live as long as `self`. The system may be writing them: a volatile
        // read takes whatever is there, and any bytes are a frame.
        unsafe { slot.get().read_volatile() }
    }

    /// Leaves the memory to requests that may not have ended.
    pub(super) fn leak(&mut self) {
        Box::leak(std::mem::replace(self, Self::new()).0);
    }

    fn pointer(&self, step: usize) -> Option<*mut u8> {
        self.0.get(step).map(|slot| slot.get().cast())
    }
}

/// One step: the frame at its index is sent or received.
pub(super) struct Request<'a> {
    pub(super) socket: BorrowedFd<'a>,
    pub(super) sends: bool,
}

/// The ring of a device.
pub(super) struct Ring {
    ring: IoUring,
    /// The ring's own descriptor, in the list of those that forked children lose.
    listed: Option<ForkClosedFd>,
    /// Some request could not be submitted. The queue of submissions is never used again.
    failed: bool,
}

impl Ring {
    /// Opens a ring, and tries all that chains need.
    pub(super) fn open() -> io::Result<Self> {
        let mut made = None;
        let listed = ForkClosedFd::new(|| {
            let ring = IoUring::new(ENTRIES).map_err(|why| Errno::from_io_error(&why).unwrap_or(Errno::IO))?;
            // SAFETY: `Ring::drop` takes the number back from this owner, so that only `ring` closes it.
            let fd = unsafe { OwnedFd::from_raw_fd(ring.as_raw_fd()) };
            made = Some(ring);
            Ok(fd)
        })?;
        let ring = made.ok_or(Errno::IO)?;
        let mut this = Self { ring, listed: Some(listed), failed: false };
        this.check()?;
        Ok(this)
    }

    /// Checks the features, and that a request can be submitted and ends.
    fn check(&mut self) -> io::Result<()> {
        let mut probe = Probe::new();
        self.ring.submitter().register_probe(&mut probe)?;
        let known = [opcode::Send::CODE, opcode::Recv::CODE].iter().all(|&code| probe.is_supported(code));
        let params = self.ring.params();
        if !(known && params.is_feature_skip_cqe_on_success() && params.is_feature_ext_arg()) {
            return Err(Errno::NOSYS.into());
        }
        self.push(&opcode::Nop::new().build())?;
        self.ring.submit_and_wait(1)?;
        let mut ended = false;
        self.reap(|_, outcome| ended |= outcome >= 0);
        if ended { Ok(()) } else { Err(Errno::NOSYS.into()) }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns the descriptor for as long as `self` lives.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    /// Starts the steps of a chain, whose end [`Self::reap`] reports with this number. After an error some of them may
    /// run, no report follows, and the ring cannot start anything more.
    pub(super) fn start(&mut self, number: u32, requests: &[Request<'_>], frames: &Frames) -> io::Result<()> {
        if self.failed {
            return Err(Errno::IO.into());
        }
        self.failed = true;
        for (step, request) in requests.iter().enumerate() {
            let at = frames.pointer(step).ok_or(Errno::INVAL)?;
            let links = if step + 1 < requests.len() { Flags::IO_LINK | Flags::SKIP_SUCCESS } else { Flags::empty() };
            let entry = build(request.socket.as_raw_fd(), request.sends, at);
            self.push(&entry.flags(links).user_data(number.into()))?;
        }
        // The kernel takes fewer only if it has no memory. Those that it has taken would then run without the others.
        let taken = self.ring.submit()?;
        self.failed = taken < requests.len();
        if self.failed { Err(Errno::NOMEM.into()) } else { Ok(()) }
    }

    fn push(&mut self, entry: &Entry) -> io::Result<()> {
        // SAFETY: the entry refers to a frame that outlives the request, by the invariant of this module, or to no
        // memory. The socket may be closed meanwhile: the request has a reference of its own.
        unsafe { self.ring.submission().push(entry) }.map_err(|_| Errno::AGAIN.into())
    }

    /// Reports the number and the outcome of each chain that has ended.
    pub(super) fn reap(&mut self, mut each: impl FnMut(u64, i32)) {
        self.ring.completion().for_each(|entry| each(entry.user_data(), entry.result()));
    }

    /// Sleeps until a chain has ended, for 10 ms at most.
    pub(super) fn wait(&self) {
        let limit = Timespec::new().nsec(10_000_000);
        // A time-out is an error, too. The caller looks again, and gives up after several calls.
        let _ = self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit));
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The ring closes its descriptor.
        if let Some(listed) = self.listed.take() {
            let _: RawFd = listed.into_shared().into_raw_fd();
        }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("failed", &self.failed).finish_non_exhaustive()
    }
}

/// The request of one step. A transfer of fewer bytes fails, and ends the chain.
#[allow(clippy::cast_possible_truncation)] // A small constant.
fn build(socket: RawFd, sends: bool, at: *mut u8) -> Entry {
    let (fd, len) = (Fd(socket), FRAME_BYTES as u32);
    if sends {
        opcode::Send::new(fd, at, len).flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL).build()
    } else {
        opcode::Recv::new(fd, at, len).flags(libc::MSG_WAITALL).build()
    }
}
