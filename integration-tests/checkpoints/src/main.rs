//! Prints the path of a checkpoint with its weights: `cargo run -p checkpoints -- families/llama-yarn`, or of a GGUF
//! file: `cargo run -p checkpoints -- gguf-families/gemma.gguf`.

use std::io::Write as _;

fn main() -> std::io::Result<()> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    if names.is_empty() {
        return writeln!(std::io::stderr(), "name folders or GGUF files of integration-tests/fixtures");
    }
    for name in names {
        let path = if name.ends_with(".gguf") { checkpoints::file(&name) } else { checkpoints::folder(&name) };
        writeln!(std::io::stdout(), "{}", path.display())?;
    }
    Ok(())
}
