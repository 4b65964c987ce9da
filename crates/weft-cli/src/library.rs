//! The places where libfabric searches for the provider's library, and a check that the dynamic loader accepts it.
//!
//! libfabric loads every file `*fi.so` of the directories in FI_PROVIDER_PATH. An entry that starts with `+` adds to
//! the default directory instead of replacing it, and may name a file. Without the variable, libfabric uses the default
//! directory `<prefix>/lib/libfabric` of its build.
//!
//! This program calls no unsafe function, so it does not load the library itself. Instead the dynamic loader loads it
//! in a child process (LD_PRELOAD).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The library's file name. libfabric takes only names that end in `fi.so`.
pub(crate) const FILE_NAME: &str = "libweft-fi.so";

/// A name that libfabric searches along the loader's path. libfabric has no provider of that name any more, so no other
/// package has such a file.
const KNOWN_NAME: &str = "libusnic-fi.so";

/// The default directories of distributions' libfabrics.
const DEFAULT_DIRECTORIES: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu/libfabric",
    "/usr/lib/aarch64-linux-gnu/libfabric",
    "/usr/lib64/libfabric",
    "/usr/lib/libfabric",
    "/usr/local/lib/libfabric",
];

/// The places that a value of FI_PROVIDER_PATH names, in order: directories, or files.
pub(crate) fn places(provider_path: Option<&str>) -> Vec<PathBuf> {
    let defaults = || DEFAULT_DIRECTORIES.iter().map(PathBuf::from);
    let Some(value) = provider_path.filter(|value| !value.is_empty()) else {
        return defaults().collect();
    };
    let adds = value.starts_with('+');
    let named = value.trim_start_matches('+').split(':').filter(|entry| !entry.is_empty());
    let named = named.map(|entry| PathBuf::from(entry.trim_start_matches(['+', '@'])));
    if adds { named.chain(defaults()).collect() } else { named.collect() }
}

/// Finds the provider's library at one of the places.
pub(crate) fn find(places: &[PathBuf]) -> Option<PathBuf> {
    places.iter().find_map(|place| {
        let is_library = place.file_name().is_some_and(|name| name == FILE_NAME);
        let file = if is_library { place.clone() } else { place.join(FILE_NAME) };
        file.is_file().then_some(file)
    })
}

/// The library that belongs to this program: beside it after `make`, otherwise where a package puts it. PyPI's package
/// has it in `lib/weft`, `make install` in `lib/libfabric`, and Debian's package in the directory of the architecture.
pub(crate) fn beside_us() -> Option<PathBuf> {
    let directory = std::env::current_exe().ok()?.parent()?.to_owned();
    let prefix = directory.parent()?.to_owned();
    let libs = ["weft", "libfabric", "x86_64-linux-gnu/libfabric", "aarch64-linux-gnu/libfabric"];
    let packaged = libs.iter().map(|lib| prefix.join("lib").join(lib)).chain([prefix.join("lib64/libfabric")]);
    find(&std::iter::once(directory).chain(packaged).collect::<Vec<_>>())
}

/// The providers that a libfabric in this directory finds with no variable set. It searches a directory `libfabric` at
/// its side, by its build or its run path. With the directory in the loader's path, it also finds the names of its own
/// providers beside itself.
pub(crate) fn found_without_variable(directory: &Path) -> Vec<PathBuf> {
    let below = directory.join("libfabric");
    let entries = std::fs::read_dir(below).into_iter().flatten().flatten().map(|entry| entry.path());
    let providers = entries.filter(|path| path.to_string_lossy().ends_with("-fi.so"));
    providers.chain([directory.join(KNOWN_NAME)]).collect()
}

/// Whether two files have the same content.
pub(crate) fn is_copy(one: &Path, other: &Path) -> bool {
    let len = |path: &Path| path.metadata().map(|meta| meta.len()).ok();
    len(one).is_some() && len(one) == len(other) && std::fs::read(one).ok() == std::fs::read(other).ok()
}

/// Has the dynamic loader load the library into a child that does nothing else. The error is the loader's message.
pub(crate) fn loads(library: &Path) -> Result<(), String> {
    // LD_PRELOAD separates its entries by spaces and colons and has no escape.
    if library.to_string_lossy().contains([' ', ':']) {
        return Err(format!("{} has a space or colon in its path", library.display()));
    }
    let us = std::env::current_exe().map_err(|error| error.to_string())?;
    let child = Command::new(us)
        .arg("--version")
        .env("LD_PRELOAD", library)
        .env("LD_BIND_NOW", "1")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    let complaints = String::from_utf8_lossy(&child.stderr);
    match complaints.lines().find(|line| line.contains("ld.so") || line.contains("symbol lookup error")) {
        Some(line) => Err(line.trim().to_owned()),
        None if child.status.success() => Ok(()),
        None => Err(format!("a process with the library loaded ended with {}: {}", child.status, complaints.trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_replaces_the_default_and_a_plus_adds_to_it() {
        assert_eq!(places(Some("/a:/b")), [PathBuf::from("/a"), PathBuf::from("/b")]);
        let added = places(Some("+/x/libweft-fi.so"));
        assert_eq!(added[0], PathBuf::from("/x/libweft-fi.so"));
        assert_eq!(added.len(), 1 + DEFAULT_DIRECTORIES.len());
        assert_eq!(places(None).len(), DEFAULT_DIRECTORIES.len());
        assert_eq!(places(Some("")), places(None));
    }

    #[test]
    fn a_file_that_is_no_library_is_not_loaded() {
        let this = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        assert!(loads(&this).is_err_and(|complaint| complaint.contains("ld.so")));
        assert!(loads(Path::new("/has a space/libweft-fi.so")).is_err());
    }
}
