//! Routes, trees and delivery; all but trees in virtual time, with 10,200 seeds in `make test`. One program: its simulation, which is optimised, is compiled once.
#![forbid(unsafe_code)]

mod channels;
mod delivery;
mod paths;
mod rules;
mod sim;
mod thousand;
mod trees;
