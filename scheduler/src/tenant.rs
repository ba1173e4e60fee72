//! Those who share the server.

/// One of those who share the server: the place of its API key, or the first where there are no keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(u32);

impl Tenant {
    /// The one at this place.
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// Its place.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
