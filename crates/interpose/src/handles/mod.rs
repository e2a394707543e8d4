//! Handles that are minted here; the server learns of them with the first batch.
pub(crate) mod captures;
pub(crate) mod events;
pub(crate) mod graphs;
pub(crate) mod pools;
pub(crate) mod streams;
