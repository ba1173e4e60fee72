//! Emulated AMX tiles, for tests on CPUs that lack AMX: tile instructions are illegal there, so a signal handler
//! emulates them.
//!
//! Entry point: [`install`]. The SIGILL handler decodes the instructions that `amx` assembles, changes the state of
//! this thread and resumes after them. Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2,
//! sections 2.3 (VEX), TILEZERO, TILELOADD, TDPBF16PS and TDPBSSD. At any other instruction, and at a tile instruction
//! whose tiles are not configured or do not fit, the handler restores the default action, so that the system ends the
//! process. Rust code does the loads and stores, so that the address sanitizer checks them.

#![expect(unsafe_code, reason = "the handler of a signal; assembly tells it what to read and write")]

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;

use libc::{REG_RIP, c_int, c_void, siginfo_t, ucontext_t};

const NUM_TILES: usize = 8;
const MAX_ROWS: usize = 16;
const ROW_BYTES: usize = 64;

/// The indices of the registers in `gregs`, in the order of the register numbers in instructions.
const REGISTERS: [c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];
const RSP: usize = 4;
const RBP: usize = 5;

thread_local! {
    static TILES: UnsafeCell<Tiles> = const { UnsafeCell::new(Tiles::RELEASED) };
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Tile {
    rows: [[u32; ROW_BYTES / 4]; MAX_ROWS],
    num_rows: usize,
    row_bytes: usize,
}

struct Tiles([Tile; NUM_TILES]);

/// An instruction with a three-byte VEX prefix in map 0F38, decoded.
struct Instruction {
    opcode: u8,
    /// The implied prefix byte: 0 for none, 66, F3 or F2.
    prefix: u8,
    /// The register in the field `reg` of ModRM.
    reg: usize,
    vvvv: usize,
    place: Place,
    len: usize,
}

/// The operand of the instruction that is a register or memory: the one that ModRM and SIB encode.
enum Place {
    Register(usize),
    /// Rows that start at `address`, `stride` bytes apart.
    Memory {
        address: usize,
        stride: usize,
    },
}

/// Installs the SIGILL handler, which from now on emulates tile instructions in this process. Returns true on success.
pub(super) fn install() -> bool {
    // SAFETY: all of `action` is zero or written; the handler changes only its own thread, or else restores the default
    // action, and calls nothing that allocates.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = on_illegal_instruction as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGILL, &raw const action, ptr::null_mut()) == 0
    }
}

extern "C" fn on_illegal_instruction(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the system passes the context of this thread, whose program counter points at instructions. Nothing else
    // uses the tiles of this thread.
    unsafe {
        let registers = &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs;
        let start = registers[REG_RIP as usize];
        TILES.with(|tiles| {
            let tiles = &mut *tiles.get();
            // Tile instructions that follow directly are emulated too, which saves a signal for each.
            while let Some(instruction) = Instruction::at(registers)
                && tiles.execute(&instruction)
            {
                registers[REG_RIP as usize] += instruction.len as i64;
            }
        });
        if registers[REG_RIP as usize] == start {
            libc::signal(libc::SIGILL, libc::SIG_DFL);
        }
    }
}

impl Instruction {
    /// Decodes the instruction at the program counter of `registers`. Returns `None` unless it has a three-byte VEX
    /// prefix in map 0F38 and a supported operand.
    ///
    /// # Safety
    /// The program counter points at instructions.
    unsafe fn at(registers: &[i64]) -> Option<Self> {
        let first = registers[REG_RIP as usize] as *const u8;
        // SAFETY: the caller ensures that there are instructions, and a byte is read only if the bytes before it show
        // that it belongs to the instruction.
        let byte = |index: usize| usize::from(unsafe { first.add(index).read() });
        let register = |number: usize| registers[REGISTERS[number] as usize] as usize;
        if byte(0) != 0xc4 || byte(1) & 0x1f != 2 {
            return None;
        }
        // The bits R, X and B are inverted, and so is `vvvv`.
        let [base_high, index_high, reg_high] = [5, 6, 7].map(|bit| (!byte(1) >> bit & 1) << 3);
        let modrm = byte(4);
        let (mode, low) = (modrm >> 6, modrm & 7);
        let mut len = 5;
        let place = if mode == 3 {
            Place::Register(base_high | low)
        } else {
            let mut base = base_high | low;
            let mut stride = 0;
            if low == RSP {
                let sib = byte(len);
                len += 1;
                base = base_high | sib & 7;
                let index = index_high | sib >> 3 & 7;
                stride = if index == RSP { 0 } else { register(index) << (sib >> 6) };
            } else if mode == 0 && low == RBP {
                return None;
            }
            let displacement = match mode {
                0 if base & 7 == RBP => return None,
                0 => 0,
                1 => byte(len) as i8 as isize,
                _ => i32::from_le_bytes([0, 1, 2, 3].map(|index| byte(len + index) as u8)) as isize,
            };
            len += [0, 1, 4][mode];
            Place::Memory { address: register(base).wrapping_add_signed(displacement), stride }
        };
        Some(Self {
            opcode: byte(3) as u8,
            prefix: [0, 0x66, 0xf3, 0xf2][byte(2) & 3],
            reg: reg_high | modrm >> 3 & 7,
            vvvv: !byte(2) >> 3 & 0xf,
            place,
            len,
        })
    }
}

impl Tiles {
    const RELEASED: Self = Self([Tile { rows: [[0; ROW_BYTES / 4]; MAX_ROWS], num_rows: 0, row_bytes: 0 }; NUM_TILES]);

    /// Executes the instruction if it is a tile instruction whose tiles are configured and fit. Returns true if so.
    ///
    /// # Safety
    /// The memory that the instruction names can be read or written as the instruction does.
    unsafe fn execute(&mut self, instruction: &Instruction) -> bool {
        let &Instruction { opcode, prefix, reg, vvvv, ref place, .. } = instruction;
        // SAFETY: the caller ensures that the memory can be read or written.
        unsafe {
            match (opcode, prefix, place) {
                (0x49, 0, Place::Memory { address, .. }) => self.configure(&*(*address as *const [u8; 64])),
                (0x49, 0, Place::Register(_)) => {
                    *self = Self::RELEASED;
                    true
                }
                (0x49, 0xf2, Place::Register(_)) => self.tile_mut(reg).is_some_and(Tile::clear),
                (0x4b, 0xf2 | 0x66, Place::Memory { address, stride }) => {
                    self.tile_mut(reg).is_some_and(|tile| tile.load(*address, *stride))
                }
                (0x4b, 0xf3, Place::Memory { address, stride }) => {
                    self.tile_mut(reg).is_some_and(|tile| tile.store(*address, *stride))
                }
                (0x5c, 0xf3, Place::Register(left)) => self.add_product(reg, [*left, vvvv], add_bf16_products),
                (0x5e, 0xf2, Place::Register(left)) => self.add_product(reg, [*left, vvvv], add_int8_products),
                _ => false,
            }
        }
    }

    /// Configures the tiles as `ldtilecfg` does. Returns true if the palette, the start row and all sizes are valid.
    fn configure(&mut self, config: &[u8; 64]) -> bool {
        *self = Self::RELEASED;
        for (index, tile) in self.0.iter_mut().enumerate() {
            tile.row_bytes = usize::from(u16::from_le_bytes([config[16 + 2 * index], config[17 + 2 * index]]));
            tile.num_rows = usize::from(config[48 + index]);
        }
        let is_palette = config[0] == 1 && config[1] == 0;
        is_palette && self.0.iter().all(|tile| tile.row_bytes <= ROW_BYTES && tile.num_rows <= MAX_ROWS)
    }

    /// Returns a tile if it is configured.
    fn tile_mut(&mut self, index: usize) -> Option<&mut Tile> {
        self.0.get_mut(index).filter(|tile| tile.num_rows > 0 && tile.row_bytes > 0)
    }

    /// Adds the product of two tiles to a third, row by row. Returns false if the sizes do not fit.
    fn add_product(
        &mut self,
        sums: usize,
        factors: [usize; 2],
        add_products: fn(&mut [u32], &[u32], &[[u32; ROW_BYTES / 4]]),
    ) -> bool {
        let [Some(left), Some(right)] = factors.map(|index| self.tile_mut(index).copied()) else { return false };
        let Some(sums) = self.tile_mut(sums) else { return false };
        let is_product = sums.num_rows == left.num_rows && sums.row_bytes == right.row_bytes;
        if !is_product || left.row_bytes != 4 * right.num_rows {
            return false;
        }
        for (sums, left) in sums.rows.iter_mut().zip(&left.rows).take(left.num_rows) {
            add_products(&mut sums[..right.row_bytes / 4], left, &right.rows[..right.num_rows]);
        }
        true
    }
}

impl Tile {
    fn clear(&mut self) -> bool {
        self.rows = Tiles::RELEASED.0[0].rows;
        true
    }

    /// # Safety
    /// The `num_rows` rows at `address`, `stride` bytes apart, can be read.
    unsafe fn load(&mut self, address: usize, stride: usize) -> bool {
        self.clear();
        for (index, row) in self.rows.iter_mut().enumerate().take(self.num_rows) {
            let from = address.wrapping_add(index.wrapping_mul(stride)) as *const u8;
            // SAFETY: the caller ensures that the memory is accessible, and a row has at most `ROW_BYTES` bytes.
            unsafe { ptr::copy_nonoverlapping(from, row.as_mut_ptr().cast(), self.row_bytes) };
        }
        true
    }

    /// # Safety
    /// The `num_rows` rows at `address`, `stride` bytes apart, can be written.
    unsafe fn store(&self, address: usize, stride: usize) -> bool {
        for (index, row) in self.rows.iter().enumerate().take(self.num_rows) {
            let to = address.wrapping_add(index.wrapping_mul(stride)) as *mut u8;
            // SAFETY: the caller ensures that the memory is accessible, and a row has at most `ROW_BYTES` bytes.
            unsafe { ptr::copy_nonoverlapping(row.as_ptr().cast(), to, self.row_bytes) };
        }
        true
    }
}

/// Adds the products of bf16 pairs to one row of sums: the even products are added in order, and so are the odd ones,
/// then both are added to the sum. Subnormals count as zero.
fn add_bf16_products(sums: &mut [u32], left: &[u32], right: &[[u32; ROW_BYTES / 4]]) {
    let mut both = [[0.0_f32; ROW_BYTES / 4]; 2];
    for (left, right) in left.iter().zip(right) {
        for (half, sums) in both.iter_mut().enumerate() {
            let left = bf16(*left, half);
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = without_subnormal(left.mul_add(bf16(*right, half), *sum));
            }
        }
    }
    let [even, odd] = both;
    for (sum, (even, odd)) in sums.iter_mut().zip(even.into_iter().zip(odd)) {
        let product = without_subnormal(even + odd);
        *sum = without_subnormal(without_subnormal(f32::from_bits(*sum)) + product).to_bits();
    }
}

fn add_int8_products(sums: &mut [u32], left: &[u32], right: &[[u32; ROW_BYTES / 4]]) {
    for (left, right) in left.iter().zip(right) {
        for (sum, right) in sums.iter_mut().zip(right) {
            let products = left.to_le_bytes().into_iter().zip(right.to_le_bytes());
            let product: i32 = products.map(|(left, right)| i32::from(left as i8) * i32::from(right as i8)).sum();
            *sum = sum.wrapping_add_signed(product);
        }
    }
}

/// Returns the low bf16 value of a pair as f32 if `half` is 0, otherwise the high one.
fn bf16(pair: u32, half: usize) -> f32 {
    let bits = if half == 0 { pair << 16 } else { pair & 0xffff_0000 };
    without_subnormal(f32::from_bits(bits))
}

fn without_subnormal(value: f32) -> f32 {
    if value.is_subnormal() { 0.0_f32.copysign(value) } else { value }
}
