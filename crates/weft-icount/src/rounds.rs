//! One round of each operation: what comes before it, the counted calls, and what comes after it.
//!
//! A round leaves both sides as it found them: nothing under way, nothing to be read. It returns how many
//! calls were counted, which differs between providers: some complete a write at once, others when the target
//! has acknowledged it.

use weft_client::{Error, Posted};

use crate::counted;
use crate::pair::{Pair, SLOT, SOURCE, TAG, TARGET, WINDOW, nothing};

/// Executes an operation once, or as often as its line in the table says.
pub(crate) type Round = fn(&mut Pair) -> Result<u32, Error>;

/// What is measured, by the names in tables and in the baseline, and how often a round executes it.
pub(crate) const OPERATIONS: &[(&str, u32, Round)] = &[
    ("tinject", 1, inject),
    ("tsend", 1, send),
    ("trecv", 1, receive),
    ("trecv-window", WINDOW, receive_window),
    ("write", 1, write),
    ("write-target", 1, write_target),
    ("empty-read", 1, empty_read),
];

/// The same between endpoints whose operations complete only when the peer has the data.
pub(crate) const DELIVERED: &[(&str, u32, Round)] = &[("tsend-delivered", 1, send), ("write-delivered", 1, write)];

/// Counts `fi_tinject`. The receive is posted before, the peer takes the message afterwards.
fn inject(pair: &mut Pair) -> Result<u32, Error> {
    pair.post(|pair| pair.far.receive())?;
    let near = &mut pair.near;
    at_once(counted::inject(&mut near.ep, SOURCE, near.peer, TAG)?)?;
    pair.arrive()?;
    pair.settle()?;
    Ok(1)
}

/// Counts `fi_tsend` and each `fi_cq_read` up to the one with its completion; between two of them the peer is polled.
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

/// Counts `fi_trecv` before the message comes, and each `fi_cq_read` from when it is there up to the one that
/// delivers it.
fn receive(pair: &mut Pair) -> Result<u32, Error> {
    at_once(counted::receive(&mut pair.near.ep, SLOT, TARGET, TAG)?)?;
    pair.post(|pair| pair.far.inject())?;
    // A sender may keep something for later.
    pair.far.idle()?;
    let calls = 1 + read_until_complete(pair)?;
    pair.settle()?;
    Ok(calls)
}

/// Counts the same for a window of messages that arrive together, as in a test of the message rate.
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

/// Counts `fi_write` and each `fi_cq_read` up to the one with its completion; between two of them the peer is polled.
fn write(pair: &mut Pair) -> Result<u32, Error> {
    let near = &mut pair.near;
    at_once(counted::write(&mut near.ep, SLOT, SOURCE, near.peer, near.region)?)?;
    let calls = 1 + read_until_complete(pair)?;
    pair.settle()?;
    Ok(calls)
}

/// Counts each `fi_cq_read` of the target of an `fi_write`, until the number is there and the initiator has
/// its completion.
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

/// Counts an `fi_cq_read` that finds nothing, shortly after another found something: idle for long, a
/// provider may behave differently and, for instance, yield.
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

/// Reads of the near side until its operation is complete, counted, with the far side polled between two of them.
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

/// With nothing under way there is room for one operation.
fn at_once(posted: Posted) -> Result<(), Error> {
    match posted {
        Posted::Done => Ok(()),
        Posted::Again => Err(Error::Misuse("no room for a single operation")),
    }
}
