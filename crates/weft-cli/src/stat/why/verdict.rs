//! The findings: deadlocks, near misses, and the ranks for which others wait.
//!
//! Place in the data flow: the ranks of `rank.rs` → here → the output of `mod.rs`. Pure.
//!
//! A rank may have posted receives that it does not wait for at present, so it counts as blocked only if none of its
//! calls can end: each one waits for ranks that are blocked themselves, are stopped, or have ended. Ranks that compute
//! or exchange messages may do what others wait for. A deadlock is a cycle of blocked ranks.

use std::collections::BTreeSet;
use std::time::Duration;

use super::rank::{Call, Rank, State, Target, call_words};
use super::tag::Library;

/// Time for which a receive must wait before a message beside it is a near miss. Programs often receive messages in
/// another order than that of their arrival.
const MISSED: Duration = Duration::from_millis(300);

/// Something that explains a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// `deadlock`, `near miss`, `no receive`, or the state of the rank for which others wait.
    pub(crate) kind: &'static str,
    /// The ranks that it is about, by their places.
    pub(crate) ranks: Vec<usize>,
    /// One sentence.
    pub(crate) text: String,
    /// Further lines.
    pub(crate) details: Vec<String>,
}

/// The findings about a job, the most certain ones first.
pub(crate) fn findings(ranks: &[Rank]) -> Vec<Finding> {
    let blocked = blocked(ranks);
    let mut found = deadlocks(ranks, &blocked);
    found.extend(near_misses(ranks));
    found.extend(without_receive(ranks));
    found.extend(causes(ranks));
    found.extend(abandoned(ranks, &blocked, &found));
    found
}

/// The ranks that a call waits for.
fn awaited(call: &Call, own: usize, ranks: usize) -> Vec<usize> {
    match &call.target {
        Target::Rank(place) => vec![*place],
        Target::Ranks(places) => places.clone(),
        Target::Any => (0..ranks).filter(|place| *place != own).collect(),
        Target::Unseen(_) => Vec::new(),
    }
}

/// Whether a call can end, if the ranks in `acting` can act.
fn can_end(call: &Call, own: usize, acting: &[bool]) -> bool {
    let acts = |place: &usize| acting.get(*place).copied().unwrap_or(true);
    match &call.target {
        Target::Rank(place) => acts(place),
        Target::Ranks(places) => places.iter().all(acts),
        Target::Any => (0..acting.len()).any(|place| place != own && acting[place]),
        Target::Unseen(_) => true,
    }
}

/// Whether each rank waits, and no call of it can end.
fn blocked(ranks: &[Rank]) -> Vec<bool> {
    let mut acting: Vec<bool> = ranks.iter().map(|rank| rank.state.can_act()).collect();
    loop {
        let is_freed = |place: usize| {
            let rank = &ranks[place];
            !acting[place] && rank.state == State::Waits && rank.calls.iter().any(|call| can_end(call, place, &acting))
        };
        let freed: Vec<usize> = (0..ranks.len()).filter(|place| is_freed(*place)).collect();
        if freed.is_empty() {
            return ranks.iter().zip(acting).map(|(rank, acts)| rank.state == State::Waits && !acts).collect();
        }
        freed.into_iter().for_each(|place| acting[place] = true);
    }
}

/// The call by which a blocked rank waits for another blocked one, and that rank. Calls that name
/// their peer come first.
fn next<'a>(ranks: &'a [Rank], blocked: &[bool], place: usize) -> Option<(&'a Call, usize)> {
    let rank = &ranks[place];
    let named = |any: bool| rank.calls.iter().filter(move |call| (call.target == Target::Any) == any);
    named(false).chain(named(true)).find_map(|call| {
        let next = awaited(call, place, ranks.len()).into_iter().find(|next| blocked.get(*next) == Some(&true))?;
        Some((call, next))
    })
}

/// Cycles of blocked ranks.
fn deadlocks(ranks: &[Rank], blocked: &[bool]) -> Vec<Finding> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for start in (0..ranks.len()).filter(|place| blocked[*place]) {
        let mut path: Vec<usize> = Vec::new();
        let mut at = Some(start);
        while let Some(place) = at.filter(|place| !path.contains(place) && !seen.contains(place)) {
            path.push(place);
            at = next(ranks, blocked, place).map(|(_, next)| next);
        }
        let begins = at.and_then(|place| path.iter().position(|known| *known == place));
        seen.extend(path.iter().copied());
        if let Some(begins) = begins {
            found.push(deadlock(ranks, blocked, &path[begins..]));
        }
    }
    found
}

fn deadlock(ranks: &[Rank], blocked: &[bool], cycle: &[usize]) -> Finding {
    let names = cycle.iter().chain(cycle.first()).map(|place| ranks[*place].label());
    let details = cycle.iter().filter_map(|place| {
        let (call, _) = next(ranks, blocked, *place)?;
        Some(sentence(&ranks[*place], call, ranks))
    });
    Finding {
        kind: "deadlock",
        ranks: cycle.to_vec(),
        text: format!("deadlock: {}", names.collect::<Vec<_>>().join(" waits for ")),
        details: details.collect(),
    }
}

fn sentence(rank: &Rank, call: &Call, ranks: &[Rank]) -> String {
    let words = call_words(call, ranks, rank.library);
    format!("{} {words}, for {:.1} s", rank.label(), call.since.as_secs_f64())
}

/// Receives beside a message that differs in the tag or in the communicator only.
fn near_misses(ranks: &[Rank]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (place, rank) in ranks.iter().enumerate().filter(|(_, rank)| rank.state == State::Waits) {
        let receives = rank.calls.iter().filter(|call| call.kind == "receive" && call.since >= MISSED);
        for (receive, message) in
            receives.flat_map(|receive| rank.messages.iter().map(move |message| (receive, message)))
        {
            let same_source = receive.target == Target::Any || receive.target == message.target;
            let difference = difference(rank.library, receive, message).filter(|_| same_source);
            let Some(difference) = difference else { continue };
            let sender = call_words(message, ranks, rank.library);
            found.push(Finding {
                kind: "near miss",
                ranks: vec![place],
                text: format!("near miss: {} waits beside a message that differs in {difference}", rank.label()),
                details: vec![sentence(rank, receive, ranks), format!("{} {sender}", rank.label())],
            });
        }
    }
    found
}

/// The part in which a message differs from a receive, if it is one part.
fn difference(library: Library, receive: &Call, message: &Call) -> Option<String> {
    let ((wanted, ignored), (tag, _)) = (receive.tag?, message.tag?);
    let bits = (wanted ^ tag) & !ignored;
    let (Some(wanted), Some(sent), Some(mask)) = (library.parts(wanted), library.parts(tag), library.tag_mask()) else {
        return (bits != 0).then(|| format!("the bits {bits:#x} of the tag"));
    };
    if wanted.collective || sent.collective {
        return None;
    }
    match (wanted.communicator == sent.communicator, bits & mask == 0) {
        (true, false) => Some("the tag".to_owned()),
        (false, true) => Some("the communicator".to_owned()),
        _ => None,
    }
}

/// Sends that wait for a receive, although their message is at the receiver.
fn without_receive(ranks: &[Rank]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (place, rank) in ranks.iter().enumerate() {
        for call in rank.calls.iter().filter(|call| call.kind == "send") {
            let Target::Rank(to) = call.target else { continue };
            let Some(receiver) = ranks.get(to) else { continue };
            let is_there = |message: &&Call| {
                message.target == Target::Rank(place) && message.tag.map(|tag| tag.0) == call.tag.map(|tag| tag.0)
            };
            if receiver.messages.iter().any(|message| is_there(&message)) {
                found.push(Finding {
                    kind: "no receive",
                    ranks: vec![place, to],
                    text: format!(
                        "no receive: {}, and {} has no receive for the message, and {}",
                        sentence(rank, call, ranks),
                        receiver.label(),
                        receiver.state.clause()
                    ),
                    details: Vec::new(),
                });
            }
        }
    }
    found
}

/// Ranks for which others wait, and which do not wait themselves.
fn causes(ranks: &[Rank]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (place, rank) in ranks.iter().enumerate() {
        if matches!(rank.state, State::Waits | State::Active) {
            continue;
        }
        // Such a rank is named in any case, and receives from any rank may be for it.
        let is_lost = matches!(rank.state, State::Stopped | State::Ended);
        let mut waiters: Vec<(usize, String)> = Vec::new();
        for (other, waiter) in ranks.iter().enumerate().filter(|(_, other)| other.state == State::Waits) {
            let is_for = |call: &&Call| match &call.target {
                Target::Rank(to) => *to == place,
                Target::Ranks(members) => members.contains(&place),
                Target::Any => is_lost,
                Target::Unseen(_) => false,
            };
            if let Some(call) = waiter.calls.iter().find(is_for) {
                waiters.push((other, sentence(waiter, call, ranks)));
            }
        }
        if waiters.is_empty() && !is_lost {
            continue;
        }
        let since = match rank.state {
            State::Computes => format!(" for {:.1} s", rank.age.as_secs_f64()),
            _ => String::new(),
        };
        let wait = match waiters.len() {
            0 => "no rank is known to wait",
            1 => "waits",
            _ => "wait",
        };
        let names: Vec<String> = waiters.iter().map(|(other, _)| ranks[*other].label()).collect();
        found.push(Finding {
            kind: rank.state.name(),
            ranks: std::iter::once(place).chain(waiters.iter().map(|(other, _)| *other)).collect(),
            text: format!("{} {}{since}; {} {wait} for it", rank.label(), rank.state.clause(), names.join(", "))
                .replace(";  ", "; "),
            details: waiters.into_iter().map(|(_, sentence)| sentence).collect(),
        });
    }
    found
}

/// Blocked ranks that no finding names: those to which no rank is left that could send.
fn abandoned(ranks: &[Rank], blocked: &[bool], found: &[Finding]) -> Vec<Finding> {
    let is_named = |place: &usize| found.iter().any(|finding| finding.ranks.contains(place));
    let alone = (0..ranks.len()).filter(|place| blocked[*place] && !is_named(place));
    let finding = |place: usize| {
        let call = ranks[place].calls.first()?;
        let others = awaited(call, place, ranks.len());
        let causes = others.iter().filter_map(|other| ranks.get(*other)).filter(|rank| rank.state != State::Waits);
        let causes: Vec<String> = causes.map(|rank| format!("{} {}", rank.label(), rank.state.clause())).collect();
        let cause = if causes.is_empty() { "that rank is blocked, too".to_owned() } else { causes.join(", ") };
        Some(Finding {
            kind: "blocked",
            ranks: vec![place],
            text: format!("blocked: {}; {cause}", sentence(&ranks[place], call, ranks)),
            details: Vec::new(),
        })
    };
    alone.filter_map(finding).collect()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
