//! `GET /metrics`: all metrics in Prometheus' text format, or some of them (`?name[]=`), compressed for clients that
//! accept gzip.
//!
//! The table of metrics is in `crate::metrics`.

use std::collections::HashSet;

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::state::AppState;

const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const GZIP: HeaderValue = HeaderValue::from_static("gzip");

/// The parameter of a query that names a metric, as in Prometheus' client libraries. It may occur several times.
pub(super) const NAME: &str = "name[]";

/// The handler of the route.
pub(super) async fn metrics(State(state): State<AppState>, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    let page = state.metrics().page().await;
    let names = names(query.as_deref().unwrap_or_default());
    let kind = [(header::CONTENT_TYPE, CONTENT_TYPE), (header::VARY, "accept-encoding")];
    // A page with some of the metrics is small, so it is sent as it is.
    if !names.is_empty() {
        (kind, page.only(&names)).into_response()
    } else if accepts_gzip(&headers) {
        (kind, [(header::CONTENT_ENCODING, GZIP)], page.gzip()).into_response()
    } else {
        (kind, page.text()).into_response()
    }
}

/// Returns the names of metrics in a query.
fn names(query: &str) -> HashSet<String> {
    let parameters = form_urlencoded::parse(query.as_bytes());
    parameters.filter(|(key, _)| key == NAME).map(|(_, name)| name.into_owned()).collect()
}

/// True if the client accepts gzip: `Accept-Encoding` of RFC 9110 names it, or any coding, with a weight above 0.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
    let codings: Vec<(&str, f32)> = values.flat_map(|value| value.split(',')).map(weighted).collect();
    let weight = |name: &str| codings.iter().find(|(coding, _)| coding.eq_ignore_ascii_case(name)).map(|(_, q)| *q);
    weight("gzip").or_else(|| weight("*")).is_some_and(|weight| weight > 0.0)
}

/// Splits an element of `Accept-Encoding` into its name and its weight. A weight that is not a number is 0.
fn weighted(element: &str) -> (&str, f32) {
    let (coding, parameter) = element.split_once(';').unwrap_or((element, "q=1"));
    let weight = parameter.trim().strip_prefix(['q', 'Q']).and_then(|rest| rest.trim_start().strip_prefix('='));
    (coding.trim(), weight.and_then(|weight| weight.trim().parse().ok()).unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use axum::body::Body;
    use axum::http::Request;
    use http_body_util::BodyExt as _;
    use tower::ServiceExt as _;

    use super::*;
    use crate::testing::{FakeShard, TestServer};

    #[tokio::test]
    async fn a_scraper_gets_only_the_metrics_that_it_names() {
        let server = TestServer::start(FakeShard::default(), &[]).await;
        let some = server.get("/metrics?name[]=vllm%3Anum_requests_waiting&x=1&name%5B%5D=hilo_slots_used").await;
        let samples: Vec<&str> = some.text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        let mut sorted = samples.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, ["hilo_slots_used 0", "vllm:num_requests_waiting{model_name=\"demo\",engine=\"0\"} 0"]);
        assert_eq!(server.get("/metrics?name[]=no_such_metric").await.text, "");
        assert!(server.get("/metrics?name=hilo_slots_used").await.text.contains("tgi_queue_size 0"));
    }

    #[tokio::test]
    async fn a_client_that_accepts_gzip_gets_the_same_page_in_fewer_bytes() {
        let server = TestServer::start(FakeShard::default(), &[]).await;
        let get = async |accepted: &str| {
            let request =
                Request::get("/metrics").header(header::ACCEPT_ENCODING, accepted).body(Body::empty()).unwrap();
            let (parts, body) = server.app.clone().oneshot(request).await.unwrap().into_parts();
            (parts.headers, body.collect().await.unwrap().to_bytes())
        };
        let (headers, text) = get("identity").await;
        assert!(!headers.contains_key(header::CONTENT_ENCODING) && headers[header::VARY] == "accept-encoding");
        let (headers, gzip) = get("br, gzip;q=0.5").await;
        assert_eq!(headers[header::CONTENT_ENCODING], "gzip");
        assert!(gzip.len() < text.len() / 4, "{} of {} bytes", gzip.len(), text.len());
        let mut unpacked = String::new();
        flate2::read::GzDecoder::new(&*gzip).read_to_string(&mut unpacked).unwrap();
        let names = |text: &str| text.lines().filter(|line| line.starts_with("# TYPE ")).map(str::to_owned).collect();
        let [expected, found]: [HashSet<String>; 2] = [names(std::str::from_utf8(&text).unwrap()), names(&unpacked)];
        assert_eq!(expected, found);
    }

    #[test]
    fn gzip_is_accepted_by_name_or_with_every_coding() {
        let accepts = |value: &str| {
            let value = HeaderValue::from_str(value).unwrap();
            accepts_gzip(&HeaderMap::from_iter([(header::ACCEPT_ENCODING, value)]))
        };
        for value in ["gzip", "deflate, GZip", "br;q=1.0,gzip ; q=0.1", "*", "identity, *;q=0.5"] {
            assert!(accepts(value), "{value}");
        }
        for value in ["", "identity", "gzip;q=0", "gzip; q=0.000, *", "*;q=0", "gzip;q=x", "gzipped"] {
            assert!(!accepts(value), "{value}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }
}
