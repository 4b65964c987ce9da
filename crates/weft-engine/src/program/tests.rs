//! Programs compared with a plain model, and cases that other implementations get wrong.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use proptest::prelude::*;

use super::*;

/// A counter that requests a look only while it is armed, as real counters do.
#[derive(Default)]
struct Gauge {
    id: u64,
    level: Cell<Level>,
    armed: Cell<Option<u64>>,
    arms: Cell<u32>,
}

#[derive(Clone)]
struct Handle(Rc<Gauge>);

impl Counter for Handle {
    fn id(&self) -> u64 {
        self.0.id
    }

    fn arm(&self, at: u64) -> Level {
        self.0.armed.set(Some(at));
        self.0.arms.set(self.0.arms.get() + 1);
        self.0.level.get()
    }

    fn disarm(&self) {
        self.0.armed.set(None);
    }
}

impl Handle {
    fn new(id: u64) -> Self {
        Self(Rc::new(Gauge { id, ..Gauge::default() }))
    }

    /// Changes the level. Returns whether a look is requested.
    fn change(&self, change: impl FnOnce(&mut Level)) -> bool {
        let mut level = self.0.level.get();
        let before = level;
        change(&mut level);
        self.0.level.set(level);
        self.0.armed.get().is_some_and(|at| level.total() >= at || level.errors != before.errors)
    }
}

type Tested = Programs<Handle, &'static str, u32>;

fn wait(counter: &Handle, threshold: u64) -> Task<Handle, &'static str> {
    Task::Wait { counter: counter.clone(), threshold, errors: Errors::Count }
}

fn strict(counter: &Handle, threshold: u64) -> Task<Handle, &'static str> {
    Task::Wait { counter: counter.clone(), threshold, errors: Errors::Poison }
}

fn act(lane: u64, act: &'static str) -> Task<Handle, &'static str> {
    Task::Act { lane, act }
}

fn raise(programs: &mut Tested, counter: &Handle, by: u64) {
    if counter.change(|level| level.successes += by) {
        programs.look(counter.id());
    }
}

fn fail(programs: &mut Tested, counter: &Handle) {
    if counter.change(|level| level.errors += 1) {
        programs.look(counter.id());
    }
}

/// Performs all ready acts.
fn run(programs: &mut Tested) -> Vec<&'static str> {
    let mut performed = Vec::new();
    while let Some(act) = programs.next_act() {
        performed.push(act);
        programs.done();
    }
    performed
}

fn ends(programs: &mut Tested) -> Vec<(u32, End)> {
    programs.take_finished().iter().map(|finished| (finished.origin, finished.end)).collect()
}

#[test]
fn a_jump_releases_by_threshold_then_by_submission() {
    let (mut programs, counter) = (Tested::new(100), Handle::new(1));
    for (name, threshold) in [("c", 3), ("a", 1), ("b1", 2), ("b2", 2), ("d", 9), ("a2", 1)] {
        programs.submit(Program::new(0, [wait(&counter, threshold), act(0, name)])).unwrap();
    }
    assert_eq!(run(&mut programs), [""; 0]);
    raise(&mut programs, &counter, 7);
    assert_eq!(run(&mut programs), ["a", "a2", "b1", "b2", "c"]);
    assert_eq!(counter.0.armed.get(), Some(9), "armed for the next");
    raise(&mut programs, &counter, 2);
    assert_eq!(run(&mut programs), ["d"]);
    assert!(programs.is_empty());
    assert_eq!(counter.0.armed.get(), None, "no program waits any longer");
}

#[test]
fn a_threshold_that_is_reached_already_does_not_wait() {
    let (mut programs, counter) = (Tested::new(100), Handle::new(1));
    raise(&mut programs, &counter, 5);
    programs.submit(Program::new(0, [wait(&counter, 5), act(0, "x")])).unwrap();
    programs.submit(Program::new(0, [wait(&counter, 0), act(0, "y")])).unwrap();
    assert_eq!(run(&mut programs), ["x", "y"]);
}

#[test]
fn thresholds_have_64_bits_and_errors_count() {
    let (mut programs, counter) = (Tested::new(100), Handle::new(1));
    let far = 1 << 40;
    programs.submit(Program::new(0, [wait(&counter, far), act(0, "far")])).unwrap();
    programs.submit(Program::new(0, [wait(&counter, u64::MAX), act(0, "never")])).unwrap();
    raise(&mut programs, &counter, far - 1);
    assert_eq!(run(&mut programs), [""; 0]);
    fail(&mut programs, &counter);
    assert_eq!(run(&mut programs), ["far"]);
}

#[test]
fn an_act_may_raise_the_counter_that_triggered_it() {
    let (mut programs, counter) = (Tested::new(100), Handle::new(1));
    for threshold in 1..=4 {
        programs.submit(Program::new(0, [wait(&counter, threshold), act(0, "raise")])).unwrap();
    }
    raise(&mut programs, &counter, 1);
    let mut count = 0;
    while let Some("raise") = programs.next_act() {
        count += 1;
        raise(&mut programs, &counter, 1);
        programs.done();
    }
    assert_eq!(count, 4);
}

#[test]
fn tasks_are_performed_in_order_and_programs_take_turns() {
    let (mut programs, x, y) = (Tested::new(100), Handle::new(1), Handle::new(2));
    programs.submit(Program::new(1, [wait(&x, 1), act(0, "1a"), wait(&y, 1), act(0, "1b"), act(0, "1c")])).unwrap();
    programs.submit(Program::new(2, [wait(&x, 1), act(0, "2a"), act(0, "2b")])).unwrap();
    raise(&mut programs, &y, 1);
    assert_eq!(run(&mut programs), [""; 0], "the second wait comes after the first");
    raise(&mut programs, &x, 1);
    assert_eq!(run(&mut programs), ["1a", "2a", "1b", "2b", "1c"]);
    assert_eq!(ends(&mut programs), [(2, End::Done), (1, End::Done)]);
}

#[test]
fn a_full_lane_keeps_its_order_and_does_not_stop_others() {
    let (mut programs, counter) = (Tested::new(100), Handle::new(1));
    for (lane, name) in [(7, "full1"), (8, "free1"), (7, "full2"), (8, "free2")] {
        programs.submit(Program::new(0, [wait(&counter, 1), act(lane, name)])).unwrap();
    }
    raise(&mut programs, &counter, 1);
    assert_eq!(programs.next_act(), Some("full1"));
    programs.again("full1");
    assert_eq!(run(&mut programs), ["free1", "free2"]);
    assert!(!programs.is_due(), "nothing to do before a retry");
    programs.submit(Program::new(0, [act(7, "full3")])).unwrap();
    assert_eq!(run(&mut programs), [""; 0]);
    programs.retry(7);
    assert_eq!(programs.next_act(), Some("full1"));
    // Room appears before the executor has reported that there was none.
    programs.retry(7);
    programs.again("full1");
    assert_eq!(run(&mut programs), ["full1", "full2", "full3"]);
    assert!(programs.is_empty() && programs.lanes.is_empty());
}

#[test]
fn only_one_act_is_out() {
    let mut programs = Tested::new(100);
    programs.submit(Program::new(0, [act(0, "a")])).unwrap();
    programs.submit(Program::new(0, [act(1, "b")])).unwrap();
    assert_eq!(programs.next_act(), Some("a"));
    assert!(programs.next_act().is_none() && !programs.is_due());
    programs.done();
    assert!(programs.is_due());
    assert_eq!(programs.next_act(), Some("b"));
    programs.fail();
    assert_eq!(ends(&mut programs), [(0, End::Done), (0, End::Failed)]);
}

#[test]
fn a_failed_act_ends_its_program_only() {
    let (mut programs, counter) = (Tested::new(100), Handle::new(1));
    programs.submit(Program::new(1, [act(0, "bad"), wait(&counter, 1), act(0, "never")])).unwrap();
    programs.submit(Program::new(2, [act(0, "good")])).unwrap();
    assert_eq!(programs.next_act(), Some("bad"));
    programs.fail();
    assert_eq!(run(&mut programs), ["good"]);
    let finished = programs.take_finished();
    assert_eq!((finished[0].origin, finished[0].end, finished[0].left.len()), (1, End::Failed, 2));
}

#[test]
fn errors_end_programs_that_ask_for_it() {
    let (mut programs, counter) = (Tested::new(100), Handle::new(1));
    programs.submit(Program::new(1, [strict(&counter, 2), act(0, "strict 2")])).unwrap();
    programs.submit(Program::new(2, [strict(&counter, 5), act(0, "strict 5")])).unwrap();
    programs.submit(Program::new(3, [wait(&counter, 3), act(0, "any 3")])).unwrap();
    programs.submit(Program::new(4, [wait(&counter, 9), act(0, "any 9")])).unwrap();
    raise(&mut programs, &counter, 2);
    assert_eq!(run(&mut programs), ["strict 2"], "reached by successes");
    fail(&mut programs, &counter);
    assert_eq!(run(&mut programs), ["any 3"]);
    assert_eq!(ends(&mut programs), [(1, End::Done), (2, End::Poisoned), (3, End::Done)]);
    programs.submit(Program::new(5, [strict(&counter, 4), act(0, "late")])).unwrap();
    assert_eq!(ends(&mut programs), [(5, End::Poisoned)], "there are errors already");
    assert_eq!(programs.len(), 1);
}

#[test]
fn a_program_is_cancelled_in_any_state() {
    let (mut programs, counter) = (Tested::new(100), Handle::new(1));
    programs.submit(Program::new(1, [wait(&counter, 2), act(0, "waiting")])).unwrap();
    programs.submit(Program::new(2, [act(7, "stalled")])).unwrap();
    programs.submit(Program::new(3, [act(8, "out"), act(8, "behind")])).unwrap();
    programs.submit(Program::new(4, [act(9, "ready")])).unwrap();
    programs.submit(Program::new(5, [act(7, "stalled too")])).unwrap();
    assert_eq!(programs.next_act(), Some("stalled"));
    programs.again("stalled");
    assert_eq!(programs.next_act(), Some("out"));
    assert_eq!(programs.cancel(|&origin| origin == 9), Cancelled { count: 0, running: None });
    assert_eq!(programs.cancel(|&origin| origin <= 4), Cancelled { count: 3, running: Some(2) });
    assert!(programs.is_running(2));
    assert_eq!(counter.0.armed.get(), None);
    programs.done();
    assert_eq!(run(&mut programs), ["stalled too"], "its lane was not left stalled");
    let cancelled = |origin| (origin, End::Cancelled);
    assert_eq!(ends(&mut programs), [cancelled(1), cancelled(2), cancelled(4), cancelled(3), (5, End::Done)]);
    programs.submit(Program::new(6, [act(7, "x")])).unwrap();
    assert_eq!(programs.next_act(), Some("x"));
    assert_eq!(programs.cancel(|_| true).running, Some(5));
    programs.again("x");
    assert!(programs.is_empty() && run(&mut programs).is_empty(), "a cancelled act is not retried");
    assert!(programs.take_finished().is_empty(), "the executor did not cancel it");
    let withdrawn = programs.take_withdrawn(5).unwrap();
    assert_eq!((withdrawn.origin, withdrawn.end), (6, End::Cancelled));
    assert!(matches!(withdrawn.left[..], [Task::Act { lane: 7, act: "x" }]));
    assert!(programs.take_withdrawn(5).is_none());
}

#[test]
fn a_program_is_admitted_whole_or_not_at_all() {
    let (mut programs, counter) = (Tested::new(4), Handle::new(1));
    programs.submit(Program::new(0, [wait(&counter, 1), act(0, "a"), act(0, "b")])).unwrap();
    assert_eq!(programs.submit(Program::new(1, [wait(&counter, 1), act(0, "c")])), Err(Full));
    programs.submit(Program::new(2, [act(0, "d")])).unwrap();
    raise(&mut programs, &counter, 1);
    assert_eq!(run(&mut programs), ["d", "a", "b"]);
    programs.submit(Program::new(3, [act(0, "e"), act(0, "f"), act(0, "g"), act(0, "h")])).unwrap();
    assert_eq!(run(&mut programs).len(), 4);
}

#[test]
fn ten_thousand_waits_in_a_row_need_no_stack() {
    let (mut programs, counter) = (Tested::new(usize::MAX), Handle::new(1));
    let tasks = (1..=10_000).map(|threshold| wait(&counter, threshold)).chain([act(0, "end")]);
    programs.submit(Program::new(0, tasks)).unwrap();
    raise(&mut programs, &counter, 10_000);
    assert_eq!(run(&mut programs), ["end"]);
}

// ---- random programs against a plain model -----------------------------------------------------

const COUNTERS: u64 = 3;
const LANES: u64 = 2;

#[derive(Clone, Debug)]
enum Step {
    Submit(Vec<Random>),
    Raise(u64, u64),
    Fail(u64),
    Set(u64, u64),
    Perform(How),
    Retry(u64),
    Cancel(usize),
}

#[derive(Clone, Copy, Debug)]
enum Random {
    Wait(u64, u64, bool),
    Act(u64),
}

#[derive(Clone, Copy, Debug)]
enum How {
    Done,
    Again,
    /// A retry is requested while the act is out.
    AgainRetried,
    Fail,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let task = prop_oneof![
        (0..COUNTERS, 0_u64..12, prop::bool::weighted(0.2)).prop_map(|(c, n, strict)| Random::Wait(c, n, strict)),
        (0..LANES).prop_map(Random::Act),
    ];
    let how =
        prop_oneof![4 => Just(How::Done), 2 => Just(How::Again), 1 => Just(How::AgainRetried), 1 => Just(How::Fail)];
    let step = prop_oneof![
        3 => prop::collection::vec(task, 0..5).prop_map(Step::Submit),
        3 => (0..COUNTERS, 1_u64..5).prop_map(|(c, n)| Step::Raise(c, n)),
        1 => (0..COUNTERS).prop_map(Step::Fail),
        1 => (0..COUNTERS, 0_u64..12).prop_map(|(c, n)| Step::Set(c, n)),
        6 => how.prop_map(Step::Perform),
        1 => (0..LANES).prop_map(Step::Retry),
        1 => (0_usize..20).prop_map(Step::Cancel),
    ];
    prop::collection::vec(step, 1..80)
}

/// A program of the model: the remaining tasks. Its position in a list of the model is its place in the
/// queue.
#[derive(Clone, Debug)]
struct Plain {
    number: usize,
    left: Vec<Random>,
}

/// A model of [`Programs`] with lists that are searched: programs that wait, and programs at an act, in order
/// of arrival.
#[derive(Default)]
struct Model {
    levels: [Level; COUNTERS as usize],
    waiting: Vec<Plain>,
    ready: Vec<Plain>,
    /// Lanes whose first act found no room and was not retried.
    blocked: Vec<u64>,
    /// Whether a lane was ever blocked. From then on only the order within lanes is known.
    disturbed: bool,
    ended: Vec<(usize, End)>,
}

impl Model {
    fn put(&mut self, program: Plain) {
        match program.left.first() {
            None => self.ended.push((program.number, End::Done)),
            Some(Random::Wait(..)) => {
                self.waiting.push(program);
                self.settle();
            }
            Some(Random::Act(_)) => self.ready.push(program),
        }
    }

    /// Continues all programs that need not wait: lowest threshold first, then lowest number.
    fn settle(&mut self) {
        let verdict = |program: &Plain| {
            let Some(&Random::Wait(counter, threshold, strict)) = program.left.first() else { return None };
            let level = self.levels[counter as usize];
            let reached = threshold <= if strict { level.successes } else { level.total() };
            (reached || (strict && level.errors > 0)).then_some((reached, threshold, program.number))
        };
        let mut freed: Vec<_> = self.waiting.iter().filter_map(verdict).collect();
        freed.sort_unstable_by_key(|&(_, threshold, number)| (threshold, number));
        let mut moving = Vec::new();
        for (reached, _, number) in freed {
            let at = self.waiting.iter().position(|program| program.number == number).unwrap();
            let mut program = self.waiting.remove(at);
            if reached {
                program.left.remove(0);
                moving.push(program);
            } else {
                self.ended.push((number, End::Poisoned));
            }
        }
        for program in moving {
            self.put(program);
        }
    }

    fn lane(program: &Plain) -> u64 {
        let Some(&Random::Act(lane)) = program.left.first() else { panic!("not at an act") };
        lane
    }

    /// Takes the program whose act was chosen. The act must be one that can be performed now.
    fn chosen(&mut self, number: Option<usize>) -> Option<Plain> {
        let may_go = |at: usize| {
            let lane = Self::lane(&self.ready[at]);
            !self.blocked.contains(&lane) && self.ready[..at].iter().all(|before| Self::lane(before) != lane)
        };
        let able: Vec<usize> = (0..self.ready.len()).filter(|&at| may_go(at)).collect();
        let Some(number) = number else {
            assert!(able.is_empty(), "an act was forgotten");
            return None;
        };
        let able = if self.disturbed { able.as_slice() } else { &able[..1] };
        let at = *able.iter().find(|&&at| self.ready[at].number == number).expect("not its turn");
        Some(self.ready.remove(at))
    }

    fn block(&mut self, program: Plain) {
        self.disturbed = true;
        self.blocked.push(Self::lane(&program));
        self.ready.insert(0, program);
    }

    fn retry(&mut self, lane: u64) {
        self.blocked.retain(|&blocked| blocked != lane);
    }

    fn cancel(&mut self, number: usize) {
        if let Some(at) = self.ready.iter().position(|program| program.number == number) {
            let program = self.ready.remove(at);
            self.retry(Self::lane(&program));
        } else if let Some(at) = self.waiting.iter().position(|program| program.number == number) {
            self.waiting.remove(at);
        } else {
            return;
        }
        self.ended.push((number, End::Cancelled));
    }
}

type Named = Programs<Handle, (usize, usize), usize>;

/// The tested machine and the model, in the same state.
struct Pair {
    programs: Named,
    counters: Vec<Handle>,
    model: Model,
    /// Number of tasks of each program.
    tasks: Vec<usize>,
}

impl Pair {
    fn submit(&mut self, tasks: &[Random]) {
        let number = self.tasks.len();
        self.tasks.push(tasks.len());
        let compiled = tasks.iter().enumerate().map(|(at, task)| match *task {
            Random::Act(lane) => Task::Act { lane, act: (number, at) },
            Random::Wait(counter, threshold, strict) => Task::Wait {
                counter: self.counters[counter as usize].clone(),
                threshold,
                errors: if strict { Errors::Poison } else { Errors::Count },
            },
        });
        self.programs.submit(Program::new(number, compiled)).unwrap();
        self.model.put(Plain { number, left: tasks.to_vec() });
    }

    fn change(&mut self, counter: u64, change: impl Fn(&mut Level)) {
        if self.counters[counter as usize].change(&change) {
            self.programs.look(counter);
        }
        change(&mut self.model.levels[counter as usize]);
        self.model.settle();
    }

    fn perform(&mut self, how: How) {
        let act = self.programs.next_act();
        let Some(mut program) = self.model.chosen(act.map(|(number, _)| number)) else { return };
        let act = act.unwrap();
        let lane = Model::lane(&program);
        let tasks_before = self.tasks[program.number] - program.left.len();
        assert_eq!(act, (program.number, tasks_before), "the first that was not performed");
        match how {
            How::Done => {
                self.programs.done();
                program.left.remove(0);
                self.model.put(program);
            }
            How::Fail => {
                self.programs.fail();
                self.model.ended.push((program.number, End::Failed));
            }
            How::Again | How::AgainRetried => {
                if matches!(how, How::AgainRetried) {
                    self.programs.retry(lane);
                }
                self.programs.again(act);
                self.model.block(program);
                if matches!(how, How::AgainRetried) {
                    self.model.retry(lane);
                }
            }
        }
    }
}

fn check(steps: &[Step]) {
    let mut pair = Pair {
        programs: Programs::new(usize::MAX),
        counters: (0..COUNTERS).map(Handle::new).collect(),
        model: Model::default(),
        tasks: Vec::new(),
    };
    let ended = RefCell::new(Vec::new());
    let collect = |pair: &mut Pair| {
        ended
            .borrow_mut()
            .extend(pair.programs.take_finished().into_iter().map(|finished| (finished.origin, finished.end)));
        let mut expected = pair.model.ended.clone();
        // The order in which programs end is undefined if one change ends several.
        let mut seen = ended.borrow().clone();
        expected.sort_unstable_by_key(|&(number, _)| number);
        seen.sort_unstable_by_key(|&(number, _)| number);
        assert_eq!(seen, expected);
    };
    for step in steps {
        match step {
            Step::Submit(tasks) => pair.submit(tasks),
            Step::Raise(counter, by) => pair.change(*counter, |level| level.successes += by),
            Step::Fail(counter) => pair.change(*counter, |level| level.errors += 1),
            Step::Set(counter, to) => pair.change(*counter, |level| level.successes = *to),
            Step::Perform(how) => pair.perform(*how),
            Step::Retry(lane) => {
                pair.programs.retry(*lane);
                pair.model.retry(*lane);
            }
            Step::Cancel(number) => {
                pair.programs.cancel(|origin| origin == number);
                pair.model.cancel(*number);
            }
        }
        collect(&mut pair);
    }
    // At rest, no program can continue.
    for lane in 0..LANES {
        pair.programs.retry(lane);
        pair.model.retry(lane);
    }
    while pair.programs.is_due() {
        pair.perform(How::Done);
        collect(&mut pair);
    }
    assert_eq!(pair.programs.len(), pair.model.waiting.len());
    assert_eq!(pair.programs.is_empty(), pair.programs.tasks == 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn random_programs_agree_with_a_plain_model(steps in steps()) {
        check(&steps);
    }
}
