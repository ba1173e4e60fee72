//! The progress of the server's end, from its first request to the close of its port. Handlers and connections read it;
//! the lifecycle alone advances it.
//!
//! ```text
//!  Serving ─▶ Draining ───────────────────▶ Ending ──────────────────────▶ Closed
//!             new requests are refused,     requests that still wait        no connections
//!             running ones go on            get an error
//! ```

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::watch;

/// A stage of the server, in the order in which they follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Requests are served.
    Serving,
    /// New requests are refused. Requests that were accepted before go on.
    Draining,
    /// Requests that have no complete response yet end with an error.
    Ending,
    /// The port is closed, and so are all connections whose response is sent.
    Closed,
}

/// The stage of the server, and the connections with requests that were accepted. Clones share both.
#[derive(Debug, Clone)]
pub(crate) struct Shutdown(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    stage: watch::Sender<Stage>,
    /// Each receiver is a visit.
    visits: watch::Sender<()>,
}

/// A connection that has sent a request before the drain. The drain lasts until all visits are dropped.
#[derive(Debug)]
pub(crate) struct Visit {
    _visit: watch::Receiver<()>,
}

/// The end of all requests, as the reader of a stream waits for it beside the next event.
pub(crate) struct Ending(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Ending {
    /// Is ready once requests end. Must not be polled again after that.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ending")
    }
}

impl Shutdown {
    /// Creates the state of a server that serves.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Shared { stage: watch::Sender::new(Stage::Serving), visits: watch::Sender::new(()) }))
    }

    /// Returns the current stage.
    pub(crate) fn stage(&self) -> Stage {
        *self.0.stage.borrow()
    }

    /// Advances to a stage. A server that is in this stage or a later one stays there.
    pub(crate) fn advance(&self, stage: Stage) {
        self.0.stage.send_if_modified(|current| {
            let is_later = stage > *current;
            *current = stage.max(*current);
            is_later
        });
    }

    /// Waits until the server is in a stage or a later one.
    pub(crate) fn reached(&self, stage: Stage) -> impl Future<Output = ()> + Send + use<> {
        let shared = Arc::clone(&self.0);
        async move {
            // Cannot fail, because `shared` holds the sender.
            let _ = shared.stage.subscribe().wait_for(|current| *current >= stage).await;
        }
    }

    /// Returns the end of all requests.
    pub(crate) fn ending(&self) -> Ending {
        Ending(Box::pin(self.reached(Stage::Ending)))
    }

    /// Registers a connection, if the server still serves.
    pub(crate) fn enter(&self) -> Option<Visit> {
        // Registered first, so that a drain that begins now sees either the visit or no request.
        let visit = Visit { _visit: self.0.visits.subscribe() };
        (self.stage() == Stage::Serving).then_some(visit)
    }

    /// Waits until all visits have ended.
    pub(crate) async fn visits_ended(&self) {
        self.0.visits.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::within;

    #[tokio::test]
    async fn stages_only_advance() {
        let shutdown = Shutdown::new();
        shutdown.advance(Stage::Ending);
        shutdown.advance(Stage::Draining);
        assert_eq!(shutdown.stage(), Stage::Ending);
        for stage in [Stage::Serving, Stage::Draining, Stage::Ending] {
            within("a stage that is over", shutdown.reached(stage)).await;
        }
        assert!(futures_util::FutureExt::now_or_never(shutdown.reached(Stage::Closed)).is_none());
    }

    #[tokio::test]
    async fn a_drain_waits_for_visits_that_began_before_it() {
        let shutdown = Shutdown::new();
        let visit = shutdown.enter().unwrap();
        shutdown.advance(Stage::Draining);
        assert!(shutdown.enter().is_none());
        assert!(futures_util::FutureExt::now_or_never(shutdown.visits_ended()).is_none());
        drop(visit);
        within("the end of the visit", shutdown.visits_ended()).await;
    }
}
