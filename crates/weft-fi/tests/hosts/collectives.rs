//! Collectives (fi_collective(3)): sets, joins, and all operations among the endpoints of this process.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use weft_engine::amo::{TYPES, Type};
use weft_fi_sys::*;
use weft_observe::layout;

use crate::client::{Lib, bind, close};
use crate::collective_case::{Case, EVERY, Part, What, run};
use crate::open;
use crate::published;
use crate::rig::MODELS;
use crate::side::{Side, err, fabric_err, scenes, until};

pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("offers", offers),
            ("sets", sets),
            ("joins", joins),
            ("refusals", refusals),
            ("every operation", every_operation),
            ("long buffers", long_buffers),
            ("in place", in_place),
            ("many at a time", many_at_a_time),
            ("two groups", two_groups),
            ("blocks of different lengths", exchanges),
            ("calls that end it", calls_that_end_it),
            ("published", published_groups),
            ("counters and selective queues", quiet_successes),
        ],
    );
}

/// A member: its endpoint, its event queue, and the addresses of all members in the order of their numbers.
pub(crate) struct Member<'a> {
    pub(crate) side: Side<'a>,
    eq: *mut fid_eq,
    pub(crate) addrs: Vec<u64>,
}

/// A member's handle of a group.
pub(crate) struct Group {
    set: *mut fid_av_set,
    mc: *mut fid_mc,
}

impl Group {
    pub(crate) fn addr(&self) -> u64 {
        unsafe { (*self.mc).fi_addr }
    }

    pub(crate) fn close(self) {
        assert_eq!(close(self.mc), 0, "fi_close(mc)");
        assert_eq!(close(self.set), 0, "fi_close(av_set)");
    }
}

impl<'a> Member<'a> {
    pub(crate) fn new(lib: &'a Lib, progress: fi_progress) -> Self {
        let side = Side::unbound(lib, 0, |hints| {
            hints.get().caps = FI_MSG | FI_TAGGED | FI_COLLECTIVE;
            (hints.domain().data_progress, hints.domain().control_progress) = (progress, progress);
        });
        let eq = side.opened.eq(|attr| attr.wait_obj = FI_WAIT_UNSPEC).unwrap();
        assert_eq!(bind(side.ep, eq, 0), 0);
        Self { side: side.bound(), eq, addrs: Vec::new() }
    }

    /// Creates a set of these members, in this order.
    fn set(&self, members: &[usize]) -> *mut fid_av_set {
        let set = av_set(self.side.av, FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL, 1, 0).unwrap();
        for &member in members {
            assert_eq!(unsafe { (*(*set).ops).insert.unwrap()(set, self.addrs[member]) }, 0);
        }
        set
    }

    /// Starts to join a group of these members.
    fn join(&self, members: &[usize], context: usize) -> Group {
        let set = self.set(members);
        let mc = join(self.side.ep, set, FI_ADDR_NOTAVAIL, context).unwrap();
        Group { set, mc }
    }

    /// Reads the next event, if there is one: its number, handle and context.
    fn event(&self) -> Option<(u32, usize, usize)> {
        let mut entry: fi_eq_entry = unsafe { std::mem::zeroed() };
        let mut event = 0;
        let read = unsafe { (*(*self.eq).ops).read.unwrap() };
        let result = unsafe { read(self.eq, &mut event, (&raw mut entry).cast(), size_of::<fi_eq_entry>(), 0) };
        if result == err(FI_EAGAIN) {
            return None;
        }
        assert_eq!(result, size_of::<fi_eq_entry>() as isize);
        Some((event, entry.fid.addr(), entry.context.addr()))
    }

    /// `fi_query_collective`.
    fn query(&self, coll: fi_collective_op, op: fi_op, datatype: fi_datatype) -> (c_int, fi_collective_attr) {
        let domain = self.side.opened.domain;
        let mut attr: fi_collective_attr = unsafe { std::mem::zeroed() };
        (attr.op, attr.datatype) = (op, datatype);
        let query = unsafe { (*(*domain).ops).query_collective.unwrap() };
        (unsafe { query(domain, coll, &mut attr, 0) }, attr)
    }

    /// The types of numbers that this version of libfabric has.
    pub(crate) fn offered_types(&self) -> Vec<Type> {
        let offered: Vec<Type> = TYPES
            .iter()
            .map(|row| row.ty)
            .filter(|&ty| self.query(FI_ALLREDUCE, FI_SUM, ty as fi_datatype).0 == 0)
            .collect();
        assert!(offered.len() >= 14, "{offered:?}");
        offered
    }

    /// Closes the endpoint, then what it used.
    fn close(mut self) {
        self.side.close_ep();
        assert_eq!(close(self.eq), 0, "fi_close(eq)");
    }
}

/// `fi_av_set`.
fn av_set(av: *mut fid_av, start: u64, end: u64, stride: u64, flags: u64) -> Result<*mut fid_av_set, c_int> {
    let mut attr: fi_av_set_attr = unsafe { std::mem::zeroed() };
    (attr.start_addr, attr.end_addr, attr.stride, attr.flags) = (start, end, stride, flags);
    open!(av, av_set, &mut attr)
}

/// `fi_join_collective`.
fn join(ep: *mut fid_ep, set: *mut fid_av_set, parent: u64, context: usize) -> Result<*mut fid_mc, c_int> {
    let addr = fi_collective_addr { set, coll_addr: parent };
    let mut mc = null_mut();
    let join = unsafe { (*(*ep).cm).join.unwrap() };
    let result = unsafe { join(ep, (&raw const addr).cast(), FI_COLLECTIVE, &mut mc, context as *mut c_void) };
    if result == 0 { Ok(mc) } else { Err(-result) }
}

/// Endpoints that know each other. Each has inserted the others in an order of its own.
pub(crate) fn gather_members(lib: &Lib, count: usize, progress: fi_progress) -> Vec<Member<'_>> {
    introduce((0..count).map(|_| Member::new(lib, progress)).collect())
}

/// Makes the endpoints known to each other.
pub(crate) fn introduce(mut members: Vec<Member<'_>>) -> Vec<Member<'_>> {
    let count = members.len();
    let names: Vec<Vec<u8>> = members.iter().map(|member| member.side.name()).collect();
    for (number, member) in members.iter_mut().enumerate() {
        member.addrs = vec![0; count];
        for step in 0..count {
            let other = (number + step) % count;
            member.addrs[other] = member.side.insert(&names[other]);
        }
    }
    members
}

/// The members whose numbers are listed join a group. Its handles are in the order of the list.
pub(crate) fn form(members: &[Member<'_>], list: &[usize]) -> Vec<Group> {
    let groups: Vec<Group> = list.iter().map(|&number| members[number].join(list, 0x100 + number)).collect();
    for (&number, group) in list.iter().zip(&groups) {
        let event = until(|| {
            members.iter().for_each(|member| member.side.progress());
            members[number].event()
        });
        assert_eq!(event, (FI_JOIN_COMPLETE, group.mc.addr(), 0x100 + number), "the event of the join");
    }
    groups
}

pub(crate) fn leave(members: Vec<Member<'_>>, groups: Vec<Group>) {
    groups.into_iter().for_each(Group::close);
    members.into_iter().for_each(Member::close);
}

fn offers(lib: &Lib) {
    let plain = lib.ask(lib.newest(), None).unwrap();
    assert_eq!(plain.get().caps & FI_COLLECTIVE, 0, "collectives are offered on request only");
    let member = Member::new(lib, FI_PROGRESS_MANUAL);
    assert_ne!(member.side.info.get().caps & FI_COLLECTIVE, 0);
    let ask = |coll, op, datatype| member.query(coll, op, datatype);
    for coll in [FI_BROADCAST, FI_ALLTOALL, FI_ALLGATHER, FI_SCATTER, FI_GATHER] {
        let (result, attr) = ask(coll, FI_NOOP, FI_DOUBLE);
        assert_eq!((result, attr.datatype_attr.size), (0, 8));
        assert!(attr.max_members >= 1024 && attr.datatype_attr.count >= 1 << 20);
    }
    for coll in [FI_ALLREDUCE, FI_REDUCE_SCATTER, FI_REDUCE] {
        for op in [FI_MIN, FI_MAX, FI_SUM, FI_PROD, FI_LOR, FI_LAND, FI_BOR, FI_BAND, FI_LXOR, FI_BXOR] {
            assert_eq!(ask(coll, op, FI_INT32).0, 0);
        }
        assert_eq!(ask(coll, FI_BOR, FI_DOUBLE).0, -FI_EOPNOTSUPP);
        assert_eq!(ask(coll, FI_MIN, FI_DOUBLE_COMPLEX).0, -FI_EOPNOTSUPP);
        assert_eq!(ask(coll, FI_CSWAP, FI_INT32).0, -FI_EOPNOTSUPP);
    }
    assert_eq!(ask(FI_BARRIER, FI_NOOP, FI_VOID).0, 0);
    assert_eq!(ask(99, FI_NOOP, FI_VOID).0, -FI_EOPNOTSUPP);
    member.close();
}

/// The addresses of a set in order, found by taking the set apart.
fn sets(lib: &Lib) {
    let members = gather_members(lib, 5, FI_PROGRESS_MANUAL);
    let av = members[0].side.av;
    let set = |start, end, stride| av_set(av, start, end, stride, 0).unwrap();
    let (even, low) = (set(0, 4, 2), set(0, 2, 1));
    let ops = unsafe { &*(*even).ops };
    let combine =
        |function: Option<unsafe extern "C" fn(_, _) -> c_int>, dst, src| unsafe { function.unwrap()(dst, src) };
    let has = |set, addr| unsafe {
        let known = ops.remove.unwrap()(set, addr) == 0;
        assert!(!known || ops.insert.unwrap()(set, addr) == 0);
        known
    };
    assert_eq!(combine(ops.set_union, even, low), 0);
    assert!((0..5).all(|addr| has(even, addr) == [0, 1, 2, 4].contains(&addr)), "union");
    assert_eq!(combine(ops.diff, even, low), 0);
    assert!((0..5).all(|addr| has(even, addr) == (addr == 4)), "difference");
    assert_eq!(combine(ops.set_union, even, low), 0);
    assert_eq!(combine(ops.intersect, even, low), 0);
    assert!((0..5).all(|addr| has(even, addr) == (addr < 3)), "intersection");
    assert_eq!(combine(ops.set_union, even, even), 0, "a set with itself");
    unsafe {
        assert_eq!(ops.insert.unwrap()(even, 1), -FI_EINVAL, "twice");
        assert_eq!(ops.insert.unwrap()(even, 7), -FI_EINVAL, "no such address");
        assert_eq!(ops.remove.unwrap()(even, 4), -FI_EINVAL, "not in the set");
    }
    let whole = av_set(av, FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL, 1, FI_UNIVERSE).unwrap();
    assert!((0..5).all(|addr| has(whole, addr)), "FI_UNIVERSE");
    assert_eq!(av_set(av, 0, 9, 1, 0), Err(FI_EINVAL), "beyond the vector");
    assert_eq!(av_set(av, 3, 1, 1, 0), Err(FI_EINVAL), "backwards");
    assert_eq!(av_set(av, 0, 1, 1, 1 << 3), Err(FI_EBADFLAGS as c_int));
    assert_eq!(close(av), -FI_EBUSY, "sets use the vector");
    [even, low, whole].into_iter().for_each(|set| assert_eq!(close(set), 0));
    members.into_iter().for_each(Member::close);
}

fn joins(lib: &Lib) {
    for progress in MODELS {
        let members = gather_members(lib, 3, progress);
        let groups: Vec<Group> = (0..3).map(|number| members[number].join(&[2, 0, 1], 0x70 + number)).collect();
        assert_eq!(close(groups[0].set), -FI_EBUSY, "the group uses its set");
        // Reading the event queues alone makes progress.
        let mut joined = Vec::new();
        until(|| {
            joined.extend(members.iter().filter_map(Member::event));
            (joined.len() == 3).then_some(())
        });
        let expected = (0..3).map(|number| (FI_JOIN_COMPLETE, groups[number].mc.addr(), 0x70 + number));
        assert!(expected.into_iter().all(|event| joined.contains(&event)), "{joined:?}");
        leave(members, groups);
    }
}

fn refusals(lib: &Lib) {
    let members = gather_members(lib, 3, FI_PROGRESS_MANUAL);
    let ep = members[0].side.ep;
    let others = members[0].set(&[1, 2]);
    assert_eq!(join(ep, others, FI_ADDR_NOTAVAIL, 0), Err(FI_EINVAL), "not a member");
    assert_eq!(join(ep, others, 77, 0), Err(FI_EINVAL), "no such parent");
    assert_eq!(close(others), 0);
    // Until the other members join, the group cannot be used nor closed.
    let early = members[0].join(&[0, 1, 2], 1);
    let barrier = |addr| unsafe { (*(*ep).collective).barrier.unwrap()(ep, addr, null_mut()) };
    assert_eq!(barrier(early.addr()), fabric_err(FI_EOPBADSTATE));
    assert_eq!(close(early.mc), -FI_EBUSY);
    assert_eq!(close(ep), -FI_EBUSY, "a group uses its endpoint");
    let late: Vec<Group> = (1..3).map(|number| members[number].join(&[0, 1, 2], 1)).collect();
    let mut joined = 0;
    until(|| {
        joined += members.iter().filter_map(Member::event).count();
        (joined == 3).then_some(())
    });
    assert_eq!(barrier(early.addr() + 5), err(FI_EINVAL), "no such group");
    assert_eq!(barrier(0), err(FI_EINVAL), "an address of the vector");
    let ops = unsafe { &*(*ep).collective };
    let (mut word, no) = (0_u64, null_mut());
    let buf: *mut c_void = (&raw mut word).cast();
    let group = early.addr();
    unsafe {
        let broadcast = ops.broadcast.unwrap();
        assert_eq!(broadcast(ep, buf, 1, no, group, 3, FI_UINT64, 0, no), err(FI_EINVAL), "no such root");
        assert_eq!(broadcast(ep, no, 1, no, group, 0, FI_UINT64, 0, no), err(FI_EINVAL), "no buffer");
        assert_eq!(broadcast(ep, buf, 1, no, group, 0, FI_VOID, 0, no), err(FI_EOPNOTSUPP), "no type");
        let allreduce = ops.allreduce.unwrap();
        let complex = allreduce(ep, buf, 1, no, buf, no, group, FI_FLOAT_COMPLEX, FI_MAX, 0, no);
        assert_eq!(complex, err(FI_EOPNOTSUPP), "no order of complex numbers");
    }
    leave(members, std::iter::once(early).chain(late).collect());
    let plain = Side::new(lib);
    let set = av_set(plain.av, FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL, 1, 0).unwrap();
    assert_eq!(join(plain.ep, set, FI_ADDR_NOTAVAIL, 0), Err(FI_EOPNOTSUPP), "not asked for");
    assert_eq!(close(set), 0);
}

fn every_operation(lib: &Lib) {
    for (size, progress) in [(1, 0), (2, 1), (3, 0), (5, 1), (8, 0)] {
        let members = gather_members(lib, size, MODELS[progress]);
        // The ranks run against the numbers of the members.
        let list: Vec<usize> = (0..size).rev().collect();
        let groups = form(&members, &list);
        let mut seed = 0;
        for what in EVERY {
            for root in 0..size {
                for count in [1, 5] {
                    seed += 1;
                    run(&members, &list, &groups, &[Case::new(what, root, count, seed)], false);
                }
            }
        }
        let case = Case::new(What::Gather, size - 1, 2, 99);
        run(&members, &list, &groups, &[case], size > 1 && members[0].addrs[list[size - 1]] >= size as u64);
        leave(members, groups);
    }
}

fn long_buffers(lib: &Lib) {
    let members = gather_members(lib, 3, FI_PROGRESS_MANUAL);
    let list = [1, 2, 0];
    let groups = form(&members, &list);
    for what in EVERY {
        for count in [10_000, 200_003] {
            run(&members, &list, &groups, &[Case::new(what, 1, count, 3)], false);
        }
    }
    leave(members, groups);
}

/// An allreduce whose input and result are one buffer.
fn in_place(lib: &Lib) {
    let members = gather_members(lib, 4, FI_PROGRESS_MANUAL);
    let list = [0, 1, 2, 3];
    let groups = form(&members, &list);
    for count in [1, 1000] {
        let mut buffers: Vec<Vec<i32>> = (0..4).map(|rank| vec![rank + 1; count]).collect();
        for (rank, buffer) in buffers.iter_mut().enumerate() {
            let (ep, no, buf) = (members[rank].side.ep, null_mut(), buffer.as_mut_ptr().cast::<c_void>());
            let allreduce = unsafe { (*(*ep).collective).allreduce.unwrap() };
            let group = groups[rank].addr();
            let started = unsafe { allreduce(ep, buf, count, no, buf, no, group, FI_INT32, FI_PROD, 0, no) };
            assert_eq!(started, 0);
        }
        let mut left = 4;
        until(|| {
            for outcome in members.iter().filter_map(|member| member.side.poll()) {
                outcome.done();
                left -= 1;
            }
            (left == 0).then_some(())
        });
        assert!(buffers.iter().flatten().all(|&number| number == 24));
    }
    leave(members, groups);
}

fn many_at_a_time(lib: &Lib) {
    for progress in MODELS {
        let members = gather_members(lib, 4, progress);
        let list = [3, 1, 0, 2];
        let groups = form(&members, &list);
        let case = |number: usize| Case::new(EVERY[number % 9], number % 4, 1 + number, 7);
        let cases: Vec<Case> = (0..32).map(case).collect();
        run(&members, &list, &groups, &cases, false);
        leave(members, groups);
    }
}

fn two_groups(lib: &Lib) {
    let members = gather_members(lib, 4, FI_PROGRESS_MANUAL);
    let (all, some) = ([0, 1, 2, 3], [2, 0, 3]);
    let (first, second) = (form(&members, &all), form(&members, &some));
    // The same set may be joined again.
    let third = form(&members, &all);
    for seed in 0..3 {
        let case = |what| Case::new(what, 1, 3, seed);
        run(&members, &some, &second, &[case(What::AllReduce), case(What::AllToAll)], false);
        run(&members, &all, &first, &[case(What::Broadcast)], false);
        run(&members, &all, &third, &[case(What::Scatter)], false);
    }
    leave(members, first.into_iter().chain(second).chain(third).collect());
}

/// `struct weft_block` and `struct weft_collective_ops` of fi_weft(7).
#[repr(C)]
struct Block {
    offset: usize,
    len: usize,
}
#[repr(C)]
struct CollectiveOps {
    size: usize,
    exchange: unsafe extern "C" fn(
        *mut fid_ep,
        u64,
        *const c_void,
        *const Block,
        *mut c_void,
        *const Block,
        usize,
        *mut c_void,
    ) -> isize,
    perform: unsafe extern "C" fn(*mut fid_ep, u64, *const Arguments, *mut c_void) -> isize,
}

/// `struct weft_collective_call` of fi_weft(7).
#[repr(C)]
struct Arguments {
    collective: u32,
    datatype: u32,
    op: u32,
    looks: u32,
    input: *const c_void,
    result: *mut c_void,
    count: usize,
    root: u64,
}

/// The table of the extension `weft_collective`.
fn extension(ep: *mut fid_ep) -> &'static CollectiveOps {
    let mut table = null_mut();
    let open = unsafe { (*(*ep).fid.ops).ops_open.unwrap() };
    assert_eq!(unsafe { open(&mut (*ep).fid, c"weft_collective".as_ptr(), 0, &mut table, null_mut()) }, 0);
    let ops: &CollectiveOps = unsafe { &*table.cast() };
    assert!(ops.size >= size_of::<CollectiveOps>());
    ops
}

/// The extension performs a collective inside the call of the last member, which gets no entry. Without shared memory
/// the operation has only started.
fn calls_that_end_it(lib: &Lib) {
    let in_call = !std::env::var("FI_WEFT_SHM").is_ok_and(|value| value == "0");
    let members = gather_members(lib, 3, FI_PROGRESS_MANUAL);
    let groups = form(&members, &[0, 1, 2]);
    for (turn, count) in [(1_u64, 1), (2, 100), (3, 500)] {
        let mut memory: Vec<[Vec<u64>; 2]> = (0..3).map(|me| [vec![me + turn; count], vec![0; count]]).collect();
        for (me, (member, group)) in members.iter().zip(&groups).enumerate() {
            let [input, result] = &mut memory[me];
            let (input, result) = (input.as_ptr().cast(), result.as_mut_ptr().cast());
            let (collective, datatype, op) = (FI_ALLREDUCE, FI_UINT64, FI_SUM);
            let call = Arguments { collective, datatype, op, looks: 3, input, result, count, root: 0 };
            let ep = member.side.ep;
            let perform = |call: &Arguments| unsafe { (extension(ep).perform)(ep, group.addr(), call, null_mut()) };
            assert_eq!(perform(&Arguments { collective: 99, ..call }), err(FI_EOPNOTSUPP));
            assert_eq!(perform(&call), isize::from(in_call && me == 2), "member {me}");
        }
        for member in &members[..if in_call { 2 } else { 3 }] {
            let entry = until(|| {
                members.iter().for_each(|member| member.side.progress());
                member.side.poll()
            });
            assert_eq!(entry.done().flags, FI_COLLECTIVE);
        }
        assert!(members[2].side.poll().is_none(), "the call has ended the operation");
        assert!(memory.iter().all(|[_, result]| result.iter().all(|&sum| sum == 3 + 3 * turn)));
    }
    leave(members, groups);
}

/// The extension exchanges blocks of different lengths, some of which are empty. Wrong lists are refused.
fn exchanges(lib: &Lib) {
    const ROOM: usize = 16;
    let members = gather_members(lib, 3, FI_PROGRESS_MANUAL);
    let groups = form(&members, &[0, 1, 2]);
    let block = |place: usize, len: usize| Block { offset: place * ROOM, len };
    // Member i has i + 2 j bytes for member j.
    let given = |me: usize| [0, 1, 2].map(|to| block(to, me + 2 * to));
    let taken = |me: usize| [0, 1, 2].map(|from| block(from, from + 2 * me));
    let mut memory: Vec<[[u8; 3 * ROOM]; 2]> = (1..=3).map(|byte| [[byte; 3 * ROOM], [0; 3 * ROOM]]).collect();
    for (me, (member, group)) in members.iter().zip(&groups).enumerate() {
        let ep = member.side.ep;
        let ops = extension(ep);
        let [input, result] = &mut memory[me];
        let mut call = |count: usize, taken: *const Block| unsafe {
            let (input, result) = (input.as_ptr().cast(), result.as_mut_ptr().cast());
            (ops.exchange)(ep, group.addr(), input, given(me).as_ptr(), result, taken, count, null_mut())
        };
        assert_eq!(call(2, taken(me).as_ptr()), err(FI_EINVAL), "a list that is too short");
        assert_eq!(call(3, std::ptr::null()), err(FI_EINVAL), "no list");
        assert_eq!(call(3, taken((me + 1) % 3).as_ptr()), err(FI_EINVAL), "two lengths of the own block");
        assert_eq!(call(3, taken(me).as_ptr()), 0);
    }
    for member in &members {
        let entry = until(|| {
            members.iter().for_each(|member| member.side.progress());
            member.side.poll()
        });
        assert_eq!(entry.done().flags, FI_COLLECTIVE);
    }
    for (me, [_, result]) in memory.iter().enumerate() {
        for from in 0..3 {
            let mut expected = [0; ROOM];
            expected[..from + 2 * me].fill(u8::try_from(from).unwrap() + 1);
            assert_eq!(result[from * ROOM..][..ROOM], expected, "the block of {from} at {me}");
        }
    }
    leave(members, groups);
}

/// The pages for `weft stat` show a barrier under way, and the rank that has not entered it.
fn published_groups(lib: &Lib) {
    let members = gather_members(lib, 3, FI_PROGRESS_MANUAL);
    let all = [0, 1, 2];
    let groups = form(&members, &all);
    let case = Case::new(What::Barrier, 0, 0, 0);
    let start = |rank: usize| {
        let mut part = Part::new(case, rank, 3);
        assert_eq!(part.start(members[rank].side.ep, groups[rank].addr(), 0), 0);
    };
    (0..2).for_each(start);
    let shown = |group: &layout::Group| {
        (group.members, group.operation_name(), group.under_way) == (3, "barrier", 1)
            && (group.awaited, group.awaited_ranks) == (1, 1 << 2)
    };
    let found = |wanted: usize| {
        members.iter().for_each(|member| member.side.progress());
        (published::groups().iter().filter(|group| shown(group)).count() == wanted).then_some(())
    };
    until(|| found(2));
    start(2);
    for member in &members {
        let progress = || members.iter().for_each(|member| member.side.progress());
        let entry = until(|| {
            progress();
            member.side.poll()
        });
        assert_eq!(entry.done().flags, FI_COLLECTIVE);
    }
    until(|| found(0));
    leave(members, groups);
}

/// A collective that asks for no completion makes no entry, and transmit counters count it.
fn quiet_successes(lib: &Lib) {
    let side = Side::unbound(lib, 0, |hints| hints.get().caps = FI_MSG | FI_COLLECTIVE);
    let eq = side.opened.eq(|attr| attr.wait_obj = FI_WAIT_UNSPEC).unwrap();
    let mut attr: fi_cntr_attr = unsafe { std::mem::zeroed() };
    let cntr = open!(side.opened.domain, cntr_open, &mut attr).unwrap();
    assert_eq!(bind(side.ep, eq, 0), 0);
    assert_eq!(bind(side.ep, cntr, FI_SEND), 0);
    assert_eq!(bind(side.ep, side.av, 0), 0);
    assert_eq!(bind(side.ep, side.cq, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION), 0);
    assert_eq!(side.enable(), 0);
    let addr = side.insert(&side.name());
    let member = Member { side, eq, addrs: vec![addr] };
    let groups = form(std::slice::from_ref(&member), &[0]);
    let (ep, group) = (member.side.ep, groups[0].addr());
    let barrier = unsafe { (*(*ep).collective).barrier2.unwrap() };
    assert_eq!(unsafe { barrier(ep, group, 0, null_mut()) }, 0);
    assert_eq!(unsafe { barrier(ep, group, FI_COMPLETION, 5 as *mut c_void) }, 0);
    let entry = until(|| member.side.poll()).done();
    assert_eq!((entry.op_context.addr(), entry.flags), (5, FI_COLLECTIVE));
    assert!(member.side.poll().is_none());
    assert_eq!(unsafe { (*(*cntr).ops).read.unwrap()(cntr) }, 2);
    groups.into_iter().for_each(Group::close);
    let Member { mut side, eq, .. } = member;
    side.close_ep();
    assert_eq!((close(eq), close(cntr)), (0, 0));
}
