//! Free ports for the processes of a slice. Looked for before planning, because a plan touches nothing.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

/// The port that others give to the first process (torch_xla), and the one that hosts of a slice agree on.
pub(crate) const FIRST_PORT: u16 = 8476;

/// The first `count` ports from `first` on that nobody listens on, `taken` excluded; fewer when there are no more.
///
/// They are free now: whoever takes one before its process starts makes that process fail.
pub(crate) fn free_ports(first: u16, count: usize, taken: u16) -> Vec<u16> {
    (first..=u16::MAX).filter(|port| *port != taken && is_free(*port)).take(count).collect()
}

fn is_free(port: u16) -> bool {
    // Where there is IPv6, its socket listens on both.
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
