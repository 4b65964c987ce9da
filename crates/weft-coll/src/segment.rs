//! Memory that the members of a communicator on one host map.
//!
//! Place in the data flow: `nodes` tries it with a page before it makes a node communicator, and `windows` makes the
//! memory of shared windows. The first member makes a memory file and passes it to the others
//! ([`weft_os::rendezvous`]). The file has no name, so nothing is left when ranks are killed.

use std::ffi::c_void;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use weft_os::memfile::Whole;
use weft_os::rendezvous::{self, Caller, Token};

use crate::cards::Cards;
use crate::mpi::Handle;
use crate::pmpi::Pmpi;

/// The limit for all members to get the file. All of them have called by then.
const LIMIT: Duration = Duration::from_secs(30);
const LOST: &str = "the MPI library could not exchange the place of the memory";

/// Memory that all members have mapped, each at an address of its own.
pub(crate) struct Segment(Whole);

/// The file at the first member, until the others have it.
struct Offer {
    file: OwnedFd,
    memory: Whole,
    listener: UnixListener,
    token: Token,
}

impl Offer {
    fn make(bytes: usize, members: usize) -> Result<Self, String> {
        let most = rendezvous::most_callers() as usize;
        if members > most {
            return Err(format!(
                "{members} members are more than may call at a time: raise net.core.somaxconn ({most})"
            ));
        }
        let left = weft_os::memory::available();
        if let Some(left) = left.filter(|left| *left < bytes as u64) {
            return Err(format!(
                "the members ask for {bytes} bytes of shared memory, and the host or its control group has {left} left; \
                 make the windows smaller, or raise the limit of the group"
            ));
        }
        let (file, memory) = Whole::create(c"weft-window", bytes).map_err(|error| error.to_string())?;
        let token = Token::random().map_err(|error| error.to_string())?;
        let listener = rendezvous::listen(&token).map_err(|error| error.to_string())?;
        Ok(Self { file, memory, listener, token })
    }

    fn pass(self, members: usize) -> Result<Whole, String> {
        let callers = u32::try_from(members - 1).unwrap_or(u32::MAX);
        let passed = rendezvous::serve(&self.listener, &self.token, self.file.as_fd(), callers, LIMIT);
        passed.map(|()| self.memory).map_err(|error| error.to_string())
    }
}

/// The first member and the others on the way to the memory.
enum Side {
    First(Offer),
    Other(Caller),
}

impl Side {
    /// Calls the first member, whose card has the token.
    fn call(card: &[u8]) -> Result<Self, String> {
        let token = card.try_into().map(Token::from_bytes).map_err(|_| LOST.to_owned())?;
        Caller::call(&token).map(Self::Other).map_err(|error| error.to_string())
    }

    /// Passes or takes the file.
    fn meet(self, members: usize, bytes: usize) -> Result<Whole, String> {
        match self {
            Self::First(offer) => offer.pass(members),
            Self::Other(caller) => {
                let whole = caller.receive(LIMIT).and_then(|file| Whole::adopt(file, bytes));
                whole.map_err(|error| error.to_string())
            }
        }
    }
}

impl Segment {
    /// Makes memory of all members, or of none. The reason of a failure is the same at all members: the first rank that
    /// has failed, and its text.
    pub(crate) fn share(pmpi: &Pmpi, comm: Handle, bytes: usize) -> Result<Self, (usize, String)> {
        let lost = || (0, LOST.to_owned());
        let (rank, members) = pmpi.rank(comm).zip(pmpi.size(comm)).ok_or_else(lost)?;
        // An exchange ends with an error at all members if it does at one. None of them then waits for another one.
        let exchange = |own: Result<&[u8], &String>| {
            let own = own.map_err(String::as_str);
            let cards = Cards::exchange(pmpi, comm, members, own).ok_or_else(lost)?;
            cards.failure().map_or(Ok(cards), Err)
        };
        let offer = (rank == 0).then(|| Offer::make(bytes, members)).transpose();
        let token =
            offer.as_ref().map(|offer| offer.as_ref().map_or([0; Token::BYTES], |offer| offer.token.to_bytes()));
        let cards = exchange(token.as_ref().map(|token| &token[..]).map_err(|reason| *reason))?;
        let side = offer.and_then(|offer| match offer {
            Some(offer) => Ok(Side::First(offer)),
            None => Side::call(cards.texts().next().unwrap_or_default()),
        });
        exchange(side.as_ref().map(|_| &b""[..]))?;
        let memory = side.and_then(|side| side.meet(members, bytes));
        exchange(memory.as_ref().map(|_| &b""[..]))?;
        memory.map(Self).map_err(|_| lost())
    }

    /// The address at an offset.
    pub(crate) fn at(&self, offset: usize) -> *mut c_void {
        self.0.base().as_ptr().wrapping_add(offset).cast()
    }
}
