//! A prompt is more than its tokens: keys and values of equal token ids may differ, or be nobody else's business.
//!
//! Doors: [`Prompt`], and [`PrefixScope::new`], to which everything that keeps equal token ids apart comes by name. The
//! prefix tree is keyed by the scope.

use std::hash::BuildHasher;
use std::sync::Arc;

use crate::Tenant;

/// Token ids, and who may share their keys and values. Cloning is cheap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// At least one.
    pub token_ids: Arc<[u32]>,
    /// The part of the prefix cache that the prompt is looked up in.
    pub scope: PrefixScope,
}

/// A part of the prefix cache. Prompts of one scope share the blocks of what they have in common; others do not find
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrefixScope(u64);

/// Everything that keeps equal token ids apart. An adapter's id and a hash of the prompt's media, whose placeholders
/// are equal ids, will be fields here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ScopeParts<'a> {
    /// The tenant, where tenants share nothing.
    pub tenant: Option<Tenant>,
    /// A word of the client, who shares with those that know it.
    pub salt: Option<&'a str>,
}

impl PrefixScope {
    /// The scope of all that have nothing to keep them apart.
    pub const SHARED: Self = Self(0);

    /// The scope of these parts. A `hasher` with random keys lets nobody choose parts that collide with those of
    /// others.
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
