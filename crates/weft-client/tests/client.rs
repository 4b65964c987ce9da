//! The client over libfabric's own shm provider, in a single process: transfers and refused calls.
//!
//! The host library is the first of WEFT_HOST_LIBS. The fallbacks are the library of MPICH's wheel in
//! `.venv-mpich` at the root of the project and the system's library.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use weft_client::{Caps, Domain, Endpoint, Error, Library, Piece, Posted, Requirements, Sockets};

const LIMIT: Duration = Duration::from_secs(20);

fn library() -> Option<&'static Library> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let named = std::env::var("WEFT_HOST_LIBS").unwrap_or_default();
    let system = format!("/usr/lib/{}-linux-gnu/libfabric.so.1", std::env::consts::ARCH);
    let usual = [root.join(".venv-mpich/lib/mpich/libfabric.so.1"), PathBuf::from(system)];
    let found = named.split(':').map(PathBuf::from).chain(usual).find(|path| path.is_file());
    let skip = std::env::var_os("WEFT_TEST_SKIP_HOSTS").is_some();
    assert!(found.is_some() || skip, "no libfabric; install one (make deps), or set WEFT_TEST_SKIP_HOSTS");
    found.map(|path| Library::load(&path).unwrap())
}

fn wanted(provider: &str) -> Requirements {
    Requirements {
        provider: provider.to_owned(),
        caps: Caps { msg: true, rma: true, ..Caps::default() },
        ..Requirements::default()
    }
}

fn misuse<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::Misuse(_))), "{result:?}");
}

/// Reads completions until both slots are complete. Returns the received length.
fn complete(ep: &mut Endpoint, slots: [u32; 2]) -> usize {
    let (mut missing, mut len) = (slots.to_vec(), 0);
    let end = Instant::now() + LIMIT;
    while !missing.is_empty() {
        assert!(Instant::now() < end, "no completion of {missing:?}");
        ep.poll(|completion| {
            missing.retain(|slot| Some(*slot) != completion.slot);
            len = len.max(completion.len);
        })
        .unwrap();
    }
    len
}

#[test]
fn data_arrives_and_misuse_is_refused() {
    let Some(library) = library() else { return };
    assert!(library.version() >= (1, 17) && library.providers().unwrap().iter().any(|name| name == "shm"));
    let domain = Domain::open(library, &wanted("shm")).unwrap();
    let mut ep = Endpoint::open(&domain, 8192, 4, 1).unwrap();
    let name = ep.name().to_vec();
    misuse(ep.insert(&name[..name.len() - 1], 1));
    misuse(ep.insert(&name, 2));
    misuse(ep.insert(&[], 0));
    let us = ep.insert(&name, 1).unwrap()[0];
    let [from, into] = [Piece { offset: 0, len: 64 }, Piece { offset: 4096, len: 64 }];

    misuse(ep.store(4, 1));
    misuse(ep.store(8192, 1));
    misuse(ep.load(usize::MAX - 7));
    misuse(ep.tagged_recv(0, Piece { offset: 8192 - 63, len: 64 }, 5, 0));
    misuse(ep.tagged_recv(0, Piece { offset: usize::MAX, len: 64 }, 5, 0));
    misuse(ep.tagged_recv(4, into, 5, 0));

    for round in 1..=3 {
        ep.store(from.offset + 8, 7 * round).unwrap();
        assert_eq!(ep.tagged_recv(0, into, 5, 0).unwrap(), Posted::Done);
        // The provider holds the context now.
        misuse(ep.tagged_recv(0, into, 5, 0));
        misuse(ep.send(0, from, us));
        // Some providers need time before a new peer has room for a message.
        let end = Instant::now() + LIMIT;
        while ep.tagged_send(1, from, us, 5).unwrap() == Posted::Again {
            assert_eq!(ep.poll(|_| ()).unwrap(), 0);
            assert!(Instant::now() < end, "nothing can be sent");
        }
        assert_eq!(complete(&mut ep, [0, 1]), 64);
        assert_eq!(ep.load(into.offset + 8).unwrap(), 7 * round);
    }
}

#[test]
fn arriving_bytes_are_noticed_once() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let within = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let _accepted = listener.accept().unwrap();
    let script =
        format!("exec 3<>/dev/tcp/127.0.0.1/{}; read; printf x >&3; read", listener.local_addr().unwrap().port());
    let mut writer = Command::new("bash").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
    let (mut other, _) = listener.accept().unwrap();
    let sockets = Sockets::find().unwrap();
    (&within).write_all(&[1]).unwrap();
    assert!(!sockets.arrived(), "both ends are in this process");
    let mut stdin = writer.stdin.take().unwrap();
    stdin.write_all(b"\n").unwrap();
    let end = Instant::now() + LIMIT;
    while !sockets.arrived() {
        assert!(Instant::now() < end, "the byte is not noticed");
    }
    assert!(!sockets.arrived(), "it is noticed once");
    other.read_exact(&mut [0]).unwrap();
    assert!(!sockets.arrived());
    assert_eq!(sockets.received_bytes(), 1);
    drop(stdin);
    writer.wait().unwrap();
}

#[test]
fn missing_objects_are_reported() {
    let Some(library) = library() else { return };
    let missing = Domain::open(library, &wanted("nosuch")).err().unwrap();
    assert!(missing.is_not_offered(), "{missing}");
    let no_library = Library::load(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml").as_path()).err().unwrap();
    assert!(matches!(no_library, Error::Load(_)), "{no_library}");
}
