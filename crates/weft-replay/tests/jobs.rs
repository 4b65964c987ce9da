//! Recordings become jobs whose dependencies and times are those of the programs, in every form.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::slice::from_ref;

use weft_engine::collective::{Algorithm, Operation};
use weft_record::{ANY, Event, OWN, Omitted, Recording, Source};
use weft_replay::tune::{self, Setting};
use weft_replay::{Fault, Job, build, goal};
use weft_scale::profile::{Costs, Path};
use weft_scale::{Machine, Options, Programs, Step};

/// Latency 1000, both overheads 100, and 1 for each byte, in picoseconds.
fn costs() -> Costs {
    let far = Path { send: 100, receive: 100, latency: 1000, byte: 1, ..Path::default() };
    Costs { ranks_per_host: 1, far, ..Costs::default() }
}

fn recording(rank: u32, ranks: u32, events: &[(u64, Event)]) -> Recording {
    let contexts = BTreeMap::from([(0, (0..ranks).collect())]);
    let (source, names, omitted, lasted_ns) = (Source::Mpi, BTreeMap::new(), BTreeMap::new(), Some(5));
    Recording { source, rank, ranks, events: events.to_vec(), contexts, names, omitted, lasted_ns }
}

fn send(to: u32, id: u32, bytes: u64, tag: u32) -> Event {
    Event::Send { to, id, bytes, context: 0, tag }
}

fn receive(from: u32, id: u32, tag: u32) -> Event {
    Event::Receive { from, id, bytes: 1 << 20, context: 0, tag }
}

const fn wait(id: u32) -> Event {
    Event::Wait { from: ANY, id, tag: ANY }
}

fn end_ps(job: &Job) -> u64 {
    Machine::new(job, &costs(), Options::default()).run(|_, _| ()).unwrap().end_ps
}

fn no_choice(_: Operation, _: u64, _: u32) -> Option<Algorithm> {
    None
}

fn built(recordings: &[Recording]) -> Job {
    let job = build(recordings, &costs(), &no_choice).unwrap();
    assert_eq!(job.unmatched(), 0);
    job
}

#[test]
fn a_wait_depends_on_its_message_and_computation_overlaps() {
    let ranks = |work_ns| {
        // The receive is started in front of the computation.
        let events = [(0, receive(0, 7, 3)), (work_ns, wait(7)), (1, send(0, 0, 0, 9))];
        let first = [(5, send(1, 0, 8, 3)), (0, receive(1, 0, 9))];
        built(&[recording(0, 2, &first), recording(1, 2, &events)])
    };
    let message = 5000 + 100 + 1000 + 8;
    let answer = 100 + 1000 + 100 + 1000 + 100;
    assert_eq!(end_ps(&ranks(1)), message + answer);
    assert_eq!(end_ps(&ranks(500)), 500_000 + answer);
}

#[test]
fn times_follow_from_the_costs() {
    let ranks = [
        recording(0, 2, &[(0, send(1, 0, 50, 1)), (0, receive(1, 0, 1))]),
        recording(1, 2, &[(0, receive(0, 0, 1)), (1, send(0, 0, 50, 1))]),
    ];
    // Twice: overhead, latency, bytes, overhead; and one nanosecond of work in between.
    assert_eq!(end_ps(&built(&ranks)), 2 * (100 + 1000 + 50 + 100) + 1000);
}

#[test]
fn a_receive_of_any_source_is_bound_to_the_recorded_message() {
    let ranks = [
        recording(
            0,
            3,
            &[
                (0, receive(ANY, 1, ANY)),
                (0, receive(ANY, 2, ANY)),
                (0, Event::Wait { from: 2, id: 1, tag: 6 }),
                (0, Event::Wait { from: 1, id: 2, tag: 5 }),
            ],
        ),
        recording(1, 3, &[(0, send(0, 0, 8, 5))]),
        recording(2, 3, &[(90, send(0, 0, 16, 6))]),
    ];
    let job = built(&ranks);
    let waits: Vec<_> = job.steps(0).iter().filter(|step| matches!(step, Step::Wait { .. })).collect();
    assert_eq!(waits.len(), 2);
    let first = job.messages(0)[0];
    assert_eq!((first.from, first.bytes), (2, 16));
    // The message of rank 2 comes later, and is awaited first.
    assert_eq!(end_ps(&job), 90_000 + 100 + 1000 + 16 + 100 + 100);
}

#[test]
fn collectives_of_overlapping_communicators_are_told_apart() {
    let barrier = |context| Event::Collective { operation: 0, id: 0, bytes: 0, context, root: 0 };
    let ranks: Vec<Recording> = (0..4)
        .map(|rank| {
            let mut one = recording(rank, 4, &[(0, barrier(0)), (0, barrier(1)), (0, barrier(0))]);
            one.contexts.insert(1, if rank < 2 { vec![0, 1] } else { vec![2, 3] });
            one
        })
        .collect();
    let job = built(&ranks);
    // Two rounds, one round, two rounds.
    assert_eq!(end_ps(&job), 5 * (100 + 1000 + 100));
    let dissemination = |_: Operation, _: u64, _: u32| Some(Algorithm::RecursiveDoubling);
    assert_eq!(end_ps(&build(&ranks, &costs(), &dissemination).unwrap()), end_ps(&job));
}

/// Ranks of one host meet in its memory; members of other communicators meet at other places.
#[test]
fn short_collectives_of_a_host_are_on_its_board() {
    let mut costs = Costs { ranks_per_host: 4, ..costs() };
    costs.collective.board = Some(50);
    let allreduce = Event::Collective { operation: 3, id: 0, bytes: 8, context: 0, root: 0 };
    let of_rank = |rank| recording(rank, 4, &[(u64::from(rank), allreduce), (0, allreduce)]);
    let job = build(&[0, 1, 2, 3].map(of_rank), &costs, &no_choice).unwrap();
    let outcome = Machine::new(&job, &costs, Options::default()).run(|_, _| ()).unwrap();
    // The last one comes after 3 ns, and no message is sent.
    assert_eq!((outcome.messages, outcome.end_ps), (0, 3000 + 50 + 50));
    costs.ranks_per_host = 2;
    let apart = build(&[0, 1, 2, 3].map(of_rank), &costs, &no_choice).unwrap();
    assert!(Machine::new(&apart, &costs, Options::default()).run(|_, _| ()).unwrap().messages > 0);
}

#[test]
fn a_collective_without_blocking_ends_at_its_wait() {
    let start = Event::Collective { operation: 3, id: 9, bytes: 8, context: 0, root: 0 };
    let ranks: Vec<Recording> = (0..2).map(|rank| recording(rank, 2, &[(0, start), (50, wait(9))])).collect();
    let job = built(&ranks);
    assert!(end_ps(&job) < 50_000 + 1000, "the computation hides the message");
}

/// A recording of the provider: its own endpoint, and peers in the order of their numbers.
fn of_provider(own: u8, peers: &[u8], events: &[(u64, Event)]) -> Recording {
    let name = |name: u8| vec![name; 16];
    let names = (0..).zip(peers).map(|(number, peer)| (number, name(*peer))).chain([(OWN, name(own))]);
    Recording { source: Source::Provider, names: names.collect(), ..recording(ANY, 0, events) }
}

#[test]
fn recordings_of_the_provider_find_their_peers_by_name() {
    let access = |reads| Event::Access { to: 0, id: 4, bytes: 1000, reads };
    let first = [(7, send(0, 3, 8, 77)), (0, wait(3)), (0, receive(1, 0, 5))];
    let second = [(0, receive(0, 0, 77)), (2, send(0, 0, 8, 5))];
    // Processes are ranks in the order of their names.
    let one = of_provider(1, &[2, 2], &first);
    let two = of_provider(2, &[1], &second);
    let job = built(&[two.clone(), one]);
    assert_eq!((job.ranks(), job.steps(0)[0]), (2, Step::Compute { ps: 7000 }));
    let message = 100 + 1000 + 8 + 100;
    assert_eq!(end_ps(&job), 7000 + message + 2000 + message);
    // A write has left when its entry comes; a read waits for its answer. A process without an endpoint is no rank.
    let idle = Recording { names: BTreeMap::new(), ..two };
    for (reads, end) in [(false, 100), (true, 100 + 1000 + 1000 + 1000 + 100)] {
        let one = of_provider(1, &[2], &[(0, access(reads)), (0, wait(4))]);
        let job = built(&[one, of_provider(2, &[1], &[]), idle.clone()]);
        let took = end_ps(&job);
        assert!((end..=end + 1000).contains(&took), "{reads}: {took}");
    }
}

#[test]
fn incomplete_jobs_are_refused_and_killed_ranks_are_not() {
    let [a, b] = [recording(0, 2, &[]), recording(1, 2, &[])];
    let fault = |recordings: &[Recording]| build(recordings, &costs(), &no_choice).map(drop).unwrap_err();
    assert_eq!(fault(&[]), Fault::None);
    assert_eq!(fault(from_ref(&a)), Fault::Missing(1));
    assert_eq!(fault(from_ref(&b)), Fault::Missing(0));
    assert_eq!(fault(&[a.clone(), a.clone()]), Fault::Twice(0));
    let killed = recording(0, 2, &[(0, receive(1, 0, 1)), (0, send(1, 0, 8, 1))]);
    let job = build(&[killed, b], &costs(), &no_choice).unwrap();
    assert_eq!((job.unmatched(), end_ps(&job)), (2, 0));
}

#[test]
fn a_request_of_several_messages_awaits_all() {
    let mut exchange = recording(0, 3, &[(0, receive(1, 7, 4)), (0, receive(2, 7, 4)), (0, wait(7))]);
    exchange.omitted.insert(Omitted::Scan, 2);
    let late = |rank, work_ns| recording(rank, 3, &[(work_ns, send(0, 0, 8, 4))]);
    // The receives are awaited in their order, and each takes 100.
    for (times, more) in [([5, 9], 0), ([9, 5], 100)] {
        let job = built(&[exchange.clone(), late(1, times[0]), late(2, times[1])]);
        assert_eq!(end_ps(&job), 9000 + 100 + 1000 + 8 + 100 + more);
        assert_eq!(job.omitted()[&Omitted::Scan], 2);
    }
}

#[test]
fn a_text_of_goal_has_the_time_of_its_job() {
    let all = Event::Collective { operation: 2, id: 0, bytes: 100, context: 0, root: 0 };
    let ranks: Vec<Recording> = (0..6)
        .map(|rank| {
            let (next, before) = ((rank + 1) % 6, (rank + 5) % 6);
            let ring = [(3, send(next, 0, 700, 4)), (0, receive(before, 0, 4))];
            recording(rank, 6, &[(u64::from(rank), all), ring[0], ring[1], (0, all)])
        })
        .collect();
    let mut costs = costs();
    costs.cpu.copy_byte = 0;
    let job = built(&ranks);
    let text = goal::write(&job, &costs);
    assert!(goal::is_one(&text) && text.contains("\nrank 5 {\nl1: "), "{text}");
    let again = goal::read(&text).unwrap();
    assert_eq!(again.ranks(), 6);
    assert_eq!(goal::write(&again, &costs), text);
    assert_eq!(end_ps(&again), end_ps(&job));
}

#[test]
fn a_graph_is_performed_in_an_order_that_it_allows() {
    let text = "num_ranks 2\n\nrank 0 {\nl1: send 8b to 1 tag 4\nl2: send 16b to 1 tag 5\nl1 requires l2\n}\n\
                rank 1 {\na: recv 8b from 0 tag 4 cpu 0\nb: recv 16b from 0 tag 5\nc: calc 7\nc requires b\n\
                d: calc 9\nd irequires a\n}\n";
    let job = goal::read(text).unwrap();
    let sent: Vec<_> =
        job.steps(0).iter().map(|step| if let Step::Send { bytes, .. } = step { *bytes } else { 0 }).collect();
    assert_eq!(sent, [16, 8]);
    let [
        Step::Wait { ordinal: b, .. },
        Step::Compute { ps: 7000 },
        Step::Compute { ps: 9000 },
        Step::Wait { ordinal: a, .. },
    ] = *job.steps(1)
    else {
        panic!("{:?}", job.steps(1))
    };
    assert_eq!([b, a].map(|ordinal| job.messages(1)[ordinal as usize].bytes), [16, 8]);
    let fault = |text: &str| goal::read(text).map(drop).unwrap_err().to_string();
    assert!(fault("num_ranks 1\nrank 0 {\nx: sned 8b\n}").starts_with("line 3: `x: sned 8b` is not understood"));
    assert!(fault("num_ranks 1\nrank 0 {\na: calc 1\nb: calc 1\na requires b\nb requires a\n}").contains("circle"));
    assert!(fault("num_ranks 9999999999").contains("number of ranks"));
    assert!(fault("rank 0 {").contains("below num_ranks"));
}

#[test]
fn settings_are_ranked_for_a_job() {
    let reduce = Event::Collective { operation: 3, id: 0, bytes: 1 << 16, context: 0, root: 0 };
    let ranks: Vec<Recording> = (0..8).map(|rank| recording(rank, 8, &[(0, reduce)])).collect();
    let costs = costs();
    let settings = tune::settings(&ranks, &costs);
    let present = Setting::default();
    let algorithm = Some((Operation::AllReduce, 1 << 16, Algorithm::RecursiveDoubling));
    let (doubling, streams) = (Setting { algorithm, ..present }, Setting { streams: Some(4), ..present });
    assert!(settings.contains(&doubling) && doubling.variables().is_none());
    assert_eq!(streams.variables().unwrap(), "FI_WEFT_TCP_STREAMS=4");
    let rated = tune::rank(&ranks, &costs, &settings).unwrap();
    assert_eq!(rated.len(), settings.len());
    let of = |wanted: Setting| rated.iter().position(|one| one.setting == wanted).unwrap();
    assert!(of(streams) < of(present), "{rated:?}");
    assert!(of(present) < of(doubling), "doubling moves more bytes: {rated:?}");
    // Where processors move the bytes, streams do not help.
    let bound = Costs { far: Path { least_byte: 1, ..costs.far.clone() }, ..costs };
    let rated = tune::rank(&ranks, &bound, &[present, streams]).unwrap();
    assert_eq!(rated[0].end_ps, rated[1].end_ps);
}
