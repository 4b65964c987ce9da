//! The state of `weft top` as a terminal application: looks, histories, the open page, and the answers to keys.
//!
//! Place in the data flow: looks of `sample.rs` and events of the terminal → here → `view.rs`, which draws this state.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use weft_observe::layout::{Endpoint, Peer};

use super::super::find::Process;
use super::super::names::Names;
use super::super::sample::{self, EndpointId, Link, Look, Rates, Row};
use super::super::{PUBLISHED_OTHERWISE, is_bytes, why};
use super::table::{self, COLLECTIVES, COUNTERS, Cell, Head, Id, Line, PEERS, PROCESSES, Sort, TREND, WAITS};
use crate::render;

/// Rates that are kept for the histories.
const HISTORY: usize = 240;

/// Bytes per second by shared memory and by TCP.
type History = VecDeque<[f64; 2]>;

/// The shown page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Processes,
    Peers(u32),
    /// The collectives under way of all processes.
    Collectives,
    /// The waits of the ranks of all jobs.
    Waits,
    /// The counters of a process's endpoints.
    Endpoints(u32),
    /// The counters of one link.
    Link(u32, EndpointId, usize),
}

/// The grouping of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grouping {
    None,
    Job,
    Host,
    Rank,
}

impl Grouping {
    const fn next(self) -> Self {
        match self {
            Self::None => Self::Job,
            Self::Job => Self::Host,
            Self::Host => Self::Rank,
            Self::Rank => Self::None,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Job => "job",
            Self::Host => "host",
            Self::Rank => "rank",
        }
    }

    fn of(self, row: &Row) -> String {
        match self {
            Self::None => String::new(),
            Self::Job => row.job.clone(),
            Self::Host => row.host.clone(),
            Self::Rank => row.rank.map_or_else(|| "no rank".to_owned(), |rank| format!("rank {rank:>4}")),
        }
    }
}

/// The input that keys are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Table,
    Filter,
    Help,
}

/// A page and the line that is selected there.
#[derive(Clone, Debug)]
struct Page {
    view: View,
    selected: Option<Id>,
}

/// The state.
pub(crate) struct App {
    before: Look,
    after: Look,
    names: Names,
    rows: Vec<Row>,
    totals: History,
    processes: HashMap<u32, History>,
    /// Bytes per second of the links of the process whose page is open.
    links: BTreeMap<(EndpointId, usize), VecDeque<f64>>,
    /// The open pages; the last one is shown.
    pages: Vec<Page>,
    sorts: [Sort; 5],
    filter: String,
    mode: Mode,
    grouping: Grouping,
    folded: BTreeSet<String>,
    paused: bool,
    interval: Duration,
    lines: Vec<Line>,
}

impl App {
    /// The state after a first look.
    pub(crate) fn new(first: Look, interval: Duration) -> Self {
        let mut this = Self {
            before: Look::default(),
            after: Look::default(),
            names: Names::default(),
            rows: Vec::new(),
            totals: VecDeque::new(),
            processes: HashMap::new(),
            links: BTreeMap::new(),
            pages: vec![Page { view: View::Processes, selected: None }],
            sorts: [Sort { column: 0, descending: false }; 5],
            filter: String::new(),
            mode: Mode::Table,
            grouping: Grouping::None,
            folded: BTreeSet::new(),
            paused: false,
            interval,
            lines: Vec::new(),
        };
        // Counters keep the order in which they are published.
        this.sorts[3].column = COUNTERS.len();
        // Ranks keep the order of jobs and ranks.
        this.sorts[4].column = WAITS.len();
        this.take(first);
        this
    }

    /// Takes a new look.
    pub(crate) fn take(&mut self, look: Look) {
        self.before = std::mem::replace(&mut self.after, look);
        self.names = self.after.names();
        self.rows = sample::rows(&self.before, &self.after);
        let mut total = [0.0; 2];
        for row in &self.rows {
            let bytes = [row.shm.rates.bytes, row.tcp.rates.bytes];
            push(self.processes.entry(row.pid).or_default(), bytes);
            total = [total[0] + bytes[0], total[1] + bytes[1]];
        }
        push(&mut self.totals, total);
        self.processes.retain(|pid, _| self.after.0.contains_key(pid));
        if let Some(pid) = self.process() {
            for link in self.links_of(pid) {
                push(self.links.entry((link.endpoint, link.number)).or_default(), link.rates.bytes);
            }
        }
        self.refresh();
    }

    /// The process whose page is open.
    pub(crate) fn process(&self) -> Option<u32> {
        match *self.view() {
            View::Processes | View::Collectives | View::Waits => None,
            View::Peers(pid) | View::Endpoints(pid) | View::Link(pid, ..) => Some(pid),
        }
    }

    fn links_of(&self, pid: u32) -> Vec<Link> {
        let after = self.after.0.get(&pid);
        after.map(|after| sample::links(self.before.0.get(&pid), after)).unwrap_or_default()
    }

    /// Computes the lines of the shown page.
    fn refresh(&mut self) {
        self.lines = match *self.view() {
            View::Processes => self.process_lines(),
            View::Peers(pid) => self.peer_lines(pid),
            View::Collectives => self.collective_lines(),
            View::Waits => self.wait_lines(),
            View::Endpoints(pid) => self.after.0.get(&pid).map(endpoint_lines).unwrap_or_default(),
            View::Link(pid, endpoint, number) => {
                let link =
                    self.links_of(pid).into_iter().find(|link| (link.endpoint, link.number) == (endpoint, number));
                link.map(|link| link_lines(&link)).unwrap_or_default()
            }
        };
        if self.grouping == Grouping::None || *self.view() != View::Processes {
            self.sort().apply(&mut self.lines);
        }
    }

    fn process_lines(&self) -> Vec<Line> {
        let width = PROCESSES.iter().find(|head| head.name == TREND).map_or(0, |head| head.width.into());
        let line = |row: &Row| {
            let history = self.processes.get(&row.pid);
            let values = history.into_iter().flatten().map(|[shm, tcp]| shm + tcp);
            let values: Vec<f64> = values.collect();
            let cells = table::process_cells(row, table::spark(values.into_iter(), width));
            Line { id: Id::Process(row.pid), cells, warns: row.failures > 0 }
        };
        let filter = self.filter.to_lowercase();
        let shown = self.rows.iter().map(|row| (row, line(row))).filter(|(_, line)| line.matches(&filter));
        if self.grouping == Grouping::None {
            return shown.map(|(_, line)| line).collect();
        }
        let mut groups: BTreeMap<String, (Vec<&Row>, Vec<Line>)> = BTreeMap::new();
        for (row, line) in shown {
            let (rows, lines) = groups.entry(self.grouping.of(row)).or_default();
            rows.push(row);
            lines.push(line);
        }
        // Groups are sorted by their sums, and lines inside of them.
        let mut heads: Vec<Line> =
            groups.iter().map(|(name, (rows, _))| table::group_line(name, rows, self.folded.contains(name))).collect();
        self.sort().apply(&mut heads);
        let mut lines = Vec::new();
        for head in heads {
            let Id::Group(name) = &head.id else { continue };
            let (_, mut members) = groups.remove(name).unwrap_or_default();
            self.sort().apply(&mut members);
            let folded = self.folded.contains(name);
            lines.push(head);
            lines.extend(members.into_iter().filter(|_| !folded));
        }
        lines
    }

    fn peer_lines(&self, pid: u32) -> Vec<Line> {
        let width = PEERS.iter().find(|head| head.name == TREND).map_or(0, |head| head.width.into());
        let filter = self.filter.to_lowercase();
        let lines = self.links_of(pid).into_iter().map(|link| {
            let history = self.links.get(&(link.endpoint, link.number));
            let values: Vec<f64> = history.into_iter().flatten().copied().collect();
            Line {
                id: Id::Peer(link.endpoint, link.number),
                cells: peer_cells(&link, &self.names, table::spark(values.into_iter(), width)),
                warns: link.peer.calls_failed > 0 && link.peer.links_up == 0,
            }
        });
        lines.filter(|line| line.matches(&filter)).collect()
    }

    fn collective_lines(&self) -> Vec<Line> {
        let filter = self.filter.to_lowercase();
        let lines = self.after.0.values().flat_map(|process| {
            sample::groups(process).enumerate().map(|(number, (published, group))| {
                let [name, member, operation, sequence, _, under_way, awaited, _] =
                    super::super::group_cells(published, group);
                let since = published.age_of(group).as_secs_f64();
                let cells = vec![
                    Cell::identifier(Some(process.pid.into())),
                    Cell::text(name),
                    Cell::text(member),
                    Cell::text(operation),
                    Cell { text: sequence, key: table::Key::Text(format!("{:>20}", group.sequence)) },
                    Cell::text(render::byte_count(group.block_bytes)),
                    Cell::text(under_way),
                    Cell::shown(since, format!("{since:.1} s")),
                    Cell::text(awaited),
                ];
                Line { id: Id::Collective(process.pid, number), cells, warns: false }
            })
        });
        lines.filter(|line| line.matches(&filter)).collect()
    }

    fn wait_lines(&self) -> Vec<Line> {
        let filter = self.filter.to_lowercase();
        let jobs = why::jobs(&self.before, &self.after, None);
        let lines = jobs.iter().enumerate().flat_map(|(job_place, job)| {
            job.lines().enumerate().map(move |(place, line)| {
                let cells = vec![
                    Cell::identifier(line.pid.map(u64::from)),
                    Cell::identifier(line.rank),
                    Cell::text(line.state),
                    Cell::shown(line.since_s, format!("{:.1} s", line.since_s)),
                    Cell::text(job.name().to_owned()),
                    Cell::text(line.found),
                    Cell::text(line.call),
                ];
                Line { id: Id::Wait(job_place, place), cells, warns: !line.found.is_empty() }
            })
        });
        lines.filter(|line| line.matches(&filter)).collect()
    }

    pub(crate) fn view(&self) -> &View {
        // The page of processes is never closed.
        self.pages.last().map_or(&View::Processes, |page| &page.view)
    }

    pub(crate) fn heads(&self) -> &'static [Head] {
        match self.view() {
            View::Processes => PROCESSES,
            View::Peers(_) => PEERS,
            View::Collectives => COLLECTIVES,
            View::Waits => WAITS,
            View::Endpoints(_) | View::Link(..) => COUNTERS,
        }
    }

    fn kind(&self) -> usize {
        match self.view() {
            View::Processes => 0,
            View::Peers(_) => 1,
            View::Collectives => 2,
            View::Endpoints(_) | View::Link(..) => 3,
            View::Waits => 4,
        }
    }

    pub(crate) fn sort(&self) -> Sort {
        self.sorts[self.kind()]
    }

    /// Sorts by this column, or in the other direction if that was so.
    pub(crate) fn sort_by(&mut self, column: usize) {
        let kind = self.kind();
        self.sorts[kind] = self.sorts[kind].chosen(self.heads(), column);
        self.refresh();
    }

    /// Sorts by the next or previous column.
    pub(crate) fn sort_next(&mut self, forward: bool) {
        let count = self.heads().len();
        let column = self.sort().column.min(count - 1);
        self.sort_by((column + if forward { 1 } else { count - 1 }) % count);
    }

    /// Reverses the order.
    pub(crate) fn reverse(&mut self) {
        let sort = &mut self.sorts[self.kind()];
        sort.descending = !sort.descending;
        self.refresh();
    }

    pub(crate) fn group_next(&mut self) {
        self.grouping = self.grouping.next();
        self.folded.clear();
        self.refresh();
    }

    pub(crate) const fn grouping(&self) -> Grouping {
        self.grouping
    }

    pub(crate) fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// The number of the selected line. A line that has disappeared leaves the selection to the first one.
    pub(crate) fn selected(&self) -> usize {
        let id = self.pages.last().and_then(|page| page.selected.as_ref());
        id.and_then(|id| self.lines.iter().position(|line| line.id == *id)).unwrap_or(0)
    }

    /// Selects a line by its number, at most the last one.
    pub(crate) fn select(&mut self, number: usize) {
        let id = self.lines.get(number.min(self.lines.len().saturating_sub(1))).map(|line| line.id.clone());
        if let Some(page) = self.pages.last_mut() {
            page.selected = id;
        }
    }

    /// Opens the selected line: the peers of a process, or the counters of a link. A group is folded or unfolded.
    pub(crate) fn open(&mut self) {
        let Some(line) = self.lines.get(self.selected()) else { return };
        let view = match (&line.id, self.view()) {
            (Id::Group(name), _) => {
                let name = name.clone();
                if !self.folded.remove(&name) {
                    self.folded.insert(name);
                }
                self.refresh();
                return;
            }
            (Id::Process(pid) | Id::Collective(pid, _), _) => View::Peers(*pid),
            (Id::Peer(endpoint, number), View::Peers(pid)) => View::Link(*pid, *endpoint, *number),
            _ => return,
        };
        self.select(self.selected());
        self.push(view);
    }

    /// Opens the counters of the endpoints of the shown or selected process.
    pub(crate) fn open_endpoints(&mut self) {
        let selected = self.lines.get(self.selected()).map(|line| line.id.clone());
        let pid = match (self.view(), selected) {
            (View::Endpoints(_), _) => None,
            (_, Some(Id::Process(pid))) => Some(pid),
            _ => self.process(),
        };
        if let Some(pid) = pid {
            self.push(View::Endpoints(pid));
        }
    }

    /// Opens the collectives under way.
    pub(crate) fn open_collectives(&mut self) {
        if *self.view() != View::Collectives {
            self.push(View::Collectives);
        }
    }

    /// Opens the waits of all ranks.
    pub(crate) fn open_waits(&mut self) {
        if *self.view() != View::Waits {
            self.push(View::Waits);
        }
    }

    fn push(&mut self, view: View) {
        if matches!(view, View::Peers(_) | View::Collectives | View::Waits) {
            self.links.clear();
            self.filter.clear();
        }
        self.pages.push(Page { view, selected: None });
        self.refresh();
    }

    /// Closes the page, or removes the filter of the first one.
    pub(crate) fn back(&mut self) {
        if self.pages.len() > 1 {
            self.pages.pop();
        }
        self.filter.clear();
        self.refresh();
    }

    pub(crate) fn filter(&self) -> &str {
        &self.filter
    }

    /// Changes the filter.
    pub(crate) fn edit_filter(&mut self, edit: impl FnOnce(&mut String)) {
        edit(&mut self.filter);
        self.refresh();
    }

    pub(crate) const fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) const fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    pub(crate) const fn paused(&self) -> bool {
        self.paused
    }

    pub(crate) const fn pause(&mut self) {
        self.paused = !self.paused;
    }

    pub(crate) const fn interval(&self) -> Duration {
        self.interval
    }

    /// Multiplies the interval, between a tenth of a second and a minute.
    pub(crate) fn scale_interval(&mut self, factor: f64) {
        self.interval = Duration::from_secs_f64((self.interval.as_secs_f64() * factor).clamp(0.1, 60.0));
    }

    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The figures of a process.
    pub(crate) fn row(&self, pid: u32) -> Option<&Row> {
        self.rows.iter().find(|row| row.pid == pid)
    }

    /// The history of all processes, or of the one whose page is open.
    pub(crate) fn history(&self) -> Option<&History> {
        match self.process() {
            Some(pid) => self.processes.get(&pid),
            None => Some(&self.totals),
        }
    }

    /// The heading of the page: what the lines belong to.
    pub(crate) fn heading(&self) -> String {
        let Some(pid) = self.process() else {
            let heading = match self.view() {
                View::Collectives => "collectives under way",
                View::Waits => "what the ranks wait for",
                _ => "processes",
            };
            return heading.to_owned();
        };
        let Some(row) = self.row(pid) else { return format!("process {pid} has ended, or closed its endpoints") };
        let rank = match (row.rank, row.size) {
            (Some(rank), Some(size)) => format!(", rank {rank} of {size}"),
            (Some(rank), None) => format!(", rank {rank}"),
            _ => String::new(),
        };
        let process = format!("process {pid}{rank}");
        match self.view() {
            View::Link(_, endpoint, number) => {
                let links = self.links_of(pid);
                let link = links.iter().find(|link| (&link.endpoint, &link.number) == (endpoint, number));
                let peer = link.map(|link| self.names.full_label(&link.peer)).unwrap_or_default();
                format!("{process} → {peer}")
            }
            View::Endpoints(_) => format!("{process}: {} endpoint(s)", row.endpoints),
            _ => format!("{process} on {}: {}", row.host, row.command),
        }
    }
}

fn push<T>(history: &mut VecDeque<T>, value: T) {
    history.push_back(value);
    while history.len() > HISTORY {
        history.pop_front();
    }
}

/// The cells of a peer.
fn peer_cells(link: &Link, names: &Names, trend: String) -> Vec<Cell> {
    let peer = &link.peer;
    let Rates { messages_sent, messages_received, bytes, stalls, .. } = link.rates;
    let sum = |numbers: &[u64]| numbers.iter().fold(0_u64, |sum, number| sum.saturating_add(*number));
    #[allow(clippy::cast_precision_loss)] // Counts stay far below 2⁵³.
    let total = sum(&[peer.bytes_sent, peer.bytes_received, peer.access_bytes_sent, peer.access_bytes_received]) as f64;
    // Ranks come first, in the order of their numbers.
    let rank = names.process(peer).and_then(|known| known.rank);
    let label = names.label(peer);
    let key = rank.map_or_else(|| label.clone(), |rank| format!(" {rank:>20}"));
    vec![
        Cell { text: label, key: table::Key::Text(key) },
        Cell::text(peer.device_name().unwrap_or_else(|| peer.state_name().to_owned())),
        Cell::number(messages_sent),
        Cell::number(messages_received),
        Cell::bytes(bytes),
        Cell { text: trend, key: table::Key::Number(bytes) },
        Cell::number(stalls),
        Cell::count(link.waiting()),
        Cell::count(peer.messages_sent),
        Cell::count(peer.messages_received),
        Cell::bytes(total),
        Cell::count(sum(&[peer.accesses_sent, peer.accesses_received])),
        Cell::identifier(names.process(peer).map(|known| known.pid.into())),
        Cell::text(names.host(peer)),
    ]
}

fn counter_lines<'a>(
    fields: &'a [(&'a str, &'a str)],
    words: impl Iterator<Item = (u64, Option<f64>)> + 'a,
) -> impl Iterator<Item = Line> + 'a {
    let named = fields.iter().zip(words).enumerate();
    named.filter(|(_, ((name, _), _))| !PUBLISHED_OTHERWISE.contains(name)).map(
        |(number, ((name, help), (value, rate)))| {
            let bytes = is_bytes(name);
            #[allow(clippy::cast_precision_loss)] // Counts stay far below 2⁵³.
            let exact = value as f64;
            let shown = if bytes { render::byte_count(value) } else { render::count(value) };
            let rate = match rate {
                None => Cell::text(""),
                Some(rate) if bytes => Cell::bytes(rate),
                Some(rate) => Cell::number(rate),
            };
            let cells = vec![Cell::text(*name), Cell::shown(exact, shown), rate, Cell::text(*help)];
            Line { id: Id::Counter(number), cells, warns: false }
        },
    )
}

/// The counters of a link.
fn link_lines(link: &Link) -> Vec<Line> {
    // A gauge rises and falls, so it has no rate.
    let gauge = |number: usize| ["waiting", "outstanding"].contains(&Peer::FIELDS[number].0);
    let rates = link.peer.words().zip(link.before.words()).enumerate().map(|(number, (word, before))| {
        #[allow(clippy::cast_precision_loss)] // Counts stay far below 2⁵³.
        let rate = (link.seconds > 0.0).then(|| word.saturating_sub(before) as f64 / link.seconds);
        (word, rate.filter(|_| !gauge(number)))
    });
    let mut lines: Vec<Line> = counter_lines(Peer::FIELDS, rates).collect();
    let device = link.peer.device_name().unwrap_or_else(|| "no link".to_owned());
    // MPI libraries number the addresses by rank, as a rule.
    let address =
        if link.peer.address == u64::MAX { String::new() } else { format!(", address {}", link.peer.address) };
    lines.insert(0, heading(0, format!("{}{address}, {device}, {}", link.peer.name(), link.peer.state_name())));
    lines
}

/// A line of one text.
fn heading(number: usize, text: String) -> Line {
    let empty = || Cell::text("");
    Line { id: Id::Group(number.to_string()), cells: vec![Cell::text(text), empty(), empty(), empty()], warns: false }
}

/// The counters of a process's endpoints, one after the other.
fn endpoint_lines(process: &Process) -> Vec<Line> {
    let mut lines = Vec::new();
    for (number, published) in process.endpoints.iter().enumerate() {
        let first = number * (Endpoint::FIELDS.len() + 1);
        lines.push(heading(number, format!("endpoint {}", published.endpoint.name())));
        let words = published.endpoint.words().map(|word| (word, None));
        lines.extend(counter_lines(Endpoint::FIELDS, words).map(|line| match line.id {
            Id::Counter(at) => Line { id: Id::Counter(first + at), ..line },
            _ => line,
        }));
    }
    lines
}
