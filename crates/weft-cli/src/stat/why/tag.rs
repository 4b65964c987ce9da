//! Communicators and tags of MPI in the tags of messages.
//!
//! Place in the data flow: a tag of `weft_observe::layout::Wait` → here → the words of `weft why`. MPI libraries place
//! the number of the communicator, the program's tag and flags of their own in the 64 bits. The layouts are those of
//! MPICH's device for libfabric, of Intel MPI, and of Open MPI's component `mtl/ofi`. Tags of other clients are shown
//! as they are.

use std::path::Path;

use super::super::find::text;

/// A file beside Intel MPI's library, which has the name of MPICH's.
const OF_INTEL: &str = "libmpi_shm_heap_proxy.so";

/// The library that has made a tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Library {
    Mpich,
    Intel,
    OpenMpi,
    #[default]
    Other,
}

/// The parts of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    /// The library's number of the communicator. 0: MPI_COMM_WORLD.
    pub(crate) communicator: u64,
    /// The program's tag, or that of a collective.
    pub(crate) tag: i64,
    /// Whether the message belongs to a collective of the library.
    pub(crate) collective: bool,
}

/// The places of the parts.
struct Layout {
    tag_bits: u32,
    context_at: u32,
    context_bits: u32,
    /// The bits of the context that tell collectives.
    kind_bits: u32,
}

impl Library {
    /// The MPI library of a process.
    pub(crate) fn of(pid: u32) -> Self {
        let maps = text(Path::new(&format!("/proc/{pid}/maps"))).unwrap_or_default();
        maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find_map(Self::of_file).unwrap_or_default()
    }

    /// The library in a file.
    fn of_file(path: &str) -> Option<Self> {
        let name = path.rsplit('/').next().unwrap_or_default();
        let is = |start: &str| name.starts_with(start);
        match name {
            _ if is("libmpi.so.40") => Some(Self::OpenMpi),
            _ if is("libmpi.so.12") || is("libmpich.so.12") || is("libmpi_abi.so.1") => {
                let is_intel = Path::new(path).with_file_name(OF_INTEL).exists();
                Some(if is_intel { Self::Intel } else { Self::Mpich })
            }
            _ => None,
        }
    }

    const fn layout(self) -> Option<Layout> {
        match self {
            Self::Mpich => Some(Layout { tag_bits: 31, context_at: 31, context_bits: 20, kind_bits: 1 }),
            Self::Intel => Some(Layout { tag_bits: 20, context_at: 20, context_bits: 20, kind_bits: 2 }),
            Self::OpenMpi => Some(Layout { tag_bits: 32, context_at: 34, context_bits: 24, kind_bits: 0 }),
            Self::Other => None,
        }
    }

    /// The parts of a tag, if the library is known.
    pub(crate) fn parts(self, tag: u64) -> Option<Parts> {
        let Layout { tag_bits, context_at, context_bits, kind_bits } = self.layout()?;
        let context = (tag >> context_at) & ((1 << context_bits) - 1);
        let low = tag & ((1 << tag_bits) - 1);
        let kind = context & ((1 << kind_bits) - 1);
        // Open MPI's collectives have negative tags.
        let signed = i64::from(u32::try_from(low).unwrap_or_default().cast_signed());
        let collective = kind != 0 || (self == Self::OpenMpi && signed < 0);
        Some(Parts { communicator: context - kind, tag: signed, collective })
    }

    /// The bits of a program's tag.
    pub(crate) fn tag_mask(self) -> Option<u64> {
        self.layout().map(|layout| (1 << layout.tag_bits) - 1)
    }

    /// The name of a collective, by the tag of its messages.
    fn collective(self, tag: i64) -> Option<&'static str> {
        const MPICH: [&str; 15] = [
            "",
            "barrier",
            "bcast",
            "gather",
            "gatherv",
            "scatter",
            "scatterv",
            "allgather",
            "allgatherv",
            "alltoall",
            "alltoallv",
            "reduce",
            "",
            "",
            "allreduce",
        ];
        const OPEN_MPI: [&str; 8] =
            ["allgather", "allgatherv", "allreduce", "alltoall", "alltoallv", "alltoallw", "barrier", "bcast"];
        let name = match self {
            Self::Mpich => MPICH.get(usize::try_from(tag).ok()?),
            Self::OpenMpi => OPEN_MPI.get(usize::try_from(-tag - 10).ok()?),
            Self::Intel | Self::Other => None,
        };
        name.copied().filter(|name| !name.is_empty())
    }

    /// Words for the tag of a receive that ignores these bits, or of a message.
    pub(crate) fn words(self, tag: u64, ignore: u64) -> String {
        let Some(parts) = self.parts(tag) else {
            let mask = if ignore == 0 { String::new() } else { format!(" but {ignore:#x}") };
            return format!("tag {tag:#x}{mask}");
        };
        let of = match parts.communicator {
            0 => "MPI_COMM_WORLD".to_owned(),
            number => format!("communicator {number}"),
        };
        if parts.collective {
            let name =
                self.collective(parts.tag).map_or_else(|| "a collective".to_owned(), |name| format!("MPI's {name}"));
            return format!("{name} in {of}");
        }
        let any = self.tag_mask().is_some_and(|mask| ignore & mask & 0xfffff != 0);
        if any { format!("any tag in {of}") } else { format!("tag {} in {of}", parts.tag) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_mpi_libraries_are_read() {
        let parts = |communicator, tag, collective| Some(Parts { communicator, tag, collective });
        assert_eq!(Library::Mpich.parts(0x0040_00f8_0000_0009), parts(496, 9, false));
        assert_eq!(Library::Mpich.parts(0x0000_0000_8000_0002), parts(0, 2, true));
        assert_eq!(Library::Intel.parts(0x0000_0100_1f00_0006), parts(496, 6, false));
        assert_eq!(Library::Intel.parts(0x0000_0000_1f30_0002), parts(496, 2, true));
        assert_eq!(Library::OpenMpi.parts(0x0000_000d_0000_0009), parts(3, 9, false));
        assert_eq!(Library::OpenMpi.parts(0x0000_000c_ffff_fff0), parts(3, -16, true));
        assert_eq!(Library::Other.parts(5), None);
    }

    #[test]
    fn libraries_are_known_by_their_files() {
        assert_eq!(Library::of_file("/v/lib/libmpi.so.12.5.1"), Some(Library::Mpich));
        assert_eq!(Library::of_file("/v/lib/libmpi.so.40.40.7"), Some(Library::OpenMpi));
        assert_eq!(Library::of_file("/v/lib/libmpifort.so.12"), None);
    }

    #[test]
    fn words_are_those_of_mpi() {
        assert_eq!(Library::Mpich.words(5, 0x00c0 << 48), "tag 5 in MPI_COMM_WORLD");
        assert_eq!(Library::Mpich.words(0xf8 << 32, 0x00c0_0000_7fff_ffff), "any tag in communicator 496");
        assert_eq!(Library::Mpich.words(0x8000_0001, 0), "MPI's barrier in MPI_COMM_WORLD");
        assert_eq!(Library::OpenMpi.words(0xc_ffff_ffef, 1 << 32), "MPI's bcast in communicator 3");
        assert_eq!(Library::Other.words(0x11, 0xf0), "tag 0x11 but 0xf0");
        assert_eq!(Library::Intel.words(0x0030_0002, 0), "a collective in MPI_COMM_WORLD");
    }
}
