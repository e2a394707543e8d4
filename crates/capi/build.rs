//! Names the shared library for the dynamic linker: programs that were linked with one version go on
//! working with another of the same number.
#![forbid(unsafe_code)]

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,librgaps.so.0");
}
