//! The user of the process at the other end of a Unix socket.
//!
//! Place in the data flow: weft-nic asks before it links two endpoints by shared memory, and the rendezvous before it
//! passes a memory file.
//!
//! Source: unix(7) SO_PEERCRED, user_namespaces(7).

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{Mode, OFlags};

/// The process id of the peer, which belongs to the own user. 0: it is not visible from this pid namespace. `None`: the
/// peer may belong to another user.
#[must_use]
pub fn own_peer(socket: BorrowedFd<'_>) -> Option<i32> {
    // rustix's type cannot represent process id 0.
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    const CRED_BYTES: libc::socklen_t = 12;
    const { assert!(size_of::<libc::ucred>() == CRED_BYTES as usize) };
    let mut len = CRED_BYTES;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    let to = (&raw mut cred).cast();
    // SAFETY: `to` and `len` describe a live `ucred`, of which the kernel writes at most `len` bytes.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, to, &raw mut len) };
    let own = rustix::process::geteuid().as_raw();
    (result == 0 && cred.uid == own && distinguishes_users(own)).then_some(cred.pid)
}

/// Whether the number denotes only one user. The kernel shows all users that the user namespace does not map
/// by one number (user_namespaces(7), "Unmapped user and group IDs"), which may be the own number.
#[must_use]
pub fn distinguishes_users(uid: u32) -> bool {
    const OVERFLOW_UID: u32 = 65534;
    let overflow = overflow_uid().unwrap_or(OVERFLOW_UID);
    uid != overflow || maps_all_users(&std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default())
}

/// The number of unmapped users. `std::fs::read_to_string` is avoided because it takes 1 KB of the client's
/// stack.
fn overflow_uid() -> Option<u32> {
    let file =
        rustix::fs::open(c"/proc/sys/kernel/overflowuid", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 16];
    let len = rustix::io::read(&file, &mut text).ok()?;
    std::str::from_utf8(&text[..len]).ok()?.trim().parse().ok()
}

/// Whether a map of users, as in /proc, contains all users.
fn maps_all_users(map: &str) -> bool {
    let count = |line: &str| line.split_whitespace().nth(2).and_then(|count| count.parse::<u64>().ok());
    // 2^32 - 1 is not a valid user.
    map.lines().filter_map(count).sum::<u64>() == u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only if a map contains all users does the overflow number denote a single user.
    #[test]
    fn maps_of_users_are_read_right() {
        assert!(maps_all_users("         0          0 4294967295\n"));
        assert!(maps_all_users("0 0 1000\n1000 1000 4294966295\n"));
        for map in ["", "0 1000 1\n", "0 1000 1\n1 100000 65536\n", "nonsense", "1 2 x\n"] {
            assert!(!maps_all_users(map), "{map}");
        }
    }
}
