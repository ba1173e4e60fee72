//! The text that a terminal shows when the server is ready: the address and a command to try.

use router::Ready;

/// The banner of a server that is ready.
pub(crate) fn text(ready: &Ready) -> String {
    let Ready { url, model_id, max_input_tokens, max_total_tokens } = ready;
    let local = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:");
    let everywhere = if local == *url { "" } else { ", from other machines at this one's name" };
    let (pages, called) = match url.strip_prefix("unix:") {
        Some(path) => (String::new(), format!("--unix-socket '{path}' http://localhost")),
        None => (pages(&local), local.clone()),
    };
    // The certificate is for the name that clients use, not for the loopback address.
    let insecure = if url.starts_with("https:") { "--insecure " } else { "" };
    format!(
        "\n  {model_id} is ready at {local}{everywhere}, prompts up to {max_input_tokens} tokens, {max_total_tokens} in \
         all\n\n{pages}  curl {insecure}{called}/generate -H 'Content-Type: application/json' \\\n    \
         -d '{{\"inputs\":\"Once upon a time\",\"parameters\":{{\"max_new_tokens\":100}}}}'\n\n",
    )
}

/// The lines with the addresses of the playground, the documentation and the OpenAI API.
fn pages(url: &str) -> String {
    format!("  in a browser    {url}/playground\n  every route     {url}/docs\n  OpenAI clients  {url}/v1\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn banner(url: &str) -> String {
        text(&Ready { url: url.into(), model_id: "demo".into(), max_input_tokens: 1023, max_total_tokens: 1024 })
    }

    #[test]
    fn a_server_that_is_ready_has_a_banner() {
        let banner = banner("http://0.0.0.0:3000");
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
        let banner = banner("https://0.0.0.0:3000");
        assert!(banner.contains("curl --insecure https://127.0.0.1:3000/generate"), "{banner}");
    }

    #[test]
    fn a_socket_has_a_path() {
        let banner = banner("unix:/run/hilo.sock");
        assert!(
            banner.contains("ready at unix:/run/hilo.sock, prompts up to 1023 tokens, 1024 in all\n\n  curl"),
            "{banner}"
        );
        assert!(banner.contains("curl --unix-socket '/run/hilo.sock' http://localhost/generate"), "{banner}");
    }
}
