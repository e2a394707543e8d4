//! The array through which a user fills a loan, in a with statement: of numpy or torch.
//!
//! At the end of the with statement the user's variable still refers to the array. To publish without a copy, rgaps empties the
//! array: it then has no bytes and no reference to the block. If anything else refers to the array, rgaps leaves it alone, and
//! publishes a copy, as for any loan with a live view. (A view of the array refers to the bytes, not to the array.)

use crate::error::unless_raised;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyType, PyWeakrefMethods, PyWeakrefReference};
use rgaps::Domain;

/// The references to an array at the end of the with statement: ours, and the user's variable.
const REFERENCES: isize = 2;

/// The library that makes arrays for a user's dtype.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Framework {
    /// None: the user gets the loan itself, which has DLPack and the buffer protocol.
    Any,
    Numpy,
    Torch,
}

impl Framework {
    /// The framework of a user's dtype.
    pub(crate) fn of(dtype: &Bound<'_, PyAny>) -> PyResult<Framework> {
        let py = dtype.py();
        if dtype.is_instance_of::<PyString>() {
            return Ok(Framework::Any);
        }
        let class = dtype.get_type();
        if class.module()?.to_str()? == "torch" {
            return Ok(Framework::Torch);
        }
        // A type of numpy, or a `numpy.dtype`. If numpy is not imported, it is neither.
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

/// An array that a loan gave to the user.
pub(crate) struct Given {
    framework: Framework,
    /// Weak, so that the array ends with the user's variable, and there is no reference cycle.
    array: Py<PyWeakrefReference>,
}

impl Given {
    /// Makes an array over a loan or part. None: the user gets the loan or part itself.
    pub(crate) fn new<'py>(
        framework: Framework,
        loan: &Bound<'py, PyAny>,
        domain: Domain,
    ) -> PyResult<Option<(Given, Bound<'py, PyAny>)>> {
        let module = match framework {
            // cupy uses numpy's types, too, so on a GPU the user gets the loan.
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

    /// Whether the array still exists.
    pub(crate) fn is_alive(&self, py: Python<'_>) -> bool {
        self.array.bind(py).upgrade().is_some()
    }

    /// Empties the array, if only the user's variable refers to it.
    pub(crate) fn take_back(self, py: Python<'_>) -> PyResult<()> {
        static TORCH: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static NUMPY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let (Some(module), Some(array)) = (self.framework.module(), self.array.bind(py).upgrade())
        else {
            return Ok(());
        };
        // SAFETY: `array` is a reference to the object, so it is alive, and we are attached.
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
