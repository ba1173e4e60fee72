//! The bytes of a message: MessagePack in the form of vLLM 0.33.
//!
//! ```text
//! [seconds since 1970, [events], data-parallel rank]
//! ```
//!
//! An event is a map that begins with its type. The optional fields are those that vLLM has for the same cache: one
//! group of layers, all of which keep every token.

use rmp::encode::{ByteBuf, write_array_len, write_f64, write_map_len, write_nil, write_str, write_uint};
use scheduler::{BlockEvent, BlockHash};

/// The name of a device's memory.
const MEDIUM: &str = "GPU";

/// The bytes of a payload without its events, rounded up.
const MAX_FRAME_BYTES: usize = 32;

/// The maximum number of bytes of a stored block without its tokens, and of each token. A block that is not the child
/// of the one before it has an event of its own.
const MAX_BLOCK_BYTES: usize = 256;
const MAX_TOKEN_BYTES: usize = 5;

/// The kind of all blocks. A lookup needs every block of a prefix, also in a model with an attention window.
const SPEC_KIND: &str = "full_attention";

/// Writing to a buffer in memory cannot fail.
type Written = Result<(), Box<dyn std::error::Error>>;

/// Returns the maximum size of a payload with `num_blocks` stored blocks, in bytes.
pub(super) fn max_bytes(num_blocks: usize, block_size: u32) -> usize {
    let block_bytes = MAX_BLOCK_BYTES + MAX_TOKEN_BYTES * block_size as usize;
    num_blocks.saturating_mul(block_bytes).saturating_add(MAX_FRAME_BYTES)
}

/// The payload of a message, to which events are added.
#[derive(Debug)]
pub(super) struct Payload {
    events: ByteBuf,
    num_events: u32,
    block_size: u32,
}

impl Payload {
    /// Creates a payload without events. `block_size` is the number of tokens in a block.
    pub(super) fn new(block_size: u32) -> Self {
        Self { events: ByteBuf::new(), num_events: 0, block_size }
    }

    /// Adds the event that no block is stored.
    pub(super) fn add_cleared(&mut self) {
        self.write(|out, _| {
            write_map_len(out, 1)?;
            write_field(out, "type", "AllBlocksCleared")
        });
    }

    /// Adds an event.
    pub(super) fn add(&mut self, event: &BlockEvent) {
        self.write(|out, block_size| write_event(out, event, block_size));
    }

    /// Returns the bytes. `seconds` is the time since 1970.
    pub(super) fn finish(self, seconds: f64) -> Vec<u8> {
        let mut out = ByteBuf::with_capacity(self.events.as_slice().len() + MAX_FRAME_BYTES);
        let written = write_head(&mut out, seconds, self.num_events);
        debug_assert!(written.is_ok(), "{written:?}");
        let mut bytes = out.into_vec();
        bytes.extend_from_slice(self.events.as_slice());
        let data_parallel_rank = 0;
        bytes.push(data_parallel_rank);
        bytes
    }

    fn write(&mut self, write: impl FnOnce(&mut ByteBuf, u32) -> Written) {
        let written = write(&mut self.events, self.block_size);
        debug_assert!(written.is_ok(), "{written:?}");
        self.num_events += 1;
    }
}

fn write_head(out: &mut ByteBuf, seconds: f64, num_events: u32) -> Written {
    write_array_len(out, 3)?;
    write_f64(out, seconds)?;
    write_array_len(out, num_events)?;
    Ok(())
}

fn write_event(out: &mut ByteBuf, event: &BlockEvent, block_size: u32) -> Written {
    match event {
        BlockEvent::Stored { parent, blocks, token_ids } => {
            write_map_len(out, 11)?;
            write_field(out, "type", "BlockStored")?;
            write_hashes(out, blocks)?;
            write_str(out, "parent_block_hash")?;
            match parent {
                Some(BlockHash(parent)) => drop(write_uint(out, *parent)?),
                None => write_nil(out)?,
            }
            write_str(out, "token_ids")?;
            write_array_len(out, len(token_ids))?;
            for token_id in token_ids {
                write_uint(out, (*token_id).into())?;
            }
            write_str(out, "block_size")?;
            write_uint(out, block_size.into())?;
            write_none(out, "lora_id")?;
            write_field(out, "medium", MEDIUM)?;
            write_none(out, "lora_name")?;
            write_str(out, "extra_keys")?;
            write_array_len(out, len(blocks))?;
            blocks.iter().try_for_each(|_| write_nil(out))?;
            write_group(out)?;
            write_field(out, "kv_cache_spec_kind", SPEC_KIND)
        }
        BlockEvent::Removed { blocks } => {
            write_map_len(out, 4)?;
            write_field(out, "type", "BlockRemoved")?;
            write_hashes(out, blocks)?;
            write_field(out, "medium", MEDIUM)?;
            write_group(out)
        }
    }
}

fn write_hashes(out: &mut ByteBuf, blocks: &[BlockHash]) -> Written {
    write_str(out, "block_hashes")?;
    write_array_len(out, len(blocks))?;
    for BlockHash(hash) in blocks {
        write_uint(out, *hash)?;
    }
    Ok(())
}

fn write_group(out: &mut ByteBuf) -> Written {
    write_str(out, "group_idx")?;
    write_uint(out, 0)?;
    Ok(())
}

fn write_field(out: &mut ByteBuf, name: &str, value: &str) -> Written {
    write_str(out, name)?;
    write_str(out, value)?;
    Ok(())
}

fn write_none(out: &mut ByteBuf, name: &str) -> Written {
    write_str(out, name)?;
    write_nil(out)?;
    Ok(())
}

fn len<T>(list: &[T]) -> u32 {
    // A step has fewer than 2^32 events, blocks and tokens.
    list.len() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes were made with msgspec 0.22 from the structures of vLLM 0.33. Only the header of a map with 11 fields
    /// differs: msgspec writes the longer of its two forms.
    #[test]
    fn the_bytes_are_those_of_vllm() {
        let stored = BlockEvent::Stored {
            parent: Some(BlockHash(u64::MAX)),
            blocks: vec![BlockHash(1), BlockHash(1 << 40)],
            token_ids: vec![0, 127, 128, 70_000],
        };
        let first = BlockEvent::Stored { parent: None, blocks: vec![BlockHash(7)], token_ids: vec![1, 2] };
        let removed = BlockEvent::Removed { blocks: vec![BlockHash(7), BlockHash(300)] };
        let mut payload = Payload::new(2);
        [stored, first, removed].iter().for_each(|event| payload.add(event));
        let bytes = payload.finish(1_763_990_000.5);
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, EXPECTED);
    }

    #[test]
    fn a_payload_that_clears_has_one_small_event() {
        let mut payload = Payload::new(2);
        payload.add_cleared();
        let expected = [&[0x93, 0xCB][..], &[0; 8], b"\x91\x81\xA4type\xB0AllBlocksCleared\x00"].concat();
        assert_eq!(payload.finish(0.0), expected);
    }

    #[test]
    fn blocks_are_never_larger_than_the_bound_says() {
        for block_size in [1, 16, 512] {
            let mut payload = Payload::new(block_size);
            for _ in 0..3 {
                let (parent, blocks) = (Some(BlockHash(u64::MAX)), vec![BlockHash(u64::MAX)]);
                payload.add(&BlockEvent::Stored { parent, blocks, token_ids: vec![u32::MAX; block_size as usize] });
            }
            let bytes = payload.finish(0.5).len();
            assert!(bytes <= max_bytes(3, block_size), "{bytes} for {block_size}");
        }
    }

    const EXPECTED: &str = "\
        93cb41da49167c200000938ba474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739201cf000001\
        0000000000b1706172656e745f626c6f636b5f68617368cfffffffffffffffffa9746f6b656e5f69647394007fcc80ce\
        00011170aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa\
        65787472615f6b65797392c0c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c\
        5f617474656e74696f6e8ba474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739107b170617265\
        6e745f626c6f636b5f68617368c0a9746f6b656e5f696473920102aa626c6f636b5f73697a6502a76c6f72615f6964c0\
        a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a967726f75705f69647800b26b\
        765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e84a474797065ac426c6f636b52656d6f\
        766564ac626c6f636b5f6861736865739207cd012ca66d656469756da3475055a967726f75705f6964780000\
    ";
}
