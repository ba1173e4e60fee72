//! Compile options, written as XLA's `CompileOptionsProto`. The field numbers are those of its `.proto` files.

use std::collections::BTreeMap;

use prost::Message as _;

/// The options of a compilation, including the devices that will run the program.
///
/// [`CompileOptions::encode`] writes the same options as the same bytes, so the bytes can be part of a cache key.
#[derive(Debug, Clone, PartialEq)]
pub struct CompileOptions {
    /// The number of copies of the program that compute different data.
    pub num_replicas: usize,
    /// The number of devices that share one copy.
    pub num_partitions: usize,
    /// Device ids: one list per partition, with one id per replica. If empty, the plugin chooses.
    pub device_assignment: Vec<Vec<i64>>,
    /// True if several partitions run the same program (SPMD).
    pub use_spmd_partitioning: bool,
    /// True if the compiler partitions the program as its `sdy` annotations say.
    pub use_shardy_partitioner: bool,
    /// True if the device is chosen at execution. The program must then be for a single device.
    pub compile_portable_executable: bool,
    /// The compiler's effort to make the program fast. `None` is the compiler's default.
    pub optimization_level: Option<EffortLevel>,
    /// The compiler's effort to make the program fit into memory. `None` is the compiler's default.
    pub memory_fitting_level: Option<EffortLevel>,
    /// The effort to make the program fast, on a finer scale: from -1 to 1, 0 by default.
    pub exec_time_optimization_effort: f32,
    /// The effort to make the program fit into memory, on a finer scale: from -1 to 1, 0 by default.
    pub memory_fitting_effort: f32,
    /// The compiler's flags by name without dashes, such as `xla_tpu_scoped_vmem_limit_kib`. With an unknown name, the
    /// compilation fails.
    pub env_option_overrides: BTreeMap<String, OptionValue>,
}

/// Levels of effort, with the usual names of compilers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EffortLevel {
    /// The least effort.
    O0,
    /// Little effort, for short compile times.
    O1,
    /// The usual effort.
    O2,
    /// The most effort.
    O3,
}

/// The value of a compiler flag.
#[derive(Debug, Clone, PartialEq)]
pub enum OptionValue {
    /// Text, also for enumerations.
    String(String),
    /// A boolean.
    Bool(bool),
    /// An integer.
    I64(i64),
    /// A float.
    F64(f64),
}

impl Default for CompileOptions {
    /// Returns options for one device, which the plugin chooses.
    fn default() -> Self {
        Self {
            num_replicas: 1,
            num_partitions: 1,
            device_assignment: Vec::new(),
            use_spmd_partitioning: false,
            use_shardy_partitioner: false,
            compile_portable_executable: false,
            optimization_level: None,
            memory_fitting_level: None,
            exec_time_optimization_effort: 0.0,
            memory_fitting_effort: 0.0,
            env_option_overrides: BTreeMap::new(),
        }
    }
}

impl CompileOptions {
    /// Returns options for a program of one replica, with one partition for each of these devices.
    pub fn partitioned(device_ids: &[i64]) -> Self {
        Self {
            num_partitions: device_ids.len(),
            device_assignment: device_ids.iter().map(|id| vec![*id]).collect(),
            use_spmd_partitioning: device_ids.len() > 1,
            ..Self::default()
        }
    }

    /// Serializes the options as `CompileOptionsProto`. The same options always give the same bytes.
    pub fn encode(&self) -> Vec<u8> {
        let override_of = |value: &OptionValue| OptionOverrideProto {
            value: Some(match value {
                OptionValue::String(text) => OptionOverride::String(text.clone()),
                OptionValue::Bool(boolean) => OptionOverride::Bool(*boolean),
                OptionValue::I64(int) => OptionOverride::I64(*int),
                OptionValue::F64(float) => OptionOverride::F64(*float),
            }),
        };
        let overrides = self.env_option_overrides.iter().map(|(name, value)| (name.clone(), override_of(value)));
        CompileOptionsProto {
            executable_build_options: Some(self.build_options()),
            compile_portable_executable: self.compile_portable_executable,
            env_option_overrides: overrides.collect(),
        }
        .encode_to_vec()
    }

    /// Returns the ids of the devices that encoded options assign, in the order of the partitions.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn assigned_ids(encoded: &[u8]) -> Vec<i64> {
        let options = CompileOptionsProto::decode(encoded).unwrap_or_default().executable_build_options;
        let assignment = options.and_then(|options| options.device_assignment).unwrap_or_default();
        assignment.computation_devices.into_iter().flat_map(|device| device.replica_device_ids).collect()
    }

    fn build_options(&self) -> ExecutableBuildOptionsProto {
        ExecutableBuildOptionsProto {
            device_ordinal: -1,
            num_replicas: count(self.num_replicas),
            num_partitions: count(self.num_partitions),
            use_spmd_partitioning: self.use_spmd_partitioning,
            device_assignment: (!self.device_assignment.is_empty()).then(|| self.assignment()),
            use_shardy_partitioner: self.use_shardy_partitioner,
            exec_time_optimization_effort: self.exec_time_optimization_effort,
            memory_fitting_effort: self.memory_fitting_effort,
            optimization_level: self.optimization_level.map_or(0, EffortLevel::number),
            memory_fitting_level: self.memory_fitting_level.map_or(0, EffortLevel::number),
        }
    }

    fn assignment(&self) -> DeviceAssignmentProto {
        let devices = self.device_assignment.iter();
        DeviceAssignmentProto {
            replica_count: i32::try_from(self.num_replicas).unwrap_or(i32::MAX),
            computation_count: i32::try_from(self.device_assignment.len()).unwrap_or(i32::MAX),
            computation_devices: devices.map(|ids| ComputationDevice { replica_device_ids: ids.clone() }).collect(),
        }
    }
}

impl EffortLevel {
    fn number(self) -> i32 {
        match self {
            Self::O0 => 9,
            Self::O1 => 19,
            Self::O2 => 29,
            Self::O3 => 39,
        }
    }
}

/// Converts a count for the message. A count that does not fit becomes the maximum.
fn count(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[derive(Clone, PartialEq, prost::Message)]
struct CompileOptionsProto {
    #[prost(message, optional, tag = "3")]
    executable_build_options: Option<ExecutableBuildOptionsProto>,
    #[prost(bool, tag = "4")]
    compile_portable_executable: bool,
    #[prost(btree_map = "string, message", tag = "7")]
    env_option_overrides: BTreeMap<String, OptionOverrideProto>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OptionOverrideProto {
    #[prost(oneof = "OptionOverride", tags = "1, 2, 3, 4")]
    value: Option<OptionOverride>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum OptionOverride {
    #[prost(string, tag = "1")]
    String(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    I64(i64),
    #[prost(double, tag = "4")]
    F64(f64),
}

#[derive(Clone, PartialEq, prost::Message)]
struct ExecutableBuildOptionsProto {
    #[prost(int64, tag = "1")]
    device_ordinal: i64,
    #[prost(int64, tag = "4")]
    num_replicas: i64,
    #[prost(int64, tag = "5")]
    num_partitions: i64,
    #[prost(bool, tag = "6")]
    use_spmd_partitioning: bool,
    #[prost(message, optional, tag = "9")]
    device_assignment: Option<DeviceAssignmentProto>,
    #[prost(bool, tag = "19")]
    use_shardy_partitioner: bool,
    #[prost(float, tag = "20")]
    exec_time_optimization_effort: f32,
    #[prost(float, tag = "21")]
    memory_fitting_effort: f32,
    #[prost(int32, tag = "24")]
    optimization_level: i32,
    #[prost(int32, tag = "25")]
    memory_fitting_level: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DeviceAssignmentProto {
    #[prost(int32, tag = "1")]
    replica_count: i32,
    #[prost(int32, tag = "2")]
    computation_count: i32,
    #[prost(message, repeated, tag = "3")]
    computation_devices: Vec<ComputationDevice>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ComputationDevice {
    #[prost(int64, repeated, tag = "1")]
    replica_device_ids: Vec<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_options_are_equal_bytes() {
        let mut options = CompileOptions::partitioned(&[0, 1]);
        for name in ["b", "a", "c"] {
            options.env_option_overrides.insert(name.into(), OptionValue::Bool(true));
        }
        assert_eq!(options.encode(), options.clone().encode());
        assert_ne!(options.encode(), CompileOptions::partitioned(&[1, 0]).encode());
    }

    #[test]
    fn bytes_follow_the_field_numbers() {
        let bytes = CompileOptions::partitioned(&[5, 7]).encode();
        let expected = [
            // field 3, length 33: build options
            &[0x1a, 33][..],
            // device ordinal -1
            &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            // 1 replica, 2 partitions, spmd
            &[0x20, 1, 0x28, 2, 0x30, 1],
            // field 9: 1 replica, 2 computations, devices 5 and 7
            &[0x4a, 14, 0x08, 1, 0x10, 2, 0x1a, 3, 0x0a, 1, 5, 0x1a, 3, 0x0a, 1, 7],
        ];
        assert_eq!(bytes, expected.concat());
    }

    #[test]
    fn effort_levels_and_overrides_are_written() {
        let plain = CompileOptions::default().encode();
        let options = CompileOptions { optimization_level: Some(EffortLevel::O1), ..CompileOptions::default() };
        assert_eq!(options.encode().len(), plain.len() + 3);
        let overrides = BTreeMap::from([("x".to_owned(), OptionValue::I64(3))]);
        let options = CompileOptions { env_option_overrides: overrides, ..CompileOptions::default() };
        assert!(options.encode().ends_with(&[0x3a, 7, 0x0a, 1, b'x', 0x12, 2, 0x18, 3]));
    }
}
