//! Nodes.

use crate::declared;
use crate::device;
use crate::error::{invalid, IntoPyErr};
use crate::framework::Framework;
use crate::handle::{drop_detached, Handle};
use crate::publisher::{sliced, Publisher, Sender, Waits};
use crate::subscriber::{Receiver, Subscriber};
use crate::wait::{duration, timeout};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple};
use rgaps::{
    ClientError, Domain, GpuUuid, History, Late, PathKind, PublisherQos, SlowReaderPolicy,
    SubscriberQos,
};
use rgaps_layout::MAX_CLIENT_NAME;
use rgaps_session::{split_warning, Argument, Config, Environment};
use serde::Serialize;
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A process's connection to the daemon of its host, which it starts if there is none.
#[pyclass(frozen, weakref, module = "rgaps")]
pub(crate) struct Node {
    node: Handle<rgaps::Node>,
    /// The name that listings show for this process.
    #[pyo3(get)]
    name: String,
}

/// The program's name.
fn default_name(py: Python<'_>) -> String {
    let argument = py
        .import("sys")
        .and_then(|sys| sys.getattr("argv")?.get_item(0)?.extract::<PathBuf>());
    let name = argument
        .ok()
        .and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let mut name = name
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "python".to_owned());
    while name.len() > MAX_CLIENT_NAME {
        name.pop();
    }
    name
}

/// The configuration of this process with what the user gave: a file, or keys to set over it.
fn configuration(
    config: Option<&Bound<'_, PyAny>>,
    realm: Option<String>,
    socket: Option<PathBuf>,
) -> PyResult<Config> {
    let mut environment = Environment::current();
    let mut file = None;
    if let Some(config) = config {
        match config.cast::<PyMapping>() {
            Ok(keys) => flatten(keys, "", &mut environment.arguments)?,
            Err(_) => file = Some(config.extract::<PathBuf>()?),
        }
    }
    if let Some(realm) = realm {
        let argument = Argument::text("argument realm", "realm", &realm);
        environment.arguments.push(argument);
    }
    let mut config =
        Config::load_from(file.as_deref(), &environment).map_err(IntoPyErr::into_py_err)?;
    if let Some(socket) = socket {
        config.socket = Some(std::path::absolute(&socket)?);
    }
    Ok(config)
}

/// Keys of a mapping, with dots between those of mappings in it.
fn flatten(
    keys: &Bound<'_, PyMapping>,
    prefix: &str,
    arguments: &mut Vec<Argument>,
) -> PyResult<()> {
    for item in keys.items()? {
        let (key, value) = item.extract::<(String, Bound<'_, PyAny>)>()?;
        let key = format!("{prefix}{key}");
        match value.cast::<PyMapping>() {
            Ok(inner) => flatten(inner, &format!("{key}."), arguments)?,
            Err(_) => arguments.push(Argument {
                name: format!("argument config, key '{key}'"),
                value: setting(&key, &value)?,
                key,
            }),
        }
    }
    Ok(())
}

/// A value of the configuration.
fn setting(key: &str, value: &Bound<'_, PyAny>) -> PyResult<toml::Value> {
    // A bool is an int in Python.
    if value.is_instance_of::<PyBool>() {
        return Ok(value.is_truthy()?.into());
    }
    if value.is_instance_of::<PyInt>() {
        return Ok(value.extract::<i64>()?.into());
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(value.extract::<f64>()?.into());
    }
    if value.is_instance_of::<PyString>() {
        return Ok(value.extract::<String>()?.into());
    }
    if let Ok(list) = value.cast::<PyList>() {
        let values = list.iter().map(|value| setting(key, &value));
        return Ok(toml::Value::Array(values.collect::<PyResult<_>>()?));
    }
    if let Ok(keys) = value.cast::<PyMapping>() {
        let mut table = toml::Table::new();
        for item in keys.items()? {
            let (name, value) = item.extract::<(String, Bound<'_, PyAny>)>()?;
            table.insert(name, setting(key, &value)?);
        }
        return Ok(table.into());
    }
    Err(invalid(format!(
        "argument config, key '{key}': {value} is not a text, a number, a bool, a list or a mapping; leave the key out \
         for its default"
    )))
}

/// The folder of the programs that the wheel carries.
fn bin_dir(py: Python<'_>) -> PyResult<PathBuf> {
    py.import("rgaps._bin")?.getattr("FOLDER")?.extract()
}

fn history(history: &Bound<'_, PyAny>) -> PyResult<History> {
    if let Ok(n) = history.extract::<u32>() {
        return Ok(History::KeepLast(n));
    }
    let (messages, bytes) = history.extract::<(u32, u64)>().map_err(|_| {
        invalid("history is a number of messages, or rgaps.KeepAll(messages, bytes)")
    })?;
    Ok(History::KeepAll { messages, bytes })
}

/// The name of a topic's type, or the one that element type and shape have.
fn type_name(
    name: &str,
    dtype: Option<&Bound<'_, PyAny>>,
    shape: Option<&Bound<'_, PyAny>>,
) -> PyResult<String> {
    let dtype = dtype.map(crate::dtype::of_object).transpose()?;
    match declared::of(dtype, shape)? {
        None => Ok(name.to_owned()),
        Some(declared) if name.is_empty() => Ok(declared.to_string()),
        Some(_) => Err(invalid(
            "a topic's type is either a name or a dtype with a shape, not both",
        )),
    }
}

/// Tells whoever has joined a topic of members that were there and do not match.
fn warn_of_mismatches(
    py: Python<'_>,
    topic: &str,
    (count, what): (u32, &str),
    reasons: &[String],
) -> PyResult<()> {
    let mut text = format!("{count} {what}(s) of topic '{topic}' do not match");
    for reason in reasons {
        text += &format!("; {reason}");
    }
    let category = py.import("rgaps._errors")?.getattr("MismatchWarning")?;
    let text = CString::new(text).map_err(|error| invalid(error.to_string()))?;
    PyErr::warn(py, &category, &text, 1)
}

fn late(late: Option<&Bound<'_, PyAny>>) -> PyResult<Late> {
    let Some(late) = late else {
        return Ok(Late::Nothing);
    };
    if let Ok(n) = late.extract::<u32>() {
        return Ok(if n == 0 { Late::Nothing } else { Late::Last(n) });
    }
    match late.extract::<String>().as_deref() {
        Ok("latest") => Ok(Late::Latest),
        Ok("all") => Ok(Late::AllKept),
        _ => Err(invalid(
            "late is None, 'latest', 'all', or a number of messages",
        )),
    }
}

fn slow_reader(policy: &str) -> PyResult<SlowReaderPolicy> {
    match policy {
        "fail" => Ok(SlowReaderPolicy::Fail),
        "drop" => Ok(SlowReaderPolicy::Drop),
        _ => Err(invalid(format!(
            "slow_reader is 'fail' or 'drop', not '{policy}'"
        ))),
    }
}

/// How many messages wait for a subscriber.
fn depth(depth: Option<u32>, keep: Option<&str>) -> PyResult<Option<u32>> {
    match (keep, depth) {
        (None, depth) => Ok(depth),
        (Some("latest"), None | Some(1)) => Ok(Some(1)),
        (Some("latest"), Some(depth)) => Err(invalid(format!(
            "keep='latest' is a depth of 1, not of {depth}: give one of both"
        ))),
        (Some(keep), _) => Err(invalid(format!(
            "keep is 'latest' or None, not '{keep}'; depth=n keeps the newest n messages"
        ))),
    }
}

/// The slowest path that will do.
fn path(require: Option<&str>) -> PyResult<Option<PathKind>> {
    let path = require.map(str::parse).transpose();
    path.map_err(|error| invalid(format!("require: {error}")))
}

impl Node {
    /// What the daemon answered, as dictionaries and lists.
    fn ask<'py, T: Serialize + Send>(
        &self,
        py: Python<'py>,
        question: impl FnOnce(&rgaps::Node) -> Result<T, ClientError> + Send,
    ) -> PyResult<Bound<'py, PyAny>> {
        let node = self.node.get()?;
        let answer = py
            .detach(|| question(&node))
            .map_err(IntoPyErr::into_py_err)?;
        let text = serde_json::to_string(&answer).map_err(|error| invalid(error.to_string()))?;
        let answer = py.import("json")?.call_method1("loads", (text,))?;
        name_domains(&answer)?;
        Ok(answer)
    }
}

/// Has domains in listings be named as everywhere else.
fn name_domains(answer: &Bound<'_, PyAny>) -> PyResult<()> {
    if let Ok(list) = answer.cast::<PyList>() {
        return list.iter().try_for_each(|entry| name_domains(&entry));
    }
    let Ok(row) = answer.cast::<PyDict>() else {
        return Ok(());
    };
    for (key, value) in row.iter() {
        if key.eq("domain")? && !value.is_none() {
            let domain = match value.get_item("Cuda") {
                Ok(uuid) => Domain::Cuda(GpuUuid(uuid.extract()?)),
                Err(_) => Domain::Host,
            };
            row.set_item(key, domain.to_string())?;
        } else {
            name_domains(&value)?;
        }
    }
    Ok(())
}

#[pymethods]
impl Node {
    /// ``name`` is what listings call this process. ``config`` is the path of a file, or a mapping
    /// of keys to set over the files' and the environment's.
    #[new]
    #[pyo3(signature = (name=None, *, config=None, realm=None, socket=None))]
    fn new(
        py: Python<'_>,
        name: Option<String>,
        config: Option<&Bound<'_, PyAny>>,
        realm: Option<String>,
        socket: Option<PathBuf>,
    ) -> PyResult<Node> {
        let name = name.unwrap_or_else(|| default_name(py));
        let config = configuration(config, realm, socket)?;
        let address = config.clone();
        let builder = rgaps::Node::builder(&name)
            .config(config)
            .bin_dir(bin_dir(py)?);
        let node = py
            .detach(|| builder.build())
            .map_err(IntoPyErr::into_py_err)?;
        if let Some(warning) = py.detach(|| split_warning(&address)) {
            let warning = CString::new(warning)?;
            let category = py.import("rgaps._errors")?.getattr("RealmWarning")?;
            PyErr::warn(py, &category, &warning, 1)?;
        }
        Ok(Node {
            node: Handle::new("node", node),
            name,
        })
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        !self.node.is_open()
    }

    /// A publisher of ``topic``. Times are in seconds, None is for ever.
    /// ``dtype`` and ``shape`` (None for lengths that are free) declare the type of the messages, which
    /// then is a text like ``float16[3,*,*]``; ``type`` is any other name. Each message is checked against it,
    /// and subscribers that declare a type read only publishers whose messages are all of it.
    /// ``require`` names the slowest path to subscribers that will do, from ``"tcp"`` over
    /// ``"rdma"``, ``"gpudirect"``, ``"pinned"`` and ``"peer"`` to ``"zero_copy"``: whoever joins second is refused
    /// with `PathTooSlow`. Hosts that are reached by a slower one get nothing.
    ///
    /// A publish waits at most ``deadline`` for reliable subscribers that have not read what it would push out of the
    /// history. Then, with ``slow_reader="fail"``, it raises `BackPressured` and publishes nothing; with ``"drop"`` the
    /// publisher goes on without them: they are told in ``missed`` how many messages they lost, and are waited for again once
    /// they have read all that is published.
    #[pyo3(signature = (topic, *, r#type="", dtype=None, shape=None, domain=None, history=None,
        reliable=true, transient_local=false, deadline=Some(1.0), loan_timeout=Some(0.0), max_loans=64,
        require=None, slow_reader="fail"),
        text_signature = "($self, topic, *, type='', dtype=None, shape=None, domain=None, \
        history=None, reliable=True, transient_local=False, deadline=1.0, loan_timeout=0.0, max_loans=64, \
        require=None, slow_reader='fail')")]
    #[allow(clippy::too_many_arguments)] // they are keywords
    fn publisher(
        &self,
        py: Python<'_>,
        topic: &str,
        r#type: &str,
        dtype: Option<&Bound<'_, PyAny>>,
        shape: Option<&Bound<'_, PyAny>>,
        domain: Option<&str>,
        history: Option<&Bound<'_, PyAny>>,
        reliable: bool,
        transient_local: bool,
        deadline: Option<f64>,
        loan_timeout: Option<f64>,
        max_loans: u32,
        require: Option<&str>,
        slow_reader: &str,
    ) -> PyResult<Publisher> {
        let deadline = timeout("deadline", deadline)?;
        let (loan_timeout, loan_slice) = sliced("loan_timeout", loan_timeout)?;
        let mut qos = PublisherQos {
            reliable,
            transient_local,
            deadline: deadline.unwrap_or(Duration::MAX),
            slow_reader: self::slow_reader(slow_reader)?,
            loan_timeout: loan_slice,
            max_loans,
            ..PublisherQos::default()
        };
        if let Some(history) = history {
            qos.history = self::history(history)?;
        }
        let domain = domain.map(device::domain).transpose()?;
        let name = type_name(r#type, dtype, shape)?;
        let framework = dtype.map_or(Ok(Framework::Any), Framework::of)?;
        let mut builder = self.node.get()?.publisher(topic).type_name(&name).qos(qos);
        if let Some(domain) = domain {
            builder = builder.domain(domain);
        }
        if let Some(path) = path(require)? {
            builder = builder.require(path);
        }
        let publisher = py
            .detach(|| builder.create())
            .map_err(IntoPyErr::into_py_err)?;
        let unmatched = publisher.mismatched();
        if unmatched > 0 {
            let reasons = py.detach(|| publisher.mismatches()).unwrap_or_default();
            warn_of_mismatches(py, topic, (unmatched, "subscriber"), &reasons)?;
        }
        Ok(Publisher::new(Sender {
            declared: publisher.type_name().parse().ok().map(Arc::new),
            framework,
            publisher,
            deadline,
            loan_timeout,
            waits: Waits::Yes,
        }))
    }

    /// A subscriber of ``topic``. ``late`` says what it gets of what was published before it
    /// joined: None, ``"latest"``, a number of messages, or ``"all"`` that are kept, over all publishers
    /// in the order of publishing.
    /// ``depth`` is the subscriber's own queue: of the messages that wait for it, over all publishers, it reads the
    /// newest ``depth`` (at most 32768); the others are skipped and counted in ``missed``. ``depth=1``, or
    /// ``keep="latest"``, reads the newest message. None: all that publishers keep. A ``reliable`` subscriber with a depth
    /// holds publishers back for its newest ``depth`` messages only, thus never one that keeps as many.
    /// ``type``, ``dtype`` and ``shape`` are as for a publisher: publishers of another type, or of
    /// none, do not match (see ``mismatched``). ``require`` is the slowest path from publishers that will do, as for a publisher.
    #[pyo3(signature = (topic, *, r#type="", dtype=None, shape=None, domain=None, reliable=false,
        late=None, depth=None, keep=None, max_held=64, spin=20e-6, require=None))]
    #[allow(clippy::too_many_arguments)] // they are keywords
    fn subscriber(
        &self,
        py: Python<'_>,
        topic: &str,
        r#type: &str,
        dtype: Option<&Bound<'_, PyAny>>,
        shape: Option<&Bound<'_, PyAny>>,
        domain: Option<&str>,
        reliable: bool,
        late: Option<&Bound<'_, PyAny>>,
        depth: Option<u32>,
        keep: Option<&str>,
        max_held: u32,
        spin: f64,
        require: Option<&str>,
    ) -> PyResult<Subscriber> {
        let qos = SubscriberQos {
            reliable,
            late: self::late(late)?,
            depth: self::depth(depth, keep)?,
            max_held,
            spin: duration("spin", spin)?,
        };
        let domain = domain.map(device::domain).transpose()?;
        let node = self.node.get()?;
        let name = type_name(r#type, dtype, shape)?;
        let mut builder = node.subscriber(topic).type_name(&name).qos(qos);
        if let Some(domain) = domain {
            builder = builder.domain(domain);
        }
        if let Some(path) = path(require)? {
            builder = builder.require(path);
        }
        let subscriber = py
            .detach(|| builder.create())
            .map_err(IntoPyErr::into_py_err)?;
        let unmatched = subscriber.mismatched();
        if unmatched > 0 {
            let reasons = py.detach(|| subscriber.mismatches()).unwrap_or_default();
            warn_of_mismatches(py, topic, (unmatched, "publisher"), &reasons)?;
        }
        Ok(Subscriber::new(Receiver { subscriber, node }))
    }

    /// How the daemon is.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, rgaps::Node::status)
    }

    /// All topics that this process may see, by name.
    fn topics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, rgaps::Node::topics)
    }

    /// One topic with its members.
    fn topic<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, |node| node.topic(name))
    }

    /// Drops the history of transient-local publishers of a topic that have closed or died, and says how
    /// much it was: ``{"publishers": 1, "messages": 16}``. A topic without members and history is gone, with its
    /// type. Publishers that are there keep theirs. Raises ``rgaps.Error`` if there is no such topic, or this
    /// user may not publish to it.
    fn forget_topic<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, |node| node.forget_topic(name))
    }

    /// All pools.
    fn pools<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, rgaps::Node::pools)
    }

    /// All client processes.
    fn clients<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, rgaps::Node::clients)
    }

    /// Has the daemon leave for good. Members go on among those who are there.
    fn stop_daemon(&self, py: Python<'_>) -> PyResult<()> {
        let node = self.node.get()?;
        py.detach(|| node.stop_daemon())
            .map_err(IntoPyErr::into_py_err)
    }

    /// Closes this handle. The connection ends when the node's publishers, subscribers, loans and
    /// samples are gone too.
    fn close(&self, py: Python<'_>) {
        drop_detached(py, self.node.take());
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { " closed" } else { "" };
        format!("<rgaps.Node '{}'{state}>", self.name)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let mut node = self.node.take();
        // Ending the connection waits for its thread. None while the interpreter shuts down.
        let _ = Python::try_attach(|py| drop_detached(py, node.take()));
    }
}
