//! The variables and options by which a job's MPI library uses weft, on all ranks.
//!
//! Place in the data flow: third step of `weft run`. Hydra and srun pass the whole environment to all ranks. Open MPI
//! passes only `OMPI_*` to other hosts, so other variables are named by `-x`. LD_PRELOAD is passed by options in every
//! launcher, so that the launcher itself does not preload the library.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process::Command;

use super::Options;
use super::launcher::{Kind, Launcher};
use super::mpi::{self, Mpi};
use super::preload;
use crate::library;

/// The file of the preloaded collectives, beside the provider.
const COLLECTIVES: &str = "libweft-coll.so";

/// The settings of a job.
pub(crate) struct Settings {
    /// Variables, which replace those of the environment.
    variables: Vec<(&'static str, OsString)>,
    /// The command with the options that were added.
    command: Vec<OsString>,
    /// Whether the MPI library may carry messages inside a host itself.
    own_shm: bool,
    /// Whether MPICH, if a job uses it, regards each rank as alone on its host.
    separates_ranks: bool,
    /// Whether weft's collectives are preloaded.
    has_collectives: bool,
}

/// The MPI libraries for which variables are set.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Families {
    mpich: bool,
    intel: bool,
    open_mpi: bool,
    shmem: bool,
}

impl Families {
    /// The families of a job. Variables of the other families are without effect, so an unknown library gets all.
    fn of(launcher: &Launcher, mpi: Option<&Mpi>) -> Self {
        let none = Self { mpich: false, intel: false, open_mpi: false, shmem: false };
        match launcher.kind() {
            Kind::Hydra => Self { mpich: true, ..none },
            Kind::IntelHydra => Self { intel: true, ..none },
            Kind::OpenMpi => Self { open_mpi: true, ..none },
            Kind::Oshrun => Self { shmem: true, ..none },
            Kind::Srun | Kind::None => {
                let library = mpi.map(Mpi::library);
                let open_mpi = library.is_some_and(mpi::is_open_mpi);
                let shmem = library.is_some_and(|library| library.to_string_lossy().contains("libsma"));
                let unknown = library.is_none();
                let mpich = unknown || !(open_mpi || shmem);
                Self { mpich, intel: mpich, open_mpi: unknown || open_mpi, shmem: unknown || shmem }
            }
        }
    }
}

impl Settings {
    /// The settings for a command.
    pub(crate) fn new(launcher: &Launcher, mpi: Option<&Mpi>, options: &Options) -> io::Result<Self> {
        let provider = library::beside_us().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!(
                    "{} is not beside this program, nor in its lib directory; install weft again",
                    library::FILE_NAME
                ),
            )
        })?;
        let families = Families::of(launcher, mpi);
        if options.own_shm && families.open_mpi && !families.mpich {
            // Its layer for libfabric (mtl) carries all messages, and its own shared memory needs another layer (btl).
            let text = "--own-shm does not apply to Open MPI, which cannot use its own shared memory beside libfabric; \
                        omit the option";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mut variables = vec![("FI_PROVIDER", OsString::from("weft"))];
        // A path hides the providers of other directories, so it is set only where it is needed.
        if !mpi.is_some_and(|mpi| mpi.finds(&provider))
            && let Some(path) = provider.parent().and_then(|place| mpi::prepended("FI_PROVIDER_PATH", place))
        {
            variables.push(("FI_PROVIDER_PATH", path));
        }
        families.add_variables(launcher, options.own_shm, &mut variables);
        let own_shm = families.keep_own_shm(&variables);
        let separates_ranks = families.mpich && !own_shm;
        let mut preload = if options.collectives { Some(preload_value(&provider)?) } else { None };
        let mut command = options.command.clone();
        let library = provider.with_file_name(COLLECTIVES);
        preload = preload.filter(|all| !preload::join(&mut command, library.as_os_str(), all));
        let added = added_options(launcher.kind(), &variables, preload.as_deref(), &command);
        if let (Kind::Oshrun | Kind::None, Some(preload)) = (launcher.kind(), preload) {
            variables.push(("LD_PRELOAD", preload));
        }
        command.splice(1..1, added);
        Ok(Self { variables, command, own_shm, separates_ranks, has_collectives: options.collectives })
    }

    /// Settings without variables, for tests.
    #[cfg(test)]
    pub(crate) const fn plain(own_shm: bool) -> Self {
        Self { variables: Vec::new(), command: Vec::new(), own_shm, separates_ranks: false, has_collectives: false }
    }

    /// Settings by which MPICH separates ranks, for tests.
    #[cfg(test)]
    pub(crate) fn separating(has_collectives: bool) -> Self {
        Self { separates_ranks: true, has_collectives, ..Self::plain(false) }
    }

    /// Whether the MPI library may carry messages inside a host itself.
    pub(crate) const fn has_own_shm(&self) -> bool {
        self.own_shm
    }

    /// Whether node communicators of MPICH have one rank, if a job uses it.
    pub(crate) const fn separates_ranks(&self) -> bool {
        self.separates_ranks
    }

    /// Whether weft's collectives are preloaded.
    pub(crate) const fn has_collectives(&self) -> bool {
        self.has_collectives
    }

    /// The command, ready to be started.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).envs(self.variables.iter().map(|(name, value)| (*name, value)));
        command
    }

    /// The command as a line for a shell. Each rank then prints its own report.
    pub(crate) fn shell_line(&self) -> String {
        let variables = self.variables.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
        let variables = variables.chain(["FI_WEFT_REPORT=1".to_owned()]);
        variables.chain(self.command.iter().map(|word| quoted(word))).collect::<Vec<_>>().join(" ")
    }
}

impl Families {
    fn add_variables(self, launcher: &Launcher, own_shm: bool, variables: &mut Vec<(&'static str, OsString)>) {
        let unset = |name: &str| std::env::var_os(name).is_none();
        let mut set = |name, value: &str| variables.push((name, OsString::from(value)));
        if self.mpich {
            set("MPIR_CVAR_CH4_NETMOD", "ofi");
            if !own_shm && unset("MPIR_CVAR_NOLOCAL") {
                set("MPIR_CVAR_NOLOCAL", "1");
            }
        }
        if self.intel && (unset("I_MPI_FABRICS") || own_shm) {
            set("I_MPI_FABRICS", if own_shm { "shm:ofi" } else { "ofi" });
        }
        if self.open_mpi {
            // With the layers named, Open MPI stops with a message where it cannot use them.
            set("OMPI_MCA_pml", "cm");
            set("OMPI_MCA_mtl", "ofi");
            // The component sm serves shared windows, which no other one does. Its windows of other kinds would not use
            // weft, so the component for libfabric comes first there.
            if unset("OMPI_MCA_osc") {
                set("OMPI_MCA_osc", "^ucx");
                if unset("OMPI_MCA_osc_sm_priority") {
                    set("OMPI_MCA_osc_sm_priority", "1");
                }
            }
        }
        if self.shmem {
            set("SHMEM_OFI_PROVIDER", "weft");
        }
        if let (Kind::IntelHydra, Some(prefix)) = (launcher.kind(), launcher.prefix()) {
            // An installation from PyPI has no script that sets these.
            if unset("I_MPI_ROOT") {
                variables.push(("I_MPI_ROOT", prefix.into()));
            }
            let paths = [("LD_LIBRARY_PATH", "lib"), ("PATH", "bin")];
            let paths = paths.map(|(name, folder)| Some((name, mpi::prepended(name, &prefix.join(folder))?)));
            variables.extend(paths.into_iter().flatten());
        }
    }

    /// Whether the library may carry messages inside a host itself. Open MPI does not, with the layers that are set.
    fn keep_own_shm(self, variables: &[(&'static str, OsString)]) -> bool {
        let value = |name: &str| {
            let set = variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
            set.or_else(|| std::env::var_os(name)).unwrap_or_default().to_string_lossy().to_ascii_lowercase()
        };
        (self.mpich && ["", "0", "n", "no", "false", "off"].contains(&value("MPIR_CVAR_NOLOCAL").as_str()))
            || (self.intel && value("I_MPI_FABRICS").contains("shm"))
    }
}

/// The value of LD_PRELOAD with the collectives.
fn preload_value(provider: &Path) -> io::Result<OsString> {
    let library = provider.with_file_name(COLLECTIVES);
    if !library.is_file() {
        let text =
            format!("{} does not exist; install weft with its collectives, or omit --collectives", library.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    Ok(mpi::prepended("LD_PRELOAD", &library).unwrap_or_else(|| std::env::var_os("LD_PRELOAD").unwrap_or_default()))
}

/// The options for the launcher, which follow its name.
fn added_options(
    kind: Kind,
    variables: &[(&'static str, OsString)],
    preload: Option<&OsStr>,
    command: &[OsString],
) -> Vec<OsString> {
    let with = |name: &str, preload: &OsStr| {
        let mut text = OsString::from(name);
        text.push(preload);
        text
    };
    match (kind, preload) {
        (Kind::Hydra | Kind::IntelHydra, Some(preload)) => vec!["-genv".into(), "LD_PRELOAD".into(), preload.into()],
        (Kind::Srun, Some(preload)) => vec![with("--export=ALL,LD_PRELOAD=", preload)],
        (Kind::OpenMpi, preload) => {
            let present = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
            let names: BTreeSet<String> = present
                .chain(variables.iter().map(|(name, _)| (*name).to_owned()))
                .chain(["FI_WEFT_REPORT".to_owned()])
                .filter(|name| name.starts_with("FI_"))
                .collect();
            let given = |name: &str| command.windows(2).any(|pair| pair[0] == "-x" && names_variable(&pair[1], name));
            let mut options: Vec<OsString> =
                names.iter().filter(|name| !given(name)).flat_map(|name| ["-x".into(), name.into()]).collect();
            if let Some(preload) = preload {
                options.extend(["-x".into(), with("LD_PRELOAD=", preload)]);
            }
            options
        }
        _ => Vec::new(),
    }
}

/// Whether the argument of `-x` names this variable.
fn names_variable(argument: &OsStr, name: &str) -> bool {
    argument.to_string_lossy().split('=').next() == Some(name)
}

/// A word in quotes, if a shell needs them.
fn quoted(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let plain = |char: char| char.is_ascii_alphanumeric() || "-_./=:,+@%^".contains(char);
    if !text.is_empty() && text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn open_mpi_gets_the_names_of_variables() {
        let variables = [("FI_PROVIDER", OsString::from("weft")), ("OMPI_MCA_pml", OsString::from("cm"))];
        let command = words(&["mpirun", "-x", "FI_PROVIDER_PATH=/x", "./a.out"]);
        let added = added_options(Kind::OpenMpi, &variables, Some(OsStr::new("/c.so")), &command);
        let text = added.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        assert!(text.contains("-x FI_PROVIDER -x FI_WEFT_REPORT") && text.ends_with("-x LD_PRELOAD=/c.so"), "{text}");
        assert!(!text.contains("OMPI_MCA") && !text.contains("FI_PROVIDER_PATH"), "{text}");
    }

    #[test]
    fn launchers_pass_the_preloaded_library_to_ranks_only() {
        let options = |kind| added_options(kind, &[], Some(OsStr::new("/c.so")), &[]);
        assert_eq!(options(Kind::Hydra), words(&["-genv", "LD_PRELOAD", "/c.so"]));
        assert_eq!(options(Kind::Srun), words(&["--export=ALL,LD_PRELOAD=/c.so"]));
        assert!(options(Kind::None).is_empty() && added_options(Kind::Hydra, &[], None, &[]).is_empty());
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted(OsStr::new("^sm,ucx")), "^sm,ucx");
        assert_eq!(quoted(OsStr::new("a b")), "'a b'");
        assert_eq!(quoted(OsStr::new("it's")), r"'it'\''s'");
        assert_eq!(quoted(OsStr::new("")), "''");
    }

    #[test]
    fn an_unknown_library_gets_the_variables_of_all() {
        let launcher = Launcher::new(Kind::Srun, PathBuf::from("/usr/bin/srun"));
        let mut variables = Vec::new();
        let families = Families::of(&launcher, None);
        families.add_variables(&launcher, false, &mut variables);
        let names: Vec<_> = variables.iter().map(|(name, _)| *name).collect();
        for name in ["MPIR_CVAR_NOLOCAL", "I_MPI_FABRICS", "OMPI_MCA_mtl", "SHMEM_OFI_PROVIDER"] {
            assert!(names.contains(&name), "{name} in {names:?}");
        }
        assert!(!families.keep_own_shm(&variables));
        let mut variables = Vec::new();
        families.add_variables(&launcher, true, &mut variables);
        assert!(families.keep_own_shm(&variables));
    }
}
