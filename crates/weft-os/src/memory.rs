//! The memory that this process may still use.
//!
//! Place in the data flow: weft-coll asks before it makes shared windows. Their pages exist from the first access on,
//! so that a lack of memory would end a process without a text.
//!
//! The answer is an estimate, as other processes allocate memory, too. Control groups bound it.
//!
//! Source: proc_meminfo(5), cgroups(7), the kernel's cgroup-v2.rst and cgroup-v1/memory.rst.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of memory that this process may still use. `None`: the system does not tell.
#[must_use]
pub fn available() -> Option<u64> {
    let host = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_host(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let bounds = folders(&groups).into_iter().filter_map(|folder| left_in(&folder));
    host.into_iter().chain(bounds).min()
}

/// Available memory and free swap space.
fn of_host(text: &str) -> Option<u64> {
    let field = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        rest.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(field("MemAvailable:")? + field("SwapFree:").unwrap_or(0))
}

/// The folders of the control groups of a process, each with its parents. In a container the path may be that of the
/// host, so the root counts in any case.
fn folders(groups: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let root = match controllers {
            "" => Path::new("/sys/fs/cgroup"),
            names if names.split(',').any(|name| name == "memory") => Path::new("/sys/fs/cgroup/memory"),
            _ => continue,
        };
        let path = path.trim_start_matches('/');
        found.extend(Path::new(path).ancestors().map(|part| root.join(part)));
    }
    found
}

/// The memory that a control group leaves. `None`: it has no limit. Pages of files that were not used lately count as
/// free.
fn left_in(folder: &Path) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let (most, used) = match number("memory.max") {
        Some(most) => (most, number("memory.current")?),
        None => (number("memory.limit_in_bytes")?, number("memory.usage_in_bytes")?),
    };
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let droppable = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse::<u64>().ok());
    Some(most.saturating_sub(used.saturating_sub(droppable.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn memory_and_swap_of_the_host_count() {
        let text = "MemTotal:  9 kB\nMemAvailable:      2 kB\nSwapFree:   1 kB\n";
        assert_eq!((of_host(text), of_host("MemFree: 1 kB\n")), (Some(3072), None));
        assert!(available().unwrap() > 1 << 20);
    }

    #[test]
    fn groups_bound_memory_with_their_parents() {
        let found = folders("0::/a/b\n4:cpu:/c\n5:memory:/\n");
        let expected = ["", "/a/b", "/a", ""].map(|rest| PathBuf::from(format!("/sys/fs/cgroup{rest}/")));
        assert!(
            found.iter().all(|folder| expected.contains(&folder.join("")) || folder.ends_with("memory")),
            "{found:?}"
        );
        assert_eq!(found.len(), 4);
        let folder = std::env::temp_dir().join(format!("weft-group-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let put = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        put("memory.max", "max\n");
        put("memory.current", "600\n");
        assert_eq!(left_in(&folder), None);
        put("memory.max", "1000\n");
        assert_eq!(left_in(&folder), Some(400));
        put("memory.stat", "anon 1\ninactive_file 100\n");
        assert_eq!(left_in(&folder), Some(500));
        fs::remove_dir_all(&folder).unwrap();
    }
}
