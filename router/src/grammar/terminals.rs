//! Limits the size of the terminals of a Lark grammar. Each terminal includes all terminals that it names, so a few
//! lines can expand to gigabytes.
//!
//! Entry point: [`check`]. It only splits the grammar into names, texts and signs; `llguidance` checks the
//! syntax.

use std::collections::HashMap;

use super::risk;

/// The maximum number of nested levels of groups and terminals, because finding the text that may follow a character
/// goes through all levels.
const MAX_DEPTH: usize = 100;

/// The maximum number of bytes of a terminal after all terminals that it names are expanded.
const MAX_BYTES: usize = 256 << 10;

/// The maximum number of names, texts and signs in a grammar. `llguidance` makes a rule of each bracket, and with too
/// many rules it never finishes.
const MAX_PIECES: usize = 50_000;

/// A terminal as written, not expanded.
#[derive(Debug, Default)]
struct Terminal<'a> {
    num_bytes: usize,
    depth: usize,
    names: Vec<&'a str>,
}

/// The size of an expanded terminal.
#[derive(Debug, Default, Clone, Copy)]
struct Size {
    num_bytes: usize,
    depth: usize,
}

/// A token of a grammar's text: a line break, a name, a quoted text or expression with its quotes, or a sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece<'a> {
    Newline,
    Name(&'a str),
    Text(&'a str),
    Sign(u8),
}

/// Checks the size of a grammar and of its terminals.
///
/// # Errors
/// When something is too large; the message names it and the limit.
pub(super) fn check(lark: &str) -> Result<(), String> {
    let num_pieces = pieces(lark).filter(|piece| *piece != Piece::Newline).count();
    if num_pieces > MAX_PIECES {
        return Err(format!("it has {num_pieces} names, texts and signs; at most {MAX_PIECES} are allowed"));
    }
    let terminals = read(lark);
    let mut sizes = HashMap::new();
    let mut names: Vec<&&str> = terminals.keys().collect();
    names.sort_unstable();
    for name in names {
        let size = size(name, &terminals, &mut sizes, 0);
        let too_large = |what, most| Err(format!("its terminal `{}` has more than {most} {what}", shown(name)));
        if size.depth > MAX_DEPTH {
            return too_large("levels of groups and terminals within each other", MAX_DEPTH);
        }
        if size.num_bytes > MAX_BYTES {
            return too_large("bytes with the terminals that it names", MAX_BYTES);
        }
    }
    Ok(())
}

fn shown(name: &str) -> String {
    name.chars().take(40).collect()
}

/// Returns the size of a terminal with all terminals that it names expanded. Stops when the names are nested too
/// deeply, and at a terminal that names itself, which `llguidance` reports later.
fn size<'a>(
    name: &'a str,
    terminals: &HashMap<&'a str, Terminal<'a>>,
    sizes: &mut HashMap<&'a str, Size>,
    level: usize,
) -> Size {
    if let Some(size) = sizes.get(name) {
        return *size;
    }
    let Some(terminal) = terminals.get(name) else { return Size::default() };
    if level > MAX_DEPTH {
        return Size { num_bytes: 0, depth: MAX_DEPTH };
    }
    sizes.insert(name, Size::default());
    let mut size_of_all = Size { num_bytes: terminal.num_bytes, depth: 0 };
    for other in &terminal.names {
        let other = size(other, terminals, sizes, level + 1);
        size_of_all.num_bytes = size_of_all.num_bytes.saturating_add(other.num_bytes);
        size_of_all.depth = size_of_all.depth.max(other.depth);
    }
    size_of_all.depth += terminal.depth + 1;
    sizes.insert(name, size_of_all);
    size_of_all
}

/// Returns the terminals by name. If nested grammars define terminals with the same name, these are merged.
fn read(lark: &str) -> HashMap<&str, Terminal<'_>> {
    let mut terminals: HashMap<&str, Terminal<'_>> = HashMap::new();
    // The first name of a line, which may begin a definition, and the number of names that the current terminal had
    // before it.
    let (mut current, mut first_of_line) = ("", None);
    let (mut depth, mut is_line_begun) = (0_usize, false);
    for piece in pieces(lark) {
        match piece {
            Piece::Newline => (first_of_line, is_line_begun) = (None, false),
            Piece::Name(name) => {
                let terminal = terminals.entry(current).or_default();
                if !is_line_begun {
                    first_of_line = Some((name, terminal.names.len()));
                }
                terminal.num_bytes += 1;
                terminal.names.push(name);
            }
            Piece::Text(text) => terminals.entry(current).or_default().num_bytes += text.len(),
            Piece::Sign(b':') => {
                if let Some((name, num_before)) = first_of_line.take() {
                    terminals.entry(current).or_default().names.truncate(num_before);
                    (current, depth) = (name, 0);
                }
            }
            Piece::Sign(sign) => {
                let terminal = terminals.entry(current).or_default();
                terminal.num_bytes += 1;
                match sign {
                    b'(' | b'[' | b'{' => depth += 1,
                    b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                terminal.depth = terminal.depth.max(depth);
            }
        }
        is_line_begun |= piece != Piece::Newline;
    }
    // Rules are left out: they are never expanded, so they may name each other and themselves.
    terminals.retain(|name, _| is_terminal(name));
    terminals
}

/// True if a name is that of a terminal, not of a rule.
fn is_terminal(name: &str) -> bool {
    name.trim_start_matches('_').starts_with(|first: char| first.is_ascii_uppercase())
}

/// True if a terminal may be an intersection or a complement, or repeat something a number of times that may be a
/// repetition itself. The counts of rules are left out: they are never part of an expression.
pub(super) fn are_intersected_or_counted(lark: &str) -> bool {
    let (mut current, mut first_of_line, mut is_line_begun) = ("", None, false);
    for piece in pieces(lark) {
        match piece {
            Piece::Newline => (first_of_line, is_line_begun) = (None, false),
            Piece::Name(name) if !is_line_begun => first_of_line = Some(name),
            Piece::Sign(b':') => current = first_of_line.take().unwrap_or(current),
            Piece::Sign(b'&' | b'~') => return true,
            Piece::Sign(b'{') if is_terminal(current) => return true,
            Piece::Text(text) if text.starts_with('/') && risk::repeats_groups(text) => return true,
            Piece::Name(_) | Piece::Text(_) | Piece::Sign(_) => {}
        }
        is_line_begun |= piece != Piece::Newline;
    }
    false
}

fn pieces(lark: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = lark;
    std::iter::from_fn(move || {
        loop {
            let first = *rest.as_bytes().first()?;
            let num_bytes = match first {
                b'#' => rest.find('\n').unwrap_or(rest.len()),
                b'/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
                b'"' | b'/' => quoted_len(rest.as_bytes()),
                b'_' | b'a'..=b'z' | b'A'..=b'Z' => name_len(rest.as_bytes()),
                b':' => rest.bytes().take_while(|byte| *byte == b':').count(),
                _ => rest.chars().next().map_or(1, char::len_utf8),
            };
            let (piece, others) = rest.split_at(num_bytes);
            rest = others;
            return Some(match first {
                b'\n' => Piece::Newline,
                b'"' => Piece::Text(piece),
                b'/' if !piece.starts_with("//") => Piece::Text(piece),
                b'_' | b'a'..=b'z' | b'A'..=b'Z' => Piece::Name(piece),
                b'#' | b'/' | b' ' | b'\t' | b'\r' => continue,
                b':' if num_bytes > 1 => continue,
                sign => Piece::Sign(sign),
            });
        }
    })
}

fn name_len(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')).count()
}

/// Returns the number of bytes up to and including the closing quote, which is the next byte that equals the first one
/// and is not escaped by a backslash.
fn quoted_len(text: &[u8]) -> usize {
    let (mut is_escaped, quote) = (true, text[0]);
    for (index, byte) in text.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            byte if *byte == quote => return index + 1,
            // The quote is not closed; `llguidance` will report that.
            b'\n' => return index,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(last: &str, links: usize, link: impl Fn(usize) -> String) -> String {
        let link = |index| format!("T{index}: {}\n", link(index + 1));
        format!("start: T0\n{}T{links}: {last}\n", (0..links).map(link).collect::<String>())
    }

    #[test]
    fn terminals_that_grow_with_every_line_are_refused() {
        for (lark, expected) in [
            (chain("\"a\"", 101, |next| format!("T{next}+")), "levels of groups"),
            (chain("\"a\"", 6, |next| format!("{}T{next}{}", "(".repeat(20), ")+".repeat(20))), "levels of groups"),
            (chain("\"a\"", 30, |next| format!("T{next} T{next}")), "bytes with the terminals"),
            (chain("/[a-z]/", 30, |next| format!("T{next} # T\n  | \"b\" T{next}")), "bytes with the terminals"),
            (chain("\"a\"", 60, |next| format!("T{next} \"b\" T{next}?")), "bytes with the terminals"),
            (chain("\"a\"", 101, |next| format!("T{next}")).replace("\nT", "\n_T").replace(" T", " _T"), "levels of"),
            (format!("start: A\nA: {}\nB: \"{}\"", "B ".repeat(300), "x".repeat(1000)), "bytes with the terminals"),
        ] {
            let error = check(&lark).unwrap_err();
            assert!(error.contains(expected), "{error}: {}", &lark[..80]);
        }
    }

    #[test]
    fn long_grammars_are_refused() {
        let rules = chain("\"a\"", 4600, |next| format!("\"a\" {}t{next}{} \"b\"", "(".repeat(20), ")+".repeat(20)));
        let error = check(&rules.replace("\nT", "\nt").replace(": T", ": t")).unwrap_err();
        assert!(error.ends_with("names, texts and signs; at most 50000 are allowed"), "{error}");
    }

    #[test]
    fn grammars_that_do_not_grow_are_accepted() {
        for lark in [
            chain("\"a\"", 90, |next| format!("T{next}")),
            // Rules are not expanded.
            chain("\"a\"", 3000, |next| format!("t{next} t{next}")).replace("\nT", "\nt").replace(": T", ": t"),
            // Names inside texts, expressions and comments do not count.
            chain("\"a\"", 60, |next| {
                format!("T{next} \" T{next} \\\" T{next}\" / T{next} T{next}/ // T{next} T{next}")
            }),
            // This terminal contains itself, which `llguidance` reports later.
            "start: A\nA: A \"b\" | A".to_owned(),
            "start: \"A: \"\nA: \"(((\" | \"\\\"((\" | /\\/[(]/".to_owned(),
            format!("start: {}", "( a | ".repeat(400)),
            "start: rule::_ A\nrule[suffix=\"A\"]: \"é\" /ü/\nA.2: <[1-9]> | @other\n\n".to_owned(),
            "\"\\".to_owned(),
            String::new(),
        ] {
            assert_eq!(check(&lark), Ok(()), "{}", lark.chars().take(80).collect::<String>());
        }
    }

    #[test]
    fn definitions_are_found() {
        let lark = "start: A \"x\"\nA.3: B \"yz\" | (C)\n  | [ D::param ]\n_B[lazy]: /a:b/ ((x))\nc: E";
        let terminals = read(lark);
        let mut names: Vec<&&str> = terminals.keys().collect();
        names.sort_unstable();
        assert_eq!(names, [&"A", &"_B"]);
        assert_eq!(terminals["A"].names, ["B", "C", "D", "param"]);
        assert_eq!((terminals["A"].depth, terminals["_B"].depth), (1, 2));
    }
}
