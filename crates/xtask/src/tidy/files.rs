//! The files that git tracks, with their text.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// A text file of the repository.
pub(super) struct File {
    /// Relative to the repository.
    pub(super) path: PathBuf,
    pub(super) text: String,
}

impl File {
    pub(super) fn is(&self, extension: &str) -> bool {
        self.path.extension().is_some_and(|found| found == extension)
    }
}

/// The repository's folder.
pub(super) fn root() -> PathBuf {
    // Cargo sets the variable for the program as well. The program may have been compiled in another copy of the tree.
    let directory = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&directory).join("../..")
}

/// Runs git in the repository and returns its output.
pub(super) fn git(args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").arg("-C").arg(root()).args(args).output().context("cannot run git")?;
    if !output.status.success() {
        bail!("git {} failed: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The checked-in text files, without generated ones.
pub(super) fn checked_in() -> anyhow::Result<Vec<File>> {
    let names = git(&["ls-files"])?;
    let paths = names.lines().map(PathBuf::from).filter(|path| !path.ends_with("weft-fi-sys/src/bindings.rs"));
    Ok(paths
        .filter_map(|path| {
            // Fuzz inputs are not text, and a tracked file may be deleted in the work tree.
            let text = std::fs::read_to_string(root().join(&path)).ok()?;
            Some(File { path, text })
        })
        .collect())
}
