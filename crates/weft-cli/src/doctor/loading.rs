//! Checks that libfabric finds the provider, can load it, and is configured to use it.

use std::path::PathBuf;

use super::Finding;
use crate::library::{self, FILE_NAME};

/// Reads an environment variable.
type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Runs all checks of this area.
pub(super) fn examine(env: Env<'_>) -> Vec<Finding> {
    let (path, found) = provider_path(env("FI_PROVIDER_PATH").as_deref());
    let mut findings = vec![provider(env("FI_PROVIDER").as_deref()), path];
    if let Some(file) = found {
        let what = "dynamic loader loads the library";
        findings.push(match library::loads(&file) {
            Ok(()) => Finding::good(what, file.display().to_string()),
            Err(error) => {
                Finding::bad(what, error, "build weft on this system (`make`): the library is for another system")
            }
        });
    }
    findings.push(fi_info());
    findings
}

/// Checks FI_PROVIDER, the providers that libfabric may use.
fn provider(set: Option<&str>) -> Finding {
    let what = "FI_PROVIDER";
    match set {
        None | Some("") => Finding::note(
            what,
            "not set: libfabric lists external providers last, so most clients take another one. \
             `export FI_PROVIDER=weft` makes them use weft",
        ),
        Some(list) => {
            let (excludes, names) = match list.strip_prefix('^') {
                Some(names) => (true, names),
                None => (false, list),
            };
            let named = names.split([',', ';']).any(|name| name.trim() == "weft");
            match (excludes, named) {
                (false, true) => Finding::good(what, format!("{list}: weft may be used")),
                (true, false) => Finding::note(what, format!("{list}: weft is not excluded, nor preferred")),
                _ => Finding::bad(what, format!("{list}: keeps libfabric from using weft"), "export FI_PROVIDER=weft"),
            }
        }
    }
}

/// Checks FI_PROVIDER_PATH, where libfabric searches. Returns the library found there, too.
fn provider_path(set: Option<&str>) -> (Finding, Option<PathBuf>) {
    let what = "FI_PROVIDER_PATH";
    let places = library::places(set);
    if let Some(file) = library::find(&places) {
        let detail = match set {
            Some(value) => format!("{value}: {} is there", file.display()),
            None => format!("not set, and not needed: {} is there", file.display()),
        };
        return (Finding::good(what, detail), Some(file));
    }
    let detail = match set.filter(|value| !value.is_empty()) {
        Some(value) => format!("{value}: there is no {FILE_NAME}"),
        None => format!("not set, and there is no {FILE_NAME} in the usual places"),
    };
    let beside = library::beside_us();
    let remedy = match beside.as_ref().and_then(|file| file.parent()) {
        Some(directory) => format!("export FI_PROVIDER_PATH={}", directory.display()),
        None => format!("build weft (`make`) and set FI_PROVIDER_PATH to the directory of {FILE_NAME}"),
    };
    (Finding::bad(what, detail, remedy), beside)
}

/// Has libfabric itself load and query the provider.
fn fi_info() -> Finding {
    let what = "libfabric loads the provider";
    match library::fi_info() {
        None => Finding::note(what, "not tried: there is no fi_info here (Debian has it in libfabric-bin)"),
        Some(Ok(_)) => Finding::good(what, "`fi_info -p weft` lists it"),
        Some(Err(error)) => Finding::bad(
            what,
            format!("`fi_info -p weft` does not list it: {error}"),
            "fix the findings above; otherwise FI_LOG_LEVEL=info fi_info -p weft shows how far libfabric gets",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn provider_selections_are_parsed() {
        let state = |set| provider(set).state;
        assert_eq!(state(None), State::Note);
        assert_eq!(state(Some("weft")), State::Good);
        assert_eq!(state(Some("tcp,weft")), State::Good);
        assert_eq!(state(Some("tcp")), State::Bad);
        assert_eq!(state(Some("^weft")), State::Bad);
        assert_eq!(state(Some("^tcp")), State::Note);
    }

    #[test]
    fn a_path_without_the_library_is_bad() {
        let (finding, _) = provider_path(Some("/nonexistent"));
        assert_eq!(finding.state, State::Bad);
        assert!(finding.remedy.contains("FI_PROVIDER_PATH"), "{finding:?}");
    }
}
