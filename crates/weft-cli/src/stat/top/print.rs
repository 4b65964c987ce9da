//! `weft top` without a terminal: tables as text, or JSON.
//!
//! Place in the data flow: figures of `sample.rs` → here → standard output.

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::super::sample::{self, Look, Row};
use super::super::{GROUP_HEADS, group_cells};
use super::table::{self, Id, Line, PROCESSES, TREND};
use crate::render;

/// Width of a table if the output is no terminal.
const WIDTH: u16 = 132;

/// Prints once, or repeatedly until a signal ends the program.
pub(super) fn run(interval: Duration, once: bool, json: bool, out: &mut impl Write) -> io::Result<()> {
    let mut before = Look::now()?;
    loop {
        std::thread::sleep(interval);
        let after = Look::now()?;
        let rows = sample::rows(&before, &after);
        if json {
            writeln!(out, "{}", object(&rows, interval))?;
        } else {
            out.write_all((text(&rows) + &collectives(&after)).as_bytes())?;
        }
        out.flush()?;
        if once {
            return Ok(());
        }
        before = after;
    }
}

/// The processes as JSON.
fn object(rows: &[Row], interval: Duration) -> serde_json::Value {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    serde_json::json!({
        "time_s": time.as_secs_f64(),
        "interval_s": interval.as_secs_f64(),
        "processes": rows,
    })
}

/// The processes as a table.
fn text(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no process of this user has an open weft endpoint\n".to_owned();
    }
    let width = console::Term::stdout().size_checked().map_or(WIDTH, |(_, columns)| columns);
    let mut columns = table::fitting(PROCESSES, width);
    columns.retain(|number| PROCESSES[*number].name != TREND);
    let heads: Vec<&str> = columns.iter().map(|number| PROCESSES[*number].name).collect();
    let lines = rows.iter().map(|row| Line {
        id: Id::Process(row.pid),
        cells: table::process_cells(row, String::new()),
        warns: false,
    });
    let cells = lines.map(|line| {
        let texts = columns.iter().map(|number| line.cells[*number].text.chars().take(40).collect::<String>());
        texts.collect::<Vec<_>>()
    });
    render::table_of(&heads, cells)
}

/// The collectives under way of all processes; empty without any.
fn collectives(look: &Look) -> String {
    let groups = look.0.values().flat_map(|process| sample::groups(process).map(|group| (process.pid, group)));
    let rows: Vec<Vec<String>> = groups
        .map(|(pid, (at, group))| std::iter::once(pid.to_string()).chain(group_cells(at, group)).collect())
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let heads: Vec<&str> = std::iter::once("pid").chain(GROUP_HEADS).collect();
    "\n".to_owned() + &render::table_of(&heads, rows)
}

#[cfg(test)]
mod tests {
    use weft_observe::layout::{Endpoint, Group};

    use super::super::super::find::{Process, Published};
    use super::*;

    #[test]
    fn collectives_under_way_name_the_awaited_ranks() {
        let (number, members) = (2, 80);
        let group = Group { number, rank: 1, members, under_way: 3, operation: 1, ..Group::default() };
        let groups = vec![Group { sequence: 17, awaited: 2, awaited_ranks: 0b1001, ..group }];
        let endpoint = Endpoint { published_ns: 5_000_000_000, ..Endpoint::default() };
        let endpoints = vec![Published { endpoint, groups, ..Published::default() }];
        let process = Process { pid: 3, endpoints, ..Process::default() };
        let look = |process: Process| Look([(3, process)].into());
        let text = collectives(&look(process.clone()));
        assert!(["1 of 80", "barrier", "17", "0, 3", "5.0 s"].iter().all(|word| text.contains(word)), "{text}");
        let row = sample::rows(&Look::default(), &look(process)).remove(0);
        assert_eq!((row.collective.as_str(), &row.collectives[0]["rank"]), ("barrier: 0, 3", &1.into()));
        assert_eq!(collectives(&look(Process { pid: 3, ..Process::default() })), "");
    }

    #[test]
    fn processes_are_printed_as_text_and_json() {
        let row = Row { pid: 4711, rank: Some(2), command: "x".repeat(100), ..Row::default() };
        let shown = text(std::slice::from_ref(&row));
        assert!(shown.contains("4711") && shown.contains("computes") && !shown.contains(TREND), "{shown}");
        let object = object(&[row], Duration::from_secs(2));
        let process = &object["processes"][0];
        assert_eq!((&process["rank"], &process["shm"]["messages_sent"]), (&2.into(), &0.0.into()));
        assert_eq!((&process["activity"], &object["interval_s"]), (&"computes".into(), &2.0.into()));
        assert!(text(&[]).contains("no process"));
    }
}
