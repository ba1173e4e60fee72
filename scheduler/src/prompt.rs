//! Prompts: token ids, and the scope within which their keys and values may be shared. Scopes exist because keys and
//! values may be private.
//!
//! Entry points: [`Prompt`], and [`PrefixScope::new`], which takes the properties that separate prompts with equal
//! token ids. In the prefix tree, the scope is a part of the key of a first block.

use std::hash::BuildHasher;
use std::sync::Arc;

use crate::Tenant;

/// Token ids, and the scope within which their keys and values are shared. Cloning is cheap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The token ids. There must be at least one.
    pub token_ids: Arc<[u32]>,
    /// The part of the prefix cache in which the prompt is looked up.
    pub scope: PrefixScope,
}

/// A part of the prefix cache. Prompts of one scope may share the blocks of their common prefix. Prompts of other
/// scopes do not find these blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrefixScope(u64);

/// The properties that separate prompts with equal token ids. Adapters, and media whose placeholders have equal ids,
/// would each need a field here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ScopeParts<'a> {
    /// The tenant, if tenants must not share blocks.
    pub tenant: Option<Tenant>,
    /// A secret of the client. Only prompts with the same salt share blocks.
    pub salt: Option<&'a str>,
}

impl PrefixScope {
    /// The scope of prompts with neither a tenant nor a salt.
    pub const SHARED: Self = Self(0);

    /// Returns the scope of these parts. If `hasher` has random keys, no client can choose parts that collide with the
    /// parts of other clients.
    pub fn new(parts: ScopeParts<'_>, hasher: &impl BuildHasher) -> Self {
        if parts == ScopeParts::default() { Self::SHARED } else { Self(hasher.hash_one(parts)) }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::RandomState;

    use super::*;

    #[test]
    fn each_part_makes_another_scope() {
        let hasher = RandomState::new();
        let tenants = [None, Some(Tenant::new(0)), Some(Tenant::new(1))];
        let parts = tenants
            .into_iter()
            .flat_map(|tenant| [None, Some(""), Some("salt")].map(|salt| ScopeParts { tenant, salt }));
        let scopes: Vec<PrefixScope> = parts.clone().map(|parts| PrefixScope::new(parts, &hasher)).collect();
        assert_eq!(scopes[0], PrefixScope::SHARED);
        for (index, (parts, scope)) in parts.zip(&scopes).enumerate() {
            assert_eq!(PrefixScope::new(parts, &hasher), *scope);
            assert!(!scopes[..index].contains(scope), "{parts:?}");
        }
    }
}
