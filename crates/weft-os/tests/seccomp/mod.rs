//! System calls that a thread may not make, as in a container that forbids them, or at a limit.
//!
//! A filter holds for the thread that installs it, and for threads and processes that this one starts later:
//! so a test does it on a thread of its own. Source: seccomp(2).

/// Calls, each with the answer that it gets from now on.
pub(crate) fn refuse(calls: &[(libc::c_long, i32)]) {
    let refused = calls.iter().flat_map(|&(call, errno)| {
        let equals = jump(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 0, 1);
        [equals, statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32)]
    });
    install(std::iter::once(load(NUMBER)).chain(refused).collect());
}

/// No thread can be started any more; processes can.
pub(crate) fn refuse_threads() {
    // The flags of clone3(2) are out of a filter's reach. Without that call the C library makes the other.
    refuse(&[(libc::SYS_clone3, libc::ENOSYS)]);
    let (clone, thread) = (libc::SYS_clone as u32, libc::CLONE_THREAD as u32);
    install(vec![
        load(NUMBER),
        jump(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, clone, 0, 3),
        load(FIRST_ARGUMENT),
        jump(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, thread, 0, 1),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EAGAIN as u32),
    ]);
}

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const FIRST_ARGUMENT: u32 = 16;

fn load(offset: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    jump(code, k, 0, 0)
}

fn jump(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Installs a filter, which lets through what it says nothing of.
fn install(mut filter: Vec<libc::sock_filter>) {
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: forbids this thread to gain privileges; no memory is concerned.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: a program of that many instructions, which the kernel copies.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) }, 0);
}
