//! Which instruction set the kernels use: chosen once per process, by detection or by name.
//!
//! Doors: [`select`] at start-up, [`active`] afterwards. An operation implements [`Kernel`] over any [`Simd`];
//! [`Isa::run`] compiles it with the features of the instruction set switched on. To add an instruction set, write its
//! file with `impl Simd`, and a variant of [`Isa`]; the compiler names the rest. It never reads the environment.

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
pub(crate) use simd::{Kernel, LANES, Simd};

static ACTIVE: OnceLock<Isa> = OnceLock::new();

/// An instruction set that the kernels are compiled for, slowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// What the compilation target guarantees.
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
    /// AMX with bf16 and int8 for products of matrices that have these types, AVX-512 with BF16 and VNNI for everything else.
    #[cfg(target_arch = "x86_64")]
    Amx,
}

/// The names of all of them, slowest first.
const NAMES: [&str; 7] = ["portable", "avx2", "avx-vnni", "avx512", "avx512-vnni", "avx512-bf16", "amx"];

/// The instruction set asked for cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// No such name.
    #[error(
        "cpu instruction set {name:?} is unknown: portable, avx2, avx-vnni, avx512, avx512-vnni, avx512-bf16 or amx"
    )]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// This machine or this build has not got it.
    #[error("cpu instruction set {name} is not available on this machine, best is {best}")]
    Unavailable {
        /// What was asked for.
        name: String,
        /// What would be chosen without a name.
        best: Isa,
    },
    /// Another one is already in use in this process.
    #[error("cpu instruction set {name} asked for, but this process already uses {active}")]
    AlreadySelected {
        /// What was asked for.
        name: String,
        /// What is in use.
        active: Isa,
    },
}

/// Chooses the instruction set of this process: the one called `name`, or the best of this machine if `None`.
///
/// Call before the first operation; the caller logs the answer.
///
/// # Errors
/// When the name is unknown, the machine lacks it, or another one has been chosen before.
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
    /// Those this machine has, slowest first.
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

    /// The fastest of this machine.
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

    /// Whether x is rounded to bf16 where the weight, or what attention keeps, is exact in it, and multiplied two values at a time.
    pub fn rounds_to_bf16(self) -> bool {
        match self {
            Self::Portable => false,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::AvxVnni | Self::Avx512 | Self::Avx512Vnni => false,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 | Self::Amx => true,
        }
    }

    /// Whether matrices of bf16 and int8 are multiplied by tiles.
    pub(crate) fn has_tiles(self) -> bool {
        match self {
            Self::Portable => false,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::AvxVnni | Self::Avx512 | Self::Avx512Vnni | Self::Avx512Bf16 => false,
            #[cfg(target_arch = "x86_64")]
            Self::Amx => true,
        }
    }

    /// Lends this thread's tiles to `work`, for blocks of `num_rows` rows, or none where this instruction set has none.
    pub(crate) fn with_tiles(self, num_rows: usize, work: impl FnOnce(Option<&Tiles>)) {
        match self {
            Self::Portable => work(None),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::AvxVnni | Self::Avx512 | Self::Avx512Vnni | Self::Avx512Bf16 => work(None),
            #[cfg(target_arch = "x86_64")]
            Self::Amx => {
                let amx = amx::Amx::detect().expect("a chosen instruction set is available");
                amx.with_tiles(num_rows, |tiles| work(Some(tiles)));
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

    /// Runs `kernel`, which computes with floats alone: all that have AVX-512 run the same code, and so do both that have AVX2 alone.
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

    /// Runs `kernel`, which multiplies pairs of bf16.
    ///
    /// # Panics
    /// When this instruction set does not: see [`Isa::rounds_to_bf16`].
    pub(crate) fn run_pairs<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 | Self::Amx => {
                avx512::Avx512::<2>::detect().expect("a chosen instruction set is available").run(kernel)
            }
            _ => unreachable!("{self} multiplies no pairs of bf16"),
        }
    }

    /// Runs `kernel` with this instruction set.
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

    /// Names instruction sets, with commas between them, that this machine promises to have: tests fail where one is missing.
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
            "cpu instruction set \"sse9\" is unknown: portable, avx2, avx-vnni, avx512, avx512-vnni, avx512-bf16 or amx"
        );
    }

    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    #[test]
    fn tiles_are_tested_where_the_vectors_beside_them_are() {
        let available = Isa::available();
        assert_eq!(available.contains(&Isa::Amx), available.contains(&Isa::Avx512Bf16));
        if !available.contains(&Isa::Amx) {
            say_aloud("not tested on this machine: tiles, emulated ones neither, for they need avx512-bf16");
        }
    }

    #[test]
    fn what_is_not_tested_here_is_named_and_what_is_required_is_here() {
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

    /// Writes a line that is shown although the test passes: only what the macros print is held back.
    fn say_aloud(line: &str) {
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
