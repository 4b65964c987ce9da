//! The start by ssh: the master starts one supervisor on each host, which forks the ranks there.
//!
//! Place in the data flow: `spawn` calls [`master`] in the process that the user starts, and [`join`] in the processes
//! that ssh starts. The master serves the ranks as a launcher that speaks PMI-1, so that they are [`pmi::Client`]s over
//! TCP.
//!
//! ```text
//! master ──ssh: sh, and a script on its input──► supervisor of a host ──fork──► ranks
//!    ▲  ▲                                            │ (a connection whose end ends the job) │
//!    │  └────────────────────────────────────────────┘                                       │
//!    └───────────────────────────── lines of PMI-1 ──────────────────────────────────────────┘
//! ```
//!
//! Each connection begins with a random secret, which travels in the script and not in a command line.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{WaitOptions, waitpid};
use weft_os::SystemError;

use super::pmi;
use crate::env;
use crate::error::Error;
use crate::exit;
use crate::os;

/// The variables by which the master informs the processes of ssh.
const MASTER: &str = "GASNET_WEFT_MASTER";
const SECRET: &str = "GASNET_WEFT_SECRET";
const FIRST: &str = "GASNET_WEFT_FIRST";
const COUNT: &str = "GASNET_WEFT_COUNT";
/// The number of ranks of the job.
pub const RANKS: &str = "GASNET_WEFT_RANKS";
/// The number of hosts; all that are named if it is not set.
const HOSTS: &str = "GASNET_WEFT_HOSTS";

/// The greeting of a supervisor; ranks send their number.
const SUPERVISOR: &str = "supervisor";
/// The longest line of a rank, in bytes.
const LINE_BYTES: u64 = 4096;
/// The limit for a connection to introduce itself.
const GREETING: Duration = Duration::from_secs(10);

/// Whether a master has started this process.
#[must_use]
pub fn is_here() -> bool {
    env::text(MASTER).is_some()
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| SystemError::of::<std::io::Error>(what)(error).into()
}

fn variable<T: std::str::FromStr>(name: &'static str) -> Result<T, Error> {
    let value = env::text(name).unwrap_or_default();
    let wrong = || Error::Variable { name: name.to_owned(), value: value.clone(), expected: "what a master sets" };
    value.parse().map_err(|_| wrong())
}

// ---- the hosts ------------------------------------------------------------------------------

/// Forks the ranks of this host. Returns in each of them.
///
/// # Errors
/// The master cannot be reached, or the system refuses processes.
pub fn join() -> Result<pmi::Client, Error> {
    let (first, count, ranks): (u32, u32, u32) = (variable(FIRST)?, variable(COUNT)?, variable(RANKS)?);
    let control = greet(SUPERVISOR)?;
    os::flush_streams();
    let supervisor = std::process::id();
    let mut children = Vec::new();
    for rank in first..first.saturating_add(count) {
        match os::fork() {
            Ok(None) => {
                os::die_with(supervisor);
                drop(control);
                return pmi::Client::over_socket(greet(&rank.to_string())?.into(), rank, ranks);
            }
            Ok(Some(pid)) => children.push(pid),
            Err(error) => {
                children.iter().for_each(|&pid| os::kill(pid, libc::SIGKILL));
                return Err(failed("fork")(error));
            }
        }
    }
    os::end_now(supervise(children, &control))
}

/// Connects to the master.
fn greet(who: &str) -> Result<TcpStream, Error> {
    let master: SocketAddr = variable(MASTER)?;
    let mut stream = TcpStream::connect(master).map_err(failed("connect to the master"))?;
    let _ = stream.set_nodelay(true);
    let secret: String = variable(SECRET)?;
    stream.write_all(format!("{secret} {who}\n").as_bytes()).map_err(failed("write to the master"))?;
    Ok(stream)
}

/// Waits for the ranks of this host, and ends them when the master ends. Returns the first code other than 0.
fn supervise(mut children: Vec<u32>, control: &TcpStream) -> i32 {
    let mut code = 0;
    // When the ranks that remain are killed.
    let mut end: Option<Instant> = None;
    let _ = control.set_read_timeout(Some(Duration::from_millis(20)));
    while !children.is_empty() {
        children.retain(|&pid| {
            let status = match waitpid(rustix::process::Pid::from_raw(pid.cast_signed()), WaitOptions::NOHANG) {
                Ok(Some((_, status))) => status,
                _ => return true,
            };
            let signal = status.terminating_signal();
            let ended = signal.map_or_else(|| status.exit_status().unwrap_or(1), |signal| 128 + signal);
            if code == 0 {
                code = ended;
            }
            // A rank that calls exit ends the others itself, and needs time for that.
            let patience = if signal.is_some() { Duration::ZERO } else { exit::grace(1024) + 2 * exit::timeout() };
            if ended != 0 && end.is_none() {
                end = Some(Instant::now() + patience);
            }
            false
        });
        let mut byte = [0];
        let lost = match (&*control).read(&mut byte) {
            Ok(read) => read == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted),
        };
        if lost || end.is_some_and(|end| Instant::now() >= end) {
            code = if code == 0 { 1 } else { code };
            children.iter().for_each(|&pid| os::kill(pid, libc::SIGKILL));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    code
}

// ---- the master -----------------------------------------------------------------------------

/// The master's knowledge of the ranks.
#[derive(Default)]
struct Desk {
    values: HashMap<String, String>,
    /// The connections of ranks that wait at a fence.
    waiting: Vec<TcpStream>,
    /// All connections.
    all: Vec<TcpStream>,
    /// The code of a rank that has asked for the end.
    end: Option<i32>,
}

struct Master {
    desk: Mutex<Desk>,
    ranks: u32,
    secret: String,
}

/// Starts the ranks on the hosts, and ends with the job's code.
///
/// # Errors
/// The hosts are not named, or the system refuses.
pub fn master(ranks: u32) -> Result<std::convert::Infallible, Error> {
    let hosts = hosts()?;
    let listener = TcpListener::bind("0.0.0.0:0").map_err(failed("listen"))?;
    let port = listener.local_addr().map_err(failed("getsockname"))?.port();
    let address = SocketAddr::new(own_address()?, port);
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| failed("getrandom")(std::io::ErrorKind::Unsupported.into()))?;
    let secret = bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    let master = Arc::new(Master { desk: Mutex::default(), ranks, secret });
    let server = Arc::clone(&master);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let server = Arc::clone(&server);
            std::thread::spawn(move || server.serve(stream));
        }
    });
    let used = u32::try_from(hosts.len()).unwrap_or(u32::MAX).min(ranks);
    let mut children = Vec::new();
    let mut first = 0;
    for (at, host) in (0..used).zip(&hosts) {
        let count = ranks / used + u32::from(at < ranks % used);
        let part = [(MASTER, address.to_string()), (SECRET, master.secret.clone())];
        let numbers = [(FIRST, first), (COUNT, count), (RANKS, ranks)].map(|(name, value)| (name, value.to_string()));
        children.push(start(host, &part.into_iter().chain(numbers).collect::<Vec<_>>())?);
        first += count;
    }
    os::end_now(master.wait(children))
}

/// The names of the hosts.
fn hosts() -> Result<Vec<String>, Error> {
    let listed = env::text("GASNET_SSH_SERVERS").map(|list| {
        list.split(|c: char| c == ',' || c.is_whitespace()).filter(|name| !name.is_empty()).map(str::to_owned).collect()
    });
    let in_file = || {
        let text = std::fs::read_to_string(env::text("GASNET_SSH_NODEFILE")?).ok()?;
        let name = |line: &str| line.split_whitespace().next().filter(|name| !name.starts_with('#')).map(str::to_owned);
        Some(text.lines().filter_map(name).collect())
    };
    let mut hosts: Vec<String> = listed.or_else(in_file).unwrap_or_default();
    hosts.dedup();
    if let Some(most) = env::number(HOSTS)? {
        hosts.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    }
    if hosts.is_empty() {
        return Err(Error::NoHosts);
    }
    Ok(hosts)
}

/// The address at which the hosts reach the master.
fn own_address() -> Result<IpAddr, Error> {
    if let Some(address) = env::text("GASNET_MASTERIP").and_then(|text| text.parse().ok()) {
        return Ok(address);
    }
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    Ok(weft_nic::host::choose_address(env::text("FI_WEFT_IFACE").as_deref(), Some(any))?.ip())
}

fn quoted(text: &OsStr) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for &byte in text.as_bytes() {
        if byte == b'\'' {
            quoted.extend_from_slice(b"'\\''");
        } else {
            quoted.push(byte);
        }
    }
    quoted.push(b'\'');
    quoted
}

/// The script that a host's shell reads: the directory, the environment and the program.
fn script(part: &[(&str, String)]) -> Result<Vec<u8>, Error> {
    /// Variables that belong to a host or a shell.
    const KEPT: [&str; 6] = ["PWD", "OLDPWD", "SHLVL", "HOSTNAME", "TERM", "_"];
    let mut script = b"cd ".to_vec();
    script.extend(quoted(std::env::current_dir().map_err(failed("getcwd"))?.as_os_str()));
    script.extend_from_slice(b" || exit 1\n");
    let mut export = |name: &str, value: &OsStr| {
        script.extend_from_slice(format!("export {name}=").as_bytes());
        script.extend(quoted(value));
        script.push(b'\n');
    };
    for (name, value) in std::env::vars_os() {
        let Some(name) = name.to_str() else { continue };
        let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if is_name && !KEPT.contains(&name) && !name.starts_with("SSH_") {
            export(name, &value);
        }
    }
    part.iter().for_each(|(name, value)| export(name, OsStr::new(value)));
    script.extend_from_slice(b"exec ");
    script.extend(quoted(std::env::current_exe().map_err(failed("readlink"))?.as_os_str()));
    for argument in std::env::args_os().skip(1) {
        script.push(b' ');
        script.extend(quoted(&argument));
    }
    script.extend_from_slice(b" </dev/null\n");
    Ok(script)
}

/// Starts the supervisor of a host.
fn start(host: &str, part: &[(&str, String)]) -> Result<Child, Error> {
    let command = env::text("GASNET_SSH_CMD").unwrap_or_else(|| "ssh".to_owned());
    let options = env::text("GASNET_SSH_OPTIONS").unwrap_or_default();
    let mut words = command.split_whitespace();
    let mut child = Command::new(words.next().unwrap_or("ssh"))
        .args(words)
        .args(options.split_whitespace())
        .args([host, "sh"])
        .stdin(Stdio::piped())
        .spawn()
        .map_err(failed("start ssh (GASNET_SSH_CMD)"))?;
    if let Some(mut input) = child.stdin.take() {
        // A host that cannot be reached is reported by ssh and by its status.
        let _ = input.write_all(&script(part)?);
    }
    Ok(child)
}

impl Master {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the supervisors. Returns the first code other than 0.
    fn wait(&self, mut children: Vec<Child>) -> i32 {
        let mut code = 0;
        // When the commands that remain are killed.
        let mut end: Option<Instant> = None;
        while !children.is_empty() {
            children.retain_mut(|child| {
                let Ok(Some(status)) = child.try_wait() else { return true };
                if code == 0 {
                    code = status.code().unwrap_or(1);
                }
                false
            });
            let wanted = self.desk().end;
            code = wanted.filter(|_| code == 0).unwrap_or(code);
            if (code != 0 || wanted.is_some()) && end.is_none() {
                // The supervisors end their ranks when their connections end. Ranks that exit in order have a grace.
                let grace = if wanted.is_some() { Duration::ZERO } else { exit::grace(self.ranks) + exit::timeout() };
                end = Some(Instant::now() + grace);
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                self.desk().all.drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
            }
            if end.is_some_and(|end| Instant::now() >= end + exit::timeout()) {
                children.iter_mut().for_each(|child| drop(child.kill()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        code
    }

    /// Serves one connection.
    fn serve(&self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let _ = stream.set_read_timeout(Some(GREETING));
        let (Ok(writer), Ok(kept)) = (stream.try_clone(), stream.try_clone()) else { return };
        let mut lines = BufReader::new(stream);
        let mut next = move || {
            let mut line = String::new();
            let read = lines.by_ref().take(LINE_BYTES).read_line(&mut line);
            let _ = lines.get_ref().set_read_timeout(None);
            read.is_ok_and(|read| read > 0).then_some(line)
        };
        let Some(greeting) = next() else { return };
        let Some((secret, _)) = greeting.split_once(' ') else { return };
        if secret != self.secret {
            return;
        }
        self.desk().all.push(kept);
        while let Some(line) = next() {
            let answer = self.answer(&pmi::parse(&line), &writer);
            if (&writer).write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    /// The answer to a line of a rank.
    fn answer(&self, pairs: &HashMap<String, String>, writer: &TcpStream) -> String {
        let of = |key: &str| pairs.get(key).cloned().unwrap_or_default();
        match of("cmd").as_str() {
            "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n".into(),
            "get_my_kvsname" => "cmd=my_kvsname kvsname=weft\n".into(),
            "put" => {
                self.desk().values.insert(of("key"), of("value"));
                "cmd=put_result rc=0\n".into()
            }
            "get" => match self.desk().values.get(&of("key")) {
                Some(value) => format!("cmd=get_result rc=0 value={value}\n"),
                None => "cmd=get_result rc=-1 msg=key_not_found\n".into(),
            },
            "barrier_in" => {
                let mut desk = self.desk();
                desk.waiting.extend(writer.try_clone());
                if desk.waiting.len() as u64 == u64::from(self.ranks) {
                    for mut rank in desk.waiting.drain(..) {
                        let _ = rank.write_all(b"cmd=barrier_out\n");
                    }
                }
                String::new()
            }
            "abort" => {
                let code = of("exitcode").parse().unwrap_or(1);
                self.desk().end.get_or_insert(code);
                String::new()
            }
            _ => "cmd=finalize_ack\n".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_the_shell() {
        assert_eq!(quoted(OsStr::new("it's $HOME")), b"'it'\\''s $HOME'");
    }
}
