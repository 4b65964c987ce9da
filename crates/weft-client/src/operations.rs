//! The operations of an endpoint. Each checks its arguments and makes one call through the endpoint's tables,
//! as the inline functions of libfabric's headers do. Then it records that the provider holds the context.

use std::ffi::{c_int, c_void};

use weft_fi_sys::*;

use crate::endpoint::{Address, Endpoint, Piece, Posted, Region};
use crate::{Error, Library};

impl Library {
    /// Returns a function of an operation table, or an error if the provider left it out.
    pub(crate) fn has<F>(&self, what: &'static str, function: Option<F>) -> Result<F, Error> {
        function.ok_or_else(|| self.missing(what))
    }

    #[cold]
    pub(crate) fn missing(&self, what: &'static str) -> Error {
        Error::Call { what, code: FI_ENOSYS, text: self.text(FI_ENOSYS) }
    }
}

/// A table of the endpoint; it is null if the capability was not requested.
macro_rules! table {
    ($this:expr, $table:ident) => {{
        // SAFETY: the endpoint is open as long as this structure exists.
        let head = unsafe { &*$this.ep };
        // SAFETY: a table of an open endpoint is valid, or null.
        let table = unsafe { head.$table.as_ref() };
        table.ok_or_else(|| {
            Error::NotOffered(concat!("the provider has no operation table ", stringify!($table)).to_owned())
        })?
    }};
}

impl Endpoint {
    /// Sends a tagged message.
    #[inline]
    pub fn tagged_send(&mut self, slot: u32, piece: Piece, to: Address, tag: u64) -> Result<Posted, Error> {
        let (buffer, context) = (self.at(piece)?, self.claim(slot)?);
        let call = self.inner().library.has("fi_tsend", table!(self, tagged).send)?;
        // SAFETY: the range is inside our memory and the context is free; both outlive the operation.
        let result = unsafe { call(self.ep, buffer, piece.len, self.desc, to.0, tag, context) };
        self.posted("fi_tsend", slot, result)
    }

    /// Receives a tagged message from any source. Tag bits that are set in `ignore` are not compared.
    #[inline]
    pub fn tagged_recv(&mut self, slot: u32, piece: Piece, tag: u64, ignore: u64) -> Result<Posted, Error> {
        let (buffer, context) = (self.at(piece)?, self.claim(slot)?);
        let call = self.inner().library.has("fi_trecv", table!(self, tagged).recv)?;
        // SAFETY: as in `tagged_send`.
        let result = unsafe { call(self.ep, buffer, piece.len, self.desc, FI_ADDR_UNSPEC, tag, ignore, context) };
        self.posted("fi_trecv", slot, result)
    }

    /// Sends a short tagged message without completion.
    #[inline]
    pub fn tagged_inject(&mut self, piece: Piece, to: Address, tag: u64) -> Result<Posted, Error> {
        let buffer = self.at(piece)?;
        let call = self.inner().library.has("fi_tinject", table!(self, tagged).inject)?;
        // SAFETY: the range is inside our memory, and is free again when the call returns.
        let result = unsafe { call(self.ep, buffer, piece.len, to.0, tag) };
        self.injected("fi_tinject", result)
    }

    /// Sends a message.
    #[inline]
    pub fn send(&mut self, slot: u32, piece: Piece, to: Address) -> Result<Posted, Error> {
        let (buffer, context) = (self.at(piece)?, self.claim(slot)?);
        let call = self.inner().library.has("fi_send", table!(self, msg).send)?;
        // SAFETY: as in `tagged_send`.
        let result = unsafe { call(self.ep, buffer, piece.len, self.desc, to.0, context) };
        self.posted("fi_send", slot, result)
    }

    /// Receives a message from any source.
    #[inline]
    pub fn recv(&mut self, slot: u32, piece: Piece) -> Result<Posted, Error> {
        let (buffer, context) = (self.at(piece)?, self.claim(slot)?);
        let call = self.inner().library.has("fi_recv", table!(self, msg).recv)?;
        // SAFETY: as in `tagged_send`.
        let result = unsafe { call(self.ep, buffer, piece.len, self.desc, FI_ADDR_UNSPEC, context) };
        self.posted("fi_recv", slot, result)
    }

    /// Sends a short message without completion.
    #[inline]
    pub fn inject(&mut self, piece: Piece, to: Address) -> Result<Posted, Error> {
        let buffer = self.at(piece)?;
        let call = self.inner().library.has("fi_inject", table!(self, msg).inject)?;
        // SAFETY: as in `tagged_inject`.
        let result = unsafe { call(self.ep, buffer, piece.len, to.0) };
        self.injected("fi_inject", result)
    }

    /// Writes to a peer's memory at `offset`.
    #[inline]
    pub fn write(
        &mut self,
        slot: u32,
        piece: Piece,
        to: Address,
        region: Region,
        offset: usize,
    ) -> Result<Posted, Error> {
        let (buffer, context) = (self.at(piece)?, self.claim(slot)?);
        let call = self.inner().library.has("fi_write", table!(self, rma).write)?;
        let target = region.base.wrapping_add(offset as u64);
        // SAFETY: as in `tagged_send`; the peer's provider checks the target against the key.
        let result = unsafe { call(self.ep, buffer, piece.len, self.desc, to.0, target, region.key, context) };
        self.posted("fi_write", slot, result)
    }

    /// Writes to a peer's memory at the same offset, and notifies the peer by a completion that carries
    /// `data`.
    #[inline]
    pub fn write_data(
        &mut self,
        slot: u32,
        piece: Piece,
        to: Address,
        region: Region,
        data: u64,
    ) -> Result<Posted, Error> {
        let (buffer, context) = (self.at(piece)?, self.claim(slot)?);
        let call = self.inner().library.has("fi_writedata", table!(self, rma).writedata)?;
        let target = region.base.wrapping_add(piece.offset as u64);
        // SAFETY: as in `write`.
        let result = unsafe { call(self.ep, buffer, piece.len, self.desc, data, to.0, target, region.key, context) };
        self.posted("fi_writedata", slot, result)
    }

    /// Reads a peer's memory at `offset`.
    #[inline]
    pub fn read(
        &mut self,
        slot: u32,
        piece: Piece,
        from: Address,
        region: Region,
        offset: usize,
    ) -> Result<Posted, Error> {
        let (buffer, context) = (self.at(piece)?, self.claim(slot)?);
        let call = self.inner().library.has("fi_read", table!(self, rma).read)?;
        let target = region.base.wrapping_add(offset as u64);
        // SAFETY: as in `write`.
        let result = unsafe { call(self.ep, buffer, piece.len, self.desc, from.0, target, region.key, context) };
        self.posted("fi_read", slot, result)
    }

    /// Returns an error unless the provider offers a remote fetch-and-add of 64-bit numbers.
    pub fn fetch_add_offered(&self) -> Result<(), Error> {
        let library = self.inner().library;
        let call = library.has("fi_fetch_atomicvalid", table!(self, atomic).readwritevalid)?;
        let mut count = 0;
        // SAFETY: the endpoint is open, and the count goes to a local.
        let result = unsafe { call(self.ep, FI_UINT64, FI_SUM, &mut count) };
        library.check("fi_fetch_atomicvalid", result as isize).map(|_| ())
    }

    /// Adds the number at `operand` to the peer's number at `offset`, and fetches the old value to `result`.
    #[inline]
    pub fn fetch_add(
        &mut self,
        slot: u32,
        [operand, result]: [usize; 2],
        to: Address,
        region: Region,
        offset: usize,
    ) -> Result<Posted, Error> {
        let operand = self.at(Piece { offset: operand, len: 8 })?;
        let fetched = self.at(Piece { offset: result, len: 8 })?;
        let context = self.claim(slot)?;
        let call = self.inner().library.has("fi_fetch_atomic", table!(self, atomic).readwrite)?;
        let target = region.base.wrapping_add(offset as u64);
        let (desc, key) = (self.desc, region.key);
        // SAFETY: as in `write`; both numbers are inside our memory.
        let result =
            unsafe { call(self.ep, operand, 1, desc, fetched, desc, to.0, target, key, FI_UINT64, FI_SUM, context) };
        self.posted("fi_fetch_atomic", slot, result)
    }

    /// The address of a range.
    #[inline]
    pub(crate) fn at(&self, piece: Piece) -> Result<*mut c_void, Error> {
        self.memory()
            .at(piece.offset, piece.len)
            .map(<*mut u8>::cast)
            .ok_or(Error::Misuse("the range is outside the memory"))
    }

    /// The address of a free context.
    #[inline]
    pub(crate) fn claim(&self, slot: u32) -> Result<*mut c_void, Error> {
        if self.busy.get(slot as usize) != Some(&false) {
            return Err(Error::Misuse("the context is in use, or does not exist"));
        }
        self.context(slot).ok_or(Error::Misuse("the context does not exist"))
    }

    #[inline]
    pub(crate) fn posted(&mut self, what: &'static str, slot: u32, result: isize) -> Result<Posted, Error> {
        let posted = self.injected(what, result)?;
        self.busy[slot as usize] = posted == Posted::Done;
        Ok(posted)
    }

    #[inline]
    fn injected(&self, what: &'static str, result: isize) -> Result<Posted, Error> {
        const AGAIN: isize = -(FI_EAGAIN as c_int as isize);
        match result {
            0 => Ok(Posted::Done),
            AGAIN => Ok(Posted::Again),
            _ => Err(self.inner().library.failure(what, result)),
        }
    }
}
