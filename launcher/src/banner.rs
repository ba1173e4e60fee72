//! What a person reads when the server is ready: the address and a command to try.

use telemetry::LogLine;

/// The banner for the router's `ready` line, or `None` for any other line.
pub(crate) fn from_log_line(line: &LogLine) -> Option<String> {
    if line.message != "ready" {
        return None;
    }
    let text = |name| line.fields.get(name).and_then(|value| value.as_str());
    let number = |name| line.fields.get(name).and_then(serde_json::Value::as_u64);
    let url = text("url")?;
    let limits = match (number("max_input_tokens"), number("max_total_tokens")) {
        (Some(input), Some(total)) => format!(", prompts up to {input} tokens, {total} in all"),
        _ => String::new(),
    };
    let local = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:");
    let everywhere = if local == url { "" } else { ", from other machines at this one's name" };
    let (pages, called) = match url.strip_prefix("unix:") {
        Some(path) => (String::new(), format!("--unix-socket '{path}' http://localhost")),
        None => (pages(&local), local.clone()),
    };
    // The certificate is for the name that clients use, not for this machine's own address.
    let insecure = if url.starts_with("https:") { "--insecure " } else { "" };
    Some(format!(
        "\n  {model} is ready at {local}{everywhere}{limits}\n\n{pages}  curl {insecure}{called}/generate \
         -H 'Content-Type: application/json' \\\n    \
         -d '{{\"inputs\":\"Once upon a time\",\"parameters\":{{\"max_new_tokens\":100}}}}'\n\n",
        model = text("model_id").unwrap_or("the model"),
    ))
}

/// Where a browser and a client of OpenAI's find what they want.
fn pages(url: &str) -> String {
    format!("  in a browser    {url}/playground\n  every route     {url}/docs\n  OpenAI clients  {url}/v1\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_makes_a_banner() {
        let line = r#"{"level":"INFO","message":"ready","url":"http://0.0.0.0:3000","model_id":"demo","max_input_tokens":1023,"max_total_tokens":1024}"#;
        let banner = from_log_line(&LogLine::parse(line).unwrap()).unwrap();
        let first =
            "demo is ready at http://127.0.0.1:3000, from other machines at this one's name, prompts up to 1023 tokens";
        assert!(banner.contains(first), "{banner}");
        for page in ["/playground\n", "/docs\n", "/v1\n"] {
            assert!(banner.contains(&format!("  http://127.0.0.1:3000{page}")), "{banner}");
        }
        assert!(!banner.contains("0.0.0.0"), "{banner}");
        assert!(banner.contains("curl http://127.0.0.1:3000/generate"), "{banner}");
    }

    #[test]
    fn a_certificate_is_not_for_the_loopback() {
        let line = r#"{"level":"INFO","message":"ready","url":"https://0.0.0.0:3000"}"#;
        let banner = from_log_line(&LogLine::parse(line).unwrap()).unwrap();
        assert!(banner.contains("curl --insecure https://127.0.0.1:3000/generate"), "{banner}");
    }

    #[test]
    fn a_socket_has_a_path() {
        let line = r#"{"level":"INFO","message":"ready","url":"unix:/run/hilo.sock"}"#;
        let banner = from_log_line(&LogLine::parse(line).unwrap()).unwrap();
        assert!(banner.contains("ready at unix:/run/hilo.sock\n\n  curl"), "{banner}");
        assert!(banner.contains("curl --unix-socket '/run/hilo.sock' http://localhost/generate"), "{banner}");
    }

    #[test]
    fn other_lines_do_not() {
        assert_eq!(from_log_line(&LogLine::parse(r#"{"level":"INFO","message":"Success"}"#).unwrap()), None);
    }
}
