//! A test of the oracle: every mutant breaks one rule in otherwise correct runs, and every mutant must be
//! caught.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::cell::Cell;
use std::rc::Rc;

use weft_engine::api::{Access, Completion, CompletionFlags, Fault, Kind, OpFlags, RecvFlags};
use weft_engine::nic::LinkError;
use weft_sim::oracle::Record;
use weft_sim::run::run_with;
use weft_sim::{Endpoints, Fabric, FabricConfig, Fate, Harness, Hazard, Hazards, Plan, Recv, Rma, Send};

/// Plays runs with the mutant switched on. Each run in which it struck must fail, and each other run must
/// pass. `strike` gets a batch of completions and returns whether it changed one.
fn completions_mutant(name: &str, strike: impl Fn(&mut Vec<Completion>) -> bool + Copy + 'static) {
    completions_mutant_in(Plan::lossless, name, strike);
}

fn completions_mutant_in(
    plan: impl Fn(u64) -> Plan,
    name: &str,
    strike: impl Fn(&mut Vec<Completion>) -> bool + Copy + 'static,
) {
    let struck = Rc::new(Cell::new(0));
    for seed in 0..40 {
        // A dozen strikes suffice; rare completions need all the runs.
        if struck.get() == 12 {
            break;
        }
        let before = struck.get();
        let counter = Rc::clone(&struck);
        let mut wait = 20 + seed;
        let report = run_with(&plan(seed), move |harness| {
            harness.set_tamper(Box::new(move |_, batch| {
                if wait > 0 {
                    wait -= 1;
                } else if counter.get() == before && strike(batch) {
                    counter.set(before + 1);
                }
            }));
        });
        if struck.get() > before {
            assert!(!report.wrong.is_empty(), "mutant `{name}` survives: seed {seed}");
        } else {
            assert!(report.wrong.is_empty(), "seed {seed} fails without the mutant: {:?}", report.wrong);
        }
    }
    assert!(struck.get() >= 3, "mutant `{name}` struck only {} times", struck.get());
}

/// Changes the first completion that `change` accepts.
fn one(batch: &mut [Completion], mut change: impl FnMut(&mut Completion) -> bool) -> bool {
    batch.iter_mut().any(|c| c.fault.is_none() && change(c))
}

fn is_recv(c: &Completion) -> bool {
    // A discard reports only its end, so none of its other fields can be wrong.
    c.kind == Kind::Recv && !c.flags.intersects((RecvFlags::PEEK | RecvFlags::MULTI | RecvFlags::DISCARD).into())
}

#[test]
fn a_lost_completion_is_caught() {
    completions_mutant("lost completion", |batch| batch.pop().is_some_and(|c| c.kind != Kind::RemoteRead));
}

#[test]
fn a_second_completion_is_caught() {
    completions_mutant("second completion", |batch| {
        let again = batch.iter().find(|c| is_recv(c) || c.kind == Kind::Send).copied();
        batch.extend(again);
        again.is_some()
    });
}

#[test]
fn a_wrong_length_is_caught() {
    completions_mutant("send length", |batch| one(batch, |c| c.kind == Kind::Send && replace(&mut c.len, |n| n + 1)));
    completions_mutant("recv length", |batch| {
        one(batch, |c| is_recv(c) && c.len > 0 && replace(&mut c.len, |n| n - 1))
    });
}

fn replace<T: Copy>(place: &mut T, with: impl Fn(T) -> T) -> bool {
    *place = with(*place);
    true
}

#[test]
fn a_wrong_tag_or_datum_is_caught() {
    let tagged = |c: &Completion| c.flags.contains(CompletionFlags::TAGGED) && is_recv(c);
    completions_mutant("tag", move |batch| one(batch, |c| tagged(c) && replace(&mut c.tag, |tag| tag ^ 0x100)));
    let with_data = |c: &Completion| c.flags.contains(CompletionFlags::DATA) && is_recv(c);
    completions_mutant("data", move |batch| one(batch, |c| with_data(c) && replace(&mut c.data, |data| data ^ 1)));
    completions_mutant("data flag", move |batch| {
        one(batch, |c| with_data(c) && replace(&mut c.flags, |flags| flags - CompletionFlags::DATA))
    });
}

#[test]
fn a_wrong_source_is_caught() {
    completions_mutant("source", |batch| one(batch, |c| is_recv(c) && replace(&mut c.src, |src| u64::from(src == 0))));
    // Completions of a connected endpoint carry no source.
    completions_mutant("no source", |batch| {
        one(batch, |c| is_recv(c) && c.src != u64::MAX && replace(&mut c.src, |_| u64::MAX))
    });
}

#[test]
fn a_wrong_context_is_caught() {
    completions_mutant("context", |batch| one(batch, |c| replace(&mut c.ctx.user, |user| user ^ 1)));
    completions_mutant("unknown context", |batch| {
        one(batch, |c| c.kind == Kind::Send && replace(&mut c.ctx.ptr, |_| 0))
    });
}

#[test]
fn a_wrong_kind_or_flag_is_caught() {
    completions_mutant("kind", |batch| one(batch, |c| c.kind == Kind::Send && replace(&mut c.kind, |_| Kind::Recv)));
    completions_mutant("tagged flag", |batch| {
        one(batch, |c| is_recv(c) && replace(&mut c.flags, |flags| flags ^ CompletionFlags::TAGGED))
    });
    completions_mutant("released flag", |batch| {
        one(batch, |c| is_recv(c) && replace(&mut c.flags, |flags| flags | CompletionFlags::RELEASED))
    });
}

#[test]
fn a_wrong_number_of_remote_events_is_caught() {
    let remote = |c: &Completion| matches!(c.kind, Kind::RemoteWrite | Kind::RemoteRead);
    completions_mutant("second remote event", move |batch| {
        let again = batch.iter().find(|c| remote(c)).copied();
        batch.extend(again);
        again.is_some()
    });
    completions_mutant("lost remote write", move |batch| {
        let at = batch.iter().position(|c| c.kind == Kind::RemoteWrite && c.flags.contains(CompletionFlags::DATA));
        at.map(|at| batch.remove(at)).is_some()
    });
}

#[test]
fn an_error_without_cause_is_caught() {
    for fault in [Fault::Canceled, Fault::Link(LinkError::Gone), Fault::BadKey] {
        completions_mutant("error", move |batch| {
            let honest = |c: &Completion| c.kind == Kind::Send || c.kind == Kind::Write;
            one(batch, |c| honest(c) && replace(&mut c.fault, |_| Some(fault)))
        });
    }
}

/// Where calls may be refused, a broken link and an unreported loss of a message are still failures.
#[test]
fn a_refusal_excuses_no_other_failure() {
    let plan = |seed| {
        let (hazards, endpoints) = (Hazards::NONE.with(Hazard::Refuse), Endpoints::Rdm);
        Plan { hazards, endpoints, ..Plan::lossless(seed) }
    };
    completions_mutant_in(plan, "a link that broke", |batch| {
        let gone = Some(Fault::Link(LinkError::Gone));
        one(batch, |c| (c.kind == Kind::Send || c.kind == Kind::Write) && replace(&mut c.fault, |_| gone))
    });
    completions_mutant_in(plan, "an unreported refusal", |batch| {
        let failed =
            |c: &Completion| c.kind == Kind::Send && c.flags.contains(OpFlags::QUIET.into()) && c.fault.is_some();
        let at = batch.iter().position(failed);
        at.map(|at| batch.remove(at)).is_some()
    });
}

/// A broken link excuses pending operations, but none that is started after both ends have learned of it.
#[test]
fn a_link_break_excuses_no_later_failure() {
    for strikes in [false, true] {
        let mut harness = Harness::new(FabricConfig::new(1), weft_engine::api::Config::default(), 2);
        let exchange = |harness: &mut Harness| {
            harness.recv(1, &Recv { len: 64, ..Recv::default() }).unwrap();
            harness.send(0, 1, &Send { len: 32, ..Send::default() }).unwrap();
        };
        exchange(&mut harness);
        harness.drive().unwrap();
        exchange(&mut harness);
        harness.break_links(0, 1, 0);
        harness.drive().unwrap();
        let mut strikes_still = strikes;
        harness.set_tamper(Box::new(move |_, batch| {
            let gone = Some(Fault::Link(LinkError::Gone));
            let strike = |c: &mut Completion| c.kind == Kind::Send && replace(&mut c.fault, |_| gone);
            strikes_still = strikes_still && !one(batch, strike);
        }));
        exchange(&mut harness);
        harness.drive().unwrap();
        assert_eq!(harness.finish().is_empty(), !strikes);
    }
}

#[test]
fn swapped_receives_are_caught() {
    completions_mutant("swapped receives", |batch| {
        let plain = |c: &Completion| is_recv(c) && c.fault.is_none() && c.len > 8;
        let two = batch.iter().enumerate().filter(|(_, c)| plain(c)).map(|(i, _)| i).take(2).collect::<Vec<_>>();
        let [a, b] = two[..] else { return false };
        if batch[a].ctx == batch[b].ctx {
            return false; // two messages of one multi-receive
        }
        (batch[a].ctx, batch[b].ctx) = (batch[b].ctx, batch[a].ctx);
        true
    });
}

#[test]
fn an_early_delivery_completion_is_caught() {
    // Receives are reported late, so every delivery-complete send completes too early.
    let mut caught = 0;
    for seed in 0..20 {
        let report = run_with(&Plan::lossless(seed), |harness| {
            let mut held: Vec<Vec<Completion>> = vec![Vec::new(); 64];
            let mut calls = 0_u64;
            harness.set_tamper(Box::new(move |rank, batch| {
                calls += 1;
                let late = batch.extract_if(.., |c| is_recv(c)).collect::<Vec<_>>();
                held[rank].extend(late);
                if calls.is_multiple_of(50) {
                    batch.append(&mut held[rank]);
                }
            }));
        });
        caught += usize::from(report.wrong.iter().any(|text| text.contains("delivery complete before")));
    }
    assert!(caught > 5, "caught only {caught} of 20");
}

/// Plays runs over a wire that loses, doubles or changes one message.
fn wire_mutant(name: &str, intercept: impl Fn(bool, &mut Vec<u8>) -> Option<Fate> + Copy + 'static) {
    let struck = Rc::new(Cell::new(0));
    let mut caught = 0;
    for seed in 0..20 {
        let before = struck.get();
        let counter = Rc::clone(&struck);
        let mut wait = 30 + seed;
        let report = run_with(&Plan::lossless(seed), move |harness| {
            harness.cluster().fabric().set_interceptor(Box::new(move |_, _, whole, bytes| {
                if wait > 0 || counter.get() > before {
                    wait = wait.saturating_sub(1);
                    return Fate::Deliver;
                }
                let fate = intercept(whole, bytes);
                counter.set(before + usize::from(fate.is_some()));
                fate.unwrap_or(Fate::Deliver)
            }));
        });
        caught += usize::from(!report.wrong.is_empty());
    }
    // A change is not noticed in a message that is discarded or truncated.
    let struck = struck.get();
    assert!(
        struck >= 3 && caught * 10 >= struck * 7,
        "mutant `{name}` struck {struck} times, was caught {caught} times"
    );
}

/// Whether this is an eager message (kind 8) that is longer than its header.
fn is_eager(whole: bool, bytes: &[u8]) -> bool {
    whole && bytes.first() == Some(&8) && bytes.len() > 60
}

#[test]
fn a_lost_message_is_caught() {
    wire_mutant("lost message", |whole, bytes| is_eager(whole, bytes).then_some(Fate::Lose));
}

#[test]
fn a_changed_payload_is_caught() {
    let flip = |bytes: &mut Vec<u8>| {
        if let Some(last) = bytes.last_mut() {
            *last ^= 1;
        }
        Some(Fate::Deliver)
    };
    wire_mutant("changed message", move |whole, bytes| if is_eager(whole, bytes) { flip(bytes) } else { None });
    wire_mutant("changed push", move |whole, bytes| if whole { None } else { flip(bytes) });
}

#[test]
fn a_changed_tag_is_caught() {
    wire_mutant("changed tag", |whole, bytes| {
        let tagged = is_eager(whole, bytes) && bytes[1] & 1 != 0;
        tagged.then(|| bytes[9] ^= 1).map(|()| Fate::Deliver)
    });
}

/// Whether this requests an addition to counters: type 7 is a 64-bit number, operation 2 a sum. Counters stand
/// at the beginning of a region.
fn adds_to_counter(whole: bool, bytes: &[u8]) -> bool {
    let offset = |bytes: &[u8]| u32::from_le_bytes(bytes[24..28].try_into().unwrap()) & 0x0fff_ffff;
    is_kind(whole, bytes, 20) && bytes[2..4] == [7, 2] && bytes[1] & 2 == 0 && offset(bytes) < 32
}

/// Whether this is a whole message of the wanted kind.
fn is_kind(whole: bool, bytes: &[u8], wanted: u8) -> bool {
    whole && bytes.first() == Some(&wanted)
}

#[test]
fn a_missing_addition_is_caught() {
    wire_mutant("lost addition", |whole, bytes| {
        adds_to_counter(whole, bytes).then(|| bytes[32..].fill(0)).map(|()| Fate::Deliver)
    });
    wire_mutant("difference instead", |whole, bytes| {
        adds_to_counter(whole, bytes).then(|| bytes[3] = 19).map(|()| Fate::Deliver)
    });
}

#[test]
fn a_wrong_result_is_caught() {
    wire_mutant("changed result", |whole, bytes| {
        let with_result = is_kind(whole, bytes, 21) && bytes.len() > 16;
        with_result.then(|| bytes[16] ^= 1).map(|()| Fate::Deliver)
    });
    completions_mutant("lost fetch", |batch| {
        let at = batch.iter().position(|c| c.kind == Kind::FetchAtomic && c.fault.is_none());
        at.map(|at| batch.remove(at)).is_some()
    });
    completions_mutant("an atomic that was none", |batch| {
        one(batch, |c| c.kind == Kind::FetchAtomic && replace(&mut c.kind, |_| Kind::Read))
    });
}

#[test]
fn late_and_stray_writes_are_caught() {
    for stray in [false, true] {
        let mut harness = Harness::new(FabricConfig::new(1), weft_engine::api::Config::default(), 2);
        let op = harness.recv(1, &Recv { len: 64, ..Recv::default() }).unwrap();
        harness.send(0, 1, &Send { len: 32, ..Send::default() }).unwrap();
        let Record::Recv(recv) = harness.oracle().record(op) else { panic!("a receive") };
        let buffer = recv.buffer;
        if stray {
            buffer.part(40, 1).fill(0);
            harness.drive().unwrap();
        } else {
            harness.drive().unwrap();
            buffer.part(3, 1).fill(0);
        }
        assert!(!harness.finish().is_empty(), "stray: {stray}");
    }
}

#[test]
fn a_push_that_overtakes_its_announcement_is_caught() {
    let mut config = FabricConfig::new(1);
    (config.caps.get, config.caps.put, config.jitter_ns) = (false, false, 50_000);
    for overtakes_permille in [0, 1000] {
        config.faults.push_overtakes_permille = overtakes_permille;
        let mut harness = Harness::new(config.clone(), weft_engine::api::Config::default(), 2);
        let window = harness.add_window(1, 50_000, Access { read: false, write: true }, false).unwrap();
        for n in 0..5 {
            harness.write(0, window, &Rma { offset: n * 10_000, remote: vec![10_000], ..Rma::default() }).unwrap();
        }
        harness.drive().unwrap();
        assert_eq!(harness.finish().is_empty(), overtakes_permille == 0, "{overtakes_permille}");
    }
}

#[test]
fn overtaking_on_an_ordered_wire_is_caught() {
    // The engine sees a gap in the sequence numbers. It must close the link for a broken protocol, and the
    // oracle must report that.
    let mut harness = Harness::new(FabricConfig::new(1), weft_engine::api::Config::default(), 2);
    let fabric: Fabric = harness.cluster().fabric().clone();
    let mut kept: Option<Vec<u8>> = None;
    fabric.set_interceptor(Box::new(move |_, to, whole, bytes| {
        if to == 1 && whole && bytes[0] == 8 && kept.is_none() {
            kept = Some(bytes.clone());
            return Fate::Lose;
        }
        Fate::Deliver
    }));
    for _ in 0..3 {
        harness.recv(1, &Recv { len: 64, ..Recv::default() }).unwrap();
        harness.send(0, 1, &Send { len: 32, ..Send::default() }).unwrap();
        harness.drive().unwrap();
    }
    assert!(!harness.finish().is_empty());
}
