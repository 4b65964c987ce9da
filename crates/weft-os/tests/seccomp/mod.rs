//! Filters that refuse system calls, as in a container that forbids them, or at a limit.
//!
//! A filter applies to the thread that installs it, and to threads and processes that this thread starts
//! later. A test therefore installs it on a thread of its own. Source: seccomp(2).

/// Refuses each of the calls with the given error number.
pub(crate) fn refuse(calls: &[(libc::c_long, i32)]) {
    let refused = calls.iter().flat_map(|&(call, errno)| {
        let equals = jump(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 0, 1);
        [equals, statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32)]
    });
    install(std::iter::once(load(NUMBER)).chain(refused).collect());
}

/// Refuses new threads and allows new processes.
pub(crate) fn refuse_threads() {
    // A filter cannot see the flags of clone3(2). Without that call the C library uses clone(2).
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

/// Installs a filter that allows all calls not mentioned in it.
fn install(mut filter: Vec<libc::sock_filter>) {
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: forbids this thread to gain privileges, and accesses no memory.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: a valid program of `len` instructions, which the kernel copies.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) }, 0);
}
