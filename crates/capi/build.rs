//! Sets the shared library's soname, so that a linked program works with every version that has the same major number.
#![forbid(unsafe_code)]

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,librgaps.so.0");
}
