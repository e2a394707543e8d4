//! Nodes.

use crate::argument::{self, about, integer, mapping};
use crate::declared;
use crate::device;
use crate::device_topic::{self, DeviceBridge, DeviceTopic};
use crate::error::{in_python, invalid, unless_raised, warn, IntoPyErr};
use crate::framework::Framework;
use crate::handle::{drop_detached, Handle};
use crate::publisher::{sliced, Publisher, Sender, Waits};
use crate::subscriber::{Receiver, Subscriber};
use crate::wait::{duration, timeout};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple};
use rgaps::{ClientError, History, Late, PathKind, PublisherQos, SlowReaderPolicy, SubscriberQos};
use rgaps_layout::{MAX_CLIENT_NAME, MAX_DEPTH};
use rgaps_session::{report, split_warning, Argument, Config, Environment};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A process's connection to the daemon of its host. It starts the daemon if none runs.
///
/// Args:
///     name: What listings call this process; several processes may share a name. Default: the program's name.
///     config: The path of a configuration file, or a mapping of keys, such as
///         ``{"pool": {"host": {"cap": "4GiB"}}}``, which override those of the configuration files and the environment.
///         Keys other than ``realm``, ``socket``, ``autostart``, ``namespace`` and ``remap`` take effect only if this process
///         starts the daemon.
///         Default: the files and the environment.
///     realm: The realm to join. Default: that of the configuration.
///     socket: The path of the daemon's socket. Default: derived from user and realm.
///     namespace: Topics are below this name, unless their names begin with ``/``. Default: that of the configuration, such as
///         ``RGAPS_NAMESPACE``.
///     remap: Topics to use instead of others: ``{"camera": "front/camera"}``. Default: that of the configuration.
///
/// Raises:
///     ConfigError: The configuration is invalid; the message names file, line and key.
///     DaemonUnavailable: There is no daemon, and none can be started.
///
/// Warns:
///     ConfigWarning: A daemon runs already, and was started with other values for keys of ``config``; or a variable
///         ``RGAPS_...`` of the environment names no key.
///     RealmWarning: Several daemons serve this realm, and do not share topics.
#[pyclass(frozen, weakref, module = "rgaps")]
pub(crate) struct Node {
    node: Handle<rgaps::Node>,
    /// The name that listings show for this process.
    #[pyo3(get)]
    name: String,
}

/// The program's name.
fn default_name(py: Python<'_>) -> PyResult<String> {
    let argument = py
        .import("sys")
        .and_then(|sys| sys.getattr("argv")?.get_item(0)?.extract::<PathBuf>());
    let name =
        unless_raised(argument)?.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let mut name = name
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "python".to_owned());
    while name.len() > MAX_CLIENT_NAME {
        name.pop();
    }
    Ok(name)
}

/// The configuration of this process with the user's arguments: a file, or keys that override it. Also returns the names of
/// the overridden keys.
fn configuration(
    config: Option<&Bound<'_, PyAny>>,
    realm: Option<String>,
    socket: Option<PathBuf>,
    (namespace, remap): (Option<String>, Option<&Bound<'_, PyAny>>),
) -> PyResult<(Config, Vec<String>)> {
    let mut environment = Environment::current();
    let mut file = None;
    if let Some(config) = config {
        match mapping(config)? {
            Some(keys) => flatten(keys, "", &mut environment.arguments)?,
            None => file = Some(argument::config_path(config)?),
        }
    }
    for (key, value) in [("realm", realm), ("namespace", namespace)] {
        let argument = |value: String| Argument::text(&format!("argument {key}"), key, &value);
        environment.arguments.extend(value.map(argument));
    }
    if let Some(remap) = remap {
        environment.arguments.push(Argument {
            name: "argument remap".to_owned(),
            key: "remap".to_owned(),
            value: rules(remap)?.into(),
        });
    }
    let mut config =
        Config::load_from(file.as_deref(), &environment).map_err(IntoPyErr::into_py_err)?;
    if let Some(socket) = socket {
        config.socket = Some(std::path::absolute(&socket)?);
    }
    let keys = environment.arguments.into_iter();
    Ok((config, keys.map(|argument| argument.key).collect()))
}

/// The rules of remapping in the form of the configuration, `FROM:=TO`.
fn rules(remap: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let pairs = match mapping(remap)? {
        Some(rules) => unless_raised(rules.items()?.extract::<Vec<(String, String)>>())?,
        None => None,
    };
    let Some(pairs) = pairs else {
        return Err(about(remap, |shown| {
            PyTypeError::new_err(format!(
                "remap must be a mapping of topics to topics, such as {{'camera': 'front/camera'}}, not {shown}"
            ))
        }));
    };
    let rule = |(from, to)| format!("{from}:={to}");
    Ok(pairs.into_iter().map(rule).collect())
}

/// Appends the keys of a mapping to `arguments`. Keys of nested mappings are joined by dots.
fn flatten(
    keys: &Bound<'_, PyMapping>,
    prefix: &str,
    arguments: &mut Vec<Argument>,
) -> PyResult<()> {
    for item in keys.items()? {
        let (key, value) = item.extract::<(String, Bound<'_, PyAny>)>()?;
        let key = format!("{prefix}{key}");
        match mapping(&value)? {
            Some(inner) => flatten(inner, &format!("{key}."), arguments)?,
            None => arguments.push(Argument {
                name: format!("argument config, key '{key}'"),
                value: setting(&key, &value)?,
                key,
            }),
        }
    }
    Ok(())
}

/// Converts a value of the argument `config` to TOML.
fn setting(key: &str, value: &Bound<'_, PyAny>) -> PyResult<toml::Value> {
    // Before int, since bool is a subclass of int.
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
    if let Some(keys) = mapping(value)? {
        let mut table = toml::Table::new();
        for item in keys.items()? {
            let (name, value) = item.extract::<(String, Bound<'_, PyAny>)>()?;
            table.insert(name, setting(key, &value)?);
        }
        return Ok(table.into());
    }
    Err(about(value, |shown| {
        invalid(format!(
            "argument config, key '{key}': {shown} is not a text, a number, a bool, a list or a mapping; leave the key out \
             for its default"
        ))
    }))
}

/// The folder of the programs in the wheel.
fn bin_dir(py: Python<'_>) -> PyResult<PathBuf> {
    py.import("rgaps._bin")?.getattr("FOLDER")?.extract()
}

fn history(history: &Bound<'_, PyAny>) -> PyResult<History> {
    let messages = (1, u64::from(MAX_DEPTH));
    // Within the limits, the number fits in u32.
    if let Some(n) = integer(history, "history", messages)? {
        return Ok(History::KeepLast(n as u32));
    }
    let wrong = || {
        about(history, |shown| {
            invalid(format!(
                "history must be a number of messages from 1 to {MAX_DEPTH}, or rgaps.KeepAll(messages, bytes), not {shown}"
            ))
        })
    };
    let pair = unless_raised(history.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>())?;
    let (most, bytes) = pair.ok_or_else(wrong)?;
    let most = integer(&most, "messages of history", messages)?.ok_or_else(wrong)?;
    let bytes = integer(&bytes, "bytes of history", (1, u64::MAX))?.ok_or_else(wrong)?;
    Ok(History::KeepAll {
        messages: most as u32,
        bytes,
    })
}

/// The type name to declare: `name`, or the one that the element type and shape make.
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
            "give either type, or dtype and shape, but not both",
        )),
    }
}

/// Warns the user that members of the topic do not match a new publisher or subscriber.
fn warn_of_mismatches(
    py: Python<'_>,
    topic: &str,
    (count, what): (u32, &str),
    reasons: &[String],
) -> PyResult<()> {
    let mut text = match count {
        1 => format!("1 {what} of topic '{topic}' does not match"),
        _ => format!("{count} {what}s of topic '{topic}' do not match"),
    };
    for reason in reasons {
        text += &format!("; {}", in_python(reason.clone()));
    }
    warn(py, "MismatchWarning", &text)
}

/// The warning for keys of `config=` that have no effect, since a daemon with another configuration runs already.
fn ineffective_settings(keys: &[String]) -> String {
    format!(
        "argument config: no effect of {}, since the daemon that runs was started with another configuration; these keys \
         take effect only when this process starts the daemon: run 'rgaps down', then start this program again",
        keys.join(", ")
    )
}

fn late(late: Option<&Bound<'_, PyAny>>) -> PyResult<Late> {
    let Some(late) = late else {
        return Ok(Late::Nothing);
    };
    if let Some(n) = integer(late, "late", (0, u64::from(u32::MAX)))? {
        // Within the limits, the number fits in u32.
        return Ok(if n == 0 {
            Late::Nothing
        } else {
            Late::Last(n as u32)
        });
    }
    match unless_raised(late.extract::<String>())?.as_deref() {
        Some("latest") => Ok(Late::Latest),
        Some("all") => Ok(Late::AllKept),
        _ => Err(about(late, |shown| {
            invalid(format!(
                "late must be None, 'latest', 'all', or a number of messages, not {shown}"
            ))
        })),
    }
}

fn slow_reader(policy: &str) -> PyResult<SlowReaderPolicy> {
    match policy {
        "fail" => Ok(SlowReaderPolicy::Fail),
        "drop" => Ok(SlowReaderPolicy::Drop),
        _ => Err(invalid(format!(
            "slow_reader must be 'fail' or 'drop', not '{policy}'"
        ))),
    }
}

/// The length of a subscriber's queue; None: all that publishers keep.
fn depth(depth: Option<u32>, keep: Option<&str>) -> PyResult<Option<u32>> {
    match (keep, depth) {
        (None, depth) => Ok(depth),
        (Some("latest"), None | Some(1)) => Ok(Some(1)),
        (Some("latest"), Some(depth)) => Err(invalid(format!(
            "keep='latest' means depth=1, but depth={depth} was given; give only one of the two"
        ))),
        (Some(keep), _) => Err(invalid(format!(
            "keep must be 'latest' or None, not '{keep}'; to keep the newest n messages, give depth=n"
        ))),
    }
}

/// The slowest acceptable path; None: any path.
fn path(require: Option<&str>) -> PyResult<Option<PathKind>> {
    let path = require.map(str::parse).transpose();
    path.map_err(|error| invalid(format!("require: {error}")))
}

impl Node {
    /// Asks the daemon, and returns its answer as dictionaries and lists.
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
        py.import("json")?.call_method1("loads", (text,))
    }
}

#[pymethods]
impl Node {
    #[new]
    #[pyo3(signature = (name=None, *, config=None, realm=None, socket=None, namespace=None, remap=None))]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = argument::name_or_none)] name: Option<String>,
        config: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument::realm)] realm: Option<String>,
        #[pyo3(from_py_with = argument::socket)] socket: Option<PathBuf>,
        #[pyo3(from_py_with = argument::namespace)] namespace: Option<String>,
        remap: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Node> {
        let name = name.map_or_else(|| default_name(py), Ok)?;
        let (config, keys) = configuration(config, realm, socket, (namespace, remap))?;
        let address = config.clone();
        let builder = rgaps::Node::builder(&name)
            .config(config)
            .bin_dir(bin_dir(py)?);
        let node = py
            .detach(|| builder.build())
            .map_err(IntoPyErr::into_py_err)?;
        if let Some(warning) = py.detach(|| split_warning(&address)) {
            warn(py, "RealmWarning", &warning.to_string())?;
        }
        for warning in address.warnings() {
            warn(py, "ConfigWarning", &warning)?;
        }
        // A daemon that recovers or stops right now does not answer; then there is no warning.
        let without = py.detach(|| node.settings_without_effect(&keys));
        match without.unwrap_or_default().as_slice() {
            [] => {}
            without => warn(py, "ConfigWarning", &ineffective_settings(without))?,
        }
        Ok(Node {
            node: Handle::new("node", node),
            name,
        })
    }

    /// Whether this handle was closed.
    #[getter]
    fn closed(&self) -> bool {
        !self.node.is_open()
    }

    /// Creates a publisher of ``topic``, and the topic if it does not exist. All times are in seconds; None waits
    /// without limit.
    ///
    /// Args:
    ///     topic: Name of the topic, below the node's namespace unless it begins with ``/``.
    ///     type: The type of the messages, as a free name. Subscribers that expect a type match only publishers that declare
    ///         the same one. Default: none.
    ///     dtype: Instead of ``type``, the element type of the messages: a name like ``"float16"``, or a dtype of numpy or
    ///         torch. Publishing checks each message against ``dtype`` and ``shape``. Default: none.
    ///     shape: With ``dtype``, the shape of the messages: a length, or a sequence of lengths, with None for any length.
    ///         ``dtype="float16", shape=(3, None, None)`` declares the type ``float16[3,*,*]``. Default: any shape.
    ///     domain: Where the messages are: ``"host"``, ``"cuda"`` (the first GPU), ``"cuda:1"``, or ``"cuda:GPU-<UUID>"``. All
    ///         publishers of a topic share the domain of its first publisher. Default: the topic's domain, or ``"host"`` for a
    ///         new topic.
    ///     history: How many messages the publisher keeps for subscribers that lag and for late joiners: the last n (1 to
    ///         32768), or ``rgaps.KeepAll(messages, bytes)`` for all messages up to these limits. Default: the last 16.
    ///     reliable: Whether the publisher waits for slow reliable subscribers. With False, reliable subscribers do not match
    ///         it. Default: True.
    ///     transient_local: Whether late joiners get the history, even after this publisher has closed. Default: False.
    ///     deadline: How long a publish waits when the history is full and a reliable subscriber has not read the oldest
    ///         message yet. Default: 1.0 s.
    ///     loan_timeout: How long a loan waits for free memory when the pool is at its cap. Default: 0.0, it fails at once.
    ///     max_loans: How many loans may be open at once. Default: 64.
    ///     require: The slowest acceptable path to each subscriber, from slow to fast: ``"tcp"``, ``"rdma"``, ``"gpudirect"``,
    ///         ``"pinned"``, ``"peer"``, ``"zero_copy"``. Where only a slower path exists, the second of the two to join is
    ///         refused with `PathTooSlow`, and another host gets no messages. Default: any path.
    ///     slow_reader: What a publish does after ``deadline``. ``"fail"`` raises `BackPressured` and publishes nothing.
    ///         ``"drop"`` publishes without the slow subscribers: their next sample says in ``missed`` how many messages they
    ///         lost, and the publisher waits for them again once they have read everything. Default: ``"fail"``.
    ///
    /// Returns:
    ///     The publisher. It leaves the topic when it is closed or no longer referenced.
    ///
    /// Raises:
    ///     InvalidArgument: A value is outside its limits.
    ///     DomainMismatch: The topic exists in another domain.
    ///     DomainUnavailable: There is no such GPU, or it cannot hold a pool.
    ///     NotPermitted: The access rules do not let this user publish to the topic.
    ///     PathTooSlow: A subscriber requires a faster path, or ``require`` does.
    ///
    /// Warns:
    ///     MismatchWarning: Some subscribers of the topic do not match; see `Publisher.mismatches`.
    #[pyo3(signature = (topic, *, r#type=String::new(), dtype=None, shape=None, domain=None, history=None,
        reliable=true, transient_local=false, deadline=Some(1.0), loan_timeout=Some(0.0), max_loans=64,
        require=None, slow_reader="fail".to_owned()),
        text_signature = "($self, topic, *, type='', dtype=None, shape=None, domain=None, \
        history=None, reliable=True, transient_local=False, deadline=1.0, loan_timeout=0.0, max_loans=64, \
        require=None, slow_reader='fail')")]
    #[allow(clippy::too_many_arguments)] // they are keywords
    fn publisher(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::topic)] topic: String,
        #[pyo3(from_py_with = argument::type_)] r#type: String,
        dtype: Option<&Bound<'_, PyAny>>,
        shape: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument::domain)] domain: Option<String>,
        history: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument::reliable)] reliable: bool,
        #[pyo3(from_py_with = argument::transient_local)] transient_local: bool,
        #[pyo3(from_py_with = argument::deadline)] deadline: Option<f64>,
        #[pyo3(from_py_with = argument::loan_timeout)] loan_timeout: Option<f64>,
        #[pyo3(from_py_with = argument::max_loans)] max_loans: u32,
        #[pyo3(from_py_with = argument::require)] require: Option<String>,
        #[pyo3(from_py_with = argument::slow_reader)] slow_reader: String,
    ) -> PyResult<Publisher> {
        let deadline = timeout("deadline", deadline)?;
        let (loan_timeout, loan_slice) = sliced("loan_timeout", loan_timeout)?;
        let mut qos = PublisherQos {
            reliable,
            transient_local,
            deadline: deadline.unwrap_or(Duration::MAX),
            slow_reader: self::slow_reader(&slow_reader)?,
            loan_timeout: loan_slice,
            max_loans,
            ..PublisherQos::default()
        };
        if let Some(history) = history {
            qos.history = self::history(history)?;
        }
        let domain = domain.as_deref().map(device::domain).transpose()?;
        let name = type_name(&r#type, dtype, shape)?;
        let framework = dtype.map_or(Ok(Framework::Any), Framework::of)?;
        let mut builder = self.node.get()?.publisher(&topic).type_name(&name).qos(qos);
        if let Some(domain) = domain {
            builder = builder.domain(domain);
        }
        if let Some(path) = path(require.as_deref())? {
            builder = builder.require(path);
        }
        let publisher = py
            .detach(|| builder.create())
            .map_err(IntoPyErr::into_py_err)?;
        let unmatched = publisher.mismatched();
        if unmatched > 0 {
            let reasons = py.detach(|| publisher.mismatches()).unwrap_or_default();
            warn_of_mismatches(py, &topic, (unmatched, "subscriber"), &reasons)?;
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

    /// Creates a subscriber of ``topic``, and the topic if it does not exist. All times are in seconds. The subscriber stays in
    /// the topic when its last publisher leaves or dies, and waits for the next one.
    ///
    /// Args:
    ///     topic: Name of the topic, below the node's namespace unless it begins with ``/``.
    ///     type: The type that the subscriber expects, as a name. It matches only publishers that declare the same type.
    ///         Default: it matches publishers of any type.
    ///     dtype: Instead of ``type``, the element type that it expects: a name like ``"float16"``, or a dtype of numpy or
    ///         torch. Publishers of another type, or of none, do not match. Default: any.
    ///     shape: With ``dtype``, the shape that it expects: a length, or a sequence of lengths, with None for any length.
    ///         Default: any shape.
    ///     domain: Where this subscriber reads: ``"host"``, ``"cuda"`` (the first GPU), ``"cuda:1"``, or
    ///         ``"cuda:GPU-<UUID>"``. Messages of another domain are copied there, once for all subscribers that read there.
    ///         Default: the domain of the messages.
    ///     reliable: Whether to miss no message: publishers wait for this subscriber when their history is full. Publishers
    ///         with ``reliable=False`` do not match. Default: False (best effort).
    ///     late: Which earlier messages it gets first, in the order of publishing: ``"latest"`` for the newest message, n for
    ///         the newest n, ``"all"`` for all that transient-local publishers keep. Publishers
    ///         without ``transient_local=True`` do not match a subscriber with ``late``. Default: None, no earlier message.
    ///     depth: Length of the subscriber's own queue, 1 to 32768 messages over all publishers. If more are waiting, it skips
    ///         the oldest and counts them in ``missed``. A reliable subscriber with a depth makes publishers wait only for its
    ///         newest ``depth`` messages. Default: None, its queue is all that publishers keep.
    ///     keep: ``"latest"`` is ``depth=1``: each receive returns the newest message. Default: None.
    ///     max_held: How many samples it may hold at once, 1 to 4096; arrays over a sample hold it, too. Default: 64.
    ///     spin: How long a receive spins before it sleeps. Spinning is faster and uses CPU time. Default: 20e-6 s (20 us).
    ///     require: The slowest acceptable path from each publisher, as for `publisher`. Default: any path.
    ///
    /// Returns:
    ///     The subscriber. It leaves the topic when it is closed or no longer referenced.
    ///
    /// Raises:
    ///     InvalidArgument: A value is outside its limits.
    ///     DomainUnavailable: There is no such GPU, or it cannot hold a pool.
    ///     NotPermitted: The access rules do not let this user subscribe to the topic.
    ///     PathTooSlow: A publisher requires a faster path, or ``require`` does.
    ///
    /// Warns:
    ///     MismatchWarning: Some publishers of the topic do not match; see `Subscriber.mismatches`.
    #[pyo3(signature = (topic, *, r#type=String::new(), dtype=None, shape=None, domain=None, reliable=false,
        late=None, depth=None, keep=None, max_held=64, spin=20e-6, require=None),
        text_signature = "($self, topic, *, type='', dtype=None, shape=None, domain=None, reliable=False, \
        late=None, depth=None, keep=None, max_held=64, spin=20e-6, require=None)")]
    #[allow(clippy::too_many_arguments)] // they are keywords
    fn subscriber(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::topic)] topic: String,
        #[pyo3(from_py_with = argument::type_)] r#type: String,
        dtype: Option<&Bound<'_, PyAny>>,
        shape: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument::domain)] domain: Option<String>,
        #[pyo3(from_py_with = argument::reliable)] reliable: bool,
        late: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument::depth)] depth: Option<u32>,
        #[pyo3(from_py_with = argument::keep)] keep: Option<String>,
        #[pyo3(from_py_with = argument::max_held)] max_held: u32,
        #[pyo3(from_py_with = argument::spin)] spin: f64,
        #[pyo3(from_py_with = argument::require)] require: Option<String>,
    ) -> PyResult<Subscriber> {
        let qos = SubscriberQos {
            reliable,
            late: self::late(late)?,
            depth: self::depth(depth, keep.as_deref())?,
            max_held,
            spin: duration("spin", spin)?,
        };
        let domain = domain.as_deref().map(device::domain).transpose()?;
        let node = self.node.get()?;
        let name = type_name(&r#type, dtype, shape)?;
        let mut builder = node.subscriber(&topic).type_name(&name).qos(qos);
        if let Some(domain) = domain {
            builder = builder.domain(domain);
        }
        if let Some(path) = path(require.as_deref())? {
            builder = builder.require(path);
        }
        let subscriber = py
            .detach(|| builder.create())
            .map_err(IntoPyErr::into_py_err)?;
        let unmatched = subscriber.mismatched();
        if unmatched > 0 {
            let reasons = py.detach(|| subscriber.mismatches()).unwrap_or_default();
            warn_of_mismatches(py, &topic, (unmatched, "publisher"), &reasons)?;
        }
        Ok(Subscriber::new(Receiver { subscriber, node }))
    }

    /// Forwards messages between a device topic and the topic ``topic``, in the same domain, until the returned bridge is closed.
    ///
    /// If kernels publish, subscribers of ``topic`` receive ordinary samples, whose tag is the message's sequence number in the
    /// device topic. Reliable subscribers back-pressure the kernel. Other processes open the device topic with `open_device`.
    ///
    /// Args:
    ///     topic: Name of the ordinary topic.
    ///     device: The device topic. One process at a time forwards its messages.
    ///     to: ``"hosts"``: kernels publish, hosts receive. ``"kernels"``: the reverse. Default: ``"hosts"``.
    #[pyo3(signature = (topic, device, *, to="hosts"))]
    fn bridge(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::topic)] topic: String,
        device: &DeviceTopic,
        to: &str,
    ) -> PyResult<DeviceBridge> {
        device_topic::bridge(py, &self.node.get()?, &topic, device, to)
    }

    /// Opens the device topic that a bridge of this host forwards to or from the topic ``topic``. Raises `NotFound` if there is
    /// none.
    ///
    /// Args:
    ///     topic: Name of the ordinary topic.
    ///     domain: The GPU whose kernels use it. Default: None, the GPU that has its memory.
    ///     publishes: Whether kernels of this process publish. Default: False, they receive.
    #[pyo3(signature = (topic, *, domain=None, publishes=false))]
    fn open_device(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument::topic)] topic: String,
        domain: Option<&str>,
        publishes: bool,
    ) -> PyResult<DeviceTopic> {
        device_topic::open(py, &self.node.get()?, &topic, domain, publishes)
    }

    /// The state of the daemon as a dictionary: version, process ID, counts of clients and topics, memory, warnings.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, rgaps::Node::status)
    }

    /// All topics that the access rules let this process see, sorted by name: a dictionary each, with the keys of
    /// ``rgaps topic list --json``.
    fn topics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, |node| {
            let rows = node.topics()?.into_iter();
            Ok(rows.map(report::Topic::from).collect::<Vec<_>>())
        })
    }

    /// One topic as a dictionary with the keys of ``rgaps topic info --json``: those of `topics`, ``publisher_list``,
    /// ``subscriber_list``, ``hosts`` and ``mismatches``. Raises `NotFound` if there is no such topic.
    ///
    /// Args:
    ///     name: The name of the topic.
    fn topic<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = argument::name)] name: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, |node| node.topic(&name).map(report::TopicDetails::from))
    }

    /// The full name of a topic, as listings and other hosts use it: below the namespace, unless ``name`` begins with ``/``,
    /// and then by the rules of remapping. Every call that takes a topic does this. A pattern becomes a full pattern.
    ///
    /// Args:
    ///     name: The name of a topic, or a pattern.
    fn resolve_topic(
        &self,
        #[pyo3(from_py_with = argument::name)] name: String,
    ) -> PyResult<String> {
        Ok(self.node.get()?.resolve_topic(&name))
    }

    /// Drops the history that closed or dead transient-local publishers left in a topic, and returns how much that was,
    /// for example ``{"publishers": 1, "messages": 16}``. Living publishers keep their history. If the topic then has no
    /// members and no history, the daemon removes it with its type. Raises `NotFound` if there is no such topic, and
    /// `NotPermitted` if this user may not publish to it.
    ///
    /// Args:
    ///     name: The name of the topic.
    fn forget_topic<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = argument::name)] name: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, |node| node.forget_topic(&name))
    }

    /// All memory pools that this process may see: a dictionary each, with the keys of ``rgaps pool --json``.
    fn pools<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, |node| {
            let rows = node.pools()?.into_iter();
            Ok(rows.map(report::Pool::from).collect::<Vec<_>>())
        })
    }

    /// All processes that are connected to the daemon: a dictionary each.
    fn clients<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, rgaps::Node::clients)
    }

    /// Stops the daemon. Existing publishers and subscribers continue among themselves; clients do not start another
    /// daemon by themselves. Raises `NotPermitted` unless this is the daemon's own user or root.
    fn stop_daemon(&self, py: Python<'_>) -> PyResult<()> {
        let node = self.node.get()?;
        py.detach(|| node.stop_daemon())
            .map_err(IntoPyErr::into_py_err)
    }

    /// Closes this handle. The connection ends when the node's publishers, subscribers, loans and samples have ended, too.
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
        // Ending the connection waits for its thread, so it is done detached. Attaching fails while the interpreter shuts down.
        let _ = Python::try_attach(|py| drop_detached(py, node.take()));
    }
}
