//! Ranges of nodes and services for `fi_av_insertsym`: a first node such as `10.1.1.1` or `host10`, and its
//! successors.

use std::ffi::{CStr, CString};
use std::net::IpAddr;

use crate::abi::errno::Errno;

/// The first node and the first service.
pub(crate) struct Range<'a> {
    node: Node<'a>,
    port: u16,
}

enum Node<'a> {
    Address(IpAddr),
    /// A host name: the part in front of its last digits, these digits as a number, and their count.
    Host {
        stem: &'a str,
        number: u64,
        digits: usize,
    },
}

impl<'a> Range<'a> {
    /// Creates a range. Services must be numeric, because a name has no successor.
    pub(crate) fn new(node: &'a CStr, service: &CStr) -> Result<Self, Errno> {
        let node = node.to_str().map_err(|_| Errno::INVAL)?;
        let port = service.to_str().ok().and_then(|text| text.parse().ok()).ok_or(Errno::INVAL)?;
        if let Ok(address) = node.parse() {
            return Ok(Self { node: Node::Address(address), port });
        }
        let stem = node.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = node.len() - stem.len();
        let number = if digits == 0 { 0 } else { node[stem.len()..].parse().map_err(|_| Errno::INVAL)? };
        Ok(Self { node: Node::Host { stem, number, digits }, port })
    }

    /// The node and the service at these positions of the range.
    pub(crate) fn at(&self, node: usize, service: usize) -> Result<(CString, CString), Errno> {
        let port = u16::try_from(service).ok().and_then(|step| self.port.checked_add(step)).ok_or(Errno::INVAL)?;
        let text = match &self.node {
            Node::Address(IpAddr::V4(first)) => {
                let step = u32::try_from(node).map_err(|_| Errno::INVAL)?;
                let bits = first.to_bits().checked_add(step).ok_or(Errno::INVAL)?;
                IpAddr::V4(bits.into()).to_string()
            }
            Node::Address(IpAddr::V6(first)) => {
                let bits = first.to_bits().checked_add(node as u128).ok_or(Errno::INVAL)?;
                IpAddr::V6(bits.into()).to_string()
            }
            // A name without digits has no successor.
            Node::Host { stem, digits: 0, .. } if node == 0 => (*stem).to_owned(),
            Node::Host { digits: 0, .. } => return Err(Errno::INVAL),
            Node::Host { stem, number, digits } => {
                let number = number.checked_add(node as u64).ok_or(Errno::INVAL)?;
                format!("{stem}{number:0digits$}")
            }
        };
        let c_string = |text: String| CString::new(text).map_err(|_| Errno::INVAL);
        Ok((c_string(text)?, c_string(port.to_string())?))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(node: &CStr, node_index: usize, service_index: usize) -> Result<String, Errno> {
        let (node, service) = Range::new(node, c"5000")?.at(node_index, service_index)?;
        Ok(format!("{} {}", node.to_str().unwrap(), service.to_str().unwrap()))
    }

    #[test]
    fn nodes_and_services_have_successors() {
        assert_eq!(at(c"10.1.1.1", 0, 1).unwrap(), "10.1.1.1 5001");
        assert_eq!(at(c"10.1.1.255", 1, 0).unwrap(), "10.1.2.0 5000");
        assert_eq!(at(c"fe80::f", 1, 0).unwrap(), "fe80::10 5000");
        assert_eq!(at(c"host10", 1, 0).unwrap(), "host11 5000");
        assert_eq!(at(c"host09", 1, 0).unwrap(), "host10 5000");
        assert_eq!(at(c"host08", 1, 0).unwrap(), "host09 5000");
        assert_eq!(at(c"host", 0, 0).unwrap(), "host 5000");
    }

    #[test]
    fn nodes_without_a_successor_are_refused() {
        assert_eq!(at(c"host", 1, 0), Err(Errno::INVAL));
        assert_eq!(at(c"255.255.255.255", 1, 0), Err(Errno::INVAL));
        assert_eq!(at(c"10.1.1.1", 0, 65535), Err(Errno::INVAL));
        assert!(Range::new(c"10.1.1.1", c"http").is_err());
    }
}
