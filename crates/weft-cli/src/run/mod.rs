//! `weft run`: starts a job with the settings by which its MPI library uses weft, and says afterwards which ranks did.
//!
//! Place in the data flow: beside it. `launcher.rs` recognises the launcher, `mpi.rs` finds the MPI library and its
//! libfabric, and `settings.rs` derives variables and options from both. The launcher runs as a child, which gets the
//! signals of this process (`signals.rs`). Each rank keeps a record of its traffic while it runs
//! (`weft_fi::observe::report`); `collect.rs` gathers the records, `jobs.rs` sorts them by jobs, of which `watch.rs`
//! sees those without records, and `verdict.rs` puts
//! them into one line. The job ends if this process is killed (`guard.rs`).
//!
//! Exit status: that of the launcher, or 128 plus the number of the signal that ended it. With `--require`, 1 if the
//! launcher succeeded and a rank did not use weft.

mod collect;
mod guard;
mod jobs;
mod launcher;
mod mpi;
mod preload;
mod settings;
mod signals;
mod verdict;
mod watch;

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus, Stdio};

use clap::Args;
use nix::sys::signal::Signal;

use weft_observe::identity::Identity;

use collect::Collector;
use guard::Guard;
use jobs::Jobs;
use launcher::Launcher;
use mpi::Mpi;
use settings::Settings;
use signals::Signals;
use verdict::Verdict;
use watch::Watch;

pub(crate) use guard::run as run_guard;

/// Runs an MPI or OpenSHMEM job over weft, and prints afterwards how many ranks used it, and their traffic.
///
/// Recognised launchers: mpiexec and mpirun of MPICH, Intel MPI and Open MPI (4.1 and 5), prterun, srun, and oshrun.
/// Another command is run as a program without launcher.
#[derive(Args)]
pub(crate) struct Options {
    /// Exit with status 1 if a rank did not use weft, or if nothing was sent over it.
    #[arg(long)]
    require: bool,
    /// Preload weft's collectives (libweft-coll.so) into the ranks. Node communicators then span their hosts.
    #[arg(long)]
    collectives: bool,
    /// Leave the messages inside a host to the MPI library's own shared memory, where it has one.
    #[arg(long)]
    own_shm: bool,
    /// Print the command with its variables, and run nothing.
    #[arg(long)]
    dry_run: bool,
    /// The launcher with its arguments, such as `mpiexec -n 2 ./a.out`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A command before its start: the launcher, the MPI library, and the libfabric that it will load.
pub(crate) struct Start {
    launcher: Launcher,
    mpi: Option<Mpi>,
    libfabric: Option<PathBuf>,
}

impl Start {
    /// Examines a command.
    pub(crate) fn of(command: &[OsString]) -> io::Result<Self> {
        let launcher = Launcher::recognise(&command[0])?;
        let mpi = Mpi::find(&launcher, command);
        let libfabric = match &mpi {
            Some(mpi) => mpi.libfabric().map(Path::to_owned),
            None => mpi::linked_libfabric(&launcher, command),
        };
        Ok(Self { launcher, mpi, libfabric })
    }

    /// The libfabric that the job will load, if it was found.
    pub(crate) fn libfabric(&self) -> Option<&Path> {
        self.libfabric.as_deref()
    }

    /// Cause and remedy if the library of the job certainly cannot use weft.
    pub(crate) fn refusal(&self) -> Option<(String, String)> {
        self.mpi.as_ref().filter(|mpi| mpi.is_certain()).and_then(Mpi::refusal)
    }

    /// Launcher and library, for people.
    pub(crate) fn description(&self) -> String {
        let library = self
            .mpi
            .as_ref()
            .map_or_else(|| "no MPI library was found".to_owned(), |mpi| mpi.library().display().to_string());
        format!("{}; {library}", self.launcher.kind().name())
    }
}

/// Runs a job. An error means that it was not started.
pub(crate) fn run(options: &Options, out: &mut impl Write) -> io::Result<ExitCode> {
    let start = Start::of(&options.command)?;
    let Start { launcher, mpi, .. } = &start;
    let settings = Settings::new(launcher, mpi.as_ref(), options)?;
    if options.dry_run {
        writeln!(out, "{}", settings.shell_line())?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some((cause, remedy)) = start.refusal() {
        if options.require {
            return Err(io::Error::other(format!("{cause}; {remedy}")));
        }
        say(&format!("{cause}; {remedy}"));
    }
    let collector = Collector::new()?;
    let (status, seen) = run_to_end(&settings, launcher, &collector)?;
    let jobs = Jobs::of(&collector.reports(), &seen);
    let verdict = Verdict { jobs, launcher, mpi: mpi.as_ref(), settings: &settings, status };
    say(&verdict.text());
    Ok(match code(status) {
        0 if options.require && !verdict.is_complete() => ExitCode::FAILURE,
        code => ExitCode::from(code),
    })
}

/// Prints a line of this command. The terminal may have gone.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "weft: {text}");
}

/// Runs the command to its end. Lines of reports are removed from its standard error. Returns one rank of each job that
/// was seen meanwhile.
fn run_to_end(
    settings: &Settings,
    launcher: &Launcher,
    collector: &Collector,
) -> io::Result<(ExitStatus, Vec<Identity>)> {
    let mut command = settings.command();
    command.env("FI_WEFT_REPORT", collector.value());
    // A program without launcher writes its report into the memfd, and keeps its terminal.
    if launcher.starts_ranks() {
        command.stderr(Stdio::piped());
    }
    if !launcher.must_end_ranks() {
        weft_os::end_with_parent(&mut command, rustix::process::Signal::KILL);
    }
    let mut child = command.spawn().map_err(|error| {
        io::Error::new(error.kind(), format!("{} cannot be started: {error}", command.get_program().display()))
    })?;
    let guard = launcher.must_end_ranks().then(|| Guard::start(child.id()));
    let guard = guard.transpose().unwrap_or_else(|error| {
        say(&format!("the job would outlive this command if it were killed: its guard cannot be started: {error}"));
        None
    });
    // The child inherits the signal mask, so signals are blocked after its start.
    let signals = Signals::block()?;
    let filter = child.stderr.take().map(|pipe| collector.filter(pipe));
    signals.forward_to(child.id());
    let watch = Watch::start(child.id());
    let status = child.wait()?;
    guard.into_iter().for_each(Guard::finish);
    if let Some(filter) = filter {
        filter.finish();
    }
    Ok((status, watch.finish()))
}

/// The end of a process that did not succeed, in words.
fn ended_by(status: ExitStatus) -> Option<String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("ended with status {code}")),
        (None, signal) => {
            let known = signal.and_then(|number| Signal::try_from(number).ok());
            Some(format!("was ended by {}", known.map_or("a signal", Signal::as_str)))
        }
    }
}

/// The exit status of a shell for this end of a process.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}
