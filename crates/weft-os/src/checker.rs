//! Detection of tools that follow a process's memory accesses and miss those of other processes.
//!
//! Place in the data flow: weft-nic's `Config` and `Devices` ask for the tool when an endpoint's devices are
//! created. memcheck and the memory sanitizer do not see a peer that writes into our memory by
//! process_vm_writev(2), and report the bytes as uninitialised. A replay by rr lacks these bytes. Under such
//! a tool no peer may reach our memory: long messages go through the rings, from which this process copies
//! them. rr also does not record writes into shared memory by processes that it does not trace, so TCP serves
//! the host under rr.
//!
//! The address sanitizer needs no such measure: it does not check whether memory is initialised.
//!
//! Sources: valgrind(1) and its LD_PRELOAD; rr's `RUNNING_UNDER_RR`; sanitizer/msan_interface.h.

use std::ffi::OsStr;

/// The tool under which this process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checker {
    /// Valgrind's memcheck. Valgrind's other tools do not check whether memory is initialised.
    Memcheck,
    /// The memory sanitizer of clang and rustc.
    MemorySanitizer,
    /// Mozilla's record and replay.
    Rr,
}

impl Checker {
    /// The tool of this process, if any.
    #[must_use]
    pub fn found() -> Option<Self> {
        // SAFETY: the name is a C string; the symbol is looked up and not called.
        let sanitizer = !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__msan_init".as_ptr()) }.is_null();
        Self::of(std::env::var_os("LD_PRELOAD").as_deref(), sanitizer, std::env::var_os("RUNNING_UNDER_RR").as_deref())
    }

    fn of(preloaded: Option<&OsStr>, sanitizer: bool, rr: Option<&OsStr>) -> Option<Self> {
        let preloads = |library| preloaded.is_some_and(|list| list.to_string_lossy().contains(library));
        if rr.is_some_and(|value| !value.is_empty() && value != "0") {
            Some(Self::Rr)
        } else if sanitizer {
            Some(Self::MemorySanitizer)
        } else {
            preloads("vgpreload_memcheck").then_some(Self::Memcheck)
        }
    }

    /// Whether the tool sees the writes of peers into shared memory.
    #[must_use]
    pub fn sees_shared_memory(self) -> bool {
        self != Self::Rr
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_detected() {
        let of =
            |preloaded: &str, sanitizer, rr: &str| Checker::of(Some(preloaded.as_ref()), sanitizer, Some(rr.as_ref()));
        let memcheck = "/usr/libexec/valgrind/vgpreload_core-amd64-linux.so:/usr/libexec/valgrind/vgpreload_memcheck-amd64-linux.so";
        assert_eq!(of(memcheck, false, ""), Some(Checker::Memcheck));
        assert_eq!(of("/usr/libexec/valgrind/vgpreload_core-amd64-linux.so", false, "0"), None, "callgrind");
        assert_eq!(of("librrpreload.so", false, "1"), Some(Checker::Rr));
        assert_eq!(of("libjemalloc.so.2", true, ""), Some(Checker::MemorySanitizer));
        assert_eq!(Checker::of(None, false, None), None);
        assert!(!Checker::Rr.sees_shared_memory() && Checker::Memcheck.sees_shared_memory());
    }
}
