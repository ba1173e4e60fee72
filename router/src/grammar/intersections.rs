//! Limits the work of a single step of `llguidance` with intersections.
//!
//! Entry point: [`num_terms`]. While a text is followed, `llguidance` computes the derivatives of each intersection for
//! sets of bytes: one term for each combination of its parts' sets that have a byte in common. It computes all terms
//! before it looks at its limits or at the flag that stops it. So the number of combinations is estimated before a
//! grammar is followed, and for any text, not only for its beginning.

use std::collections::HashMap;

use llguidance::derivre::raw::ExprSet;
use llguidance::derivre::{ExprRef, RegexAst, RegexBuilder};

/// The maximum number of expressions that an estimate visits. A grammar with more counts as too large.
const MAX_VISITED: usize = 5_000_000;

/// The estimated number of sets of a part in which a byte is, for each byte.
type Sets = [u64; 256];

/// The estimator of one set of expressions.
struct Estimator<'a> {
    exprs: &'a ExprSet,
    of_parts: HashMap<u32, Sets>,
    /// For each expression, the number of the last search that visited it.
    visited: Vec<u32>,
    num_searches: u32,
    num_visited: usize,
}

/// Returns the estimated number of terms of the derivatives of all intersections together, or `u64::MAX` if the
/// expressions are too many.
pub(super) fn num_terms(exprs: &ExprSet) -> u64 {
    let mut tags = RegexBuilder::new();
    let text = |text: &str| RegexAst::Regex(text.to_owned());
    let mut tag = |ast: &RegexAst| tags.mk(ast).map(|rx| tags.exprset().get_tag(rx)).ok();
    let and = tag(&RegexAst::And(vec![text("[ab]*"), text("[bc]*")]));
    let not = tag(&RegexAst::Not(Box::new(text("[ab]*"))));
    let bytes = tag(&text("ab[cd]*"));
    let is = |rx: ExprRef, tag| Some(exprs.get_tag(rx)) == tag;
    let mut estimator = Estimator {
        exprs,
        of_parts: HashMap::new(),
        visited: vec![0; exprs.len() + 1],
        num_searches: 0,
        num_visited: 0,
    };
    let mut sum = 0_u64;
    let all = (1..=u32::try_from(exprs.len()).unwrap_or(u32::MAX)).map(ExprRef::new);
    for rx in all.take_while(|rx| exprs.is_valid(*rx)).filter(|rx| is(*rx, and)) {
        let mut product: Sets = [1; 256];
        // The derivative of a complement has disjoint sets, so each byte is in one of them.
        for part in exprs.get_args(rx).iter().filter(|part| !is(**part, not)) {
            let sets = estimator.sets(*part, |rx| is(rx, and) || is(rx, not), |rx| is(rx, bytes));
            product.iter_mut().zip(sets).for_each(|(product, sets)| *product = product.saturating_mul(sets));
        }
        sum = sum.saturating_add(product.into_iter().max().unwrap_or(0));
        if estimator.num_visited > MAX_VISITED {
            return u64::MAX;
        }
    }
    sum
}

impl Estimator<'_> {
    /// Estimates the sets of a part. All derivatives of a part have sets of the part itself. Sets of terms that go on
    /// alike are united, for which the number of sets is doubled. `is_mixed` says if an expression makes sets of its
    /// own from those of others; `is_text` says if an expression begins with a fixed text, whose bytes are not known.
    fn sets(&mut self, part: ExprRef, is_mixed: impl Fn(ExprRef) -> bool, is_text: impl Fn(ExprRef) -> bool) -> Sets {
        if let Some(sets) = self.of_parts.get(&part.as_u32()) {
            return *sets;
        }
        self.num_searches += 1;
        let (mut sets, mut has_text, mut has_mixed): (Sets, _, _) = ([0; 256], false, false);
        let mut todo = vec![part];
        while let Some(rx) = todo.pop() {
            if std::mem::replace(&mut self.visited[rx.as_usize()], self.num_searches) == self.num_searches {
                continue;
            }
            self.num_visited += 1;
            has_mixed |= is_mixed(rx);
            let args = self.exprs.get_args(rx);
            if is_text(rx) {
                has_text = true;
            } else if args.is_empty() {
                let set = self.exprs.get(rx);
                let with_byte = (0..=u8::MAX).zip(&mut sets).filter(|(byte, _)| !set.surely_no_match(*byte));
                with_byte.for_each(|(_, num_sets)| *num_sets += 1);
            }
            todo.extend_from_slice(args);
        }
        for num_sets in &mut sets {
            let num_different = *num_sets + u64::from(has_text);
            let num_unions = 2_u64.saturating_pow(u32::try_from(num_different).unwrap_or(u32::MAX)) - 1;
            *num_sets = if has_mixed { num_unions } else { num_unions.min(2 * num_different) };
        }
        self.of_parts.insert(part.as_u32(), sets);
        sets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(parts: &[&str]) -> u64 {
        let mut builder = RegexBuilder::new();
        let parts = parts.iter().map(|part| RegexAst::Regex((*part).to_owned())).collect();
        builder.mk(&RegexAst::And(parts)).unwrap();
        num_terms(builder.exprset())
    }

    #[test]
    fn terms_multiply_wherever_the_sets_overlap() {
        assert_eq!(terms(&["[a-c]+"]), 0, "no intersection");
        assert_eq!(terms(&["[a-c]+", "[b-d]+"]), 1);
        assert_eq!(terms(&["[a-c]+", "[x-z]+"]), 0, "no byte in common");
        assert_eq!(terms(&["[a-c]*[a-b]{9}", "[b-d]+[ab]x"]), 3 * 3);
        // The texts before the overlap make no difference.
        let hidden = |n: usize| format!("a{{0,100}}|a{{100}}q[a-z]*[{}-z]{{12}}", char::from(b'a' + n as u8));
        let parts: Vec<String> = (1..14).map(hidden).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        assert!(terms(&parts[..2]) < 100, "{}", terms(&parts[..2]));
        assert!(terms(&parts) > 1_000_000);
    }

    #[test]
    fn a_complement_has_disjoint_sets() {
        let mut builder = RegexBuilder::new();
        let not = RegexAst::Not(Box::new(RegexAst::Regex("[a-z]*[b-y]*[c-x]*z".to_owned())));
        builder.mk(&RegexAst::And(vec![RegexAst::Regex("[a-z]+".to_owned()), not])).unwrap();
        assert_eq!(num_terms(builder.exprset()), 1);
    }
}
