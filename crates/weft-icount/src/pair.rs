//! Two connected endpoints: `near`, whose operations are counted, and `far`, its peer.

use std::time::{Duration, Instant};

use weft_client::{Address, Caps, Domain, Endpoint, Error, Library, Piece, Posted, Progress, Region, Requirements};

/// The send buffer: the number at the start of the memory.
pub(crate) const SOURCE: Piece = Piece { offset: 0, len: 8 };
/// The receive buffer, in a cache line of its own.
pub(crate) const TARGET: Piece = Piece { offset: 64, len: 8 };
/// The tag of every message.
pub(crate) const TAG: u64 = 7;
/// The slot of every single operation.
pub(crate) const SLOT: u32 = 0;
/// Number of operations in a window.
pub(crate) const WINDOW: u32 = 16;

const MEMORY_BYTES: usize = 4096;
const CONTEXTS: u32 = WINDOW;
/// Time limit for each step, under valgrind and on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// An endpoint, with its peer's address and region.
pub(crate) struct Side {
    pub(crate) ep: Endpoint,
    pub(crate) peer: Address,
    pub(crate) region: Region,
}

impl Side {
    /// Reads completions, uncounted. Returns their number.
    pub(crate) fn poll(&mut self) -> Result<usize, Error> {
        self.ep.poll(|_| ())
    }

    /// Reads completions, uncounted, where there can be none.
    pub(crate) fn idle(&mut self) -> Result<(), Error> {
        nothing(self.poll()?)
    }

    /// Sends a message without completion, uncounted.
    pub(crate) fn inject(&mut self) -> Result<Posted, Error> {
        self.ep.tagged_inject(SOURCE, self.peer, TAG)
    }

    /// Posts the receive for a message, uncounted.
    pub(crate) fn receive(&mut self) -> Result<Posted, Error> {
        self.ep.tagged_recv(SLOT, TARGET, TAG, 0)
    }
}

/// The kind of endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ordinary,
    /// Operations complete only when the peer has the data.
    Delivery,
    /// As for delivery, with memory that the peer maps, if the provider has such memory.
    Mapped,
}

/// The two endpoints.
pub(crate) struct Pair {
    pub(crate) near: Side,
    pub(crate) far: Side,
}

impl Pair {
    /// Opens both endpoints as MPI libraries do, with manual progress and a promise of serial calls. Each has
    /// a domain of its own, because a provider may progress all endpoints of a domain when one is polled.
    pub(crate) fn open(library: &'static Library, provider: &str, kind: Kind) -> Result<Self, Error> {
        let wanted = Requirements {
            provider: provider.to_owned(),
            caps: Caps { rma: true, atomic: kind == Kind::Mapped, ..Caps::default() },
            progress: Some(Progress::Manual),
            delivery: kind != Kind::Ordinary,
            mapped: kind == Kind::Mapped,
            ..Requirements::default()
        };
        let open = || Endpoint::open(&Domain::open(library, &wanted)?, MEMORY_BYTES, CONTEXTS, 1);
        let (mut near, mut far) = (open()?, open()?);
        let near_sees = (insert(&mut near, &far)?, far.region());
        let far_sees = (insert(&mut far, &near)?, near.region());
        let side = |ep, (peer, region)| Side { ep, peer, region };
        Ok(Self { near: side(near, near_sees), far: side(far, far_sees) })
    }

    /// Sends a message in each direction, so that links are up.
    pub(crate) fn connect(&mut self) -> Result<(), Error> {
        for _ in 0..2 {
            self.post(|pair| pair.far.receive())?;
            self.post(|pair| pair.near.inject())?;
            self.arrive()?;
            std::mem::swap(&mut self.near, &mut self.far);
        }
        self.settle()
    }

    /// Whether writes are complete without the far side. The first ones make it pass its memory on.
    pub(crate) fn is_mapped(&mut self) -> Result<bool, Error> {
        let mut alone = false;
        for _ in 0..3 {
            self.post(|pair| {
                let near = &mut pair.near;
                near.ep.write(SLOT, SOURCE, near.peer, near.region, SOURCE.offset)
            })?;
            alone = self.near.poll()? > 0;
            let mut done = alone;
            self.until(|pair| {
                pair.far.idle()?;
                done |= !done && pair.near.poll()? > 0;
                Ok(done)
            })?;
            self.settle()?;
        }
        Ok(alone)
    }

    /// Waits until the far side's receive is complete.
    pub(crate) fn arrive(&mut self) -> Result<(), Error> {
        self.until(|pair| {
            pair.near.idle()?;
            Ok(pair.far.poll()? > 0)
        })
    }

    /// Posts an operation, and retries while there is no room.
    pub(crate) fn post(&mut self, mut operation: impl FnMut(&mut Self) -> Result<Posted, Error>) -> Result<(), Error> {
        self.until(|pair| {
            let posted = operation(pair)?;
            if posted == Posted::Again {
                pair.near.idle()?;
                pair.far.idle()?;
            }
            Ok(posted == Posted::Done)
        })
    }

    /// Repeats `done` until it returns true.
    pub(crate) fn until(&mut self, mut done: impl FnMut(&mut Self) -> Result<bool, Error>) -> Result<(), Error> {
        let end = Instant::now() + PATIENCE;
        while !done(self)? {
            if Instant::now() > end {
                return Err(Error::Misuse("an operation does not complete"));
            }
        }
        Ok(())
    }

    /// Lets both endpoints process the rest of an operation (acknowledgements, returned buffers), so that
    /// each operation starts from the same state.
    pub(crate) fn settle(&mut self) -> Result<(), Error> {
        for _ in 0..4 {
            self.near.idle()?;
            self.far.idle()?;
        }
        Ok(())
    }
}

/// Inserts the address of one endpoint at the other.
fn insert(ep: &mut Endpoint, other: &Endpoint) -> Result<Address, Error> {
    let addresses = ep.insert(other.name(), 1)?;
    addresses.first().copied().ok_or(Error::Misuse("an address vector that gives no address"))
}

/// Fails if there are completions.
pub(crate) fn nothing(completions: usize) -> Result<(), Error> {
    match completions {
        0 => Ok(()),
        _ => Err(Error::Misuse("a completion without an operation")),
    }
}
