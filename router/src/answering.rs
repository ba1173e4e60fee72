//! Serves the requests of a connection. A request ends when its client leaves, even if bytes after the request's body
//! are unread, and the whole response has a deadline.
//!
//! Entry point: [`Answering`], the service of a connection. hyper alone does not notice that a client has left while
//! received bytes are unread. A single byte after a body would therefore keep a generation running although nobody
//! reads its answer.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::{BoxError, Router};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::service::TowerToHyperService;

use crate::socket::Socket;
use crate::take_deadline::AnswerDeadline;

/// The error when the client has closed the connection.
#[derive(Debug, thiserror::Error)]
#[error("the client left")]
pub(crate) struct ClientLeft;

/// The service that answers the requests of a connection, one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Answering {
    pub(crate) app: Router,
    pub(crate) socket: Socket,
    pub(crate) deadline: AnswerDeadline,
}

/// A future that completes when the client leaves.
type Closed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A request's body. `is_read` becomes true when the whole body was read.
#[derive(Debug)]
struct RequestBody {
    body: Incoming,
    is_read: Arc<AtomicBool>,
}

/// A response's body. Reading the body fails when the client leaves.
pub(crate) struct AnswerBody {
    body: Body,
    closed: Closed,
}

impl Service<Request<Incoming>> for Answering {
    type Response = Response<AnswerBody>;
    type Error = ClientLeft;
    type Future = Pin<Box<dyn Future<Output = Result<Response<AnswerBody>, ClientLeft>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.deadline.begin();
        Box::pin(answer(self.app.clone(), self.socket.clone(), request))
    }
}

async fn answer(app: Router, socket: Socket, request: Request<Incoming>) -> Result<Response<AnswerBody>, ClientLeft> {
    let is_read = Arc::new(AtomicBool::new(request.body().is_end_stream()));
    let request = request.map(|body| RequestBody { body, is_read: Arc::clone(&is_read) });
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
        Ok(response) => Ok(response.map(|body| AnswerBody { body, closed })),
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
