//! The waiting room of a door: the connections whose clients have proved nothing yet, or ask for nothing now.
//!
//! Entry point: [`WaitingRoom`]. Every door that has few places keeps one. When its places are short, the newest
//! connection is let in and [`WaitingRoom::dismiss`] names the one that goes: the oldest one of the address that has
//! the most. So nobody keeps others out by coming first, and an address with many connections loses only its own. A
//! room has no clock, no lock and no socket.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// The minimum time for which a connection stays before it has to go for another one, so that there is time for a proof
/// even if others connect as fast as they can. Meanwhile new connections wait to be accepted, in order of arrival.
const MIN_STAY: Duration = Duration::from_millis(250);

/// The connections that wait at a door, each with the value by which the door closes it.
#[derive(Debug)]
pub struct WaitingRoom<T> {
    /// The connections of each origin by number. No origin is without connections.
    origins: BTreeMap<Origin, BTreeMap<u64, Guest<T>>>,
    /// The number of connections of all origins together.
    len: usize,
    next: u64,
}

/// The place of a connection in a [`WaitingRoom`].
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket {
    origin: Origin,
    number: u64,
}

/// The outcome of [`WaitingRoom::dismiss`].
#[derive(Debug, PartialEq, Eq)]
pub enum Dismissal<T> {
    /// The connection with this value has left the room and must be closed.
    Gone(T),
    /// The connection that has to go next came a moment ago. It may be dismissed after this time.
    Later(Duration),
    /// No connection waits.
    Empty,
}

#[derive(Debug)]
struct Guest<T> {
    since: Instant,
    value: T,
}

/// The addresses that count as one: an IPv4 address, or the network of an IPv6 address, because a machine may have a
/// whole network of those. `None` is the origin of all connections without an address, such as those of Unix sockets.
type Origin = Option<IpAddr>;

impl<T> Default for WaitingRoom<T> {
    fn default() -> Self {
        Self { origins: BTreeMap::new(), len: 0, next: 0 }
    }
}

impl<T> WaitingRoom<T> {
    /// Lets in a connection from this address. `value` is the means to close it.
    pub fn enter(&mut self, address: Option<IpAddr>, now: Instant, value: T) -> Ticket {
        let ticket = Ticket { origin: address.map(network), number: self.next };
        self.next += 1;
        self.len += 1;
        self.origins.entry(ticket.origin).or_default().insert(ticket.number, Guest { since: now, value });
        ticket
    }

    /// Takes out a connection that has proved itself or has ended. Returns `None` if it was dismissed before.
    pub fn leave(&mut self, ticket: &Ticket) -> Option<T> {
        let guests = self.origins.get_mut(&ticket.origin)?;
        let guest = guests.remove(&ticket.number)?;
        self.len -= 1;
        if guests.is_empty() {
            self.origins.remove(&ticket.origin);
        }
        Some(guest.value)
    }

    /// Dismisses the oldest connection of the address that has the most. Of addresses with as many, the one with the
    /// oldest connection counts.
    pub fn dismiss(&mut self, now: Instant) -> Dismissal<T> {
        let oldest = |guests: &BTreeMap<u64, Guest<T>>| guests.keys().next().copied().unwrap_or(u64::MAX);
        let largest = self.origins.iter().max_by_key(|(_, guests)| (guests.len(), std::cmp::Reverse(oldest(guests))));
        let Some((origin, guests)) = largest else { return Dismissal::Empty };
        let Some((number, guest)) = guests.first_key_value() else { return Dismissal::Empty };
        let stay = now.saturating_duration_since(guest.since);
        if stay < MIN_STAY {
            return Dismissal::Later(MIN_STAY - stay);
        }
        let ticket = Ticket { origin: *origin, number: *number };
        self.leave(&ticket).map_or(Dismissal::Empty, Dismissal::Gone)
    }

    /// The number of connections in the room.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if no connection is in the room.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of connections from this address.
    pub fn num_from(&self, address: Option<IpAddr>) -> usize {
        self.origins.get(&address.map(network)).map_or(0, BTreeMap::len)
    }

    /// The number of connections of the address that has the most.
    pub fn num_of_largest(&self) -> usize {
        self.origins.values().map(BTreeMap::len).max().unwrap_or(0)
    }
}

/// Returns an IPv4 address as it is, and of an IPv6 address the first 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn the_oldest_of_the_largest_origin_goes_first() {
        let (mut room, start) = (WaitingRoom::default(), Instant::now());
        let later = start + MIN_STAY;
        room.enter(address("10.0.0.9"), start, "honest");
        for name in ["first", "second", "third"] {
            room.enter(address("10.0.0.1"), start, name);
        }
        let mut gone = Vec::new();
        while let Dismissal::Gone(name) = room.dismiss(later) {
            gone.push(name);
        }
        assert_eq!(gone, ["first", "second", "honest", "third"]);
        assert_eq!((room.len(), room.dismiss(later)), (0, Dismissal::Empty));
    }

    #[test]
    fn everybody_has_a_moment_for_a_proof() {
        let (mut room, start) = (WaitingRoom::default(), Instant::now());
        room.enter(None, start, ());
        assert_eq!(room.dismiss(start + MIN_STAY / 4), Dismissal::Later(MIN_STAY - MIN_STAY / 4));
        assert_eq!(room.dismiss(start + MIN_STAY), Dismissal::Gone(()));
    }

    #[test]
    fn a_connection_leaves_once() {
        let (mut room, start) = (WaitingRoom::default(), Instant::now());
        let [one, two] = [1, 2].map(|number| room.enter(address("::1"), start, number));
        assert_eq!((room.leave(&two), room.leave(&two)), (Some(2), None));
        assert_eq!(room.dismiss(start + MIN_STAY), Dismissal::Gone(1));
        assert_eq!((room.leave(&one), room.is_empty()), (None, true));
    }

    #[test]
    fn a_network_of_ipv6_is_one_origin_and_a_mapped_address_is_ipv4() {
        let (mut room, start) = (WaitingRoom::default(), Instant::now());
        for text in ["2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1", "10.0.0.1", "::ffff:10.0.0.1"] {
            room.enter(address(text), start, ());
        }
        let counts =
            ["2001:db8::2", "2001:db8:0:1::2", "10.0.0.1", "10.0.0.2"].map(|text| room.num_from(address(text)));
        assert_eq!((counts, room.num_of_largest()), ([2, 1, 2, 0], 2));
    }
}
