//! Plain TCP connections between this host and one that runs `weft bench serve`: whether they pass in both directions,
//! and what one and several of them carry.
//!
//! Place in the data flow: `weft doctor --to` asks through a [`Control`], and [`serve`] is the server's part. weft's
//! endpoints listen at ports that the kernel chooses, so the connections here use such ports as well. The server
//! connects to the address of its client only.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::Builder;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::remote::{self, Control, FromClient, FromServer, Reader};

/// Time for one connection.
const CONNECT: Duration = Duration::from_secs(3);
/// Time for which a rate is measured.
const MEASURED: Duration = Duration::from_millis(700);
/// Time after which a silent connection is given up.
const SILENCE: Duration = Duration::from_secs(5);
/// Most connections of one measurement.
pub(super) const MOST_FLOWS: u8 = 16;
/// Bytes of one write.
const PIECE_BYTES: usize = 256 << 10;

/// A task for the server.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Wish {
    /// Accept this number of connections, and count their bytes until they end.
    Accept(u8),
    /// Connect to this port of the client.
    CallBack(u16),
}

/// The server's answers. One to each [`Wish::CallBack`], two to each [`Wish::Accept`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// The server listens at this port.
    Listening(u16),
    /// All connections have ended.
    Counted(Count),
    /// The result of the connection to the client; `None`: it was made.
    CalledBack(Option<String>),
    /// The wish cannot be met.
    Failed(String),
}

/// The bytes that the connections of one measurement have carried, and their time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Count {
    bytes: u64,
    /// From the first byte to the end of the last connection.
    nanoseconds: u64,
}

impl Count {
    /// Mbit/s.
    fn mbit(self) -> f64 {
        self.bytes as f64 * 8e3 / (self.nanoseconds.max(1) as f64)
    }
}

/// The server's part.
pub(super) fn serve(stream: &TcpStream, wish: Wish) -> io::Result<()> {
    let say = |answer| remote::send(stream, &FromServer::Flows(answer));
    match wish {
        Wish::CallBack(port) => {
            let client = SocketAddr::new(stream.peer_addr()?.ip(), port);
            say(Answer::CalledBack(TcpStream::connect_timeout(&client, CONNECT).err().map(|error| error.to_string())))
        }
        Wish::Accept(flows) if flows == 0 || flows > MOST_FLOWS => {
            say(Answer::Failed(format!("{flows} connections: the limit is {MOST_FLOWS}")))
        }
        Wish::Accept(flows) => match TcpListener::bind(SocketAddr::new(stream.local_addr()?.ip(), 0)) {
            Err(error) => say(Answer::Failed(format!("it cannot listen: {error}"))),
            Ok(listener) => {
                say(Answer::Listening(listener.local_addr()?.port()))?;
                say(match count(&listener, flows) {
                    Ok(count) => Answer::Counted(count),
                    Err(error) => Answer::Failed(error.to_string()),
                })
            }
        },
    }
}

/// Accepts connections and counts their bytes until all have ended.
fn count(listener: &TcpListener, flows: u8) -> io::Result<Count> {
    let accepted = (0..flows).map(|_| accept(listener)).collect::<io::Result<Vec<_>>>()?;
    let (mut bytes, start) = (0, Instant::now());
    std::thread::scope(|scope| {
        let readers: io::Result<Vec<_>> =
            accepted.iter().map(|flow| Builder::new().spawn_scoped(scope, || drain(flow))).collect();
        for reader in readers? {
            bytes += reader.join().unwrap_or(Ok(0))?;
        }
        io::Result::Ok(())
    })?;
    let nanoseconds = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Ok(Count { bytes, nanoseconds })
}

/// Accepts one connection within the time.
fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let until = Instant::now() + CONNECT;
    loop {
        match listener.accept() {
            Ok((flow, _)) => {
                flow.set_nonblocking(false)?;
                flow.set_read_timeout(Some(SILENCE))?;
                return Ok(flow);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Reads a connection to its end. Returns its bytes.
fn drain(mut flow: &TcpStream) -> io::Result<u64> {
    let (mut piece, mut total) = (vec![0; PIECE_BYTES], 0);
    loop {
        match flow.read(&mut piece)? {
            0 => return Ok(total),
            read => total += read as u64,
        }
    }
}

/// The client's part: a connection to a server, and its answers.
pub(crate) struct Path<'a> {
    control: &'a Control,
}

/// Why connections do not pass.
#[derive(Debug)]
pub(crate) enum Blocked {
    /// The port at which the server listened, and the error of the connection.
    Port(u16, io::Error),
    /// The server could not take part.
    Server(String),
}

impl<'a> Path<'a> {
    pub(crate) const fn over(control: &'a Control) -> Self {
        Self { control }
    }

    fn ask(&self, wish: Wish) -> Result<Answer, Blocked> {
        remote::send(self.control.stream(), &FromClient::Flows(wish)).map_err(lost)?;
        self.answer()
    }

    fn answer(&self) -> Result<Answer, Blocked> {
        let limit = CONNECT * u32::from(MOST_FLOWS) + SILENCE;
        let receive = |reader: &mut Reader| remote::receive_within(reader, limit);
        match self.control.with_reader(receive).map_err(lost)? {
            FromServer::Flows(Answer::Failed(why)) => Err(Blocked::Server(why)),
            FromServer::Flows(answer) => Ok(answer),
            FromServer::Said(_) | FromServer::Closed(_) => Err(Blocked::Server("it answers out of turn".to_owned())),
        }
    }

    /// The rate of this number of connections to the server together, in Mbit/s.
    pub(crate) fn rate(&self, flows: u8) -> Result<f64, Blocked> {
        let Answer::Listening(port) = self.ask(Wish::Accept(flows))? else {
            return Err(Blocked::Server("it does not listen".to_owned()));
        };
        let server = SocketAddr::new(self.control.stream().peer_addr().map_err(lost)?.ip(), port);
        let opened: io::Result<Vec<_>> = (0..flows).map(|_| TcpStream::connect_timeout(&server, CONNECT)).collect();
        let flows = match opened {
            Ok(flows) => flows,
            Err(error) => {
                // The server gives up as well.
                let _ = self.answer();
                return Err(Blocked::Port(port, error));
            }
        };
        std::thread::scope(|scope| {
            for flow in &flows {
                // A failure shows in the server's count.
                let _ = Builder::new().spawn_scoped(scope, || fill(flow));
            }
        });
        drop(flows);
        match self.answer()? {
            Answer::Counted(count) => Ok(count.mbit()),
            _ => Err(Blocked::Server("it has not counted".to_owned())),
        }
    }

    /// Whether the server's host can connect to this one. The error is the server's.
    pub(crate) fn is_called_back(&self) -> Result<(), Blocked> {
        let here = self.control.stream().local_addr().map_err(lost)?.ip();
        let listener = TcpListener::bind(SocketAddr::new(here, 0)).map_err(lost)?;
        let port = listener.local_addr().map_err(lost)?.port();
        match self.ask(Wish::CallBack(port))? {
            Answer::CalledBack(None) => Ok(()),
            Answer::CalledBack(Some(error)) => Err(Blocked::Port(port, io::Error::other(error))),
            _ => Err(Blocked::Server("it has not called back".to_owned())),
        }
    }
}

fn lost(error: io::Error) -> Blocked {
    Blocked::Server(format!("the connection to it is lost: {error}"))
}

/// Writes for the measured time, and ends the connection.
fn fill(mut flow: &TcpStream) {
    let (piece, until) = (vec![0; PIECE_BYTES], Instant::now() + MEASURED);
    let _ = flow.set_write_timeout(Some(SILENCE));
    while Instant::now() < until && flow.write_all(&piece).is_ok() {}
    let _ = flow.shutdown(std::net::Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_of_all_connections_are_counted() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let to = listener.local_addr().expect("an address");
        let writer = std::thread::spawn(move || {
            for bytes in [1_usize, 100_000] {
                let mut flow = TcpStream::connect(to).expect("a connection");
                flow.write_all(&vec![7; bytes]).expect("room");
            }
        });
        let counted = count(&listener, 2).expect("a count");
        writer.join().expect("the writer ends");
        assert_eq!(counted.bytes, 100_001);
        assert_eq!(Count { bytes: 1_000_000, nanoseconds: 8_000_000 }.mbit(), 1000.0);
    }
}
