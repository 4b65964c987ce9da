//! One round of each operation: its preparation, the counted calls, and its conclusion.
//!
//! After a round, both sides are in their previous state: no operation is pending, and no completion is unread. A round
//! returns its number of counted calls. This number differs between providers: some complete a write at once, others
//! when the target has acknowledged it.

use weft_client::{Error, Posted};

use crate::counted;
use crate::pair::{Pair, SLOT, SOURCE, TAG, TARGET, WINDOW, nothing};

/// Executes an operation, once or for a whole window.
pub(crate) type Round = fn(&mut Pair) -> Result<u32, Error>;

/// The measured operations: the name in tables and in the baseline, and the number of executions in a round.
pub(crate) const OPERATIONS: &[(&str, u32, Round)] = &[
    ("tinject", 1, inject),
    ("tsend", 1, send),
    ("trecv", 1, receive),
    ("trecv-window", WINDOW, receive_window),
    ("write", 1, write),
    ("write-target", 1, write_target),
    ("empty-read", 1, empty_read),
];

/// Operations measured between endpoints whose operations complete only when the peer has the data.
pub(crate) const DELIVERED: &[(&str, u32, Round)] = &[("tsend-delivered", 1, send), ("write-delivered", 1, write)];

/// Operations in memory that the peer has mapped, between such endpoints.
pub(crate) const MAPPED: &[(&str, u32, Round)] =
    &[("write-mapped", 1, write), ("read-mapped", 1, read), ("fetch-add-mapped", 1, fetch_add)];

/// Counts `fi_tinject`. The receive is posted before it, and the peer takes the message after it.
fn inject(pair: &mut Pair) -> Result<u32, Error> {
    pair.post(|pair| pair.far.receive())?;
    let near = &mut pair.near;
    at_once(counted::inject(&mut near.ep, SOURCE, near.peer, TAG)?)?;
    pair.arrive()?;
    pair.settle()?;
    Ok(1)
}

/// Counts `fi_tsend` and each `fi_cq_read` up to the one with its completion. The peer is polled between two reads.
fn send(pair: &mut Pair) -> Result<u32, Error> {
    pair.post(|pair| pair.far.receive())?;
    let (mut calls, mut received) = (1, 0);
    let near = &mut pair.near;
    at_once(counted::send(&mut near.ep, SLOT, SOURCE, near.peer, TAG)?)?;
    pair.until(|pair| {
        calls += 1;
        if counted::read(&mut pair.near.ep)? > 0 {
            return Ok(true);
        }
        received += pair.far.poll()?;
        Ok(false)
    })?;
    if received == 0 {
        pair.arrive()?;
    }
    pair.settle()?;
    Ok(calls)
}

/// Counts `fi_trecv` before the message is sent, and then each `fi_cq_read` up to the one with its completion.
fn receive(pair: &mut Pair) -> Result<u32, Error> {
    at_once(counted::receive(&mut pair.near.ep, SLOT, TARGET, TAG)?)?;
    pair.post(|pair| pair.far.inject())?;
    // A sender may defer the message.
    pair.far.idle()?;
    let calls = 1 + read_until_complete(pair)?;
    pair.settle()?;
    Ok(calls)
}

/// Counts `fi_trecv` and `fi_cq_read` for a window of messages that arrive together, as in a message-rate test.
fn receive_window(pair: &mut Pair) -> Result<u32, Error> {
    for slot in 0..WINDOW {
        at_once(counted::receive(&mut pair.near.ep, slot, TARGET, TAG)?)?;
    }
    for _ in 0..WINDOW {
        pair.post(|pair| pair.far.inject())?;
    }
    pair.far.idle()?;
    let (mut calls, mut received) = (WINDOW, 0);
    pair.until(|pair| {
        calls += 1;
        received += counted::read(&mut pair.near.ep)?;
        pair.far.idle()?;
        Ok(received >= WINDOW as usize)
    })?;
    pair.settle()?;
    Ok(calls)
}

/// Reads until an access that was started is complete. Returns the number of calls, the start included.
fn complete(pair: &mut Pair) -> Result<u32, Error> {
    let calls = 1 + read_until_complete(pair)?;
    pair.settle()?;
    Ok(calls)
}

/// Counts `fi_write` and each `fi_cq_read` up to the one with its completion. The peer is polled between two reads.
fn write(pair: &mut Pair) -> Result<u32, Error> {
    let near = &mut pair.near;
    at_once(counted::write(&mut near.ep, SLOT, SOURCE, near.peer, near.region)?)?;
    complete(pair)
}

/// Counts `fi_read` in the same way.
fn read(pair: &mut Pair) -> Result<u32, Error> {
    let near = &mut pair.near;
    at_once(counted::get(&mut near.ep, SLOT, TARGET, near.peer, near.region)?)?;
    complete(pair)
}

/// Counts `fi_fetch_atomic` of one number in the same way.
fn fetch_add(pair: &mut Pair) -> Result<u32, Error> {
    let near = &mut pair.near;
    at_once(counted::fetch_add(&mut near.ep, SLOT, [SOURCE.offset, TARGET.offset], near.peer, near.region)?)?;
    complete(pair)
}

/// Counts each `fi_cq_read` at the target of an `fi_write`, until the number has arrived and the initiator has its
/// completion.
fn write_target(pair: &mut Pair) -> Result<u32, Error> {
    let number = pair.far.ep.load(SOURCE.offset)? + 1;
    pair.far.ep.store(SOURCE.offset, number)?;
    pair.post(|pair| {
        let far = &mut pair.far;
        far.ep.write(SLOT, SOURCE, far.peer, far.region, SOURCE.offset)
    })?;
    let mut complete = pair.far.poll()?;
    let mut calls = 0;
    pair.until(|pair| {
        if complete > 0 && pair.near.ep.load(SOURCE.offset)? == number {
            return Ok(true);
        }
        calls += 1;
        nothing(counted::read(&mut pair.near.ep)?)?;
        complete += pair.far.poll()?;
        Ok(false)
    })?;
    pair.settle()?;
    Ok(calls)
}

/// Counts an `fi_cq_read` that finds nothing, shortly after one that found a completion. A provider that was idle for
/// long may behave differently, for instance yield.
fn empty_read(pair: &mut Pair) -> Result<u32, Error> {
    pair.post(|pair| pair.near.receive())?;
    pair.post(|pair| pair.far.inject())?;
    pair.until(|pair| {
        pair.far.idle()?;
        Ok(pair.near.poll()? > 0)
    })?;
    pair.settle()?;
    nothing(counted::read(&mut pair.near.ep)?)?;
    Ok(1)
}

/// Reads completions of the near side, counted, until its operation is complete. The far side is polled between two
/// reads.
fn read_until_complete(pair: &mut Pair) -> Result<u32, Error> {
    let mut calls = 0;
    pair.until(|pair| {
        calls += 1;
        if counted::read(&mut pair.near.ep)? > 0 {
            return Ok(true);
        }
        pair.far.idle()?;
        Ok(false)
    })?;
    Ok(calls)
}

/// Fails if an operation found no room although no other is pending.
fn at_once(posted: Posted) -> Result<(), Error> {
    match posted {
        Posted::Done => Ok(()),
        Posted::Again => Err(Error::Misuse("no room for a single operation")),
    }
}
