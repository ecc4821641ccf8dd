//! Clients that behave as SDKs do, over streams that are cut, stall and half-close, before a network that loses datagrams and
//! owners that die. A seed replays a run: `EDGE_SEED=7 cargo test -p muster-rooms --features edge --test edge seeds`.
//!
//! The oracle: between two answers without `recovered`, numbers follow each other without a hole and none comes twice.

use muster_tcp::StreamId;
use muster_transport::Dice;
use serde_json::Value;

use crate::world::{World, MS, SECOND};

const ROOM: &str = "sports:final";
const SEEDS: u64 = 24;

/// What an SDK keeps of one subscription.
#[derive(Default)]
struct Sdk {
    slot: Option<u32>,
    stream: Option<StreamId>,
    id: u64,
    epoch: String,
    offset: u64,
    subscribed: bool,
    recovering: bool,
    /// The last number that came.
    last: Option<u64>,
    /// No hole is allowed before the next number.
    strict: bool,
    got: u64,
    resubscribed: u64,
    stalled_until: u64,
}

impl Sdk {
    fn connect(&mut self, world: &mut World) {
        let slot = world.web(false);
        (self.slot, self.stream) = (Some(slot), Some(world.webs[&slot].stream));
        self.subscribed = false;
        world.say(slot, r#"{"id":1,"connect":{"token":"all"}}"#);
        self.subscribe(world);
    }

    fn subscribe(&mut self, world: &mut World) {
        let Some(slot) = self.slot else { return };
        self.id += 1;
        self.recovering = !self.epoch.is_empty();
        let recover = match self.recovering {
            true => format!(r#","recover":true,"epoch":"{}","offset":{}"#, self.epoch, self.offset),
            false => String::new(),
        };
        let id = self.id + 1;
        world.say(
            slot,
            &format!(r#"{{"id":{id},"subscribe":{{"channel":"{ROOM}"{recover}}}}}"#),
        );
    }

    /// Takes one message.
    fn take(&mut self, world: &mut World, message: &Value) -> Result<(), String> {
        let push = &message["push"];
        if message["id"] == self.id + 1 && !message["error"].is_null() {
            // Temporary: an SDK asks again.
            self.subscribe(world);
        } else if let Some(result) = message["subscribe"].as_object() {
            self.subscribed = true;
            let recovered = result.get("recovered") == Some(&Value::Bool(true));
            if !recovered {
                self.strict = false;
            }
            if self.recovering && recovered && self.last.is_none() {
                self.strict = false;
            }
            self.epoch = result["epoch"].as_str().unwrap_or_default().to_owned();
            self.offset = result.get("offset").and_then(Value::as_u64).unwrap_or(0);
            for publication in result
                .get("publications")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                self.publication(publication)?;
            }
        } else if push["pub"].is_object() {
            if !self.subscribed {
                return Err("a publication without a subscription".into());
            }
            self.publication(&push["pub"])?;
        } else if push["unsubscribe"].is_object() {
            self.subscribed = false;
            self.resubscribed += 1;
            self.subscribe(world);
        }
        Ok(())
    }

    fn publication(&mut self, publication: &Value) -> Result<(), String> {
        let number = publication["data"].as_u64().ok_or("no number")?;
        if let Some(offset) = publication["offset"].as_u64() {
            self.offset = offset;
        }
        match self.last {
            Some(last) if self.strict && number != last + 1 => {
                return Err(format!("{number} came after {last}"));
            }
            _ => {}
        }
        (self.last, self.strict) = (Some(number), true);
        self.got += 1;
        Ok(())
    }
}

fn run(seed: u64) -> Result<(), String> {
    let mut world = World::new(seed);
    let mut dice = Dice::new(seed.wrapping_mul(0x9e37_79b9));
    world.loss = [0, 0, 2, 8][(seed % 4) as usize];
    let mut parted_until = 0;
    let deaths = seed % 3 == 1;
    let mut sdks: Vec<Sdk> = (0..6).map(|_| Sdk::default()).collect();
    let mut number = 0;
    for sdk in &mut sdks {
        sdk.connect(&mut world);
    }
    for step in 0..600 {
        world.parted = step < parted_until;
        world.pass(10 * MS);
        for _ in 0..dice.below(4) {
            number += 1;
            world.publish(ROOM, number.to_string().as_bytes());
        }
        let at = dice.below(sdks.len() as u64) as usize;
        match dice.below(60) {
            0 => {
                if let Some(slot) = sdks[at].slot {
                    world.cut(slot);
                }
            }
            1 => {
                if let Some(slot) = sdks[at].slot {
                    world.half_close(slot);
                }
            }
            2 => {
                sdks[at].stalled_until = step + 20;
                if let Some(web) = sdks[at].slot.and_then(|slot| world.webs.get_mut(&slot)) {
                    (web.stalled, web.window) = (true, 200 + dice.below(3_000) as usize);
                }
            }
            3 if deaths && step > 100 && step < 400 && dice.below(3) == 0 => world.restart_broker(0),
            5 if dice.below(8) == 0 => parted_until = step + 1 + dice.below(200),
            4 if step % 2 == 0 && dice.below(6) == 0 => world.restart_edge(),
            _ => {}
        }
        look(&mut world, &mut sdks, step)?;
    }
    // The last word reaches everybody.
    (world.loss, world.parted) = (0, false);
    for step in 600..1_600 {
        world.pass(10 * MS);
        look(&mut world, &mut sdks, step)?;
        if step == 1_000 {
            number += 1;
            world.publish(ROOM, number.to_string().as_bytes());
        }
    }
    world.pass(SECOND);
    look(&mut world, &mut sdks, 2_000)?;
    for (at, sdk) in sdks.iter().enumerate() {
        if sdk.last != Some(number) {
            return Err(format!("client {at} has {:?} of {number}", sdk.last));
        }
        if sdk.resubscribed > 20 {
            return Err(format!("client {at} was sent away {} times", sdk.resubscribed));
        }
    }
    Ok(())
}

fn look(world: &mut World, sdks: &mut [Sdk], step: u64) -> Result<(), String> {
    for sdk in sdks {
        let Some(slot) = sdk.slot else { continue };
        // Another client may have the slot by now.
        if world.webs.get(&slot).map(|web| web.stream) != sdk.stream {
            sdk.connect(world);
            continue;
        }
        if step >= sdk.stalled_until {
            if let Some(web) = world.webs.get_mut(&slot) {
                web.stalled = false;
            }
        }
        while let Some(message) = world.webs.get_mut(&slot).and_then(|web| web.messages.pop_front()) {
            sdk.take(world, &message)?;
        }
        if world.webs.get(&slot).is_none_or(|web| web.gone) {
            sdk.connect(world);
        }
    }
    Ok(())
}

#[test]
fn every_client_gets_each_message_once_in_order_or_hears_that_it_did_not() {
    let seeds = match std::env::var("EDGE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..SEEDS,
    };
    let failed: Vec<String> = seeds
        .filter_map(|seed| run(seed).err().map(|why| format!("EDGE_SEED={seed}: {why}")))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
