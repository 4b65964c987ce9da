//! The MPI library of the process: where it is, its ABI, and its functions by name.
//!
//! Place in the data flow: every call to the MPI library passes [`Symbol`]. The library is looked for when a function
//! is first called. It is then loaded, whatever loaded it.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::chain;

use libloading::os::unix::Library;

/// An MPI handle as it is passed in a register.
pub(crate) type Handle = usize;

/// The families of binary interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abi {
    /// MPICH and its relatives, among them Intel MPI: handles are numbers of 32 bits.
    Mpich,
    /// Open MPI: handles are pointers to objects that the library exports.
    OpenMpi,
    /// The interface of the MPI standard (MPI 5.0, chapter 20): handles are pointers. Predefined ones are numbers.
    Standard,
    /// Another interface. Every call is passed on.
    Other,
}

/// The names under which MPI libraries are loaded.
const NAMES: [(&str, Abi); 4] = [
    ("libmpi.so.12", Abi::Mpich),
    ("libmpich.so.12", Abi::Mpich),
    ("libmpi.so.40", Abi::OpenMpi),
    ("libmpi_abi.so.1", Abi::Standard),
];

/// The loaded MPI library.
pub(crate) struct Mpi {
    /// `None`: the libraries that the loader searches after this one.
    library: Option<Library>,
    abi: Abi,
}

/// The MPI library, once it is loaded.
pub(crate) fn loaded() -> Option<&'static Mpi> {
    static LOADED: OnceLock<Mpi> = OnceLock::new();
    if let Some(mpi) = LOADED.get() {
        return Some(mpi);
    }
    let found = NAMES.iter().find_map(|&(name, abi)| {
        // SAFETY: with RTLD_NOLOAD no constructor runs.
        let opened = unsafe { Library::open(Some(name), libc::RTLD_LAZY | libc::RTLD_LOCAL | libc::RTLD_NOLOAD) };
        opened.ok().map(|library| Mpi { library: Some(library), abi })
    });
    let found = found.or_else(|| {
        // A library under another name.
        let rest = Mpi { library: None, abi: Abi::Other };
        let open_mpi = rest.address(c"ompi_mpi_comm_world").is_some();
        let abi = if open_mpi { Abi::OpenMpi } else { Abi::Other };
        rest.address(c"PMPI_Init").map(|_| Mpi { abi, ..rest })
    })?;
    if let Some(function) = found.address(c"PMPI_Init") {
        chain::set_library(function);
    }
    Some(LOADED.get_or_init(|| found))
}

impl Mpi {
    pub(crate) const fn abi(&self) -> Abi {
        self.abi
    }

    /// The address of a function or object.
    pub(crate) fn address(&self, name: &CStr) -> Option<*mut c_void> {
        let Some(library) = &self.library else { return chain::after_this(name) };
        // SAFETY: the address is only used as the standard or the ABI says.
        let found = unsafe { library.get::<*mut c_void>(name.to_bytes_with_nul()) };
        found.ok().map(|symbol| symbol.into_raw()).filter(|address| !address.is_null())
    }

    /// A handle without the bits that the ABI leaves undefined in a register or in memory.
    pub(crate) const fn handle(&self, register: Handle) -> Handle {
        match self.abi {
            Abi::Mpich => register & 0xffff_ffff,
            Abi::OpenMpi | Abi::Standard | Abi::Other => register,
        }
    }

    /// Bytes of a handle in memory.
    const fn handle_bytes(&self) -> usize {
        match self.abi {
            Abi::Mpich => 4,
            Abi::OpenMpi | Abi::Standard | Abi::Other => 8,
        }
    }

    /// A predefined handle.
    pub(crate) fn constant(&self, named: &Named) -> Option<Handle> {
        match self.abi {
            Abi::Mpich => Some(named.mpich),
            Abi::OpenMpi => self.object(named.open_mpi).map(|address| address as Handle),
            Abi::Standard => Some(named.standard),
            Abi::Other => None,
        }
    }

    /// The address of an object. A program that is linked with the library may have a copy, which then is the object.
    fn object(&self, name: &CStr) -> Option<*mut c_void> {
        let program = Self { library: Some(Library::this()), abi: self.abi };
        program.address(name).or_else(|| self.address(name))
    }

    /// The place `index` of an array of handles.
    pub(crate) const fn place(&self, array: *mut c_void, index: usize) -> *mut c_void {
        array.wrapping_byte_add(index * self.handle_bytes())
    }

    /// The handle at place `index` of an array.
    ///
    /// # Safety
    /// The array has that many handles.
    pub(crate) unsafe fn read(&self, array: *const c_void, index: usize) -> Handle {
        let at = array.wrapping_byte_add(index * self.handle_bytes());
        if self.handle_bytes() == 4 {
            // SAFETY: by the caller's promise.
            unsafe { at.cast::<u32>().read_unaligned() as Handle }
        } else {
            // SAFETY: by the caller's promise.
            unsafe { at.cast::<Handle>().read_unaligned() }
        }
    }

    /// Writes a handle.
    ///
    /// # Safety
    /// `at` has room for one.
    pub(crate) unsafe fn write(&self, at: *mut c_void, handle: Handle) {
        let bytes = handle.to_ne_bytes();
        // SAFETY: by the caller's promise. The low half of a number comes first.
        unsafe { at.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), self.handle_bytes()) };
    }

    /// `MPI_IN_PLACE`.
    pub(crate) const fn in_place(&self) -> usize {
        match self.abi {
            Abi::Mpich => usize::MAX,
            Abi::OpenMpi | Abi::Standard | Abi::Other => 1,
        }
    }

    /// `MPI_STATUS_IGNORE`.
    pub(crate) const fn status_ignore(&self) -> usize {
        match self.abi {
            Abi::Mpich => 1,
            Abi::OpenMpi | Abi::Standard | Abi::Other => 0,
        }
    }

    /// Bytes of a status.
    pub(crate) const fn status_bytes(&self) -> usize {
        match self.abi {
            Abi::Mpich => 20,
            Abi::OpenMpi | Abi::Other => 24,
            Abi::Standard => 32,
        }
    }

    /// The places of `MPI_SOURCE` and `MPI_TAG` in a status, in bytes.
    pub(crate) const fn status_fields(&self) -> [usize; 2] {
        match self.abi {
            Abi::Mpich => [8, 12],
            Abi::OpenMpi | Abi::Standard | Abi::Other => [0, 4],
        }
    }

    /// `MPI_ERR_OTHER`.
    pub(crate) const fn err_other(&self) -> c_int {
        match self.abi {
            Abi::Mpich => 15,
            Abi::OpenMpi | Abi::Standard | Abi::Other => 16,
        }
    }

    /// The most bytes of an error text, with the null byte at its end.
    pub(crate) const fn max_error_string(&self) -> usize {
        match self.abi {
            Abi::Mpich | Abi::Standard => 512,
            Abi::OpenMpi | Abi::Other => 256,
        }
    }

    /// The numbers of shared memory.
    pub(crate) const fn shared(&self) -> &'static SharedNumbers {
        match self.abi {
            Abi::Mpich => &SharedNumbers {
                split: 1,
                proc_null: -1,
                create_flavor: 0x6600_0007,
                flavor: 4,
                err_no_mem: 34,
                err_size: 51,
                err_disp: 52,
            },
            Abi::OpenMpi | Abi::Other => &SharedNumbers {
                split: 0,
                proc_null: -2,
                create_flavor: 10,
                flavor: 4,
                err_no_mem: 39,
                err_size: 49,
                err_disp: 26,
            },
            Abi::Standard => &SharedNumbers {
                split: 221,
                proc_null: -3,
                create_flavor: 604,
                flavor: 314,
                err_no_mem: 39,
                err_size: 52,
                err_disp: 26,
            },
        }
    }

    /// `MPI_ERR_TRUNCATE`.
    pub(crate) const fn err_truncate(&self) -> c_int {
        self.err_other() - 1
    }
}

/// The numbers of communicators and windows with shared memory.
pub(crate) struct SharedNumbers {
    /// `MPI_COMM_TYPE_SHARED`.
    pub(crate) split: c_int,
    /// `MPI_PROC_NULL`.
    pub(crate) proc_null: c_int,
    /// `MPI_WIN_CREATE_FLAVOR`.
    pub(crate) create_flavor: c_int,
    /// `MPI_WIN_FLAVOR_SHARED`.
    pub(crate) flavor: c_int,
    /// `MPI_ERR_NO_MEM`.
    pub(crate) err_no_mem: c_int,
    /// `MPI_ERR_SIZE`.
    pub(crate) err_size: c_int,
    /// `MPI_ERR_DISP`.
    pub(crate) err_disp: c_int,
}

/// A predefined handle in each binary interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    /// The number of MPICH and Intel MPI.
    mpich: Handle,
    /// The object of Open MPI.
    open_mpi: &'static CStr,
    /// The number of the MPI standard (MPI 5.0, appendix A).
    standard: Handle,
}

impl Named {
    pub(crate) const fn new(mpich: Handle, open_mpi: &'static CStr, standard: Handle) -> Self {
        Self { mpich, open_mpi, standard }
    }

    pub(crate) const fn mpich(&self) -> Handle {
        self.mpich
    }

    #[cfg(test)]
    pub(crate) const fn standard(&self) -> Handle {
        self.standard
    }
}

/// `MPI_UNDEFINED`, in all ABIs.
pub(crate) const UNDEFINED: c_int = -32766;
/// `MPI_ERR_BUFFER`, in all ABIs.
pub(crate) const ERR_BUFFER: c_int = 1;
/// `MPI_ERR_COUNT`, in all ABIs.
pub(crate) const ERR_COUNT: c_int = 2;
/// `MPI_ERR_TYPE`, in all ABIs.
pub(crate) const ERR_TYPE: c_int = 3;
/// `MPI_ERR_RANK`, in all ABIs.
pub(crate) const ERR_RANK: c_int = 6;
/// `MPI_SUCCESS`.
pub(crate) const SUCCESS: c_int = 0;

/// A function of the MPI library, which is looked up at its first call.
pub(crate) struct Symbol {
    /// Ends in a null byte.
    name: &'static str,
    address: AtomicPtr<c_void>,
}

impl Symbol {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The function's address, if the library has the function.
    pub(crate) fn find(&self) -> Option<*mut c_void> {
        let known = self.address.load(Ordering::Acquire);
        if known.is_null() { self.look_up() } else { Some(known) }
    }

    #[cold]
    fn look_up(&self) -> Option<*mut c_void> {
        let name = CStr::from_bytes_with_nul(self.name.as_bytes()).ok()?;
        let address = loaded()?.address(name)?;
        self.address.store(address, Ordering::Release);
        Some(address)
    }

    /// Reports that the function does not exist. Returns an error of MPI.
    #[cold]
    pub(crate) fn missing(&self) -> c_int {
        let name = self.name.trim_end_matches('\0');
        eprintln!("weft-coll: the process has no MPI library with {name}. Load the program's MPI library first.");
        loaded().map_or(16, Mpi::err_other)
    }
}

/// Calls a function of the MPI library by name. Each argument is followed by its type.
macro_rules! pmpi {
    ($name:expr, $($argument:expr => $ty:ty),* $(,)?) => {{
        static SYMBOL: $crate::mpi::Symbol = $crate::mpi::Symbol::new(concat!($name, "\0"));
        match SYMBOL.find() {
            Some(address) => {
                type Function = unsafe extern "C" fn($($ty),*) -> std::ffi::c_int;
                // SAFETY: the MPI standard gives the function this type, with handles as whole registers.
                let function = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Function>(address) };
                // SAFETY: the arguments are those of the program's own call, or valid during the call.
                unsafe { function($($argument),*) }
            }
            None => SYMBOL.missing(),
        }
    }};
}

pub(crate) use pmpi;
