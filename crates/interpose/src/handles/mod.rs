//! Handles that are minted here; the server learns of them with the first batch.
pub(crate) mod arrays;
pub(crate) mod events;
pub(crate) mod pools;
pub(crate) mod streams;
