//! The terminal of `weft top`: alternate screen, events, and the way back to the shell.
//!
//! Place in the data flow: keys and mouse → here → `app.rs`, and `view.rs` → here → the terminal. The terminal is
//! restored at the end, after SIGTERM and SIGHUP, on a panic, and while the program is stopped. When the terminal has
//! gone, the program ends at once: the library for events would read its end for ever.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{
    self, DisableMouseCapture, EnableMouseCapture, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton,
    MouseEvent, MouseEventKind,
};
use ratatui::crossterm::execute;
use rustix::event::{PollFd, PollFlags, poll};

use super::super::sample::Look;
use super::app::{App, Mode, View};
use super::view::{self, Drawn};

/// Longest wait for an event. Signals are looked for in between.
const PATIENCE: Duration = Duration::from_millis(200);
/// Exit status after the end of the terminal, as of a program that SIGHUP ends.
const HUNG_UP: i32 = 128 + Signal::SIGHUP as i32;
/// Lines that the mouse's wheel moves.
const WHEEL: usize = 3;

/// The terminal in the state that the application needs. It is restored when this is dropped.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> io::Result<Self> {
        let screen = Self(ratatui::try_init()?);
        execute!(io::stdout(), EnableMouseCapture)?;
        Ok(screen)
    }

    /// Restores the terminal and stops this process, as the terminal does without raw mode.
    fn suspend(self) -> io::Result<Self> {
        drop(self);
        nix::sys::signal::raise(Signal::SIGTSTP)?;
        Self::open()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The terminal may have gone.
        let _ = execute!(io::stdout(), DisableMouseCapture);
        let _ = ratatui::try_restore();
    }
}

/// The effect of an event on the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Draw,
    Suspend,
    Quit,
}

/// Runs the application until the user quits.
pub(crate) fn run(interval: Duration) -> io::Result<()> {
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        signal_hook::flag::register(signal as i32, Arc::clone(&ended))?;
    }
    std::thread::spawn(end_with_terminal);
    let mut app = App::new(Look::now()?, interval);
    let mut screen = Screen::open()?;
    let mut drawn = Drawn::default();
    let mut looked = Instant::now();
    // Rates need two looks. The second one follows soon.
    let mut due = Duration::from_millis(300).min(interval);
    while !ended.load(Ordering::Relaxed) {
        screen.0.draw(|frame| drawn = view::draw(frame, &app, drawn.first()))?;
        let left = due.saturating_sub(looked.elapsed());
        if event::poll(left.min(PATIENCE))? {
            match answer(&mut app, &event::read()?, &drawn) {
                Then::Draw => {}
                Then::Suspend => screen = screen.suspend()?,
                Then::Quit => break,
            }
        }
        if looked.elapsed() >= due {
            (looked, due) = (Instant::now(), app.interval());
            if !app.paused() {
                app.take(Look::now()?);
            }
        }
    }
    Ok(())
}

/// Waits for the end of the terminal, and ends the program. Its state needs no restoring then.
fn end_with_terminal() {
    let stdin = io::stdin();
    loop {
        // The end and errors are reported without a request. Events are left to the main thread.
        let mut fds = [PollFd::new(&stdin, PollFlags::empty())];
        if matches!(poll(&mut fds, None), Ok(1..)) {
            std::process::exit(HUNG_UP);
        }
    }
}

/// Answers an event.
pub(crate) fn answer(app: &mut App, event: &Event, drawn: &Drawn) -> Then {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => return on_key(app, *key, drawn),
        Event::Mouse(mouse) => on_mouse(app, *mouse, drawn),
        _ => {}
    }
    Then::Draw
}

fn on_key(app: &mut App, key: KeyEvent, drawn: &Drawn) -> Then {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Then::Quit,
            KeyCode::Char('z') => Then::Suspend,
            _ => Then::Draw,
        };
    }
    match app.mode() {
        Mode::Filter => on_filter_key(app, key.code),
        Mode::Help => {
            app.set_mode(Mode::Table);
            if key.code == KeyCode::Char('q') {
                return Then::Quit;
            }
        }
        Mode::Table => return on_table_key(app, key.code, drawn),
    }
    Then::Draw
}

fn on_filter_key(app: &mut App, key: KeyCode) {
    match key {
        KeyCode::Char(char) => app.edit_filter(|filter| filter.push(char)),
        KeyCode::Backspace => app.edit_filter(|filter| {
            filter.pop();
        }),
        KeyCode::Esc => {
            app.edit_filter(String::clear);
            app.set_mode(Mode::Table);
        }
        KeyCode::Enter => app.set_mode(Mode::Table),
        _ => {}
    }
}

fn on_table_key(app: &mut App, key: KeyCode, drawn: &Drawn) -> Then {
    let at = app.selected();
    match key {
        KeyCode::Char('q') => return Then::Quit,
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => app.set_mode(Mode::Help),
        KeyCode::Char('/') if !matches!(app.view(), View::Endpoints(_) | View::Link(..)) => app.set_mode(Mode::Filter),
        KeyCode::Char('s') => app.sort_next(true),
        KeyCode::Char('S') => app.sort_next(false),
        KeyCode::Char('r') => app.reverse(),
        KeyCode::Char('g') if *app.view() == View::Processes => app.group_next(),
        KeyCode::Char('e') => app.open_endpoints(),
        KeyCode::Char('c') => app.open_collectives(),
        KeyCode::Char('w') => app.open_waits(),
        KeyCode::Char('p' | ' ') => app.pause(),
        KeyCode::Char('+') => app.scale_interval(0.5),
        KeyCode::Char('-') => app.scale_interval(2.0),
        KeyCode::Up | KeyCode::Char('k') => app.select(at.saturating_sub(1)),
        KeyCode::Down | KeyCode::Char('j') => app.select(at + 1),
        KeyCode::PageUp => app.select(at.saturating_sub(drawn.page())),
        KeyCode::PageDown => app.select(at + drawn.page()),
        KeyCode::Home => app.select(0),
        KeyCode::End => app.select(usize::MAX),
        KeyCode::Enter | KeyCode::Right => app.open(),
        KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => app.back(),
        _ => {}
    }
    Then::Draw
}

fn on_mouse(app: &mut App, mouse: MouseEvent, drawn: &Drawn) {
    match mouse.kind {
        MouseEventKind::ScrollUp => app.select(app.selected().saturating_sub(WHEEL)),
        MouseEventKind::ScrollDown => app.select(app.selected() + WHEEL),
        MouseEventKind::Down(MouseButton::Left) if app.mode() == Mode::Help => app.set_mode(Mode::Table),
        MouseEventKind::Down(MouseButton::Left) => {
            if let Some(column) = drawn.head(mouse.column, mouse.row) {
                app.sort_by(column);
            } else if let Some(line) = drawn.line(mouse.column, mouse.row).filter(|line| *line < app.lines().len()) {
                if app.selected() == line {
                    app.open();
                } else {
                    app.select(line);
                }
            }
        }
        MouseEventKind::Down(MouseButton::Right) => app.back(),
        _ => {}
    }
}
