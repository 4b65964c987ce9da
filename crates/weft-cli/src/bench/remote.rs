//! The client's side of a measurement between two hosts: the control connection to `weft bench serve`, and the rank
//! that the server starts.
//!
//! Place in the data flow: `launch` starts rank 0 here and rank 1 through a [`Control`]. The connection carries lines
//! of JSON. Both sides greet with the version of this protocol. The messages of a measurement are
//! [`FromClient::Start`], the lines of the server's child ([`FromServer::Said`]), the addresses of both ranks, and
//! [`FromClient::End`]. [`FromServer::Closed`] ends it in every case. Measured data never uses this connection.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::flows;
use super::job::{Job, ToParent};
use super::launch::{Event, GRACE};
use crate::foreign::show_all;

/// The version of the control protocol. Changes with every change of [`Job`] or of the messages here.
pub(super) const PROTOCOL: u32 = 2;
/// The port of `weft bench serve`.
pub(crate) const PORT: u16 = 18717;
/// Time for the connection, and for the greeting as a whole.
pub(super) const GREETING: Duration = Duration::from_secs(5);
/// Longest line that is accepted.
const LINE_BYTES: u64 = 1 << 20;
/// Time that the server has for a child beyond that of the measurement.
const MARGIN: Duration = Duration::from_secs(15);

/// The first line of a client.
#[derive(Serialize, Deserialize)]
pub(super) struct Greeting {
    /// The version of the protocol.
    pub(super) weft_bench: u32,
    /// The version of the program.
    pub(super) version: String,
}

impl Greeting {
    pub(super) fn ours() -> Self {
        Self { weft_bench: PROTOCOL, version: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

/// The answer of a server to the greeting.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// The client may start measurements.
    Welcome(Welcome),
    /// The client is not served, for this reason.
    Refused(String),
}

/// A server that serves.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// The name of its host.
    pub(crate) host: String,
    /// The version of its libfabric.
    pub(crate) libfabric: (u32, u32),
}

/// A client's messages after the greeting.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FromClient {
    /// Starts rank 1 of a measurement with these variables. The server sets paths, cores and process ids itself.
    Start(Box<Job>, Vec<(String, String)>),
    /// A line for the rank's standard input: the addresses of both ranks.
    Line(String),
    /// The rank shall end.
    End,
    /// Connections without a rank.
    Flows(flows::Wish),
}

/// A server's messages after the greeting.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FromServer {
    /// A message of the rank.
    Said(ToParent),
    /// The rank has closed its output. The text is the last line of its standard error.
    Closed(String),
    /// An answer to [`FromClient::Flows`].
    Flows(flows::Answer),
}

/// Sends a message as one line.
pub(super) fn send(mut stream: &TcpStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_string(message)?;
    line.push('\n');
    stream.write_all(line.as_bytes())
}

/// Receives a message. Its texts are fit to be shown.
pub(super) fn receive<T: DeserializeOwned>(reader: &mut impl BufRead) -> io::Result<T> {
    let mut line = String::new();
    reader.take(LINE_BYTES).read_line(&mut line)?;
    if !line.ends_with('\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_value(show_all(serde_json::from_str(&line)?))?)
}

/// Receives a message, which must be complete within this time, however slowly its bytes come.
pub(super) fn receive_within<T: DeserializeOwned>(reader: &mut Reader, limit: Duration) -> io::Result<T> {
    reader.get_mut().set_limit(limit);
    receive(reader)
}

/// The receiving side of a control connection.
pub(super) type Reader = BufReader<Timed>;

/// A connection from which nothing is read after a point in time.
pub(super) struct Timed {
    stream: TcpStream,
    until: Instant,
}

impl Timed {
    /// A reader of the connection. Its time must be set before the first read.
    pub(super) fn reader(stream: &TcpStream) -> io::Result<Reader> {
        Ok(BufReader::new(Self { stream: stream.try_clone()?, until: Instant::now() }))
    }

    /// Sets the time.
    pub(super) fn set_limit(&mut self, limit: Duration) {
        self.until = Instant::now() + limit;
    }
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(bytes)
    }
}

/// A host and a port, as `--to` names them. The host may be an IPv6 address, in brackets if a port follows.
fn host_and_port(text: &str) -> (&str, u16) {
    let with_port = text.rsplit_once(':').filter(|(host, _)| text.parse::<IpAddr>().is_err() && !host.is_empty());
    let (host, port) = match with_port.and_then(|(host, port)| Some((host, port.parse().ok()?))) {
        Some(both) => both,
        None => (text, PORT),
    };
    (host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host), port)
}

/// The connection to a server, for all measurements of a run.
pub(crate) struct Control {
    /// The server, as messages name it.
    pub(crate) name: String,
    pub(crate) welcome: Welcome,
    stream: TcpStream,
    reader: Arc<Mutex<Reader>>,
}

impl Control {
    /// Connects to the server that `--to` names. The error has cause and remedy.
    pub(crate) fn connect(to: &str) -> Result<Self, String> {
        let (host, port) = host_and_port(to);
        let name = format!("{host}:{port}");
        let addresses: Vec<SocketAddr> = (host, port)
            .to_socket_addrs()
            .map_err(|error| format!("{host} has no address: {error}; --to takes HOST or HOST:PORT"))?
            .collect();
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in addresses {
            match TcpStream::connect_timeout(&address, GREETING) {
                Ok(stream) => return Self::greet(name, stream),
                Err(error) => last = error,
            }
        }
        Err(format!(
            "cannot connect to {name}: {last}; start `weft bench serve --port {port}` on {host}, and let its firewall \
             accept the port"
        ))
    }

    fn greet(name: String, stream: TcpStream) -> Result<Self, String> {
        let talk = || -> io::Result<(Reader, Answer)> {
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(GREETING))?;
            send(&stream, &Greeting::ours())?;
            let mut reader = Timed::reader(&stream)?;
            let answer = receive_within(&mut reader, GREETING)?;
            Ok((reader, answer))
        };
        match talk() {
            Ok((reader, Answer::Welcome(welcome))) => {
                Ok(Self { name, welcome, stream, reader: Arc::new(Mutex::new(reader)) })
            }
            Ok((_, Answer::Refused(why))) => Err(format!("{name} refuses: {why}")),
            Err(error) => Err(format!(
                "{name} does not answer as `weft bench serve` of weft {} does ({error}); check the port, and that both \
                 hosts have the same version of weft",
                env!("CARGO_PKG_VERSION")
            )),
        }
    }

    /// The connection itself.
    pub(super) const fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The addresses of the connection's ends: this host's, then the server's.
    pub(crate) fn ends(&self) -> io::Result<[SocketAddr; 2]> {
        Ok([self.stream.local_addr()?, self.stream.peer_addr()?])
    }

    /// Uses the receiving side, while no rank runs.
    pub(super) fn with_reader<R>(&self, receive: impl FnOnce(&mut Reader) -> R) -> R {
        receive(&mut self.reader.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts a rank on the server. Its messages become events.
    pub(super) fn start(
        &self,
        job: &Job,
        env: &[(String, String)],
        events: Sender<(usize, Event)>,
    ) -> io::Result<RemoteRank> {
        let limit = Duration::from_secs(job.timeout_s as u64) + MARGIN;
        let stream = self.stream.try_clone()?;
        send(&stream, &FromClient::Start(Box::new(job.clone()), env.to_vec()))?;
        let (reader, rank, name) = (Arc::clone(&self.reader), job.rank, self.name.clone());
        let listener = Builder::new().spawn(move || {
            let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
            reader.get_mut().set_limit(limit);
            let last_words = listen(&mut *reader, &name, rank, &events);
            // The receiver is gone when the measurement is over.
            let _ = events.send((rank, Event::Closed));
            last_words
        })?;
        Ok(RemoteRank { stream, open: true, listener: Some(listener) })
    }
}

/// Passes the messages of a rank on until it is closed. Returns its last words.
fn listen(reader: &mut impl BufRead, name: &str, rank: usize, events: &Sender<(usize, Event)>) -> String {
    loop {
        match receive(reader) {
            Ok(FromServer::Said(message)) => {
                let _ = events.send((rank, Event::Message(message)));
            }
            Ok(FromServer::Flows(_)) => return format!("is lost: {name} answers out of turn"),
            Ok(FromServer::Closed(words)) if words.is_empty() => return format!("on {name} ended early"),
            Ok(FromServer::Closed(words)) => return format!("on {name} ended early: {words}"),
            Err(error) => return format!("is lost: the connection to {name} broke ({error})"),
        }
    }
}

/// A rank that the server has started. Dropping it ends the rank's process.
pub(super) struct RemoteRank {
    stream: TcpStream,
    /// Whether the rank has not been told to end.
    open: bool,
    listener: Option<JoinHandle<String>>,
}

impl RemoteRank {
    /// Passes a line to the rank's standard input. An error shows as the end of the rank.
    pub(super) fn tell(&self, line: &str) {
        let _ = send(&self.stream, &FromClient::Line(line.to_owned()));
    }

    /// Closes the rank's standard input, upon which it ends.
    pub(super) fn close(&mut self) {
        if std::mem::take(&mut self.open) {
            let _ = send(&self.stream, &FromClient::End);
        }
    }

    /// Waits for the end of the process, at most until `end`.
    pub(super) fn await_end(&self, end: Instant) {
        while self.listener.as_ref().is_some_and(|listener| !listener.is_finished()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Describes how the rank ended.
    pub(super) fn last_words(&mut self) -> String {
        self.await_end(Instant::now() + GRACE);
        match self.listener.take_if(|listener| listener.is_finished()) {
            Some(listener) => listener.join().unwrap_or_default(),
            None => "closed its output".to_owned(),
        }
    }
}

impl Drop for RemoteRank {
    fn drop(&mut self) {
        self.close();
        // The server gives its child the same time twice: after the end of its input, and after SIGTERM.
        self.await_end(Instant::now() + 3 * GRACE);
        if let Some(listener) = self.listener.take() {
            if !listener.is_finished() {
                // Later measurements fail at once, with the reason.
                let _ = self.stream.shutdown(std::net::Shutdown::Both);
            }
            let _ = listener.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_ports_or_the_usual_one() {
        for (text, host, port) in [
            ("node2", "node2", PORT),
            ("node2:7", "node2", 7),
            ("10.0.0.2:99", "10.0.0.2", 99),
            ("fd77::2", "fd77::2", PORT),
            ("[fd77::2]", "fd77::2", PORT),
            ("[fd77::2]:80", "fd77::2", 80),
        ] {
            assert_eq!(host_and_port(text), (host, port), "{text}");
        }
    }

    #[test]
    fn lines_have_an_end_and_a_limit() {
        assert_eq!(receive::<u32>(&mut &b"7\n8\n"[..]).expect("a number"), 7);
        assert!(receive::<u32>(&mut &b"7"[..]).is_err_and(|error| error.kind() == io::ErrorKind::UnexpectedEof));
        assert!(receive::<u32>(&mut &b"x\n"[..]).is_err());
        let long = vec![b' '; usize::try_from(LINE_BYTES).expect("small") + 1];
        assert!(receive::<u32>(&mut &long[..]).is_err());
    }
}
