//! Names of TPU slices, and the topology options of libtpu for each.
//!
//! Entry point: [`Slice`]. A slice is `generation:shape`, the shape in chips. The options are those that libtpu chooses
//! on the hosts of such a slice. Where we choose better options, processes on the hosts get these too.

use pjrt::Value;
use xla::NamedTopology;

/// The generations, each with the configuration of a chip's cores.
const GENERATIONS: [Generation; 5] = [
    Generation::new("v4", "TPU v4", "megacore", &[[2, 2, 1]]),
    Generation::new("v5e", "TPU v5 lite", "default", &[[1, 1, 1], [2, 2, 1], [2, 4, 1]]),
    // Two devices per chip: with one, the compiler leaves the gathered keys and values in slow memory
    // (docs/tpu-attention.md). Processes get the same configuration with `--deepsea_chip_config_name=legacy`.
    Generation::new("v5p", "TPU v5", "legacy", &[[2, 2, 1]]),
    Generation::new("v6e", "TPU v6 lite", "megachip_tccontrol", &[[1, 1, 1], [2, 2, 1], [2, 4, 1]]),
    Generation::new("tpu7x", "TPU7x", "default", &[[2, 2, 1]]),
];

/// The configurations that a live host may have, of which some are only for some generations.
const CHIP_CONFIGS: [&str; 4] = ["default", "legacy", "megacore", "megachip_tccontrol"];

/// The maximum number of chips of a host.
const MAX_CHIPS_OF_A_HOST: usize = 8;

/// One kind of TPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Generation {
    name: &'static str,
    /// The kind of the devices, as libtpu names it.
    kind: &'static str,
    /// The configuration of a chip's cores.
    chip_config: &'static str,
    num_dims: usize,
    /// The possible shapes of hosts, the smallest first.
    host_bounds: &'static [[usize; 3]],
}

/// A TPU slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slice {
    generation: Generation,
    dims: Vec<usize>,
}

impl Generation {
    /// Returns a generation. Slices have two dimensions if hosts have several shapes, else three.
    const fn new(
        name: &'static str,
        kind: &'static str,
        chip_config: &'static str,
        host_bounds: &'static [[usize; 3]],
    ) -> Self {
        let num_dims = if host_bounds.len() > 1 { 2 } else { 3 };
        Self { name, kind, chip_config, num_dims, host_bounds }
    }
}

impl Slice {
    /// Parses a name such as `v5e:2x4`.
    pub(crate) fn parse(name: &str) -> Result<Self, String> {
        let known = || GENERATIONS.map(|generation| generation.name).join(", ");
        let (generation, shape) = name
            .split_once(':')
            .ok_or_else(|| format!("topology {name:?} is not generation:shape, such as v5e:2x4 or v5p:2x2x1"))?;
        let generation = GENERATIONS.into_iter().find(|known| known.name == generation).ok_or_else(|| {
            format!("topology {name:?}: generation {generation:?} is unknown; allowed are {}", known())
        })?;
        let dims: Option<Vec<usize>> =
            shape.split('x').map(|size| size.parse().ok().filter(|size| *size > 0)).collect();
        let dims = dims.filter(|dims| dims.len() == generation.num_dims).ok_or_else(|| {
            let example = if generation.num_dims == 2 { "2x4" } else { "2x2x1" };
            format!(
                "topology {name:?}: the shape of a {} has {} numbers, such as {example}",
                generation.name, generation.num_dims
            )
        })?;
        Ok(Self { generation, dims })
    }

    /// Returns the name in libtpu's form.
    pub(crate) fn name(&self) -> String {
        let dims: Vec<String> = self.dims.iter().map(usize::to_string).collect();
        format!("{}:{}", self.generation.name, dims.join("x"))
    }

    /// Returns the options of the topology besides its name.
    pub(crate) fn options(&self) -> Vec<(&'static str, Value)> {
        options(self.host_bounds(), self.generation.chip_config)
    }

    /// Returns the topologies that live devices of this kind can have, if their chips fill a box of this size. The
    /// first is the one for which `compile` makes programs; the others have other hosts or other configurations of a
    /// chip.
    pub(crate) fn of_devices(kind: &str, bounds: &[usize]) -> Vec<NamedTopology> {
        let Some(generation) = GENERATIONS.into_iter().find(|generation| generation.kind == kind) else {
            return Vec::new();
        };
        let Some(dims) = bounds.get(..generation.num_dims) else { return Vec::new() };
        let slice = Self { generation, dims: dims.to_vec() };
        let usual = (slice.host_bounds(), generation.chip_config);
        let hosts = generation.host_bounds.iter().filter(|hosts| slice.fits(hosts));
        let others = hosts.flat_map(|hosts| CHIP_CONFIGS.map(|config| (*hosts, config)));
        let named = |(hosts, config): ([usize; 3], &str)| {
            let [x, y, z] = hosts;
            let text = format!("{}, {config}, hosts {x},{y},{z}", slice.name());
            NamedTopology { name: slice.name(), options: options(hosts, config), text }
        };
        std::iter::once(usual).chain(others.filter(|other| *other != usual)).map(named).collect()
    }

    /// True if the slice is at least as large as a host of this shape.
    fn fits(&self, bounds: &[usize; 3]) -> bool {
        self.dims.iter().zip(bounds).all(|(size, bound)| size >= bound)
    }

    /// Returns the shape of the slice's hosts. In a slice of at most 8 chips, it is the largest shape that is not
    /// larger than the slice, or the smallest shape if all are larger; hosts of larger slices have 4 chips (Google
    /// Cloud's TPU configurations).
    fn host_bounds(&self) -> [usize; 3] {
        if self.dims.iter().product::<usize>() > MAX_CHIPS_OF_A_HOST {
            return [2, 2, 1];
        }
        let hosts = self.generation.host_bounds;
        *hosts.iter().rev().find(|bounds| self.fits(bounds)).unwrap_or(&hosts[0])
    }
}

/// Returns the options of a topology with hosts of this shape and this configuration of a chip's cores.
fn options(host_bounds: [usize; 3], chip_config: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("chips_per_host_bounds", Value::I64List(host_bounds.map(|size| size as i64).to_vec())),
        ("num_slices", Value::I64(1)),
        ("chip_config_name", Value::String(chip_config.to_owned())),
    ]
}

#[cfg(test)]
mod tests {
    use devices::plugins::testing::with_libtpu;
    use devices::{Device, DeviceKind, tpu};
    use xla::{AheadOfTime, Platform};

    use super::*;

    #[test]
    fn slices_know_their_hosts() {
        let cases = [
            ("v5e:1x1", [1, 1, 1]),
            ("v5e:2x2", [2, 2, 1]),
            ("v5e:2x4", [2, 4, 1]),
            ("v5e:4x4", [2, 2, 1]),
            ("v6e:4x4", [2, 2, 1]),
            ("v6e:16x16", [2, 2, 1]),
            ("v5p:2x2x1", [2, 2, 1]),
            ("v4:2x2x4", [2, 2, 1]),
        ];
        for (name, bounds) in cases {
            let slice = Slice::parse(name).unwrap();
            assert_eq!((slice.name().as_str(), slice.host_bounds()), (name, bounds));
        }
    }

    #[test]
    fn the_kinds_that_differ_are_named_as_libtpu_names_them() {
        with_libtpu(module_path!(), "the_kinds_that_differ_are_named_as_libtpu_names_them", |_| check_kinds());
    }

    #[test]
    fn live_devices_may_be_configured_in_other_ways() {
        let texts = |kind, bounds: &[usize]| {
            Slice::of_devices(kind, bounds).into_iter().map(|named| named.text).collect::<Vec<_>>()
        };
        let v5e = texts("TPU v5 lite", &[2, 2, 1]);
        assert_eq!(v5e[0], "v5e:2x2, default, hosts 2,2,1");
        assert!(v5e[1..].contains(&"v5e:2x2, default, hosts 1,1,1".to_owned()), "{v5e:?}");
        assert!(!v5e.iter().any(|text| text.ends_with("2,4,1")), "no host is larger than the slice: {v5e:?}");
        assert_eq!(v5e.iter().filter(|text| **text == v5e[0]).count(), 1);
        let first = &Slice::of_devices("TPU v6 lite", &[4, 4, 1])[0];
        let slice = Slice::parse("v6e:4x4").unwrap();
        assert_eq!((&first.name, &first.options), (&slice.name(), &slice.options()), "the one that `compile` uses");
        assert_eq!(texts("cpu", &[2]), Vec::<String>::new());
    }

    fn check_kinds() {
        let kinds = ["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"].map(|name| {
            let slice = Slice::parse(name).unwrap();
            let platform = Platform::new(Device::TPU, &tpu::PLATFORM);
            let ahead = AheadOfTime::open(platform, None, &slice.name(), &slice.options()).unwrap();
            let DeviceKind { name, chunk_bytes, shares_memory } = tpu::PLATFORM.kind(ahead.device_kind());
            assert_eq!(ahead.device_kind(), slice.generation.kind);
            (ahead.device_kind().to_owned(), name, chunk_bytes >> 20, shares_memory)
        });
        let expected = [
            ("TPU v4", "", 16, false),
            ("TPU v5 lite", "", 16, false),
            ("TPU v5", "TPU v5", 16, true),
            ("TPU v6 lite", "", 16, false),
            ("TPU7x", "TPU7x", 8, false),
        ];
        assert_eq!(kinds, expected.map(|(kind, name, mib, shares)| (kind.to_owned(), name, mib, shares)));
    }

    #[test]
    fn other_names_are_refused() {
        let cases = [
            ("v5e", "topology \"v5e\" is not generation:shape, such as v5e:2x4 or v5p:2x2x1"),
            ("v9:1x1", "topology \"v9:1x1\": generation \"v9\" is unknown; allowed are v4, v5e, v5p, v6e, tpu7x"),
            ("v5e:2", "topology \"v5e:2\": the shape of a v5e has 2 numbers, such as 2x4"),
            ("v5p:2x0x1", "topology \"v5p:2x0x1\": the shape of a v5p has 3 numbers, such as 2x2x1"),
        ];
        for (name, message) in cases {
            assert_eq!(Slice::parse(name).unwrap_err(), message);
        }
    }
}
