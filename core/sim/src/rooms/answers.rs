//! The reactions of the control plane and the clients' programs to events of machines.
//!
//! Owns verdicts on credentials, and the session events that a program may get. The oracle checks messages.

use muster_rooms::{Admitted, ClientEvent, GatewayEvent, ProxyEvent, Side, SPREAD};
use muster_transport::{Code, Denied, Machine};

use super::{Event, Role, Rooms, Sim};
use crate::second::SecondCluster;

pub struct Answer {
    process: usize,
    epoch: u32,
    id: u64,
    user: Result<u64, Denied>,
}

impl Rooms {
    /// Gives a role the user of a client, if the asking process is still in the same life.
    pub(super) fn answer(&mut self, world: &mut Sim, answer: Answer) -> Result<(), String> {
        let Answer {
            process,
            epoch,
            id,
            user,
        } = answer;
        let known = &mut world.processes[process];
        if known.epoch == epoch && known.is_alive() {
            match &mut known.node {
                Role::Gateway(machine) => machine.answer(world.now, id, user.map(Admitted::from), b""),
                Role::Proxy(machine) => machine.answer(world.now, id, user.map(Admitted::from), b""),
                _ => {}
            }
            if world.is_up(process) {
                world.turn_at(process, world.now);
            }
        }
        Ok(())
    }

    /// Lets the control plane and the clients' programs react to a process's events.
    pub(super) fn drain(&mut self, world: &mut Sim, process: usize) -> Result<(), String> {
        let epoch = world.processes[process].epoch;
        let (now, delay) = (world.now, self.plan.auth_delay);
        let mut questions = Vec::new();
        match &mut world.processes[process].node {
            Role::Gateway(machine) => {
                let mut events = Vec::new();
                machine.drain_events(&mut events);
                for event in events {
                    match event {
                        GatewayEvent::Authenticate(question) => questions.push(question),
                        GatewayEvent::Link(change) => world.say(|| format!("gateway {process}: {change:?}")),
                    }
                }
            }
            Role::Proxy(machine) => {
                let mut events = Vec::new();
                machine.drain_events(&mut events);
                for event in events {
                    match event {
                        ProxyEvent::Authenticate(question) => questions.push(question),
                        ProxyEvent::Link(change) => world.say(|| format!("proxy {process}: {change:?}")),
                    }
                }
            }
            Role::Broker(machine) => {
                let mut events = Vec::new();
                machine.drain_events(&mut events);
                events
                    .into_iter()
                    .for_each(|change| world.say(|| format!("broker {process}: {change:?}")));
            }
            Role::Router(machine) => {
                let mut events = Vec::new();
                machine.drain_events(&mut events);
                events
                    .into_iter()
                    .for_each(|change| world.say(|| format!("router {process}: {change:?}")));
            }
            Role::Client(machine) => {
                let mut events = Vec::new();
                machine.drain_events(&mut events);
                return self.hear(world, process - self.plan.servers(), events);
            }
        }
        for question in questions {
            let user = question
                .credential
                .first_chunk::<8>()
                .map(|bytes| u64::from_le_bytes(*bytes) + 1)
                .ok_or(Denied::Credential);
            let answer = Answer {
                process,
                epoch,
                id: question.id,
                user,
            };
            world.push(now + delay, Event::Answer(Box::new(answer)));
        }
        Ok(())
    }

    fn hear(&mut self, world: &mut Sim, client: usize, events: Vec<ClientEvent>) -> Result<(), String> {
        let mut readable = false;
        for event in events {
            match event {
                ClientEvent::Joined { room, ref gaps } => {
                    world.say(|| format!("client {client}: joined {room}, gaps {gaps:?}"));
                    let found = self.programs[client]
                        .joined
                        .iter()
                        .flatten()
                        .find(|(number, _)| *number == room);
                    if let Some((_, membership)) = found.copied() {
                        self.oracle.joined(world.now, membership);
                        self.commands.joined(world.now, membership);
                    }
                }
                ClientEvent::Commanded {
                    number, outcome, page, ..
                } => {
                    let stood = self.plan.stands_still(self.process_of(client));
                    self.commands.ended(world.now, client, number, (outcome, page), stood)?;
                }
                ClientEvent::Published(done) => {
                    self.oracle
                        .note_acked(world.now, done.ticket, done.stream, done.offset)?
                }
                ClientEvent::Readable { .. } => readable = true,
                ClientEvent::Refused {
                    room,
                    publication,
                    code,
                } => {
                    return Err(format!(
                        "client {client}: refused: {code:?} ({room}, publication: {publication})"
                    ));
                }
                ClientEvent::Down { side, reason, .. }
                    if self.plan.repairable()
                        && ![Code::Draining.name(), SPREAD].contains(&reason)
                        && !self.awaits_second(side) =>
                {
                    return Err(format!(
                        "client {client}: its session with a {side:?} was lost without a fault: {reason}"
                    ));
                }
                ClientEvent::Down {
                    retry: false, reason, ..
                } => {
                    return Err(format!("client {client}: refused for good: {reason}"));
                }
                ClientEvent::Down {
                    side: Side::Gateway,
                    reason,
                    ..
                } => {
                    world.say(|| format!("client {client}: lost its gateway: {reason}"));
                    self.commands.lost(world.now, client);
                }
                other => world.say(|| format!("client {client}: {other:?}")),
            }
        }
        if readable && (world.healed || self.plan.clients[client].read_every.is_none()) {
            self.read(world, client, usize::MAX)?;
        }
        Ok(())
    }

    /// Whether a client may wait for proxies of a cluster that starts later.
    fn awaits_second(&self, side: Side) -> bool {
        let begins = |second: &SecondCluster| second.begins.is_some();
        side == Side::Proxy && self.plan.second.as_ref().is_some_and(begins)
    }
}
