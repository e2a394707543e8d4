//! The floor of `bench/record.py`: the crate `mcap` alone writes messages of a given number and size to a file, in chunks without
//! compression. Prints the seconds.

use mcap::records::MessageHeader;
use mcap::WriteOptions;
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::time::Instant;

/// The recorder's default.
const CHUNK_BYTES: u64 = 4 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [file, bytes, count] = words.as_slice() else {
        return Err("give a file, the bytes of a message, and how many".into());
    };
    let message: Vec<u8> = (0..bytes.parse::<usize>()?).map(|at| at as u8).collect();
    let options = WriteOptions::new().compression(None);
    let options = options.chunk_size(Some(CHUNK_BYTES));
    let begun = Instant::now();
    let mut writer = options.create(BufWriter::new(File::create(file)?))?;
    let channel = writer.add_channel(0, "bench", "", &BTreeMap::new())?;
    for number in 0..count.parse::<u32>()? {
        let header = MessageHeader {
            channel_id: channel,
            sequence: number,
            log_time: number.into(),
            publish_time: number.into(),
        };
        writer.write_to_known_channel(&header, &message)?;
    }
    writer.finish()?;
    drop(writer);
    println!("{}", begun.elapsed().as_secs_f64());
    Ok(())
}
