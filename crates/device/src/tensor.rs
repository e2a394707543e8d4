//! Kernels of ours that publish ranges of GPU memory in a device topic, and receive into them: for programs that bring none of
//! their own, such as Python's.
//!
//! Each call queues one kernel on a stream of the caller's, which publishes or receives one message behind the work that is
//! queued there. No CPU waits: the caller reads the result later ([`Outcome`]). The kernels keep their state in GPU memory
//! between two calls, so the calls of one publisher or subscriber must be in order on the GPU.

use crate::{DeviceError, DeviceTopic};
use rgaps_cuda::{CudaError, DeviceBuffer, ForeignStreams, Kernel, Module};
use rgaps_layout::DeviceTopicView;
use rgaps_pool::Stream;
use std::ffi::CStr;
use std::sync::Arc;

/// `tensor.cu`, as tools/device/tensor.sh compiles it.
const PTX: &CStr = match CStr::from_bytes_with_nul(TEXT.as_bytes()) {
    Ok(text) => text,
    Err(_) => panic!("the text holds a NUL"),
};
const TEXT: &str = concat!(include_str!("tensor.ptx"), "\0");
/// Bytes of a kernel's state, which begins with the topic's view and the outcome.
const STATE_BYTES: usize = 512;
/// Offset of the outcome in the state.
const OUTCOME_AT: u64 = size_of::<DeviceTopicView>() as u64;
const OUTCOME_WORDS: usize = 6;
/// Threads of a kernel for a message of up to [`SMALL_BYTES`], and for a larger one.
const THREADS: (u32, u32) = (128, 512);
const SMALL_BYTES: u64 = 8 << 10;

/// The result of those calls of a publisher or subscriber that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// How many calls have ended.
    pub calls: u64,
    /// How many of them failed.
    pub failed: u64,
    /// `Status` of the last one, as `rgaps/device.cuh` numbers it; 0: success.
    pub status: i64,
    /// Sequence number of the message of the last one.
    pub sequence: u64,
    /// Length of that message.
    pub bytes: u64,
    /// Messages that the subscriber missed directly before that one.
    pub missed: u64,
}

/// A kernel and its state.
struct Launched {
    // Fields drop in this order: freeing waits for work that uses the memory and the kernel.
    state: DeviceBuffer,
    streams: ForeignStreams,
    kernel: Kernel,
    topic: Arc<DeviceTopic>,
}

/// Publishes ranges of GPU memory.
pub struct TensorPublisher(Launched);

/// Receives into ranges of GPU memory.
pub struct TensorSubscriber {
    launched: Launched,
    seat: u32,
    mode: u64,
}

impl Launched {
    fn new(topic: Arc<DeviceTopic>, kernel: &CStr) -> Result<Launched, DeviceError> {
        let Some(context) = topic.memory().context().cloned() else {
            let why =
                "a device topic in host memory has no kernels; take one in the memory of a GPU";
            return Err(DeviceError::Argument(why.to_owned()));
        };
        let uuid = context.device().uuid;
        let fail = |error: CudaError| DeviceError::Pool(error.into_pool(uuid));
        let mut bytes = [0; STATE_BYTES];
        let words = topic.view().words().into_iter();
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        // SAFETY: `bytes` has `STATE_BYTES` bytes and lives until this function returns; `copy_of` returns after the copy.
        let state = unsafe {
            DeviceBuffer::copy_of(context.clone(), bytes.as_ptr() as u64, STATE_BYTES as u64)
        };
        let module = Module::load(context, PTX).map_err(fail)?;
        Ok(Launched {
            state: state.map_err(fail)?,
            streams: ForeignStreams::default(),
            kernel: module.kernel(kernel).map_err(fail)?,
            topic,
        })
    }

    /// # Safety
    /// The GPU can read the `bytes` bytes at `address` (publishing) or write them (receiving) until the queued work has finished. `more`
    /// has the kernel's parameters behind the first four.
    unsafe fn launch(
        &self,
        (address, bytes): (u64, u64),
        ticks_max: u64,
        more: &[u64],
        stream: Stream,
    ) -> Result<(), DeviceError> {
        let context = self.state.context();
        let fail = |error: CudaError| DeviceError::Pool(error.into_pool(context.device().uuid));
        let threads = match bytes > SMALL_BYTES {
            true => THREADS.1,
            false => THREADS.0,
        };
        let mut parameters = vec![self.state.address(), address, bytes, ticks_max];
        parameters.extend(more);
        let on = self.streams.enter(context, stream).map_err(fail)?;
        // SAFETY: the kernel has these parameters, the last ones as our caller promises. It uses its state and the topic's memory, which
        // `self` keeps until the work has finished (the state's drop waits), and the range, which our caller promises until then.
        unsafe { self.kernel.launch(&on, (1, threads), &parameters) }.map_err(fail)
    }

    fn outcome(&self) -> Result<Outcome, DeviceError> {
        let mut bytes = [0; OUTCOME_WORDS * 8];
        let read = self.state.read_at(OUTCOME_AT, &mut bytes);
        read.map_err(|error| error.into_pool(self.state.context().device().uuid))?;
        let word = |number: usize| {
            let bytes = bytes[number * 8..][..8].try_into().expect("8 bytes");
            u64::from_le_bytes(bytes)
        };
        Ok(Outcome {
            calls: word(0),
            failed: word(1),
            status: word(2) as i64,
            sequence: word(3),
            bytes: word(4),
            missed: word(5),
        })
    }
}

impl TensorPublisher {
    /// Becomes the topic's publisher. No other process and no other kernel may publish meanwhile.
    pub fn new(topic: Arc<DeviceTopic>) -> Result<TensorPublisher, DeviceError> {
        Launched::new(topic, c"rgaps_device_publish").map(TensorPublisher)
    }

    /// Queues publishing `bytes` bytes from `address` on. On the GPU it waits for room for at most `ticks_max` ticks.
    ///
    /// # Safety
    /// The GPU can read the range until the work has finished.
    pub unsafe fn publish(
        &self,
        address: u64,
        bytes: u64,
        ticks_max: u64,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        let most = self.0.topic.geometry().block_bytes;
        if bytes > most {
            return Err(DeviceError::Argument(format!(
                "a message of {bytes} bytes does not fit a block of {most}"
            )));
        }
        // SAFETY: our caller promises that the GPU can read the range until the work has finished. `new` loaded the kernel that
        // publishes, which only reads it.
        unsafe { self.0.launch((address, bytes), ticks_max, &[], stream) }
    }

    /// The result of the calls that have ended.
    pub fn outcome(&self) -> Result<Outcome, DeviceError> {
        self.0.outcome()
    }
}

impl TensorSubscriber {
    /// Makes a subscriber in a seat of its own, which it leaves when it is dropped. It joins with the first call.
    pub fn new(
        topic: Arc<DeviceTopic>,
        reliable: bool,
        history: bool,
    ) -> Result<TensorSubscriber, DeviceError> {
        let launched = Launched::new(topic, c"rgaps_device_receive")?;
        let seat = launched.topic.take_seat()?;
        Ok(TensorSubscriber {
            launched,
            seat,
            mode: u64::from(reliable) | u64::from(history) << 1,
        })
    }

    /// Its seat.
    pub fn seat(&self) -> u32 {
        self.seat
    }

    /// Queues receiving a message of at most `room` bytes. On the GPU the kernel waits for a message for at most `ticks_max` ticks, and
    /// all later work on the stream waits with it. Of a longer message it copies the first `room` bytes, and the outcome reports that.
    ///
    /// # Safety
    /// The GPU can write the range until the work has finished.
    pub unsafe fn receive(
        &self,
        address: u64,
        room: u64,
        ticks_max: u64,
        stream: Stream,
    ) -> Result<(), DeviceError> {
        let more = [self.seat.into(), self.mode];
        // SAFETY: our caller promises that the GPU can write the range until the work has finished. `new` loaded the kernel that
        // receives, which writes at most `room` bytes from `address` on.
        unsafe {
            self.launched
                .launch((address, room), ticks_max, &more, stream)
        }
    }

    /// The result of the calls that have ended.
    pub fn outcome(&self) -> Result<Outcome, DeviceError> {
        self.launched.outcome()
    }
}

impl Drop for TensorSubscriber {
    fn drop(&mut self) {
        // Its kernels must have ended before the seat is left; `stop` ends the waits of those that run.
        let left = self.launched.topic.stop(self.seat).and_then(|()| {
            let context = self.launched.state.context();
            // A context that is lost has no work.
            let _ = context.synchronize();
            self.launched.topic.leave_seat(self.seat)
        });
        if let Err(error) = left {
            tracing::warn!(%error, "a seat of a device topic is not left");
        }
    }
}
