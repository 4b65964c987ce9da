//! Draws the state of `weft top` (`app.rs`) for a terminal of any size from 60 columns.
//!
//! Place in the data flow: last step before the terminal. All texts are clipped to the width. The drawn geometry goes
//! back to the caller, who finds the line or column under the mouse in it.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line as TextLine;
use ratatui::widgets::{Block, Clear, Paragraph, Sparkline};

use super::app::{App, Grouping, Mode, View};
use super::table::{self, Head, Id, Line};
use crate::render;

/// Width of the numbers before the graph of a path.
const PATH_WIDTH: u16 = 44;

pub(crate) const HELP: &str = "\
↑ ↓ PgUp PgDn Home End   move
Enter →                  peers of a process, counters of
                         a link; folds a group
Esc ←                    back
e c                      endpoint counters; collectives
w                        causes of waits, as weft why
s S                      sort by the next, previous column
r                        reverse the order
g                        group by job, host, rank, nothing
/                        filter: text in any column
p + -                    pause; shorter, longer interval
mouse                    select, open, scroll, sort
? q                      this help, quit

waits for: operations of the process to this peer are
queued or incomplete, or ranks that have no part in a
collective yet. computes: it makes no call.";

/// The drawn geometry.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drawn {
    /// The row of the heads.
    heads_y: u16,
    /// The area of the lines.
    lines: Rect,
    /// The number of the first line that is shown.
    first: usize,
    /// Column numbers, each with its first position and the one after its last.
    columns: Vec<(usize, u16, u16)>,
}

impl Drawn {
    /// The line at a position.
    pub(crate) fn line(&self, x: u16, y: u16) -> Option<usize> {
        self.lines.contains((x, y).into()).then(|| self.first + usize::from(y - self.lines.y))
    }

    /// The column whose head is at a position.
    pub(crate) fn head(&self, x: u16, y: u16) -> Option<usize> {
        let at = |(_, start, end): &&(usize, u16, u16)| y == self.heads_y && (*start..*end).contains(&x);
        self.columns.iter().find(at).map(|(number, ..)| *number)
    }

    /// The number of the first line that is shown.
    pub(crate) const fn first(&self) -> usize {
        self.first
    }

    /// Lines of one page.
    pub(crate) fn page(&self) -> usize {
        usize::from(self.lines.height.max(1))
    }
}

/// Draws everything. `first`: the first line that was shown before.
pub(crate) fn draw(frame: &mut Frame<'_>, app: &App, first: usize) -> Drawn {
    let [title, shm, tcp, heading, heads, lines, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_title(frame.buffer_mut(), title, app);
    draw_paths(frame, [shm, tcp], app);
    put(frame.buffer_mut(), heading, 0, &heading_text(app), Style::new().add_modifier(Modifier::BOLD));
    let mut drawn = Drawn { heads_y: heads.y, lines, first: first_line(app, first, lines.height), columns: Vec::new() };
    let mut x = 0;
    for number in table::fitting(app.heads(), frame.area().width) {
        let is_last = number + 1 == app.heads().len();
        let end = if is_last { frame.area().width } else { x + app.heads()[number].width };
        drawn.columns.push((number, x, end));
        x = end + 1;
    }
    draw_heads(frame.buffer_mut(), heads, app, &drawn);
    draw_lines(frame.buffer_mut(), lines, app, &drawn);
    draw_keys(frame.buffer_mut(), keys, app);
    if app.mode() == Mode::Help {
        draw_help(frame);
    }
    drawn
}

/// The first line to show, so that the selected one is visible.
fn first_line(app: &App, before: usize, height: u16) -> usize {
    let (selected, height) = (app.selected(), usize::from(height).max(1));
    let most = app.lines().len().saturating_sub(height);
    before.min(most).clamp((selected + 1).saturating_sub(height), selected)
}

/// Writes a text into one row from column `x` on, clipped to the area.
fn put(buffer: &mut Buffer, area: Rect, x: u16, text: &str, style: Style) {
    if x < area.width && area.height > 0 {
        buffer.set_stringn(area.x + x, area.y, text, usize::from(area.width - x), style);
    }
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn draw_title(buffer: &mut Buffer, area: Rect, app: &App) {
    buffer.set_style(area, Style::new().bg(Color::Blue).fg(Color::White));
    let jobs: std::collections::BTreeSet<&str> = app.rows().iter().map(|row| row.job.as_str()).collect();
    let failures = app.rows().iter().map(|row| row.failures).fold(0_u64, u64::saturating_add);
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut text = format!(
        " weft top  {host}  {}, {}",
        counted(app.rows().len(), "process", "processes"),
        counted(jobs.len(), "job", "jobs")
    );
    if failures > 0 {
        text += &format!(", {} failed operations", render::count(failures));
    }
    let right =
        if app.paused() { " PAUSED ".to_owned() } else { format!(" every {:.1} s ", app.interval().as_secs_f64()) };
    // The text has one column a character.
    let x = area.width.saturating_sub(u16::try_from(right.chars().count()).unwrap_or(0));
    let left = Rect { width: x, ..area };
    put(buffer, left, 0, &text, Style::new().add_modifier(Modifier::BOLD));
    put(buffer, area, x, &right, Style::new());
}

/// One row for each path: its links and rates, and a graph of its bytes per second.
fn draw_paths(frame: &mut Frame<'_>, areas: [Rect; 2], app: &App) {
    let rows: Vec<_> = match app.process() {
        Some(pid) => app.row(pid).into_iter().collect(),
        None => app.rows().iter().collect(),
    };
    let mut sum = super::super::sample::Row::default();
    rows.iter().for_each(|row| sum.add(row));
    let empty = VecDeque::new();
    let history = app.history().unwrap_or(&empty);
    for (number, (area, name, path, color)) in
        [(areas[0], "shm", sum.shm, Color::Green), (areas[1], "tcp", sum.tcp, Color::Cyan)].into_iter().enumerate()
    {
        let text = format!(
            " {name} {:>9}/s {:>8} msg/s {:>5} links",
            render::bytes(path.rates.bytes),
            render::number(path.rates.operations()),
            render::count(path.links)
        );
        put(frame.buffer_mut(), area, 0, &text, Style::new().fg(color));
        let graph =
            Rect { x: area.x + PATH_WIDTH.min(area.width), width: area.width.saturating_sub(PATH_WIDTH), ..area };
        let skipped = history.len().saturating_sub(graph.width.into());
        // Rates are positive and far below 2⁵³.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let data: Vec<u64> = history.iter().skip(skipped).map(|rates| rates[number] as u64).collect();
        frame.render_widget(Sparkline::default().data(&data).style(Style::new().fg(color)), graph);
    }
}

fn heading_text(app: &App) -> String {
    let mut text = format!(" {}", app.heading());
    if *app.view() == View::Processes {
        if app.grouping() != Grouping::None {
            text += &format!(" by {}", app.grouping().name());
        }
        if app.lines().is_empty() && app.filter().is_empty() {
            " no process of this user has an open weft endpoint".clone_into(&mut text);
        }
    }
    if !app.filter().is_empty() {
        text += &format!(" with `{}`", app.filter());
    }
    text
}

/// Aligns a text in a column.
fn aligned(head: &Head, text: &str, width: u16) -> String {
    let (width, len) = (usize::from(width), text.chars().count());
    if head.numeric && len < width { format!("{text:>width$}") } else { text.to_owned() }
}

fn draw_heads(buffer: &mut Buffer, area: Rect, app: &App, drawn: &Drawn) {
    let style = Style::new().add_modifier(Modifier::REVERSED);
    buffer.set_style(area, style);
    for (number, start, end) in &drawn.columns {
        let head = &app.heads()[*number];
        let sort = app.sort();
        let mark = match sort.column == *number {
            true if sort.descending => "↓",
            true => "↑",
            false => "",
        };
        let text = aligned(head, &format!("{}{mark}", head.name), end - start);
        let column = Rect { x: area.x + start, width: end - start, ..area };
        put(buffer, column, 0, &text, if mark.is_empty() { style } else { style.add_modifier(Modifier::BOLD) });
    }
}

fn draw_lines(buffer: &mut Buffer, area: Rect, app: &App, drawn: &Drawn) {
    let selected = app.selected();
    let shown = app.lines().iter().enumerate().skip(drawn.first).take(area.height.into());
    for (y, (number, line)) in (area.y..).zip(shown) {
        let row = Rect { y, height: 1, ..area };
        let mut style = Style::new();
        if matches!(line.id, Id::Group(_)) {
            style = style.add_modifier(Modifier::BOLD);
        }
        if line.warns {
            style = style.fg(Color::Red);
        }
        if number == selected {
            style = style.bg(Color::DarkGray);
        }
        buffer.set_style(row, style);
        draw_cells(buffer, row, app.heads(), line, drawn, style);
    }
}

fn draw_cells(buffer: &mut Buffer, row: Rect, heads: &[Head], line: &Line, drawn: &Drawn, style: Style) {
    let mut after_text = 0;
    for (place, (number, start, end)) in drawn.columns.iter().enumerate() {
        let Some(cell) = line.cells.get(*number).filter(|_| *start >= after_text) else { continue };
        let is_title = place == 0 && matches!(line.id, Id::Group(_));
        // The title of a group takes the empty cells behind it.
        let next = drawn
            .columns
            .iter()
            .skip(1)
            .find(|(number, ..)| line.cells.get(*number).is_some_and(|cell| !cell.text.is_empty()));
        let end = if is_title { next.map_or(row.width, |(_, start, _)| start.saturating_sub(1)) } else { *end };
        let style = match heads[*number].name {
            table::TREND => style.fg(Color::Green),
            _ => style,
        };
        let text = if is_title { cell.text.clone() } else { aligned(&heads[*number], &cell.text, end - start) };
        put(buffer, Rect { x: row.x + start, width: end - start, ..row }, 0, &text, style);
        if is_title {
            after_text = end;
        }
    }
}

fn draw_keys(buffer: &mut Buffer, area: Rect, app: &App) {
    let style = Style::new().add_modifier(Modifier::DIM);
    let text = match (app.mode(), app.view()) {
        (Mode::Filter, _) => format!(" filter: {}▏  Enter: done  Esc: none", app.filter()),
        (_, View::Processes) => {
            " q quit  ? help  / filter  s sort  g group  Enter peers  e endpoints  c collectives  w waits  p pause  r reverse  + - interval"
                .into()
        }
        (_, View::Peers(_)) => {
            " q quit  ? help  Esc back  / filter  s sort  Enter counters  e endpoints  p pause".into()
        }
        _ => " q quit  ? help  Esc back  s sort  p pause".into(),
    };
    put(buffer, area, 0, &text, if app.mode() == Mode::Filter { Style::new() } else { style });
}

fn draw_help(frame: &mut Frame<'_>) {
    let (width, height) = (60, u16::try_from(HELP.lines().count()).unwrap_or(16) + 2);
    let area = frame.area();
    let (width, height) = (area.width.min(width), area.height.min(height));
    let place = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    frame.render_widget(Clear, place);
    let title = TextLine::from(" weft top ").alignment(Alignment::Center);
    frame.render_widget(Paragraph::new(HELP).block(Block::bordered().title(title)), place);
}
