//! Tests of the real executable over HTTP and with signals, one file per feature. The harness is the library of this
//! crate. No test sleeps for a fixed time: tests wait for an event and fail at a deadline.

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
mod hosts;
mod hub;
mod hub_faults;
mod hub_gguf;
mod invariance;
mod kv_cache;
mod lifecycle;
mod links;
mod logs;
mod plans;
mod plugins;
mod preflight;
mod probe;
mod programs;
mod ranks;
mod row_failures;
mod streaming;
mod structured_output;
mod threads;
mod traces;
mod validation;
mod windows;
