//! The facilities of this system that the shared-memory device needs, each determined by using it; for `weft
//! doctor`.
//!
//! Place in the data flow: none. A diagnosing command calls [`probe`] and prints the findings. Each finding
//! describes the consequence of a failure. No failure is fatal. Without memfds or abstract sockets, TCP
//! serves the host. Without cross-memory attach, long messages are copied twice. Without membarrier, every
//! message needs a fence.
//!
//! Sources: ptrace(2) on access modes, Documentation/admin-guide/LSM/Yama.rst.

use std::io;
use std::os::fd::AsFd;

use super::doorbell::Barriers;
use super::segment::Mapping;
use super::{cma, handshake};
use crate::NicError;

/// The result for one facility.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The name of the facility.
    pub what: &'static str,
    /// Whether the facility works.
    pub ok: bool,
    /// Details of the success, or the reason and the consequence of the failure.
    pub detail: String,
}

impl Finding {
    fn new(what: &'static str, result: Result<String, String>) -> Self {
        let ok = result.is_ok();
        Self { what, ok, detail: result.unwrap_or_else(|why| why) }
    }
}

/// Tries all facilities that the device may use. The function forks a child for a moment, so the process must
/// have only one thread.
#[must_use]
pub fn probe() -> Vec<Finding> {
    vec![
        Finding::new("sealed memfd", try_memfd()),
        Finding::new("abstract Unix socket", try_socket()),
        Finding::new("user id", try_user()),
        Finding::new("membarrier", try_barriers()),
        Finding::new("pidfd", try_pidfd()),
        Finding::new("cross-memory attach to this process", try_self()),
        Finding::new("cross-memory attach to a child", try_child()),
        Finding::new("cross-memory attach between siblings", yama()),
    ]
}

fn try_memfd() -> Result<String, String> {
    let made = Mapping::create(c"weft-probe", 8192).and_then(|(fd, map)| {
        map.populate(0, 8192).map_err(NicError::system("the pages of a memfd"))?;
        Mapping::adopt(fd.as_fd(), 8192).map(|_| ()).map_err(NicError::system("mmap of a memfd"))
    });
    match made {
        Ok(()) => Ok("memfds can be made, sealed and mapped".into()),
        Err(error) => Err(format!("{error}; peers on this host are reached by TCP")),
    }
}

fn try_socket() -> Result<String, String> {
    let name = format!("weft-probe-{}", std::process::id());
    match handshake::listen(name.as_bytes()) {
        Ok(_) => Ok("abstract names can be bound; peers must be in the same network namespace".into()),
        Err(error) => Err(format!("{error}; peers on this host are reached by TCP")),
    }
}

fn try_user() -> Result<String, String> {
    let uid = rustix::process::geteuid().as_raw();
    if weft_os::users::distinguishes_users(uid) {
        Ok(format!("user {uid} can be distinguished from other users"))
    } else {
        Err(format!(
            "this user namespace shows all users without a number as {uid}, too; peers on this host are reached by TCP"
        ))
    }
}

fn try_barriers() -> Result<String, String> {
    let barriers = Barriers::probe();
    if barriers.registered && barriers.callable {
        Ok("registered for global expedited barriers, and may call them".into())
    } else {
        Err(format!(
            "registered: {}, callable: {} (an old kernel or a seccomp filter); every message costs a fence of about 20 ns",
            barriers.registered, barriers.callable
        ))
    }
}

fn try_pidfd() -> Result<String, String> {
    match rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty()) {
        Ok(_) => Ok("processes can be watched".into()),
        Err(error) => Err(format!(
            "{error}; the death of a peer is noticed only after the end of all children that it made without fork(3)"
        )),
    }
}

fn try_self() -> Result<String, String> {
    let value = [0x5a; 16];
    let addr = value.as_ptr() as usize as u64;
    match cma::read_16(rustix::process::getpid().as_raw_pid(), addr) {
        Ok(found) if found == value => Ok("process_vm_readv works".into()),
        Ok(_) => Err("process_vm_readv returned other bytes".into()),
        Err(error) => Err(explain(&error)),
    }
}

fn try_child() -> Result<String, String> {
    let value = [0xa5; 16];
    let addr = value.as_ptr() as usize as u64;
    // SAFETY: the child calls only async-signal-safe functions before it is killed.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(format!("fork: {}", io::Error::last_os_error())),
        0 => loop {
            // SAFETY: the call only waits for a signal.
            unsafe { libc::pause() };
        },
        _ => {
            let result = cma::read_16(pid, addr);
            if let Some(child) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
                let _ = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
            }
            match result {
                Ok(found) if found == value => Ok("process_vm_readv works".into()),
                Ok(_) => Err("process_vm_readv returned other bytes".into()),
                Err(error) => Err(explain(&error)),
            }
        }
    }
}

/// The cause of the kernel's refusal.
fn explain(error: &io::Error) -> String {
    let why = match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel lacks CONFIG_CROSS_MEMORY_ATTACH, or a seccomp filter hides the call",
        Some(libc::EPERM) => "a seccomp filter, Yama, or a changed dumpable attribute forbids it",
        _ => "unexpected",
    };
    format!("{error}: {why}; large messages are copied twice")
}

/// Whether processes may attach that are not each other's ancestors.
fn yama() -> Result<String, String> {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").map(|text| text.trim().to_owned());
    match scope.as_deref() {
        Err(_) => Ok("Yama is not active: processes of one user may attach".into()),
        Ok("0") => Ok("Yama ptrace_scope is 0: processes of one user may attach".into()),
        Ok("1") => Err("Yama ptrace_scope is 1: only ancestors may attach; `sysctl kernel.yama.ptrace_scope=0` would \
                        allow it between ranks"
            .into()),
        Ok(scope) => Err(format!("Yama ptrace_scope is {scope}: attaching needs CAP_SYS_PTRACE, or is off altogether")),
    }
}
