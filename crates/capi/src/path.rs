//! The option `require`: the slowest path that a publisher or subscriber accepts.

use crate::status::{Failure, Outcome};
use rgaps_session::PathKind;

/// `enum rgaps_path` without `RGAPS_PATH_ANY` (0). `PathKind::number` gives each its number.
pub(crate) const PATHS: [(&str, PathKind); 6] = [
    ("RGAPS_PATH_TCP", PathKind::Tcp),
    ("RGAPS_PATH_RDMA", PathKind::Rdma),
    ("RGAPS_PATH_GPUDIRECT", PathKind::GpuDirect),
    ("RGAPS_PATH_PINNED", PathKind::Pinned),
    ("RGAPS_PATH_PEER", PathKind::Peer),
    ("RGAPS_PATH_ZERO_COPY", PathKind::ZeroCopy),
];

/// The path that the field `require` of options demands; None for 0, `RGAPS_PATH_ANY`.
pub(crate) fn required(require: u32) -> Outcome<Option<PathKind>> {
    if require == 0 {
        return Ok(None);
    }
    let Some(path) = PathKind::of_number(require) else {
        return Err(Failure::argument(format!(
            "require is {require}: it is RGAPS_PATH_ANY or one of {}",
            PATHS.map(|(name, _)| name).join(", ")
        )));
    };
    Ok(Some(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Code;

    #[test]
    fn every_path_has_a_name_and_a_number() {
        assert_eq!(PATHS.map(|(_, path)| path), PathKind::ALL);
        for (name, path) in PATHS {
            let expected = format!("RGAPS_PATH_{}", path.name().to_ascii_uppercase());
            assert_eq!(name, expected);
            assert_eq!(required(path.number()).unwrap(), Some(path));
        }
        assert_eq!(required(0).unwrap(), None);
        let error = required(7).unwrap_err();
        assert_eq!(error.code, Code::Argument);
        assert!(error.message.contains("RGAPS_PATH_ZERO_COPY"), "{error:?}");
    }
}
