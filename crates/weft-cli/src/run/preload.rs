//! The preloaded collectives beside other libraries that a command preloads into its ranks.
//!
//! Place in the data flow: `settings.rs` adds an option with LD_PRELOAD to a launcher. A command that has such an
//! option itself, for a profiling tool, would lose one of the two. The library is therefore put in front of the
//! command's own value.

use std::ffi::{OsStr, OsString};

const VARIABLE: &str = "LD_PRELOAD";

/// Puts `library` in front of each value of LD_PRELOAD on a command line. `all` is the value for ranks that have no
/// other. Returns whether all ranks get it in this way.
pub(super) fn join(command: &mut [OsString], library: &OsStr, all: &OsStr) -> bool {
    let mut given = false;
    for at in 1..command.len() {
        let (before, here) = (command[at - 1].clone(), command[at].to_string_lossy().into_owned());
        let for_all = ["-x", "-genv", "--genv"].iter().any(|option| before == *option);
        if let Some(value) = here.strip_prefix("LD_PRELOAD=") {
            let mut text = OsString::from("LD_PRELOAD=");
            text.push(joined(library, OsStr::new(value)));
            command[at] = text;
        } else if here == VARIABLE && before == "-x" {
            // Open MPI would take the value of its own environment.
            let mut text = OsString::from("LD_PRELOAD=");
            text.push(all);
            command[at] = text;
        } else if here == VARIABLE && (for_all || before == "-env") && at + 1 < command.len() {
            command[at + 1] = joined(library, &command[at + 1]);
        } else {
            continue;
        }
        given |= for_all;
    }
    given
}

/// A list of libraries with one more in front, unless it has that one.
fn joined(library: &OsStr, value: &OsStr) -> OsString {
    let mut names = value.as_encoded_bytes().split(|byte| *byte == b':' || *byte == b' ');
    if names.any(|name| name == library.as_encoded_bytes()) {
        return value.to_owned();
    }
    let mut all = library.to_owned();
    if !value.is_empty() {
        all.push(":");
        all.push(value);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(line: &str) -> (String, bool) {
        let mut words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let given = join(&mut words, OsStr::new("/c.so"), OsStr::new("/c.so:/e.so"));
        (words.join(OsStr::new(" ")).to_string_lossy().into_owned(), given)
    }

    #[test]
    fn libraries_of_the_command_are_kept() {
        for (line, expected, given) in [
            ("mpiexec -n 2 ./a", "mpiexec -n 2 ./a", false),
            ("mpiexec -genv LD_PRELOAD /t.so ./a", "mpiexec -genv LD_PRELOAD /c.so:/t.so ./a", true),
            ("mpiexec -env LD_PRELOAD /t.so ./a", "mpiexec -env LD_PRELOAD /c.so:/t.so ./a", false),
            ("mpiexec -genv LD_PRELOAD /t.so:/c.so ./a", "mpiexec -genv LD_PRELOAD /t.so:/c.so ./a", true),
            ("mpirun -x LD_PRELOAD=/t.so ./a", "mpirun -x LD_PRELOAD=/c.so:/t.so ./a", true),
            ("mpirun -x LD_PRELOAD ./a", "mpirun -x LD_PRELOAD=/c.so:/e.so ./a", true),
            ("mpirun -n 2 env LD_PRELOAD=/t.so ./a", "mpirun -n 2 env LD_PRELOAD=/c.so:/t.so ./a", false),
        ] {
            assert_eq!(after(line), (expected.to_owned(), given), "{line}");
        }
    }
}
