//! Tenants: the users who share the server.

/// A user of the server, identified by the index of its API key, or by 0 if there are no keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(u32);

impl Tenant {
    /// The tenant with this index.
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// The index of the tenant.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
