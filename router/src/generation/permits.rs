//! Permits limit the number of sequences that the server accepts at once, and divide this number between API keys.
//!
//! With no API key or one, permits go to whoever comes first. With several keys, half of the permits are divided
//! equally between the keys (rounded down): each key can always take this guaranteed number. The other permits go to
//! whoever comes first. So no key can shut out another unless the guaranteed number is 0, and one key can take all
//! permits that are not guaranteed to others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scheduler::Tenant;

use crate::memory::Held;

/// All permits. Clones are cheap and share them.
#[derive(Debug, Clone)]
pub(crate) struct Permits(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    total: u32,
    /// The number of permits that each tenant can always have.
    guaranteed: u32,
    /// The number of permits taken, by tenant.
    taken: Mutex<Vec<u32>>,
}

/// Permits of one tenant, with the memory that their sequences need. Dropping it returns the permits; the memory is
/// freed when all permits that share it are dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    shared: Arc<Shared>,
    tenant: Tenant,
    count: u32,
    memory: Option<Arc<Held>>,
}

impl Permits {
    /// Creates `total` permits for `num_tenants` tenants; 0 tenants count as one.
    pub(crate) fn new(total: u32, num_tenants: usize) -> Self {
        let num_tenants = num_tenants.max(1);
        let guaranteed = if num_tenants == 1 { 0 } else { total / 2 / u32::try_from(num_tenants).unwrap_or(u32::MAX) };
        Self(Arc::new(Shared { total, guaranteed, taken: Mutex::new(vec![0; num_tenants]) }))
    }

    /// The maximum number of permits that one tenant can have.
    pub(crate) fn most(&self) -> u32 {
        let num_others = self.0.taken().len() as u32 - 1;
        self.0.total - self.0.guaranteed * num_others
    }

    /// Takes permits; returns `None` if too few are left for this tenant now.
    pub(crate) fn try_take(&self, tenant: Tenant, count: u32) -> Option<Permit> {
        let Shared { total, guaranteed, .. } = *self.0;
        let mut taken = self.0.taken();
        let others = taken.iter().enumerate().filter(|(index, _)| *index != tenant.index());
        // For each other tenant, the permits that the tenant has taken or is guaranteed, whichever is more.
        let kept: u64 = others.map(|(_, taken)| u64::from(*taken.max(&guaranteed))).sum();
        let own = taken.get_mut(tenant.index())?;
        let is_free = u64::from(*own) + u64::from(count) + kept <= u64::from(total);
        is_free.then(|| {
            *own += count;
            Permit { shared: Arc::clone(&self.0), tenant, count, memory: None }
        })
    }
}

impl Shared {
    fn taken(&self) -> MutexGuard<'_, Vec<u32>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// Splits off `count` permits; returns `None` if there are fewer.
    pub(crate) fn split(&mut self, count: u32) -> Option<Self> {
        self.count = self.count.checked_sub(count)?;
        let Self { shared, tenant, memory, .. } = self;
        Some(Self { shared: Arc::clone(shared), tenant: *tenant, count, memory: memory.clone() })
    }

    /// The tenant who holds the permits.
    pub(crate) fn tenant(&self) -> Tenant {
        self.tenant
    }

    /// Keeps `memory` until these permits, and all permits that will be split off from them, are dropped.
    pub(crate) fn keep(&mut self, memory: Held) {
        self.memory = Some(Arc::new(memory));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.taken()[self.tenant.index()] -= self.count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Tenant = Tenant::new(0);
    const OTHER: Tenant = Tenant::new(1);

    #[test]
    fn a_lone_tenant_gets_all_permits() {
        for num_tenants in [0, 1] {
            let permits = Permits::new(3, num_tenants);
            assert_eq!(permits.most(), 3);
            let mut permit = permits.try_take(ONE, 3).unwrap();
            assert!(permits.try_take(ONE, 1).is_none());
            drop(permit.split(1));
            assert!(permit.split(3).is_none());
            let again = permits.try_take(ONE, 1).unwrap();
            assert!(permits.try_take(ONE, 1).is_none());
            drop((permit, again));
            assert!(permits.try_take(ONE, 3).is_some());
        }
    }

    #[test]
    fn each_key_finds_its_part() {
        let permits = Permits::new(128, 2);
        assert_eq!(permits.most(), 96);
        assert!(permits.try_take(ONE, 97).is_none());
        let greedy = permits.try_take(ONE, 96).unwrap();
        assert!(permits.try_take(ONE, 1).is_none());
        let ordinary = permits.try_take(OTHER, 32).unwrap();
        assert!(permits.try_take(OTHER, 1).is_none());
        drop(greedy);
        assert!(permits.try_take(OTHER, 64).is_some());
        drop(ordinary);
        assert!(permits.try_take(OTHER, 96).is_some());
    }

    #[test]
    fn few_permits_for_many_keys_are_for_whoever_comes() {
        let permits = Permits::new(4, 3);
        assert_eq!(permits.most(), 4);
        let all = permits.try_take(Tenant::new(2), 4).unwrap();
        assert!(permits.try_take(ONE, 1).is_none());
        drop(all);
        assert!(permits.try_take(ONE, 1).is_some());
    }

    #[test]
    fn memory_goes_with_the_last_of_them() {
        let part = crate::memory::Part::new(1 << 10);
        let mut permit = Permits::new(2, 1).try_take(ONE, 2).unwrap();
        permit.keep(part.try_take(1).unwrap());
        let one = permit.split(1);
        drop(permit);
        assert!(part.try_take(1).is_none());
        drop(one);
        assert!(part.try_take(1).is_some());
    }
}
