//! Tests that a request's log lines contain the id of the trace to which it belongs.

use integration_tests::Server;
use serde_json::{Value, json};

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn the_log_names_the_trace_of_a_request() {
    let server = Server::mock().start();
    let body = json!({"inputs": "Once", "parameters": {"max_new_tokens": 2}});
    for traceparent in [TRACEPARENT, "00-4bf92f35-00f067aa-01"] {
        let request = ureq::post(server.client().url("/generate")).header("traceparent", traceparent);
        assert_eq!(request.send_json(&body).unwrap().status(), 200, "{traceparent}");
    }
    let log = server.stop().log;
    let lines = log.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ends: Vec<Value> = lines.filter(|line| line["message"] == "Success").collect();
    assert_eq!(ends.len(), 2, "{log:#?}");
    let ids = |line: &Value| (line["trace_id"].clone(), line["parent_id"].clone());
    assert_eq!(ids(&ends[0]), (json!("4bf92f3577b34da6a3ce929d0e0e4736"), json!("00f067aa0ba902b7")));
    assert_eq!(ids(&ends[1]), (Value::Null, Value::Null), "an invalid `traceparent` is ignored");
}
