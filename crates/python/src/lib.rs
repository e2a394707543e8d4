//! rgaps for Python: the extension module `rgaps._rgaps`.
//!
//! A thin layer over the crate `rgaps`. It adds what Python needs: it exports the bytes of loans and samples by the buffer
//! protocol, DLPack and the array interfaces (`buffer`, `dlpack`), keeps a block while any view of it lives (`owner`), and waits
//! detached from the interpreter but interruptible by Ctrl-C (`wait`). Exceptions, asyncio and numpy's types are easier to
//! write in Python: they are in `python/rgaps`.

#![warn(clippy::too_many_lines)]

mod argument;
mod arrow;
mod buffer;
mod declared;
mod device;
mod device_topic;
mod dlpack;
mod dtype;
mod error;
mod framework;
mod geometry;
mod handle;
mod listener;
mod loan;
mod metadata;
mod node;
mod order;
mod owner;
mod part;
mod publisher;
mod recording;
mod sample;
mod shadow;
mod source;
mod subscriber;
mod wait;
mod wait_set;

use pyo3::prelude::*;

#[pymodule]
fn _rgaps(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add_class::<node::Node>()?;
    module.add_class::<publisher::Publisher>()?;
    module.add_class::<subscriber::Subscriber>()?;
    module.add_class::<listener::Listener>()?;
    module.add_class::<wait_set::WaitSet>()?;
    module.add_class::<device_topic::DeviceTopic>()?;
    module.add_class::<device_topic::DevicePublisher>()?;
    module.add_class::<device_topic::DeviceSubscriber>()?;
    module.add_class::<device_topic::DeviceBridge>()?;
    module.add_class::<loan::LoanBase>()?;
    module.add_class::<sample::SampleBase>()?;
    module.add_class::<part::PartBase>()?;
    module.add("Loan", loan::class(py)?)?;
    module.add("Sample", sample::class(py)?)?;
    module.add("Part", part::class(py)?)?;
    module.add_class::<recording::Recording>()?;
    module.add_class::<recording::RecordedBase>()?;
    module.add("Recorded", recording::class(py)?)?;
    module.add_function(wrap_pyfunction!(recording::open, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(device::domains, module)?)?;
    module.add_function(wrap_pyfunction!(owner::_host_views, module)?)?;
    module.add_function(wrap_pyfunction!(listener::_stop_listeners, module)?)?;
    Ok(())
}
