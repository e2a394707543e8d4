//! What a host publishes.
use super::node::{Out, OUTAGE};
use super::traffic::{bytes, send, FlowFrame};
use rgaps_routing::{Delivery, FlowCommand, HostId, Life, Publisher};

/// An origin's delivery, and what it gave up.
pub struct Origin {
    pub delivery: Delivery,
    pub publisher: Publisher,
    /// Hosts that were given up: from which number, and up to which when they came back.
    pub given_up: Vec<(HostId, u64, Option<u64>)>,
    pub planned: u64,
}

impl Origin {
    pub fn new(life: Life) -> Origin {
        let publisher = Publisher {
            origin: life,
            number: 0,
        };
        Origin {
            delivery: Delivery::new(publisher, OUTAGE),
            publisher,
            given_up: Vec::new(),
            planned: 0,
        }
    }

    pub fn serve(&mut self, life: Life) {
        if self.delivery.hosts().all(|known| known != life) {
            let from = self.delivery.retained().end;
            let is_new = self.delivery.hosts().all(|known| known.host != life.host);
            self.delivery.add(life, from);
            let given_up = self.given_up.iter_mut().rev();
            let mut given_up = given_up.filter(|(host, ..)| is_new && *host == life.host);
            if let Some((.., back)) = given_up.next() {
                back.get_or_insert(from);
            }
        }
    }

    pub fn pump(&mut self, window: u64, out: &mut Out) {
        loop {
            for command in self.delivery.take_commands() {
                let (to, flow, frame) = match command {
                    FlowCommand::Open(description) => {
                        let (to, flow) = (description.tree.life, description.flow);
                        (to, flow, FlowFrame::Open(description))
                    }
                    FlowCommand::Close(to, flow) => (to, flow, FlowFrame::Close),
                    FlowCommand::Cancel(to, flow) => (to, flow, FlowFrame::Cancel),
                };
                send(out, to, (self.publisher, flow), frame);
            }
            let mut due = self.delivery.due();
            due.retain(|(_, _, _, unacknowledged)| *unacknowledged < window);
            if due.is_empty() {
                break;
            }
            for (flow, to, number, _) in due {
                let retained = self.delivery.retained();
                assert!(retained.contains(&number), "{number} is released");
                let message = FlowFrame::Message(number, bytes(self.publisher, number));
                send(out, to, (self.publisher, flow), message);
                self.delivery.sent(flow);
            }
        }
    }
}
