//! Connections between two endpoints (FI_EP_MSG): one side calls a listener, and an endpoint of the listener's
//! client calls back.
//!
//! Place in the data flow: an engine has a [`Role`]. An engine with [`Role::Active`] has one peer in its life,
//! which operations reach as address [`PEER`]. An engine with [`Role::Listener`] has no peer and only reports
//! callers. Both report by [`ConnEvent`]s. A completion of [`Kind::Connection`] announces each event, so the
//! client need not poll for events.
//!
//! ```text
//! A: connect ── CALL, data ──► listener: Request
//!                              its client gives A's name to a new endpoint B
//! A ◄── ACCEPT, data ───────── B: accept          or   A ◄── REJECT, data ── listener: reject
//! A: Connected ── OPEN_OK ──► B: Connected
//! ```
//!
//! CALL, ACCEPT and REJECT are link messages, like OPEN. A's link to the listener carries nothing else, and A
//! closes it when the connection is made. B's link to A carries the connection. Only A's peer can have made
//! that link, because only the listener was given A's full name. The engine has no clock: the listener's client
//! limits the time of an answer. The end of either link ends the wait. If B fails, the listener closes the link
//! of the call.
//!
//! Invariants: links of these engines carry messages only between the two ends of one connection. A connection
//! that has ended is never restored.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use crate::api::{Addr, Completion, CompletionFlags, Context, Error, Fault, Kind, Role};
use crate::bugs::planted;
use crate::engine::Engine;
use crate::engine::State;
use crate::engine::links::LinkState;
use crate::engine::peer::PeerState;
use crate::engine::state::Violation;
use crate::ids::PeerId;
use crate::matching::Space;
use crate::name::EpName;
use crate::nic::{LinkError, LinkId, Nic};
use crate::wire::{Open, Reader, Short, kind};

/// The address of an active endpoint's peer.
pub const PEER: Addr = 0;
/// Limit in bytes of the client's data in each message of connection management. It fits the smallest mailbox.
pub const MAX_CONN_DATA: usize = 192;

/// A change of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnEvent {
    /// A peer calls this listener.
    Request {
        /// Number of the call, for `reject`.
        call: u64,
        /// The caller's name.
        peer: EpName,
        /// Data of the caller's client.
        data: Box<[u8]>,
    },
    /// The connection is made.
    Connected {
        /// The other end.
        peer: EpName,
        /// Data of the other end's client. Empty at the end that called back.
        data: Box<[u8]>,
    },
    /// The listener has rejected the call: by its client, or because too many calls were unanswered.
    Refused {
        /// Data of the listener's client, if it rejected the call.
        data: Box<[u8]>,
    },
    /// The connection could not be made.
    Failed(LinkError),
    /// The connection has ended.
    Ended(LinkError),
}

/// State of an active endpoint's only connection.
#[derive(Clone, Debug, Default)]
enum ConnectionPhase {
    #[default]
    Fresh,
    /// Calling a listener through this peer, with the client's data.
    Calling(PeerId, Box<[u8]>),
    /// Calling back a peer, with the client's data.
    Accepting(PeerId, Box<[u8]>),
    Connected(PeerId),
    /// The connection could not be made.
    Failed,
    /// The connection was made, and has ended.
    Ended,
}

/// Connection management of one engine.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    role: Role,
    phase: ConnectionPhase,
    events: VecDeque<ConnEvent>,
    /// Unanswered calls, by number.
    calls: BTreeMap<u64, LinkId>,
    /// Calls that other endpoints are answering. Their callers wait while these links are up.
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

    /// Whether the connection was made and has ended.
    pub(crate) const fn has_ended(&self) -> bool {
        matches!(self.phase, ConnectionPhase::Ended)
    }
}

impl<N: Nic> Engine<N> {
    /// Calls the listener at `peer`. An endpoint may do so once. `data` has at most [`MAX_CONN_DATA`] bytes.
    ///
    /// Errors: `Invalid` unless this is an active endpoint that has not connected before; `TooLong`.
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

    /// Rejects a call. A call whose caller has left is ignored. Errors: `TooLong`.
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

    /// Notes that another endpoint is answering a call, which then no longer counts as unanswered.
    pub fn answered(&mut self, call: u64) {
        let connection = &mut self.state.connection;
        if let Some(link) = connection.calls.remove(&call) {
            connection.answering.insert(call, link);
        }
    }

    /// Closes the link of a call whose answering endpoint has failed or closed, so that the caller need not
    /// wait longer.
    pub fn abandon(&mut self, call: u64) {
        if let Some(link) = self.state.connection.answering.remove(&call) {
            self.state.links.close(link);
            self.flush_links();
        }
    }

    /// Sets the limit of unanswered calls.
    pub fn set_backlog(&mut self, calls: usize) {
        self.state.connection.role = Role::Listener(calls);
    }

    /// Ends the connection. Accepted operations that have not left fail, and pending receives are cancelled.
    /// Errors: `NotConnected`.
    pub fn disconnect(&mut self) -> Result<(), Error> {
        let ConnectionPhase::Connected(peer_id) = self.state.connection.phase else { return Err(Error::NotConnected) };
        self.progress();
        self.state.fail_peer(peer_id, LinkError::Closed);
        self.flush_links();
        Ok(())
    }

    /// The name of the connected peer.
    pub fn peer(&self) -> Option<EpName> {
        let ConnectionPhase::Connected(peer_id) = self.state.connection.phase else { return None };
        self.state.peers.get(peer_id).map(|peer| peer.name())
    }

    /// Whether the connection was made and has ended. The event may still be due.
    pub fn connection_ended(&self) -> bool {
        self.state.connection.has_ended()
    }

    /// The events since the last call, in order.
    pub fn take_connection_events(&mut self) -> VecDeque<ConnEvent> {
        std::mem::take(&mut self.state.connection.events)
    }

    /// Rejects all waiting and future callers.
    pub fn stop_listening(&mut self) {
        self.state.connection.role = Role::Listener(0);
        self.close_pending_calls();
        self.flush_links();
    }

    /// Closes the links of all unanswered calls.
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
        self.completions.push(Completion::new(Kind::Connection, Context::default(), CompletionFlags::empty()));
    }

    /// Queues the first message on a link that this side made. The link may belong to another peer than the one
    /// that was dialled.
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

    /// Handles CALL: a peer calls this listener.
    pub(crate) fn on_call(&mut self, link: LinkId, mut r: Reader<'_>) -> Result<(), Violation> {
        let Role::Listener(backlog) = self.connection.role else { return Err(Violation) };
        if self.links.state(link) != LinkState::Incoming {
            return Err(Violation);
        }
        if !self.agrees_on_version(link, &r)? {
            return Ok(());
        }
        let _: Open = r.take().ok_or(Violation)?;
        let data = Self::conn_data(&r)?;
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

    /// Handles ACCEPT: an endpoint of the listener's client calls back.
    pub(crate) fn on_accept(&mut self, link: LinkId, mut r: Reader<'_>) -> Result<(), Violation> {
        let ConnectionPhase::Calling(called, _) = self.connection.phase else { return Err(Violation) };
        if self.links.state(link) != LinkState::Incoming {
            return Err(Violation);
        }
        if !self.agrees_on_version(link, &r)? {
            return Ok(());
        }
        let open: Open = r.take().ok_or(Violation)?;
        let data = Self::conn_data(&r)?;
        let peer = self.links.pending_peer(link).ok_or(Violation)?;
        self.close_links(called);
        self.peers[called].set_state(PeerState::Idle);
        let peer_id = self.peers.named(&peer);
        self.adopt(link, peer_id, open.window_bytes.get());
        self.connected(peer_id, data);
        Ok(())
    }

    /// Handles REJECT: the listener's client has rejected the call.
    pub(crate) fn on_reject(&mut self, link: LinkId, r: &Reader<'_>) -> Result<(), Violation> {
        let data = Self::conn_data(r)?;
        let ConnectionPhase::Calling(peer_id, _) = self.connection.phase else { return Err(Violation) };
        if self.links.lookup(link) != Some((LinkState::Opening, Some(peer_id))) {
            return Err(Violation);
        }
        self.connection.phase = ConnectionPhase::Failed;
        self.close_links(peer_id);
        self.peers[peer_id].set_state(PeerState::Idle);
        self.announce(ConnEvent::Refused { data: planted!(Bug::RefusalWithoutData, data, Box::default()) });
        Ok(())
    }

    /// Whether this engine accepts an OPEN_OK.
    pub(crate) fn may_be_opened(&self) -> bool {
        self.connection.is_connectionless() || matches!(self.connection.phase, ConnectionPhase::Accepting(..))
    }

    /// The peer is up. At the end that called back, this makes the connection.
    pub(crate) fn connection_opened(&mut self, peer_id: PeerId) {
        if matches!(self.connection.phase, ConnectionPhase::Accepting(..)) {
            self.connected(peer_id, Box::default());
        }
    }

    fn connected(&mut self, peer_id: PeerId, data: Box<[u8]>) {
        self.connection.phase = ConnectionPhase::Connected(peer_id);
        // Operations to `PEER` use this route. As a source the peer has no address.
        self.peers.set_only_route(Some(peer_id));
        let peer = self.peers[peer_id].name();
        self.announce(ConnEvent::Connected { peer, data });
    }

    /// A peer has failed, which may end the connection.
    pub(crate) fn connection_lost(&mut self, peer_id: PeerId, why: LinkError) {
        match self.connection.phase {
            ConnectionPhase::Calling(ours, _) | ConnectionPhase::Accepting(ours, _) if ours == peer_id => {
                self.connection.phase = ConnectionPhase::Failed;
                self.announce(ConnEvent::Failed(why));
            }
            ConnectionPhase::Connected(ours) if ours == peer_id => {
                self.connection.phase = ConnectionPhase::Ended;
                self.peers.set_only_route(None);
                // Messages that have arrived can still be received ([`State::post`]).
                self.incoming.close_fast_path();
                let fault = if why == LinkError::Closed { Fault::Canceled } else { Fault::Link(why) };
                let [first, second] = Space::OF_CLIENT;
                for space in [first, planted!(Bug::EndKeepsReceives, second, first)] {
                    self.end_all_posted(space, fault);
                }
                planted!(Bug::EndTwice, self.announce(ConnEvent::Ended(why)));
                planted!(Bug::EndUnreported, self.announce(ConnEvent::Ended(why)), ());
            }
            _ => {}
        }
    }

    /// A caller's link has ended, before or after an answer.
    pub(crate) fn caller_gone(&mut self, link: LinkId) {
        for calls in [&mut self.connection.calls, &mut self.connection.answering] {
            calls.retain(|_, waiting| *waiting != link);
        }
    }

    /// The error of an operation that has no peer.
    pub(crate) fn no_peer_error(&self) -> Error {
        if self.connection.is_connectionless() { Error::NoSuchAddress } else { Error::NotConnected }
    }
}
