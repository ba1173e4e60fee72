//! The places of connections. If all are taken, a connection that asks for nothing makes room for a new one.
//!
//! Entry points: [`Places`], which an acceptor asks for a [`Place`] for each connection. A place is *waiting* until its
//! client has sent a whole request, or another proof that it is there for something, and again afterwards. Meanwhile
//! it is *serving*. [`endpoint::WaitingRoom`] says which waiting connection goes first.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use endpoint::{Dismissal, Ticket, WaitingRoom};
use metrics::Gauge;
use telemetry::Throttle;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::connections::CONNECTION_BYTES;
use crate::memory::{Held, Part};
use sockets::Stream;

/// The rule for connections that serve when no connection waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// All of them stay, and new connections wait.
    All,
    /// The oldest one of the address that has the most goes, if the new connection's address then still has fewer.
    EqualShares,
}

/// The places of one door. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    memory: Part,
    shared: Arc<Shared>,
}

/// The place of a connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    shared: Arc<Shared>,
    address: Option<IpAddr>,
    seat: Mutex<Seat>,
    dismissed: Arc<Notify>,
    _held: Held,
}

#[derive(Debug)]
struct Shared {
    /// The name of the connections in the log.
    name: &'static str,
    rule: Rule,
    rooms: Mutex<Rooms>,
    /// Notified when a connection begins to wait.
    entered: Notify,
    num_serving: Gauge,
}

#[derive(Debug, Default)]
struct Rooms {
    waiting: WaitingRoom<Arc<Notify>>,
    serving: WaitingRoom<Arc<Notify>>,
    lines: Throttle,
}

#[derive(Debug)]
enum Seat {
    Waiting(Ticket),
    Serving(Ticket),
    /// The connection was dismissed.
    Gone,
}

impl Places {
    /// Creates as many places as `memory` has room for. `name` is that of the connections in the log, and `num_serving`
    /// shows the number of those that serve.
    pub(crate) fn new(memory: Part, (name, rule): (&'static str, Rule), num_serving: Gauge) -> Self {
        let (rooms, entered) = (Mutex::default(), Notify::new());
        Self { memory, shared: Arc::new(Shared { name, rule, rooms, entered, num_serving }) }
    }

    /// Waits until there is a place for a connection from this address, and takes it. Makes room if another connection
    /// may go. If the returned future is dropped, the place stays free.
    pub(crate) async fn take(&self, address: Option<IpAddr>) -> Place {
        let held = self.make_room(address).await;
        let dismissed = Arc::new(Notify::new());
        let ticket = self.shared.rooms().waiting.enter(address, now(), Arc::clone(&dismissed));
        self.shared.entered.notify_one();
        let (shared, seat) = (Arc::clone(&self.shared), Mutex::new(Seat::Waiting(ticket)));
        Place { shared, address, seat, dismissed, _held: held }
    }

    async fn make_room(&self, address: Option<IpAddr>) -> Held {
        let freed = || async {
            let taken = self.memory.take(CONNECTION_BYTES, Duration::MAX).await;
            taken.expect("there is memory for one connection")
        };
        loop {
            if let Some(held) = self.memory.try_take(CONNECTION_BYTES) {
                return held;
            }
            let dismissal = self.shared.dismiss(address);
            self.shared.note(&dismissal);
            match dismissal {
                Dismissal::Gone(dismissed) => {
                    dismissed.notify_one();
                    return freed().await;
                }
                Dismissal::Later(time) => {
                    if let Ok(held) = tokio::time::timeout(time, freed()).await {
                        return held;
                    }
                }
                Dismissal::Empty => tokio::select! {
                    held = freed() => return held,
                    () = self.shared.entered.notified() => {}
                },
            }
        }
    }
}

impl Place {
    /// Shows that the client has sent a whole request, or a proof of another kind.
    pub(crate) fn serve(&self) {
        self.sit(|rooms| Seat::Serving(rooms.serving.enter(self.address, now(), Arc::clone(&self.dismissed))));
    }

    /// Shows that the client asks for nothing from now on. It is the last one to go.
    pub(crate) fn wait(&self) {
        self.sit(|rooms| Seat::Waiting(rooms.waiting.enter(self.address, now(), Arc::clone(&self.dismissed))));
        self.shared.entered.notify_one();
    }

    /// Waits until the connection must be closed, because another one needs its place.
    pub(crate) async fn dismissed(&self) {
        self.dismissed.notified().await;
    }

    /// Leaves the seat for another one, unless the connection was dismissed.
    fn sit(&self, enter: impl FnOnce(&mut Rooms) -> Seat) {
        let mut seat = self.seat.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rooms = self.shared.rooms();
        *seat = if rooms.leave(&seat) { enter(&mut rooms) } else { Seat::Gone };
        self.shared.num_serving.set(rooms.serving.len() as f64);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.sit(|_| Seat::Gone);
    }
}

impl Shared {
    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Dismisses a connection in favour of one from this address.
    fn dismiss(&self, address: Option<IpAddr>) -> Dismissal<Arc<Notify>> {
        let mut rooms = self.rooms();
        match rooms.waiting.dismiss(now()) {
            Dismissal::Empty
                if self.rule == Rule::EqualShares
                    && rooms.serving.num_of_largest() > rooms.serving.num_from(address) + 1 =>
            {
                rooms.serving.dismiss(now())
            }
            dismissal => dismissal,
        }
    }

    /// Logs from time to time that the places are short.
    fn note(&self, dismissal: &Dismissal<Arc<Notify>>) {
        let effect = match dismissal {
            Dismissal::Gone(_) => "the oldest connection of the address that has the most is closed",
            Dismissal::Empty => "new connections wait",
            Dismissal::Later(_) => return,
        };
        if let Some(num) = self.rooms().lines.count(now()) {
            tracing::warn!("all places for {} are taken: {effect} ({num} since the last such line)", self.name);
        }
    }
}

impl Rooms {
    /// Returns false if the connection was dismissed.
    fn leave(&mut self, seat: &Seat) -> bool {
        match seat {
            Seat::Waiting(ticket) => self.waiting.leave(ticket).is_some(),
            Seat::Serving(ticket) => self.serving.leave(ticket).is_some(),
            Seat::Gone => false,
        }
    }
}

/// The address of a client; `None` on a Unix socket.
pub(crate) fn address(stream: &Stream) -> Option<IpAddr> {
    match stream {
        Stream::Tcp(stream) => stream.peer_addr().ok().map(|address| address.ip()),
        Stream::Unix(_) => None,
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::within;

    fn places(num: usize, rule: Rule) -> Places {
        Places::new(Part::new(num * CONNECTION_BYTES), ("a test", rule), Gauge::noop())
    }

    fn from(last: u8) -> Option<IpAddr> {
        Some([10, 0, 0, last].into())
    }

    /// Takes a place from `address` while `oldest` must go, and gives up the place of `oldest`.
    async fn instead_of(places: &Places, address: Option<IpAddr>, oldest: Place) -> Place {
        let leave = async {
            oldest.dismissed().await;
            drop(oldest);
        };
        within("a place", async { tokio::join!(places.take(address), leave).0 }).await
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_waited_longest_goes_first() {
        let places = places(3, Rule::All);
        let [first, second, third] =
            [places.take(from(1)).await, places.take(from(1)).await, places.take(from(1)).await];
        first.serve();
        second.serve();
        second.wait();
        let fourth = instead_of(&places, from(2), third).await;
        fourth.serve();
        let _fifth = instead_of(&places, from(2), second).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_found_when_a_request_ends() {
        let places = places(1, Rule::All);
        let place = places.take(from(1)).await;
        place.serve();
        let end = async {
            let newcomer = places.take(from(2));
            tokio::pin!(newcomer);
            let early = tokio::time::timeout(Duration::from_secs(10), newcomer.as_mut()).await;
            assert!(early.is_err(), "a request was cut off");
            place.wait();
            let leave = async {
                place.dismissed().await;
                drop(place);
            };
            tokio::join!(newcomer, leave);
        };
        within("the place of a request that ended", end).await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_with_most_places_shares_them() {
        let places = places(3, Rule::EqualShares);
        let mut all = Vec::new();
        for _ in 0..3 {
            let place = places.take(from(1)).await;
            place.serve();
            all.push(place);
        }
        let another = instead_of(&places, from(2), all.remove(0)).await;
        another.serve();
        let wait = tokio::time::timeout(Duration::from_secs(10), places.take(from(2))).await;
        assert!(wait.is_err(), "an address with an equal share got more");
    }
}
