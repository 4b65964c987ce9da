//! The rules by which the progress thread listens to an endpoint, and by which it leaves the endpoint to the client.
//!
//! Place in the data flow: the progress thread observes an endpoint ([`crate::sleep::progress`]) → [`policy`] → what it
//! does next. [`client`] has the rules that the client's own calls apply, and [`reader`] those of reads without result.
//!
//! Pure functions: a record of the past and an observation give the next record and an act. They read no clock, take no
//! lock, and make no system call.

pub(crate) mod client;
pub(crate) mod reader;

use std::time::Duration;

/// The interval between two looks at an endpoint that the client progresses.
const TICK: Duration = Duration::from_millis(1);
/// The interval once the client was active at [`STEADY_LOOKS`] successive looks. If both run on one
/// processor, each look costs the client about 10 µs.
const STEADY_TICK: Duration = Duration::from_millis(4);
/// Successive looks at an active client before looks become less frequent.
const STEADY_LOOKS: u32 = 50;
/// The interval between two looks at an endpoint on which a thread of the client sleeps.
const SLEEPER_TICK: Duration = Duration::from_millis(10);
/// Successive looks that find no work and cannot park, after which the thread looks once per tick.
const RESTLESS_LOOKS: u32 = 100;
/// Most ticks between two attempts to listen that do not help.
const MOST_PATIENCE: u32 = 256;
/// Successive wake-ups beside a client that sleeps in a blocking call, and wakes as well, after which the thread steps
/// back.
const NEEDLESS_WAKES: u32 = 16;
/// The pause of a thread that needs the processor of the client. A yield would last for the client's time slice.
const SOON: Duration = Duration::from_micros(20);
/// Most attempts to park between such pauses.
const PARKING_ATTEMPTS: u32 = 8;
/// Longest sleep. Time-outs inside the engine are noticed with at most this delay.
const SLICE: Duration = Duration::from_millis(100);

/// The time of the thread's next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Next {
    Now,
    /// After the client on the same processor has had it for a moment.
    Soon,
    Tick,
    SteadyTick,
    SleeperTick,
    WhenWoken,
}

/// The way to wait for a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// Yield the processor.
    Yield,
    /// Sleep for a fixed time. The devices would end a sleep on the waker at once.
    Fixed(Duration),
    /// Sleep until woken, at most for this time.
    Sleep(Duration),
}

impl Next {
    /// The way to wait for that look.
    pub(crate) fn pause(self) -> Pause {
        match self {
            Self::Now => Pause::Yield,
            Self::Soon => Pause::Fixed(SOON),
            Self::Tick => Pause::Sleep(TICK),
            Self::SteadyTick => Pause::Sleep(STEADY_TICK),
            Self::SleeperTick => Pause::Sleep(SLEEPER_TICK),
            Self::WhenWoken => Pause::Sleep(SLICE),
        }
    }
}

/// The thread's part in the progress of one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The client progresses the endpoint and pays nothing for the thread.
    #[default]
    SteppedBack,
    /// The thread has entered the endpoint and found a sleeper of the client there. The client's locks are
    /// expensive until the next look, at which the thread steps back.
    Visited,
    /// The thread progresses the endpoint and sleeps on its devices.
    Listening {
        /// The thread has found something to do while the client was away.
        helped: bool,
    },
}

/// Ticks between two attempts to listen. Their number doubles after each attempt that did not help.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Patience {
    /// Ticks until the next attempt.
    left: u32,
    /// Ticks before the last attempt.
    last: u32,
}

impl Patience {
    /// The wait for the next attempt. `helped`: the last attempt helped.
    fn restarted(self, helped: bool) -> Self {
        let last = if helped { 0 } else { (2 * self.last).clamp(1, MOST_PATIENCE) };
        Self { left: last, last }
    }
}

/// The thread's record of one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    mode: Mode,
    /// Successive looks at which the client was active, since the thread stepped back.
    present: u32,
    /// Successive looks that found no work and could not park.
    restless: u32,
    /// Successive wake-ups together with a client that slept in a blocking call.
    needless_wakes: u32,
    patience: Patience,
}

impl Record {
    /// Whether the thread listens to the endpoint's devices.
    pub(crate) fn is_listening(&self) -> bool {
        matches!(self.mode, Mode::Listening { .. })
    }

    /// Whether the client pays nothing for the thread.
    pub(crate) fn is_stepped_back(&self) -> bool {
        self.mode == Mode::SteppedBack
    }
}

/// The result of the rounds that the thread has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// No work, and none shortly before.
    Nothing,
    /// No work, but some within the time for which the thread spins.
    WorkBefore,
    Work,
    /// Programs can continue, whether or not there was work besides.
    Programs,
}

/// An observation of one endpoint. `interrupts`: the thread takes the client's processor for steps of collectives.
/// `sleeper`: a thread of the client sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Observation {
    /// A look begins. `moved`: the client has made a round since the last one. `parked`: a thread of the client is
    /// about to sleep outside calls of weft. `dismissed`: the client has asked the thread to step back.
    Look { moved: bool, sleeper: bool, parked: bool, dismissed: bool },
    /// The client was watched for a moment, after [`Act::Watch`].
    Watched { away: bool },
    /// A call of the client holds the lock.
    Locked { interrupts: bool },
    /// The thread has entered the endpoint. `sleeps_inside`: a thread of the client sleeps in a blocking call.
    /// `helped`: the thread did work at its last look, and the client was away.
    Entered { sleeps_inside: bool, helped: bool },
    /// The thread has made its rounds.
    Rounds { found: Found, interrupts: bool, sleeper: bool },
    /// The thread has tried to park. On success `time` is that of its next look.
    Parking { time: Option<Next>, interrupts: bool },
}

/// The next act of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Watch whether the client makes a round.
    Watch,
    /// Enter the endpoint.
    Enter,
    /// Make rounds of progress.
    Work,
    /// Try to park, with a limit of attempts.
    Park { attempts: u32 },
    /// End the visits to the endpoint. The client pays nothing until the next look.
    StepBack(Next),
    /// As [`Act::StepBack`], after the thread has listened.
    StopListening(Next),
    /// Look again.
    Look(Next),
}

/// The thread's next act at an endpoint, and its new record of the endpoint.
pub(crate) fn policy(mut record: Record, observation: Observation) -> (Record, Act) {
    let act = match observation {
        Observation::Look { moved, sleeper, parked, dismissed } => record.look(moved, sleeper, parked, dismissed),
        Observation::Watched { away: true } => Act::Enter,
        Observation::Watched { away: false } => record.step_back(false),
        // The client is active, or the call ends soon.
        Observation::Locked { interrupts } if record.is_listening() => Act::Look(again(interrupts)),
        Observation::Locked { .. } => Act::Look(Next::Tick),
        Observation::Entered { sleeps_inside, helped } => record.enter(sleeps_inside, helped),
        Observation::Rounds { found: Found::Programs, interrupts, .. } => Act::Look(again(interrupts)),
        Observation::Rounds { found: Found::Work | Found::WorkBefore, interrupts: false, .. } => Act::Look(Next::Now),
        Observation::Rounds { interrupts, sleeper, .. } => {
            record.needless_wakes += u32::from(sleeper);
            Act::Park { attempts: if interrupts { PARKING_ATTEMPTS } else { 1 } }
        }
        Observation::Parking { time: Some(time), .. } => {
            record.restless = 0;
            // The devices are armed now and wake the client without this thread as well.
            if record.needless_wakes > NEEDLESS_WAKES {
                record.needless_wakes = 0;
                record.stop_listening()
            } else {
                Act::Look(time)
            }
        }
        Observation::Parking { time: None, interrupts } => {
            // Something has arrived meanwhile, or the system refuses to watch the devices.
            record.restless += 1;
            Act::Look(if record.restless < RESTLESS_LOOKS { again(interrupts) } else { Next::Tick })
        }
    };
    (record, act)
}

/// The next look of a thread that has not finished.
fn again(interrupts: bool) -> Next {
    if interrupts { Next::Soon } else { Next::Now }
}

impl Record {
    fn look(&mut self, moved: bool, sleeper: bool, parked: bool, dismissed: bool) -> Act {
        match (self.is_listening(), dismissed) {
            (true, true) => return self.stop_listening(),
            (true, false) => return Act::Enter,
            _ if sleeper => return self.step_back(true),
            _ if parked || !moved => return Act::Enter,
            _ => {}
        }
        // The client is active. It is not watched while attempts to listen do not help.
        if self.patience.left > 0 {
            self.patience.left -= 1;
            return self.step_back(false);
        }
        Act::Watch
    }

    fn enter(&mut self, sleeps_inside: bool, helped: bool) -> Act {
        if !self.is_listening() {
            self.mode = Mode::Visited;
            if sleeps_inside {
                return Act::Look(Next::Tick);
            }
            self.mode = Mode::Listening { helped: false };
            self.present = 0;
        }
        if helped {
            self.mode = Mode::Listening { helped: true };
            self.needless_wakes = 0;
        }
        Act::Work
    }

    fn step_back(&mut self, sleeper: bool) -> Act {
        self.present = if sleeper { 0 } else { self.present.saturating_add(1) };
        let next = match (sleeper, self.present > STEADY_LOOKS) {
            (true, _) => Next::SleeperTick,
            (_, true) => Next::SteadyTick,
            _ => Next::Tick,
        };
        let before = std::mem::take(&mut self.mode);
        if before == Mode::SteppedBack { Act::Look(next) } else { Act::StepBack(next) }
    }

    fn stop_listening(&mut self) -> Act {
        let mode = std::mem::take(&mut self.mode);
        self.patience = self.patience.restarted(mode == Mode::Listening { helped: true });
        Act::StopListening(Next::Tick)
    }
}

#[cfg(test)]
mod tests;
