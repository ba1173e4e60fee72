//! The handshake before the first step. It checks that the shards belong together and have loaded the same model, and
//! chooses one cache size for all shards.
//!
//! These methods of [`ShardGroup`] are called once each, in the order of this file.

use endpoint::Endpoint;
use futures_util::future::try_join_all;
use proto::{Fit, HelloReply, ModelInfo, PROTOCOL_VERSION, StepSizes, Warmup, WarmupReply, command, reply};

use super::connection::Connection;
use super::error::unexpected;
use super::{ShardClientError, ShardGroup, deadline, device_table};

impl ShardGroup {
    /// Connects to every shard and waits until all have loaded the model. `shards` are in the order of their numbers.
    /// `build` is the build id of this executable, if the shards run it too.
    ///
    /// # Errors
    /// When a shard is missing, cannot load the model, is of another build, or does not belong to the others.
    pub async fn connect(shards: &[Endpoint], build: Option<String>) -> Result<Self, ShardClientError> {
        let first = shards.first().map(Endpoint::to_string).unwrap_or_default();
        tracing::info!("connecting to {} shard(s), the first one at {first}", shards.len());
        let connections =
            (0..).zip(shards).map(|(shard, endpoint)| Connection::connect(endpoint, shard, deadline::CONNECT));
        let mut group = Self::new(try_join_all(connections).await?);
        let hello = command::Kind::Hello(proto::Hello { protocol_version: PROTOCOL_VERSION, build });
        let replies = group.call(hello, "hello", deadline::HANDSHAKE).await?;
        let replies = replies.into_iter().map(|(shard, kind)| match kind {
            reply::Kind::Hello(hello) => Ok((shard, hello)),
            other => Err(unexpected(shard, "hello", &other)),
        });
        let replies = replies.collect::<Result<Vec<_>, _>>()?;
        check_belong_together(&replies)?;
        group.device_assignment = device_table::assignment(&replies)?;
        Ok(group)
    }

    /// Returns the properties of the loaded model, as shard 0 reports them.
    ///
    /// # Errors
    /// When a shard does not reply.
    pub async fn info(&mut self) -> Result<ModelInfo, ShardClientError> {
        let replies = self.call(command::Kind::Info(proto::Info {}), "info", deadline::HANDSHAKE).await?;
        match replies.into_iter().next() {
            Some((_, reply::Kind::Info(info))) => Ok(*info),
            Some((shard, other)) => Err(unexpected(shard, "info", &other)),
            None => Err(ShardClientError::Closed { shard: 0 }),
        }
    }

    /// Warms up every shard with the largest sizes that all shards can provide for `wishes`. A block has `block_size`
    /// tokens.
    ///
    /// # Errors
    /// When a shard fails, was warmed up with other sizes, or ran other programs than shard 0.
    pub async fn warmup(&mut self, wishes: Warmup, block_size: u32) -> Result<WarmupReply, ShardClientError> {
        let fit = command::Kind::Fit(Fit { wishes: Some(wishes) });
        let replies = self.call(fit, "fit", deadline::HANDSHAKE).await?;
        let fits = replies.into_iter().map(|(shard, kind)| match kind {
            reply::Kind::Fit(fit) => Ok(fit),
            other => Err(unexpected(shard, "fit", &other)),
        });
        let least = least(&fits.collect::<Result<Vec<_>, _>>()?);
        let limits = Warmup {
            max_total_tokens: Some(least.max_total_tokens),
            max_batch_prefill_tokens: Some(least.max_batch_prefill_tokens),
            max_batch_total_tokens: Some(least.num_blocks.saturating_mul(block_size)),
            max_batch_size: Some(least.num_slots),
            device_assignment: self.device_assignment.clone(),
            ..Warmup::default()
        };
        let replies = self.call(command::Kind::Warmup(limits), "warm-up", deadline::HANDSHAKE).await?;
        let warmups = replies.into_iter().map(|(shard, kind)| match kind {
            reply::Kind::Warmup(warmup) if warmup.sizes == Some(least) => Ok(warmup),
            reply::Kind::Warmup(_) => Err(ShardClientError::Limits { shard }),
            other => Err(unexpected(shard, "warm-up", &other)),
        });
        let warmups = warmups.collect::<Result<Vec<_>, _>>()?;
        check_same_programs(&warmups)?;
        let together = together(&warmups);
        self.deadlines.slowest_token_ns = together.slowest_token_ns;
        Ok(together)
    }
}

fn check_belong_together(replies: &[(u32, HelloReply)]) -> Result<(), ShardClientError> {
    let num_shards = u32::try_from(replies.len()).unwrap_or(u32::MAX);
    let first_hash = replies.first().map(|(_, hello)| hello.config_hash);
    for (shard, hello) in replies {
        let shard = *shard;
        if hello.protocol_version != PROTOCOL_VERSION {
            let (expected, got) = (PROTOCOL_VERSION, hello.protocol_version);
            return Err(ShardClientError::Version { shard, expected, got });
        }
        if (hello.shard, hello.num_shards) != (shard, num_shards) {
            let (got_shard, got_num_shards) = (hello.shard, hello.num_shards);
            return Err(ShardClientError::WrongShard { shard, num_shards, got_shard, got_num_shards });
        }
        if Some(hello.config_hash) != first_hash {
            return Err(ShardClientError::ConfigHash { shard });
        }
    }
    Ok(())
}

fn check_same_programs(warmups: &[WarmupReply]) -> Result<(), ShardClientError> {
    let expected = warmups.first().map_or(0, |warmup| warmup.fingerprint);
    let odd = (0..).zip(warmups).find(|(_, warmup)| warmup.fingerprint != expected);
    match odd {
        Some((shard, warmup)) => Err(ShardClientError::Fingerprint { shard, expected, got: warmup.fingerprint }),
        None => Ok(()),
    }
}

/// Returns the largest sizes that all shards can provide.
fn least(fits: &[StepSizes]) -> StepSizes {
    let least = |value: fn(&StepSizes) -> u32| fits.iter().map(value).min().unwrap_or_default();
    StepSizes {
        num_slots: least(|fit| fit.num_slots),
        num_blocks: least(|fit| fit.num_blocks),
        max_total_tokens: least(|fit| fit.max_total_tokens),
        max_batch_prefill_tokens: least(|fit| fit.max_batch_prefill_tokens),
    }
}

/// Combines the replies of all shards: the sizes and fingerprint, which are equal; the sums of bytes and programs; the
/// longest times.
fn together(warmups: &[WarmupReply]) -> WarmupReply {
    WarmupReply {
        kv_cache_bytes: warmups.iter().map(|warmup| warmup.kv_cache_bytes).sum(),
        num_programs_compiled: warmups.iter().map(|warmup| warmup.num_programs_compiled).sum(),
        slowest_token_ns: warmups.iter().map(|warmup| warmup.slowest_token_ns).max().unwrap_or_default(),
        decode_ns: warmups.iter().map(|warmup| warmup.decode_ns).max().unwrap_or_default(),
        ..warmups.first().cloned().unwrap_or_default()
    }
}
