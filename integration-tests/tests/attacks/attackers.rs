//! The connections of an attack. Each has its own thread.

use std::net::SocketAddr;
use std::time::Duration;

use integration_tests::{Connection, End, request_head};

use crate::attack::{Attack, Manner, Request};

/// The time after which a client of [`Manner::LeaveWithByte`] disconnects.
const STAY: Duration = Duration::from_millis(100);
/// The number of bytes at the end of a body that [`Manner::SendHalf`] does not send.
const HELD_BACK_BYTES: usize = 10_000;

/// Attacks until `end` has come. The threads have this niceness, so that a measured server does not share its
/// processors evenly with clients that would run elsewhere. Errors of the attackers' connections are ignored.
pub(crate) fn attack(attack: &Attack, address: SocketAddr, niceness: i32, end: &End) {
    let requests = (attack.requests)();
    std::thread::scope(|scope| {
        for number in 0..attack.connections {
            let own = requests.iter().cycle().skip(number);
            scope.spawn(move || {
                rustix::process::nice(niceness).expect("a thread may always become nicer");
                for request in own {
                    let _ = send(attack, request, address, end);
                    if end.wait(attack.pause) {
                        return;
                    }
                }
            });
        }
    });
}

fn send(attack: &Attack, request: &Request, address: SocketAddr, end: &End) -> std::io::Result<()> {
    let is_slow = matches!(attack.manner, Manner::ReadSlowly { .. } | Manner::ReadNothing);
    let mut connection = Connection::open(address, is_slow)?;
    let head = request_head(request.path, request.body.len(), attack.api_keys.map(|[key, _]| key));
    let (head, body) = (head.as_bytes(), request.body.as_slice());
    if let Manner::SendHead = attack.manner {
        connection.send(&head[..head.len() - 2], end)?;
        return connection.read_all(end);
    }
    connection.send(head, end)?;
    if let Manner::SendHalf = attack.manner {
        connection.send(&body[..body.len().saturating_sub(HELD_BACK_BYTES)], end)?;
        return connection.read_all(end);
    }
    connection.send(body, end)?;
    match attack.manner {
        Manner::Read | Manner::SendHalf | Manner::SendHead => connection.read_all(end),
        Manner::ReadSlowly { bytes_per_second } => connection.read_slowly(bytes_per_second, end),
        Manner::ReadNothing => {
            end.wait(Duration::MAX);
            Ok(())
        }
        Manner::LeaveWithByte => {
            connection.send(b"G", end)?;
            end.wait(STAY);
            Ok(())
        }
    }
}
