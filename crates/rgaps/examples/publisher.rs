//! Publishes images, thirty a second, until it is stopped:
//!
//!     cargo run --example publisher -- camera/front

use rgaps::{DType, Node};
use std::time::Duration;

const SHAPE: [u64; 3] = [480, 640, 3];
const PERIOD: Duration = Duration::from_millis(33);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let topic = std::env::args().nth(1).unwrap_or("camera/front".into());
    // Connects to the daemon, and starts it if there is none.
    let node = Node::new("publisher")?;
    let publisher = node.publisher(&topic).create()?;
    for number in 0u64.. {
        // A block of shared memory that nobody else uses. Subscribers will read these very bytes.
        let mut loan = publisher.loan_tensor(DType::U8, &SHAPE)?;
        loan.as_mut_slice()?.fill(number as u8);
        loan.set_tag(number);
        // From here on nobody can change the image.
        loan.publish()?;
        println!("image {number} to {} subscribers", publisher.subscribers());
        std::thread::sleep(PERIOD);
    }
    Ok(())
}
