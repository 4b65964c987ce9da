//! Passes the revision of the sources to the program, for `weft info`.

use std::process::Command;

/// The output of git in the directory of the sources. `None`: there is no git, or this is no clone.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

fn main() {
    // Packagers set the variable: their sources have no history.
    let given = std::env::var("WEFT_REVISION").ok();
    let revision = given.or_else(|| git(&["describe", "--always", "--tags"])).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=WEFT_REVISION={revision}");
    println!("cargo::rerun-if-env-changed=WEFT_REVISION");
    println!("cargo::rerun-if-changed=build.rs");
    // The log changes with each commit and each change of the branch.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| std::path::Path::new(log).exists()) {
        println!("cargo::rerun-if-changed={log}");
    }
}
