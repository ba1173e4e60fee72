//! The user at the other end of a connection on this machine. Hosts at loopback addresses may have no secret. Then only
//! processes of the same user are hosts, as with the Unix sockets of shards.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};

use rustix::process::geteuid;

/// Returns the id of another user who owns the other end of `stream`; `None` if this process's user does.
///
/// # Errors
/// When the kernel's table of connections cannot be read or lacks the connection, as after its end.
pub(super) fn other_user(stream: &TcpStream) -> io::Result<Option<u32>> {
    let (own, theirs) = (stream.local_addr()?, stream.peer_addr()?);
    let table = std::fs::read_to_string(if theirs.is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" })?;
    let uid = uid(&table, [theirs, own]).ok_or(io::ErrorKind::NotConnected)?;
    Ok(Some(uid).filter(|uid| *uid != geteuid().as_raw()))
}

/// Returns the owner of the socket that is connected from the first address to the second, from a table in the format
/// of `/proc/net/tcp` (`proc_pid_net(5)`). A socket that its process has closed has no inode, and in the table it
/// belongs to user 0; it is left out.
fn uid(table: &str, ends: [SocketAddr; 2]) -> Option<u32> {
    let ends = ends.map(hexadecimal);
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.into_iter().find(|row| row.len() > 9 && row[1..3] == ends && row[9] != "0")?;
    row[7].parse().ok()
}

/// Returns an address as the kernel prints it: words of 32 bits in the machine's byte order, and the port.
fn hexadecimal(address: SocketAddr) -> String {
    let bytes = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut text = String::new();
    for word in bytes.chunks_exact(4) {
        let _ = write!(text, "{:08X}", u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    }
    let _ = write!(text, ":{:04X}", address.port());
    text
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use test_support::accept;

    use super::*;

    #[test]
    fn both_ends_of_a_connection_of_this_process_have_its_user() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                assert!(address.starts_with('['), "{address}");
                continue;
            };
            let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let answerer = accept(&listener, "the caller");
            assert_eq!([&caller, &answerer].map(|stream| other_user(stream).unwrap()), [None, None]);
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_connection_has_the_user_of_its_row() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                     0: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1001        0 77 1\n   \
                     1: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1002        0 78 1\n   \
                     2: 0100007F:1F90 0100007F:C351 06 00000000:00000000 03:00001750 00000000     0        0 0 3\n";
        let [one, two, closed]: [SocketAddr; 3] =
            ["127.0.0.1:8080", "127.0.0.1:50000", "127.0.0.1:50001"].map(|text| text.parse().unwrap());
        let ends = [[one, two], [two, one], [one, one], [one, closed]];
        assert_eq!(ends.map(|ends| uid(table, ends)), [Some(1001), Some(1002), None, None]);
    }
}
