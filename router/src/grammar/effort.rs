//! Limits the work of following a grammar. `llguidance` limits the number of its steps, but counts some expensive work
//! as a single step.
//!
//! Entry point: [`check`]. The work is estimated from the expressions of the terminals, so the grammar's notation makes
//! no difference.

use llguidance::api::ParserLimits;
use llguidance::derivre::raw::ExprSet;
use llguidance::derivre::{ExprRef, RegexAst};
use llguidance::earley::lexerspec::LexerSpec;

use super::intersections;

/// The maximum number of terminals, because each is compared with all others, and many of them at every token.
pub(super) const MAX_TERMINALS: usize = 10_000;

/// The maximum of the estimated number of terms in the derivatives of all expressions together.
const MAX_PARTS: u64 = 1_000_000;

/// The maximum of the estimated number of terms in the derivatives of all intersections, for any text. They are
/// computed in a single step. Estimates are high: the worst measured step of a grammar at this limit took 15 ms and
/// 3 MiB.
const MAX_TERMS: u64 = 300_000;

/// The maximum number of `llguidance`'s steps to compute the states of the terminals after the first byte of a text.
const MAX_STEPS: u64 = 300_000;

/// The estimated number of terms in the derivative of an expression. The derivative is the expression that the rest of
/// the text must match after one more character.
#[derive(Debug, Clone, Copy)]
struct Parts {
    num_parts: u64,
    /// True if the expression contains an intersection or a complement.
    is_intersection: bool,
}

/// Checks that following a grammar with these terminals does not take too much work.
///
/// # Errors
/// When there are too many terminals, or their expressions take too much work. The message says which.
pub(super) fn check(spec: &LexerSpec) -> Result<(), String> {
    let num_terminals = spec.lexemes.len();
    if num_terminals > MAX_TERMINALS {
        return Err(format!("it has {num_terminals} different terminals; at most {MAX_TERMINALS} are allowed"));
    }
    let exprs = spec.regex_builder.exprset();
    let parts = parts(exprs);
    if parts.iter().fold(0, |sum: u64, parts| sum.saturating_add(parts.num_parts)) > MAX_PARTS {
        return Err("its regular expressions can continue in too many ways at the same time; simplify them".to_owned());
    }
    if !parts.iter().any(|parts| parts.is_intersection) {
        return Ok(());
    }
    if intersections::num_terms(exprs) > MAX_TERMS {
        return Err("its intersections have too many combinations of alternatives; intersect fewer or simpler \
                    expressions"
            .to_owned());
    }
    if is_soon_known(spec) {
        return Ok(());
    }
    Err("its intersections and complements take too long to compute; simplify them".to_owned())
}

/// Returns the estimate for each expression. The set lists the arguments of an expression before the expression.
fn parts(exprs: &ExprSet) -> Vec<Parts> {
    let mut tags = llguidance::derivre::RegexBuilder::new();
    let mut tag = |ast: &RegexAst| tags.mk(ast).map(|rx| tags.exprset().get_tag(rx));
    let text = |text: &str| RegexAst::Regex(text.to_owned());
    let concat = tag(&text("[ab]*c")).ok();
    let bytes = tag(&text("ab[cd]*")).ok();
    let and = tag(&RegexAst::And(vec![text("[ab]*"), text("[bc]*")])).ok();
    let not = tag(&RegexAst::Not(Box::new(text("[ab]*")))).ok();
    let mut all: Vec<Parts> = Vec::with_capacity(exprs.len() + 1);
    all.push(Parts { num_parts: 0, is_intersection: false });
    for index in 1..=u32::try_from(exprs.len()).unwrap_or(u32::MAX) {
        let rx = ExprRef::new(index);
        if !exprs.is_valid(rx) {
            break;
        }
        let (kind, args) = (Some(exprs.get_tag(rx)), exprs.get_args(rx));
        let of = |rx: &ExprRef| all[rx.as_usize()].num_parts;
        let num_parts = if kind == concat {
            of(&args[0]) + if exprs.is_nullable(args[0]) { of(&args[1]) } else { 0 }
        } else if kind == bytes {
            1
        } else if kind == and {
            args.iter().map(of).fold(1, u64::saturating_mul)
        } else {
            args.iter().map(of).fold(1, u64::saturating_add)
        };
        let is_intersection = kind == and || kind == not || args.iter().any(|rx| all[rx.as_usize()].is_intersection);
        all.push(Parts { num_parts, is_intersection });
    }
    all
}

/// True if the states of the terminals after each first byte can be computed within [`MAX_STEPS`]. `llguidance` would
/// compute them without a limit.
fn is_soon_known(spec: &LexerSpec) -> bool {
    let mut limits = ParserLimits { initial_lexer_fuel: MAX_STEPS, ..ParserLimits::default() };
    let Ok(mut states) = spec.to_regex_vec(&mut limits) else { return false };
    states.set_fuel(MAX_STEPS);
    let first = states.initial_state(&spec.all_lexemes());
    (0..=u8::MAX).all(|byte| {
        states.transition(first, byte);
        !states.has_error()
    })
}
