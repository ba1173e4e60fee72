//! The table of device ids by tensor-parallel rank. Only a shard's process knows which devices it drives, so the shards
//! report their devices and ranks, and the router builds the table from these reports.
//!
//! Entry point: [`assignment`], a pure function apart from its log lines.

use proto::{Device, HelloReply};

use super::ShardClientError;

/// Returns the device ids in the order of ranks. The list is empty if the shards report no devices. `replies` are in
/// the order of shards.
///
/// # Errors
/// [`ShardClientError::Devices`] when shards report different numbers of devices, the same device or the same rank
/// twice, or a rank that does not exist.
pub(super) fn assignment(replies: &[(u32, HelloReply)]) -> Result<Vec<i64>, ShardClientError> {
    let problem = |shard: u32, problem: String| Err(ShardClientError::Devices { shard, problem });
    let num_devices = replies.first().map_or(0, |(_, hello)| hello.devices.len());
    let num_ranks = replies.len() * num_devices;
    let mut by_rank: Vec<Option<(i64, u32)>> = vec![None; num_ranks];
    for (shard, hello) in replies {
        if hello.devices.len() != num_devices {
            return problem(*shard, format!("{} device(s), but shard 0 has {num_devices}", hello.devices.len()));
        }
        for device in &hello.devices {
            if let Some((_, owner)) = by_rank.iter().flatten().find(|(id, _)| *id == device.id) {
                return problem(*shard, format!("{}, which shard {owner} has too", name(device)));
            }
            let Some(place) = by_rank.get_mut(device.rank as usize) else {
                return problem(*shard, format!("rank {}, but there are only {num_ranks} ranks", device.rank));
            };
            if let Some((_, owner)) = place {
                return problem(*shard, format!("rank {}, which shard {owner} has too", device.rank));
            }
            *place = Some((device.id, *shard));
        }
    }
    if num_ranks > 1 {
        let devices = replies.iter().flat_map(|(shard, hello)| hello.devices.iter().map(move |device| (shard, device)));
        devices.for_each(|(shard, device)| tracing::info!("rank {} is {} of shard {shard}", device.rank, name(device)));
    }
    // There are as many devices as ranks, and no rank occurs twice, so every rank has a device.
    Ok(by_rank.into_iter().flatten().map(|(id, _)| id).collect())
}

fn name(device: &Device) -> String {
    let Device { id, process_index, coordinates, rank: _ } = device;
    format!("device {id} (process {process_index}, coordinates {coordinates:?})")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the table for shards with these devices. Each device is a rank and an id.
    fn table(shards: &[&[(u32, i64)]]) -> Result<Vec<i64>, String> {
        let device = |&(rank, id): &(u32, i64)| Device { id, process_index: 0, coordinates: vec![0, id, 0], rank };
        let hello =
            |devices: &&[_]| HelloReply { devices: devices.iter().map(device).collect(), ..HelloReply::default() };
        let replies: Vec<_> = (0..).zip(shards.iter().map(hello)).collect();
        assignment(&replies).map_err(|error| error.to_string())
    }

    #[test]
    fn ids_are_listed_in_the_order_of_ranks() {
        assert_eq!(table(&[&[(2, 2)], &[(0, 0)], &[(3, 3)], &[(1, 1)]]), Ok(vec![0, 1, 2, 3]));
        assert_eq!(table(&[&[(0, 0), (2, 5)], &[(3, 7), (1, 4)]]), Ok(vec![0, 4, 5, 7]));
        assert_eq!(table(&[&[], &[]]), Ok(vec![]));
        assert_eq!(table(&[&[(0, 5)]]), Ok(vec![5]), "one process may have any device");
    }

    #[test]
    fn duplicates_and_wrong_ranks_are_errors_that_name_the_shard() {
        let twice = "shard 1 has device 0 (process 0, coordinates [0, 0, 0]), which shard 0 has too";
        assert_eq!(table(&[&[(0, 0)], &[(1, 0)]]), Err(twice.to_owned()));
        assert_eq!(table(&[&[(1, 0)], &[(1, 2)]]), Err("shard 1 has rank 1, which shard 0 has too".to_owned()));
        assert_eq!(table(&[&[(0, 0)], &[(2, 2)]]), Err("shard 1 has rank 2, but there are only 2 ranks".to_owned()));
        let fewer = table(&[&[(0, 0)], &[(1, 1), (2, 2)]]);
        assert_eq!(fewer, Err("shard 1 has 2 device(s), but shard 0 has 1".to_owned()));
    }
}
