//! The HTTP client of the tests. Every request has a timeout. A response with an error status is returned like any
//! other.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use serde_json::{Value, json};
use ureq::RequestBuilder;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::metrics::Metrics;
use crate::sse::SseStream;

/// The default timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Sends requests to one server. It is cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    agent: ureq::Agent,
    url: String,
    api_key: Option<String>,
}

/// Status, headers and body of a response.
#[derive(Debug)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Header names (lower case) and values.
    pub headers: Vec<(String, String)>,
    /// The body as text.
    pub text: String,
}

impl Response {
    /// The body as JSON.
    ///
    /// # Panics
    /// When the body is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {} {:?}", self.status, self.text))
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    /// The message and the type of the error in the body; an empty string for a field that is missing.
    pub fn error(&self) -> (String, String) {
        let json = self.json();
        let text = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
        (text("error"), text("error_type"))
    }
}

impl Client {
    /// Creates a client of the server at `url`.
    pub fn new(url: &str) -> Self {
        Self { agent: agent(Some(TIMEOUT), TlsConfig::default()), url: url.to_owned(), api_key: None }
    }

    /// Returns a client of the same server whose requests fail after `timeout`.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { agent: agent(Some(timeout), self.agent.config().tls_config().clone()), ..self.clone() }
    }

    /// Returns a client of the same server that trusts only this certificate, in PEM.
    ///
    /// # Panics
    /// When `certificate` is not a certificate.
    #[must_use]
    pub fn trusting(&self, certificate: &str) -> Self {
        let certificate = Certificate::from_pem(certificate.as_bytes()).expect("a certificate in PEM");
        let tls = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&[certificate])).build();
        Self { agent: agent(self.agent.config().timeouts().global, tls), ..self.clone() }
    }

    /// Returns a client of the same server that sends this API key.
    #[must_use]
    pub fn with_api_key(&self, api_key: &str) -> Self {
        Self { api_key: Some(api_key.to_owned()), ..self.clone() }
    }

    /// The URL of a path on this server.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// Sends a GET request.
    ///
    /// # Panics
    /// When there is no response.
    pub fn get(&self, path: &str) -> Response {
        self.try_get(path).expect("an answer")
    }

    /// Sends a GET request. Returns the response, or the error if there was none.
    pub fn try_get(&self, path: &str) -> Result<Response, ureq::Error> {
        self.with_key(self.agent.get(self.url(path))).call().map(read)
    }

    /// Sends a POST request with JSON.
    ///
    /// # Panics
    /// When there is no response.
    pub fn post(&self, path: &str, body: &Value) -> Response {
        read(self.with_key(self.agent.post(self.url(path))).send_json(body).expect("an answer"))
    }

    /// Sends a POST request with these bytes as `application/json`. Returns the response, or the error if there was
    /// none.
    pub fn post_bytes(&self, path: &str, body: &[u8]) -> Result<Response, ureq::Error> {
        self.with_key(self.agent.post(self.url(path))).content_type("application/json").send(body).map(read)
    }

    /// Sends a POST request whose response is read event by event, as it arrives.
    pub fn stream(&self, path: &str, body: &Value) -> Result<SseStream, ureq::Error> {
        Ok(SseStream::new(self.with_key(self.agent.post(self.url(path))).send_json(body)?))
    }

    /// Sends a POST request without an API key, and returns the status and the lines of the response, which may have
    /// any type and are read as they arrive. Dropping the lines closes the connection.
    ///
    /// # Errors
    /// When there is no response.
    pub fn open(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<(u16, impl Iterator<Item = std::io::Result<String>> + use<>), ureq::Error> {
        let response = self.agent.post(self.url(path)).send_json(body)?;
        let status = response.status().as_u16();
        Ok((status, BufReader::new(response.into_body().into_reader()).lines()))
    }

    /// The `generated_text` of a greedy `/generate` request.
    ///
    /// # Panics
    /// When the request fails.
    pub fn generate(&self, inputs: &str, max_new_tokens: u32) -> String {
        let response =
            self.post("/generate", &json!({"inputs": inputs, "parameters": {"max_new_tokens": max_new_tokens}}));
        assert_eq!(response.status, 200, "{}", response.text);
        response.json()["generated_text"].as_str().expect("generated_text is a string").to_owned()
    }

    /// The values on the page `/metrics`.
    pub fn metrics(&self) -> Metrics {
        Metrics::parse(&self.get("/metrics").text)
    }

    fn with_key<Body>(&self, request: RequestBuilder<Body>) -> RequestBuilder<Body> {
        match &self.api_key {
            Some(api_key) => request.header("authorization", format!("Bearer {api_key}")),
            None => request,
        }
    }
}

fn agent(timeout: Option<Duration>, tls: TlsConfig) -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(timeout).tls_config(tls);
    // Tests count connections and close them on purpose, so no connection is reused.
    config.max_idle_connections(0).proxy(None).build().new_agent()
}

fn read(mut response: ureq::http::Response<ureq::Body>) -> Response {
    let headers = response.headers().iter();
    let headers =
        headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().to_owned())).collect();
    let status = response.status().as_u16();
    Response { status, headers, text: response.body_mut().read_to_string().expect("a body that is text") }
}
