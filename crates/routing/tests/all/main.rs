//! Routes, trees and delivery, in virtual time. One program: its simulation, which is optimised, is compiled once.
#![forbid(unsafe_code)]

mod channels;
mod delivery;
mod paths;
mod rules;
mod sim;
mod thousand;
mod trees;
