//! Collectives (fi_collective(3)): sets, joins, and all operations among the endpoints of this process.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use weft_fi::observe::publish::layout;
use weft_fi_sys::*;

use crate::client::{Lib, bind, close};
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
            ("published", published_groups),
            ("counters and selective queues", quiet_successes),
        ],
    );
}

/// A member: its endpoint, its event queue, and the addresses of all members in the order of their numbers.
pub(crate) struct Member<'a> {
    pub(crate) side: Side<'a>,
    eq: *mut fid_eq,
    addrs: Vec<u64>,
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
    fn new(lib: &'a Lib, progress: fi_progress) -> Self {
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
    let mut members: Vec<Member<'_>> = (0..count).map(|_| Member::new(lib, progress)).collect();
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

/// Operations that differ in their arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Barrier,
    Broadcast,
    AllToAll,
    AllReduce,
    AllGather,
    ReduceScatter,
    Reduce,
    Scatter,
    Gather,
}

const EVERY: [What; 9] = [
    What::Barrier,
    What::Broadcast,
    What::AllToAll,
    What::AllReduce,
    What::AllGather,
    What::ReduceScatter,
    What::Reduce,
    What::Scatter,
    What::Gather,
];

/// One operation of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) what: What,
    pub(crate) root: usize,
    pub(crate) count: usize,
    /// Distinguishes the data of operations.
    pub(crate) seed: u64,
}

/// A value behind each buffer that no operation may change.
const CANARY: u64 = 0xca_ca_ca_ca;

impl Case {
    fn value(&self, rank: usize, element: usize) -> u64 {
        self.seed << 40 ^ (rank as u64) << 20 ^ element as u64
    }

    /// Elements of a rank's input and result.
    fn sizes(&self, rank: usize, ranks: usize) -> (usize, usize) {
        let (one, all) = (self.count, self.count * ranks);
        let at_root = |count| if rank == self.root { count } else { 0 };
        match self.what {
            What::Barrier => (0, 0),
            What::Broadcast => (0, one),
            What::AllToAll => (all, all),
            What::AllReduce => (one, one),
            What::AllGather => (one, all),
            What::ReduceScatter => (all, one),
            What::Reduce => (one, at_root(one)),
            What::Scatter => (at_root(all), one),
            What::Gather => (one, at_root(all)),
        }
    }

    fn expected(&self, rank: usize, ranks: usize) -> Vec<u64> {
        let sum = |element| (0..ranks).fold(0, |sum: u64, from| sum.wrapping_add(self.value(from, element)));
        let block =
            |from: usize, place: usize| (0..self.count).map(move |at| self.value(from, place * self.count + at));
        match self.what {
            What::Barrier => Vec::new(),
            What::Broadcast => block(self.root, 0).collect(),
            What::AllToAll => (0..ranks).flat_map(|from| block(from, rank)).collect(),
            What::AllReduce => (0..self.count).map(sum).collect(),
            What::AllGather => (0..ranks).flat_map(|from| block(from, 0)).collect(),
            What::ReduceScatter => (0..self.count).map(|at| sum(rank * self.count + at)).collect(),
            What::Scatter => block(self.root, rank).collect(),
            What::Reduce if rank == self.root => (0..self.count).map(sum).collect(),
            What::Gather if rank == self.root => (0..ranks).flat_map(|from| block(from, 0)).collect(),
            What::Reduce | What::Gather => Vec::new(),
        }
    }
}

/// A rank's part in an operation. Its memory is leaked, as everywhere in these tests.
pub(crate) struct Part {
    case: Case,
    rank: usize,
    ranks: usize,
    input: &'static mut [u64],
    result: &'static mut [u64],
}

impl Part {
    pub(crate) fn new(case: Case, rank: usize, ranks: usize) -> Self {
        let (inputs, results) = case.sizes(rank, ranks);
        let values = |count: usize| (0..count).map(|at| case.value(rank, at)).chain([CANARY]).collect::<Vec<u64>>();
        let sends_result = case.what == What::Broadcast && rank == case.root;
        let mut result = if sends_result { values(results) } else { vec![0; results] };
        result.truncate(results);
        result.push(CANARY);
        Self { case, rank, ranks, input: values(inputs).leak(), result: result.leak() }
    }

    /// Starts the operation; the context is the address of the result.
    pub(crate) fn start(&mut self, ep: *mut fid_ep, group: u64, root: u64) -> isize {
        let (buf, result): (*mut c_void, *mut c_void) =
            (self.input.as_mut_ptr().cast(), self.result.as_mut_ptr().cast());
        let (count, no, u64s) = (self.case.count, null_mut(), FI_UINT64);
        let ops = unsafe { &*(*ep).collective };
        let context = self.context() as *mut c_void;
        unsafe {
            match self.case.what {
                What::Barrier => ops.barrier.unwrap()(ep, group, context),
                What::Broadcast => ops.broadcast.unwrap()(ep, result, count, no, group, root, u64s, 0, context),
                What::AllToAll => ops.alltoall.unwrap()(ep, buf, count, no, result, no, group, u64s, 0, context),
                What::AllGather => ops.allgather.unwrap()(ep, buf, count, no, result, no, group, u64s, 0, context),
                What::AllReduce => {
                    ops.allreduce.unwrap()(ep, buf, count, no, result, no, group, u64s, FI_SUM, 0, context)
                }
                What::ReduceScatter => {
                    ops.reduce_scatter.unwrap()(ep, buf, count, no, result, no, group, u64s, FI_SUM, 0, context)
                }
                What::Reduce => {
                    ops.reduce.unwrap()(ep, buf, count, no, result, no, group, root, u64s, FI_SUM, 0, context)
                }
                What::Scatter => ops.scatter.unwrap()(ep, buf, count, no, result, no, group, root, u64s, 0, context),
                What::Gather => ops.gather.unwrap()(ep, buf, count, no, result, no, group, root, u64s, 0, context),
            }
        }
    }

    fn context(&self) -> usize {
        self.result.as_ptr().addr()
    }

    fn check(&self) {
        let expected = self.case.expected(self.rank, self.ranks);
        assert_eq!(&self.result[..expected.len()], expected, "{:?} at rank {}", self.case, self.rank);
        assert_eq!(self.result.last(), Some(&CANARY), "{:?}: nothing is written behind the result", self.case);
        assert_eq!(self.input.last(), Some(&CANARY), "{:?}: nothing is written behind the input", self.case);
    }
}

/// Runs operations at all members of a group at the same time. Roots are ranks, or addresses if `by_address`.
pub(crate) fn run(members: &[Member<'_>], list: &[usize], groups: &[Group], cases: &[Case], by_address: bool) {
    let mut parts: Vec<Vec<Part>> =
        (0..list.len()).map(|rank| cases.iter().map(|&case| Part::new(case, rank, list.len())).collect()).collect();
    for ((rank, parts), group) in parts.iter_mut().enumerate().zip(groups) {
        let member = &members[list[rank]];
        for part in parts {
            let address = member.addrs[list[part.case.root]];
            let root = if by_address { address } else { part.case.root as u64 };
            assert_eq!(part.start(member.side.ep, group.addr(), root), 0, "{:?}", part.case);
        }
    }
    let mut left = list.len() * cases.len();
    until(|| {
        for (rank, parts) in parts.iter().enumerate() {
            while let Some(outcome) = members[list[rank]].side.poll() {
                let entry = outcome.done();
                assert_eq!((entry.flags, entry.len), (FI_COLLECTIVE, 0));
                let part = parts.iter().find(|part| part.context() == entry.op_context.addr());
                part.expect("the context of an operation").check();
                left -= 1;
            }
        }
        (left == 0).then_some(())
    });
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
    let domain = member.side.opened.domain;
    let query = unsafe { (*(*domain).ops).query_collective.unwrap() };
    let ask = |coll, op, datatype| {
        let mut attr: fi_collective_attr = unsafe { std::mem::zeroed() };
        (attr.op, attr.datatype) = (op, datatype);
        let result = unsafe { query(domain, coll, &mut attr, 0) };
        (result, attr)
    };
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
                    run(&members, &list, &groups, &[Case { what, root, count, seed }], false);
                }
            }
        }
        let case = Case { what: What::Gather, root: size - 1, count: 2, seed: 99 };
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
            run(&members, &list, &groups, &[Case { what, root: 1, count, seed: 3 }], false);
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
        let case = |number: usize| Case { what: EVERY[number % 9], root: number % 4, count: 1 + number, seed: 7 };
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
        let case = |what| Case { what, root: 1, count: 3, seed };
        run(&members, &some, &second, &[case(What::AllReduce), case(What::AllToAll)], false);
        run(&members, &all, &first, &[case(What::Broadcast)], false);
        run(&members, &all, &third, &[case(What::Scatter)], false);
    }
    leave(members, first.into_iter().chain(second).chain(third).collect());
}

/// The pages for `weft stat` show a barrier under way, and the rank that has not entered it.
fn published_groups(lib: &Lib) {
    let members = gather_members(lib, 3, FI_PROGRESS_MANUAL);
    let all = [0, 1, 2];
    let groups = form(&members, &all);
    let case = Case { what: What::Barrier, root: 0, count: 0, seed: 0 };
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
