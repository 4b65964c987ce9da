//! The table of the policy, row by row.

use super::*;

const LISTENING: Mode = Mode::Listening { helped: false };
const HELPED: Mode = Mode::Listening { helped: true };

fn look(moved: bool, sleeper: bool, parked: bool, dismissed: bool) -> Observation {
    Observation::Look { moved, sleeper, parked, dismissed }
}

fn in_mode(mode: Mode) -> Record {
    Record { mode, ..Record::default() }
}

#[test]
fn every_row_of_the_table() {
    let away = Record::default();
    let visited = in_mode(Mode::Visited);
    let [listening, helped] = [LISTENING, HELPED].map(in_mode);
    let (entered, rounds) = (
        |sleeps_inside, helped| Observation::Entered { sleeps_inside, helped },
        |found, interrupts, sleeper| Observation::Rounds { found, interrupts, sleeper },
    );
    let parking = |time, interrupts| Observation::Parking { time, interrupts };
    let present = |present| Record { present, ..away };
    let needless = |needless_wakes| Record { needless_wakes, ..listening };
    let restless = |restless| Record { restless, ..listening };
    let patience = |mode, left, last| Record { patience: Patience { left, last }, ..in_mode(mode) };
    let waiting = |left, last| patience(Mode::SteppedBack, left, last);
    let table = [
        // Looks at a client that progresses the endpoint.
        (away, look(true, false, false, false), away, Act::Watch),
        (away, look(false, false, false, false), away, Act::Enter),
        (away, look(true, false, true, false), away, Act::Enter),
        (present(9), look(false, true, true, false), present(0), Act::Look(Next::SleeperTick)),
        (visited, look(false, true, false, false), away, Act::StepBack(Next::SleeperTick)),
        (waiting(2, 4), look(true, false, false, false), Record { present: 1, ..waiting(1, 4) }, Act::Look(Next::Tick)),
        (waiting(2, 4), look(false, false, false, false), waiting(2, 4), Act::Enter),
        (away, Observation::Watched { away: true }, away, Act::Enter),
        (away, Observation::Watched { away: false }, present(1), Act::Look(Next::Tick)),
        (visited, Observation::Watched { away: false }, present(1), Act::StepBack(Next::Tick)),
        (present(49), Observation::Watched { away: false }, present(50), Act::Look(Next::Tick)),
        (present(50), Observation::Watched { away: false }, present(51), Act::Look(Next::SteadyTick)),
        // Looks while the thread listens.
        (listening, look(true, true, true, false), listening, Act::Enter),
        (listening, look(true, false, false, true), waiting(1, 1), Act::StopListening(Next::Tick)),
        (patience(LISTENING, 0, 1), look(true, false, false, true), waiting(2, 2), Act::StopListening(Next::Tick)),
        (
            patience(LISTENING, 0, 256),
            look(true, false, false, true),
            waiting(256, 256),
            Act::StopListening(Next::Tick),
        ),
        (patience(HELPED, 0, 256), look(true, false, false, true), away, Act::StopListening(Next::Tick)),
        // The lock, and what is behind it.
        (away, Observation::Locked { interrupts: true }, away, Act::Look(Next::Tick)),
        (listening, Observation::Locked { interrupts: false }, listening, Act::Look(Next::Now)),
        (listening, Observation::Locked { interrupts: true }, listening, Act::Look(Next::Soon)),
        (away, entered(true, false), visited, Act::Look(Next::Tick)),
        (present(7), entered(false, false), listening, Act::Work),
        (listening, entered(true, false), listening, Act::Work),
        (needless(3), entered(false, true), helped, Act::Work),
        // Rounds.
        (listening, rounds(Found::Work, false, true), listening, Act::Look(Next::Now)),
        (listening, rounds(Found::WorkBefore, false, false), listening, Act::Look(Next::Now)),
        (listening, rounds(Found::Programs, false, true), listening, Act::Look(Next::Now)),
        (listening, rounds(Found::Programs, true, true), listening, Act::Look(Next::Soon)),
        (listening, rounds(Found::Nothing, false, false), listening, Act::Park { attempts: 1 }),
        (listening, rounds(Found::Nothing, false, true), needless(1), Act::Park { attempts: 1 }),
        (listening, rounds(Found::Work, true, false), listening, Act::Park { attempts: 8 }),
        // Attempts to park.
        (restless(99), parking(Some(Next::WhenWoken), false), listening, Act::Look(Next::WhenWoken)),
        (needless(16), parking(Some(Next::Tick), false), needless(16), Act::Look(Next::Tick)),
        (needless(17), parking(Some(Next::Tick), false), waiting(1, 1), Act::StopListening(Next::Tick)),
        (restless(98), parking(None, false), restless(99), Act::Look(Next::Now)),
        (restless(98), parking(None, true), restless(99), Act::Look(Next::Soon)),
        (restless(99), parking(None, true), restless(100), Act::Look(Next::Tick)),
    ];
    for (row, (record, observation, after, act)) in table.into_iter().enumerate() {
        assert_eq!(policy(record, observation), (after, act), "row {row}: {record:?}, {observation:?}");
    }
}

#[test]
fn the_earliest_look_decides() {
    use Next::{Now, SleeperTick, Soon, SteadyTick, Tick, WhenWoken};
    assert!([Now, Soon, Tick, SteadyTick, SleeperTick, WhenWoken].is_sorted());
}
