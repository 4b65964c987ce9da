//! `weft bench serve`: starts rank 1 of the measurements that a client on another host asks for.
//!
//! Place in the data flow: the other end of `remote`'s control connection. One client is served at a time, since two
//! would disturb each other. A child ends with its client's connection and with this process.
//!
//! A client chooses the measurement and variables `FI_*` that name no file. Programs, libraries, paths and cores are
//! this host's own, and all numbers have limits. Nothing else protects the port, so it is open only while this program
//! runs.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, ScopedJoinHandle};
use std::time::{Duration, Instant};

use clap::Args;

use super::job::{Job, ToParent};
use super::kinds::pair::Layout;
use super::launch::{Complaints, Event, GRACE, LocalRank};
use super::options::{LONGEST, MOST_WINDOW};
use super::places::Host;
use super::remote::{self, Answer, FromClient, FromServer, GREETING, Greeting, PROTOCOL, Reader, Timed, Welcome};
use super::subject::{Floor, Subject};
use super::{cleanup, cores, flows};

/// Time after which a silent client is given up.
const IDLE: Duration = Duration::from_secs(60);
/// Most threads of a rank.
const MOST_THREADS: usize = 64;
/// Deepest queue.
const MOST_DEPTH: usize = 1 << 20;
/// Most bytes for the buffers of a rank: those of one thread with the longest messages.
const MOST_MEMORY: u64 = (2 * LONGEST as u64) + (64 << 20);
/// Most clients that are greeted at a time, with the one that is served.
const MOST_GUESTS: usize = 64;
/// Longest time limit of a measurement.
const LONGEST_S: usize = 3600;

/// Serves measurements between two hosts: `weft bench KIND --to` this host starts them on the other one.
///
/// One client is served at a time. Each client may choose variables FI_* of the measured providers; everything else is
/// chosen here. Any host that reaches the port may measure, so end the command when it is no longer needed.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServeOptions {
    /// The address to listen at [default: all addresses]
    #[arg(long, value_name = "ADDRESS")]
    addr: Option<IpAddr>,
    /// The TCP port to listen at; 0: a free one
    #[arg(long, default_value_t = remote::PORT)]
    port: u16,
    /// The libfabric to load [default: the newest one found]
    #[arg(long, value_name = "PATH")]
    libfabric: Option<PathBuf>,
    /// Cores to use, by number [default: all cores of this process, one per physical core first]
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
}

/// The unchanging part of a server.
struct Server {
    host: Host,
    cores: Vec<usize>,
    /// The client that is served.
    client: Mutex<Option<SocketAddr>>,
    /// Number of clients that have a thread.
    guests: AtomicUsize,
}

/// Serves until the process is interrupted.
pub(crate) fn run(options: &ServeOptions, out: &mut impl Write) -> io::Result<ExitCode> {
    match prepare(options) {
        Err(complaint) => {
            eprintln!("weft bench serve: {complaint}");
            Ok(ExitCode::from(2))
        }
        Ok((server, listener)) => {
            cleanup::begin();
            let (major, minor) = server.host.version;
            // One write, so that a reader that leaves after the first line does not end the server.
            let text = format!(
                "weft bench serve: listening at {}, libfabric {major}.{minor} ({})\non the other host: weft bench \
                 pingpong --to {}:{}\n",
                listener.local_addr()?,
                server.host.library.display(),
                host_name(),
                listener.local_addr()?.port()
            );
            out.write_all(text.as_bytes())?;
            out.flush()?;
            let server = Arc::new(server);
            loop {
                match listener.accept() {
                    Ok((stream, from)) => attend(&server, stream, from),
                    // The client has gone, or descriptors are short for the moment.
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
        }
    }
}

/// Serves a client in a thread of its own. Without room for another thread the client is told so.
fn attend(server: &Arc<Server>, stream: TcpStream, from: SocketAddr) {
    let Ok(kept) = stream.try_clone() else { return };
    let Some(guest) = Guest::enter(server) else {
        return refuse(&kept, "many clients are greeting it; try again in some seconds".to_owned());
    };
    let served = Builder::new().spawn(move || {
        // A client that goes away ends its part; the next one may come.
        let _ = guest.0.serve(&stream, from);
    });
    if let Err(error) = served {
        refuse(&kept, format!("it cannot start a thread: {error}; raise the limits of its memory and processes there"));
    }
}

/// Tells a client why it is not served, as far as possible without waiting.
fn refuse(stream: &TcpStream, why: String) {
    let _ = stream.set_write_timeout(Some(Duration::from_millis(10)));
    let _ = remote::send(stream, &Answer::Refused(why));
}

/// A client that has a thread.
struct Guest(Arc<Server>);

impl Guest {
    /// Counts a client. `None`: there are too many.
    fn enter(server: &Arc<Server>) -> Option<Self> {
        let guest = Self(Arc::clone(server));
        (server.guests.fetch_add(1, Ordering::Relaxed) < MOST_GUESTS).then_some(guest)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.guests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The client that is served, until this is dropped.
struct Served<'a>(&'a Server);

impl Drop for Served<'_> {
    fn drop(&mut self) {
        *self.0.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn prepare(options: &ServeOptions) -> Result<(Server, TcpListener), String> {
    let cores = cores::choose(&options.cores)?;
    let weft: Subject = "weft".parse()?;
    let host = Host::find(options.libfabric.as_deref(), &[weft])?;
    let listener = match options.addr {
        Some(addr) => TcpListener::bind((addr, options.port)),
        // A host without IPv6 has no such address.
        None => TcpListener::bind((Ipv6Addr::UNSPECIFIED, options.port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, options.port))),
    };
    let listener = listener.map_err(|error| {
        format!("cannot listen at port {}: {error}; choose another one with --port, and give it to --to", options.port)
    })?;
    Ok((Server { host, cores, client: Mutex::new(None), guests: AtomicUsize::new(0) }, listener))
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

impl Server {
    /// Serves a client until it closes the connection.
    fn serve(&self, stream: &TcpStream, from: SocketAddr) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(IDLE))?;
        let mut reader = Timed::reader(stream)?;
        let Greeting { weft_bench, version } = remote::receive_within(&mut reader, GREETING)?;
        if weft_bench != PROTOCOL {
            let us = env!("CARGO_PKG_VERSION");
            let why = format!("it is weft {us}, and this is weft {version}; install the same version on both hosts");
            return remote::send(stream, &Answer::Refused(why));
        }
        if let Some(other) = self.claim(from) {
            let why = format!("it serves {other}; try again when that measurement is over");
            return remote::send(stream, &Answer::Refused(why));
        }
        let _served = Served(self);
        self.measure_all(stream, &mut reader)
    }

    /// Makes `from` the client that is served. Returns the present one, if there is any.
    fn claim(&self, from: SocketAddr) -> Option<SocketAddr> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if client.is_none() {
            *client = Some(from);
            return None;
        }
        *client
    }

    fn measure_all(&self, stream: &TcpStream, reader: &mut Reader) -> io::Result<()> {
        let welcome = Welcome { host: host_name(), libfabric: self.host.version };
        remote::send(stream, &Answer::Welcome(welcome))?;
        loop {
            match remote::receive_within(reader, IDLE)? {
                FromClient::Start(job, env) => self.measure(stream, reader, &job, env)?,
                FromClient::Flows(wish) => flows::serve(stream, wish)?,
                // Lines for a rank that has ended are without effect.
                FromClient::Line(_) | FromClient::End => {}
            }
        }
    }

    /// Makes one measurement: starts the rank, and passes lines between it and the client.
    fn measure(
        &self,
        stream: &TcpStream,
        reader: &mut Reader,
        job: &Job,
        env: Vec<(String, String)>,
    ) -> io::Result<()> {
        let refuse = |message: ToParent| {
            remote::send(stream, &FromServer::Said(message))?;
            remote::send(stream, &FromServer::Closed(String::new()))
        };
        if let Err(why) = permitted(job, &env) {
            return refuse(ToParent::Failed(format!("the server refuses {why}")));
        }
        let subject = Subject { env, ..Subject::remote(&job.provider, job.floor) };
        if let Some(why) = self.host.refuses(&subject) {
            return refuse(ToParent::NotOffered(format!("on {}: {why}", host_name())));
        }
        reader.get_mut().set_limit(Duration::from_secs(job.timeout_s as u64) + IDLE);
        let listen = stream.local_addr()?.ip().to_canonical();
        let job = Job {
            library: self.host.library.clone(),
            cores: self.cores.clone(),
            others_cores: self.cores.clone(),
            parent: std::process::id(),
            listen: Some(listen),
            ..job.clone()
        };
        let (events, inbox) = channel();
        let mut rank = match LocalRank::start(&job.of_rank(1), &subject, &self.host, events) {
            Ok(rank) => rank,
            Err(error) => return refuse(ToParent::Failed(format!("the server cannot start a process: {error}"))),
        };
        let (complaints, over) = (rank.complaints(), &AtomicBool::new(false));
        let ended = std::thread::scope(|scope| {
            let relay = Builder::new().spawn_scoped(scope, move || relay(stream, &inbox, &complaints, over));
            let end = loop {
                if let Err(error) = &relay {
                    break refuse(ToParent::Failed(format!("the server cannot start a thread: {error}")));
                }
                match remote::receive(reader) {
                    Ok(FromClient::Line(line)) => rank.tell(&line),
                    Ok(FromClient::End | FromClient::Start(..) | FromClient::Flows(_)) => break Ok(()),
                    Err(error) => break Err(error),
                }
            };
            over.store(true, Ordering::SeqCst);
            rank.close();
            rank.await_end(Instant::now() + GRACE);
            drop(rank);
            let _ = relay.map(ScopedJoinHandle::join);
            end
        });
        cleanup::files_left();
        ended
    }
}

/// Passes the messages of a rank to the client, and at last that it has closed its output. A client that is gone is
/// noticed where its messages are read.
fn relay(stream: &TcpStream, inbox: &Receiver<(usize, Event)>, complaints: &Complaints, over: &AtomicBool) {
    while let Ok((_, Event::Message(message))) = inbox.recv() {
        let _ = remote::send(stream, &FromServer::Said(message));
    }
    let early = !over.load(Ordering::SeqCst);
    if early {
        // The last line may still be on its way.
        std::thread::sleep(Duration::from_millis(50));
    }
    let words = complaints.last().filter(|_| early).unwrap_or_default();
    let _ = remote::send(stream, &FromServer::Closed(words));
}

/// Checks a client's wishes. The error names what is refused.
fn permitted(job: &Job, env: &[(String, String)]) -> Result<(), String> {
    let Job { case, floor, provider, .. } = job;
    if !case.kind.is_between_hosts() || !matches!(floor, None | Some(Floor::Tcp)) || case.wire_us > 0 {
        return Err("a measurement that is not made between hosts".to_owned());
    }
    let bounds = [
        ("the size", case.size, LONGEST),
        ("the number of threads", case.threads, MOST_THREADS),
        ("the depth", case.number, MOST_DEPTH),
        ("the window", job.window, MOST_WINDOW),
        ("the time limit", job.timeout_s, LONGEST_S),
        ("the duration", job.sample_ms, LONGEST_S * 1000),
    ];
    if let Some((what, value, most)) = bounds.iter().find(|(_, value, most)| value > most) {
        return Err(format!("{what} {value}: the limit is {most}"));
    }
    if job.ranks != 2 || case.threads == 0 || job.window == 0 || case.size == 0 {
        return Err("a measurement of nothing".to_owned());
    }
    let (threads, window) = (case.threads as u64, u32::try_from(job.window).unwrap_or(u32::MAX));
    let memory = threads.saturating_mul(Layout::new(case.size, window).bytes() as u64);
    if memory > MOST_MEMORY {
        return Err(format!(
            "{threads} threads with messages of {} bytes: their buffers take {} MiB, and the limit is {} MiB",
            case.size,
            memory >> 20,
            MOST_MEMORY >> 20
        ));
    }
    if case.threads.saturating_mul(case.number) > MOST_DEPTH {
        return Err(format!(
            "{threads} threads with a depth of {} each: the limit is {MOST_DEPTH} together",
            case.number
        ));
    }
    if !provider.chars().all(|char| char.is_ascii_alphanumeric() || "_;-".contains(char)) {
        return Err(format!("the provider {provider:?}"));
    }
    let forbidden = |name: &str| {
        !name.starts_with("FI_")
            || name.starts_with("FI_PROVIDER")
            || name.contains(['=', '\0'])
            || name.contains("PATH")
    };
    match env.iter().find(|(name, value)| forbidden(name) || value.contains(['\0', '/'])) {
        Some((name, _)) => Err(format!("the variable {name}: only FI_* are passed on, except paths; set it there")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::tests::job;
    use super::super::options::Kind;
    use super::super::plan::Case;
    use super::*;

    #[test]
    fn wishes_have_limits() {
        let sound = job(Kind::Pingpong);
        let env = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        assert_eq!(permitted(&sound, &env("FI_WEFT_SHM", "0")), Ok(()));
        for (name, value) in
            [("LD_PRELOAD", "x"), ("FI_PROVIDER_PATH", "x"), ("FI_X", "/tmp/x"), ("PATH", "x"), ("FI_A=B", "1")]
        {
            assert!(permitted(&sound, &env(name, value)).is_err(), "{name}");
        }
        let largest = Job { case: Case { size: LONGEST, ..sound.case.clone() }, window: MOST_WINDOW, ..sound.clone() };
        assert_eq!(permitted(&largest, &[]), Ok(()));
        for unsound in [
            Job { window: MOST_WINDOW + 1, ..sound.clone() },
            Job { ranks: 3, ..sound.clone() },
            Job { provider: "a b".to_owned(), ..sound.clone() },
            Job { floor: Some(Floor::Memcpy), ..sound.clone() },
            job(Kind::Collective),
            // Each number is within its limit, and their product is not.
            Job { case: Case { size: LONGEST, threads: 2, ..sound.case.clone() }, ..sound.clone() },
            Job {
                case: Case { size: 16 << 20, threads: MOST_THREADS, ..sound.case.clone() },
                window: MOST_WINDOW,
                ..sound.clone()
            },
            Job { case: Case { threads: 2, number: MOST_DEPTH, ..sound.case.clone() }, ..sound.clone() },
        ] {
            assert!(permitted(&unsound, &[]).is_err());
        }
    }
}
