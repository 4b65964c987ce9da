//! `weft bench` and `weft-lab bench` from their command lines: the program, a host library, and the provider that cargo
//! has just built.
//!
//! The host is the first of WEFT_HOST_LIBS, or that of MPICH's wheel in `.venv-mpich` at the root of the
//! project, or the system's. The wheel's loads much faster than a distribution's. The tests check only that
//! there are figures, because other tests run at the same time.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;

/// Whether the program has what `weft-lab` has: other kinds, and drawings.
const IN_LAB: bool = cfg!(feature = "lab");

/// Time limit for each step.
const LIMIT: Duration = Duration::from_secs(60);

fn host() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let named = std::env::var("WEFT_HOST_LIBS").unwrap_or_default();
    let system = format!("/usr/lib/{}-linux-gnu/libfabric.so.1", std::env::consts::ARCH);
    let usual = [root.join(".venv-mpich/lib/mpich/libfabric.so.1"), PathBuf::from(system)];
    let found = named.split(':').map(PathBuf::from).chain(usual).find(|path| path.is_file());
    let skip = std::env::var_os("WEFT_TEST_SKIP_HOSTS").is_some();
    assert!(found.is_some() || skip, "no libfabric; install one (make deps), or set WEFT_TEST_SKIP_HOSTS");
    found
}

/// Makes a directory for one test, in which a host finds the provider.
fn directory(test: &str) -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let library = deps.join("libweft_fi.so");
    assert!(library.exists(), "{} is missing", library.display());
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::os::unix::fs::symlink(&library, dir.join("libweft-fi.so")).unwrap();
    dir
}

/// The program with these arguments.
fn weft(dir: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.arg("bench").args(line.split(' ')).env("FI_PROVIDER_PATH", dir).env_remove("FI_PROVIDER");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Waits for the end of the program.
fn await_end(mut child: Child) -> Output {
    let end = Instant::now() + LIMIT;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("the program hangs: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// Runs the program with a host. Returns the rows and the exit status.
fn rows(dir: &Path, host: &Path, line: &str) -> (Vec<Value>, Option<i32>) {
    let json = dir.join("rows.json");
    let line = format!("{line} --rounds 1 --sample-ms 5 --libfabric {} --json {}", host.display(), json.display());
    let output = await_end(weft(dir, &line).spawn().unwrap());
    let text = std::fs::read_to_string(&json).unwrap_or_else(|_| panic!("{line}: {output:?}"));
    (serde_json::from_str(&text).unwrap(), output.status.code())
}

/// Whether the program has the kind of a line.
fn is_known(line: &&str) -> bool {
    IN_LAB || ["pingpong", "bandwidth", "rate", "collective"].iter().any(|kind| line.starts_with(kind))
}

/// Checks that every row except floors has a number.
fn assert_measured(rows: &[Value], line: &str) {
    for row in rows.iter().filter(|row| row["floor"] == false) {
        assert_eq!(row["status"], "ok", "{line}: {row}");
        assert!(row["median"].as_f64().is_some_and(f64::is_finite), "{line}: {row}");
    }
}

#[test]
fn pingpong_measures_providers_and_floors_and_draws() {
    let Some(host) = host() else { return };
    let dir = directory("pingpong");
    let drawing = dir.join("rows.svg");
    let plot = if IN_LAB { format!(" --plot {}", drawing.display()) } else { String::new() };
    let line = format!("pingpong --providers weft,tcp;ofi_rxm,weft:FI_WEFT_SHM=0 --sizes 8,4K{plot}");
    let (rows, status) = rows(&dir, &host, &line);
    assert_eq!(status, Some(0));
    assert_measured(&rows, &line);
    for provider in ["weft", "tcp;ofi_rxm", "weft:FI_WEFT_SHM=0", "floor memcpy", "floor tcp"] {
        for size in [8, 4096] {
            let mine = |row: &&Value| row["provider"] == provider && row["size"] == size;
            let [row] = rows.iter().filter(mine).collect::<Vec<_>>()[..] else { panic!("{provider} {size}: {rows:?}") };
            assert_eq!((&row["kind"], &row["op"], &row["unit"]), (&"pingpong".into(), &"tagged".into(), &"ns".into()));
            assert_eq!((&row["threads"], &row["rounds"]), (&1.into(), &1.into()));
            assert!(row["median"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
    let weft = rows.iter().find(|row| row["provider"] == "weft").unwrap();
    let tcp = rows.iter().find(|row| row["provider"] == "tcp;ofi_rxm").unwrap();
    let ratio = tcp["median"].as_f64().unwrap() / weft["median"].as_f64().unwrap();
    assert!((weft["to_best_peer"].as_f64().unwrap() / ratio - 1.0).abs() < 1e-9, "{weft} {tcp}");
    let text = if IN_LAB { std::fs::read_to_string(drawing).unwrap() } else { String::new() };
    for part in ["<svg", "message size in bytes", "latency (lower is better)", "time of one operation"] {
        assert!(!IN_LAB || text.contains(part), "{part}");
    }
    // The percentiles are in order. The median of batches is near that of single operations.
    for row in rows.iter().filter(|row| row["floor"] == false) {
        let [p50, p99, p99_9] = ["p50", "p99", "p99_9"].map(|name| row[name].as_f64().unwrap());
        assert!(0.0 < p50 && p50 <= p99 && p99 <= p99_9, "{row}");
    }
}

/// The time of collectives follows from ping-pongs and two barriers. Other tests run at the same time, so the bounds
/// are wide: half of all times are predicted within a factor of five.
#[test]
fn profiles_of_this_machine_predict_its_collectives() {
    let Some(host) = host() else { return };
    let dir = directory("profile");
    let folder = dir.display();
    let line = format!(
        "profile --measure {folder} --check {folder} --ranks 2,4 --rounds 1 --sample-ms 5 --json --libfabric {}",
        host.display()
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.arg("sim").args(line.split(' ')).env("FI_PROVIDER_PATH", &dir).env_remove("FI_PROVIDER");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = await_end(command.spawn().unwrap());
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let rows = found["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &found["predictions"]), (16, &12.into()), "{found}");
    let ratio = |row: &Value| row["predicted_us"].as_f64().unwrap() / row["measured_us"].as_f64().unwrap();
    let close = rows.iter().filter(|row| (0.2..5.0).contains(&ratio(row))).count();
    assert!(close >= 8, "{found}");
}

#[cfg(feature = "lab")]
#[test]
fn the_ending_of_a_drawing_decides_its_format() {
    let Some(host) = host() else { return };
    let dir = directory("png");
    let drawing = dir.join("rows.png");
    let line = format!("pingpong --providers weft --sizes 8 --plot {}", drawing.display());
    assert_eq!(rows(&dir, &host, &line).1, Some(0));
    let picture = std::fs::read(drawing).unwrap();
    assert!(picture.starts_with(b"\x89PNG\r\n\x1a\n") && picture.len() > 5000, "{} bytes", picture.len());
}

/// `weft bench serve` on a free port of loopback. Dropping it ends the process.
struct Server {
    process: Child,
    /// Open as long as the server, which would end at a write into a closed pipe.
    _output: BufReader<ChildStdout>,
    address: String,
}

impl Server {
    fn start(dir: &Path, host: &Path) -> Self {
        let line = format!("serve --addr 127.0.0.1 --port 0 --libfabric {}", host.display());
        let mut process = weft(dir, &line).spawn().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut first = String::new();
        output.read_line(&mut first).unwrap();
        let address = first.split(['(', ',', ' ']).find(|word| word.starts_with("127.0.0.1:"));
        Self { address: address.unwrap_or_else(|| panic!("{first:?}")).to_owned(), process, _output: output }
    }

    /// Sends a line on a new connection, and returns the answer with the connection.
    fn greeted(&self, line: &str) -> (String, TcpStream) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        // A server that has refused the connection has closed it.
        let _ = writeln!(stream, "{line}");
        let mut answer = String::new();
        BufReader::new(&stream).read_line(&mut answer).unwrap();
        (answer, stream)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const GREETING: &str = r#"{"weft_bench":2,"version":"test"}"#;

#[test]
fn two_hosts_measure_the_same_rows() {
    let Some(host) = host() else { return };
    let dir = directory("to");
    let server = Server::start(&dir, &host);
    for line in [
        "pingpong --providers weft,tcp;ofi_rxm,weft:FI_WEFT_SHM=0 --op tagged,write --sizes 8,64K",
        "bandwidth --providers weft --sizes 64K --window 16",
        "rate --providers weft --threads 1,2",
        "overlap --providers weft --sizes 4K",
        "match --providers weft --depths 0,7",
    ]
    .into_iter()
    .filter(is_known)
    {
        let (rows, status) = rows(&dir, &host, &format!("{line} --to {}", server.address));
        assert_eq!(status, Some(0), "{line}: {rows:?}");
        assert_measured(&rows, line);
        assert!(rows.iter().all(|row| row["to"] == server.address.as_str()), "{line}: {rows:?}");
        let floors: Vec<_> = rows.iter().filter(|row| row["floor"] == true).map(|row| &row["provider"]).collect();
        let sockets = line.starts_with("pingpong") || line.starts_with("bandwidth");
        assert!(floors.iter().all(|floor| *floor == "floor tcp") && floors.is_empty() != sockets, "{line}: {floors:?}");
        for row in rows.iter().filter(|row| row["kind"] == "pingpong" && row["floor"] == false) {
            assert!(row["p99"].as_f64() > Some(0.0) && row["to_floor"].as_f64() > Some(0.0), "{row}");
        }
    }
    // Variables of the client that could load files into the server's processes are refused.
    let (rows, status) =
        rows(&dir, &host, &format!("pingpong --providers weft:LD_PRELOAD=x --sizes 8 --to {}", server.address));
    let row = rows.iter().find(|row| row["floor"] == false).unwrap();
    assert!(row["note"].as_str().unwrap().contains("LD_PRELOAD"), "{row}");
    assert_eq!((&row["status"], status), (&"failed".into(), Some(0)), "the floor was measured");
}

#[test]
fn a_server_refuses_with_a_reason() {
    let Some(host) = host() else { return };
    let dir = directory("refuse");
    let server = Server::start(&dir, &host);
    let (answer, _) = server.greeted(r#"{"weft_bench":999,"version":"9.9"}"#);
    assert!(answer.contains("refused") && answer.contains("same version"), "{answer}");
    let (answer, first) = server.greeted(GREETING);
    assert!(answer.contains("welcome"), "{answer}");
    let end = |to: &str| {
        let output =
            await_end(weft(&dir, &format!("pingpong --libfabric {} --to {to}", host.display())).spawn().unwrap());
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let busy = end(&server.address);
    assert!(busy.contains("refuses: it serves 127.0.0.1:") && busy.contains("try again"), "{busy}");
    // The place is free when the first client has gone.
    drop(first);
    until("a free server", || server.greeted(GREETING).0.contains("welcome"));
    let absent = end("127.0.0.1:1");
    assert!(absent.contains("cannot connect") && absent.contains("weft bench serve --port 1"), "{absent}");
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let talk = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        // Until the client has closed.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let stranger = end(&address);
    assert!(stranger.contains("does not answer as `weft bench serve`"), "{stranger}");
    talk.join().unwrap();
}

/// A thread that cannot be started costs one client its answer, and the server goes on.
#[test]
fn a_server_without_room_for_a_thread_says_so() {
    let Some(host) = host() else { return };
    let server = Server::start(&directory("threads"), &host);
    let pid = server.process.id();
    let limit = |bytes: Option<u64>| {
        let limits = Rlimit { current: bytes, maximum: None };
        prlimit(Pid::from_raw(i32::try_from(pid).unwrap()), Resource::As, limits).unwrap();
    };
    let pages = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    // There is no room for a stack.
    limit(Some(pages * 4096 + (1 << 20)));
    let (answer, _) = server.greeted(GREETING);
    assert!(answer.contains("cannot start a thread"), "{answer}");
    limit(None);
    let (answer, _first) = server.greeted(GREETING);
    assert!(answer.contains("welcome"), "{answer}");
}

/// A greeting whose bytes come one by one is cut off, like one that does not come.
#[test]
fn a_slow_greeting_is_cut_off() {
    let Some(host) = host() else { return };
    let server = Server::start(&directory("slow"), &host);
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let start = Instant::now();
    let mut rest = GREETING.bytes();
    let cut = loop {
        let said = rest.next().is_none_or(|byte| stream.write_all(&[byte]).is_ok());
        match stream.read(&mut [0; 99]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && said => {}
            Ok(1..) => break false,
            _ => break true,
        }
        assert!(start.elapsed() < LIMIT);
    };
    assert!(cut && start.elapsed() < Duration::from_secs(8), "{cut} after {:?}", start.elapsed());
}

/// Texts of the other side cannot change the terminal.
#[test]
fn texts_of_a_server_are_shown_without_escapes() {
    let Some(host) = host() else { return };
    let dir = directory("escapes");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let line = format!("pingpong --libfabric {} --to {}", host.display(), listener.local_addr().unwrap());
    let client = weft(&dir, &line).spawn().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"{\"refused\":\"go\\u001b[2J away\\u202e\\u009b1m\"}\n").unwrap();
    let output = await_end(client);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("refuses: go [2J away"), "{text:?}");
    assert!(!text.contains(['\u{1b}', '\u{202e}', '\u{9b}']), "{text:?}");
}

#[test]
fn both_ends_survive_the_death_of_the_other() {
    let Some(host) = host() else { return };
    let dir = directory("survive");
    let server = Server::start(&dir, &host);
    let line =
        format!("pingpong --providers weft --sizes 8 --sample-ms 50000 --rounds 1 --libfabric {}", host.display());
    let line = format!("{line} --to {}", server.address);
    // A killed client: the server ends its rank, and serves the next client.
    let client = weft(&dir, &line).spawn().unwrap();
    until("a pair", || children(client.id()).len() + children(server.process.id()).len() == 2);
    kill_process(Pid::from_raw(i32::try_from(client.id()).unwrap()).unwrap(), Signal::KILL).unwrap();
    await_end(client);
    until("the end of the rank", || children(server.process.id()).is_empty());
    until("a free server", || server.greeted(GREETING).0.contains("welcome"));
    // A killed server: the client reports it.
    let client = weft(&dir, &line).spawn().unwrap();
    until("a pair", || children(client.id()).len() + children(server.process.id()).len() == 2);
    let pid = server.process.id();
    drop(server);
    let output = await_end(client);
    let text = String::from_utf8_lossy(&output.stdout);
    // Nothing was measured.
    assert!(output.status.code() == Some(1) && text.contains("connection to"), "{output:?}");
    until("the end of its rank", || children(pid).is_empty());
}

#[test]
fn every_kind_and_operation_measures_weft() {
    let Some(host) = host() else { return };
    let dir = directory("kinds");
    for line in [
        "pingpong --providers weft --op tagged,msg,write,read --sizes 8,64K",
        "pingpong --providers weft --op tagged --sizes 8 --wait sread --progress auto --delivery",
        "bandwidth --providers weft --op tagged,msg,write,read --sizes 64K --window 16",
        "rate --providers weft --op tagged,write --threads 1,2 --inject",
        "rate --providers weft --threads 2 --bind pair",
        "overlap --providers weft --sizes 4K --progress auto --bind caller --wait sread",
        "peers --providers weft --peers 0,3",
        "match --providers weft --depths 0,7",
        "oversubscribe --providers weft --ranks 5 --wait yield",
        "counter --providers weft --adders 1,3 --wait yield",
        "memory --providers weft --peers 4 --addresses 5000",
        "collective --providers weft --members 3 --sizes 8,24K --wait yield",
    ]
    .into_iter()
    .filter(is_known)
    {
        let (rows, status) = rows(&dir, &host, line);
        assert_eq!(status, Some(0), "{line}: {rows:?}");
        assert!(rows.iter().any(|row| row["provider"] == "weft"), "{line}");
        assert_measured(&rows, line);
    }
}

#[cfg(feature = "lab")]
#[test]
fn overlap_of_collectives_has_every_figure() {
    let Some(host) = host() else { return };
    let dir = directory("overlap-coll");
    let drawing = dir.join("rows.svg");
    let line =
        "overlap-coll --providers weft --coll barrier --members 3 --wire 0,30 --progress auto,chain --wait yield";
    let (rows, status) = rows(&dir, &host, &format!("{line} --plot {}", drawing.display()));
    assert_eq!(status, Some(0), "{rows:?}");
    assert_measured(&rows, line);
    for progress in ["auto", "chain"] {
        let on_wire: Vec<_> = rows.iter().filter(|row| row["wire_us"] == 30 && row["progress"] == progress).collect();
        let value = |metric: &str| {
            let row = on_wire.iter().find(|row| row["metric"] == metric);
            row.and_then(|row| row["median"].as_f64()).unwrap_or_else(|| panic!("{metric}: {rows:?}"))
        };
        assert!((0.0..=100.0).contains(&value("IMB")) && (0.0..=100.0).contains(&value("bound")));
        // These compare times of the same work. Work that took less time beside the operation gives more than 100.
        for metric in ["method 1", "method 2", "OSU"] {
            assert!((0.0..=120.0).contains(&value(metric)), "{metric}: {}", value(metric));
        }
        // Three members need two steps, each of which the wire holds back.
        assert!(value("raw") > 2.0 * 30_000.0, "{}", value("raw"));
        assert!(value("CPU") >= 0.0 && value("at 100 %") > 0.0);
    }
    assert!(std::fs::read_to_string(drawing).unwrap().contains("CPU available"));
}

#[cfg(feature = "lab")]
#[test]
fn both_kinds_of_progress_are_compared() {
    let Some(host) = host() else { return };
    let (rows, _) = rows(&directory("progress"), &host, "peers --providers weft --progress auto,manual --peers 0");
    let named: Vec<_> = rows.iter().map(|row| (row["provider"].as_str().unwrap(), row["progress"].as_str())).collect();
    let floor = |name| (name, None);
    let weft = [("weft auto", Some("auto")), ("weft manual", Some("manual"))];
    assert_eq!(named, [weft[0], weft[1], floor("floor cache-line"), floor("floor tcp")]);
    assert_measured(&rows, "progress");
}

#[test]
fn threads_with_own_endpoints_wait_for_no_lock() {
    let Some(host) = host() else { return };
    let (rows, _) = rows(&directory("locks"), &host, "rate --providers weft --threads 2 --op tagged,write");
    let waits: Vec<_> = rows.iter().filter(|row| row["unit"] == "times").map(|row| &row["median"]).collect();
    // Two operations on both sides.
    assert_eq!(waits, [0.0; 4], "{rows:?}");
}

#[cfg(feature = "lab")]
#[test]
fn kinds_of_memory_are_reported_separately() {
    let Some(host) = host() else { return };
    let (rows, _) = rows(&directory("memory"), &host, "memory --providers weft --peers 20 --addresses 5000");
    let value = |op: &str, metric: &str| {
        let row = rows.iter().find(|row| row["op"] == op && row["metric"] == metric);
        row.and_then(|row| row["median"].as_f64()).unwrap_or_else(|| panic!("{op} {metric}: {rows:?}"))
    };
    let shared = value("idle peer", "shared");
    assert!(shared > 0.0 && shared <= value("idle peer", "resident"), "{rows:?}");
    // Names alone take 64 bytes.
    assert!(value("av insert", "heap") > 60.0 && value("idle peer", "heap") > 60.0);
    assert!(value("av insert", "time") > 0.0);
}

#[test]
fn an_unsupported_operation_is_reported_and_not_an_error() {
    let Some(host) = host() else { return };
    let (rows, status) = rows(&directory("offer"), &host, "rate --providers tcp,cxi --op fetch-add");
    let peers: Vec<_> = rows.iter().filter(|row| row["floor"] == false).collect();
    assert_eq!(peers.len(), 2, "{rows:?}");
    assert!(peers.iter().all(|row| row["status"] == "not offered" && row["median"].is_null()), "{rows:?}");
    // The floor was measured.
    assert_eq!(status, Some(0));
}

#[test]
fn mistakes_are_explained() {
    let Some(host) = host() else { return };
    let dir = directory("mistakes");
    let host = host.display();
    for (line, expected) in [
        (format!("pingpong --providers nosuch --libfabric {host}"), "unknown provider `nosuch`"),
        (format!("pingpong --providers weft:FI_X --libfabric {host}"), "weft:FI_WEFT_SHM=0"),
        ("pingpong --libfabric /nonesuch/libfabric.so.1".to_owned(), "there is no such file"),
        ("pingpong --libfabric /etc/passwd".to_owned(), "--libfabric takes the path"),
        ("pingpong --rounds 0".to_owned(), "give 1 or more"),
        ("pingpong --sizes 8,x".to_owned(), "sizes are like"),
        ("bandwidth --op fetch-add".to_owned(), "--op may be"),
        ("pingpong --json /nonesuch/rows.json".to_owned(), "create it"),
        ("pingpong --cores 4095".to_owned(), "may not be used"),
        ("pingpong --plot rows.pdf".to_owned(), if IN_LAB { ".svg or .png" } else { "unexpected argument" }),
        ("collective --to localhost".to_owned(), "take --to"),
        ("overlap-coll --to localhost".to_owned(), if IN_LAB { "take --to" } else { "possible values" }),
        ("serve --port 70000".to_owned(), "70000"),
        ("nosuch".to_owned(), "possible values"),
    ] {
        let output = await_end(weft(&dir, &line).spawn().unwrap());
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {text}");
        assert!(text.contains(expected), "{line}: {text}");
    }
}

/// The processes that a run has started.
fn children(parent: u32) -> Vec<i32> {
    let mark = format!("\"parent\":{parent},");
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let ours = processes.filter(|process| {
        std::fs::read_to_string(process.path().join("cmdline")).is_ok_and(|line| line.contains(&mark))
    });
    ours.filter_map(|process| process.file_name().to_str()?.parse().ok()).collect()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "no sign of {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_interrupted_or_killed_run_leaves_nothing_behind() {
    let Some(host) = host() else { return };
    let dir = directory("interrupted");
    for (signal, code) in [(Signal::INT, Some(130)), (Signal::KILL, None)] {
        let line = format!("pingpong --providers weft --sizes 8 --sample-ms 50000 --libfabric {}", host.display());
        let run = weft(&dir, &line).spawn().unwrap();
        let pid = run.id();
        until("a pair of processes", || children(pid).len() == 2);
        let start = Instant::now();
        kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
        assert_eq!(await_end(run).status.code(), code);
        until("their end", || children(pid).is_empty());
        // The processes ended by SIGTERM: SIGKILL would follow only after this time.
        assert!(start.elapsed() < Duration::from_millis(1900), "{:?}", start.elapsed());
    }
}
