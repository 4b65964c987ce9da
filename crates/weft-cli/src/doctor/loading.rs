//! Checks that the provider can be loaded, and that the environment lets libfabric use it. `libfabrics.rs` asks each
//! libfabric itself.

use std::path::PathBuf;

use super::Finding;
use crate::library::{self, FILE_NAME};

/// Reads an environment variable.
type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Runs all checks of this area. Returns the provider's library, too.
pub(super) fn examine(env: Env<'_>) -> (Vec<Finding>, Option<PathBuf>) {
    let (path, found) = provider_path(env("FI_PROVIDER_PATH").as_deref());
    let mut findings = vec![provider(env("FI_PROVIDER").as_deref()), path];
    if let Some(file) = &found {
        let what = "dynamic loader loads the library";
        findings.push(match library::loads(file) {
            Ok(()) => Finding::good(what, file.display().to_string()),
            Err(error) => {
                Finding::bad(what, error, "build weft on this system (`make`): the library is for another system")
            }
        });
    }
    (findings, found)
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
            let named = names.split([',', ';']).any(|name| name.trim().eq_ignore_ascii_case("weft"));
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
    if let Some(file) = named_file(set) {
        let directory = file.parent().unwrap_or(&file).display().to_string();
        let detail = format!("{} is a file, and libfabric searches it as a directory", file.display());
        return (Finding::bad(what, detail, format!("export FI_PROVIDER_PATH={directory}")), Some(file));
    }
    let places = library::places(set);
    if let Some(file) = library::find(&places) {
        let detail = match set {
            Some(value) => format!("{value}: {} is there", file.display()),
            None => format!("not set, and not needed: {} is there", file.display()),
        };
        return (Finding::good(what, detail), Some(file));
    }
    let beside = library::beside_us();
    let directory = beside.as_ref().and_then(|file| file.parent()).map(|directory| directory.display().to_string());
    let finding = match (set.filter(|value| !value.is_empty()), directory) {
        (Some(value), directory) => {
            let remedy = directory.map_or_else(
                || format!("set FI_PROVIDER_PATH to the directory of {FILE_NAME}, or unset it"),
                |directory| format!("export FI_PROVIDER_PATH={directory}"),
            );
            Finding::bad(what, format!("{value}: there is no {FILE_NAME}"), remedy)
        }
        (None, Some(directory)) => Finding::note(
            what,
            format!(
                "not set. A libfabric that does not find weft by itself (see below) does with \
                 FI_PROVIDER_PATH={directory}, which `weft run` sets"
            ),
        ),
        (None, None) => Finding::note(
            what,
            format!("not set, and there is no {FILE_NAME} in the usual places; the libfabrics below may have another"),
        ),
    };
    (finding, beside)
}

/// An entry of FI_PROVIDER_PATH that is a file. Only an entry of a list that begins with `+` may be one.
fn named_file(set: Option<&str>) -> Option<PathBuf> {
    let value = set.filter(|value| !value.starts_with('+'))?;
    value.split(':').map(|entry| PathBuf::from(entry.trim_start_matches('@'))).find(|entry| entry.is_file())
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn provider_selections_are_parsed() {
        let state = |set| provider(set).state;
        assert_eq!(state(None), Outcome::Note);
        assert_eq!(state(Some("weft")), Outcome::Good);
        assert_eq!(state(Some("tcp,Weft")), Outcome::Good);
        assert_eq!(state(Some("tcp")), Outcome::Bad);
        assert_eq!(state(Some("^weft")), Outcome::Bad);
        assert_eq!(state(Some("^tcp")), Outcome::Note);
    }

    #[test]
    fn a_path_that_is_a_file_is_bad() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let (finding, _) = provider_path(Some(file));
        assert_eq!(finding.state, Outcome::Bad);
        assert!(finding.remedy.ends_with("/weft-cli") && finding.detail.contains("is a file"), "{finding:?}");
        assert!(named_file(Some(&format!("+{file}"))).is_none());
    }

    #[test]
    fn a_path_without_the_library_is_bad() {
        let (finding, _) = provider_path(Some("/nonexistent"));
        assert_eq!(finding.state, Outcome::Bad);
        assert!(finding.remedy.contains("FI_PROVIDER_PATH"), "{finding:?}");
    }
}
