//! Prepares the source of a template for minijinja: converts line ends as Jinja does, and replaces the block
//! `generation`.
//!
//! `{% generation %}` marks the assistant's text for training. Here it is only a scope.

/// Returns the same template in minijinja's syntax.
pub(super) fn prepare(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut prepared = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(start) = rest.find("{%") {
        let (before, block) = rest.split_at(start + 2);
        prepared.push_str(before);
        let word_at = block.len() - block.trim_start_matches(['-', '+']).trim_start().len();
        let (marks, block) = block.split_at(word_at);
        prepared.push_str(marks);
        rest = block;
        for (word, scope) in [("generation", "with"), ("endgeneration", "endwith")] {
            if let Some(end) = block.strip_prefix(word)
                && end.trim_start().trim_start_matches(['-', '+']).starts_with("%}")
            {
                prepared.push_str(scope);
                rest = end;
            }
        }
    }
    prepared + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_generation_is_a_scope() {
        for (source, expected) in [
            ("a\r\nb\rc", "a\nb\nc"),
            ("{% generation %}x{% endgeneration %}", "{% with %}x{% endwith %}"),
            ("{%- generation -%}x{%-endgeneration-%}{%", "{%- with -%}x{%-endwith-%}{%"),
            ("{% if generation %}{% generation2 %}generation", "{% if generation %}{% generation2 %}generation"),
        ] {
            assert_eq!(prepare(source), expected);
        }
    }
}
