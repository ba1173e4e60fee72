//! The table of devices by tensor-parallel rank. A device's id follows from its place in the slice, not from the
//! process that drives it, so shards report their devices and the router makes the table.
//!
//! Door: [`assignment`], a pure function.

use std::collections::BTreeMap;

use proto::{Device, HelloReply};

use super::ShardClientError;

/// Returns the device ids in the order of ranks; empty if devices have no ids. `replies` are in the order of shards.
///
/// # Errors
/// [`ShardClientError::Devices`] when shards report different numbers of devices, one device twice, or ids with a gap.
pub(super) fn assignment(replies: &[(u32, HelloReply)]) -> Result<Vec<i64>, ShardClientError> {
    let problem = |shard: u32, problem: String| Err(ShardClientError::Devices { shard, problem });
    let num_devices = replies.first().map_or(0, |(_, hello)| hello.devices.len());
    let mut owners: BTreeMap<i64, u32> = BTreeMap::new();
    let mut ids = Vec::with_capacity(replies.len() * num_devices);
    for (shard, hello) in replies {
        if hello.devices.len() != num_devices {
            return problem(*shard, format!("{} device(s), shard 0 has {num_devices}", hello.devices.len()));
        }
        for device in &hello.devices {
            if replies.len() * num_devices > 1 {
                tracing::info!("rank {} is {} of shard {shard}", ids.len(), name(device));
            }
            if let Some(owner) = owners.insert(device.id, *shard) {
                return problem(*shard, format!("{}, which shard {owner} has too", name(device)));
            }
            ids.push(device.id);
        }
    }
    // A single process may drive any of its machine's devices; several processes together drive a whole slice, without
    // gaps.
    let gap = (0..ids.len() as i64).find(|id| !owners.contains_key(id)).filter(|_| replies.len() > 1);
    match gap.zip(owners.last_key_value()) {
        Some((gap, (last, owner))) => problem(
            *owner,
            format!("device {last}, and no shard has device {gap}: the ids must be 0 to {}", ids.len() - 1),
        ),
        None => Ok(ids),
    }
}

fn name(device: &Device) -> String {
    let Device { id, process_index, coordinates } = device;
    format!("device {id} (process {process_index}, coordinates {coordinates:?})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(ids_by_rank: &[&[i64]]) -> Result<Vec<i64>, String> {
        let device = |id: &i64| Device { id: *id, process_index: 0, coordinates: vec![0, *id, 0] };
        let hello = |ids: &&[i64]| HelloReply { devices: ids.iter().map(device).collect(), ..HelloReply::default() };
        let replies: Vec<_> = (0..).zip(ids_by_rank.iter().map(hello)).collect();
        assignment(&replies).map_err(|error| error.to_string())
    }

    #[test]
    fn ids_are_listed_in_the_order_of_ranks() {
        assert_eq!(table(&[&[2], &[0], &[3], &[1]]), Ok(vec![2, 0, 3, 1]));
        assert_eq!(table(&[&[0, 1], &[3, 2]]), Ok(vec![0, 1, 3, 2]));
        assert_eq!(table(&[&[], &[]]), Ok(vec![]));
        assert_eq!(table(&[&[5]]), Ok(vec![5]), "one process may have any device");
    }

    #[test]
    fn duplicates_and_gaps_are_errors_that_name_the_shard() {
        let twice = "shard 1 has device 0 (process 0, coordinates [0, 0, 0]), which shard 0 has too";
        assert_eq!(table(&[&[0], &[0]]), Err(twice.to_owned()));
        let gap = "shard 1 has device 2, and no shard has device 1: the ids must be 0 to 1";
        assert_eq!(table(&[&[0], &[2]]), Err(gap.to_owned()));
        assert_eq!(table(&[&[0], &[1, 2]]), Err("shard 1 has 2 device(s), shard 0 has 1".to_owned()));
    }
}
