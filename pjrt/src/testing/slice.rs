//! The descriptions of the fake plugin's devices.

use crate::Value;

/// The devices of fake clients and topologies, and the facts that the plugin reports about them.
#[derive(Debug, Clone, PartialEq)]
pub struct Slice {
    /// The name of the platform.
    pub platform: String,
    /// The devices, in the order in which the plugin lists them.
    pub devices: Vec<SliceDevice>,
    /// The index of the client's process. The client can use the devices that have this process index.
    pub process_index: i32,
    /// The attributes of topologies.
    pub attributes: Vec<(String, Value)>,
}

/// A device of a [`Slice`].
#[derive(Debug, Clone, PartialEq)]
pub struct SliceDevice {
    /// The id.
    pub id: i32,
    /// The index of the process that can use the device.
    pub process_index: i32,
    /// The name of this kind of device.
    pub kind: String,
    /// The coordinates of the device's chip.
    pub coords: [i64; 3],
    /// The limit in the device's memory statistics. `None` if the plugin does not report it.
    pub bytes_limit: Option<i64>,
}

impl Default for Slice {
    /// Returns two devices on one chip.
    fn default() -> Self {
        let device = |id| SliceDevice {
            id,
            process_index: 0,
            kind: "fake device".to_owned(),
            coords: [1, 0, 2],
            bytes_limit: Some(100),
        };
        Self {
            platform: "fake".to_owned(),
            devices: [0, 1].map(device).to_vec(),
            process_index: 0,
            attributes: Vec::new(),
        }
    }
}
