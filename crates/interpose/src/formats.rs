//! Translates the formats of array elements between the runtime and the driver.

use crate::abi::ChannelFormat;
use rgaps_remoting::Code;

/// `cudaChannelFormatKind`.
const SIGNED: i32 = 0;
const UNSIGNED: i32 = 1;
const FLOAT: i32 = 2;
const NONE: i32 = 3;
/// Kind, bits of a channel, `CUarray_format`.
const PLAIN: &[(i32, i32, u32)] = &[
    (UNSIGNED, 8, 0x01),
    (UNSIGNED, 16, 0x02),
    (UNSIGNED, 32, 0x03),
    (SIGNED, 8, 0x08),
    (SIGNED, 16, 0x09),
    (SIGNED, 32, 0x0a),
    (FLOAT, 16, 0x10),
    (FLOAT, 32, 0x20),
];
/// Normalised integers follow each other: `cudaChannelFormatKindUnsignedNormalized8X1`, `CU_AD_FORMAT_UNORM_INT8X1` and so on.
const NORMALIZED: std::ops::RangeInclusive<i32> = 5..=16;
const NORMALIZED_FORMAT: u32 = 0xc0;

/// The driver's format and the number of channels.
pub(crate) fn to_driver(of: &ChannelFormat) -> Result<(u32, u32), Code> {
    let channels = of.bits.iter().take_while(|bits| **bits != 0).count();
    let is_even = of.bits[..channels].iter().all(|bits| *bits == of.bits[0])
        && of.bits[channels..].iter().all(|bits| *bits == 0);
    if ![1, 2, 4].contains(&channels) || !is_even || of.kind == NONE {
        return Err(Code::INVALID_CHANNEL_DESCRIPTOR);
    }
    if NORMALIZED.contains(&of.kind) {
        let number = of.kind - NORMALIZED.start();
        return Ok((NORMALIZED_FORMAT + number as u32, channels as u32));
    }
    let found = PLAIN
        .iter()
        .find(|(kind, bits, _)| (*kind, *bits) == (of.kind, of.bits[0]));
    match found {
        Some((_, _, format)) => Ok((*format, channels as u32)),
        None if of.kind > NONE => Err(Code::NOT_SUPPORTED),
        None => Err(Code::INVALID_CHANNEL_DESCRIPTOR),
    }
}

/// The runtime's format.
pub(crate) fn to_runtime(format: u32, channels: u32) -> ChannelFormat {
    let plain = PLAIN.iter().find(|(_, _, known)| *known == format);
    let (kind, bits) = match plain {
        Some((kind, bits, _)) => (*kind, *bits),
        None => {
            let number = format.saturating_sub(NORMALIZED_FORMAT) as i32;
            // Three kinds each, for 1, 2 and 4 channels: 8 bits, 16 bits, and the same with a sign.
            let bits = if number / 3 % 2 == 0 { 8 } else { 16 };
            (NORMALIZED.start() + number, bits)
        }
    };
    let mut all = [0; 4];
    all.iter_mut()
        .take(channels as usize)
        .for_each(|channel| *channel = bits);
    ChannelFormat { bits: all, kind }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_survive_a_round_trip() {
        let plain = PLAIN.iter().map(|(kind, bits, _)| (*kind, *bits, 1..=4));
        let normalized = NORMALIZED.map(|kind| {
            let number = kind - NORMALIZED.start();
            let channels = [1, 2, 4][number as usize % 3];
            (
                kind,
                if number / 3 % 2 == 0 { 8 } else { 16 },
                channels..=channels,
            )
        });
        for (kind, bits, counts) in plain.chain(normalized) {
            for count in counts.filter(|count| *count != 3) {
                let mut all = [0; 4];
                all[..count].fill(bits);
                let format = ChannelFormat { bits: all, kind };
                let (driver, channels) = to_driver(&format).unwrap();
                assert_eq!(to_runtime(driver, channels), format, "{driver:#x}");
            }
        }
    }

    #[test]
    fn formats_that_no_array_has_are_refused() {
        let of = |bits, kind| to_driver(&ChannelFormat { bits, kind });
        for wrong in [
            of([0; 4], UNSIGNED),
            of([8, 8, 8, 0], UNSIGNED),
            of([8, 16, 0, 0], UNSIGNED),
            of([8, 0, 8, 0], UNSIGNED),
            of([64, 0, 0, 0], FLOAT),
            of([8, 0, 0, 0], NONE),
        ] {
            assert_eq!(wrong, Err(Code::INVALID_CHANNEL_DESCRIPTOR));
        }
        assert_eq!(of([8, 8, 8, 8], 17), Err(Code::NOT_SUPPORTED));
    }
}
