//! The slowest path that will do, as C writes it.

use crate::status::{Failure, Outcome};
use rgaps_session::PathKind;

/// `enum rgaps_path`, without its 0.
pub(crate) const PATHS: [(&str, u32, PathKind); 5] = [
    ("RGAPS_PATH_TCP", 1, PathKind::Tcp),
    ("RGAPS_PATH_RDMA", 2, PathKind::Rdma),
    ("RGAPS_PATH_PINNED", 3, PathKind::Pinned),
    ("RGAPS_PATH_PEER", 4, PathKind::Peer),
    ("RGAPS_PATH_ZERO_COPY", 5, PathKind::ZeroCopy),
];

/// What the field `require` of options says; none for 0, `RGAPS_PATH_ANY`.
pub(crate) fn required(require: u32) -> Outcome<Option<PathKind>> {
    if require == 0 {
        return Ok(None);
    }
    let known = PATHS.iter().find(|(_, number, _)| *number == require);
    let Some((_, _, path)) = known else {
        return Err(Failure::argument(format!(
            "require is {require}: it is RGAPS_PATH_ANY or one of {}",
            PATHS.map(|(name, _, _)| name).join(", ")
        )));
    };
    Ok(Some(*path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Code;

    #[test]
    fn every_path_has_a_number_in_the_order_of_their_speed() {
        assert_eq!(PATHS.map(|(_, _, path)| path), PathKind::ALL);
        for (name, number, path) in PATHS {
            let expected = format!("RGAPS_PATH_{}", path.name().to_ascii_uppercase());
            assert_eq!(name, expected);
            assert_eq!(required(number).unwrap(), Some(path));
        }
        assert_eq!(required(0).unwrap(), None);
        let error = required(6).unwrap_err();
        assert_eq!(error.code, Code::Argument);
        assert!(error.message.contains("RGAPS_PATH_ZERO_COPY"), "{error:?}");
    }
}
