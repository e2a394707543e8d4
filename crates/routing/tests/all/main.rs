//! Tests of routes, trees and delivery: all but trees in a simulation with virtual time, with 10,200 seeds in `make test`. They are one
//! program, so that the simulation, which is optimised, is compiled once.
#![forbid(unsafe_code)]

mod channels;
mod delivery;
mod paths;
mod rules;
mod sim;
mod thousand;
mod trees;
