//! Named limits of both ends.

use std::time::Duration;

/// Most servers of a program.
pub const SERVERS_MAX: usize = 16;
/// Most bytes of the encoded call or reply of a frame. The longest lists the kernels of a library.
pub const BODY_BYTES_MAX: usize = 16 << 20;
/// Most bytes that follow a frame.
pub const BULK_BYTES_MAX: u64 = 1 << 40;
/// Most bytes of the image of a library, which the server keeps in memory while the driver reads it.
pub const IMAGE_BYTES_MAX: u64 = 1 << 30;
/// Smaller images are sent at once, and not asked for by their digest.
pub const IMAGE_KEPT_BYTES_MIN: usize = 16 << 10;
/// Most threads of a client that call CUDA: their numbers have 16 bits, and each has a thread on the server once it has waited.
pub const CLIENT_THREADS_MAX: u16 = 1024;
/// Most streams, events and libraries (each) of a client.
pub const HANDLES_MAX: usize = 1 << 16;
/// Most allocations of a client.
pub const ALLOCATIONS_MAX: usize = 1 << 20;
/// Most bytes of a kernel's parameters, which is CUDA's limit.
pub const PARAMETER_BYTES_MAX: usize = 32764;
/// Most attributes of a launch.
pub const LAUNCH_ATTRIBUTES_MAX: usize = 16;
/// A client sends what it has queued when it has this much.
pub const BATCH_BYTES: usize = 64 << 10;
/// A client that does not wait for anything sends what it has queued after this long.
pub const BATCH_DELAY: Duration = Duration::from_micros(50);
/// Up to this size bytes travel inside the batch, unless the client says otherwise.
pub const INLINE_BYTES: usize = 16 << 10;
/// Bytes of one staging buffer of the server, and how many there are for each direction.
pub const STAGING_BYTES: usize = 4 << 20;
/// See [`STAGING_BYTES`].
pub const STAGING_COUNT: usize = 4;
/// Most regions of memory that a client of this host shares with its backend, and most bytes of all of them.
pub const REGIONS_MAX: usize = 1 << 14;
/// See [`REGIONS_MAX`].
pub const SHARED_BYTES_MAX: u64 = 16 << 30;
/// Most copies of shared memory that a client has numbered, to wait for them by number.
pub const MARKS_MAX: u16 = 64;
/// Most functions of the client that its streams have queued.
pub const HOST_FUNCTIONS_MAX: usize = 1 << 16;
/// Most copies to the client whose bytes are expected and not waited for; each has a thread of the backend.
pub const ASYNC_COPIES_MAX: usize = 32;
/// Most publishers and subscribers of topics of a client.
pub const TOPIC_MEMBERS_MAX: usize = 256;
/// How long either end takes to connect and say hello.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that owes an answer to TCP for so long counts as lost; how often that is checked.
pub const SILENCE_MAX: Duration = Duration::from_secs(20);
/// See [`SILENCE_MAX`].
pub const SILENCE_LOOK: Duration = Duration::from_secs(2);
/// Connections that have not said hello yet, at most. Each has a thread; those over TCP have limits by address before.
pub const STRANGERS_MAX: usize = 256;
/// Most connections of a client beside its first one, over which bytes of large copies travel ("stripes").
pub const STRIPES_MAX: usize = 8;
/// Bytes that travel over one of them in turn: a quarter of its share, within these limits. So the last piece, which overlaps with
/// nothing, is short.
pub const STRIPE_PIECE_BYTES: std::ops::RangeInclusive<usize> = (256 << 10)..=(1 << 20);
/// See [`STRIPE_PIECE_BYTES`].
pub const STRIPE_PIECES: usize = 4;
/// Smaller copies travel over the first connection.
pub const STRIPED_BYTES_MIN: u64 = 1 << 20;
/// How long a thread that waits for a call or an answer looks for it before it sleeps: a thread that sleeps takes longer to wake than
/// many calls take.
pub const SPIN: Duration = Duration::from_micros(50);
/// With fewer processors nobody spins, since the other end may need the processor.
pub const SPIN_PROCESSORS_MIN: usize = 4;
