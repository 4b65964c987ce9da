//! Operations that end inside the call that starts them.
//!
//! Place in the data flow: [`Engine::perform_collective`] takes the operations that need no message, and looks at the
//! board for a limited time. An operation that has not ended by then continues like any other ([`Engine::run_boards`]).

use super::{BoardRun, Step};
use crate::api::Error;
use crate::broken::cannot_happen;
use crate::engine::Engine;
use crate::engine::collective_op::{CollectiveOp, Elements};
use crate::engine::collectives::Collectives;
use crate::nic::Nic;

/// The result of [`Engine::perform_collective`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Performed {
    /// The operation has ended. There is no completion.
    Ended,
    /// The operation has started. Its completion follows.
    Started,
    /// Nothing has happened: the operation needs messages, or must wait for others. It can be started.
    Refused,
}

impl<N: Nic> Engine<N> {
    /// Performs a collective inside a host. `looks`: how often this call looks for other members before it leaves the
    /// rest to later rounds of progress.
    ///
    /// Errors: as of [`Engine::start_collective`].
    pub fn perform_collective(&mut self, op: &CollectiveOp, looks: u32) -> Result<Performed, Error> {
        let Some(mut run) = self.state.collectives().run_in_call(op)? else { return Ok(Performed::Refused) };
        let mut looks = looks;
        while !self.advance_on_board(&mut run) {
            if !self.waits_on_board(&run, &mut looks) {
                run.in_call = false;
                self.state.collectives().on_boards.push(run);
                self.state.links.set_polls_boards(true);
                return Ok(Performed::Started);
            }
        }
        Ok(if run.fault.is_none() { Performed::Ended } else { Performed::Started })
    }

    /// Waits until the operation can continue. False: it could not while there were looks.
    fn waits_on_board(&mut self, run: &BoardRun, looks: &mut u32) -> bool {
        let host = self.state.collectives().groups[run.group].host.as_deref();
        let Some((host, board)) = host.and_then(|host| Some((host, host.shared.as_deref()?))) else {
            cannot_happen!("the group of an operation on a board has a board");
            return false;
        };
        while *looks > 0 {
            *looks -= 1;
            let continues = match run.step {
                Step::Enter => board.is_free(run.turn),
                Step::Wait => run.is_ready(host, board),
                Step::Exchange | Step::Exchanged => false,
            };
            if continues {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }
}

impl Collectives {
    /// An operation that may end in the call that starts it, if it is one.
    fn run_in_call(&mut self, op: &CollectiveOp) -> Result<Option<BoardRun>, Error> {
        let group = self.groups.get_mut(op.group).ok_or(Error::NoSuchAddress)?;
        // Earlier operations come first.
        if !group.joined
            || group.spans_hosts
            || !self.on_boards.is_empty()
            || matches!(op.elements, Elements::Custom(_))
        {
            return Ok(None);
        }
        let request = group.request(op)?;
        if !group.fits_board(&request) {
            return Ok(None);
        }
        Ok(Some(group.start_on_board(op, &request, true)))
    }
}
