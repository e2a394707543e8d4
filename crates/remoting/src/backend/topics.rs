//! Topics of this host, for the client: it publishes memory of the device, and receives messages where they lie.
//!
//! The backend is a member of its host's realm like any other process. What the client publishes is copied on the device into a loan of the
//! GPU's pool; what it receives stays in the pool, and the client gets the address. So no bytes cross the connection. `gpu.topics` of the
//! configuration says which topics clients may name; the daemon then applies its access rules to the server's user.
//!
//! Joining, publishing and receiving may wait for the daemon, for readers or for a message, so they are jobs. Copies may read a message
//! until the client releases it. The end of the backend releases everything, as the end of any process does.

use super::jobs::Refused;
use crate::call::{CallValue, Tensor, TopicOptions};
use crate::codes::Code;
use crate::limits::TOPIC_MEMBERS_MAX;
use rgaps::{
    ClientError, Domain, Late, LoanError, Node, OpenError, PoolError, PublishError, Publisher,
    RecvError, RefusalCode, Sample, Stream, Subscriber, Unpublished,
};
use rgaps_layout::MAX_CLIENT_NAME;
use rgaps_session::{bare_topic_name, Config};
use rgaps_sync::lock;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

#[derive(Clone)]
pub(super) enum Member {
    Publisher(Publisher),
    Subscriber(Subscriber),
}

/// The connection to the daemon.
enum Membership {
    None,
    Joined(Node),
    /// A device was reset, and with it the pools that this process had mapped.
    Over,
}

/// A client's publishers, subscribers and messages.
pub(crate) struct Topics {
    config: Config,
    /// The name of its node.
    name: String,
    node: Mutex<Membership>,
    members: Mutex<HashMap<u64, Member>>,
    messages: Mutex<HashMap<u64, Sample>>,
}

impl Topics {
    pub(crate) fn new(config: Config, program: &str) -> Topics {
        let mut name = format!("gpu/{program}");
        while name.len() > MAX_CLIENT_NAME {
            name.pop();
        }
        Topics {
            config,
            name,
            node: Mutex::new(Membership::None),
            members: Mutex::default(),
            messages: Mutex::default(),
        }
    }

    /// The connection to the daemon, made at the first use.
    fn node(&self) -> Result<Node, Refused> {
        let mut node = lock(&self.node);
        match &*node {
            Membership::Joined(node) => Ok(node.clone()),
            Membership::Over => Err(Refused {
                code: Code::NOT_PERMITTED,
                reason: "the program has reset a device, which ended its use of topics; start it again, and do not reset devices".to_owned(),
            }),
            Membership::None => {
                let new = Node::builder(&self.name).config(self.config.clone()).build()?;
                // The client's names are full ones: the namespace of this host does not apply to them.
                let new = new.with_full_names();
                *node = Membership::Joined(new.clone());
                Ok(new)
            }
        }
    }

    /// The connection, for a topic that the configuration lets clients use.
    fn node_for(&self, topic: &str) -> Result<Node, Refused> {
        match self.config.gpu.may_use(topic) {
            true => self.node(),
            false => Err(Refused {
                code: Code::NOT_PERMITTED,
                reason: format!("clients of this GPU server may not use topic '{topic}'; add a pattern for it to gpu.topics in the server's rgaps.toml, then restart the server"),
            }),
        }
    }

    pub(super) fn publisher(
        &self,
        topic: &str,
        domain: Domain,
        options: TopicOptions,
    ) -> Result<Member, Refused> {
        let topic = bare_topic_name(topic);
        let mut builder = self.node_for(topic)?.publisher(topic).domain(domain);
        if options.depth > 0 {
            builder = builder.keep_last(options.depth);
        }
        if options.is_transient_local {
            builder = builder.transient_local();
        }
        Ok(Member::Publisher(builder.create()?))
    }

    pub(super) fn subscriber(
        &self,
        topic: &str,
        domain: Domain,
        options: TopicOptions,
    ) -> Result<Member, Refused> {
        let topic = bare_topic_name(topic);
        let mut builder = self.node_for(topic)?.subscriber(topic).domain(domain);
        if options.depth > 0 {
            builder = builder.depth(options.depth);
        }
        if options.is_reliable {
            builder = builder.reliable();
        }
        if options.is_transient_local {
            builder = builder.late(Late::AllKept);
        }
        Ok(Member::Subscriber(builder.create()?))
    }

    /// Notes a member under the client's number.
    pub(super) fn add(&self, number: u64, member: Member) -> Result<CallValue, Refused> {
        let mut members = lock(&self.members);
        if members.len() >= TOPIC_MEMBERS_MAX || members.contains_key(&number) {
            return Err(Refused {
                code: Code::OUT_OF_MEMORY,
                reason: format!("a program may have at most {TOPIC_MEMBERS_MAX} publishers and subscribers; destroy some"),
            });
        }
        members.insert(number, member);
        Ok(CallValue::Nothing)
    }

    pub(super) fn find(&self, number: u64) -> Result<Member, Code> {
        let members = lock(&self.members);
        members.get(&number).cloned().ok_or(Code::INVALID_HANDLE)
    }

    /// Takes the next message.
    pub(super) fn receive(
        &self,
        subscriber: &Subscriber,
        number: u64,
        timeout: Duration,
        stream: Stream,
    ) -> Result<CallValue, Refused> {
        let sample = subscriber.recv_timeout(timeout)?;
        if sample.domain() == Domain::Host {
            return Err(Refused {
                code: Code::INVALID_VALUE,
                reason: format!("message {} is in host memory, which the device cannot read; receive the next one", sample.sequence()),
            });
        }
        sample.wait_on(stream)?;
        let value = CallValue::Message {
            address: sample.address(),
            bytes: sample.len(),
            sequence: sample.sequence(),
            missed: sample.missed(),
            tensor: sample.tensor().and_then(described),
        };
        // A number that is used twice releases the earlier message.
        lock(&self.messages).insert(number, sample);
        Ok(value)
    }

    /// Whether all of a range is in a message that the client holds.
    pub(super) fn check(&self, address: u64, bytes: u64) -> Result<(), Code> {
        let holds = |sample: &Sample| {
            let inside = address.checked_sub(sample.address());
            inside.is_some_and(|at| at <= sample.len() && bytes <= sample.len() - at)
        };
        match lock(&self.messages).values().any(holds) {
            true => Ok(()),
            false => Err(Code::INVALID_VALUE),
        }
    }

    /// Releases a message once the work of a stream is done.
    pub(super) fn release(&self, message: u64, stream: Stream) -> Result<(), Code> {
        let sample = lock(&self.messages).remove(&message);
        sample.ok_or(Code::INVALID_HANDLE)?.release_on(stream);
        Ok(())
    }

    /// Leaves a topic.
    pub(super) fn leave(&self, number: u64) {
        let member = lock(&self.members).remove(&number);
        // Without the lock: it may ask the daemon.
        drop(member);
    }

    /// Call when a device is about to be reset: releases all messages, and leaves all topics.
    pub(super) fn end(&self) {
        let mut node = lock(&self.node);
        if matches!(*node, Membership::Joined(_)) {
            lock(&self.messages).clear();
            lock(&self.members).clear();
            *node = Membership::Over;
        }
    }
}

/// A tensor as it crosses; `None` if it is not in row-major order, or of a type without a name.
fn described(tensor: &rgaps::Tensor) -> Option<Tensor> {
    let shape = tensor.shape[..usize::from(tensor.ndim)].to_vec();
    let (plain, _) = rgaps::tensor::contiguous(tensor.dtype, &shape).ok()?;
    let dtype = tensor.dtype.name().filter(|_| plain == *tensor)?.to_owned();
    Some(Tensor { dtype, shape })
}

/// Copies a range into a loan and publishes it.
pub(super) fn publish(
    publisher: &Publisher,
    (from, bytes): (u64, u64),
    tensor: Option<&Tensor>,
    stream: Stream,
) -> Result<CallValue, Refused> {
    let mut loan = publisher.loan(bytes)?;
    if let Some(Tensor { dtype, shape }) = tensor {
        let known = dtype.parse().map_err(|_| Refused {
            code: Code::INVALID_VALUE,
            reason: format!(
                "'{dtype}' is no element type; use the names of numpy and torch, such as float32"
            ),
        })?;
        loan.set_shape(known, shape)?;
    }
    // SAFETY: the session checked that the client has the range. If the client frees it before the copy is done, the driver refuses the
    // copy or the free waits, in a process that has only this client's memory.
    unsafe { loan.copy_from_on(0, from, bytes, stream)? };
    Ok(CallValue::Number(loan.publish_on(stream)?))
}

fn of_pool(error: &PoolError) -> Code {
    match error {
        PoolError::CapReached { .. } => Code::OUT_OF_MEMORY,
        PoolError::Unavailable { .. } => Code::NOT_SUPPORTED,
        PoolError::OutOfRange { .. } | PoolError::ReadOnly | PoolError::BadSize { .. } => {
            Code::INVALID_VALUE
        }
        _ => Code::UNKNOWN,
    }
}

fn of_client(error: &ClientError) -> Code {
    match error {
        ClientError::Launch(_)
        | ClientError::DaemonLost { .. }
        | ClientError::Stopped
        | ClientError::NoAnswer { .. }
        | ClientError::ZoneLost { .. } => Code::SYSTEM_NOT_READY,
        ClientError::Refused(refusal) => match refusal.code {
            RefusalCode::NotPermitted => Code::NOT_PERMITTED,
            RefusalCode::PoolFull | RefusalCode::LimitReached => Code::OUT_OF_MEMORY,
            RefusalCode::DomainUnavailable => Code::NOT_SUPPORTED,
            RefusalCode::ZoneLost | RefusalCode::Recovering | RefusalCode::VersionMismatch => {
                Code::SYSTEM_NOT_READY
            }
            RefusalCode::Internal => Code::UNKNOWN,
            _ => Code::INVALID_VALUE,
        },
        ClientError::Pool(error) => of_pool(error),
        ClientError::Argument(_) => Code::INVALID_VALUE,
        _ => Code::UNKNOWN,
    }
}

fn of_loan(error: &LoanError) -> Code {
    match error {
        LoanError::PoolFull { .. }
        | LoanError::TooLarge { .. }
        | LoanError::NoBlocks { .. }
        | LoanError::TooManyLoans { .. } => Code::OUT_OF_MEMORY,
        LoanError::Client(error) => of_client(error),
        LoanError::Pool(error) => of_pool(error),
        LoanError::Argument(_) => Code::INVALID_VALUE,
        _ => Code::UNKNOWN,
    }
}

impl From<OpenError> for Refused {
    fn from(error: OpenError) -> Refused {
        let code = match &error {
            OpenError::Client(error) => of_client(error),
            OpenError::Argument(_) => Code::INVALID_VALUE,
            _ => Code::UNKNOWN,
        };
        Refused {
            code,
            reason: error.to_string(),
        }
    }
}

impl From<LoanError> for Refused {
    fn from(error: LoanError) -> Refused {
        Refused {
            code: of_loan(&error),
            reason: error.to_string(),
        }
    }
}

impl From<Unpublished> for Refused {
    fn from(unpublished: Unpublished) -> Refused {
        let code = match &unpublished.error {
            PublishError::BackPressured { .. } => Code::TIMEOUT,
            PublishError::Argument(_) => Code::INVALID_VALUE,
            PublishError::Replica(error) => of_loan(error),
            PublishError::Pool(error) => of_pool(error),
            PublishError::Client(error) => of_client(error),
            _ => Code::UNKNOWN,
        };
        Refused {
            code,
            reason: unpublished.error.to_string(),
        }
    }
}

impl From<RecvError> for Refused {
    fn from(error: RecvError) -> Refused {
        let code = match &error {
            RecvError::TimedOut(_) => Code::NOT_READY,
            RecvError::Unfinished { .. } => Code::TIMEOUT,
            RecvError::TooManyHeld { .. } => Code::OUT_OF_MEMORY,
            RecvError::Client(error) => of_client(error),
            RecvError::Pool(error) => of_pool(error),
            _ => Code::UNKNOWN,
        };
        Refused {
            code,
            reason: error.to_string(),
        }
    }
}
