//! Handles of streams, events, pools, arrays and what is made of them. This process mints most of them, so that it need not wait for the
//! server.
pub(crate) mod arrays;
pub(crate) mod events;
pub(crate) mod pools;
pub(crate) mod streams;
