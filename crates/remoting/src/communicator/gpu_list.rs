//! Which GPUs a program uses: a list of servers, and of each all GPUs or one.

use super::Endpoint;
use crate::limits::SERVERS_MAX;
use std::fmt;
use std::str::FromStr;

/// A number below this behind the last colon of an address is a GPU; ports below it are the system's.
const GPUS_MAX: u16 = 1024;

/// A server, and which of its GPUs: `ADDRESS` for all, `ADDRESS:GPU` for one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    endpoint: Endpoint,
    /// The number that the server has for the GPU.
    gpu: Option<u16>,
}

/// Servers as a program's user lists them, separated by commas. Their GPUs are numbered in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuList(Vec<Entry>);

impl GpuList {
    /// Each server once, in the order of the list.
    pub fn servers(&self) -> Vec<&Endpoint> {
        let mut servers = Vec::new();
        for entry in &self.0 {
            if !servers.contains(&&entry.endpoint) {
                servers.push(&entry.endpoint);
            }
        }
        servers
    }

    /// The GPUs: the number of the server in [`GpuList::servers`] and the GPU's number there. `counts` are how many GPUs each server has.
    pub fn gpus(&self, counts: &[usize]) -> Result<Vec<(usize, u16)>, String> {
        let servers = self.servers();
        let mut gpus = Vec::new();
        for Entry { endpoint, gpu } in &self.0 {
            let server = servers.iter().position(|other| *other == endpoint);
            let server = server.unwrap_or_default();
            let count = counts.get(server).copied().unwrap_or(0) as u16;
            let wanted = match gpu {
                Some(gpu) if *gpu >= count => {
                    return Err(format!(
                        "the GPU server at {endpoint} has no GPU {gpu}; it has {count}, numbered from 0"
                    ))
                }
                Some(gpu) => *gpu..gpu + 1,
                None => 0..count,
            };
            for gpu in wanted {
                match gpus.contains(&(server, gpu)) {
                    true => return Err(format!("GPU {gpu} of {endpoint} is listed twice")),
                    false => gpus.push((server, gpu)),
                }
            }
        }
        Ok(gpus)
    }
}

impl FromStr for Entry {
    type Err = String;

    fn from_str(text: &str) -> Result<Entry, String> {
        // An IPv6 address without brackets ends in a number, too.
        let number = match text.parse::<std::net::Ipv6Addr>() {
            Ok(_) => None,
            Err(_) => text.rsplit_once(':'),
        };
        let gpu = number.and_then(|(address, gpu)| Some((address, gpu.parse().ok()?)));
        let (address, gpu) = match gpu {
            Some((address, gpu)) if gpu < GPUS_MAX => (address, Some(gpu)),
            _ => (text, None),
        };
        Ok(Entry {
            endpoint: address.parse()?,
            gpu,
        })
    }
}

impl FromStr for GpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<GpuList, String> {
        let list: Vec<Entry> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let list = GpuList(list);
        match list.servers().len() > SERVERS_MAX {
            true => Err(format!(
                "there are more than {SERVERS_MAX} servers in the list"
            )),
            false => Ok(list),
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gpu {
            None => write!(f, "{}", self.endpoint),
            Some(gpu) => write!(f, "{}:{gpu}", self.endpoint),
        }
    }
}

impl fmt::Display for GpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, entry) in self.0.iter().enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            write!(f, "{entry}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_shown() {
        for (text, shown) in [
            ("gpu7", "gpu7:7462"),
            ("gpu7:1", "gpu7:7462:1"),
            ("gpu7:9000:1", "gpu7:9000:1"),
            ("gpu7:9000,unix:/run/x:0", "gpu7:9000,unix:/run/x:0"),
            ("::1,[::1]:2", "[::1]:7462,[::1]:7462:2"),
            ("tls/gpu7@10.0.0.1:3", "tls/gpu7@10.0.0.1:7462:3"),
        ] {
            let list: GpuList = text.parse().unwrap();
            assert_eq!(list.to_string(), shown);
            assert_eq!(shown.parse::<GpuList>().unwrap(), list);
        }
        for wrong in ["", "a,", ",a", "a,host:port"] {
            assert!(wrong.parse::<GpuList>().is_err(), "{wrong}");
        }
        let many: Vec<String> = (0..=SERVERS_MAX).map(|n| format!("gpu{n}")).collect();
        assert!(many.join(",").parse::<GpuList>().is_err());
    }

    #[test]
    fn gpus_are_numbered_in_the_order_of_the_list() {
        let gpus = |text: &str, counts: &[usize]| text.parse::<GpuList>().unwrap().gpus(counts);
        assert_eq!(gpus("a,b", &[2, 1]).unwrap(), [(0, 0), (0, 1), (1, 0)]);
        // A server that is listed twice has one session.
        assert_eq!(
            gpus("a:1,b,a:0", &[2, 1]).unwrap(),
            [(0, 1), (1, 0), (0, 0)]
        );
        assert!(gpus("a:2", &[2]).unwrap_err().contains("no GPU 2"));
        assert!(gpus("a,a:1", &[2]).unwrap_err().contains("twice"));
    }
}
