//! Connections between two endpoints (FI_EP_MSG): one side calls a listener, and whoever the listener's
//! client chooses calls back.
//!
//! Place in the data flow: an engine has a [`Role`]. With [`Role::Active`] it has one peer in its life, whom
//! operations reach as address [`PEER`]; with [`Role::Listener`] it has none, and only tells of those that
//! call. What happens is told by [`ConnEvent`]s, each announced by a completion of [`Kind::Connection`], so
//! that nobody has to look for them otherwise.
//!
//! ```text
//! A: connect ── CALL, data ──► listener: Request
//!                              its client gives A's name to a new endpoint B
//! A ◄── ACCEPT, data ───────── B: accept          or   A ◄── REJECT, data ── listener: reject
//! A: Connected ── OPEN_OK ──► B: Connected
//! ```
//!
//! CALL, ACCEPT and REJECT are messages of links, like OPEN. A's link to the listener never carries anything
//! else, and A closes it when it has its peer. B's link to A carries the connection; it could be no other
//! than A's peer, because only the listener was given A's full name. There is no clock here: how long an
//! answer may take is the listener's client's affair, and the end of either link ends the wait: when B comes
//! to nothing, the listener closes the one that it has.
//!
//! Invariants: links of these engines carry messages only between the two ends of one connection; a
//! connection, once ended, does not come back.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use crate::api::{ADDR_NONE, Addr, Completion, Context, Error, Fault, Kind, OpFlags, RecvOp};
use crate::bugs::planted;
use crate::engine::Engine;
use crate::engine::ids::PeerId;
use crate::engine::links::LinkState;
use crate::engine::peer::PeerState;
use crate::engine::recv;
use crate::engine::state::{State, Violation};
use crate::name::EpName;
use crate::nic::{LinkError, LinkId, Nic};
use crate::wire::{Open, PROTOCOL_VERSION, Reader, Short, kind};

/// The address of an active endpoint's peer.
pub const PEER: Addr = 0;
/// Most bytes that clients may exchange with each message of connection management; fits the smallest mailbox.
pub const MAX_CONN_DATA: usize = 192;

/// What an engine is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Any peers, by address (FI_EP_RDM).
    #[default]
    Connectionless,
    /// Any peers, by address, which may miss what is sent (FI_EP_DGRAM).
    Datagrams,
    /// One peer, to be connected with (FI_EP_MSG).
    Active,
    /// Hears calls of at most so many peers that are not answered yet (a passive endpoint).
    Listener(usize),
}

/// What has become of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnEvent {
    /// Somebody calls a listener.
    Request {
        /// Names the call, for `reject`.
        call: u64,
        /// Who it is.
        peer: EpName,
        /// What its client has to say.
        data: Box<[u8]>,
    },
    /// The connection is made.
    Connected {
        /// The other end.
        peer: EpName,
        /// What its client has to say, at the end that called.
        data: Box<[u8]>,
    },
    /// The listener's client declined.
    Refused {
        /// What it has to say.
        data: Box<[u8]>,
    },
    /// The connection could not be made.
    Failed(LinkError),
    /// The connection has ended.
    Ended(LinkError),
}

/// How far an active endpoint is.
#[derive(Clone, Debug, Default)]
enum ConnectionPhase {
    #[default]
    Fresh,
    /// Calling a listener on this virtual connection, to say this.
    Calling(PeerId, Box<[u8]>),
    /// Calling back.
    Accepting(PeerId, Box<[u8]>),
    Connected(PeerId),
    Over,
}

/// Connection management of one engine.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    role: Role,
    phase: ConnectionPhase,
    events: VecDeque<ConnEvent>,
    /// Calls that are not answered yet, by number.
    calls: BTreeMap<u64, LinkId>,
    /// Calls that other endpoints are answering: their callers wait as long as these links are up.
    answering: BTreeMap<u64, LinkId>,
    next_call: u64,
}

impl Connection {
    pub(crate) fn new(role: Role) -> Self {
        Self { role, ..Self::default() }
    }

    pub(crate) const fn is_connectionless(&self) -> bool {
        matches!(self.role, Role::Connectionless | Role::Datagrams)
    }
}

impl<N: Nic> Engine<N> {
    /// Calls the listener at `peer`, once in an endpoint's life. `data`: at most [`MAX_CONN_DATA`] bytes.
    ///
    /// Errors: `Invalid` if this is no fresh active endpoint, `TooLong`.
    pub fn connect(&mut self, peer: &EpName, data: &[u8]) -> Result<(), Error> {
        self.begin(peer, data, ConnectionPhase::Calling)
    }

    /// Calls back the endpoint `peer`, which has called a listener. Errors: as for [`Engine::connect`].
    pub fn accept(&mut self, peer: &EpName, data: &[u8]) -> Result<(), Error> {
        self.begin(peer, data, ConnectionPhase::Accepting)
    }

    fn begin(
        &mut self,
        peer: &EpName,
        data: &[u8],
        phase: fn(PeerId, Box<[u8]>) -> ConnectionPhase,
    ) -> Result<(), Error> {
        let connection = &self.state.connection;
        if connection.role != Role::Active || !matches!(connection.phase, ConnectionPhase::Fresh) {
            return Err(Error::Invalid);
        }
        if data.len() > MAX_CONN_DATA {
            return Err(Error::TooLong);
        }
        let peer_id = self.state.peers.named(peer);
        self.state.connection.phase = phase(peer_id, data.into());
        self.dial(peer_id);
        Ok(())
    }

    /// Declines a call. One that is not waiting any more is ignored: its caller has gone.
    pub fn reject(&mut self, call: u64, data: &[u8]) -> Result<(), Error> {
        if data.len() > MAX_CONN_DATA {
            return Err(Error::TooLong);
        }
        if let Some(link) = self.state.connection.calls.remove(&call) {
            self.state.decline(link, data);
            self.flush_links();
        }
        Ok(())
    }

    /// A call is being answered by another endpoint, and does not count any more.
    pub fn answered(&mut self, call: u64) {
        let connection = &mut self.state.connection;
        if let Some(link) = connection.calls.remove(&call) {
            connection.answering.insert(call, link);
        }
    }

    /// The endpoint that was answering a call has failed, or has gone: the caller need not wait any longer.
    pub fn abandon(&mut self, call: u64) {
        if let Some(link) = self.state.connection.answering.remove(&call) {
            self.state.links.close(link);
            self.flush_links();
        }
    }

    /// How many calls may wait for an answer.
    pub fn set_backlog(&mut self, calls: usize) {
        self.state.connection.role = Role::Listener(calls);
    }

    /// Ends the connection: what was accepted and has not left fails, and what the client awaits is
    /// cancelled. Errors: `NotConnected`.
    pub fn disconnect(&mut self) -> Result<(), Error> {
        let ConnectionPhase::Connected(peer_id) = self.state.connection.phase else { return Err(Error::NotConnected) };
        self.progress();
        self.state.fail_peer(peer_id, LinkError::Closed);
        self.flush_links();
        Ok(())
    }

    /// The other end.
    pub fn peer(&self) -> Option<EpName> {
        let ConnectionPhase::Connected(peer_id) = self.state.connection.phase else { return None };
        self.state.peers.get(peer_id).map(|peer| peer.name)
    }

    /// What has become of connections since the last call, in order.
    pub fn take_connection_events(&mut self) -> VecDeque<ConnEvent> {
        std::mem::take(&mut self.state.connection.events)
    }

    /// Turns all callers away, now and later.
    pub fn stop_listening(&mut self) {
        self.state.connection.role = Role::Listener(0);
        self.close_pending_calls();
        self.flush_links();
    }

    /// Closes the links of all calls that wait.
    pub(crate) fn close_pending_calls(&mut self) {
        for (_, link) in std::mem::take(&mut self.state.connection.calls) {
            self.state.links.close(link);
        }
    }

    fn flush_links(&mut self) {
        self.run_links();
        self.nic.flush();
    }
}

impl State {
    fn announce(&mut self, event: ConnEvent) {
        self.connection.events.push_back(event);
        self.completions.push(Completion {
            kind: Kind::Connection,
            ctx: Context::default(),
            flags: OpFlags::empty(),
            len: 0,
            buf: 0,
            tag: 0,
            data: 0,
            src: ADDR_NONE,
            fault: None,
        });
    }

    /// The first message on a link that we have made, which may have turned out to belong to another virtual
    /// connection.
    pub(crate) fn send_first_message(&mut self, link: LinkId) {
        let Some((_, Some(peer_id))) = self.links.lookup(link) else { return };
        let open = self.grant(link);
        let (what, data) = match &mut self.connection.phase {
            _ if matches!(self.connection.role, Role::Connectionless | Role::Datagrams) => {
                return self.queue_link_message(link, kind::OPEN, false);
            }
            ConnectionPhase::Calling(known, data) => {
                *known = peer_id;
                (kind::CALL, data)
            }
            ConnectionPhase::Accepting(known, data) => {
                *known = peer_id;
                (kind::ACCEPT, data)
            }
            _ => return self.links.close(link),
        };
        let mut w = Short::new(what, 0);
        w.put(&open);
        let mut message = SmallVec::from_slice(w.bytes());
        message.extend_from_slice(data);
        self.links.queue_message(link, message, false);
    }

    fn conn_data(r: &Reader<'_>) -> Result<Box<[u8]>, Violation> {
        let data = r.rest();
        if data.len() > MAX_CONN_DATA { Err(Violation) } else { Ok(data.into()) }
    }

    /// Somebody calls this listener.
    pub(crate) fn on_call(&mut self, link: LinkId, mut r: Reader<'_>) -> Result<(), Violation> {
        let Role::Listener(backlog) = self.connection.role else { return Err(Violation) };
        let open: Open = r.take().ok_or(Violation)?;
        let data = Self::conn_data(&r)?;
        if open.version != PROTOCOL_VERSION || self.links.state(link) != LinkState::Incoming {
            return Err(Violation);
        }
        let Some(peer) = self.links.take_pending_peer(link) else { return Err(Violation) };
        if self.connection.calls.len() >= backlog {
            self.decline(link, &[]);
            return Ok(());
        }
        self.links.set_state(link, LinkState::CallPending);
        let call = self.connection.next_call;
        self.connection.next_call += 1;
        self.connection.calls.insert(call, link);
        self.announce(ConnEvent::Request { call, peer, data });
        Ok(())
    }

    fn decline(&mut self, link: LinkId, data: &[u8]) {
        self.links.free(link);
        let mut message = SmallVec::from_slice(Short::new(kind::REJECT, 0).bytes());
        message.extend_from_slice(data);
        self.links.queue_message(link, message, true);
    }

    /// The endpoint that the listener's client has chosen for us calls back.
    pub(crate) fn on_accept(&mut self, link: LinkId, mut r: Reader<'_>) -> Result<(), Violation> {
        let ConnectionPhase::Calling(called, _) = self.connection.phase else { return Err(Violation) };
        let open: Open = r.take().ok_or(Violation)?;
        let data = Self::conn_data(&r)?;
        if open.version != PROTOCOL_VERSION || self.links.state(link) != LinkState::Incoming {
            return Err(Violation);
        }
        let peer = self.links.pending_peer(link).ok_or(Violation)?;
        self.close_links(called);
        self.peers[called].state = PeerState::Idle;
        let peer_id = self.peers.named(&peer);
        self.adopt(link, peer_id, open.window_bytes.get());
        self.connected(peer_id, data);
        Ok(())
    }

    /// The listener's client has declined.
    pub(crate) fn on_reject(&mut self, link: LinkId, r: &Reader<'_>) -> Result<(), Violation> {
        let data = Self::conn_data(r)?;
        let ConnectionPhase::Calling(peer_id, _) = self.connection.phase else { return Err(Violation) };
        if self.links.lookup(link) != Some((LinkState::Opening, Some(peer_id))) {
            return Err(Violation);
        }
        self.connection.phase = ConnectionPhase::Over;
        self.close_links(peer_id);
        self.peers[peer_id].state = PeerState::Idle;
        self.announce(ConnEvent::Refused { data: planted!(Bug::RefusalWithoutData, data, Box::default()) });
        Ok(())
    }

    /// Our OPEN_OK has come: may it, and does it make the connection?
    pub(crate) fn may_be_opened(&self) -> bool {
        self.connection.is_connectionless() || matches!(self.connection.phase, ConnectionPhase::Accepting(..))
    }

    /// The virtual connection is open at the end that has called back.
    pub(crate) fn connection_opened(&mut self, peer_id: PeerId) {
        if matches!(self.connection.phase, ConnectionPhase::Accepting(..)) {
            self.connected(peer_id, Box::default());
        }
    }

    fn connected(&mut self, peer_id: PeerId, data: Box<[u8]>) {
        self.connection.phase = ConnectionPhase::Connected(peer_id);
        // What `PEER` leads to; as a source it stays unnamed.
        self.peers.set_only_route(Some(peer_id));
        let peer = self.peers[peer_id].name;
        self.announce(ConnEvent::Connected { peer, data });
    }

    /// A virtual connection has failed: perhaps ours.
    pub(crate) fn connection_lost(&mut self, peer_id: PeerId, why: LinkError) {
        match self.connection.phase {
            ConnectionPhase::Calling(ours, _) | ConnectionPhase::Accepting(ours, _) if ours == peer_id => {
                self.connection.phase = ConnectionPhase::Over;
                self.announce(ConnEvent::Failed(why));
            }
            ConnectionPhase::Connected(ours) if ours == peer_id => {
                self.connection.phase = ConnectionPhase::Over;
                self.peers.set_only_route(None);
                // What has come can still be received; nothing else will.
                self.config.rx_depth = 0;
                self.fast_receives = 0;
                let fault = if why == LinkError::Closed { Fault::Canceled } else { Fault::Link(why) };
                for tagged in [true, planted!(Bug::EndKeepsReceives, false, true)] {
                    while let Some(key) = self.matcher(tagged).find_posted_where(|_| true) {
                        self.end_posted(tagged, key, fault);
                    }
                }
                planted!(Bug::EndTwice, self.announce(ConnEvent::Ended(why)));
                planted!(Bug::EndUnreported, self.announce(ConnEvent::Ended(why)), ());
            }
            _ => {}
        }
    }

    /// A caller has gone: before it had an answer, or because it has one.
    pub(crate) fn caller_gone(&mut self, link: LinkId) {
        for calls in [&mut self.connection.calls, &mut self.connection.answering] {
            calls.retain(|_, waiting| *waiting != link);
        }
    }

    /// Why an operation has no virtual connection to go to.
    pub(crate) fn no_peer_error(&self) -> Error {
        if self.connection.is_connectionless() { Error::NoSuchAddress } else { Error::NotConnected }
    }

    /// A receive beyond the depth, which is 0 once a connection has ended: then only what has come before can
    /// be received.
    #[cold]
    pub(crate) fn post_beyond(&mut self, op: &RecvOp<'_>, tagged: bool) -> Result<(), Error> {
        if !matches!(self.connection.phase, ConnectionPhase::Over) {
            return Err(Error::Again);
        }
        let found = self.find_unexpected(tagged, recv::wanted(op)).filter(|_| !op.flags.contains(OpFlags::MULTI));
        self.take_unexpected(tagged, found.ok_or(Error::NotConnected)?, op);
        Ok(())
    }
}
