//! The harness of the tests. It starts the real executable and talks to it over HTTP, as a user would.
//!
//! [`Server`] is a running `text-generation-launcher` with its children; [`Client`] sends requests to it; an
//! [`Interposer`] injects faults between a shard and its clients; a [`Hub`] serves the models that the launcher
//! downloads. Unless a test says otherwise, the system chooses the ports and sockets are in a directory of the test.
//! The device is the CPU, or the one that [`test_device`] reads from the environment.

pub mod aftermath;
mod client;
mod connection;
mod device;
mod end;
mod hub;
mod interposer;
mod log_reader;
mod memory;
mod metrics;
mod ports;
mod server;
mod sse;

pub use client::{Client, Response};
pub use connection::{Connection, request_head};
pub use device::{is_plugin_there, test_device};
pub use end::{End, pause};
pub use hub::{COMMIT, Hub, HubFault, HubRequest, MODEL_ID, OLD_MODEL_ID};
pub use interposer::{Fault, Interposer, Moment};
pub use log_reader::LogReader;
pub use memory::{Processes, Resident};
pub use metrics::Metrics;
pub use server::{Finished, Server, ServerBuilder, executable, send_signal};
pub use sse::SseStream;
