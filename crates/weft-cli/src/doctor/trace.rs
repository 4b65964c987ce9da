//! Starts a job once, by `weft run --require`, and reports what it said.
//!
//! Place in the data flow: a child process runs `weft run`, which chooses the settings, starts the job and judges it.
//! The job's own output goes to standard error, so that the report stays alone on standard output.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use super::Finding;

/// The mark of `weft run`'s own lines.
const MARK: &str = "weft: ";

/// Starts the command.
pub(super) fn examine(command: &[OsString]) -> Vec<Finding> {
    if command.is_empty() {
        return Vec::new();
    }
    let what = "traced start";
    match start(command) {
        Err(error) => vec![Finding::bad(what, error, "check the command")],
        Ok((true, lines)) => vec![Finding::good(what, lines.join("; "))],
        Ok((false, lines)) => {
            let said = if lines.is_empty() { "the job failed and said nothing".to_owned() } else { lines.join("; ") };
            let remedy = "follow the reason above; FI_LOG_LEVEL=warn shows the providers' own messages, and `weft run \
                          --dry-run` the settings";
            vec![Finding::bad(what, said, remedy)]
        }
    }
}

/// Runs the job. Returns whether every rank used weft, and the lines of `weft run`.
fn start(command: &[OsString]) -> Result<(bool, Vec<String>), String> {
    let us = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(us)
        .args(["run", "--require", "--"])
        .args(command)
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut lines = Vec::new();
    let output = child.stderr.take().ok_or("no pipe to the child")?;
    for line in BufReader::new(output).split(b'\n') {
        let line = line.map_err(|error| error.to_string())?;
        match String::from_utf8_lossy(&line).strip_prefix(MARK) {
            Some(said) => lines.push(said.to_owned()),
            // The job's output goes on when our own standard error is closed.
            None => drop(std::io::stderr().write_all(&[&line[..], b"\n"].concat())),
        }
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    Ok((status.success(), lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_command_nothing_is_started() {
        assert!(examine(&[]).is_empty());
    }
}
