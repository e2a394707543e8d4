//! Topics of the server's host: the functions of `rgaps/gpu.h`, which only this library has.
//!
//! A program publishes memory of the device, and receives messages at their addresses on the device. The server does both
//! ([`Call::TopicPublish`], [`Call::TopicReceive`]); no bytes cross the connection. The addresses of a message are reserved here while
//! the program holds it, as those of its own device memory are.
//!
//! Each function returns one of CUDA's errors, and keeps a text for the thread (`rgaps_gpu_error_message`). `cudaGetLastError` does not
//! return these errors.

use crate::abi::{In, Out, Text};
use crate::handles::streams;
use crate::servers::{at, is_here};
use crate::{managed, memory, session, thread, transfer};
use rgaps_remoting::{Call, CallAnswer, CallValue, Code, Tensor, TopicOptions};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, CStr, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Mutex, PoisonError};

thread_local! {
    /// The text of the thread's last call that failed.
    static REASON: RefCell<CString> = RefCell::default();
}

/// Why a call failed.
struct Failure {
    code: Code,
    reason: String,
}

impl From<Code> for Failure {
    fn from(code: Code) -> Failure {
        let reason = match code {
            Code::STREAM_CAPTURE_UNSUPPORTED => {
                "the stream records a graph, which cannot hold messages; end the capture first"
                    .to_owned()
            }
            Code::INVALID_HANDLE => {
                "there is no such publisher, subscriber, message or stream: it was destroyed or released before".to_owned()
            }
            code => format!("CUDA says error {}; an earlier call may have caused it", code.0),
        };
        Failure { code, reason }
    }
}

/// `rgaps_gpu_options_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Options {
    bytes: usize,
    depth: u32,
    reliable: u32,
    transient_local: u32,
}

const DTYPE_BYTES: usize = 20;
const DIMS_MAX: usize = 8;

/// `rgaps_gpu_tensor_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct TensorOfC {
    dtype: [u8; DTYPE_BYTES],
    ndim: u32,
    shape: [u64; DIMS_MAX],
}

/// `rgaps_gpu_message_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Message {
    data: u64,
    bytes: usize,
    sequence: u64,
    missed: u64,
    number: u64,
    tensor: TensorOfC,
}

const _: () = assert!(size_of::<Options>() == 24 && size_of::<Message>() == 128);

impl TensorOfC {
    fn read(&self) -> Result<Tensor, Failure> {
        let shape = self.shape.get(..self.ndim as usize);
        let dtype = CStr::from_bytes_until_nul(&self.dtype).ok();
        match shape.zip(dtype.and_then(|dtype| dtype.to_str().ok())) {
            Some((shape, dtype)) => Ok(Tensor {
                dtype: dtype.to_owned(),
                shape: shape.to_vec(),
            }),
            None => Err(invalid(
                "the tensor has more than 8 dimensions, or the name of its element type does not end",
            )),
        }
    }

    /// `None` if the C structure has no room for it.
    fn of(tensor: &Tensor) -> Option<TensorOfC> {
        let mut found = TensorOfC {
            ndim: tensor.shape.len() as u32,
            ..TensorOfC::default()
        };
        let name = found.dtype[..DTYPE_BYTES - 1].get_mut(..tensor.dtype.len())?;
        name.copy_from_slice(tensor.dtype.as_bytes());
        let shape = found.shape.get_mut(..tensor.shape.len())?;
        shape.copy_from_slice(&tensor.shape);
        Some(found)
    }
}

fn finish(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let defect = || {
        Err(Failure {
            code: Code::UNKNOWN,
            reason: "a defect of rgaps; please report it".to_owned(),
        })
    };
    let failure = match catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| defect()) {
        Ok(()) => return Code::SUCCESS.0,
        Err(failure) => failure,
    };
    REASON.set(CString::new(failure.reason.replace('\0', " ")).unwrap_or_default());
    failure.code.0
}

fn invalid(reason: &str) -> Failure {
    Failure {
        code: Code::INVALID_VALUE,
        reason: reason.to_owned(),
    }
}

/// Makes a call; on failure with the server's reason.
fn ask(call: &Call<'_>) -> Result<CallValue, Failure> {
    let answer = session::ask(call)?;
    let is_message = answer.code == 0 && matches!(answer.value, CallValue::Message { .. });
    let found = value(answer);
    if let (Err(_), true, Call::TopicReceive { message, .. }) = (&found, is_message, call) {
        // The program gets the error of an earlier call, and not the message.
        release(*message, 0)?;
    }
    found
}

/// The value of an answer, or its error with the server's reason. The error of an earlier call that nobody waited for comes first, since
/// the server does not tell it again.
fn value(mut answer: CallAnswer) -> Result<CallValue, Failure> {
    let CallValue::Text(reason) = &mut answer.value else {
        return Ok(session::value(answer)?);
    };
    let (code, reason) = (Code(answer.code), std::mem::take(reason));
    session::value(CallAnswer { code: 0, ..answer })?;
    Err(Failure { code, reason })
}

fn release(message: u64, stream: u64) -> Result<(), Code> {
    session::send(&Call::TopicRelease { message, stream }, &[])
}

/// Calls `act` with the table of publishers and subscribers, which has a GPU of the server of each.
fn members<T>(act: impl FnOnce(&mut HashMap<u64, u16>) -> T) -> T {
    static MEMBERS: Mutex<Option<HashMap<u64, u16>>> = Mutex::new(None);
    let mut members = MEMBERS.lock().unwrap_or_else(PoisonError::into_inner);
    act(members.get_or_insert_with(HashMap::new))
}

/// Calls `act` on the server of a publisher or subscriber. An unknown handle counts as one of the current server, which refuses it.
fn at_member<T>(member: u64, act: impl FnOnce() -> T) -> T {
    let device = members(|all| all.get(&member).copied());
    at(device.unwrap_or_else(thread::device), act)
}

/// Reads the options that a program passes; null means the defaults. Refuses a structure of another size.
fn options(of: In<Options>) -> Result<TopicOptions, Failure> {
    if of.is_null() {
        return Ok(TopicOptions::default());
    }
    let options = of.get()?;
    if options.bytes != size_of::<Options>() {
        return Err(invalid(
            "options.size is not sizeof(rgaps_gpu_options_t): set it",
        ));
    }
    Ok(TopicOptions {
        depth: options.depth,
        is_reliable: options.reliable != 0,
        is_transient_local: options.transient_local != 0,
    })
}

/// Joins a topic by a call, and gives the new handle.
fn join(
    topic: Text,
    of: In<Options>,
    to: Out<u64>,
    call: impl for<'a> Fn(u64, &'a str, TopicOptions) -> Call<'a>,
) -> Result<(), Failure> {
    to.check()?;
    to.put(0)?;
    let topic = topic.get().map_err(|_| invalid("topic is NULL"))?;
    let topic = topic
        .to_str()
        .map_err(|_| invalid("the topic's name is not UTF-8"))?;
    let handle = session::mint();
    ask(&call(handle, topic, options(of)?))?;
    members(|all| all.insert(handle, thread::device()));
    Ok(to.put(handle)?)
}

fn leave(member: u64) -> Result<(), Failure> {
    if member != 0 {
        at_member(member, || ask(&Call::TopicLeave { member }))?;
        members(|all| all.remove(&member));
    }
    Ok(())
}

fn publish(
    publisher: u64,
    (from, bytes): (u64, u64),
    tensor: In<TensorOfC>,
    stream: u64,
) -> Result<u64, Failure> {
    let tensor = match tensor.is_null() {
        true => None,
        false => Some(tensor.get()?.read()?),
    };
    streams::check_here(stream)?;
    let of = memory::device_at(from);
    if of.is_some_and(|range| !is_here(range.device)) {
        return Err(invalid(
            "the bytes are on a GPU of another server than the publisher: copy them to one of its GPUs first",
        ));
    }
    if bytes > 0 && memory::check(from, bytes).is_err() {
        return Err(invalid(
            "the bytes are not in device memory of this program: copy them there first",
        ));
    }
    if managed::is_managed(from) {
        managed::before(stream)?;
    }
    let sequence = ask(&Call::TopicPublish {
        publisher,
        from,
        bytes,
        tensor,
        stream,
    })?;
    match sequence {
        CallValue::Number(sequence) => Ok(sequence),
        _ => Err(Code::UNKNOWN.into()),
    }
}

fn receive(subscriber: u64, timeout_ns: u64, stream: u64) -> Result<Message, Failure> {
    streams::check_here(stream)?;
    let number = session::mint();
    let found = ask(&Call::TopicReceive {
        subscriber,
        message: number,
        timeout_ns,
        stream,
    })?;
    let CallValue::Message {
        address,
        bytes,
        sequence,
        missed,
        tensor,
    } = found
    else {
        return Err(Code::UNKNOWN.into());
    };
    if memory::add_message(number, address, bytes).is_err() {
        release(number, stream)?;
        return Err(Failure {
            code: Code::OUT_OF_MEMORY,
            reason: "memory of this program has the message's address; the message is skipped, receive the next one"
                .to_owned(),
        });
    }
    Ok(Message {
        data: address,
        bytes: bytes as usize,
        sequence,
        missed,
        number,
        tensor: tensor.as_ref().and_then(TensorOfC::of).unwrap_or_default(),
    })
}

#[no_mangle]
extern "C" fn rgaps_gpu_publisher_create(topic: Text, of: In<Options>, to: Out<u64>) -> c_int {
    finish(|| {
        join(topic, of, to, |publisher, topic, options| {
            Call::TopicPublisher {
                publisher,
                topic,
                options,
            }
        })
    })
}

#[no_mangle]
extern "C" fn rgaps_gpu_publisher_destroy(publisher: u64) -> c_int {
    finish(|| leave(publisher))
}

#[no_mangle]
extern "C" fn rgaps_gpu_publisher_publish(
    publisher: u64,
    data: u64,
    bytes: usize,
    tensor: In<TensorOfC>,
    stream: u64,
    sequence: Out<u64>,
) -> c_int {
    finish(|| {
        let published = at_member(publisher, || {
            publish(publisher, (data, bytes as u64), tensor, stream)
        });
        sequence.put_if_wanted(published?);
        Ok(())
    })
}

#[no_mangle]
extern "C" fn rgaps_gpu_subscriber_create(topic: Text, of: In<Options>, to: Out<u64>) -> c_int {
    finish(|| {
        join(topic, of, to, |subscriber, topic, options| {
            Call::TopicSubscriber {
                subscriber,
                topic,
                options,
            }
        })
    })
}

#[no_mangle]
extern "C" fn rgaps_gpu_subscriber_destroy(subscriber: u64) -> c_int {
    finish(|| leave(subscriber))
}

#[no_mangle]
extern "C" fn rgaps_gpu_subscriber_receive(
    subscriber: u64,
    timeout_ns: u64,
    stream: u64,
    message: Out<Message>,
) -> c_int {
    finish(|| {
        message.check()?;
        message.put(Message::default())?;
        let received = at_member(subscriber, || receive(subscriber, timeout_ns, stream));
        Ok(message.put(received?)?)
    })
}

#[no_mangle]
extern "C" fn rgaps_gpu_message_release(message: Out<Message>, stream: u64) -> c_int {
    finish(|| {
        let held = message.get()?;
        streams::check(stream)?;
        let device = memory::forget_message(held.number)?;
        message.put(Message::default())?;
        Ok(at(device, || match streams::check_here(stream) {
            Ok(()) => release(held.number, stream),
            Err(_) => transfer::finish(stream).and_then(|()| release(held.number, 0)),
        })?)
    })
}

#[no_mangle]
extern "C" fn rgaps_gpu_error_message() -> *const c_char {
    // The text stays until the thread's next call that fails.
    REASON.with_borrow(|reason| reason.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_an_earlier_call_comes_before_the_reason() {
        let failure = |deferred: Code| {
            let answer = CallAnswer {
                code: Code::NOT_READY.0,
                deferred: deferred.0,
                value: CallValue::Text("no message".to_owned()),
            };
            let failure = value(answer).err().unwrap();
            (failure.code, failure.reason)
        };
        let (code, reason) = failure(Code::SUCCESS);
        assert_eq!((code, reason.as_str()), (Code::NOT_READY, "no message"));
        let (code, reason) = failure(Code::INVALID_VALUE);
        assert_eq!(code, Code::INVALID_VALUE);
        assert!(reason.contains("earlier call"), "{reason}");
    }
}
