//! Pushes, gets and puts: all bytes arrive, however they are split, and transfers end with their link.

use weft_engine::mem::{self, Iov, IovList, Owned};
use weft_engine::nic::{LinkError, Nic, RemoteIov, Share};

use super::{Device, Node, Random, Window, World, pattern};

/// Cuts memory into up to five pieces, some of them empty.
fn cut(whole: Iov, random: &mut Random) -> IovList {
    let mut out = IovList::new();
    let mut at = 0;
    for _ in 0..random.below(4) {
        let len = random.below(whole.len() - at + 1);
        out.push(whole.slice(at, len));
        at += len;
    }
    out.push(whole.slice(at, usize::MAX));
    out
}

const SIZES: [usize; 12] = [1, 7, 63, 64, 65, 4095, 16_384, 16_385, 65_537, 262_144, 1_000_003, 5_000_000];

pub fn pushes_arrive_intact<D: Device>() {
    let mut world = World::new::<D>(2);
    let (near, far) = world.join_and_greet(0, 1);
    let mut random = Random(77);
    for (n, &size) in SIZES.iter().enumerate() {
        let (from, to, out) = if n % 2 == 0 { (0, 1, near) } else { (1, 0, far) };
        let bytes = pattern(n as u64, size);
        let mut memory = Owned::new(bytes.clone());
        let (id, ctx) = (1000 + n as u64, n as u64);
        world.nodes[to].inbox.windows.insert(id, Window::new(size));
        let src = cut(memory.iov(), &mut random);
        world.nodes[from].push(out, id, &src, ctx).unwrap();
        world.until("push", |nodes| {
            nodes[from].inbox.done.contains_key(&ctx) && nodes[to].inbox.windows[&id].placed == size
        });
        assert_eq!(world.nodes[from].inbox.done[&ctx], Ok(()));
        assert!(world.nodes[to].inbox.windows.get_mut(&id).unwrap().bytes() == bytes, "{size} bytes");
    }
}

/// An empty push completes. A push into no window, or into one that is too short, is discarded and completes.
pub fn pushes_without_room_are_discarded<D: Device>() {
    let mut world = World::new::<D>(2);
    let (near, far) = world.join_and_greet(0, 1);
    let mut memory = Owned::new(pattern(1, 100_000));
    world.nodes[0].push(near, 1, &[], 1).unwrap();
    world.nodes[0].push(near, 2, &[memory.iov()], 2).unwrap();
    world.nodes[1].inbox.windows.insert(3, Window::new(30_000));
    world.nodes[0].push(near, 3, &[memory.iov()], 3).unwrap();
    world.until("done", |nodes| nodes[0].inbox.done.len() == 3);
    world.until("window", |nodes| nodes[1].inbox.windows[&3].placed >= 30_000);
    assert!(world.nodes[1].inbox.windows.get_mut(&3).unwrap().bytes() == pattern(1, 100_000)[..30_000]);
    world.nodes[0].send(near, 5, b"after").unwrap();
    world.until("the link lives", |nodes| nodes[1].take_messages(far) == [b"after"]);
}

/// Messages arrive while pushes are in progress in both directions. Queues are bounded.
pub fn messages_pass_pushes<D: Device>() {
    let mut world = World::new::<D>(2);
    let (near, far) = world.join_and_greet(0, 1);
    let size = 3_000_000;
    let mut memory = Owned::new(pattern(5, size));
    let src = [memory.iov()];
    let mut pushed = [0u64; 2];
    for (node, link) in [(0, near), (1, far)] {
        while pushed[node] < 8 && world.nodes[node].push(link, pushed[node], &src, pushed[node]).is_ok() {
            world.nodes[1 - node].inbox.windows.insert(pushed[node], Window::new(size));
            pushed[node] += 1;
        }
        assert!(pushed[node] > 0);
    }
    for n in 0..50u8 {
        world.until("room", |nodes| nodes[0].send(near, 1, &[n]).is_ok());
        world.until("message", |nodes| nodes[1].take_messages(far) == [[n]]);
    }
    world.until("pushes", |nodes| {
        (0..2).all(|node| {
            nodes[node].inbox.done.len() as u64 == pushed[node]
                && nodes[1 - node].inbox.windows.values().all(|window| window.placed == size)
        })
    });
    for node in &mut world.nodes {
        for window in node.inbox.windows.values_mut() {
            assert!(window.bytes() == pattern(5, size));
        }
    }
}

/// If the device promises it, no byte of a push arrives before the messages that were sent before the push.
pub fn pushes_follow_messages<D: Device>() {
    const PUSHES: u64 = 60;
    let mut world = World::new::<D>(2);
    let (near, far) = world.join_and_greet(0, 1);
    if !world.nodes[0].inbox.up[&near].caps.push_follows {
        return;
    }
    let mut random = Random(4711);
    let mut memory = Owned::new(pattern(3, 400_000));
    let whole = memory.iov();
    for window in 0..PUSHES {
        let most = [100, 20_000, 400_000][random.below(3)];
        let len = 1 + random.below(most);
        world.nodes[1].inbox.windows.insert(window, Window::announced(len, window as usize + 1));
        let head = pattern(window, 1 + random.below(200));
        world.until("room", |nodes| nodes[0].send(near, 1, &head).is_ok());
        world.nodes[0].push(near, window, &[whole.slice(0, len)], window).unwrap();
        world.rounds(random.below(3));
        // Some pushes are still in progress when the next message and push follow.
        if random.below(4) == 0 {
            world.until("window", |nodes| nodes[1].inbox.windows[&window].placed == len);
        }
    }
    world.until("all", |nodes| {
        nodes[0].inbox.done.len() as u64 == PUSHES && nodes[1].inbox.windows.values().all(Window::full)
    });
    assert_eq!(world.nodes[1].take_messages(far).len(), PUSHES as usize);
}

/// If the device promises it, the last confirmation arrives, and none overtakes a message that was sent before it.
pub fn confirmations_follow_messages<D: Device>() {
    let mut world = World::new::<D>(2);
    let (near, far) = world.join_and_greet(0, 1);
    if !world.nodes[0].inbox.up[&near].caps.confirms {
        return;
    }
    let mut random = Random(4712);
    for number in 1..=2000 {
        let head = pattern(number, 1 + random.below(200));
        world.until("room", |nodes| nodes[0].send(near, 1, &head).is_ok());
        if random.below(3) == 0 || number == 2000 {
            world.nodes[0].nic.confirm(near, number as u32);
        }
        // Some confirmations are replaced by later ones before they are seen.
        if random.below(4) == 0 {
            world.rounds(random.below(3));
        }
    }
    world.until("the last one", |nodes| nodes[1].inbox.confirmed.get(&far) == Some(&2000));
    assert_eq!(world.nodes[1].take_messages(far).len(), 2000);
}

pub fn a_queue_of_pushes_is_bounded<D: Device>() {
    let mut world = World::new::<D>(2);
    let (near, _) = world.join_and_greet(0, 1);
    let mut memory = Owned::new(pattern(5, 100_000));
    let mut accepted = 0;
    while world.nodes[0].push(near, 9, &[memory.iov()], accepted).is_ok() {
        accepted += 1;
        assert!(accepted < 100_000, "queues are bounded");
    }
    world.until("all done", |nodes| nodes[0].inbox.done.len() as u64 == accepted);
    assert!(world.nodes[0].push(near, 9, &[memory.iov()], accepted).is_ok(), "room again");
    world.until("drained", |nodes| nodes[0].nic.drained());
}

/// The link ends while pushes are in progress. `done` reports an error, before `down` (the harness checks the
/// order).
pub fn pushes_end_with_their_link<D: Device>() {
    let mut world = World::new::<D>(2);
    let (near, far) = world.join_and_greet(0, 1);
    let mut memory = Owned::new(pattern(5, 50_000_000));
    for ctx in 0..3 {
        world.nodes[0].push(near, 9, &[memory.iov()], ctx).unwrap();
    }
    world.rounds(3);
    world.nodes[1].close(far);
    world.until("end", |nodes| !nodes[0].inbox.down.is_empty());
    assert_eq!(world.nodes[0].inbox.done.len(), 3);
    assert!(world.nodes[0].inbox.done.values().any(Result::is_err));
}

/// Closing a link releases the memory of its pushes. No `done` follows (the harness checks it).
pub fn close_abandons_pushes<D: Device>() {
    let mut world = World::new::<D>(2);
    let (near, far) = world.join_and_greet(0, 1);
    let mut memory = Owned::new(pattern(5, 20_000_000));
    for ctx in 0..3 {
        world.nodes[0].push(near, 9, &[memory.iov()], ctx).unwrap();
    }
    world.rounds(3);
    world.nodes[0].close(near);
    drop(memory);
    world.until("end", |nodes| nodes[1].inbox.down == [(far, LinkError::Closed)]);
    world.join_and_greet(0, 1);
}

/// Reads and writes by address, if the device is capable of them.
pub fn direct_transfers_are_intact<D: Device>() {
    let mut world = World::new::<D>(2);
    let (near, _) = world.join_and_greet(0, 1);
    let caps = world.nodes[0].inbox.up[&near].caps;
    let mut random = Random(99);
    for (put, can) in [(false, caps.get), (true, caps.put)] {
        if !can {
            continue;
        }
        for (n, &size) in SIZES.iter().enumerate() {
            let (mut mine, mut theirs) = (Owned::new(pattern(1, size)), Owned::new(pattern(2, size)));
            let (near_iov, far_iov) = (mine.iov(), theirs.iov());
            let local = cut(near_iov, &mut random);
            let remote: Vec<RemoteIov> = cut(far_iov, &mut random)
                .iter()
                .map(|piece| RemoteIov { addr: piece.addr(), len: piece.len() as u64 })
                .collect();
            let ctx = 100 * u64::from(put) + n as u64;
            world.nodes[0].direct(put, near, &local, &remote, ctx).unwrap();
            world.until("transfer", |nodes| nodes[0].inbox.done.contains_key(&ctx));
            assert_eq!(world.nodes[0].inbox.done[&ctx], Ok(()));
            let expected = pattern(if put { 1 } else { 2 }, size);
            assert!(mem::to_vec(&[near_iov]) == expected && mem::to_vec(&[far_iov]) == expected, "{size} bytes");
        }
        // An invalid address fails, and harms nothing else.
        let mut mine = Owned::new(vec![0; 100]);
        let nowhere = [RemoteIov { addr: 64, len: 100 }];
        world.nodes[0].direct(put, near, &[mine.iov()], &nowhere, 999).unwrap();
        world.until("failure", |nodes| nodes[0].inbox.done.contains_key(&999));
        assert_eq!(world.nodes[0].inbox.done.remove(&999), Some(Err(LinkError::Access)));
    }
}

fn far(iov: Iov) -> [RemoteIov; 1] {
    [RemoteIov { addr: iov.addr(), len: iov.len() as u64 }]
}

/// A long transfer moves each byte once, whichever side starts first and however late the help is.
pub fn both_sides_move_a_transfer<D: Device>() {
    /// Number of polls of the owner and of the helper in a turn.
    const TURNS: [(usize, usize); 5] = [(1, 1), (0, 3), (3, 0), (1, 4), (0, 50)];
    let mut world = World::new::<D>(2);
    let (near, link) = world.join_and_greet(0, 1);
    let caps = world.nodes[0].inbox.up[&near].caps;
    let mut ctx = 0;
    for (put, can) in [(false, caps.get), (true, caps.put)] {
        for size in [20_000, 70_001, 1_000_003, 5 << 20].into_iter().filter(|_| can) {
            for (owner_polls, helper_polls) in TURNS {
                ctx += 2;
                let (mut mine, mut theirs) = (Owned::new(pattern(1, size)), Owned::new(pattern(2, size)));
                let (ours, far_iov) = (mine.iov(), theirs.iov());
                let share = world.nodes[0].direct(put, near, &[ours], &far(far_iov), ctx).unwrap();
                if let Some(share) = share {
                    world.nodes[1].assist(share, !put, link, &[far_iov], &far(ours), ctx + 1).unwrap();
                }
                let ended = |nodes: &[Node<D::Nic>]| {
                    nodes[0].inbox.done.contains_key(&ctx)
                        && (share.is_none() || nodes[1].inbox.done.contains_key(&(ctx + 1)))
                };
                while !ended(&world.nodes) {
                    for _ in 0..owner_polls {
                        world.nodes[0].poll();
                    }
                    for _ in 0..helper_polls {
                        world.nodes[1].poll();
                    }
                    // A side that was not polled in this turn is polled now, so that the sides do not wait
                    // for each other.
                    world.rounds(usize::from(owner_polls * helper_polls == 0));
                }
                assert_eq!(world.nodes[0].inbox.done[&ctx], Ok(()));
                let expected = pattern(if put { 1 } else { 2 }, size);
                assert!(mem::to_vec(&[ours]) == expected && mem::to_vec(&[far_iov]) == expected, "{size} bytes");
            }
        }
    }
}

/// Help with a transfer that has ended or never existed moves nothing. Help that cannot access the peer's
/// memory fails the transfer.
pub fn late_or_wrong_help_does_no_harm<D: Device>() {
    const SIZE: usize = 300_000;
    let mut world = World::new::<D>(2);
    let (near, link) = world.join_and_greet(0, 1);
    if !(world.nodes[0].inbox.up[&near].caps.get && world.nodes[1].inbox.up[&link].caps.put) {
        return;
    }
    let (mut mine, mut theirs, mut wrong) =
        (Owned::new(pattern(1, SIZE)), Owned::new(pattern(2, SIZE)), Owned::new(pattern(3, SIZE)));
    let (ours, far_iov, wrong) = (mine.iov(), theirs.iov(), wrong.iov());
    let share = world.nodes[0].direct(false, near, &[ours], &far(far_iov), 1).unwrap();
    world.until("transfer", |nodes| nodes[0].inbox.done.contains_key(&1));
    let Some(share) = share else { return };
    for (n, share) in [share, Share(0), Share(u32::MAX), Share(share.0 ^ 1)].into_iter().enumerate() {
        let ctx = 10 + n as u64;
        world.nodes[1].assist(share, true, link, &[wrong], &far(ours), ctx).unwrap();
        world.until("help", |nodes| nodes[1].inbox.done.contains_key(&ctx));
    }
    assert!(mem::to_vec(&[ours]) == pattern(2, SIZE));

    let share = world.nodes[0].direct(false, near, &[ours], &far(far_iov), 2).unwrap().unwrap();
    let nowhere = [RemoteIov { addr: 64, len: SIZE as u64 }];
    world.nodes[1].assist(share, true, link, &[far_iov], &nowhere, 3).unwrap();
    world.nodes[1].poll();
    world.until("failure", |nodes| nodes[0].inbox.done.contains_key(&2) && nodes[1].inbox.done.contains_key(&3));
    assert_eq!(world.nodes[0].inbox.done[&2], Err(LinkError::Access));
    assert_eq!(world.nodes[1].inbox.done[&3], Ok(()));
    world.join_and_greet(0, 1);
}
