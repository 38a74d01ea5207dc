//! GGML's blocks whose values are taken from codebooks, several at a time. `grids.bin` has the codebooks, which
//! `tests/gguf/make_blocks.py` writes from the package `gguf`: each entry is a little-endian u16.

use std::array;

use half::f16;

use super::{ElementType, f16_at};
use crate::ops::k_quants::{K_BLOCK, KBlock};

static GRIDS: &[u8] = include_bytes!("grids.bin");

/// A codebook: where its entries begin in [`GRIDS`], how many there are, and bits of a level in an entry.
#[derive(Clone, Copy)]
struct Grid {
    start: usize,
    len: usize,
    bits: u32,
    levels: &'static [i8],
}

const IQ2_LEVELS: &[i8] = &[8, 25, 43, 0];

const IQ2_XXS: Grid = Grid { start: 0, len: 256, bits: 2, levels: IQ2_LEVELS };
const IQ2_XS: Grid = Grid { start: IQ2_XXS.end(), len: 512, bits: 2, levels: IQ2_LEVELS };
const IQ2_S: Grid = Grid { start: IQ2_XS.end(), len: 1024, bits: 2, levels: IQ2_LEVELS };
const IQ3_XXS: Grid = Grid { start: IQ2_S.end(), len: 256, bits: 3, levels: &[4, 12, 20, 28, 36, 44, 52, 62] };
const IQ3_S: Grid = Grid { start: IQ3_XXS.end(), len: 512, bits: 3, levels: &[1, 3, 5, 7, 9, 11, 13, 15] };
const IQ1: Grid = Grid { start: IQ3_S.end(), len: 2048, bits: 2, levels: &[-8, 0, 8, 0] };

const _: () = assert!(IQ1.end() * 2 == GRIDS.len());

impl Grid {
    const fn end(self) -> usize {
        self.start + self.len
    }

    /// The `N` levels of an entry.
    fn entry<const N: usize>(self, number: usize) -> [i8; N] {
        let at = 2 * (self.start + number % self.len);
        let codes = u16::from_le_bytes([GRIDS[at], GRIDS[at + 1]]);
        array::from_fn(|n| self.levels[usize::from(codes >> (self.bits * n as u32) & ((1 << self.bits) - 1))])
    }
}

/// Eight values, with a minus where a bit is set.
fn signed(sizes: [i8; 8], signs: u8) -> [i8; 8] {
    array::from_fn(|n| if signs >> n & 1 == 1 { -sizes[n] } else { sizes[n] })
}

/// Seven signs, and an eighth that makes the number of minuses even.
fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// The factor `2 n + 1` of a scale with the bits `n`.
fn odd(bits: u8) -> i8 {
    2 * bits.cast_signed() + 1
}

/// The half of byte `n / 2` of `bytes` that is number `n`, the lower one first.
fn nibble(bytes: &[u8], n: usize) -> u8 {
    bytes[n / 2] >> (n % 2 * 4) & 15
}

/// A block of a type with a codebook.
pub(super) fn k_block(element: ElementType, block: &[u8]) -> KBlock {
    let scale = f16_at(block, 0).to_f32();
    let word = |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let short = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    match element {
        ElementType::Iq2Xxs => {
            let signs = |group: usize| word(2 + group / 4 * 8 + 4);
            of_eights(
                scale / 8.0,
                |part| odd((signs(2 * part) >> 28) as u8),
                |group| {
                    let entry = block[2 + group / 4 * 8 + group % 4];
                    signed(IQ2_XXS.entry(entry.into()), even_signs(signs(group) >> (group % 4 * 7)))
                },
            )
        }
        ElementType::Iq2Xs => of_eights(
            scale / 8.0,
            |part| odd(nibble(&block[66..], part)),
            |group| {
                let code = short(2 + 2 * group);
                signed(IQ2_XS.entry((code & 511).into()), even_signs(u32::from(code >> 9)))
            },
        ),
        ElementType::Iq2S => of_eights(
            scale / 8.0,
            |part| odd(nibble(&block[74..], part)),
            |group| {
                let high = usize::from(block[66 + group / 4] >> (group % 4 * 2) & 3);
                signed(IQ2_S.entry(usize::from(block[2 + group]) | high << 8), block[34 + group])
            },
        ),
        ElementType::Iq3Xxs => {
            let signs = |group: usize| word(66 + group / 4 * 4);
            of_eights(
                scale / 4.0,
                |part| odd((signs(2 * part) >> 28) as u8),
                |group| {
                    let entry = |n: usize| IQ3_XXS.entry(block[2 + 2 * group + n].into());
                    signed(joined(entry(0), entry(1)), even_signs(signs(group) >> (group % 4 * 7)))
                },
            )
        }
        ElementType::Iq3S => of_eights(
            scale,
            |part| odd(nibble(&block[106..], part / 2)),
            |group| {
                let entry = |n: usize| {
                    let high = usize::from(block[66 + n / 8] >> (n % 8) & 1);
                    IQ3_S.entry(usize::from(block[2 + n]) | high << 8)
                };
                signed(joined(entry(2 * group), entry(2 * group + 1)), block[74 + group])
            },
        ),
        ElementType::Iq1S => {
            let of_run = |run: usize| short(34 + 2 * run);
            of_eights(
                scale / 8.0,
                |part| odd((of_run(part / 2) >> 12 & 7) as u8),
                |group| {
                    let bits = of_run(group / 4);
                    let high = usize::from(bits >> (group % 4 * 3) & 7);
                    shifted(IQ1.entry(usize::from(block[group + 2]) | high << 8), bits & 0x8000 != 0)
                },
            )
        }
        _ => {
            let own = |part: usize| odd((short(48 + part / 4 * 2) >> (part % 4 * 3) & 7) as u8);
            of_eights(iq1_m_scale(block).to_f32() / 8.0, own, |group| {
                let bits = nibble(&block[32..48], group);
                shifted(IQ1.entry(usize::from(block[group]) | usize::from(bits & 7) << 8), bits & 8 != 0)
            })
        }
    }
}

/// The scale of an `IQ1_M` block: the top four bits of each of the last four u16, concatenated.
pub(super) fn iq1_m_scale(block: &[u8]) -> f16 {
    f16::from_bits((0..4).fold(0, |bits, n| bits | u16::from(block[49 + 2 * n] >> 4) << (4 * n)))
}

/// Levels of `IQ1`, an eighth of a step higher, or lower. In eighths.
fn shifted(levels: [i8; 8], is_lower: bool) -> [i8; 8] {
    levels.map(|level| if is_lower { level - 1 } else { level + 1 })
}

fn joined([a, b, c, d]: [i8; 4], [e, f, g, h]: [i8; 4]) -> [i8; 8] {
    [a, b, c, d, e, f, g, h]
}

/// A block from the scale of each 16 values and from each eight values.
fn of_eights(scale: f32, own: impl Fn(usize) -> i8, eight: impl Fn(usize) -> [i8; 8]) -> KBlock {
    let mut values = [0; K_BLOCK];
    values.as_chunks_mut().0.iter_mut().enumerate().for_each(|(group, out)| *out = eight(group));
    KBlock { scale, scales: array::from_fn(own), values, ..KBlock::default() }
}
