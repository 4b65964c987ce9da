//! Reads the recording of a process.

use std::collections::BTreeMap;

use crate::event::{ANY, Event, Omitted, RECORD_BYTES, Source};

/// The recording of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// The library that wrote the file.
    pub source: Source,
    /// The rank, or [`ANY`].
    pub rank: u32,
    /// The number of ranks, or 0.
    pub ranks: u32,
    /// The events, with the nanoseconds of computation in front of each.
    pub events: Vec<(u64, Event)>,
    /// The members of each context, as ranks in the world. Context 0 is the world.
    pub contexts: BTreeMap<u32, Vec<u32>>,
    /// The names of peers, for recordings of the provider.
    pub names: BTreeMap<u32, Vec<u8>>,
    /// Calls that are not recorded.
    pub omitted: BTreeMap<Omitted, usize>,
    /// How long the process ran. `None`: it was killed.
    pub lasted_ns: Option<u64>,
}

/// The reason for which a file is no recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It does not begin like one.
    #[error("this is no recording: record the job again with FI_WEFT_RECORD set, by this version of weft")]
    NoRecording,
    /// A record has an unknown kind.
    #[error("record {0} cannot be read: the file is damaged, or another version of weft wrote it")]
    Record(usize),
}

impl Recording {
    /// Whether the bytes begin like a recording.
    #[must_use]
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes
            .first_chunk::<RECORD_BYTES>()
            .and_then(Event::decode)
            .is_some_and(|(_, event)| matches!(event, Event::Start { .. }))
    }

    /// Reads the bytes of a file. A record at the end that is not whole is left out: the process was killed.
    ///
    /// # Errors
    /// They are no recording.
    pub fn read(bytes: &[u8]) -> Result<Self, Unreadable> {
        let mut records = bytes.as_chunks::<RECORD_BYTES>().0.iter().map(Event::decode).enumerate();
        let Some((_, Some((_, Event::Start { source, rank, ranks })))) = records.next() else {
            return Err(Unreadable::NoRecording);
        };
        let (events, contexts, names) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let omitted = BTreeMap::new();
        let mut recording = Self { source, rank, ranks, events, contexts, names, omitted, lasted_ns: None };
        // Computation in front of records that are no events belongs to the next event. A file that breaks off early
        // has no rate: nanoseconds are then the best guess.
        let (mut gap, mut rate) = (0, (1, 1));
        for (at, record) in records {
            let (before, event) = record.ok_or(Unreadable::Record(at))?;
            gap += before;
            match event {
                Event::Start { .. } => return Err(Unreadable::Record(at)),
                Event::Members { context, ranks } => {
                    let members = recording.contexts.entry(context).or_default();
                    members.extend(ranks.into_iter().filter(|rank| *rank != ANY));
                }
                Event::Name { peer, part } => recording.names.entry(peer).or_default().extend(part),
                Event::Omitted { call } => *recording.omitted.entry(call).or_default() += 1,
                // The last one is the most exact.
                Event::Rate { ticks, ns } => rate = (ticks.max(1), ns),
                Event::End { lasted_ns } => recording.lasted_ns = Some(lasted_ns),
                other => recording.events.push((std::mem::take(&mut gap), other)),
            }
        }
        for (gap, _) in &mut recording.events {
            let ns = u128::from(*gap) * u128::from(rate.1) / u128::from(rate.0);
            *gap = u64::try_from(ns).unwrap_or(u64::MAX);
        }
        Ok(recording)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use super::*;
    use crate::{Clock, Writer};

    static CLOCK: Clock = Clock::new();

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let path = std::env::temp_dir().join(format!("weft-record-{}", std::process::id()));
        let mut writer = Writer::create(&path, (1, 6), Source::Mpi, &CLOCK).unwrap();
        writer.add_members(0, &[0, 1, 2, 3, 4, 5]);
        writer.add_name(3, b"a name of more than sixteen bytes");
        let sent = Event::Send { to: 2, id: 1, bytes: 8, context: 0, tag: 5 };
        for _ in 0..5000 {
            CLOCK.enter();
            writer.add(&sent);
            CLOCK.leave();
        }
        std::thread::sleep(Duration::from_millis(20));
        CLOCK.enter();
        writer.add(&sent);
        drop(writer);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let whole = Recording::read(&bytes).unwrap();
        assert!(Recording::is_one(&bytes) && whole.lasted_ns.is_some());
        assert_eq!((whole.rank, whole.ranks, whole.events.len()), (1, 6, 5001));
        assert_eq!(whole.contexts[&0], [0, 1, 2, 3, 4, 5]);
        assert!(whole.names[&3].starts_with(b"a name of more than sixteen bytes"));
        let computed_ns: u64 = whole.events.iter().map(|(gap_ns, _)| gap_ns).sum();
        assert!((20_000_000..whole.lasted_ns.unwrap()).contains(&computed_ns), "{computed_ns}");
        let killed = Recording::read(&bytes[..bytes.len() / 2 + 5]).unwrap();
        assert!(killed.lasted_ns.is_none() && killed.events.len() > 2000);
        let early = Recording::read(&bytes[..64]).unwrap();
        assert!(early.lasted_ns.is_none() && early.events.is_empty(), "killed behind its start");
        assert_eq!(Recording::read(b"#!/bin/sh").unwrap_err(), Unreadable::NoRecording);
        assert_eq!(Recording::read(&[bytes[..64].to_vec(), vec![0xff; 32]].concat()), Err(Unreadable::Record(2)));
    }
}
