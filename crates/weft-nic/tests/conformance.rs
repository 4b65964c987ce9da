//! The device contract, checked for all devices: one list of tests, one list of devices.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, unreachable_pub, missing_docs)]

mod suite;

use std::net::SocketAddr;

use suite::Device;
use weft_engine::name::{EpName, NameParts};
use weft_nic::shm::{Shm, ShmConfig};
use weft_nic::{Config, Devices, Tcp, TcpConfig};

/// Defines all tests for one device.
macro_rules! conformance {
    ($($device:ident: $type:ty),+ $(,)?) => { $(
        mod $device {
            conformance!(@tests $type, links: links_carry_names, connects_to_itself, both_sides_connect_at_once,
                a_service_name_reaches, a_missing_endpoint_refuses_connections, a_wrong_capability_is_denied,
                a_silent_peer_times_out, close_delivers_sent_messages, numbers_are_used_again,
                an_attempt_can_be_closed, one_endpoint_has_many_peers);
            conformance!(@tests $type, messages: every_size_arrives_intact, a_flood_is_refused_and_nothing_is_lost,
                random_traffic_keeps_order, two_threads_play_ping_pong, two_threads_stream);
            conformance!(@tests $type, bulk: pushes_arrive_intact, pushes_without_room_are_discarded,
                messages_pass_pushes, pushes_follow_messages, confirmations_follow_messages,
                a_queue_of_pushes_is_bounded, pushes_end_with_their_link, close_abandons_pushes,
                direct_transfers_are_intact, both_sides_move_a_transfer, late_or_wrong_help_does_no_harm);
        }
    )+ };
    (@tests $type:ty, $family:ident: $($test:ident),+) => { $(
        #[test]
        fn $test() {
            $crate::suite::$family::$test::<$type>();
        }
    )+ };
}

conformance! {
    shm: super::ShmDevice<true>,
    shm_without_cma: super::ShmDevice<false>,
    tcp: super::TcpDevice<false>,
    tcp_encrypted: super::TcpDevice<true>,
    tcp_streams: super::StripedDevice<false>,
    tcp_streams_encrypted: super::StripedDevice<true>,
    both: super::BothDevices<true>,
    both_without_shm: super::BothDevices<false>,
}

/// Shared memory, with and without cross-memory attach.
pub struct ShmDevice<const CMA: bool>;

impl<const CMA: bool> ShmDevice<CMA> {
    fn open_with(service: Option<u16>) -> Shm {
        let config =
            ShmConfig { service, cma: CMA, connect_timeout_ms: 1000, answer_timeout_ms: 1000, ..ShmConfig::default() };
        Shm::new(&config, full_name(service.unwrap_or(0))).unwrap()
    }
}

impl<const CMA: bool> Device for ShmDevice<CMA> {
    type Nic = Shm;

    fn open() -> Shm {
        Self::open_with(None)
    }

    fn open_service() -> Option<(Shm, EpName)> {
        let port = free_port();
        let socket = SocketAddr::from(([127, 0, 0, 1], port));
        Some((Self::open_with(Some(port)), EpName::service(socket)))
    }
}

/// TCP over the loopback interface, plain or encrypted.
pub struct TcpDevice<const ENCRYPT: bool>;

impl<const ENCRYPT: bool> TcpDevice<ENCRYPT> {
    fn open_with(config: TcpConfig) -> Tcp {
        let config = config.with(|config| {
            config.encrypt = ENCRYPT;
            config.connect_timeout_ms = 1000;
            config.answer_timeout_ms = 1000;
            config.connect_retry_ms = 100;
        });
        Tcp::new(&config, &parts(0)).unwrap()
    }
}

impl<const ENCRYPT: bool> Device for TcpDevice<ENCRYPT> {
    type Nic = Tcp;

    fn open() -> Tcp {
        Self::open_with(TcpConfig::default())
    }

    fn open_service() -> Option<(Tcp, EpName)> {
        let bind = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let tcp = Self::open_with(TcpConfig { bind, ..TcpConfig::default() }.with(|config| config.open = true));
        let service = EpName::service(tcp.local_addr());
        Some((tcp, service))
    }
}

/// TCP with several connections for long pushes.
pub struct StripedDevice<const ENCRYPT: bool>;

impl<const ENCRYPT: bool> Device for StripedDevice<ENCRYPT> {
    type Nic = Tcp;

    fn open() -> Tcp {
        let config = TcpConfig { streams: 2, streams_within_host: true, stripe_bytes: 20_000, ..TcpConfig::default() };
        TcpDevice::<ENCRYPT>::open_with(config)
    }

    fn open_service() -> Option<(Tcp, EpName)> {
        None
    }
}

/// Both devices at once, of which the first or the second serves.
pub struct BothDevices<const SHM: bool>;

impl<const SHM: bool> BothDevices<SHM> {
    fn open_with(listen: &str, open: bool) -> Devices {
        let config = Config {
            shm: SHM,
            listen: Some(listen.parse().unwrap()),
            open,
            connect_timeout_ms: 1000,
            answer_timeout_ms: 1000,
            connect_retry_ms: 100,
            ..Config::default()
        };
        Devices::new(&config).unwrap()
    }
}

impl<const SHM: bool> Device for BothDevices<SHM> {
    type Nic = Devices;

    fn open() -> Devices {
        Self::open_with("127.0.0.1:0", false)
    }

    fn open_service() -> Option<(Devices, EpName)> {
        let devices = Self::open_with("127.0.0.1:0", true);
        let service = EpName::service(devices.socket());
        Some((devices, service))
    }
}

/// A port that no other test of this host uses: the system assigns it once.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A name with a random id and capability.
fn full_name(port: u16) -> EpName {
    EpName::full(&parts(port))
}

fn parts(port: u16) -> NameParts {
    suite::parts(SocketAddr::from(([127, 0, 0, 1], port)))
}
