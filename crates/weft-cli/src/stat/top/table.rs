//! The tables of `weft top`: heads, cells, sorting, and the choice of columns for a width.
//!
//! Place in the data flow: figures of `sample.rs` → rows of cells here → the terminal (`view.rs`) or plain text
//! (`print.rs`). A cell has a text and a key, by which its column is sorted.

use std::cmp::Ordering;

use super::super::sample::{EndpointId, Row};
use crate::render;

/// A column.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) name: &'static str,
    /// Width in characters. The last column of a table takes the rest.
    pub(crate) width: u16,
    /// Columns with small numbers are shown first if the width does not suffice for all.
    pub(crate) importance: u8,
    pub(crate) numeric: bool,
}

const fn numeric(name: &'static str, width: u16, importance: u8) -> Head {
    Head { name, width, importance, numeric: true }
}

const fn textual(name: &'static str, width: u16, importance: u8) -> Head {
    Head { name, width, importance, numeric: false }
}

/// The name of the column with the history, which only terminals show.
pub(crate) const TREND: &str = "TREND";

/// The columns of the table of processes.
pub(crate) const PROCESSES: &[Head] = &[
    numeric("PID", 7, 0),
    numeric("RANK", 4, 1),
    textual("STATE", 8, 3),
    numeric("SHM/s", 8, 2),
    numeric("TCP/s", 8, 2),
    numeric("MSG/s", 7, 4),
    numeric("RMA/s", 7, 11),
    textual(TREND, 12, 6),
    textual("WAITS FOR", 16, 5),
    numeric("STALL/s", 7, 7),
    numeric("FAILED", 6, 8),
    numeric("LINKS", 5, 12),
    numeric("POSTED", 6, 13),
    numeric("UNEXP", 6, 14),
    numeric("AGE", 6, 15),
    textual("HOST", 14, 10),
    textual("JOB", 18, 9),
    textual("COMMAND", 11, 0),
];

/// The columns of the table of a process's peers.
pub(crate) const PEERS: &[Head] = &[
    textual("PEER", 12, 0),
    textual("LINK", 10, 1),
    numeric("SENT/s", 7, 2),
    numeric("RECV/s", 7, 2),
    numeric("BYTES/s", 8, 3),
    textual(TREND, 12, 6),
    numeric("STALL/s", 7, 5),
    numeric("WAITING", 7, 4),
    numeric("SENT", 7, 8),
    numeric("RECEIVED", 8, 9),
    numeric("BYTES", 8, 10),
    numeric("RMA", 7, 11),
    numeric("PID", 7, 7),
    textual("HOST", 15, 0),
];

/// The columns of the table of collectives under way.
pub(crate) const COLLECTIVES: &[Head] = &[
    numeric("PID", 7, 0),
    numeric("GROUP", 5, 7),
    textual("MEMBER", 12, 2),
    textual("OPERATION", 14, 1),
    numeric("NUMBER", 8, 4),
    numeric("BLOCK", 10, 6),
    numeric("UNDER WAY", 9, 5),
    numeric("SINCE", 8, 3),
    textual("WAITS FOR RANKS", 15, 0),
];

/// The columns of the table of waits.
pub(crate) const WAITS: &[Head] = &[
    numeric("PID", 7, 2),
    numeric("RANK", 4, 0),
    textual("STATE", 8, 1),
    numeric("SINCE", 8, 3),
    textual("JOB", 18, 5),
    textual("FOUND", 10, 4),
    textual("CALL", 15, 0),
];

/// The columns of a table of counters.
pub(crate) const COUNTERS: &[Head] =
    &[textual("COUNTER", 22, 0), numeric("VALUE", 9, 1), numeric("PER SECOND", 10, 2), textual("MEANING", 10, 0)];

/// The columns that fit into a width, by their numbers. One space separates two columns.
pub(crate) fn fitting(heads: &[Head], width: u16) -> Vec<usize> {
    let mut order: Vec<usize> = (0..heads.len()).collect();
    order.sort_by_key(|number| heads[*number].importance);
    let mut left = width.saturating_add(1);
    order.retain(|number| {
        let needed = heads[*number].width + 1;
        let fits = needed <= left;
        left = if fits { left - needed } else { 0 };
        fits
    });
    order.sort_unstable();
    order
}

/// The key by which a column is sorted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Key {
    Number(f64),
    Text(String),
}

impl Key {
    fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Number(one), Self::Number(other)) => one.total_cmp(other),
            (Self::Text(one), Self::Text(other)) => one.cmp(other),
            (Self::Number(_), Self::Text(_)) => Ordering::Less,
            (Self::Text(_), Self::Number(_)) => Ordering::Greater,
        }
    }
}

/// One cell.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) key: Key,
}

impl Cell {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { key: Key::Text(text.clone()), text }
    }

    /// A number with its text.
    pub(crate) fn shown(value: f64, text: impl Into<String>) -> Self {
        Self { text: text.into(), key: Key::Number(value) }
    }

    /// A rate or a count. Zero is shown as a dot, so that other numbers stand out.
    pub(crate) fn number(value: f64) -> Self {
        Self::shown(value, if value == 0.0 { "·".to_owned() } else { render::number(value) })
    }

    pub(crate) fn bytes(value: f64) -> Self {
        Self::shown(value, if value == 0.0 { "·".to_owned() } else { render::bytes(value) })
    }

    #[allow(clippy::cast_precision_loss)] // Counts stay far below 2⁵³.
    pub(crate) fn count(value: u64) -> Self {
        Self::number(value as f64)
    }

    /// An identifier, which is shown with all digits.
    #[allow(clippy::cast_precision_loss)] // Identifiers stay far below 2⁵³.
    pub(crate) fn identifier(value: Option<u64>) -> Self {
        value.map_or_else(|| Self::shown(f64::INFINITY, ""), |value| Self::shown(value as f64, value.to_string()))
    }
}

/// The thing that a line shows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Id {
    Group(String),
    Process(u32),
    Peer(EndpointId, usize),
    /// A process, and the number of its group.
    /// A rank of a job, by the places of both.
    Wait(usize, usize),
    Collective(u32, usize),
    Counter(usize),
}

/// One line of a table.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) id: Id,
    pub(crate) cells: Vec<Cell>,
    /// Whether the line deserves attention: failed operations, or operations that wait.
    pub(crate) warns: bool,
}

impl Line {
    /// Whether a cell contains the text, without regard to case.
    pub(crate) fn matches(&self, text: &str) -> bool {
        self.cells.iter().any(|cell| cell.text.to_lowercase().contains(text))
    }
}

/// The order of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sort {
    pub(crate) column: usize,
    pub(crate) descending: bool,
}

impl Sort {
    /// Sorts lines. Equal lines keep their order, by which they do not jump.
    pub(crate) fn apply(self, lines: &mut [Line]) {
        lines.sort_by(|one, other| {
            let (Some(first), Some(second)) = (one.cells.get(self.column), other.cells.get(self.column)) else {
                return Ordering::Equal;
            };
            let order = first.key.order(&second.key);
            if self.descending { order.reverse() } else { order }
        });
    }

    /// The order after a choice of this column: numbers begin with the largest, and a second choice reverses.
    pub(crate) fn chosen(self, heads: &[Head], column: usize) -> Self {
        let head = &heads[column];
        let first = head.numeric && !["PID", "RANK"].contains(&head.name);
        Self { column, descending: if self.column == column { !self.descending } else { first } }
    }
}

/// The cells of a process. `trend` is the text of its history.
pub(crate) fn process_cells(row: &Row, trend: String) -> Vec<Cell> {
    let waits = match &row.waits_for[..] {
        _ if !row.collective.is_empty() => row.collective.clone(),
        [] => String::new(),
        [only] => format!("{} ({})", only.peer, only.operations),
        [first, rest @ ..] => format!("{} ({}) +{}", first.peer, first.operations, rest.len()),
    };
    let [shm, tcp] = [&row.shm, &row.tcp];
    vec![
        Cell::identifier(Some(row.pid.into())),
        Cell::identifier(row.rank),
        Cell::text(row.activity.name()),
        Cell::bytes(shm.rates.bytes),
        Cell::bytes(tcp.rates.bytes),
        Cell::number(row.operations() - shm.rates.accesses - tcp.rates.accesses),
        Cell::number(shm.rates.accesses + tcp.rates.accesses),
        Cell { text: trend, key: Key::Number(row.bytes()) },
        Cell::text(waits),
        Cell::number(shm.rates.stalls + tcp.rates.stalls),
        Cell::count(row.failures),
        Cell::count(shm.links + tcp.links),
        Cell::count(row.posted),
        Cell::count(row.unexpected),
        Cell::shown(row.age_s, format!("{:.1} s", row.age_s)),
        Cell::text(row.host.clone()),
        Cell::text(row.job.clone()),
        Cell::text(without_directory(&row.command)),
    ]
}

/// A command line without the directory of the program.
fn without_directory(command: &str) -> &str {
    let program = command.split(' ').next().unwrap_or_default();
    &command[program.rfind('/').map_or(0, |slash| slash + 1)..]
}

/// A line that sums up a group of processes.
pub(crate) fn group_line(name: &str, rows: &[&Row], folded: bool) -> Line {
    let mut sum = Row::default();
    rows.iter().for_each(|row| sum.add(row));
    let mut cells = process_cells(&sum, String::new());
    let mark = if folded { '▸' } else { '▾' };
    let count = rows.len();
    let ranks = format!("{mark} {name}: {count} {}", if count == 1 { "process" } else { "processes" });
    // The name begins the line. The columns of single processes would be empty.
    cells[0] = Cell::text(ranks);
    for (cell, head) in cells.iter_mut().zip(PROCESSES) {
        if ["RANK", "STATE", TREND, "HOST", "JOB", "COMMAND"].contains(&head.name) {
            *cell = Cell::text("");
        }
    }
    Line { id: Id::Group(name.to_owned()), cells, warns: sum.failures > 0 }
}

/// The characters of a history with eight heights. The largest value has the full height.
pub(crate) fn spark(values: impl DoubleEndedIterator<Item = f64> + Clone, width: usize) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let last: Vec<f64> = values.rev().take(width).collect();
    let most = last.iter().copied().fold(0.0, f64::max);
    let height = |value: f64| {
        if value <= 0.0 {
            return ' ';
        }
        // 0 to 7, because a value is at most the largest one.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        HEIGHTS[((value / most * 7.0).round() as usize).min(7)]
    };
    let shown: String = last.iter().rev().map(|value| height(*value)).collect();
    format!("{shown:>width$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_any_width_from_60() {
        for heads in [PROCESSES, PEERS, COLLECTIVES, COUNTERS] {
            for width in 60..=250 {
                let columns = fitting(heads, width);
                let used: u16 = columns.iter().map(|number| heads[*number].width + 1).sum();
                assert!(used <= width + 1, "{used} of {width}");
                assert!(columns.contains(&0) && columns.contains(&(heads.len() - 1)));
            }
            assert_eq!(fitting(heads, 250).len(), heads.len());
        }
        let narrow: Vec<_> = fitting(PROCESSES, 60).iter().map(|number| PROCESSES[*number].name).collect();
        assert_eq!(narrow, ["PID", "RANK", "STATE", "SHM/s", "TCP/s", "MSG/s", "COMMAND"]);
    }

    #[test]
    fn lines_are_sorted_by_their_keys() {
        let line = |pid: u32, rate: f64| {
            let mut row = Row { pid, ..Row::default() };
            row.shm.rates.bytes = rate;
            Line { id: Id::Process(pid), cells: process_cells(&row, String::new()), warns: false }
        };
        let mut lines = [line(10, 5.0), line(9, 2e6), line(8, 5.0)];
        let pids = |lines: &[Line]| lines.iter().map(|line| line.cells[0].text.clone()).collect::<Vec<_>>();
        let start = Sort { column: 0, descending: false };
        start.apply(&mut lines);
        assert_eq!(pids(&lines), ["8", "9", "10"]);
        let by_rate = start.chosen(PROCESSES, 3);
        by_rate.apply(&mut lines);
        assert_eq!(pids(&lines), ["9", "8", "10"]);
        assert!(by_rate.descending && !by_rate.chosen(PROCESSES, 3).descending);
    }

    #[test]
    fn commands_begin_with_the_name_of_the_program() {
        assert_eq!(without_directory("/usr/bin/python3 /x/y.py"), "python3 /x/y.py");
        assert_eq!(without_directory("a.out -f /x"), "a.out -f /x");
    }

    #[test]
    fn histories_have_eight_heights() {
        assert_eq!(spark([0.0, 1.0, 4.0, 8.0].into_iter(), 5), "  ▂▅█");
        assert_eq!(spark([5.0; 9].into_iter(), 3), "███");
        assert_eq!(spark(std::iter::empty(), 2), "  ");
    }

    #[test]
    fn waiting_operations_name_their_peer() {
        let wait =
            |peer: &str, operations| super::super::super::sample::Wait { peer: peer.to_owned(), pid: None, operations };
        let row = Row { waits_for: vec![wait("rank 1", 12), wait("rank 2", 3)], ..Row::default() };
        assert_eq!(process_cells(&row, String::new())[8].text, "rank 1 (12) +1");
    }
}
