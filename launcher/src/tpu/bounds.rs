//! Bounds, as libtpu calls the sizes of a slice or of a part of it along x, y and z. If each process owns a single core
//! of a chip, there is a fourth size, the number of cores.

use std::fmt;

/// Three sizes (x, y, z), or four (and cores) if each process owns a single core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bounds(Vec<u32>);

impl Bounds {
    /// The shape of `num_chips` chips on one host; `None` for a number of chips that no host has.
    ///
    /// Sources disagree about 8 chips: GKE's device plugin says 2,4,1, and one of JAX's tests says 4,2,1.
    /// `TPU_TOPOLOGY` overrides this choice.
    pub(crate) fn of_chips(num_chips: u32) -> Option<Self> {
        let sizes = match num_chips {
            1 => [1, 1, 1],
            2 => [1, 2, 1],
            4 => [2, 2, 1],
            8 => [2, 4, 1],
            _ => return None,
        };
        Some(Self(sizes.to_vec()))
    }

    /// The shape that Cloud TPU gives to a slice of `num_chips` chips on several hosts; `None` if several shapes are
    /// possible or none is known. `is_flat` is true for generations whose slices have two dimensions.
    pub(crate) fn of_slice(num_chips: u32, is_flat: bool) -> Option<Self> {
        let sizes = match (is_flat, num_chips) {
            (true, 8) => [2, 4, 1],
            (true, 16) => [4, 4, 1],
            (true, 32) => [4, 8, 1],
            (true, 64) => [8, 8, 1],
            (true, 128) => [8, 16, 1],
            (true, 256) => [16, 16, 1],
            (false, 8) => [2, 2, 2],
            (false, 16) => [2, 2, 4],
            (false, 32) => [2, 4, 4],
            (false, 64) => [4, 4, 4],
            _ => return None,
        };
        Some(Self(sizes.to_vec()))
    }

    /// Parses bounds such as `2,2,1` (separator `,`) or a topology such as `4x4` (separator `x`). If there are two
    /// sizes, a third size of 1 is added.
    pub(crate) fn parse(text: &str, separator: char) -> Option<Self> {
        let sizes = text.split(separator).map(|size| size.trim().parse().ok().filter(|size| *size > 0));
        let mut sizes: Vec<u32> = sizes.collect::<Option<_>>()?;
        if sizes.len() == 2 {
            sizes.push(1);
        }
        matches!(sizes.len(), 3 | 4).then_some(Self(sizes))
    }

    /// The product of all sizes.
    pub(crate) fn product(&self) -> u32 {
        self.0.iter().fold(1, |product, size| product.saturating_mul(*size))
    }

    /// The number of sizes: 3, or 4 with cores.
    pub(crate) fn num_dims(&self) -> usize {
        self.0.len()
    }

    /// The number of parts of the shape `part` along each dimension; `None` if they do not fill a dimension exactly.
    pub(crate) fn divided_by(&self, part: &Self) -> Option<Self> {
        let sizes = self.0.iter().zip(&part.0).map(|(whole, part)| whole.is_multiple_of(*part).then_some(whole / part));
        Some(Self(sizes.collect::<Option<_>>()?))
    }

    /// The bounds whose sizes are the products of the sizes of `self` and `other` in each dimension.
    pub(crate) fn times(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(a, b)| a * b).collect())
    }

    /// The same bounds with a fourth size, the number of cores.
    pub(crate) fn with_cores(mut self, num_cores: u32) -> Self {
        self.0.push(num_cores);
        self
    }

    /// Which dimensions of a slice wrap around (their ends are connected), in libtpu's form, such as
    /// `true,false,false`. On flat generations a dimension of size 16 wraps around; on others all three do if each has
    /// at least size 4.
    pub(crate) fn wrap(&self, is_flat: bool) -> String {
        let is_large = self.0.iter().all(|size| *size >= 4);
        let wraps = self.0.iter().take(3).map(|size| if is_flat { *size == 16 } else { is_large });
        wraps.map(|wraps| wraps.to_string()).collect::<Vec<_>>().join(",")
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&sizes.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_times_chips_make_the_slice() {
        let slice = Bounds::parse("4x4", 'x').unwrap();
        let host = Bounds::of_chips(4).unwrap();
        let hosts = slice.divided_by(&host).unwrap();
        assert_eq!((hosts.to_string(), hosts.times(&host)), ("2,2,1".into(), slice.clone()));
        assert_eq!(slice.divided_by(&Bounds::parse("3,1,1", ',').unwrap()), None);
        assert_eq!((slice.product(), slice.with_cores(2).to_string()), (16, "4,4,1,2".into()));
    }

    #[test]
    fn only_whole_positive_sizes_are_read() {
        for text in ["", "2", "2,0,1", "2,x,1", "1,1,1,1,1"] {
            assert_eq!(Bounds::parse(text, ','), None, "{text:?}");
        }
    }

    #[test]
    fn large_dimensions_are_rings() {
        let wrap = |text, is_flat| Bounds::parse(text, 'x').unwrap().wrap(is_flat);
        assert_eq!(wrap("4x4", true), "false,false,false");
        assert_eq!(wrap("8x16", true), "false,true,false");
        assert_eq!(wrap("2x2x4", false), "false,false,false");
        assert_eq!(wrap("4x4x4", false), "true,true,true");
    }
}
