//! The cases of a run: all combinations of the options' values.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::options::{Bind, Coll, Kind, Op, Options, Progress, size_title};
use super::subject::{Floor, Subject};

/// Distinguishes cases of one kind beyond operation and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Variant {
    /// The operation alone defines the case.
    Plain,
    /// Overlap at the sending side.
    Sender,
    /// Overlap at the receiving side.
    Receiver,
    /// Search of the posted receives for an exact tag.
    PostedExact,
    /// Search of posted receives that ignore some bits.
    PostedWildcard,
    /// Search of the unexpected messages for an exact tag.
    UnexpectedExact,
    /// Search of the unexpected messages for a tag with ignored bits.
    UnexpectedWildcard,
    /// A dissemination barrier.
    Barrier,
    /// An all-reduce of 8 bytes by recursive doubling.
    Allreduce,
    /// Memory of idle peers.
    IdlePeer,
    /// Insertion of addresses.
    AvInsert,
    /// An operation of fi_collective.
    Collective(Coll),
}

impl Variant {
    /// The printed name; empty for the plain one.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Sender => "sender",
            Self::Receiver => "receiver",
            Self::PostedExact => "posted exact",
            Self::PostedWildcard => "posted wildcard",
            Self::UnexpectedExact => "unexpected exact",
            Self::UnexpectedWildcard => "unexpected wildcard",
            Self::Barrier => "barrier",
            Self::Allreduce => "allreduce",
            Self::IdlePeer => "idle peer",
            Self::AvInsert => "av insert",
            Self::Collective(coll) => coll.name(),
        }
    }
}

/// A measurement that is made over every subject.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Case {
    pub(crate) kind: Kind,
    pub(crate) op: Op,
    pub(crate) variant: Variant,
    /// Bytes of a message.
    pub(crate) size: usize,
    /// Threads of each process.
    pub(crate) threads: usize,
    /// The number of idle peers, ranks or addresses, or the depth, as [`number_name`] names it. Otherwise 0.
    pub(crate) number: usize,
    /// Time of the emulated wire in microseconds; 0: there is none.
    pub(crate) wire_us: usize,
    /// The floors that are measured with this case.
    pub(crate) floors: Vec<Floor>,
}

/// The name of a case's number.
pub(crate) const fn number_name(kind: Kind, variant: Variant) -> Option<&'static str> {
    match (kind, variant) {
        (_, Variant::AvInsert) => Some("addresses"),
        (Kind::Peers | Kind::Memory, _) => Some("peers"),
        (Kind::Match, _) => Some("depth"),
        (Kind::Oversubscribe, _) => Some("ranks"),
        (Kind::Counter, _) => Some("adders"),
        (Kind::Collective | Kind::OverlapColl, _) => Some("members"),
        _ => None,
    }
}

impl Case {
    /// A case of tagged messages of 8 bytes, for tests.
    #[cfg(test)]
    pub(crate) fn plain(kind: Kind) -> Self {
        let (op, variant) = (Op::Tagged, Variant::Plain);
        Self { kind, op, variant, size: 8, threads: 1, number: 0, wire_us: 0, floors: Vec::new() }
    }

    /// The operation or variant, as printed and in JSON.
    pub(crate) fn op_name(&self) -> String {
        match self.variant {
            Variant::Plain => self.op.name().to_owned(),
            other => other.name().to_owned(),
        }
    }

    /// The name of the case's number, and the number.
    pub(crate) fn count(&self) -> Option<(&'static str, usize)> {
        number_name(self.kind, self.variant).map(|name| (name, self.number))
    }

    /// A short title for people.
    pub(crate) fn title(&self) -> String {
        let mut title = self.op_name();
        let barrier = self.variant == Variant::Collective(Coll::Barrier);
        if !barrier && !matches!(self.kind, Kind::Oversubscribe | Kind::Counter | Kind::Memory | Kind::Match) {
            title += &format!(" {}", size_title(self.size));
        }
        match self.count() {
            Some((name @ "depth", number)) => title += &format!(", {name} {number}"),
            Some((name, number)) => title += &format!(", {number} {name}"),
            None => {}
        }
        if self.wire_us > 0 {
            title += &format!(", wire {} µs", self.wire_us);
        }
        if self.kind == Kind::Rate {
            title += &format!(", {} thread{}", self.threads, if self.threads == 1 { "" } else { "s" });
        }
        title
    }

    /// Whether the case is measured over this subject.
    pub(crate) fn suits(&self, subject: &Subject) -> bool {
        // The emulated wire depends on weft's variables, and is itself by TCP.
        let on_wire = subject.provider == "weft" && !subject.by_sockets();
        let has_chain = self.wire_us > 0 && self.variant == Variant::Collective(Coll::Barrier);
        subject.floor.is_none_or(|floor| self.floors.contains(&floor))
            && (self.wire_us == 0 || on_wire)
            && (subject.progress != Some(Progress::Chain) || has_chain)
    }

    /// Whether a remote memory operation is measured.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self.op, Op::Write | Op::Read | Op::FetchAdd)
    }
}

/// Plans all cases.
pub(crate) fn cases(options: &Options) -> Result<Vec<Case>, String> {
    let kind = options.kind;
    if options.to.is_some() && !kind.is_between_hosts() {
        return Err(
            "this kind is measured on one host; pingpong, bandwidth, rate, overlap and match take --to".to_owned()
        );
    }
    if let (Kind::Collective | Kind::OverlapColl, Some(size)) =
        (kind, options.sizes.iter().find(|size| !size.0.is_multiple_of(8)))
    {
        return Err(format!("collectives have elements of 8 bytes; {} bytes are no multiple of that", size.0));
    }
    if kind == Kind::OverlapColl {
        return overlap_cases(options);
    }
    if options.progress().contains(&Progress::Chain) {
        return Err("--progress chain is for barriers over a wire, which overlap-coll --wire measures".to_owned());
    }
    let mut cases = Vec::new();
    for (index, &op) in ops(options)?.iter().enumerate() {
        for (place, size) in sizes(options, op).into_iter().enumerate() {
            for (variant, threads, number) in details(options) {
                if variant == Variant::Collective(Coll::Barrier) && place > 0 {
                    continue; // It has no size.
                }
                cases.push(Case { kind, op, variant, size, threads, number, wire_us: 0, floors: Vec::new() });
            }
            // Floors do not depend on the operation, so they are measured with the first one only.
            if index == 0
                && let Some(case) = cases.iter_mut().find(|case| case.size == size)
            {
                case.floors = floors(options, place == 0);
            }
        }
    }
    Ok(cases)
}

/// The cases of the overlap of collectives: by operation, size, wire and members.
fn overlap_cases(options: &Options) -> Result<Vec<Case>, String> {
    let colls = if options.coll.is_empty() { vec![Coll::Barrier, Coll::Allreduce] } else { options.coll.clone() };
    let on_wire = |coll: &&Coll| matches!(coll, Coll::Barrier | Coll::Allreduce);
    if let (Some(coll), Some(_)) =
        (colls.iter().find(|coll| !on_wire(coll)), options.lab.wire.iter().find(|&&wire| wire > 0))
    {
        return Err(format!("{} has no emulated wire, as barrier and allreduce have; use --wire 0", coll.name()));
    }
    let mut cases = Vec::new();
    for &coll in &colls {
        for (place, size) in sizes(options, Op::Tagged).into_iter().enumerate() {
            if coll == Coll::Barrier && place > 0 {
                continue; // It has no size.
            }
            for &wire_us in &options.lab.wire {
                let default: &[usize] = if wire_us == 0 { &[2] } else { &[4, 16, 64] };
                let groups = if options.members.is_empty() { default } else { &options.members };
                cases.extend(groups.iter().map(|&number| Case {
                    kind: Kind::OverlapColl,
                    op: Op::Tagged,
                    variant: Variant::Collective(coll),
                    size,
                    threads: 1,
                    number,
                    wire_us,
                    floors: Vec::new(),
                }));
            }
        }
    }
    Ok(cases)
}

/// The operations of a kind, from the command line if there is a choice.
fn ops(options: &Options) -> Result<Vec<Op>, String> {
    let may: &[Op] = match options.kind {
        Kind::Counter => return Ok(vec![Op::FetchAdd]),
        Kind::Pingpong | Kind::Rate => &[Op::Tagged, Op::Msg, Op::Write, Op::Read, Op::FetchAdd],
        Kind::Bandwidth => &[Op::Tagged, Op::Msg, Op::Write, Op::Read],
        _ => &[Op::Tagged],
    };
    match options.op.iter().find(|op| !may.contains(op)) {
        None => Ok(options.op.clone()),
        Some(op) => {
            let names: Vec<_> = may.iter().map(|op| op.name()).collect();
            Err(format!("this kind does not measure {}; --op may be {}", op.name(), names.join(", ")))
        }
    }
}

fn sizes(options: &Options, op: Op) -> Vec<usize> {
    let given: Vec<usize> = options.sizes.iter().map(|size| size.0).collect();
    let short = vec![8];
    match options.kind {
        Kind::Oversubscribe | Kind::Memory | Kind::Counter => short,
        _ if op == Op::FetchAdd => short,
        _ if !given.is_empty() => given,
        Kind::Rate | Kind::Peers | Kind::Match => short,
        Kind::OverlapColl => short,
        Kind::Collective => vec![8, 16 << 10],
        Kind::Overlap => vec![64 << 10, 1 << 20],
        Kind::Pingpong | Kind::Bandwidth => vec![8, 4 << 10, 64 << 10, 1 << 20],
    }
}

/// The variants, thread counts and numbers of a kind.
fn details(options: &Options) -> Vec<(Variant, usize, usize)> {
    use Variant::*;
    match options.kind {
        // `overlap_cases` has them.
        Kind::OverlapColl => Vec::new(),
        Kind::Pingpong | Kind::Bandwidth => vec![(Plain, 1, 0)],
        Kind::Rate => options.threads.iter().map(|&threads| (Plain, threads, 0)).collect(),
        Kind::Overlap => vec![(Sender, 1, 0), (Receiver, 1, 0)],
        Kind::Peers => options.lab.peers.iter().map(|&peers| (Plain, 1, peers)).collect(),
        Kind::Match => [PostedExact, PostedWildcard, UnexpectedExact, UnexpectedWildcard]
            .into_iter()
            .flat_map(|variant| options.lab.depths.iter().map(move |&depth| (variant, 1, depth)))
            .collect(),
        Kind::Counter => options.lab.adders.iter().map(|&adders| (Plain, 1, adders)).collect(),
        Kind::Oversubscribe => vec![(Barrier, 1, options.lab.ranks), (Allreduce, 1, options.lab.ranks)],
        Kind::Collective => {
            let all = if options.coll.is_empty() { Coll::value_variants() } else { &options.coll };
            let groups = if options.members.is_empty() { &[2, 4, 16][..] } else { &options.members };
            all.iter().flat_map(|&coll| groups.iter().map(move |&members| (Collective(coll), 1, members))).collect()
        }
        Kind::Memory => {
            let most = options.lab.peers.iter().copied().max().unwrap_or_default().max(1);
            vec![(IdlePeer, 1, most), (AvInsert, 1, options.lab.addresses)]
        }
    }
}

/// The floors of a case. Some do not depend on the size and are measured with the first size only.
fn floors(options: &Options, first: bool) -> Vec<Floor> {
    match options.kind {
        Kind::Pingpong | Kind::Bandwidth if options.to.is_some() => vec![Floor::Tcp],
        _ if options.to.is_some() => Vec::new(),
        Kind::Pingpong if first => vec![Floor::CacheLine, Floor::Memcpy, Floor::Readv, Floor::Tcp],
        Kind::Pingpong | Kind::Bandwidth => vec![Floor::Memcpy, Floor::Readv, Floor::Tcp],
        Kind::Peers if first => vec![Floor::CacheLine, Floor::Tcp],
        // Passing numbers to another core is no floor for two threads that share a core.
        Kind::Rate if first && options.bind != Bind::Pair => vec![Floor::Ring],
        Kind::Match if first => vec![Floor::Ring],
        Kind::Oversubscribe if first => vec![Floor::Futex],
        _ => Vec::new(),
    }
}

#[cfg(all(test, feature = "lab"))]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::bench::options::LabOptions;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        lab: LabOptions,
    }

    fn planned(line: &str) -> Result<Vec<Case>, String> {
        let Line { options, lab } = Line::parse_from(["bench"].into_iter().chain(line.split(' ')));
        cases(&options.with(lab))
    }

    #[test]
    fn every_combination_is_planned_and_floors_once() {
        let cases = planned("pingpong --sizes 8,4K --op tagged,read").expect("well-formed");
        assert_eq!(cases.len(), 4);
        assert_eq!(cases[0].floors, [Floor::CacheLine, Floor::Memcpy, Floor::Readv, Floor::Tcp]);
        assert_eq!(cases[1].floors, [Floor::Memcpy, Floor::Readv, Floor::Tcp]);
        assert!(cases[2].floors.is_empty() && cases[3].floors.is_empty());
        let titles: Vec<_> = cases.iter().map(Case::title).collect();
        assert_eq!(titles, ["tagged 8 B", "tagged 4 KiB", "read 8 B", "read 4 KiB"]);
        assert_eq!(planned("match --depths 0,16").expect("well-formed").len(), 8);
        assert_eq!(planned("rate --threads 1,2,4 --op tagged,fetch-add").expect("well-formed").len(), 6);
        let floors =
            |line| planned(line).expect("well-formed").iter().map(|case| case.floors.len()).collect::<Vec<_>>();
        assert_eq!(floors("rate --threads 1,2"), [1, 0]);
        assert_eq!(floors("rate --threads 1,2 --bind pair"), [0, 0]);
        assert_eq!(floors("oversubscribe"), [1, 0]);
        let overlap = planned("overlap-coll --wire 0,50 --sizes 8,1K").expect("well-formed");
        let titles: Vec<_> = overlap.iter().take(5).map(Case::title).collect();
        assert_eq!(titles[..2], ["barrier, 2 members", "barrier, 4 members, wire 50 µs"]);
        assert_eq!((titles[4].as_str(), overlap.len()), ("allreduce 8 B, 2 members", 12));
        assert_eq!(planned("memory --peers 3,5").expect("well-formed")[0].title(), "idle peer, 5 peers");
    }

    #[test]
    fn operations_that_a_kind_does_not_have_are_refused() {
        assert!(planned("bandwidth --op fetch-add").is_err_and(|error| error.contains("write, read")));
        assert!(planned("peers --op read").is_err());
        assert!(planned("overlap-coll --coll reduce").is_err_and(|error| error.contains("--wire 0")));
        assert!(planned("collective --sizes 12").is_err());
        assert!(planned("pingpong --progress chain").is_err_and(|error| error.contains("overlap-coll")));
    }
}
