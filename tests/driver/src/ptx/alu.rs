//! Arithmetic on registers, which are 64 bits wide and hold a value in their low bytes.

use super::instruction::{Instruction, Kind, Type};

/// What is done here.
pub(super) const KNOWN: [&str; 37] = [
    "add", "sub", "mul", "mad", "fma", "div", "rem", "abs", "neg", "min", "max", "and", "or",
    "xor", "not", "shl", "shr", "sqrt", "rsqrt", "rcp", "ex2", "lg2", "sin", "cos", "tanh", "popc",
    "clz", "brev", "bfind", "cnot", "bfe", "bfi", "mul24", "copysign", "shf", "lop3", "prmt",
];

/// The low bytes, as the type means them.
pub(super) fn unsigned(value: u64, bytes: usize) -> u64 {
    match bytes {
        8 => value,
        bytes => value & ((1 << (bytes * 8)) - 1),
    }
}

pub(super) fn signed(value: u64, bytes: usize) -> i64 {
    let shift = 64 - bytes as u32 * 8;
    ((value << shift) as i64) >> shift
}

pub(super) fn float(value: u64, bytes: usize) -> f64 {
    match bytes {
        4 => f32::from_bits(value as u32).into(),
        _ => f64::from_bits(value),
    }
}

fn bits(value: f64, bytes: usize) -> u64 {
    match bytes {
        4 => (value as f32).to_bits().into(),
        _ => value.to_bits(),
    }
}

/// A value as an integer that has room for all of its type.
fn wide(value: u64, kind: Type) -> i128 {
    match kind.is_signed() {
        true => signed(value, kind.bytes).into(),
        false => unsigned(value, kind.bytes).into(),
    }
}

/// The result of an instruction on the values of its sources; `None` if it has none.
pub(super) fn compute(of: &Instruction, v: &[u64]) -> Option<u64> {
    let value = |at: usize| v.get(at).copied().unwrap_or(0);
    let name = of.name[0].as_str();
    let kind = of.kind;
    if kind.kind == Kind::Predicate {
        let (a, b) = (value(0) & 1, value(1) & 1);
        return Some(match name {
            "and" => a & b,
            "or" => a | b,
            "xor" => a ^ b,
            "not" => a ^ 1,
            _ => return None,
        });
    }
    if kind.is_float() {
        return compute_float(name, kind.bytes, [value(0), value(1), value(2)]);
    }
    let bytes = kind.bytes;
    let result = match name {
        "mul" | "mad" | "mul24" => {
            let product = wide(value(0), kind).wrapping_mul(wide(value(1), kind));
            let (product, bytes) = match () {
                () if of.has("wide") => (product, bytes * 2),
                () if of.has("hi") => (product >> (bytes * 8), bytes),
                () => (product, bytes),
            };
            let added = if name == "mad" { value(2) } else { 0 };
            return Some(unsigned((product as u64).wrapping_add(added), bytes));
        }
        "add" => value(0).wrapping_add(value(1)),
        "sub" => value(0).wrapping_sub(value(1)),
        "div" | "rem" => {
            let (a, b) = (wide(value(0), kind), wide(value(1), kind));
            // What a GPU gives here is not defined.
            match (b, name) {
                (0, _) => u64::MAX,
                (b, "div") => (a / b) as u64,
                (b, _) => (a % b) as u64,
            }
        }
        "abs" => signed(value(0), bytes).unsigned_abs(),
        "neg" => value(0).wrapping_neg(),
        "min" => wide(value(0), kind).min(wide(value(1), kind)) as u64,
        "max" => wide(value(0), kind).max(wide(value(1), kind)) as u64,
        "and" => value(0) & value(1),
        "or" => value(0) | value(1),
        "xor" => value(0) ^ value(1),
        "not" => !value(0),
        "cnot" => u64::from(unsigned(value(0), bytes) == 0),
        "shl" => match unsigned(value(1), 4) {
            by if by < bytes as u64 * 8 => value(0) << by,
            _ => 0,
        },
        "shr" => {
            let by = unsigned(value(1), 4).min(bytes as u64 * 8);
            match kind.is_signed() {
                true => (signed(value(0), bytes) >> by.min(63)) as u64,
                false if by >= 64 => 0,
                false => unsigned(value(0), bytes) >> by,
            }
        }
        "popc" => unsigned(value(0), bytes).count_ones().into(),
        "clz" => u64::from(unsigned(value(0), bytes).leading_zeros()) - (64 - bytes as u64 * 8),
        "brev" => unsigned(value(0), bytes).reverse_bits() >> (64 - bytes * 8),
        "bfind" => match unsigned(value(0), bytes) {
            0 => u64::MAX,
            some => 63 - u64::from(some.leading_zeros()),
        },
        "bfe" => {
            let (from, length) = (value(1) & 0xff, value(2) & 0xff);
            let field = unsigned(value(0), bytes)
                .checked_shr(from as u32)
                .unwrap_or(0);
            let field = if length >= 64 {
                field
            } else {
                field & ((1 << length) - 1)
            };
            match kind.is_signed() && (1..64).contains(&length) {
                true => (((field << (64 - length)) as i64) >> (64 - length)) as u64,
                false => field,
            }
        }
        "bfi" => {
            let (from, length) = (value(2) & 0xff, value(3) & 0xff);
            let mask = if length >= 64 {
                u64::MAX
            } else {
                (1 << length) - 1
            };
            let mask = mask.checked_shl(from as u32).unwrap_or(0);
            value(1) & !mask | value(0).checked_shl(from as u32).unwrap_or(0) & mask
        }
        "shf" => {
            let by = if of.has("wrap") {
                value(2) & 31
            } else {
                unsigned(value(2), 4).min(32)
            };
            let both = unsigned(value(1), 4) << 32 | unsigned(value(0), 4);
            if of.has("l") {
                (u128::from(both) << by >> 32) as u64
            } else {
                both >> by
            }
        }
        "lop3" => (0..8)
            .filter(|row| value(3) >> row & 1 != 0)
            .fold(0, |all, row| {
                let side = |at: usize, bit: u64| {
                    if row & bit != 0 {
                        value(at)
                    } else {
                        !value(at)
                    }
                };
                all | side(0, 4) & side(1, 2) & side(2, 1)
            }),
        "prmt" => {
            let both = unsigned(value(1), 4) << 32 | unsigned(value(0), 4);
            (0..4).fold(0, |all, at| {
                let selector = value(2) >> (at * 4) & 15;
                let byte = both >> ((selector & 7) * 8) & 0xff;
                // The high bit of a selector asks for copies of the byte's sign.
                let byte = if selector & 8 != 0 {
                    (byte >> 7) * 0xff
                } else {
                    byte
                };
                all | byte << (at * 8)
            })
        }
        _ => return None,
    };
    Some(unsigned(result, bytes))
}

/// What single and double precision both have.
macro_rules! arithmetic {
    ($name:expr, $a:ident, $b:ident, $c:ident) => {
        match $name {
            "add" => $a + $b,
            "sub" => $a - $b,
            "mul" => $a * $b,
            "fma" | "mad" => $a.mul_add($b, $c),
            "div" => $a / $b,
            "sqrt" => $a.sqrt(),
            "rcp" => 1.0 / $a,
            "rsqrt" => 1.0 / $a.sqrt(),
            "abs" => $a.abs(),
            "neg" => -$a,
            "min" => $a.min($b),
            "max" => $a.max($b),
            "copysign" => $b.copysign($a),
            _ => return None,
        }
    };
}

fn compute_float(name: &str, bytes: usize, v: [u64; 3]) -> Option<u64> {
    // Single precision is computed as such, so that each step rounds as on a GPU.
    if bytes == 4 {
        let [a, b, c] = v.map(|value| f32::from_bits(value as u32));
        let result = match name {
            "ex2" => a.exp2(),
            "lg2" => a.log2(),
            "sin" => a.sin(),
            "cos" => a.cos(),
            "tanh" => a.tanh(),
            _ => arithmetic!(name, a, b, c),
        };
        return Some(result.to_bits().into());
    }
    let [a, b, c] = v.map(f64::from_bits);
    let result = arithmetic!(name, a, b, c);
    Some(result.to_bits())
}

/// Whether a comparison holds.
pub(super) fn compare(of: &Instruction, a: u64, b: u64) -> Option<bool> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let operator = of.name.get(1)?.as_str();
    let kind = of.kind;
    let order = match kind.is_float() {
        true => float(a, kind.bytes).partial_cmp(&float(b, kind.bytes)),
        false => Some(wide(a, kind).cmp(&wide(b, kind))),
    };
    // Operators that end in `u` hold where a number is none.
    let (operator, unordered) = match operator.strip_suffix('u') {
        Some(plain) if kind.is_float() && plain.len() == 2 => (plain, true),
        _ => (operator, operator == "ne" && !kind.is_float()),
    };
    let Some(order) = order else {
        return Some(unordered || operator == "nan");
    };
    Some(match operator {
        "eq" => order == Equal,
        "ne" => order != Equal,
        "lt" | "lo" => order == Less,
        "le" | "ls" => order != Greater,
        "gt" | "hi" => order == Greater,
        "ge" | "hs" => order != Less,
        "num" => true,
        "nan" => false,
        _ => return None,
    })
}

/// A conversion between types.
pub(super) fn convert(of: &Instruction, value: u64) -> u64 {
    let (to, from) = (of.kind, of.from);
    if !from.is_float() {
        let number = wide(value, from);
        return match to.is_float() {
            // Once rounded, not twice.
            true if to.bytes == 4 => (number as f32).to_bits().into(),
            true => (number as f64).to_bits(),
            false => unsigned(number as u64, to.bytes),
        };
    }
    let number = float(value, from.bytes);
    let number = match () {
        () if of.has("rni") => number.round_ties_even(),
        () if of.has("rzi") => number.trunc(),
        () if of.has("rmi") => number.floor(),
        () if of.has("rpi") => number.ceil(),
        () => number,
    };
    let number = if of.has("sat") && to.is_float() {
        number.clamp(0.0, 1.0)
    } else {
        number
    };
    if to.is_float() {
        return bits(number, to.bytes);
    }
    // Out of range gives the nearest that is in range, as on a GPU.
    let whole = number as i128;
    let bits = to.bytes as u32 * 8;
    let (low, high) = match to.is_signed() {
        true => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
        false => (0, (1i128 << bits) - 1),
    };
    unsigned(whole.clamp(low, high) as u64, to.bytes)
}
