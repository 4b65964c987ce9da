//! Memory of an idle peer, and of an inserted address.
//!
//! *Heap* counts bytes that the libraries of this process have allocated by malloc(3). *Resident* memory counts every
//! touched page, including shared memory. *Shared* is the shared part of it. *Proportional* memory divides each page of
//! shared memory among the processes that map it. Pages of files (programs, libraries) are not counted, because their
//! number depends on the code that has run. Kernel memory, such as that of sockets, is not counted either.

use std::io::Read;
use std::time::Instant;

use weft_client::{Domain, Endpoint};

use super::idle;
use crate::bench::child::{RankError, Session};
use crate::bench::job::{Hello, Measure};
use crate::bench::port::{Port, open_domain};

/// Addresses inserted by one call.
const CHUNK: usize = 4096;

/// Measures the memory of a peer after one exchange of messages. Rank 0 is the hub; two other ranks have half of the
/// peers each.
pub(crate) fn idle_peers(session: &mut Session) -> Result<(), RankError> {
    let job = &session.job;
    let number = job.case.number.max(2);
    let halves = [number / 2, number - number / 2];
    if job.rank > 0 {
        return idle::host(session, halves[job.rank - 1], 0);
    }
    let domain = open_domain(job)?;
    let mut port = Port::open(&domain, 4096, idle::SLOTS, number, job.wait)?;
    let mut hello = Hello::default();
    port.add_to(&mut hello);
    let hellos = session.exchange(hello)?;
    let [_, first, second] = hellos.as_slice() else { return Err(RankError::Failed("a rank is missing".to_owned())) };
    // The first peer takes more memory than each further one.
    idle::connect(&mut port, first, 0..1)?;
    let mut listing = Listing::new();
    let before = Usage::now(&mut listing)?;
    idle::connect(&mut port, first, 1..halves[0])?;
    idle::connect(&mut port, second, 0..halves[1])?;
    session.result(before.growth_to(&Usage::now(&mut listing)?, number - 1));
    session.finish(|| port.linger())
}

/// Measures memory and time of an address in the address vector.
pub(crate) fn insert(session: &mut Session) -> Result<(), RankError> {
    let job = &session.job;
    let number = job.case.number;
    let domain = open_domain(job)?;
    // The first endpoint takes memory that does not belong to the larger address vector.
    let first = Port::open(&domain, 4096, 1, 0, job.wait)?;
    session.exchange(Hello::default())?;
    let mut names = Names::new(&domain, &first.ep, &job.provider)?;
    let mut chunk = Vec::with_capacity(CHUNK * first.ep.name().len());
    let mut listing = Listing::new();
    let before = Usage::now(&mut listing)?;
    // The vector may allocate its memory when it is opened with the number of addresses.
    let mut port = Port::open(&domain, 4096, 1, number, job.wait)?;
    let mut took = 0.0;
    for start in (0..number).step_by(CHUNK) {
        let count = CHUNK.min(number - start);
        chunk.clear();
        (start..start + count).for_each(|index| names.append(index, &mut chunk));
        let start = Instant::now();
        port.ep.insert(&chunk, count)?;
        took += start.elapsed().as_secs_f64() * 1e9;
    }
    let after = Usage::now(&mut listing)?;
    let mut result = before.growth_to(&after, number);
    result.retain(|measure| ["heap", "resident"].contains(&measure.metric.as_str()));
    result.push(Measure::new("time", took / number as f64, "ns"));
    session.result(result);
    session.finish(|| port.linger())
}

/// Makes addresses of endpoints that do not exist, from the address of one that does.
struct Names {
    pattern: Vec<u8>,
    /// Positions of the bytes that vary. They take the lowest bytes of the number, in this order.
    vary: Vec<usize>,
    /// The addresses are strings, to which the number is appended.
    strings: bool,
}

impl Names {
    fn new(domain: &Domain, ep: &Endpoint, provider: &str) -> Result<Self, RankError> {
        let pattern = ep.name().to_vec();
        let (vary, strings) = match (domain.address_format(), pattern.len()) {
            // sockaddr_in: the last three bytes of the address, so that it stays in its network; then a byte of the
            // port.
            (weft_client::FORMAT_SOCKADDR_IN, 16..) => (vec![7, 6, 5, 3], false),
            // sockaddr_in6: the last bytes of the address.
            (weft_client::FORMAT_SOCKADDR_IN6, 28..) => (vec![23, 22, 21, 20], false),
            (weft_client::FORMAT_STRING, _) => (Vec::new(), true),
            // The capability, from which the endpoint's identity is derived (docs/protocol.md).
            (_, 32 | 48) if provider == "weft" => (vec![31, 30, 29, 28], false),
            (format, _) => {
                return Err(RankError::NotOffered(format!("addresses of format {format} cannot be generated")));
            }
        };
        Ok(Self { pattern, vary, strings })
    }

    fn append(&mut self, index: usize, chunk: &mut Vec<u8>) {
        if self.strings {
            let text = self.pattern.split(|&byte| byte == 0).next().unwrap_or_default();
            chunk.extend_from_slice(text);
            chunk.extend_from_slice(format!("{index}\0").as_bytes());
            return;
        }
        let start = chunk.len();
        chunk.extend_from_slice(&self.pattern);
        for (at, byte) in self.vary.iter().zip(index.to_le_bytes()) {
            chunk[start + at] = byte;
        }
    }
}

/// Memory of this process, in bytes.
#[derive(Default)]
struct Usage {
    /// `None` if the C library does not report it.
    heap: Option<f64>,
    resident: f64,
    shared: f64,
    proportional: f64,
}

/// Room for the kernel's listing of this process's mappings. All of it is touched before anything is measured, so
/// reading the listing does not change the measured memory.
struct Listing(Vec<u8>);

impl Listing {
    /// Room for some thousand mappings.
    const BYTES: usize = 2 << 20;

    fn new() -> Self {
        Self(vec![b' '; Self::BYTES])
    }

    fn read(&mut self) -> Result<&str, RankError> {
        let mut file = std::fs::File::open("/proc/self/smaps")?;
        let mut len = 0;
        loop {
            match file.read(&mut self.0[len..])? {
                0 => return Ok(std::str::from_utf8(&self.0[..len]).unwrap_or_default()),
                more => len += more,
            }
        }
    }
}

impl Usage {
    fn now(listing: &mut Listing) -> Result<Self, RankError> {
        let heap = weft_client::heap_bytes().map(|bytes| bytes as f64);
        Ok(Self { heap, ..Self::parse(listing.read()?) })
    }

    /// The growth, divided by the `number` of things that caused it.
    fn growth_to(&self, after: &Self, number: usize) -> Vec<Measure> {
        let each = |name: &str, before: f64, after: f64| Measure::new(name, (after - before) / number as f64, "B");
        let heap = self.heap.zip(after.heap).map(|(before, after)| each("heap", before, after));
        let others = [
            each("resident", self.resident, after.resident),
            each("shared", self.shared, after.shared),
            each("proportional", self.proportional, after.proportional),
        ];
        heap.into_iter().chain(others).collect()
    }

    /// Adds up the mappings of the kernel's listing. Each is a head line with addresses and path, followed by fields.
    fn parse(text: &str) -> Self {
        let mut usage = Self::default();
        let (mut counts, mut shared) = (false, false);
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let first = words.next().unwrap_or_default();
            if !first.ends_with(':') {
                // Address, permissions, offset, device, inode, path.
                shared = words.next().is_some_and(|permissions| permissions.ends_with('s'));
                counts = words.nth(3).is_none_or(is_memory);
                continue;
            }
            let (true, Some(Ok(kib))) = (counts, words.next().map(str::parse::<f64>)) else { continue };
            match first {
                "Rss:" => {
                    usage.resident += kib * 1024.0;
                    usage.shared += if shared { kib * 1024.0 } else { 0.0 };
                }
                "Pss:" => usage.proportional += kib * 1024.0,
                _ => {}
            }
        }
        usage
    }
}

/// Whether a mapping is memory, not a file.
fn is_memory(path: &str) -> bool {
    path.starts_with('[') || ["/memfd:", "/dev/shm/", "/dev/zero", "/SYSV"].iter().any(|start| path.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read() {
        let usage = Usage::parse(
            "55d0-55d4 r-xp 00000000 08:01 1234       /usr/bin/weft\nRss:       100 kB\nPss:       50 kB\n\
             7f00-7f01 rw-p 00000000 00:00 0 \nSize:  9 kB\nRss:       8 kB\nPss:       8 kB\n\
             7f02-7f03 rw-s 00000000 00:01 99   /memfd:weft (deleted)\nRss:       2 kB\nPss:       1 kB\n",
        );
        assert_eq!((usage.resident, usage.proportional, usage.shared), (10240.0, 9216.0, 2048.0));
        assert!(Usage::now(&mut Listing::new()).expect("this system has it").resident > 4096.0);
    }

    #[test]
    fn growth_is_divided_by_the_peers() {
        let before = Usage { heap: Some(1000.0), resident: 0.0, ..Usage::default() };
        let grown = before.growth_to(&Usage { heap: Some(1800.0), resident: 4096.0, ..Usage::default() }, 4);
        let values: Vec<_> = grown.iter().map(|measure| (measure.metric.as_str(), measure.value)).collect();
        assert_eq!(values, [("heap", 200.0), ("resident", 1024.0), ("shared", 0.0), ("proportional", 0.0)]);
    }

    #[test]
    fn the_heap_is_counted() {
        let before = weft_client::heap_bytes();
        let block = std::hint::black_box(vec![0_u8; 1 << 20]);
        let after = weft_client::heap_bytes();
        assert!(before.zip(after).is_none_or(|(before, after)| after > before), "{before:?} {after:?} {}", block.len());
    }

    #[test]
    fn generated_addresses_differ() {
        let mut chunk = Vec::new();
        let mut names = Names { pattern: vec![9; 16], vary: vec![7, 6, 5, 3], strings: false };
        [1, 256, 65_536, 1 << 24].into_iter().for_each(|index| names.append(index, &mut chunk));
        let mut all: Vec<&[u8]> = chunk.chunks(16).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!((all.len(), chunk.len()), (4, 64));
        let mut text = Vec::new();
        Names { pattern: b"fi_shm://1\0".to_vec(), vary: vec![], strings: true }.append(5, &mut text);
        assert_eq!(text, b"fi_shm://15\0");
    }
}
