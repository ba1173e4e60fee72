//! AMX tiles: eight registers of sixteen rows, and products of them.
//!
//! Only [`Amx::detect`] creates a value of [`Amx`]. [`Amx::with_tiles`] lends the tiles of the calling thread to a
//! closure; [`Tiles`] multiplies blocks. Everything except these products runs on AVX-512 with BF16 and VNNI, which
//! [`Amx::detect`] requires. Stable compilers have no intrinsics for tiles, so this file uses assembly.

#![expect(unsafe_code, reason = "intrinsics and assembly; the token proves that the CPU and the system have tiles")]

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::cell::Cell;
use std::sync::OnceLock;

use super::avx512::Avx512;
use crate::lines::{Ahead, BLOCK_ROWS, Block, Line, STEP_LINES, TILE_SIZE};

/// The bits of CPUID leaf 7, register EDX, for bf16 products, tiles and int8 products.
const CPUID_BITS: u32 = 1 << 22 | 1 << 24 | 1 << 25;
/// The number of the system call `arch_prctl` on Linux x86-64, which requests permission to use a part of the CPU
/// state.
const SYS_ARCH_PRCTL: i64 = 158;
const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
/// The part of the CPU state that holds the tiles.
const XFEATURE_XTILEDATA: u64 = 18;

/// Proof that the CPU has AMX with bf16 and int8, and that the system lets this process use it, or that a test emulates
/// AMX.
#[derive(Clone, Copy)]
pub(crate) struct Amx(());

/// The tiles of this thread, configured for blocks of `num_rows` rows.
pub(crate) struct Tiles {
    /// The numbers of rows of the two tiles of a block: the first tile has the first rows, the second tile the last
    /// ones. In a block of one row, both tiles hold that row.
    tile_rows: [usize; 2],
    num_rows: usize,
    /// The number of words of a row of a tile on the left.
    num_words: usize,
}

/// The operand of `ldtilecfg`.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    column_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Amx {
    /// Checks that the CPU has tiles, then requests permission from the system.
    pub(crate) fn detect() -> Option<Self> {
        static IS_PERMITTED: OnceLock<bool> = OnceLock::new();
        let has_vectors = Avx512::<2>::detect().is_some();
        let is_permitted = || has_tiles() && request_tiles();
        // Tests emulate tiles where the CPU or the system lacks them.
        #[cfg(all(test, target_os = "linux"))]
        let is_permitted = || is_permitted() || super::emulated_tiles::install();
        (has_vectors && *IS_PERMITTED.get_or_init(is_permitted)).then_some(Self(()))
    }

    /// Lends the tiles of this thread to `work`, configured for blocks of `num_rows` rows, of which a product takes
    /// `num_words` words: all or half of a line.
    ///
    /// # Panics
    /// When `num_rows` is 0 or more than [`BLOCK_ROWS`], or `num_words` is neither a line nor half of it, or `work`
    /// calls this function itself.
    pub(crate) fn with_tiles<T>(self, [num_rows, num_words]: [usize; 2], work: impl FnOnce(&Tiles) -> T) -> T {
        thread_local!(static IS_LENT: Cell<bool> = const { Cell::new(false) });
        assert!((1..=BLOCK_ROWS).contains(&num_rows), "a block of {num_rows} rows");
        assert!([TILE_SIZE / 2, TILE_SIZE].contains(&num_words), "products of {num_words} words");
        assert!(!IS_LENT.replace(true), "the tiles of this thread are in use");
        let tile_rows = [num_rows.div_ceil(2), (num_rows / 2).max(1)];
        let config = TileConfig::new(tile_rows, num_words);
        // SAFETY: `self` proves that there are tiles; the configuration is valid and 64 bytes long.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly)) };
        let result = work(&Tiles { tile_rows, num_rows, num_words });
        // SAFETY: as above. Released tiles need not be saved when the thread is suspended.
        unsafe { asm!("tilerelease", options(nomem, nostack)) };
        IS_LENT.set(false);
        result
    }
}

impl Tiles {
    /// Adds the product of bf16 values to `sums` `[rows, 32]`: `left` `[steps][rows][32 values]` times `right`
    /// `[steps][2][16 pairs][16 columns]`.
    ///
    /// In each step, the even products are summed in order, and so are the odd ones; then both are added to the sum.
    /// Subnormals count as zero.
    ///
    /// # Panics
    /// When `left` and `right` differ in their numbers of steps, contain a partial step, or are empty.
    #[inline(always)]
    pub(crate) fn add_bf16_product(&self, left: &[Line], right: &[Line], ahead: Ahead, sums: &mut Block<f32>) {
        let num_steps = self.check(left, right);
        // SAFETY: `check` asserts that `left` and `right` hold `num_steps` steps, at least one.
        unsafe { self.add_product::<f32, false>([left, right], num_steps, ahead, sums) };
    }

    /// Adds the product of int8 values to `sums` `[rows, 32]`, exactly: `left` `[steps][rows][64 values]` times `right`
    /// `[steps][2][16 quads][16 columns]`.
    ///
    /// # Panics
    /// As [`Tiles::add_bf16_product`].
    #[inline(always)]
    pub(crate) fn add_int8_product(&self, left: &[Line], right: &[Line], ahead: Ahead, sums: &mut Block<i32>) {
        let num_steps = self.check(left, right);
        // SAFETY: `check` asserts that `left` and `right` hold `num_steps` steps, at least one.
        unsafe { self.add_product::<i32, true>([left, right], num_steps, ahead, sums) };
    }

    /// Writes the product of bf16 values to `dots` `[rows, 32]`: `left` `[rows][32 values]` times `right`
    /// `[2][16 pairs][16 columns]`. If a product takes half of a line, only that `half` of the values is multiplied.
    /// The sums are those of [`Tiles::add_bf16_product`].
    ///
    /// # Panics
    /// When `left` or `right` has another number of lines, or there is no such half.
    #[inline(always)]
    pub(crate) fn bf16_dots(&self, left: &[Line], right: &[Line], half: usize, dots: &mut Block<f32>) {
        let fits = left.len() == self.num_rows && right.len() == STEP_LINES && half < TILE_SIZE / self.num_words;
        assert!(fits, "half {half} of {} lines of {} rows times {} lines", left.len(), self.num_rows, right.len());
        let first_word = half * self.num_words;
        let second_row = self.num_rows - self.tile_rows[1];
        // SAFETY: the CPU has tiles, configured by `with_tiles` for these rows and words; `left` and `right` hold what
        // is read, as asserted, and `dots` has at least the rows of 128 bytes that are written.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "tileloadd tmm4, [{left} + {stride}]",
                "tileloadd tmm6, [{right} + {stride}]",
                "tileloadd tmm7, [{right} + {stride} + 1024]",
                "tileloadd tmm5, [{second_left} + {stride}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tilestored [{dots} + 2*{stride}], tmm0",
                "tilestored [{dots} + 2*{stride} + 64], tmm1",
                "tilestored [{second_dots} + 2*{stride}], tmm2",
                "tilestored [{second_dots} + 2*{stride} + 64], tmm3",
                left = in(reg) left.as_ptr().cast::<u32>().add(first_word),
                second_left = in(reg) left.as_ptr().add(second_row).cast::<u32>().add(first_word),
                right = in(reg) right.as_ptr().add(first_word),
                stride = in(reg) size_of::<Line>(),
                dots = in(reg) dots.0.as_mut_ptr(),
                second_dots = in(reg) dots.0.as_mut_ptr().add(second_row),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, preserves_flags),
            );
        }
    }

    /// # Safety
    /// `left` and `right` hold `num_steps` steps, at least one.
    #[inline(always)]
    unsafe fn add_product<T, const IS_INT8: bool>(
        &self,
        [left, right]: [&[Line]; 2],
        num_steps: usize,
        ahead: Ahead,
        sums: &mut Block<T>,
    ) {
        let second_row = self.num_rows - self.tile_rows[1];
        // SAFETY: the CPU has tiles, configured by `with_tiles` for these rows; the caller ensures that `left` and
        // `right` hold what is read, and `sums` has at least the rows of 128 bytes that are written. A prefetch may
        // name any address.
        unsafe {
            asm!(
                "tileloadd tmm0, [{sums} + 2*{stride}]",
                "tileloadd tmm1, [{sums} + 2*{stride} + 64]",
                "tileloadd tmm2, [{second_sums} + 2*{stride}]",
                "tileloadd tmm3, [{second_sums} + 2*{stride} + 64]",
                "2:",
                "mov {asked}, {lines_per_step}",
                "3:",
                "prefetcht0 [{ahead}]",
                "add {ahead}, {stride}",
                "dec {asked}",
                "jnz 3b",
                // The left side of full blocks comes from the second-level cache, and there are too few tile registers
                // to load it early.
                "cmp {left_step}, {whole_step}",
                "jb 4f",
                ".irp line,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                r"prefetcht0 [{left} + {left_step} + 64*\line]",
                ".endr",
                "4:",
                // Each row of the left side is used only once here, so the load has the hint not to keep it in the
                // first-level cache. That cache is for the right side, which the next block may use again.
                "tileloaddt1 tmm4, [{left} + {stride}]",
                "tileloadd tmm6, [{right} + {stride}]",
                "tileloadd tmm7, [{right} + {stride} + 1024]",
                "tileloaddt1 tmm5, [{second_left} + {stride}]",
                ".if {is_int8}",
                "tdpbssd tmm0, tmm4, tmm6",
                "tdpbssd tmm1, tmm4, tmm7",
                "tdpbssd tmm2, tmm5, tmm6",
                "tdpbssd tmm3, tmm5, tmm7",
                ".else",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                ".endif",
                "add {left}, {left_step}",
                "add {second_left}, {left_step}",
                "add {right}, 2048",
                "dec {num_steps}",
                "jnz 2b",
                "tilestored [{sums} + 2*{stride}], tmm0",
                "tilestored [{sums} + 2*{stride} + 64], tmm1",
                "tilestored [{second_sums} + 2*{stride}], tmm2",
                "tilestored [{second_sums} + 2*{stride} + 64], tmm3",
                sums = in(reg) sums.0.as_mut_ptr(),
                second_sums = in(reg) sums.0.as_mut_ptr().add(second_row),
                left = inout(reg) left.as_ptr() => _,
                second_left = inout(reg) left.as_ptr().add(second_row) => _,
                left_step = in(reg) self.num_rows * size_of::<Line>(),
                whole_step = const BLOCK_ROWS * size_of::<Line>(),
                right = inout(reg) right.as_ptr() => _,
                stride = in(reg) size_of::<Line>(),
                num_steps = inout(reg) num_steps => _,
                ahead = inout(reg) ahead.first => _,
                lines_per_step = in(reg) ahead.lines_per_step.max(1),
                asked = out(reg) _,
                is_int8 = const IS_INT8 as u8,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// Returns the number of steps of a product, after checking the lengths.
    fn check(&self, left: &[Line], right: &[Line]) -> usize {
        let num_steps = right.len() / STEP_LINES;
        let is_whole = num_steps > 0 && right.len() == num_steps * STEP_LINES;
        let fits = is_whole && left.len() == num_steps * self.num_rows && self.num_words == TILE_SIZE;
        assert!(fits, "{} lines of {} rows times {} lines", left.len(), self.num_rows, right.len());
        num_steps
    }
}

impl TileConfig {
    /// Returns the configuration in which tiles 0, 1 and 4 have the rows of the first half of a block, and tiles 2, 3
    /// and 5 those of the second half. The rows of tiles 4 and 5 have `num_words` words, which is also the number of
    /// rows of tiles 6 and 7.
    fn new([first, second]: [usize; 2], num_words: usize) -> Self {
        let mut config = Self { palette: 1, start_row: 0, reserved: [0; 14], column_bytes: [0; 16], rows: [0; 16] };
        let rows = [first, first, second, second, first, second, num_words, num_words];
        for (tile, num_rows) in rows.into_iter().enumerate() {
            let num_words = if [4, 5].contains(&tile) { num_words } else { TILE_SIZE };
            config.column_bytes[tile] = (num_words * size_of::<u32>()) as u16;
            config.rows[tile] = num_rows as u8;
        }
        config
    }
}

fn has_tiles() -> bool {
    let has_leaf = __cpuid_count(0, 0).eax >= 7;
    has_leaf && __cpuid_count(7, 0).edx & CPUID_BITS == CPUID_BITS
}

/// Requests permission to use tiles for all threads of this process. Returns true if the system grants it.
#[cfg(target_os = "linux")]
fn request_tiles() -> bool {
    let answer: i64;
    // SAFETY: the system call changes only the permissions of this process.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") SYS_ARCH_PRCTL => answer,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    answer == 0
}

#[cfg(not(target_os = "linux"))]
fn request_tiles() -> bool {
    false
}
