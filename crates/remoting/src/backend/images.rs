//! A cache of the images of libraries that clients have sent, addressed by content: a file for each, named by its digest, in a folder
//! that the backends of a server share.
//!
//! A file gets its name (by renaming) when it is whole, and is used only if its content has that digest. When all files together are too
//! large, the least recently used ones are removed (LRU).

use crate::digest::{digest_of, Digest};
use crate::limits::IMAGE_KEPT_BYTES_MIN;
use std::fs::{self, File, FileTimes};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Most bytes of all images of a server.
const IMAGES_BYTES_MAX: u64 = 4 << 30;

/// A server's images.
#[derive(Debug)]
pub(crate) struct Images {
    folder: Option<PathBuf>,
    bytes_max: u64,
}

fn name(digest: &Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Images {
    /// Without a folder no images are kept.
    pub(crate) fn new(folder: Option<PathBuf>) -> Images {
        Images {
            folder,
            bytes_max: IMAGES_BYTES_MAX,
        }
    }

    /// The image with this digest, with a zero behind it.
    pub(crate) fn find(&self, digest: &Digest) -> Option<Vec<u8>> {
        let path = self.folder.as_ref()?.join(name(digest));
        let mut image = fs::read(&path).ok()?;
        if digest_of(&image) != *digest {
            return None;
        }
        // The file's time is that of its last use. Where it cannot be set, the image may be removed earlier.
        let now = FileTimes::new().set_modified(SystemTime::now());
        let _ = File::options()
            .append(true)
            .open(path)
            .and_then(|file| file.set_times(now));
        image.push(0);
        Some(image)
    }

    /// Keeps an image, if that is possible.
    pub(crate) fn keep(&self, image: &[u8]) {
        let Some(folder) = &self.folder else { return };
        let path = folder.join(name(&digest_of(image)));
        let is_too_small = image.len() < IMAGE_KEPT_BYTES_MIN;
        if is_too_small || path.exists() || image.len() as u64 > self.bytes_max {
            return;
        }
        if let Err(error) = self.write(folder, &path, image) {
            tracing::debug!(%error, "an image is not kept");
        }
    }

    fn write(&self, folder: &Path, path: &Path, image: &[u8]) -> io::Result<()> {
        self.make_room(folder, image.len() as u64)?;
        let unfinished = path.with_extension(std::process::id().to_string());
        let written = fs::write(&unfinished, image).and_then(|()| fs::rename(&unfinished, path));
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        written
    }

    /// Removes the least recently used images, until there is room for so many bytes.
    fn make_room(&self, folder: &Path, bytes: u64) -> io::Result<()> {
        let mut all = Vec::new();
        for entry in fs::read_dir(folder)? {
            // Another backend may have removed it.
            let Ok(about) = entry
                .as_ref()
                .map_err(drop)
                .and_then(|e| e.metadata().map_err(drop))
            else {
                continue;
            };
            all.push((about.modified()?, about.len(), entry?.path()));
        }
        all.sort();
        let mut kept: u64 = all.iter().map(|(_, length, _)| length).sum();
        for (_, length, path) in all {
            if kept + bytes <= self.bytes_max {
                break;
            }
            let _ = fs::remove_file(path);
            kept -= length;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = IMAGE_KEPT_BYTES_MIN;

    #[test]
    fn images_are_found_by_content_and_the_oldest_make_room() {
        let folder = std::env::temp_dir().join(format!("rgaps-images-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let images = Images {
            folder: Some(folder.clone()),
            bytes_max: 2 * BYTES as u64 + 100,
        };
        let (one, two, three) = ([1; BYTES], [2; BYTES], [3; BYTES]);
        assert_eq!(images.find(&digest_of(&one)), None);
        images.keep(&one);
        images.keep(&two);
        let before = SystemTime::UNIX_EPOCH;
        let path = folder.join(name(&digest_of(&one)));
        let file = File::options().append(true).open(&path).unwrap();
        file.set_times(FileTimes::new().set_modified(before))
            .unwrap();
        // Its use makes the other one the oldest.
        assert_eq!(images.find(&digest_of(&one)).unwrap().len(), BYTES + 1);
        images.keep(&three);
        assert_eq!(images.find(&digest_of(&two)), None);
        assert!(images.find(&digest_of(&one)).is_some());
        // A file with other content is not used.
        fs::write(&path, [9; BYTES]).unwrap();
        assert_eq!(images.find(&digest_of(&one)), None);
        for wrong in [vec![4; 3 * BYTES], vec![4; BYTES - 1]] {
            images.keep(&wrong);
            assert_eq!(images.find(&digest_of(&wrong)), None);
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
