//! Publish and subscribe messages in host and GPU memory without copies.

mod client;
