//! Where in which file an address lies, from the kernel's table of this process's mappings: the
//! test asks nobody whom it tests.

/// A mapping of a file.
#[derive(Clone, Copy, Debug)]
struct Mapped {
    start: u64,
    end: u64,
    inode: u64,
    offset: u64,
}

/// Mappings of files, remembered.
#[derive(Debug, Default)]
pub struct Places {
    mapped: Vec<Mapped>,
}

impl Places {
    /// Inode and offset of the file that is mapped at an address. None where none is.
    pub fn of(&mut self, address: u64) -> Option<(u64, u64)> {
        self.known(address).or_else(|| {
            self.mapped = read_mappings();
            self.known(address)
        })
    }

    fn known(&self, address: u64) -> Option<(u64, u64)> {
        let mapped = self
            .mapped
            .iter()
            .find(|mapped| (mapped.start..mapped.end).contains(&address))?;
        Some((mapped.inode, mapped.offset + (address - mapped.start)))
    }
}

fn read_mappings() -> Vec<Mapped> {
    let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    text.lines().filter_map(parse).collect()
}

fn parse(line: &str) -> Option<Mapped> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let offset = fields.nth(1)?;
    let inode = fields.nth(1)?.parse().ok()?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    (inode != 0).then_some(Mapped {
        start: hex(start)?,
        end: hex(end)?,
        inode,
        offset: hex(offset)?,
    })
}
