//! The fields of XLA's serialized modules that are read here; other fields are skipped.
//!
//! The field numbers are those of XLA's `hlo.proto` and `xla_data.proto`.

/// `HloModuleProtoWithConfig`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ModuleWithConfig {
    #[prost(message, optional, tag = "1")]
    pub(super) hlo_module: Option<Module>,
}

/// `HloModuleProto`. Callees come before their callers.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Module {
    #[prost(message, repeated, tag = "3")]
    pub(super) computations: Vec<Computation>,
    #[prost(int64, tag = "6")]
    pub(super) entry_computation_id: i64,
}

/// `HloComputationProto`. Operands come before their users.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Computation {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) instructions: Vec<Instruction>,
    #[prost(int64, tag = "5")]
    pub(super) id: i64,
    #[prost(int64, tag = "6")]
    pub(super) root_id: i64,
}

/// `HloInstructionProto`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Instruction {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) opcode: String,
    #[prost(message, optional, tag = "3")]
    pub(super) shape: Option<Shape>,
    #[prost(message, optional, tag = "8")]
    pub(super) literal: Option<Literal>,
    #[prost(int64, tag = "9")]
    pub(super) parameter_number: i64,
    #[prost(string, tag = "28")]
    pub(super) custom_call_target: String,
    #[prost(int64, tag = "35")]
    pub(super) id: i64,
    #[prost(int64, repeated, tag = "36")]
    pub(super) operand_ids: Vec<i64>,
    #[prost(int64, repeated, tag = "38")]
    pub(super) called_computation_ids: Vec<i64>,
    #[prost(bytes = "vec", tag = "43")]
    pub(super) backend_config: Vec<u8>,
    #[prost(string, tag = "63")]
    pub(super) comparison_direction: String,
    #[prost(bool, tag = "73")]
    pub(super) is_cross_program_prefetch: bool,
    #[prost(int32, optional, tag = "80")]
    pub(super) cross_program_prefetch_index: Option<i32>,
}

/// `ShapeProto`: an array, or a tuple of shapes.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Shape {
    #[prost(int32, tag = "2")]
    pub(super) element_type: i32,
    #[prost(int64, repeated, tag = "3")]
    pub(super) dimensions: Vec<i64>,
    #[prost(message, repeated, tag = "4")]
    pub(super) tuple_shapes: Vec<Shape>,
    #[prost(message, optional, tag = "5")]
    pub(super) layout: Option<Layout>,
}

/// `LayoutProto`: the memory and the layout of an array.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Layout {
    #[prost(int64, repeated, tag = "1")]
    pub(super) minor_to_major: Vec<i64>,
    #[prost(message, repeated, tag = "6")]
    pub(super) tiles: Vec<Tile>,
    /// 0 means the size of the element type.
    #[prost(int64, tag = "7")]
    pub(super) element_size_in_bits: i64,
    #[prost(int64, tag = "8")]
    pub(super) memory_space: i64,
}

/// `TileProto`, major to minor.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Tile {
    #[prost(int64, repeated, tag = "1")]
    pub(super) dimensions: Vec<i64>,
}

/// `LiteralProto`: only integers of 32 and 64 bits, the types of loop counters.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Literal {
    #[prost(int32, repeated, tag = "4")]
    pub(super) s32s: Vec<i32>,
    #[prost(int64, repeated, tag = "5")]
    pub(super) s64s: Vec<i64>,
    #[prost(uint32, repeated, tag = "6")]
    pub(super) u32s: Vec<u32>,
    #[prost(uint64, repeated, tag = "7")]
    pub(super) u64s: Vec<u64>,
}
