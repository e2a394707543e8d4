//! `verify`: exchanges messages over each carrier, and checks how works fail.

use crate::jobs::{Job, Jobs, Task};
use crate::links::LinkSide;
use crate::side::{run_both, Side, Sizes, LIMIT_S};
use crate::{kernels, Options};
use anyhow::{bail, ensure, Result};
use rgaps_gpu_verbs::{choose, Behaviour, Buffer, Depths, Syndrome, VerbsCarrier, CAN_CHANGE};
use rgaps_layout::Domain;
use rgaps_verbs::in_process::{Faults, SoftwareNetwork};
use rgaps_verbs::{Access, ChannelAddress};
use serde_json::json;
use std::net::{TcpListener, TcpStream};

struct Test {
    jobs: Jobs,
    kernels: Domain,
    payload: Domain,
    messages: u64,
    sizes: Sizes,
    seed: u64,
}

type Check = fn(&Test) -> Result<()>;

const TESTS: [(&str, Check); 18] = [
    ("model", |test| test.model(Behaviour::default())),
    ("model_late", |test| {
        test.model(Behaviour {
            delay_one_in: 4,
            is_torn: true,
            ..test.behaviour()
        })
    }),
    ("model_record", |test| {
        test.model(Behaviour {
            record_decides: true,
            delay_one_in: 2,
            ..test.behaviour()
        })
    }),
    ("tcp", Test::tcp),
    ("verbs", Test::verbs),
    ("verbs_topics", Test::verbs_topics),
    ("egress_alone", |test| test.end_alone(0)),
    ("ingress_alone", |test| test.end_alone(1)),
    ("wrong_remote_key", |test| {
        test.fails(1, Syndrome::RemoteAccess)
    }),
    ("wrong_local_key", |test| {
        test.fails(2, Syndrome::LocalProtection)
    }),
    ("out_of_bounds", |test| {
        test.fails(3, Syndrome::RemoteAccess)
    }),
    ("no_receive", |test| {
        test.fails(4, Syndrome::ReceiverNotReady)
    }),
    ("tcp_wrong_remote_key", |test| {
        test.fails_on_tcp(1, Syndrome::RemoteAccess)
    }),
    ("tcp_wrong_local_key", |test| {
        test.fails_on_tcp(2, Syndrome::LocalProtection)
    }),
    ("prepared", Test::prepared),
    ("shared", Test::shared),
    ("full", Test::full),
    ("zeroed_completions", Test::zeroed_completions),
];

/// Runs all tests, or the one that `--only` names.
pub fn run(jobs: &Jobs, options: &Options) -> Result<()> {
    let kernels = kernels(jobs)?;
    let test = Test {
        jobs: *jobs,
        kernels,
        payload: match options.text("payload") {
            Some("gpu") => kernels,
            _ => Domain::Host,
        },
        messages: options.number("messages", 500)?,
        sizes: Sizes {
            slots: 8,
            slot_bytes: options.number("bytes", 4096)?.next_multiple_of(8) as u32,
            ticks_max: options.number("limit-s", LIMIT_S)? * 1_000_000_000,
        },
        seed: options.number("seed", 1)?,
    };
    let only = options.text("only");
    let mut passed = Vec::new();
    let mut failed = Vec::new();
    for (name, check) in TESTS {
        if only.is_some_and(|only| only != name) {
            continue;
        }
        if name.starts_with("verbs") && test.payload != Domain::Host {
            println!("{name:24} skipped: a proxy over verbs takes host memory only");
            continue;
        }
        match check(&test) {
            Ok(()) => {
                println!("{name:24} ok");
                passed.push(name);
            }
            Err(error) => {
                println!("{name:24} FAILED: {error:#}");
                failed.push(name);
            }
        }
    }
    ensure!(
        !passed.is_empty() || !failed.is_empty(),
        "there is no such test"
    );
    let report = json!({
        "kernels": if jobs.is_cuda { "cuda" } else { "host" },
        "payload": if test.payload == Domain::Host { "host" } else { "gpu" },
        "chosen": choose().to_string(),
        "messages_each": test.messages,
        "passed": passed,
        "failed": failed,
    });
    println!("{report}");
    if !failed.is_empty() {
        std::process::exit(1);
    }
    Ok(())
}

impl Test {
    fn behaviour(&self) -> Behaviour {
        Behaviour {
            seed: self.seed,
            ..Behaviour::default()
        }
    }

    fn side(&self) -> Result<Side> {
        // Small queues, so that indices wrap and queues fill up.
        let depths = Depths {
            sends_log2: 4,
            receives_log2: 3,
        };
        Side::new(self.kernels, self.payload, depths, self.sizes)
    }

    /// Sends the messages from `one` to `other`. Checks both ends, and the counts of the card.
    fn exchange(&self, one: &Side, other: &Side, to_other: Buffer, to_one: Buffer) -> Result<()> {
        let mut send = one.job(Task::Send, self.messages, to_other);
        if self.payload != Domain::Host {
            // The card's thread cannot change a word of GPU memory atomically.
            send.pair.abilities &= !CAN_CHANGE;
        }
        let receive = other.job(Task::Receive, self.messages, to_one);
        run_both(&self.jobs, &send, &receive)?;
        // If both ends failed, either may be the cause, so report both.
        let sender = one.check("sender", self.messages);
        let receiver = other.check("receiver", self.messages);
        match (sender, receiver) {
            (Ok(()), Ok(())) => {}
            (Err(sender), Err(receiver)) => bail!("{sender}; {receiver}"),
            (one, other) => one.and(other)?,
        }
        let (sent, received) = (one.pair.counts(), other.pair.counts());
        ensure!(
            received.received == self.messages && sent.works >= self.messages,
            "{sent:?} {received:?}"
        );
        Ok(())
    }

    fn model(&self, behaviour: Behaviour) -> Result<()> {
        let (mut one, mut other) = (self.side()?, self.side()?);
        one.pair.connect(&mut other.pair, behaviour)?;
        self.exchange(&one, &other, other.buffer(), one.buffer())
    }

    fn tcp(&self) -> Result<()> {
        let (mut one, mut other) = (self.side()?, self.side()?);
        let (near, far) = connected()?;
        one.pair.connect_tcp(near)?;
        other.pair.connect_tcp(far)?;
        self.exchange(&one, &other, other.buffer(), one.buffer())
    }

    fn verbs(&self) -> Result<()> {
        let network = SoftwareNetwork::new(Faults {
            seed: self.seed,
            delay_one_in: 2,
            ..Faults::default()
        });
        let (mut one, mut other) = (self.side()?, self.side()?);
        let depths = Depths {
            sends_log2: 4,
            receives_log2: 3,
        };
        let mut near = VerbsCarrier::new(&network.device("one")?, depths)?;
        let mut far = VerbsCarrier::new(&network.device("other")?, depths)?;
        let known = |carrier: &mut VerbsCarrier, side: &Side| -> Result<Buffer> {
            let (address, key) = carrier.register(&side.registration, Access::RemoteWrite)?;
            Ok(Buffer {
                address,
                key: key.expect("it may be written"),
                padding: 0,
            })
        };
        let (to_one, to_other) = (known(&mut near, &one)?, known(&mut far, &other)?);
        let copy = |address: ChannelAddress| ChannelAddress::decode(&address.encode());
        near.connect(&copy(far.address()).expect("it was encoded"))?;
        far.connect(&copy(near.address()).expect("it was encoded"))?;
        one.pair.connect_verbs(near)?;
        other.pair.connect_verbs(far)?;
        self.exchange(&one, &other, to_other, to_one)
    }

    /// A link carries the messages of a device topic to another one.
    fn verbs_topics(&self) -> Result<()> {
        let network = SoftwareNetwork::new(Faults {
            seed: self.seed,
            delay_one_in: 2,
            ..Faults::default()
        });
        let devices = [network.device("one")?, network.device("other")?];
        let [near, far] = LinkSide::pair(self.kernels, self.sizes, Some(&devices), connected()?)?;
        let work = [near.jobs(self.messages), far.jobs(self.messages)];
        self.jobs.run(work.as_flattened(), 1)?;
        near.check(self.messages)?;
        far.check(self.messages).map(drop)
    }

    /// One end of a link notices that the other end, which this drops, has gone. `stays` is 0 for the sending end, 1 for the other.
    fn end_alone(&self, stays: usize) -> Result<()> {
        let sides = LinkSide::pair(self.kernels, self.sizes, None, connected()?)?;
        let mut sides = sides.into_iter();
        let stays = sides.nth(stays).expect("one of two");
        // `nth` has dropped the sides before `stays`; this drops those behind it.
        drop(sides);
        stays.is_told(&self.jobs)
    }

    fn failing(&self, one: &Side, other: &Side, fault: u32, syndrome: Syndrome) -> Result<()> {
        let job = Job {
            fault,
            syndrome: syndrome as u32,
            ..one.job(Task::Fail, 1, other.buffer())
        };
        self.jobs.run(&[job], 1)?;
        one.check("sender", 1)
    }

    fn fails(&self, fault: u32, syndrome: Syndrome) -> Result<()> {
        let (mut one, mut other) = (self.side()?, self.side()?);
        let behaviour = Behaviour {
            receive_tries: 3,
            ..Behaviour::default()
        };
        one.pair.connect(&mut other.pair, behaviour)?;
        self.failing(&one, &other, fault, syndrome)
    }

    fn fails_on_tcp(&self, fault: u32, syndrome: Syndrome) -> Result<()> {
        let (mut one, mut other) = (self.side()?, self.side()?);
        let (near, far) = connected()?;
        one.pair.connect_tcp(near)?;
        other.pair.connect_tcp(far)?;
        self.failing(&one, &other, fault, syndrome)
    }

    /// A kernel prepares entries, and then writes only their addresses for each work.
    fn prepared(&self) -> Result<()> {
        let (mut one, mut other) = (self.side()?, self.side()?);
        one.pair.connect(&mut other.pair, Behaviour::default())?;
        let job = one.job(Task::Prepared, 100, other.buffer());
        self.jobs.run(&[job], 1)?;
        one.check("sender", 100)
    }

    /// Several groups post to one queue pair at the same time, and ring the doorbell for each other.
    fn shared(&self) -> Result<()> {
        let (mut one, mut other) = (self.side()?, self.side()?);
        one.pair.connect(&mut other.pair, self.behaviour())?;
        one.write_source(b"8 bytes!");
        let groups = [one, self.side()?, self.side()?, self.side()?];
        let job = groups[0].job(Task::Shared, self.messages, other.buffer());
        let work: Vec<Job> = [1, 0, 3, 4]
            .iter()
            .zip(&groups)
            .map(|(ring_every, group)| Job {
                board: group.job(Task::Shared, 0, other.buffer()).board,
                ring_every: *ring_every,
                ..job
            })
            .collect();
        self.jobs.run(&work, 2)?;
        for group in &groups {
            group.check("group", self.messages)?;
        }
        ensure!(
            &other.landed() == b"8 bytes!",
            "{:?} landed",
            other.landed()
        );
        // All works, and one more for each group, with which it flushes.
        let works = groups.len() as u64 * (self.messages + 1);
        let counts = groups[0].pair.counts();
        ensure!(counts.works == works, "not {works} works: {counts:?}");
        Ok(())
    }

    /// The card stalls for a while: the queue fills up, waits time out, and no work is lost.
    fn full(&self) -> Result<()> {
        let (mut one, mut other) = (self.side()?, self.side()?);
        one.pair.connect(&mut other.pair, Behaviour::default())?;
        self.fill(&one, &other)?;
        one.check("sender", 16)
    }

    /// A kernel does not take zeroed completions for successful ones, and reports them.
    fn zeroed_completions(&self) -> Result<()> {
        let (mut one, mut other) = (self.side()?, self.side()?);
        one.pair.connect(&mut other.pair, Behaviour::default())?;
        one.pair.memory().zero_completions();
        self.fill(&one, &other)?;
        match one.board().failed_step {
            0 => bail!("the kernel did not report the zeroed completions"),
            _ => Ok(()),
        }
    }

    fn fill(&self, one: &Side, other: &Side) -> Result<()> {
        one.pair.set_stalled(true);
        let job = one.job(Task::Fill, 1, other.buffer());
        std::thread::scope(|scope| {
            let running = scope.spawn(|| self.jobs.run(&[job], 1));
            let begun = one.wait_until_running();
            one.pair.set_stalled(false);
            one.let_go_on();
            running.join().expect("it does not panic")?;
            begun
        })
    }
}

fn connected() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    Ok((near, listener.accept()?.0))
}
