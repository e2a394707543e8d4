//! `rgaps record`, `rgaps replay` and `rgaps info`.

mod info;
mod record;
mod replay;

pub use info::info;
pub use record::record;
pub use replay::replay;
