//! The launcher of a job: its kind, found by the name and by the text that it prints for `--version`.
//!
//! Place in the data flow: first step of `weft run`. Names do not suffice: `mpiexec` belongs to every MPI library.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time for the output of `--version`.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest output that is read.
const OUTPUT_BYTES: u64 = 64 << 10;

/// A family of launchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// MPICH's Hydra.
    Hydra,
    /// Intel MPI's Hydra.
    IntelHydra,
    /// Open MPI, with its own runtime (4.1) or with PRRTE (5).
    OpenMpi,
    /// Slurm.
    Srun,
    /// Sandia OpenSHMEM.
    Oshrun,
    /// The command is the program itself.
    None,
}

impl Kind {
    /// The name for messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Hydra => "MPICH",
            Self::IntelHydra => "Intel MPI",
            Self::OpenMpi => "Open MPI",
            Self::Srun => "Slurm",
            Self::Oshrun => "Sandia OpenSHMEM",
            Self::None => "no launcher",
        }
    }
}

/// A launcher.
#[derive(Clone, Debug)]
pub(crate) struct Launcher {
    kind: Kind,
    /// The file, without symbolic links.
    file: PathBuf,
}

impl Launcher {
    /// A launcher of this kind.
    pub(crate) const fn new(kind: Kind, file: PathBuf) -> Self {
        Self { kind, file }
    }

    /// The kind.
    pub(crate) const fn kind(&self) -> Kind {
        self.kind
    }

    /// Recognises the first word of a command.
    pub(crate) fn recognise(word: &OsStr) -> io::Result<Self> {
        let Some(found) = executable(word) else {
            let text = format!("{} is not found, or is not executable; check the path", word.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        };
        let file = found.canonicalize().unwrap_or_else(|_| found.clone());
        // Open MPI's oshrun is a link to its mpirun.
        let names = [&found, &file].map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned());
        let called = |prefix: &str| names.iter().any(|name| name.starts_with(prefix));
        let kind = if called("mpiexec") || called("mpirun") || called("prterun") || called("prun") || called("orterun")
        {
            of_version(&version(&found)).unwrap_or(if called("mpi") { Kind::Hydra } else { Kind::OpenMpi })
        } else if called("oshrun") || called("shmemrun") {
            // A script of Sandia's around another launcher, whose version it prints.
            if of_version(&version(&found)) == Some(Kind::OpenMpi) { Kind::OpenMpi } else { Kind::Oshrun }
        } else if called("srun") {
            Kind::Srun
        } else {
            Kind::None
        };
        Ok(Self::new(kind, file))
    }

    /// Whether the command starts other processes as ranks, possibly on other hosts.
    pub(crate) fn starts_ranks(&self) -> bool {
        self.kind != Kind::None
    }

    /// Whether the ranks outlive a launcher that is killed. Open MPI's are its own children. Hydra's proxies end the
    /// ranks when their launcher ends.
    pub(crate) fn must_end_ranks(&self) -> bool {
        self.kind == Kind::OpenMpi
    }

    /// The directory above the launcher's `bin`.
    pub(crate) fn prefix(&self) -> Option<&Path> {
        self.file.parent()?.parent()
    }
}

/// The kind that a version text names.
fn of_version(text: &str) -> Option<Kind> {
    let known = [
        ("Intel(R) MPI", Kind::IntelHydra),
        ("HYDRA", Kind::Hydra),
        ("Open MPI", Kind::OpenMpi),
        ("OpenRTE", Kind::OpenMpi),
        ("PRRTE", Kind::OpenMpi),
        ("prterun", Kind::OpenMpi),
    ];
    known.into_iter().find(|(mark, _)| text.contains(mark)).map(|(_, kind)| kind)
}

/// The output of `--version`, or what there is of it after [`PATIENCE`].
fn version(file: &Path) -> String {
    let mut command = Command::new(file);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return String::new() };
    let mut output = Vec::new();
    let reader = child.stdout.take().map(|pipe| {
        std::thread::spawn(move || {
            let mut output = Vec::new();
            // A partial text may still name the launcher.
            let _ = pipe.take(OUTPUT_BYTES).read_to_end(&mut output);
            output
        })
    });
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end && reader.as_ref().is_some_and(|reader| !reader.is_finished()) {
        std::thread::sleep(Duration::from_millis(5));
    }
    if let Some(reader) = reader.filter(std::thread::JoinHandle::is_finished) {
        output = reader.join().unwrap_or_default();
    }
    // It has ended, unless it is stuck.
    let _ = child.kill();
    let _ = child.wait();
    String::from_utf8_lossy(&output).into_owned()
}

/// The executable file that a shell would run for a word.
pub(crate) fn executable(word: &OsStr) -> Option<PathBuf> {
    let is_executable =
        |path: &PathBuf| path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    if word.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(word)).filter(is_executable);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|directory| directory.join(word)).find(is_executable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_name_the_launcher() {
        for (text, kind) in [
            ("HYDRA build details:\n    Version:   5.0.2\n", Some(Kind::Hydra)),
            ("Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626\n", Some(Kind::IntelHydra)),
            ("mpirun (Open MPI) 4.1.4\n\nReport bugs to", Some(Kind::OpenMpi)),
            ("mpirun (Open MPI) 5.0.11\n", Some(Kind::OpenMpi)),
            ("prterun (PRRTE) 3.0.13\n", Some(Kind::OpenMpi)),
            ("slurm-wlm 22.05.8\n", None),
        ] {
            assert_eq!(of_version(text), kind, "{text}");
        }
    }

    #[test]
    fn other_commands_are_programs_without_launcher() {
        let launcher = Launcher::recognise(OsStr::new("true")).expect("a program");
        assert!(launcher.kind == Kind::None && !launcher.starts_ranks());
        assert!(Launcher::recognise(OsStr::new("/nonexistent/mpiexec")).is_err());
    }
}
