//! When writes are complete: function × level × target × report. Beside weft, the same table runs on libfabric's
//! sockets provider, which gives the right values.
//!
//! A write and its counter are complete when the target's memory has the bytes. Only a short write that names inject
//! complete, or in shared memory transmit complete, may be complete earlier. A write to the endpoint itself is done
//! when the call returns. A refused write has one entry.

use std::ffi::CStr;
use std::time::Instant;

use weft_fi_sys::*;

use crate::client::{Lib, bind, close};
use crate::open;
use crate::rig::Cntr;
use crate::side::{
    Args, EP_CONTEXT, Form, PATIENCE, Side, Watched, call, introduce, memory, off, pattern, scenes, works,
};

const CALLS: [&str; 6] =
    ["fi_write", "fi_writev", "fi_writedata", "fi_writemsg", "fi_inject_write", "fi_inject_writedata"];
/// Lengths within a message, and beside it. Only the first ones are injected.
const LENGTHS: [usize; 3] = [8, 200, 200_000];
const INJECT_BYTES: usize = 200;
const LEVELS: [u64; 4] = [0, FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE];
const CONTEXT: usize = 0xc7;
const KEY: u64 = 9;
const NEVER: u64 = 10;

/// The place where the client names a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// `op_flags` of the endpoint.
    Endpoint,
    /// `op_flags` of the shared transmit context. It shares nothing, so this level has no effect.
    SharedContext,
    /// The call's flags.
    Call,
}

pub(crate) fn all(lib: &Lib) {
    scenes(lib, &[("table", |lib| table(lib, c"weft"))]);
}

/// The table on sockets, in the libraries that have that provider.
pub(crate) fn sockets(lib: &Lib) {
    if lib.getinfo(lib.newest(), None, None, 0, Some(&hints(lib, c"sockets", 0, false))).is_ok() {
        table(lib, c"sockets");
    }
}

fn hints<'a>(lib: &'a Lib, provider: &CStr, level: u64, shared: bool) -> crate::client::Info<'a> {
    let hints = lib.allocinfo();
    hints.get().caps = FI_MSG | FI_TAGGED | FI_RMA;
    hints.ep().type_ = FI_EP_RDM;
    hints.ep().tx_ctx_cnt = if shared { usize::MAX } else { 0 };
    (hints.tx().op_flags, hints.tx().inject_size) = (level, INJECT_BYTES);
    hints.fabric().prov_name = unsafe { libc::strdup(provider.as_ptr()) };
    hints
}

/// Two endpoints, of which one writes to both.
struct Writer<'a> {
    a: Side<'a>,
    b: Side<'a>,
    counter: Cntr,
    stx: Option<*mut fid_stx>,
    /// The addresses of the endpoint itself and of the other one, their memory, and their regions.
    targets: [(u64, Watched, *mut fid_mr); 2],
    named: Named,
    level: u64,
    selective: bool,
    /// Whether the provider makes progress in the calls of this thread only.
    manual: bool,
}

impl<'a> Writer<'a> {
    fn open(lib: &'a Lib, provider: &CStr, named: Named, level: u64, selective: bool) -> Self {
        let shared = named == Named::SharedContext;
        let default = if named == Named::Endpoint { level } else { 0 };
        let ask = |level, shared| {
            let hints = hints(lib, provider, level, shared);
            Side::unbound_for(lib, lib.getinfo(lib.newest(), None, None, 0, Some(&hints)).unwrap())
        };
        let a = ask(default, shared);
        let stx = shared.then(|| {
            a.info.tx().op_flags = level;
            let stx = open!(a.opened.domain, stx_ctx, a.info.get().tx_attr).unwrap();
            assert_eq!(bind(a.ep, stx, 0), 0);
            stx
        });
        let counter = Cntr(a.opened.cntr());
        assert_eq!(bind(a.ep, counter.0, FI_WRITE), 0);
        assert_eq!((bind(a.ep, a.av, 0), bind(a.ep, a.cq, FI_RECV)), (0, 0));
        assert_eq!(bind(a.ep, a.cq, FI_TRANSMIT | if selective { FI_SELECTIVE_COMPLETION } else { 0 }), 0);
        assert_eq!(a.enable(), 0);
        let (a, b, to_b, to_a) = introduce(a, ask(0, false).bound());
        works(&b, &a, to_a);
        let to_self = a.insert(&a.name());
        let target = |side: &Side<'_>, to| {
            let memory = memory(LENGTHS[2]);
            (to, Watched::new(memory), side.register(memory, FI_REMOTE_WRITE, KEY))
        };
        let targets = [target(&a, to_self), target(&b, to_b)];
        Self { a, b, counter, stx, targets, named, level, selective, manual: provider == c"weft" }
    }

    /// Whether a short write to the other endpoint is complete before its target has made progress.
    fn leaves(&self, form: Form) -> bool {
        let applies = match self.named {
            Named::Endpoint => form != Form::Message,
            Named::SharedContext => false,
            Named::Call => form == Form::Message,
        };
        let tcp = off("FI_WEFT_SHM");
        applies && (self.level == FI_INJECT_COMPLETE || self.level == FI_TRANSMIT_COMPLETE && !tcp)
    }

    fn arguments(&self, source: &mut [u8], to: u64, key: u64) -> Args {
        let flags = if self.named == Named::Call { self.level } else { 0 };
        Args { key, flags, context: CONTEXT, ..Args::new(source, to) }
    }

    /// The entries of the writer and the data that have arrived.
    fn entries(&self) -> (usize, usize) {
        let (mut own, mut remote) = (0, 0);
        for side in [&self.a, &self.b] {
            while let Some(outcome) = side.poll() {
                let entry = outcome.done();
                if entry.op_context as usize == CONTEXT {
                    own += 1;
                } else {
                    assert_eq!((entry.flags & FI_REMOTE_CQ_DATA, entry.data), (FI_REMOTE_CQ_DATA, 0xda7a));
                    remote += 1;
                }
            }
        }
        (own, remote)
    }

    /// One write that succeeds.
    fn write(&self, name: &str, len: usize, other: bool) {
        let Self { a, b, counter, .. } = self;
        let (to, there, _) = self.targets[usize::from(other)];
        let form = call(name).form;
        let what = format!(
            "{name} of {len} bytes, {:?} {:#x}, to {}, selective {}",
            self.named,
            self.level,
            if other { "another" } else { "itself" },
            self.selective
        );
        let (before, source) = (counter.read(), pattern(len));
        there.bytes()[..len].fill(0);
        a.start(name, &self.arguments(source, to, KEY), &[b]);
        let stored = || there.bytes()[..len] == *source;
        let early = other && len < LENGTHS[2] && self.leaves(form);
        if self.manual {
            assert!(other || stored(), "{what}: the call returned before the bytes were stored");
            // The counter's reads make progress at the initiator, and not at the target.
            let alone = (0..300).any(|_| counter.read() > before);
            assert_eq!(alone, early || !other, "{what}: counted without progress of the target");
        }
        wait(&what, || {
            if self.manual && counter.read() == before {
                b.progress();
            }
            let counted = counter.read() > before;
            assert!(!counted || early || stored(), "{what}: counted before the bytes were stored");
            counted
        });
        let reported = form != Form::Inject && !self.selective;
        let data = name.ends_with("data");
        let wanted = (usize::from(reported), usize::from(data));
        let mut seen = (0, 0);
        wait(&format!("{what}, which has {wanted:?} entries"), || {
            let (own, remote) = self.entries();
            seen = (seen.0 + own, seen.1 + remote);
            seen == wanted && stored()
        });
        (0..50).for_each(|_| assert_eq!(self.entries(), (0, 0), "{what}"));
        assert_eq!((counter.read(), counter.errors()), (before + 1, 0), "{what}");
    }

    /// One write that the target refuses. It has one entry, unless it was complete before.
    fn refused(&self, name: &str, len: usize, other: bool) {
        let Self { a, b, counter, .. } = self;
        let (to, _, _) = self.targets[usize::from(other)];
        let form = call(name).form;
        let before = (counter.read(), counter.errors());
        a.start(name, &self.arguments(pattern(len), to, NEVER), &[b]);
        let early = other && len < LENGTHS[2] && self.leaves(form);
        if early && form != Form::Inject && !self.selective {
            assert_eq!(a.next(&[b]).done().op_context as usize, CONTEXT);
        }
        let entry = a.next(&[b]).failed();
        let context = match form {
            _ if early => 0,
            Form::Inject => EP_CONTEXT,
            _ => CONTEXT,
        };
        assert_eq!((entry.err, entry.op_context as usize), (FI_EKEYREJECTED, context), "{name} of {len} bytes");
        assert_eq!(entry.flags & (FI_RMA | FI_WRITE), FI_RMA | FI_WRITE);
        a.nothing(&[b]);
        assert_eq!((counter.read(), counter.errors()), (before.0 + u64::from(early), before.1 + 1));
    }

    fn close(mut self) {
        self.targets.iter().for_each(|&(.., region)| assert_eq!(close(region), 0));
        self.a.close_ep();
        self.stx.into_iter().for_each(|stx| assert_eq!(close(stx), 0));
        assert_eq!(close(self.counter.0), 0);
    }
}

/// Waits until a condition holds.
#[track_caller]
fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
    }
}

fn table(lib: &Lib, provider: &CStr) {
    let places = [Named::Endpoint, Named::SharedContext, Named::Call];
    let rows = places.into_iter().flat_map(|named| LEVELS.map(|level| (named, level)));
    let mut cases = 0;
    for (named, level) in rows {
        for selective in [false, true] {
            let writer = Writer::open(lib, provider, named, level, selective);
            for name in CALLS.into_iter().filter(|name| named != Named::Call || *name == "fi_writemsg") {
                let longest = if call(name).form == Form::Inject { INJECT_BYTES } else { LENGTHS[2] };
                for len in LENGTHS.into_iter().filter(|&len| len <= longest) {
                    for other in [false, true] {
                        writer.write(name, len, other);
                        cases += 1;
                    }
                }
            }
            if writer.manual {
                for name in CALLS.into_iter().filter(|name| named != Named::Call || *name == "fi_writemsg") {
                    for other in [false, true] {
                        writer.refused(name, LENGTHS[0], other);
                        cases += 1;
                    }
                }
            }
            writer.close();
        }
    }
    println!("cases: {cases} writes over {provider:?}");
}
