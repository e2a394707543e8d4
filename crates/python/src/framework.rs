//! Whose array a loan is filled as: what the with statement gives, and takes back at its end.
//!
//! At the end of the block the user's variable still refers to the array. So that the block can be
//! published without a copy the array is emptied: it lets go of the bytes, and has none from then
//! on. Where anything else refers to the array (a view of it does not, it refers to the bytes) it
//! is left alone, and the loan is published by a copy like any loan with a live view.

use crate::error::unless_raised;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyType, PyWeakrefMethods, PyWeakrefReference};
use rgaps::Domain;

/// References to an array at the end of the block: ours, and the variable of the with statement.
const REFERENCES: isize = 2;

/// Who makes arrays of an element type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Framework {
    /// Nobody in particular: the loan itself, which has DLPack and the buffer protocol.
    Any,
    Numpy,
    Torch,
}

impl Framework {
    /// Of an element type as the user named it.
    pub(crate) fn of(dtype: &Bound<'_, PyAny>) -> PyResult<Framework> {
        let py = dtype.py();
        if dtype.is_instance_of::<PyString>() {
            return Ok(Framework::Any);
        }
        let class = dtype.get_type();
        if class.module()?.to_str()? == "torch" {
            return Ok(Framework::Torch);
        }
        // A type of numpy's, or an object that describes one. If numpy was not imported yet, it
        // is neither.
        let loaded = py.import("sys")?.getattr("modules")?;
        let Some(numpy) = unless_raised(loaded.get_item("numpy"))? else {
            return Ok(Framework::Any);
        };
        let is_dtype = dtype.is_instance(&numpy.getattr("dtype")?)?;
        let is_scalar = match dtype.cast::<PyType>() {
            Ok(class) => {
                class.is_subclass(&numpy.getattr("generic")?)?
                    || class.module()?.to_str()? == "ml_dtypes"
            }
            Err(_) => false,
        };
        Ok(match is_dtype || is_scalar {
            true => Framework::Numpy,
            false => Framework::Any,
        })
    }

    fn module(self) -> Option<&'static str> {
        match self {
            Framework::Any => None,
            Framework::Numpy => Some("rgaps._numpy"),
            Framework::Torch => Some("rgaps._torch"),
        }
    }
}

/// What the with statement gave.
pub(crate) struct Given {
    framework: Framework,
    /// Weak, so that it goes with the user's variable and keeps no circle alive.
    array: Py<PyWeakrefReference>,
}

impl Given {
    /// Makes an array over a loan, for the with statement; none: it gives the loan itself.
    pub(crate) fn new<'py>(
        framework: Framework,
        loan: &Bound<'py, PyAny>,
        domain: Domain,
    ) -> PyResult<Option<(Given, Bound<'py, PyAny>)>> {
        let module = match framework {
            // Numpy's types are cupy's, too: whoever writes on a GPU takes the loan.
            Framework::Numpy if domain != Domain::Host => return Ok(None),
            framework => framework.module(),
        };
        let Some(module) = module else {
            return Ok(None);
        };
        let array = loan.py().import(module)?.call_method1("to_fill", (loan,))?;
        let given = Given {
            framework,
            array: PyWeakrefReference::new(&array)?.unbind(),
        };
        Ok(Some((given, array)))
    }

    /// Whether the array still is there.
    pub(crate) fn is_alive(&self, py: Python<'_>) -> bool {
        self.array.bind(py).upgrade().is_some()
    }

    /// Takes the bytes away from the array, if nobody but the user's variable refers to it.
    pub(crate) fn take_back(self, py: Python<'_>) -> PyResult<()> {
        static TORCH: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static NUMPY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let (Some(module), Some(array)) = (self.framework.module(), self.array.bind(py).upgrade())
        else {
            return Ok(());
        };
        // SAFETY: a live object, while the interpreter is attached.
        if unsafe { ffi::Py_REFCNT(array.as_ptr()) } > REFERENCES {
            return Ok(());
        }
        let cell = if self.framework == Framework::Torch {
            &TORCH
        } else {
            &NUMPY
        };
        let empty = cell.get_or_try_init(py, || {
            PyResult::Ok(py.import(module)?.getattr("empty")?.unbind())
        })?;
        empty.call1(py, (array,)).map(drop)
    }
}
