//! One message with several arrays and a header, from a publisher to a subscriber of the same process:
//!
//!     cargo run --example metadata

use rgaps::{DType, Header, Node, PartSpec};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let node = Node::new("metadata")?;
    let subscriber = node.subscriber("camera/depth").create()?;
    let publisher = node.publisher("camera/depth").create()?;

    // One block for all parts. Each part begins at a multiple of 256 bytes.
    let mut loan = publisher.loan_parts(&[
        PartSpec {
            name: "rgb",
            dtype: DType::U8,
            shape: &[480, 640, 3],
        },
        PartSpec {
            name: "depth",
            dtype: DType::F32,
            shape: &[480, 640],
        },
    ])?;
    loan.part_mut("rgb")?.fill(200);
    for metres in loan.part_mut("depth")?.chunks_exact_mut(4) {
        metres.copy_from_slice(&1.5f32.to_le_bytes());
    }
    // The header travels beside the block: time of capture, frame id, and keys of your own.
    loan.set_header(
        &Header::captured_now()
            .frame_id("left")
            .value("exposure_us", 8000),
    )?;
    loan.publish()?;

    let sample = subscriber.recv()?;
    for part in sample.parts()?.iter() {
        let tensor = part.tensor();
        let shape = &tensor.shape[..tensor.ndim.into()];
        println!(
            "{}: {shape:?} {}, {} bytes",
            part.name(),
            tensor.dtype,
            part.len()
        );
    }
    let nearest = sample.part_slice("depth")?[..4].try_into()?;
    println!("nearest: {} m", f32::from_le_bytes(nearest));
    let header = sample.header()?.ok_or("no header")?;
    println!("from {:?}, with {:?}", header.frame_id, header.values);
    Ok(())
}
