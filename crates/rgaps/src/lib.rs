//! Publish and subscribe messages in host and GPU memory without copies.

#[allow(dead_code, unused_imports)] // until the node is written over it
mod client;
