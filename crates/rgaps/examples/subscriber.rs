//! Receives images, ten or as many as named, from a publisher in another process:
//!
//!     cargo run --example subscriber -- camera/front 10

use rgaps::Node;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let topic = arguments.next().unwrap_or("camera/front".into());
    let count = arguments.next().unwrap_or("10".into()).parse()?;
    let node = Node::new("subscriber")?;
    let subscriber = node.subscriber(&topic).create()?;
    for _ in 0..count {
        // Sleeps until there is a message. Its bytes are the publisher's own, mapped read-only.
        let sample = subscriber.recv()?;
        let tensor = sample.tensor().ok_or("not an image")?;
        let shape = &tensor.shape[..tensor.ndim.into()];
        let bytes = sample.as_slice()?;
        let mean = bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>() / bytes.len() as u64;
        println!(
            "image {}: {shape:?} {}, mean {mean}",
            sample.tag(),
            tensor.dtype
        );
        if sample.missed() > 0 {
            println!("missed {} before it", sample.missed());
        }
        // Here the sample is dropped. The publisher may use the block again once no subscriber needs it.
    }
    Ok(())
}
