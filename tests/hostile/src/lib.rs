//! What the tests of lying clients share: a daemon of their own, honest members that check every
//! byte, and a client that speaks the bare protocol and says what it likes.
#![allow(missing_docs)] // not an interface: the names say it to those who write tests

pub mod daemon;
pub mod fuse;
pub mod honest;
pub mod liar;
pub mod scribble;
