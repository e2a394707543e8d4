//! The available memory of this machine or container.

use std::path::{Path, PathBuf};

/// Assumed if the system's files cannot be read.
const FALLBACK_BYTES: u64 = 2 << 30;

/// How many bytes of memory this process's control group may use: the machine's memory, or the smallest limit of the group and its
/// ancestors.
pub(super) fn available_bytes() -> u64 {
    let machine = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| total_bytes(&text))
        .unwrap_or(FALLBACK_BYTES);
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    tightest(Path::new("/sys/fs/cgroup"), &groups).map_or(machine, |limit| limit.min(machine))
}

fn total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn tightest(root: &Path, groups: &str) -> Option<u64> {
    groups
        .lines()
        .flat_map(|line| limit_files(root, line))
        .filter_map(|file| read(&file))
        .min()
}

/// The limit files of a line of `/proc/self/cgroup`, `id:controllers:/path`, from our group up to the root. In a container, the
/// path may not exist below the visible root, but the root does.
fn limit_files(root: &Path, line: &str) -> Vec<PathBuf> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
        return Vec::new();
    };
    let (root, file) = if controllers.is_empty() {
        (root.to_owned(), "memory.max")
    } else if controllers.split(',').any(|name| name == "memory") {
        (root.join("memory"), "memory.limit_in_bytes")
    } else {
        return Vec::new();
    };
    let below = root.join(group.trim_start_matches('/'));
    below
        .ancestors()
        .take_while(|p| p.starts_with(&root))
        .map(|p| p.join(file))
        .collect()
}

fn read(file: &Path) -> Option<u64> {
    // "max" means no limit; it does not parse, so the result is None.
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_counts() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("a/b");
        std::fs::create_dir_all(&group).unwrap();
        let at = |limit: &str, group: &Path| {
            std::fs::write(group.join("memory.max"), limit).unwrap();
        };
        at("max\n", &group);
        assert_eq!(tightest(root.path(), "0::/a/b\n"), None);
        at("4096\n", group.parent().unwrap());
        assert_eq!(tightest(root.path(), "0::/a/b\n"), Some(4096));
        at("1024\n", root.path());
        assert_eq!(tightest(root.path(), "0::/not/here\n"), Some(1024));
        let old = root.path().join("memory");
        std::fs::create_dir_all(&old).unwrap();
        std::fs::write(old.join("memory.limit_in_bytes"), "777\n").unwrap();
        assert_eq!(
            tightest(root.path(), "3:cpu,memory:/x\n2:cpuset:/\n"),
            Some(777)
        );
        assert_eq!(tightest(root.path(), "garbage"), None);
    }

    #[test]
    fn this_machine_has_memory() {
        assert_eq!(
            total_bytes("MemFree: 1 kB\nMemTotal:   2048 kB\n"),
            Some(2 << 20)
        );
        assert!(available_bytes() > 1 << 20);
    }
}
