//! numpy's `.npy` files, versions 1 to 3: a header that is a Python literal, then the elements.
//! The format is that of `numpy/lib/format.py`.

use crate::array::Array;
use anyhow::{bail, ensure, Context};
use rgaps::{tensor, DType};

const MAGIC: &[u8] = b"\x93NUMPY";
/// The header ends at a multiple of this.
const ALIGNMENT: usize = 64;

/// numpy's letter for each of DLPack's type codes.
const CODES: [(char, u8); 5] = [('i', 0), ('u', 1), ('f', 2), ('c', 5), ('b', 6)];

/// numpy's description of an element type, such as `<f4`. None: numpy has no such type.
fn descr(dtype: DType) -> Option<String> {
    let (letter, _) = CODES.iter().find(|(_, code)| *code == dtype.code)?;
    let bytes = dtype.element_bytes();
    let known = dtype.lanes == 1 && !(dtype.code == 5 && dtype.bits == 32);
    let order = if bytes == 1 { '|' } else { '<' };
    let is_whole = u64::from(dtype.bits) == bytes * 8;
    (known && is_whole).then(|| format!("{order}{letter}{bytes}"))
}

fn dtype(descr: &str) -> anyhow::Result<DType> {
    let unknown = || format!("elements of numpy's type '{descr}' cannot be published");
    let mut chars = descr.chars();
    let (order, letter) = (chars.next(), chars.next());
    let bytes: u8 = chars.as_str().parse().ok().with_context(unknown)?;
    let code = CODES.iter().find(|(known, _)| Some(*known) == letter);
    let (_, code) = code.with_context(unknown)?;
    ensure!(
        order != Some('>') || bytes == 1,
        "its elements are big-endian; convert it with array.astype('<{}')",
        &descr[1..]
    );
    let bits = bytes.checked_mul(8).with_context(unknown)?;
    let dtype = DType {
        code: *code,
        bits,
        lanes: 1,
    };
    dtype.name().with_context(unknown)?;
    Ok(dtype)
}

/// The header's text from the value of a key on. The caller finds the end of the value.
fn value<'a>(header: &'a str, key: &str) -> anyhow::Result<&'a str> {
    let quoted = [format!("'{key}':"), format!("\"{key}\":")];
    let found = quoted
        .iter()
        .find_map(|key| Some(header.split_once(key.as_str())?.1));
    found
        .map(str::trim_start)
        .with_context(|| format!("its header has no '{key}'"))
}

pub fn read(file: &[u8]) -> anyhow::Result<Array<'static>> {
    ensure!(
        file.starts_with(MAGIC),
        "it does not start like a .npy file"
    );
    let number = |at: usize, bytes: usize| -> anyhow::Result<usize> {
        let field = file.get(at..at + bytes).context("it is truncated")?;
        Ok(field
            .iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
    };
    let (start, length) = match number(6, 1)? {
        1 => (10, number(8, 2)?),
        2 | 3 => (12, number(8, 4)?),
        version => bail!("it has version {version} of the format; rgaps reads versions 1 to 3"),
    };
    let end = start + length;
    let header = file.get(start..end).context("it is truncated")?;
    let header = std::str::from_utf8(header).context("its header is not text")?;
    let text = value(header, "descr")?;
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'));
    let quote = quote.context("arrays with several fields cannot be published")?;
    let dtype = dtype(text[1..].split(quote).next().unwrap_or_default())?;
    let is_fortran = value(header, "fortran_order")?.starts_with("True");
    let shape = value(header, "shape")?
        .strip_prefix('(')
        .and_then(|s| Some(s.split_once(')')?.0));
    let lengths = shape
        .context("its header has no shape")?
        .split(',')
        .map(str::trim);
    let lengths = lengths.filter(|text| !text.is_empty());
    let shape: Result<Vec<u64>, _> = lengths.map(str::parse).collect();
    let shape = shape.context("its shape has something that is not a number")?;
    let (mut array, bytes) = tensor::contiguous(dtype, &shape)?;
    if is_fortran {
        let reversed: Vec<u64> = shape.iter().rev().copied().collect();
        let (columns, _) = tensor::contiguous(dtype, &reversed)?;
        let strides: Vec<i64> = columns.strides[..shape.len()]
            .iter()
            .rev()
            .copied()
            .collect();
        array = tensor::strided(dtype, &shape, &strides)?;
    }
    let data = &file[end..];
    ensure!(
        data.len() as u64 == bytes,
        "{dtype}{shape:?} needs {bytes} bytes, but {} bytes follow its header",
        data.len()
    );
    Ok(Array {
        tensor: array,
        bytes: data.to_vec().into(),
    })
}

pub fn write(array: &Array<'_>) -> anyhow::Result<Vec<u8>> {
    let dtype = array.tensor.dtype;
    let descr =
        descr(dtype).with_context(|| format!("numpy has no type for {dtype}; save it as .raw"))?;
    let shape = array.shape();
    let lengths: String = shape.iter().map(|length| format!("{length}, ")).collect();
    let lengths = if shape.len() == 1 {
        lengths.trim_end()
    } else {
        lengths.trim_end_matches(", ")
    };
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({lengths}), }}");
    let unpadded = MAGIC.len() + 4 + header.len() + 1;
    header.push_str(&" ".repeat(unpadded.next_multiple_of(ALIGNMENT) - unpadded));
    header.push('\n');
    let mut file = MAGIC.to_vec();
    file.extend([1, 0]);
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(&*array.row_major());
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(name: &str, shape: &[u64]) -> Array<'static> {
        let (tensor, bytes) = tensor::contiguous(name.parse().unwrap(), shape).unwrap();
        let bytes: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        Array {
            tensor,
            bytes: bytes.into(),
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for (name, shape) in [
            ("uint8", &[2, 3][..]),
            ("float32", &[5]),
            ("float64", &[]),
            ("complex64", &[1, 2]),
            ("bool", &[4]),
            ("int16", &[0, 3]),
        ] {
            let written = array(name, shape);
            let file = write(&written).unwrap();
            assert_eq!((file.len() - written.bytes.len()) % ALIGNMENT, 0);
            let read = read(&file).unwrap();
            assert_eq!(
                (read.tensor, read.bytes),
                (written.tensor, written.bytes),
                "{name}"
            );
        }
        let error = write(&array("bfloat16", &[2])).unwrap_err().to_string();
        assert!(error.contains(".raw"), "{error}");
    }

    /// As numpy 2 writes `np.asfortranarray([[0, 1, 2], [3, 4, 5]], dtype=np.uint8)`.
    #[test]
    fn fortran_order_becomes_strides() {
        let header = "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }";
        let mut file = b"\x93NUMPY\x01\x00\x3b\x00".to_vec();
        file.extend(format!("{header:<58}\n").as_bytes());
        file.extend([0, 3, 1, 4, 2, 5]);
        let array = read(&file).unwrap();
        assert_eq!(*array.row_major(), [0, 1, 2, 3, 4, 5]);
        file.pop();
        assert!(read(&file).unwrap_err().to_string().contains("6 bytes"));
    }

    #[test]
    fn files_that_cannot_be_read_say_why() {
        let with = |header: &str| {
            let mut file = b"\x93NUMPY\x01\x00".to_vec();
            file.extend((header.len() as u16).to_le_bytes());
            file.extend(header.as_bytes());
            read(&file).unwrap_err().to_string()
        };
        assert!(read(b"GIF89a").unwrap_err().to_string().contains(".npy"));
        assert!(
            with("{'descr': '>f4', 'fortran_order': False, 'shape': (0,), }")
                .contains("big-endian")
        );
        assert!(with("{'descr': '<U4', 'fortran_order': False, 'shape': (0,), }").contains("<U4"));
        assert!(
            with("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (0,), }")
                .contains("fields")
        );
        assert!(
            with("{'descr': '<f4', 'fortran_order': False, 'shape': (x,), }").contains("number")
        );
        assert!(with("{}").contains("'descr'"));
    }
}
