//! What messages hold.

use crate::Random;

/// The bytes of message `number`, which no other number has at any place. Cheap to make: in a build of tests only this crate, and few
/// others, are optimised.
pub fn content(number: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(crate::mix(number));
    let mut content = vec![0; bytes];
    for word in content.chunks_mut(8) {
        word.copy_from_slice(&random.next_u64().to_le_bytes()[..word.len()]);
    }
    content
}

#[cfg(test)]
mod tests {
    use super::content;

    #[test]
    fn messages_differ_and_a_shorter_one_is_the_begin_of_a_longer_one() {
        assert_eq!(content(3, 1000)[..27], content(3, 27));
        assert!(content(3, 0).is_empty());
        // Nothing of a message is in another, also where that is further on.
        let pieces = |number| {
            let words = content(number, 80_000);
            let words: std::collections::BTreeSet<_> =
                words.chunks(8).map(<[u8]>::to_vec).collect();
            words
        };
        assert_eq!(pieces(3).len(), 10_000);
        for number in 0..8 {
            assert!(number == 3 || pieces(3).is_disjoint(&pieces(number)));
        }
    }
}
