//! The page of all metrics: rendered at most ten times a second, shared by everybody who waits for it, compressed once,
//! and reduced to some names.
//!
//! Entry points: [`LatestPage`], [`Page`]. A page costs the time of some hundred tokens, so the number of clients that
//! ask for it must not decide how often it is rendered.

use std::collections::HashSet;
use std::io::Write as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The minimum time between two renderings.
const PERIOD: Duration = Duration::from_millis(100);

/// The page that was rendered last. Requests that come within [`PERIOD`] after it wait for the next one and share it,
/// so the values on a page are never older than its request.
#[derive(Debug, Default)]
pub(super) struct LatestPage(Mutex<Option<Rendered>>);

#[derive(Debug)]
struct Rendered {
    /// The time just before the rendering.
    at: Instant,
    page: Arc<Page>,
}

/// All metrics in Prometheus' text format.
#[derive(Debug)]
pub(crate) struct Page {
    text: Bytes,
    /// The compressed text, from the first time that a client asks for it.
    gzip: OnceLock<Bytes>,
}

impl LatestPage {
    /// Returns a page that was rendered after this call.
    pub(super) async fn next(&self, render: impl FnOnce() -> String) -> Arc<Page> {
        let asked_at = Instant::now();
        let mut latest = self.0.lock().await;
        if let Some(Rendered { at, page }) = &*latest {
            if *at > asked_at {
                return Arc::clone(page);
            }
            // Those who ask meanwhile wait for the lock.
            tokio::time::sleep_until(*at + PERIOD).await;
        }
        let at = Instant::now();
        let page = Arc::new(Page::new(render()));
        *latest = Some(Rendered { at, page: Arc::clone(&page) });
        page
    }
}

impl Page {
    fn new(text: String) -> Self {
        Self { text: text.into(), gzip: OnceLock::new() }
    }

    /// Returns the text.
    pub(crate) fn text(&self) -> Bytes {
        self.text.clone()
    }

    /// Returns the text as a gzip file.
    pub(crate) fn gzip(&self) -> Bytes {
        self.gzip.get_or_init(|| compress(&self.text).into()).clone()
    }

    /// Returns the metrics with these names. The name of a histogram stands for all of its samples; a name with
    /// `_bucket`, `_sum` or `_count` for those. Names that the page lacks are ignored, as by Prometheus' client
    /// libraries.
    pub(crate) fn only(&self, names: &HashSet<String>) -> String {
        // The page was made from text.
        let text = std::str::from_utf8(&self.text).unwrap_or_default();
        text.split("\n\n").map(|family| family_only(family, names)).collect()
    }
}

/// Returns the wanted samples of one metric, after its lines `# HELP` and `# TYPE`; nothing if none is wanted.
fn family_only(family: &str, names: &HashSet<String>) -> String {
    let is_comment = |line: &&str| line.starts_with('#');
    let is_whole =
        family.lines().filter(is_comment).filter_map(|line| line.split(' ').nth(2)).any(|n| names.contains(n));
    let is_wanted = |line: &&str| is_whole || line.split(['{', ' ']).next().is_some_and(|name| names.contains(name));
    let samples: Vec<&str> = family.lines().filter(|line| !is_comment(line)).filter(is_wanted).collect();
    if samples.is_empty() {
        return String::new();
    }
    let lines: Vec<&str> = family.lines().filter(is_comment).chain(samples).collect();
    lines.join("\n") + "\n\n"
}

fn compress(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let written = encoder.write_all(text);
    debug_assert!(written.is_ok(), "writing to memory cannot fail: {written:?}");
    encoder.finish().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Read as _;

    use super::*;

    const TEXT: &str = "\
        # HELP a_count Requests\n# TYPE a_count counter\na_count{err=\"x\"} 1\na_count{err=\"y\"} 2\n\n\
        # HELP b Seconds\n# TYPE b histogram\nb_bucket{le=\"1\"} 3\nb_bucket{le=\"+Inf\"} 4\nb_sum 5.5\nb_count 4\n\n\
        # HELP bb Blocks\n# TYPE bb gauge\nbb 7\n\n";

    fn only(names: &[&str]) -> String {
        Page::new(TEXT.to_owned()).only(&names.iter().map(|&name| name.to_owned()).collect())
    }

    #[test]
    fn a_name_selects_a_metric_or_one_kind_of_its_samples() {
        assert_eq!(only(&["a_count", "b", "bb"]), TEXT);
        assert_eq!(only(&["a_count"]), TEXT.split_inclusive("\n\n").next().unwrap());
        let sums =
            "# HELP b Seconds\n# TYPE b histogram\nb_sum 5.5\nb_count 4\n\n# HELP bb Blocks\n# TYPE bb gauge\nbb 7\n\n";
        assert_eq!(only(&["b_sum", "b_count", "bb"]), sums);
        assert_eq!(only(&["b_buck", "a", "Seconds", ""]), "");
    }

    #[test]
    fn the_compressed_page_is_the_page() {
        let page = Page::new(TEXT.repeat(100));
        let mut text = String::new();
        flate2::read::GzDecoder::new(&*page.gzip()).read_to_string(&mut text).unwrap();
        assert_eq!(text.as_bytes(), page.text());
        assert!(page.gzip().len() < page.text().len() / 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_is_rendered_ten_times_a_second_for_any_number_of_clients() {
        let (pages, num_rendered) = (LatestPage::default(), Cell::new(0));
        let ask = || async {
            pages
                .next(|| {
                    num_rendered.set(num_rendered.get() + 1);
                    num_rendered.get().to_string()
                })
                .await
                .text()
        };
        let start = Instant::now();
        let first = ask().await;
        for _ in 0..10 {
            let pages = futures_util::future::join_all((0..100).map(|_| ask())).await;
            assert!(pages.iter().all(|page| *page == pages[0] && *page != first), "{pages:?}");
        }
        assert_eq!((num_rendered.get(), start.elapsed()), (11, 10 * PERIOD));
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_has_what_happened_before_its_request() {
        let (pages, value) = (LatestPage::default(), Cell::new(0));
        for expected in 0..5 {
            value.set(expected);
            let page = pages.next(|| value.get().to_string()).await;
            assert_eq!(page.text(), expected.to_string());
        }
    }
}
