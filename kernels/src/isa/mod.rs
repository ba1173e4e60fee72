//! The instruction set of the kernels: chosen once per process, by detection or by name.
//!
//! Entry points: [`select`] at start-up, [`active`] afterwards. An operation implements [`Kernel`] over any [`Simd`];
//! [`Isa::run`] compiles it with the features of the instruction set enabled. To add an instruction set, write its file
//! with `impl Simd`, add a variant to [`Isa`], and add it to `NAMES`, [`Isa::available`], the message of
//! [`IsaError::Unknown`] and, if it multiplies pairs of bf16, `Isa::run_pairs`. The compiler points out the remaining
//! places.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod emulated_tiles;
mod int4;
#[cfg(not(target_arch = "x86_64"))]
mod no_tiles;
mod portable;
pub(crate) mod simd;

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
pub(crate) use amx::Tiles;
pub(crate) use int4::{GROUP_LINES, GroupOfX, Int4Group, pair};
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use no_tiles::Tiles;
use portable::Compile as _;
pub(crate) use simd::{HalfBits, Kernel, LANES, Simd, integers_of};

static ACTIVE: OnceLock<Isa> = OnceLock::new();

/// An instruction set that the kernels are compiled for, slowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// The features that the compilation target guarantees.
    Portable,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX2 with AVX-VNNI.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// AVX-512 F and BW, and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512 with VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// AVX-512 with BF16 and VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    /// AMX for most products of bf16, int8 and unpacked int4 values, AVX-512 with BF16 and VNNI for everything else.
    #[cfg(target_arch = "x86_64")]
    Amx,
}

/// The names of all instruction sets, slowest first.
const NAMES: [&str; 7] = ["portable", "avx2", "avx-vnni", "avx512", "avx512-vnni", "avx512-bf16", "amx"];

/// The error when an instruction set cannot be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// The name is unknown.
    #[error(
        "cpu instruction set {name:?} is unknown; known are portable, avx2, avx-vnni, avx512, avx512-vnni, avx512-bf16 \
         and amx"
    )]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// The name is known, but this machine or this build lacks the instruction set.
    #[error("cpu instruction set {name} is not available on this machine; the best that is available is {best}")]
    Unavailable {
        /// The requested name.
        name: String,
        /// The instruction set that is chosen without a name.
        best: Isa,
    },
    /// This process already uses another instruction set.
    #[error("cpu instruction set {name} cannot be used: this process already uses {active}")]
    AlreadySelected {
        /// The requested name.
        name: String,
        /// The instruction set in use.
        active: Isa,
    },
}

/// Chooses the instruction set of this process: the one called `name`, or the best of this machine if `name` is `None`.
/// If the process already uses one, `None` keeps it. Returns the instruction set in use.
///
/// Call this before the first operation.
///
/// # Errors
/// When `name` is unknown, or the machine lacks this instruction set, or the process already uses another one.
pub fn select(name: Option<&str>) -> Result<Isa, IsaError> {
    let isa = name.map_or_else(|| Ok(Isa::best()), Isa::from_str)?;
    let active = *ACTIVE.get_or_init(|| isa);
    if active != isa && name.is_some() {
        return Err(IsaError::AlreadySelected { name: isa.to_string(), active });
    }
    Ok(active)
}

/// The instruction set in use: the one [`select`]ed, or else the best of this machine.
pub fn active() -> Isa {
    *ACTIVE.get_or_init(Isa::best)
}

impl Isa {
    /// Returns the instruction sets that this machine has, slowest first.
    pub fn available() -> Vec<Self> {
        let mut available = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            available.extend(avx2::Avx2::<false>::detect().map(|_| Self::Avx2));
            available.extend(avx2::Avx2::<true>::detect().map(|_| Self::AvxVnni));
            available.extend(avx512::Avx512::<0>::detect().map(|_| Self::Avx512));
            available.extend(avx512::Avx512::<1>::detect().map(|_| Self::Avx512Vnni));
            available.extend(avx512::Avx512::<2>::detect().map(|_| Self::Avx512Bf16));
            available.extend(amx::Amx::detect().map(|_| Self::Amx));
        }
        available
    }

    /// Returns the fastest instruction set of this machine.
    pub fn best() -> Self {
        Self::available().into_iter().max().unwrap_or(Self::Portable)
    }

    /// The name that [`select`] takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => "avx512-bf16",
            #[cfg(target_arch = "x86_64")]
            Self::Amx => "amx",
        }
    }

    /// True if the instruction set multiplies pairs of bf16 values. Then x is rounded to bf16 for products with bf16
    /// weights, and so are queries and attention weights for KV caches in bf16 or int8.
    pub fn rounds_to_bf16(self) -> bool {
        match self {
            Self::Portable => false,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::AvxVnni | Self::Avx512 | Self::Avx512Vnni => false,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 | Self::Amx => true,
        }
    }

    /// True if the instruction set has AMX tiles, which multiply bf16 and int8 values.
    pub(crate) fn has_tiles(self) -> bool {
        match self {
            Self::Portable => false,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::AvxVnni | Self::Avx512 | Self::Avx512Vnni | Self::Avx512Bf16 => false,
            #[cfg(target_arch = "x86_64")]
            Self::Amx => true,
        }
    }

    /// Lends the tiles of this thread to `work`, configured for blocks of `num_rows` rows, of which a product takes
    /// `num_words` words: all or half of a line. Passes `None` if the instruction set has no tiles.
    pub(crate) fn with_tiles(self, [num_rows, num_words]: [usize; 2], work: impl FnOnce(Option<&Tiles>)) {
        match self {
            Self::Portable => work(None),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::AvxVnni | Self::Avx512 | Self::Avx512Vnni | Self::Avx512Bf16 => work(None),
            #[cfg(target_arch = "x86_64")]
            Self::Amx => {
                let amx = amx::Amx::detect().expect("a chosen instruction set is available");
                amx.with_tiles([num_rows, num_words], |tiles| work(Some(tiles)));
            }
        }
    }

    /// [`Simd::MAX_ROWS`] of this instruction set.
    pub(crate) fn max_rows(self) -> usize {
        self.run(MaxRows)
    }

    /// [`Simd::DOT_PARTS`] of this instruction set.
    pub(crate) fn dot_parts(self) -> usize {
        self.run(DotParts)
    }

    /// Runs `kernel`, which must multiply floats only. All variants of AVX-512 share one compiled copy of it, and so do
    /// both variants of AVX2.
    pub(crate) fn run_floats<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Self::Portable => kernel.run_portable(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::AvxVnni => {
                avx2::Avx2::<false>::detect().expect("a chosen instruction set is available").run(kernel)
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx512Vnni | Self::Avx512Bf16 | Self::Amx => {
                avx512::Avx512::<0>::detect().expect("a chosen instruction set is available").run(kernel)
            }
        }
    }

    /// Runs `kernel`, which multiplies pairs of bf16 values.
    ///
    /// # Panics
    /// When this instruction set does not multiply pairs of bf16: see [`Isa::rounds_to_bf16`].
    pub(crate) fn run_pairs<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 | Self::Amx => {
                avx512::Avx512::<2>::detect().expect("a chosen instruction set is available").run(kernel)
            }
            _ => unreachable!("{self} does not multiply pairs of bf16"),
        }
    }

    /// Runs `kernel` with the vectors of this instruction set.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Self::Portable => kernel.run_portable(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::Avx2::<false>::detect().expect("a chosen instruction set is available").run(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => avx2::Avx2::<true>::detect().expect("a chosen instruction set is available").run(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => avx512::Avx512::<0>::detect().expect("a chosen instruction set is available").run(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => {
                avx512::Avx512::<1>::detect().expect("a chosen instruction set is available").run(kernel)
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 | Self::Amx => {
                avx512::Avx512::<2>::detect().expect("a chosen instruction set is available").run(kernel)
            }
        }
    }
}

struct DotParts;

impl Kernel for DotParts {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) -> usize {
        S::DOT_PARTS
    }
}

struct MaxRows;

impl Kernel for MaxRows {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) -> usize {
        S::MAX_ROWS
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = IsaError;

    fn from_str(name: &str) -> Result<Self, IsaError> {
        if !NAMES.contains(&name) {
            return Err(IsaError::Unknown { name: name.into() });
        }
        let found = Self::available().into_iter().find(|isa| isa.name() == name);
        found.ok_or_else(|| IsaError::Unavailable { name: name.into(), best: Self::best() })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// The environment variable with the instruction sets that this machine must have, separated by commas. A test
    /// fails if one is missing.
    const REQUIRE_VARIABLE: &str = "HILO_REQUIRE_ISA";

    #[test]
    fn a_name_is_looked_up() {
        assert_eq!("portable".parse(), Ok(Isa::Portable));
        for isa in Isa::available() {
            assert_eq!(isa.name().parse(), Ok(isa));
        }
        let error = "sse9".parse::<Isa>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "cpu instruction set \"sse9\" is unknown; known are portable, avx2, avx-vnni, avx512, avx512-vnni, \
             avx512-bf16 and amx"
        );
    }

    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    #[test]
    fn tiles_are_tested_where_the_vectors_beside_them_are() {
        let available = Isa::available();
        assert_eq!(available.contains(&Isa::Amx), available.contains(&Isa::Avx512Bf16));
        if !available.contains(&Isa::Amx) {
            say_aloud("not tested on this machine: tiles, not even emulated ones, because they need avx512-bf16");
        }
    }

    #[test]
    fn untested_instruction_sets_are_named_and_required_ones_are_here() {
        let available: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
        let missing: Vec<&str> = NAMES.into_iter().filter(|name| !available.contains(name)).collect();
        if !missing.is_empty() {
            say_aloud(&format!("not tested on this machine: {}", missing.join(", ")));
        }
        let required = std::env::var(REQUIRE_VARIABLE).unwrap_or_default();
        let required = required.split(',').map(str::trim).filter(|name| !name.is_empty());
        for name in required {
            let isa = name.parse::<Isa>();
            assert!(isa.is_ok(), "{REQUIRE_VARIABLE}: {}", isa.unwrap_err());
        }
    }

    /// Says that a part of the tests is skipped, also with a line on stderr. The test runner shows that line even if
    /// the test passes, because it captures only the print macros.
    fn say_aloud(line: &str) {
        test_support::skipped(line);
        std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    #[test]
    fn the_best_is_chosen_once() {
        assert_eq!(select(None), Ok(active()));
        assert_eq!(select(Some(active().name())), Ok(active()));
        let other = Isa::available().into_iter().find(|isa| *isa != active());
        if let Some(other) = other {
            let error = select(Some(other.name()));
            assert_eq!(error, Err(IsaError::AlreadySelected { name: other.to_string(), active: active() }));
        }
    }
}
