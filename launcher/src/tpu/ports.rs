//! Finds free ports for the processes of a slice, before the plan is made, because planning itself looks at no socket.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

/// The first port to try. Other programs, such as torch_xla, give this port to the first process. In a slice of several
/// hosts, the first process of each host has this port by default.
pub(crate) const FIRST_PORT: u16 = 8476;

/// Returns the first `count` free ports from `first` on, without `taken`; fewer if there are not enough.
///
/// The ports are not reserved. If another program takes one before the process starts, the process fails.
pub(crate) fn free_ports(first: u16, count: usize, taken: u16) -> Vec<u16> {
    (first..=u16::MAX).filter(|port| *port != taken && is_free(*port)).take(count).collect()
}

fn is_free(port: u16) -> bool {
    // If the system has IPv6, the first address usually covers IPv4 too.
    let places = [SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))];
    TcpListener::bind(&places[..]).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_in_use_are_left_out() {
        let listener = TcpListener::bind(("0.0.0.0", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let ports = free_ports(port, 3, 0);
        assert!(ports.iter().all(|free| *free > port), "{port}: {ports:?}");
        assert!(ports.windows(2).all(|pair| pair[0] < pair[1]), "{ports:?}");
        assert!(free_ports(port, 1, port + 1).iter().all(|free| *free > port + 1));
    }
}
