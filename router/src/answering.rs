//! Serves the requests of a connection. A request ends when its client leaves, even if bytes after the request's body
//! are unread, and the whole response has a deadline.
//!
//! Entry point: [`Answering`], the service of a connection. hyper alone does not notice that a client has left while
//! received bytes are unread. A single byte after a body would therefore keep a generation running although nobody
//! reads its answer.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, header};
use axum::{BoxError, Router};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::service::TowerToHyperService;

use crate::lifecycle::{Shutdown, Stage, Visit};
use crate::places::Place;
use crate::take_deadline::AnswerDeadline;
use sockets::Socket;

/// The error when the client has closed the connection.
#[derive(Debug, thiserror::Error)]
#[error("the client left")]
pub(crate) struct ClientLeft;

/// The service that answers the requests of a connection, one after the other.
#[derive(Debug)]
pub(crate) struct Answering {
    pub(crate) app: Router,
    pub(crate) socket: Socket,
    pub(crate) deadline: AnswerDeadline,
    pub(crate) visitor: Visitor,
    pub(crate) place: Arc<Place>,
}

/// The client of a connection, which visits the server from its first request on. Clones share the visit.
#[derive(Debug, Clone)]
pub(crate) struct Visitor {
    shutdown: Shutdown,
    visit: Arc<OnceLock<Visit>>,
}

impl Visitor {
    /// Creates a visitor that has sent nothing.
    pub(crate) fn new(shutdown: Shutdown) -> Self {
        Self { shutdown, visit: Arc::default() }
    }

    /// Begins the visit, unless it has begun or the server drains.
    fn arrive(&self) {
        if self.visit.get().is_none()
            && let Some(visit) = self.shutdown.enter()
        {
            let _ = self.visit.set(visit);
        }
    }

    /// Waits until no further request of the connection is read: at the drain if the visit has begun, so that idle
    /// connections end. A connection that is still new may send one request, to be refused, until the port closes.
    pub(crate) async fn dismissed(&self) {
        self.shutdown.reached(Stage::Draining).await;
        if self.visit.get().is_none() {
            self.shutdown.reached(Stage::Closed).await;
        }
    }
}

/// A future that completes when the client leaves.
type Closed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A request's body. `is_read` becomes true when the whole body was read.
#[derive(Debug)]
struct RequestBody {
    body: Incoming,
    is_read: Arc<AtomicBool>,
    request: Arc<CurrentRequest>,
}

/// The place of a connection during one request. Until the request has arrived as a whole, and after its response, the
/// connection waits.
#[derive(Debug)]
struct CurrentRequest {
    place: Arc<Place>,
    has_ended: AtomicBool,
}

/// Ends a request when the response was sent, or will not be sent.
#[derive(Debug)]
struct EndsRequest(Arc<CurrentRequest>);

impl CurrentRequest {
    fn arrived(&self) {
        if !self.has_ended.load(Ordering::Relaxed) {
            self.place.serve();
        }
    }
}

impl Drop for EndsRequest {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Relaxed);
        self.0.place.wait();
    }
}

/// A response's body. Reading the body fails when the client leaves.
pub(crate) struct AnswerBody {
    body: Body,
    closed: Closed,
    _end: EndsRequest,
}

impl Service<Request<Incoming>> for Answering {
    type Response = Response<AnswerBody>;
    type Error = ClientLeft;
    type Future = Pin<Box<dyn Future<Output = Result<Response<AnswerBody>, ClientLeft>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.deadline.begin();
        self.visitor.arrive();
        let (answer, shutdown) = (
            answer(self.app.clone(), self.socket.clone(), Arc::clone(&self.place), request),
            self.visitor.shutdown.clone(),
        );
        Box::pin(async move {
            let mut response = answer.await?;
            if shutdown.stage() >= Stage::Draining {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response)
        })
    }
}

async fn answer(
    app: Router,
    socket: Socket,
    place: Arc<Place>,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, ClientLeft> {
    let is_read = Arc::new(AtomicBool::new(request.body().is_end_stream()));
    // A head is not a whole request, but the connection has not waited in vain.
    place.wait();
    let current = Arc::new(CurrentRequest { place, has_ended: AtomicBool::new(false) });
    let end = EndsRequest(Arc::clone(&current));
    if is_read.load(Ordering::Relaxed) {
        current.arrived();
    }
    let request = request.map(|body| RequestBody { body, is_read: Arc::clone(&is_read), request: current });
    let mut answer = pin!(TowerToHyperService::new(app).call(request));
    let mut closed: Closed = Box::pin(socket.closed());
    let answered = poll_fn(|cx| {
        if let Poll::Ready(response) = answer.as_mut().poll(cx) {
            return Poll::Ready(Ok(response));
        }
        // Until the request's body is read, the reader of the body notices and handles the end of the connection.
        if !is_read.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        ready!(closed.as_mut().poll(cx));
        Poll::Ready(Err(ClientLeft))
    });
    match answered.await? {
        Ok(response) => Ok(response.map(|body| AnswerBody { body, closed, _end: end })),
        Err(never) => match never {},
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || self.body.is_end_stream() {
            self.is_read.store(true, Ordering::Relaxed);
            self.request.arrived();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        ready!(self.closed.as_mut().poll(cx));
        Poll::Ready(Some(Err(ClientLeft.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
