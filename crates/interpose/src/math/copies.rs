//! cuBLAS's copies of vectors and matrices between host and device, which are copies of rows.

use crate::transfer::{self, Direction, Order};
use rgaps_remoting::{Extent, Pitched};
use std::ffi::c_int;

const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 7;
const MAPPING_ERROR: c_int = 11;

/// A copy of rows: elements of a row, rows, bytes of an element, and elements from a row to the next in either memory. A vector has rows
/// of one element.
struct Shape {
    width: i64,
    height: i64,
    element: i64,
    from_row: i64,
    to_row: i64,
}

fn copy(shape: &Shape, from: u64, to: u64, is_in: bool, order: Order) -> c_int {
    let all = [shape.element, shape.from_row, shape.to_row];
    if shape.width < 0 || shape.height < 0 || all.iter().any(|number| *number <= 0) {
        return INVALID_VALUE;
    }
    // cuBLAS leaves such a copy to the runtime, which refuses it.
    if shape.from_row < shape.width || shape.to_row < shape.width {
        return MAPPING_ERROR;
    }
    if shape.width == 0 || shape.height == 0 {
        return SUCCESS;
    }
    let at = |address, row: i64| Pitched::rows(address, (row * shape.element) as u64);
    let extent = Extent {
        width_bytes: (shape.width * shape.element) as u64,
        height: shape.height as u64,
        depth: 1,
    };
    let direction = if is_in { Direction::In } else { Direction::Out };
    let copied = transfer::copy_rows(
        at(to, shape.to_row),
        at(from, shape.from_row),
        extent,
        direction,
        order,
    );
    copied.map_or(MAPPING_ERROR, |()| SUCCESS)
}

/// Exports the four forms of copies in one direction: numbers of four and of eight bytes, waited for or queued on a stream.
macro_rules! copies {
    ($is_in:literal, $number:ty, $vector:literal, $vector_async:literal, $matrix:literal, $matrix_async:literal) => {
        const _: () = {
            #[allow(clippy::too_many_arguments, reason = "they are cuBLAS's")]
            fn matrix(
                rows: $number,
                columns: $number,
                element: $number,
                from: u64,
                from_row: $number,
                to: u64,
                to_row: $number,
                order: Order,
            ) -> c_int {
                let [width, height, element, from_row, to_row] =
                    [rows, columns, element, from_row, to_row].map(i64::from);
                let shape = Shape {
                    width,
                    height,
                    element,
                    from_row,
                    to_row,
                };
                copy(&shape, from, to, $is_in, order)
            }

            #[export_name = $vector]
            extern "C" fn vector_waits(
                n: $number,
                element: $number,
                from: u64,
                from_row: $number,
                to: u64,
                to_row: $number,
            ) -> c_int {
                matrix(1, n, element, from, from_row, to, to_row, Order::wait(0))
            }

            #[export_name = $vector_async]
            extern "C" fn vector_queued(
                n: $number,
                element: $number,
                from: u64,
                from_row: $number,
                to: u64,
                to_row: $number,
                stream: u64,
            ) -> c_int {
                matrix(
                    1,
                    n,
                    element,
                    from,
                    from_row,
                    to,
                    to_row,
                    Order::queue(stream),
                )
            }

            #[export_name = $matrix]
            extern "C" fn matrix_waits(
                rows: $number,
                columns: $number,
                element: $number,
                from: u64,
                from_row: $number,
                to: u64,
                to_row: $number,
            ) -> c_int {
                matrix(
                    rows,
                    columns,
                    element,
                    from,
                    from_row,
                    to,
                    to_row,
                    Order::wait(0),
                )
            }

            #[allow(clippy::too_many_arguments, reason = "they are cuBLAS's")]
            #[export_name = $matrix_async]
            extern "C" fn matrix_queued(
                rows: $number,
                columns: $number,
                element: $number,
                from: u64,
                from_row: $number,
                to: u64,
                to_row: $number,
                stream: u64,
            ) -> c_int {
                matrix(
                    rows,
                    columns,
                    element,
                    from,
                    from_row,
                    to,
                    to_row,
                    Order::queue(stream),
                )
            }
        };
    };
}
copies!(
    true,
    i32,
    "rgaps_math_cublasSetVector",
    "rgaps_math_cublasSetVectorAsync",
    "rgaps_math_cublasSetMatrix",
    "rgaps_math_cublasSetMatrixAsync"
);
copies!(
    false,
    i32,
    "rgaps_math_cublasGetVector",
    "rgaps_math_cublasGetVectorAsync",
    "rgaps_math_cublasGetMatrix",
    "rgaps_math_cublasGetMatrixAsync"
);
copies!(
    true,
    i64,
    "rgaps_math_cublasSetVector_64",
    "rgaps_math_cublasSetVectorAsync_64",
    "rgaps_math_cublasSetMatrix_64",
    "rgaps_math_cublasSetMatrixAsync_64"
);
copies!(
    false,
    i64,
    "rgaps_math_cublasGetVector_64",
    "rgaps_math_cublasGetVectorAsync_64",
    "rgaps_math_cublasGetMatrix_64",
    "rgaps_math_cublasGetMatrixAsync_64"
);
