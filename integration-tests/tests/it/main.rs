//! The real executable, driven over HTTP and by signals. One file per feature; the harness is the library of this
//! crate. Nothing here waits for a time to pass: tests wait for an event and fail at a deadline.

mod ahead;
mod chat;
mod concurrency;
mod dashboard;
mod endpoints;
mod failures;
mod faults;
mod first_process;
mod generate;
mod health;
mod hub;
mod hub_faults;
mod invariance;
mod kv_cache;
mod lifecycle;
mod logs;
mod plans;
mod plugins;
mod preflight;
mod programs;
mod ranks;
mod row_failures;
mod streaming;
mod structured_output;
mod threads;
mod traces;
mod validation;
