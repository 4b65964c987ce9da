//! [`Device`] for both devices at once.
//!
//! Place in the data flow: weft-fi → here → [`Shm`] and [`Tcp`].

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use weft_engine::nic::LinkId;

use super::routes::Via;
use super::{Devices, Stats};
use crate::shm::Shm;
use crate::tcp::{Tcp, Unsent};
use crate::{Config, Device, NicError};

impl Device for Devices {
    fn open(config: &Config) -> Result<Box<Self>, NicError> {
        Self::open_boxed(config)
    }

    fn least_mailbox_bytes() -> usize {
        crate::shm::MAILBOX_BYTES.min(crate::tcp::MAILBOX_BYTES)
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn park(&mut self) -> bool {
        self.quiet_polls = 0;
        if self.table.has_fallbacks() {
            return false;
        }
        // TCP first: announcing the sleep to the peers costs more.
        self.tcp.as_mut().is_none_or(Tcp::park) && self.shm.as_mut().is_none_or(Shm::park)
    }

    fn arm(&mut self) -> bool {
        self.quiet_polls = 0;
        !self.table.has_fallbacks() && self.tcp.as_mut().is_none_or(Tcp::park) && self.shm.as_mut().is_none_or(Shm::arm)
    }

    fn wake_listener(&mut self) {
        self.quiet_polls = 0;
        if let Some(tcp) = &mut self.tcp {
            tcp.wake();
        }
        if let Some(shm) = &mut self.shm {
            shm.wake_listener();
        }
    }

    fn wake(&mut self) {
        self.quiet_polls = 0;
        if let Some(tcp) = &mut self.tcp {
            tcp.wake();
        }
        if let Some(shm) = &mut self.shm {
            shm.wake();
        }
    }

    fn is_armed(&self) -> bool {
        !self.table.has_fallbacks()
            && self.tcp.as_ref().is_none_or(|tcp| !tcp.has_work())
            && self.shm.as_ref().is_none_or(Shm::is_armed)
    }

    fn is_idle(&self) -> bool {
        !self.table.has_fallbacks()
            && self.tcp.as_ref().is_none_or(Tcp::is_idle)
            && self.shm.as_ref().is_none_or(Shm::is_idle)
    }

    fn unsent(&self) -> Option<&Arc<Unsent>> {
        self.tcp.as_ref().and_then(Tcp::unsent)
    }

    fn drain(&mut self) -> bool {
        self.quiet_polls = 0;
        self.tcp.as_mut().is_none_or(Tcp::drain)
    }

    fn is_ours(&self) -> bool {
        self.tcp.as_ref().is_none_or(Tcp::is_ours) && self.shm.as_ref().is_none_or(Shm::is_ours)
    }

    fn device_of(&self, link: LinkId) -> Option<&'static str> {
        let (via, _) = self.table.way(link);
        (via != Via::Neither).then(|| via.name())
    }

    fn stats(&self) -> Stats {
        let mapped_bytes = crate::shm::memory::allocated_bytes();
        Stats { tcp: self.tcp.as_ref().map(Tcp::stats), fallbacks: self.fallbacks, mapped_bytes }
    }
}
