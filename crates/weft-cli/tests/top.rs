//! `weft top` in a pseudo-terminal. A terminal emulator parses its output.
//!
//! The observed process is the test itself, which publishes a page as an endpoint does.

#![allow(clippy::unwrap_used, missing_docs)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use rustix::time::{ClockId, clock_gettime};
use weft_observe::layout::{self, Endpoint, Head, Peer};

/// Longest wait for a screen. The machine may be busy.
const PATIENCE: Duration = Duration::from_secs(30);
/// One test at a time: each would see the pages of the other.
static ONE: Mutex<()> = Mutex::new(());

/// A page of published counters, which belongs to this process.
struct Page {
    file: OwnedFd,
    round: u64,
}

impl Page {
    fn new() -> Self {
        let file = rustix::fs::memfd_create("weft-stats", MemfdFlags::CLOEXEC).unwrap();
        rustix::io::pwrite(&file, &Head::ours(std::process::id().into()).bytes(), 0).unwrap();
        let mut page = Self { file, round: 0 };
        page.publish();
        page
    }

    /// Publishes counters that have grown since the last time.
    fn publish(&mut self) {
        self.round += 1;
        let now = clock_gettime(ClockId::Monotonic);
        let published_ns = u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap();
        let count = self.round * 1000;
        let address = Peer { ip_low: 0xffff_0a00_0002, port: 7, state: 2, ..Peer::default() };
        let device = u64::from_le_bytes(*b"shm\0\0\0\0\0");
        let peer = Peer { device, messages_sent: count, bytes_sent: count << 10, ..address };
        let endpoint = Endpoint { published_ns, opened_ns: 1, peers: 1, port: 9, ..Endpoint::default() };
        self.block(layout::PEERS_AT, peer.words());
        self.block(layout::ENDPOINT_AT, endpoint.words());
    }

    fn block(&self, at: usize, words: impl Iterator<Item = u64>) {
        let ends = std::iter::once(self.round);
        let bytes: Vec<u8> = ends.clone().chain(words).chain(ends).flat_map(u64::to_le_bytes).collect();
        rustix::io::pwrite(&self.file, &bytes, at as u64).unwrap();
    }
}

/// `weft top` in a pseudo-terminal.
struct Session {
    page: Page,
    terminal: File,
    /// The state of the terminal before.
    before: Termios,
    child: Child,
    output: Receiver<Vec<u8>>,
    emulator: vt100::Parser,
}

impl Session {
    fn start((columns, rows): (u16, u16)) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        tcsetwinsize(&terminal, winsize(columns, rows)).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let side = || rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let before = tcgetattr(side()).unwrap();
        // The terminal is the controlling one, which gets the signals of its size.
        let child = Command::new("setsid")
            .args(["--ctty", env!("CARGO_BIN_EXE_weft"), "top", "--interval", "0.2"])
            .env("TERM", "xterm-256color")
            .stdin(side())
            .stdout(side())
            .stderr(side())
            .spawn()
            .unwrap();
        let terminal = File::from(terminal);
        let (mut reader, (send, output)) = (terminal.try_clone().unwrap(), channel());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The read fails when the last user of the terminal has closed it.
            while let Ok(len @ 1..) = reader.read(&mut bytes) {
                if send.send(bytes[..len].to_vec()).is_err() {
                    break;
                }
            }
        });
        let emulator = vt100::Parser::new(rows, columns, 0);
        let mut session = Self { page: Page::new(), terminal, before, child, output, emulator };
        // In the terminal's ordinary mode, Enter would arrive as another character.
        session.until(|screen, _| screen.alternate_screen());
        // Other processes of the user are not shown.
        session.press(&format!("/{}\r", std::process::id()));
        session
    }

    fn screen(&self) -> Vec<String> {
        let (_, columns) = self.emulator.screen().size();
        self.emulator.screen().rows(0, columns).collect()
    }

    /// Waits until the screen is as wanted, and returns it. Counters grow meanwhile.
    #[track_caller]
    fn until(&mut self, wanted: impl Fn(&vt100::Screen, &[String]) -> bool) -> Vec<String> {
        let end = Instant::now() + PATIENCE;
        loop {
            let screen = self.screen();
            if wanted(self.emulator.screen(), &screen) {
                return screen;
            }
            assert!(Instant::now() < end, "{screen:#?}");
            if let Ok(bytes) = self.output.recv_timeout(Duration::from_millis(50)) {
                self.emulator.process(&bytes);
            }
            self.page.publish();
        }
    }

    fn press(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    /// Checks that the program ends with this status, and that the terminal is as it was.
    #[track_caller]
    fn assert_restored(mut self) {
        self.until(|screen, _| !screen.alternate_screen() && !screen.hide_cursor());
        assert_eq!(self.emulator.screen().mouse_protocol_mode(), vt100::MouseProtocolMode::None);
        assert!(self.child.wait().unwrap().success());
        let after = tcgetattr(&self.terminal).unwrap();
        assert_eq!(format!("{after:?}"), format!("{:?}", self.before));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // It has ended, unless a check failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn winsize(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Whether the title, the heads, this process and the keys are at their places.
fn is_complete(screen: &[String]) -> bool {
    let pid = std::process::id().to_string();
    screen[0].starts_with(" weft top")
        && screen[0].trim_end().ends_with("every 0.2 s")
        && screen[4].contains("PID")
        && screen[4].contains("COMMAND")
        && screen[5..].iter().any(|line| line.contains(&pid) && line.contains("active"))
        && screen.last().is_some_and(|line| line.starts_with(" q quit"))
}

#[test]
fn every_size_is_filled_and_left_clean() {
    let _one = ONE.lock();
    for (columns, rows) in [(60, 20), (80, 24), (200, 50)] {
        let mut session = Session::start((columns, rows));
        let screen = session.until(|screen, lines| screen.alternate_screen() && is_complete(lines));
        assert_eq!(screen.len(), usize::from(rows));
        assert!(screen.iter().all(|line| line.chars().count() <= usize::from(columns)), "{screen:#?}");
        assert!(screen[1].contains("B/s") && screen[1].contains("links"), "{screen:#?}");
        session.press("?");
        session.until(|_, lines| lines.iter().any(|line| line.contains("this help, quit")));
        session.press("\r\r");
        session.until(|_, lines| lines.iter().any(|line| line.contains("10.0.0.2")) && lines[4].contains("PEER"));
        session.press("q");
        session.assert_restored();
    }
}

#[test]
fn a_resized_terminal_is_filled() {
    let _one = ONE.lock();
    let mut session = Session::start((200, 50));
    session.until(|_, lines| is_complete(lines));
    for (columns, rows) in [(60, 20), (120, 40)] {
        session.emulator.screen_mut().set_size(rows, columns);
        tcsetwinsize(&session.terminal, winsize(columns, rows)).unwrap();
        session.until(|_, lines| is_complete(lines));
    }
    session.press("q");
    session.assert_restored();
}

#[test]
fn a_signal_ends_with_the_terminal_restored() {
    let _one = ONE.lock();
    let mut session = Session::start((80, 24));
    session.until(|screen, lines| screen.alternate_screen() && is_complete(lines));
    let pid = Pid::from_raw(i32::try_from(session.child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    session.assert_restored();
}
