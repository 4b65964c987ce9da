//! The application on ratatui's test terminal: pages, keys, sizes.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use weft_observe::layout::{Endpoint, Group, Peer, Wait};

use super::super::find::{Process, Published};
use super::super::sample::Look;
use super::app::App;
use super::screen::{Then, answer};
use super::view::{self, Drawn};

/// "shm" and "tcp" as words of a page.
fn device(name: &str) -> u64 {
    let mut bytes = [0; 8];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    u64::from_le_bytes(bytes)
}

/// A process of rank `rank` with a peer by shm, the next rank, and one by TCP on another host.
fn process(rank: u64, ranks: u64, seconds: u64) -> Process {
    let endpoint = |rank| Endpoint { ip_low: 0xffff_0a00_0001, port: 1000 + rank, id: rank, ..Endpoint::default() };
    let own = Endpoint { published_ns: seconds * 1_000_000_000, peers: 2, failures: rank % 2, ..endpoint(rank) };
    let next = endpoint((rank + 1) % ranks);
    let count = seconds * (1000 + rank);
    let near = Peer {
        ip_low: next.ip_low,
        port: next.port,
        id: next.id,
        state: 2,
        device: device("shm"),
        messages_sent: count,
        bytes_sent: 1_000_000 * count,
        waiting: 3,
        ..Peer::default()
    };
    let far = Peer {
        ip_low: 0xffff_0a00_0002,
        port: 7,
        id: 9,
        state: 2,
        device: device("tcp"),
        messages_received: 10 * count,
        bytes_received: 8 * count,
        ..Peer::default()
    };
    Process {
        pid: 4000 + u32::try_from(rank).unwrap(),
        command: format!("./solver --case {}", "x".repeat(300)),
        rank: Some(rank),
        size: Some(ranks),
        host: "node1".to_owned(),
        job: format!("mpiexec {}", 100 + rank / 8),
        endpoints: vec![Published {
            endpoint: own,
            age: Duration::from_millis(50),
            peers: vec![near, far],
            ..Published::default()
        }],
        ..Process::default()
    }
}

fn look(ranks: u64, seconds: u64) -> Look {
    Look((0..ranks).map(|rank| process(rank, ranks, seconds)).map(|process| (process.pid, process)).collect())
}

/// The application with a test terminal.
struct Session {
    app: App,
    terminal: Terminal<TestBackend>,
    drawn: Drawn,
}

impl Session {
    fn new(ranks: u64, (width, height): (u16, u16)) -> Self {
        let mut app = App::new(look(ranks, 1), Duration::from_secs(1));
        app.take(look(ranks, 2));
        let terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let mut this = Self { app, terminal, drawn: Drawn::default() };
        this.draw();
        this
    }

    fn draw(&mut self) -> Vec<String> {
        self.terminal.draw(|frame| self.drawn = view::draw(frame, &self.app, self.drawn.first())).unwrap();
        let buffer = self.terminal.backend().buffer();
        let rows = buffer.content().chunks(buffer.area.width.into());
        rows.map(|cells| cells.iter().map(ratatui::buffer::Cell::symbol).collect()).collect()
    }

    /// Presses keys, one after the other, and returns the screen.
    fn press(&mut self, keys: &[KeyCode]) -> Vec<String> {
        for key in keys {
            let event = Event::Key(KeyEvent::new(*key, KeyModifiers::NONE));
            assert_eq!(answer(&mut self.app, &event, &self.drawn), Then::Draw);
            self.draw();
        }
        self.draw()
    }

    fn type_text(&mut self, text: &str) -> Vec<String> {
        self.press(&text.chars().map(KeyCode::Char).collect::<Vec<_>>())
    }

    fn click(&mut self, x: u16, y: u16) -> Vec<String> {
        let kind = MouseEventKind::Down(MouseButton::Left);
        let event = Event::Mouse(MouseEvent { kind, column: x, row: y, modifiers: KeyModifiers::NONE });
        answer(&mut self.app, &event, &self.drawn);
        self.draw()
    }
}

/// The row of the heads of columns, and the first row of lines.
const HEADS: usize = 4;
const LINES: usize = 5;
const SIZES: [(u16, u16); 3] = [(60, 20), (80, 24), (200, 50)];

#[test]
fn pages_fit_every_size() {
    for size in SIZES {
        let mut session = Session::new(20, size);
        let screen = session.draw();
        assert_eq!(screen.len(), usize::from(size.1));
        assert!(screen[0].contains("weft top") && screen[0].contains("20 processes, 3 jobs"), "{screen:#?}");
        assert!(screen[1].contains("20.2 GB/s") && screen[2].contains("kB/s"), "{screen:#?}");
        assert!(screen[HEADS].contains("PID") && screen[HEADS].contains("COMMAND"), "{screen:#?}");
        assert!(screen[LINES].contains("4000") && screen[LINES].contains("1.00 GB"), "{screen:#?}");
        assert!(screen[LINES].contains("active") && screen[LINES].contains("solver"), "{screen:#?}");
        assert_eq!(screen[LINES].contains("rank 1 (3)"), size.0 >= 80, "{screen:#?}");
        let help = session.type_text("?").join("\n");
        for row in super::view::HELP.lines() {
            assert!(help.contains(row.trim_end()) || size.1 < 24, "{row}\n{help}");
        }
    }
}

#[test]
fn the_selected_line_stays_visible() {
    let mut session = Session::new(40, (60, 20));
    let screen = session.press(&[KeyCode::End]);
    assert!(screen[18].contains("4039"), "{screen:#?}");
    assert!(session.press(&[KeyCode::PageUp, KeyCode::Home])[LINES].contains("4000"));
    // The selection belongs to a process, not to a place.
    let screen = session.press(&[KeyCode::Down, KeyCode::Char('r')]);
    assert!(screen.join("\n").contains("4001"), "{screen:#?}");
    assert_eq!(session.app.selected(), 38);
}

#[test]
fn a_process_opens_to_its_peers_and_links() {
    let mut session = Session::new(4, (80, 24));
    let screen = session.press(&[KeyCode::Down, KeyCode::Enter]);
    assert!(screen[3].contains("process 4001, rank 1 of 4 on node1"), "{screen:#?}");
    assert!(screen[LINES].contains("rank 2") && screen[LINES].contains("shm"), "{screen:#?}");
    assert!(screen[LINES + 1].contains("10.0.0.2") && screen[LINES + 1].contains("tcp"), "{screen:#?}");
    let screen = session.press(&[KeyCode::Enter]);
    assert!(screen[3].contains("→ rank 2, pid 4002, node1"), "{screen:#?}");
    let sent = screen.iter().find(|row| row.starts_with("bytes_sent")).unwrap();
    assert!(sent.contains("2.00 GB") && sent.contains("1.00 GB"), "{sent}");
    let screen = session.press(&[KeyCode::Esc, KeyCode::Char('e')]);
    assert!(screen[LINES].contains("endpoint 10.0.0.1:1001"), "{screen:#?}");
    let screen = session.press(&[KeyCode::Esc, KeyCode::Esc, KeyCode::Esc]);
    assert!(screen[3].contains("processes"), "{screen:#?}");
    assert_eq!(session.app.selected(), 1);
}

#[test]
fn a_page_of_an_ended_process_says_so() {
    let mut session = Session::new(2, (60, 20));
    session.press(&[KeyCode::Enter]);
    session.app.take(Look::default());
    assert!(session.draw()[3].contains("process 4000 has ended"));
    assert!(session.press(&[KeyCode::Esc])[3].contains("no process"));
}

#[test]
fn lines_are_filtered_and_grouped() {
    let mut session = Session::new(20, (80, 24));
    let screen = session.type_text("/4003");
    assert!(screen[23].contains("filter: 4003"), "{screen:#?}");
    let screen = session.press(&[KeyCode::Enter]);
    assert!(screen[LINES].contains("4003") && screen[LINES + 1].trim().is_empty(), "{screen:#?}");
    let screen = session.press(&[KeyCode::Esc, KeyCode::Char('g')]);
    assert!(screen[LINES].starts_with("▾ mpiexec 100: 8 processes"[..20].trim_end()), "{screen:#?}");
    assert!(screen[LINES].contains("8.03 GB") && screen[LINES + 1].contains("4000"), "{screen:#?}");
    let screen = session.press(&[KeyCode::Enter]);
    assert!(screen[LINES].starts_with('▸') && screen[LINES + 1].starts_with("▾ mpiexec 101"), "{screen:#?}");
    assert!(session.type_text("g")[LINES].contains("node1: 20 processes"));
    assert!(session.type_text("g")[LINES].contains("rank    0: 1"));
}

#[test]
fn the_mouse_selects_opens_and_sorts() {
    let mut session = Session::new(8, (80, 24));
    let x = u16::try_from(session.draw()[HEADS].find("SHM/s").unwrap()).unwrap();
    let screen = session.click(x, 4);
    assert!(screen[HEADS].contains("SHM/s↓") && screen[LINES].contains("4007"), "{screen:#?}");
    assert!(session.click(x, 4)[LINES].contains("4000"));
    session.click(3, 7);
    assert_eq!(session.app.selected(), 2);
    assert!(session.click(3, 7)[3].contains("process 4002"));
    session.click(3, 22);
}

#[test]
fn collectives_have_a_page() {
    let mut session = Session::new(2, (80, 24));
    let mut look = look(2, 3);
    let group = Group { members: 4, operation: 1, awaited: 1, awaited_ranks: 0b100, ..Group::default() };
    look.0.values_mut().for_each(|process| process.endpoints[0].groups = vec![group]);
    session.app.take(look);
    assert!(session.draw()[LINES].contains("barrier: 2"));
    let screen = session.type_text("c");
    assert!(screen[3].contains("collectives under way") && screen[HEADS].contains("WAITS FOR RANKS"), "{screen:#?}");
    assert!(screen[LINES].contains("4000") && screen[LINES].contains("0 of 4"), "{screen:#?}");
    assert!(session.press(&[KeyCode::Enter])[3].contains("process 4000"));
}

#[test]
fn waits_have_a_page() {
    // The states of processes are read from /proc, so these two exist.
    let pids = [std::process::id(), std::os::unix::process::parent_id()];
    let stuck = |seconds: u64| {
        let ranks = (0..2u64).zip(pids).map(|(rank, pid)| {
            let mut process = Process { pid, ..process(rank, 2, 1) };
            let published = &mut process.endpoints[0];
            published.endpoint.published_ns = seconds * 1_000_000_000;
            let Peer { ip_low, port, id, .. } = published.peers[0];
            let kind = Wait::KINDS.iter().position(|kind| *kind == "receive").unwrap() as u64;
            let since_ns = 1_000_000_000;
            let wait = Wait { kind, ip_low, port, id, tag: 5, flags: Wait::TAGGED, since_ns, ..Wait::default() };
            published.waits = vec![wait];
            (pid, process)
        });
        Look(ranks.collect())
    };
    let mut session = Session::new(2, (200, 24));
    session.app.take(stuck(3));
    session.app.take(stuck(4));
    let screen = session.type_text("w");
    assert!(screen[HEADS].contains("FOUND") && screen[HEADS].contains("CALL"), "{screen:#?}");
    let of_first = screen.iter().find(|line| line.contains("receives from rank 1, tag")).expect("a line of rank 0");
    assert!(of_first.contains("waits") && of_first.contains("3.") && of_first.contains("deadlock"), "{screen:#?}");
    assert!(screen.iter().any(|line| line.contains("receives from rank 0, tag")), "{screen:#?}");
    let closed = session.press(&[KeyCode::Esc]);
    assert!(closed[HEADS].contains("COMMAND"), "{closed:#?}");
}

#[test]
fn q_and_control_c_end_the_program() {
    let mut session = Session::new(1, (60, 20));
    let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
    let quit = key(KeyCode::Char('q'), KeyModifiers::NONE);
    assert_eq!(answer(&mut session.app, &quit, &session.drawn), Then::Quit);
    let interrupt = key(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(answer(&mut session.app, &interrupt, &session.drawn), Then::Quit);
    // In the filter, q is a letter.
    session.type_text("/q");
    assert_eq!(session.app.filter(), "q");
}
